"""Every error that this package raises.

CompactionStoreError
  · InvalidInput                 refused before anything was sent
    - InvalidThreadId
    - InvalidMessage
      + MessageTooLarge
      + MessageTooDeep
    - InvalidKey
    - InvalidMeta
    - BatchTooLarge
    - InvalidSpan                the span does not begin and end where elements of the view do
    - InvalidBundle              the bundle does not verify; .line and .pos
    - InvalidSource              the source of an import is not in the format it should have; .line
    - InvalidCheckpoint          a note, a list of heads or a proof that was not signed by a known key
    - CounterFailed              the token counter raised, or returned no integer >= 0
    - InvalidCallback            a callback, strategy or summarizer that this store cannot run; a TypeError too
    - ActorRequired              the store was opened with require_actor=True, and the call names no actor
  · ThreadNotFound
  · MessageNotFound
  · CompactionNotFound
  · PositionNotFound             the thread has no such pos, or had no entry at that time
  · Conflict                     the thread's state does not allow the write; nothing was written
    - IdempotencyConflict        the key was used before, with other content
    - SequenceConflict           expected_seq is not the last seq
    - HeadConflict               the thread has another entry than the caller expected; .expected and .actual
    - SpanConflict               another compaction overlaps the span, or the view is of another history
    - ThreadExists               the bundle's thread is there already, with another head
    - ThreadErased               nothing can be added to an erased thread
    - TurnTimeout                other turns had the thread until the wait was over; .actor and .until
    - TurnLost                   the turn's lease ran out and another turn took the thread, or the thread was erased
    - Held                       a hold or a retention forbids erasing; override= erases anyway
    - CheckpointRefused          the database contradicts the last checkpoint; nothing was signed; .findings
  · Rejected                     a rule refuses the compaction; recorded as rejected
    - SplitPair                  the span separates a tool call from its result
    - PendingCall                the span has a tool call that still waits for its result
    - SystemInside               the span has a system message; override with allow={"system"}
    - LastUserInside             the span has the last user message; override with allow={"last_user"}
    - EmptySummary
    - NotSmaller                 the replacement takes no fewer tokens; override with allow={"larger"}
    - IdsChanged                 the replacement does not keep the ids of tool calls and results
    - ChecksFailed               the summary fails a strict check
    - PinnedInside               the span has a pinned message; never recorded
    - NoProgress                 the same span was just rejected, and nothing has changed; not recorded again
  · SummarizerError              there is no summary; the span stays as it is
    - SummaryRefused             the model refused
    - SummaryCutShort            the answer was not finished
    - SummaryUseless             the answer is empty
    - SummaryTooLong             the answer is no shorter than its source
    - SourceTooLong              the source does not fit the model, even in parts
    - NativeRefused              a rule of the API's own compaction is broken; nothing was sent
    - SummarizerUnavailable      overloaded, rate limited or out of reach until the deadline; .status
    - SummarizerRejected         the API refused the request; .status
    - SummarizersFailed          all of several summarizers failed; .errors
  · Unreadable                   a stored document breaks the rules; run verify
  · UnknownEntry                 a newer release wrote an entry that changes views, and this one does not know its kind
  · NotRenderable                a message has no form in the requested format; .seq and .part
  · BudgetExceeded               no view fits the window; .view
  · DatabaseError                the server refused, or could not be reached
    - DatabaseUnavailable        nothing was written
    - OutcomeUnknown             the write may have happened: retry with .key
    - ThreadDamaged              the thread's rows contradict its head: run verify; nothing was written
    - PermissionDenied           the login lacks a role; the message names it
    - NotPrimary                 the server is a standby, which may lag behind
    - SchemaOutOfDate
    - UnsupportedDatabase
  · ThreadWentBack               the append was stored, at a seq that this store had received before; .written
  · NotConfigured
    - MissingExtra

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
        """Returns the type and the text. The text is None if this package did not write it: it may quote a message."""
        return {"type": type(self).__name__, "text": own_text(self)}

    def __new__(cls, *args: object, **_keywords: object) -> Self:
        error = super().__new__(cls, *args)
        # Callbacks may raise these classes too, with texts that quote messages.
        error._is_own = _is_here(sys._getframe(1).f_globals.get("__name__"))  # noqa: SLF001
        return error


class InvalidInput(CompactionStoreError, ValueError):
    """An argument is wrong; it was refused before anything was sent."""


class InvalidThreadId(InvalidInput):
    """A thread_id must be text of 1 to 255 bytes of UTF-8 without NUL."""


class InvalidMessage(InvalidInput):
    """A message must be one JSON object."""


class MessageTooLarge(InvalidMessage):
    """A message must take at most 16 MiB as JSON."""


class MessageTooDeep(InvalidMessage):
    """A message must nest at most 200 levels deep."""


class InvalidKey(InvalidInput):
    """A key must be text of 1 to 255 bytes of UTF-8 without NUL."""


class InvalidMeta(InvalidInput):
    """Meta must be one JSON object of at most 8 KiB."""


class InvalidCheckpoint(InvalidInput):
    """A note, a list of heads or a proof is not what a known key signed."""


class CounterFailed(InvalidInput):
    """The token counter raised, or returned no integer >= 0. The text of the counter's error is not repeated."""


class InvalidCallback(InvalidInput, TypeError):
    """A callback, strategy, summarizer or counter is of a kind that this store cannot run."""


class ActorRequired(InvalidInput):
    """The store was opened with require_actor=True, and neither the call nor the store names an actor."""


class BatchTooLarge(InvalidInput):
    """One append must have at most 1,000 messages and 64 MiB."""


class InvalidSpan(InvalidInput):
    """A span must begin and end where elements of the view do."""


class InvalidBundle(InvalidInput):
    """The bundle does not verify, or is not the one that was expected; nothing of it was stored."""

    def __init__(self, what: str, *, line: int | None = None, pos: int | None = None) -> None:
        super().__init__(what if line is None else f"line {line:,} of the bundle: {what}")
        self.line = line
        self.pos = pos


class InvalidSource(InvalidInput):
    """The source of an import cannot be read in its format. `.line` is the number of the line, if the source is a text
    file.
    """

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class ThreadNotFound(CompactionStoreError, LookupError):
    """The thread has no messages in this tenant."""


class MessageNotFound(CompactionStoreError, LookupError):
    """The thread has no such seq."""


class CompactionNotFound(CompactionStoreError, LookupError):
    """The thread has no record with that number."""


class PositionNotFound(CompactionStoreError, LookupError):
    """The thread has no such pos, or had no entry at that time."""


class Conflict(CompactionStoreError):
    """The thread's state does not allow the write; nothing was written."""


class IdempotencyConflict(Conflict):
    """The key belongs to an earlier append with other content."""


class SequenceConflict(Conflict):
    """The thread's last seq is not the expected one."""

    def __init__(self, message: str, *, expected: int, actual: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class HeadConflict(Conflict):
    """The thread has another entry than the caller expected, at its end or at the pos of the view.

    `actual` is the entry that it has there, or None.
    """

    def __init__(self, message: str, *, expected: bytes, actual: bytes | None) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class SpanConflict(Conflict):
    """Another compaction overlaps the span, or the thread no longer has the view that the run started from.

    The latter happens after a failover or a restore that lost entries: compact the current view instead.
    """


class ThreadExists(Conflict):
    """The thread is there already, and its head is not the bundle's."""


class ThreadErased(Conflict):
    """The thread was erased: it can be read and verified, but nothing can be added."""


class TurnTimeout(Conflict):
    """Other turns had the thread until the wait was over.

    `.actor` and `.login` say who had it last and `.until` when that lease ends unless it is renewed: None if it was
    free, and turns that came earlier wait for it. `.ahead` is how many of these there are.
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
    """The turn no longer has the thread: its lease ran out and another turn took the thread, or the thread was erased.

    An append through the turn was not written. Without one, other messages may be among those of the turn.
    """


class Held(Conflict):
    """A hold or a retention forbids erasing. `.pos` is the pos of its event."""

    def __init__(self, message: str, *, pos: int) -> None:
        super().__init__(message)
        self.pos = pos


class CheckpointRefused(Conflict):
    """The database contradicts the last checkpoint, so nothing was signed. `.findings` name the threads."""

    def __init__(self, message: str, *, findings: tuple[str, ...]) -> None:
        super().__init__(message)
        self.findings = findings


class Rejected(CompactionStoreError):
    """A rule refuses the compaction; it is recorded as rejected. `.rule` is the name that `allow=` takes."""

    rule = ""

    def __init__(self, message: str, *, start_seq: int, end_seq: int) -> None:
        super().__init__(message)
        self.start_seq = start_seq
        self.end_seq = end_seq


class SplitPair(Rejected):
    """The span has a tool call without its result, or a result without its call."""


class PendingCall(Rejected):
    """The span has a tool call that still waits for its result."""


class SystemInside(Rejected):
    """The span has a system message."""

    rule = "system"


class LastUserInside(Rejected):
    """The span has the last user message."""

    rule = "last_user"


class EmptySummary(Rejected):
    """The summary is empty."""


class NotSmaller(Rejected):
    """The replacement takes as many tokens as the span, or more."""

    rule = "larger"


class IdsChanged(Rejected):
    """Replacement messages must keep exactly the ids of the tool calls and results in the span."""


class ChecksFailed(Rejected):
    """The summary fails a strict check. The text has the check's name and counts, and nothing of the messages."""

    attempted: Summary | None = None


class PinnedInside(Rejected):
    """The span has a pinned message. The strategy gets this error, and no record is made."""


class NoProgress(Rejected):
    """The callback was just rejected on this span, and the thread has not changed since."""


class SummarizerError(CompactionStoreError):
    """There is no summary. The error repeats nothing of the source or of the model's answer.

    A summarizer may set `.attempted` to a `Summary`, on this or any other exception: its model, prompt, settings, usage
    and duration are then recorded with the failed attempt, without its text.
    """

    attempted: Summary | None = None


class SummaryRefused(SummarizerError):
    """The model refused to summarize."""


class SummaryCutShort(SummarizerError):
    """The answer was not finished."""


class SummaryUseless(SummarizerError):
    """The answer is empty, or has only markup or a heading."""


class SummaryTooLong(SummarizerError):
    """The answer is no shorter than its source."""


class SourceTooLong(SummarizerError):
    """The source does not fit the model, and splitting it did not help."""


class NativeRefused(SummarizerError):
    """The API's own compaction would not accept the span, or its result could not be used there; nothing was sent."""


class SummarizerUnavailable(SummarizerError):
    """The API was overloaded, rate limited or out of reach until the deadline. `.status` is None without an answer."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class SummarizerRejected(SummarizerError):
    """The API refused the request; a retry would not help. `.status` is None if it was never sent."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class SummarizersFailed(SummarizerError):
    """All of several summarizers failed; `.errors` has their errors, in order."""

    def __init__(self, message: str, *, errors: tuple[Exception, ...]) -> None:
        super().__init__(message)
        self.errors = errors


class Unreadable(CompactionStoreError):
    """A stored document breaks the rules, so no view can be made from it."""


class UnknownEntry(CompactionStoreError):
    """The thread has an entry of a kind that this release does not know and that changes what a view is.

    A newer release wrote it. Messages can be replayed and appended; a view would be wrong, so there is none.
    """


class NotRenderable(CompactionStoreError):
    """Part of a message has no form in the requested format. `.part` is its index, or the field's name."""

    def __init__(self, message: str, *, seq: int, part: int | str | None) -> None:
        super().__init__(message)
        self.seq = seq
        self.part = part


class DatabaseError(CompactionStoreError):
    """The server refused; `.sqlstate` says why. The error does not repeat the statement or its values."""

    def __init__(self, message: str, *, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class DatabaseUnavailable(DatabaseError):
    """There was no connection, or the server gave up before writing."""


class OutcomeUnknown(DatabaseError):
    """The connection broke during a write. To settle it, repeat the call with `.key`."""

    def __init__(self, message: str, *, key: str | None, sqlstate: str | None = None) -> None:
        super().__init__(message, sqlstate=sqlstate)
        self.key = key


class ThreadDamaged(DatabaseError):
    """The thread's rows contradict its head, so nothing was written. `verify` says where."""


class PermissionDenied(DatabaseError):
    """The login lacks a role that the call needs; the message names what to grant."""


class NotPrimary(DatabaseError):
    """The server is a standby, which may lag behind acknowledged writes."""


class SchemaOutOfDate(DatabaseError):
    """The database's schema is not the one that this version of the package needs."""


class UnsupportedDatabase(DatabaseError):
    """The server must be Postgres 15 or newer with the encoding UTF8."""


class ThreadWentBack(CompactionStoreError):
    """The append was stored, as `.written`, but the thread has lost messages: it had reached `.known_seq` before.

    A standby without them has taken over, or a backup was restored. Raised once each time that this happens.
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
    """Returns an error's text if this package wrote it. The text of any other error may quote a message."""
    return str(error) if isinstance(error, CompactionStoreError) and error._is_own else None  # noqa: SLF001


def _is_here(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == "compaction_store"


def install(*extras: str) -> str:
    """Returns the command that installs extras from the place that this package was installed from: a clone, a wheel or
    an index.
    """
    # Only this needs them, and importing them takes as long as the rest of a short command.
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
    """Returns where an error was raised outside of this package: module, line and function, which hold no content.

    Code compiled at run time may have any name, even one taken from a message, so the place that runs it is returned.
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
