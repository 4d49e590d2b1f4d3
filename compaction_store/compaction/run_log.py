"""Says in the log what went wrong in a run: types, the thread and the record, but never the content of a message."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Iterator

from compaction_store.arguments import about
from compaction_store.models import Compaction
from compaction_store.models.vocabulary import Outcome

_log = logging.getLogger("compaction_store")
_WHAT: dict[Outcome, str] = {"failed": "a callback or summarizer failed", "rejected": "a compaction was rejected"}


def log_run(thread_id: str, records: Iterable[Compaction], errors: Iterable[Exception]) -> None:
    """Logs the failed and rejected attempts of a run, and the failures after which another summarizer wrote."""
    for record in records:
        if record.outcome in _WHAT:
            kind = (record.error or {}).get("type")
            _log.warning("%s: %s in record %d%s", _WHAT[record.outcome], kind, record.number, about(thread_id))
        for failed in record.failed_before:
            _log.warning(
                "a summarizer failed, and another one was tried: %s in record %d%s",
                failed.get("type"), record.number, about(thread_id),
            )  # fmt: skip
    if _log.isEnabledFor(logging.DEBUG):
        for error in errors:
            _log.debug("%s%s was raised here:\n%s", type(error).__name__, about(thread_id), "".join(_frames(error)))


def log_failure(thread_id: str, error: Exception) -> None:
    """Logs that a view could not be compacted, if the caller gets the view in spite of it."""
    _log.warning("the view was not compacted: %s%s", type(error).__name__, about(thread_id))


def _frames(error: BaseException | None) -> Iterator[str]:
    """Yields the lines of a traceback without the texts of exceptions, because these may quote a message."""
    seen = []
    while error is not None and error not in seen:
        seen.append(error)
        yield from traceback.format_tb(error.__traceback__)
        yield f"{type(error).__module__}.{type(error).__qualname__}\n"
        error = error.__cause__ or error.__context__
