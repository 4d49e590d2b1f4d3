"""The immutable values that the package takes and returns.

No repr shows the content of messages. `as_dict()` returns a value's fields in a form that `json.dumps` accepts.
"""

from compaction_store.models.compactions import Attempt, Compaction, CompactionTree, Sample, Span, Summary
from compaction_store.models.loads import Imported, Loaded, Observed, ThreadLoaded, ToLoad
from compaction_store.models.messages import Appended, Element, Measured, Message, Payload, PendingCall
from compaction_store.models.outlines import ComparedPart, Comparison, Outline, Part
from compaction_store.models.reports import LEVELS, Explanation, Finding, Found, Level, Report, Verdict
from compaction_store.models.threads import (
    Event,
    Expiry,
    FeedEntry,
    Forked,
    Lease,
    Origin,
    RedactedFork,
    Redaction,
    Thread,
    TokenStep,
)

__all__ = [
    "LEVELS",
    "Appended",
    "Attempt",
    "Compaction",
    "CompactionTree",
    "ComparedPart",
    "Comparison",
    "Element",
    "Event",
    "Expiry",
    "Explanation",
    "FeedEntry",
    "Finding",
    "Forked",
    "Found",
    "Imported",
    "Lease",
    "Level",
    "Loaded",
    "Measured",
    "Message",
    "Observed",
    "Origin",
    "Outline",
    "Part",
    "Payload",
    "PendingCall",
    "RedactedFork",
    "Redaction",
    "Report",
    "Sample",
    "Span",
    "Summary",
    "Thread",
    "ThreadLoaded",
    "ToLoad",
    "TokenStep",
    "Verdict",
]
