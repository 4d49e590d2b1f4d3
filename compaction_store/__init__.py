"""A persistent conversation store on Postgres, with auditable compaction records.

This module has the names that an application needs, such as the stores, the context that a callback gets, the values
that stores return, and the errors that an application catches. The other errors are in `compaction_store.errors`, and
the other values in `compaction_store.models`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compaction_store.bundles.verification import verify_bundle
    from compaction_store.checkpoints import Checkpoint, CheckpointLog, SigningKey
    from compaction_store.compaction.budget import TokenBudget
    from compaction_store.compaction.context import CompactionContext
    from compaction_store.compaction.plan import BudgetExceeded, CompactionPlan, CompactionRun, FittedView
    from compaction_store.errors import (
        CheckpointRefused,
        CompactionNotFound,
        CompactionStoreError,
        Conflict,
        DatabaseError,
        DatabaseUnavailable,
        HeadConflict,
        Held,
        IdempotencyConflict,
        InvalidBundle,
        InvalidInput,
        InvalidSource,
        MessageNotFound,
        NotConfigured,
        OutcomeUnknown,
        PositionNotFound,
        Rejected,
        SequenceConflict,
        SpanConflict,
        SummarizerError,
        ThreadErased,
        ThreadExists,
        ThreadNotFound,
        ThreadWentBack,
    )
    from compaction_store.models import (
        Appended,
        Compaction,
        Element,
        Event,
        Explanation,
        Finding,
        Message,
        Redaction,
        Report,
        Summary,
        Thread,
    )
    from compaction_store.recall import recall_tools
    from compaction_store.rendering.view import Rendered, SeenView, View
    from compaction_store.store._async import AsyncReader, AsyncStore
    from compaction_store.store._sync import Reader, Store
    from compaction_store.telemetry.telemetry import Telemetry

__version__ = "0.1.0"

# Maps each module to its public names. A module is imported on first use, so that short commands start quickly.
_PLACES = {
    "compaction_store.bundles.verification": "verify_bundle",
    "compaction_store.checkpoints": "Checkpoint CheckpointLog SigningKey",
    "compaction_store.compaction.budget": "TokenBudget",
    "compaction_store.compaction.context": "CompactionContext",
    "compaction_store.compaction.plan": "BudgetExceeded CompactionPlan CompactionRun FittedView",
    "compaction_store.errors": (
        "CheckpointRefused CompactionNotFound CompactionStoreError Conflict DatabaseError DatabaseUnavailable"
        " HeadConflict Held IdempotencyConflict InvalidBundle InvalidInput InvalidSource MessageNotFound "
        "NotConfigured OutcomeUnknown PositionNotFound Rejected SequenceConflict SpanConflict SummarizerError"
        " ThreadErased ThreadExists ThreadNotFound ThreadWentBack "
    ),
    "compaction_store.models": (
        "Appended Compaction Element Event Explanation Finding Message Redaction Report Summary Thread "
    ),
    "compaction_store.recall": "recall_tools",
    "compaction_store.rendering.view": "Rendered SeenView View",
    "compaction_store.store._async": "AsyncReader AsyncStore",
    "compaction_store.store._sync": "Reader Store",
    "compaction_store.telemetry.telemetry": "Telemetry",
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names.split()}
_PUBLIC_MODULES = (
    "checks", "distribution", "embedded", "errors", "evaluation", "grants", "importers", "models", "recall",
    "strategies", "summarizers", "tokens",
)  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _PUBLIC_MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Appended",
    "AsyncReader",
    "AsyncStore",
    "BudgetExceeded",
    "Checkpoint",
    "CheckpointLog",
    "CheckpointRefused",
    "Compaction",
    "CompactionContext",
    "CompactionNotFound",
    "CompactionPlan",
    "CompactionRun",
    "CompactionStoreError",
    "Conflict",
    "DatabaseError",
    "DatabaseUnavailable",
    "Element",
    "Event",
    "Explanation",
    "Finding",
    "FittedView",
    "HeadConflict",
    "Held",
    "IdempotencyConflict",
    "InvalidBundle",
    "InvalidInput",
    "InvalidSource",
    "Message",
    "MessageNotFound",
    "NotConfigured",
    "OutcomeUnknown",
    "PositionNotFound",
    "Reader",
    "Redaction",
    "Rejected",
    "Rendered",
    "Report",
    "SeenView",
    "SequenceConflict",
    "SigningKey",
    "SpanConflict",
    "Store",
    "SummarizerError",
    "Summary",
    "Telemetry",
    "Thread",
    "ThreadErased",
    "ThreadExists",
    "ThreadNotFound",
    "ThreadWentBack",
    "TokenBudget",
    "View",
    "__version__",
    "recall_tools",
    "verify_bundle",
]
