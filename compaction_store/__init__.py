"""A persistent conversation store on Postgres, with auditable compaction records.

These are the names that an application needs: the stores, what a callback is given, the values that they return, and
the errors that it catches. Other errors are in `compaction_store.errors`, other values in `compaction_store.models`.
"""

from compaction_store.bundles.verification import verify_bundle
from compaction_store.checkpoints import Checkpoint, CheckpointLog, SigningKey
from compaction_store.compaction.budget import BudgetExceeded, TokenBudget
from compaction_store.compaction.context import CompactionContext
from compaction_store.compaction.plan import CompactionPlan, CompactionRun
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

__version__ = "0.1.0"
