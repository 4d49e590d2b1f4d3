"""The errors that this package raises.

Errors name threads, seqs, numbers and sizes. They never contain the content of a message.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import datetime
from traceback import walk_tb
from typing import Any, Self

from compaction_store.models import Appended, Summary

_LONGEST_PLACE = 300


class CompactionStoreError(Exception):
    """The base of every error of this package."""

    _is_own = False

    def as_dict(self) -> dict[str, Any]:
        """Returns the type and the text. A text of other code becomes None, because it may quote a message."""
        return {"type": type(self).__name__, "text": own_text(self)}

    def __new__(cls, *args: object, **_keywords: object) -> Self:
        error = super().__new__(cls, *args)
        # Callbacks may raise these classes too, with a text that quotes a message.
        error._is_own = _is_here(sys._getframe(1).f_globals.get("__name__"))  # noqa: SLF001
        return error


class InvalidInput(CompactionStoreError, ValueError):
    """An argument or another value that the caller passed is wrong.

    Most calls are refused before anything is sent to the server.
    """


class InvalidThreadId(InvalidInput):
    """A thread_id must be text of 1 to 255 bytes of UTF-8 without NUL.

    A new one must not begin with "erased:" or "compaction-store:". The tenant "compaction-store" has no threads.
    """


class InvalidMessage(InvalidInput):
    """A message must be one JSON object that at least one API's request can have, unless it is stored with `raw`.

    `.index` is the index of the message in the list that was given, and `.path` is the place of the bad value in the
    message, such as `content[0].text`. Either is None if it is not known.
    """

    def __init__(self, message: str, *, index: int | None = None, path: str | None = None) -> None:
        super().__init__(message)
        self.index = index
        self.path = path


class MessageTooLarge(InvalidMessage):
    """A message must take at most 16 MiB as JSON."""


class MessageTooDeep(InvalidMessage):
    """A message must nest at most 200 levels deep."""


class InvalidKey(InvalidInput):
    """A key must be text of 1 to 255 bytes of UTF-8 without NUL."""


class InvalidMeta(InvalidInput):
    """Meta must be one JSON object of at most 8 KiB."""


class InvalidCheckpoint(InvalidInput):
    """The note, the list of heads or the proof does not hold.

    For example, it is malformed, it was changed after it was signed, it does not fit the thread or the checkpoint
    before it, or no known key signed it.
    """


class CounterFailed(InvalidInput):
    """The token counter raised an error or did not return an integer from 0 to 2,147,483,647.

    The text of the counter's own error is not repeated.
    """


class InvalidCallback(InvalidInput, TypeError):
    """A callback, strategy, summarizer, check or counter cannot be used: for example, it is async on a `Store`, or it
    returned a value of a wrong type.
    """


class ActorRequired(InvalidInput):
    """The store was opened with require_actor=True, and neither the call nor the store names an actor."""


class BatchTooLarge(InvalidInput):
    """One append must have at most 1,000 messages and 64 MiB."""


class InvalidSpan(InvalidInput):
    """A span must lie in the view and must not end before its start. An adopted span must not cut a compaction."""


class InvalidBundle(InvalidInput):
    """The bundle cannot be read, does not verify or is not the expected one. Nothing from it was stored."""

    def __init__(self, what: str, *, line: int | None = None, pos: int | None = None) -> None:
        super().__init__(what if line is None else f"line {line:,} of the bundle: {what}")
        self.line = line
        self.pos = pos


class InvalidSource(InvalidInput):
    """The source of an import cannot be read or has an unexpected format. `.line` is the line's number, or None."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class ThreadNotFound(CompactionStoreError, LookupError):
    """The tenant has no such thread, or the thread is hidden."""


class MessageNotFound(CompactionStoreError, LookupError):
    """The thread has no message with that seq, or `seen_by` was asked for the view before its first message."""


class CompactionNotFound(CompactionStoreError, LookupError):
    """The thread has no record with that number, or no record of the compaction to adopt."""


class PositionNotFound(CompactionStoreError, LookupError):
    """The thread has no entry at that pos, or no message up to that pos or time."""


class Conflict(CompactionStoreError):
    """The state of the thread or the database does not allow the write, so nothing was written."""


class IdempotencyConflict(Conflict):
    """An earlier append, load or fork used the key with different content."""


class SequenceConflict(Conflict):
    """The thread's last seq is not the expected one."""

    def __init__(self, message: str, *, expected: int, actual: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class SubjectConflict(Conflict):
    """The thread has another subject than the append named, or none."""


class HeadConflict(Conflict):
    """The entry at the thread's end, or at the pos of the view, is not the one that the caller expected.

    `.actual` is the entry that the thread has there, or None.
    """

    def __init__(self, message: str, *, expected: bytes, actual: bytes | None) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class SpanConflict(Conflict):
    """Another compaction overlaps the span, or the thread lost entries of the view that the run started from.

    Compact the current view instead. Entries can be lost in a failover or a restore.
    """


class ThreadExists(Conflict):
    """Another thread has the name, or the bundle's thread already exists with another head than in the bundle."""


class ThreadErased(Conflict):
    """The thread was erased. It can be read and verified, but nothing can be added to it."""


class TurnTimeout(Conflict):
    """Other turns held the thread for the whole wait.

    `.actor` and `.login` say who held the thread last. `.until` is the time when the lease of that turn expires if it
    is not renewed, or None if no turn holds the thread and earlier callers get it first. `.ahead` is the number of
    these callers.
    """

    def __init__(
        self, message: str, *, actor: str | None, login: str | None, until: datetime | None, ahead: int
    ) -> None:
        super().__init__(message)
        self.actor = actor
        self.login = login
        self.until = until
        self.ahead = ahead


class TurnLost(Conflict):
    """The turn lost the thread: its lease expired and another turn began, or the thread was erased.

    If an append raised this error, nothing was written. If the end of the turn raised it, the messages of other turns
    may be between the messages of this turn.
    """


class Held(Conflict):
    """A hold or a retention forbids the erasure, or a locked retention forbids a shorter one.

    `.pos` is the pos of the event of the hold or the retention, or None if the tenant's rule retains the thread.
    """

    def __init__(self, message: str, *, pos: int | None) -> None:
        super().__init__(message)
        self.pos = pos


class CheckpointRefused(Conflict):
    """The database contradicts the last checkpoint, so nothing was signed. `.findings` name the threads."""

    def __init__(self, message: str, *, findings: tuple[str, ...]) -> None:
        super().__init__(message)
        self.findings = findings


class Rejected(CompactionStoreError):
    """A rule forbids the compaction. For most rules, a record with the outcome "rejected" was written.

    `.rule` is the name of the rule for `allow=`, or empty if the rule cannot be overridden.
    """

    rule = ""

    def __init__(self, message: str, *, start_seq: int, end_seq: int) -> None:
        super().__init__(message)
        self.start_seq = start_seq
        self.end_seq = end_seq


class SplitPair(Rejected):
    """The span has a tool call without its result, or a result without its call."""


class PendingCall(Rejected):
    """The span has a tool call that has no result yet."""


class SystemInside(Rejected):
    """The span has a system message."""

    rule = "system"


class LastUserInside(Rejected):
    """The span has the last user message."""

    rule = "last_user"


class EmptySummary(Rejected):
    """The summary has no text."""


class NotSmaller(Rejected):
    """The replacement has at least as many tokens as the span."""

    rule = "larger"


class IdsChanged(Rejected):
    """Replacement messages must keep exactly the ids of the tool calls and results in the span."""


class ChecksFailed(Rejected):
    """The summary fails a strict check. The text has the check's name and numbers, and quotes no message."""

    attempted: Summary | None = None


class PinnedInside(Rejected):
    """The span has a pinned message. The strategy gets this error, and no record is written."""


class NoProgress(Rejected):
    """A compaction of this span was just rejected, and the thread has not changed since. No record is written."""


class SummarizerError(CompactionStoreError):
    """There is no summary. The error does not quote the source or the model's answer.

    A summarizer may set `.attempted` to a `Summary`, on this or on any other exception. The record of the failed
    attempt then has the model, prompt, settings, usage and duration of that `Summary`, but not its text.
    """

    attempted: Summary | None = None


class SummaryRefused(SummarizerError):
    """The model refused to summarize."""


class SummaryCutShort(SummarizerError):
    """The model's answer was cut off before its end."""


class SummaryUseless(SummarizerError):
    """The model's answer is empty, or has only markup or a heading."""


class SummaryTooLong(SummarizerError):
    """The model's answer is no shorter than its source, or the source is too short for a shorter summary."""


class SourceTooLong(SummarizerError):
    """The source does not fit the model, even when it is split into parts."""


class NativeRefused(SummarizerError):
    """The API's own compaction would refuse the span, or the view could not use its result. Nothing was sent."""


class SummarizerUnavailable(SummarizerError):
    """The API was overloaded, rate limited or unreachable until the last retry or the deadline.

    `.status` is None without a response.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class SummarizerRejected(SummarizerError):
    """The API or its client refused the request, or the answer was malformed, and a retry would not help.

    `.status` is the API's HTTP status, or None if it did not refuse the request.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class SummarizersFailed(SummarizerError):
    """All of several summarizers failed. `.errors` has their errors, in the order of the summarizers."""

    def __init__(self, message: str, *, errors: tuple[Exception, ...]) -> None:
        super().__init__(message)
        self.errors = errors


class Unreadable(CompactionStoreError):
    """A stored document is malformed, so the call cannot use it. Run `verify` on the thread."""


class UnknownEntry(CompactionStoreError):
    """A newer release wrote an entry that changes views, and this release does not know the kind of the entry.

    Messages can still be replayed and appended. No view from that entry on can be made, because it would be wrong.
    """


class NotRenderable(CompactionStoreError):
    """The requested format cannot express a message or a part of it.

    `.part` is the part's index or the name of a field, or None for the whole message.
    """

    def __init__(self, message: str, *, seq: int, part: int | str | None) -> None:
        super().__init__(message)
        self.seq = seq
        self.part = part


class DatabaseError(CompactionStoreError):
    """The server refused the call or could not be reached. `.sqlstate` has the server's reason, if it gave one.

    The error quotes neither the statement nor values.
    """

    def __init__(self, message: str, *, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class DatabaseUnavailable(DatabaseError):
    """The server could not be reached or gave up. Nothing was written."""


class StoreClosed(DatabaseError):
    """The store is closed. Nothing was sent."""


class LoginRefused(DatabaseError):
    """The server answers, but refuses the login, its password or the database in the URL. A retry does not help."""


class OutcomeUnknown(DatabaseError):
    """A write may have happened, for example because the connection broke before the server answered.

    To be sure, retry the call with `.key`, or unchanged if `.key` is None.
    """

    def __init__(self, message: str, *, key: str | None, sqlstate: str | None = None) -> None:
        super().__init__(message, sqlstate=sqlstate)
        self.key = key


class ThreadDamaged(DatabaseError):
    """The thread's rows contradict its head, name or hashes, so nothing was written. `verify` finds the rows."""


class PermissionDenied(DatabaseError):
    """The login lacks a role or a right that the call needs. The message says which."""


class FeedInterrupted(DatabaseError):
    """The cursor's entry is not in the database, so the feed cannot go on from there. The text says what may be why."""


class NotPrimary(DatabaseError):
    """The server is a standby, which may lag behind acknowledged writes."""


class SchemaOutOfDate(DatabaseError):
    """The database's schema is not the one that this version of the package needs."""


class UnsupportedDatabase(DatabaseError):
    """The server must be Postgres 15 or newer with the encoding UTF8. A Citus cluster must meet further conditions."""


class ThreadWentBack(CompactionStoreError):
    """The append was stored, as `.written`, but the thread has lost messages that it had up to `.known_seq`.

    Either a standby without these messages took over, or a backup was restored. Each loss raises this error once.
    """

    def __init__(self, message: str, *, written: Appended, known_seq: int) -> None:
        super().__init__(message)
        self.written = written
        self.known_seq = known_seq


class NotConfigured(CompactionStoreError):
    """The call needs something that was not configured."""


class MissingExtra(NotConfigured, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra {extra!r}: {install(extra)}")
        self.extra = extra


def own_text(error: BaseException) -> str | None:
    """Returns an error's text if this package wrote it, else None, because other texts may quote a message."""
    return str(error) if isinstance(error, CompactionStoreError) and error._is_own else None  # noqa: SLF001


def _is_here(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == "compaction_store"


def install(*extras: str) -> str:
    """Returns the pip command for extras. It installs from the clone, wheel or index that this package came from."""
    # Import these here, because importing them takes as long as the rest of a short command.
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415
    from urllib.parse import urlsplit  # noqa: PLC0415
    from urllib.request import url2pathname  # noqa: PLC0415

    source = "/path/to/the/clone"
    with suppress(PackageNotFoundError, ValueError, KeyError, TypeError):
        origin = distribution("compaction-store").read_text("direct_url.json")
        url = "" if origin is None else json.loads(origin)["url"]
        if url.startswith("file://"):
            source = url2pathname(urlsplit(url).path)
        elif origin is None:
            source = "compaction-store"
    return f"pip install '{source}[{','.join(extras)}]'"


def raised_at(error: BaseException) -> str | None:
    """Returns the module, line and function outside this package where an error was raised, or None.

    Code that was compiled at run time is skipped in favour of its caller, because its names may come from a message.
    """
    found = None
    for frame, line in walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__")
        if type(module) is not str or vars(sys.modules.get(module, object)) is not frame.f_globals:
            continue
        code = frame.f_code
        if not _is_here(module) and not code.co_filename.startswith("<"):
            found = f"{module}:{line} in {code.co_name}"
    return found if found is None or len(found) <= _LONGEST_PLACE else None
