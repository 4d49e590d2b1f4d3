"""Every error this package raises on purpose.

CompactionStoreError
  · InvalidInput                 refused before anything was sent
    - InvalidThreadId
    - InvalidMessage
      + MessageTooLarge
      + MessageTooDeep
    - InvalidKey
    - InvalidMeta
    - BatchTooLarge
    - InvalidSpan                the thread's view has no such elements
    - InvalidBundle              a bundle that does not prove itself; .line and .pos
    - InvalidSource              what is to be imported cannot be read as what it is given for; .line
    - InvalidCheckpoint          a note, a list of heads or a proof that is not what a known key signed
    - CounterFailed              the token counter raised, or returned no whole number
    - InvalidCallback            a callback, strategy or summarizer that this store cannot run; a TypeError too
    - ActorRequired              the store was opened with require_actor=True, and the call names no actor
  · ThreadNotFound
  · MessageNotFound
  · CompactionNotFound
  · PositionNotFound             a pos, a moment or a record that the thread does not have
  · Conflict                     well-formed, but the thread says no; nothing was written
    - IdempotencyConflict        the key was used before, for other content
    - SequenceConflict           expected_seq is not the last seq
    - HeadConflict               the thread has another entry than the caller saw; .expected and .actual
    - SpanConflict               another compaction holds part of the span, or the view is of another history
    - ThreadExists               a bundle brings a thread that is there already
    - ThreadErased               nothing is added to a thread that was erased
    - Held                       a hold or a retention forbids to erase; override= insists
    - CheckpointRefused          the database contradicts the last checkpoint; nothing was signed; .findings
  · Rejected                     a compaction that the rules refuse; recorded as rejected
    - SplitPair                  it would part a tool call from its result
    - PendingCall                it covers a call that still waits for its result
    - SystemInside               it covers a system message; insist with allow={"system"}
    - LastUserInside             it covers the last user message; insist with allow={"last_user"}
    - EmptySummary
    - NotSmaller                 it takes no fewer tokens; insist with allow={"larger"}
    - IdsChanged                 stand-ins that do not keep the tool calls and results they replace
    - PinnedInside               it covers what was pinned; never recorded
    - NoProgress                 the same span was just rejected, and nothing has changed since; not recorded again
  · SummarizerError              no summary came of it; the span stays as it is
    - SummaryRefused             the model would not
    - SummaryCutShort            the answer was not finished
    - SummaryUseless             the answer says nothing
    - SummaryTooLong             the answer is no shorter than its source
    - SourceTooLong              what is to be summarized does not fit, and splitting it did not help
    - NativeRefused              a rule of the API's own compaction is not kept; nothing was sent
    - SummarizerUnavailable      overloaded, rate limited or out of reach until the deadline; .status
    - SummarizerRejected         the API says no; .status
    - SummarizersFailed          every one of several; .errors
  · Unreadable                   what is stored cannot be read; `verify` says what else is wrong
  · NotRenderable                a message cannot be written in the format asked for; .seq and .part
  · BudgetExceeded               whatever was tried, the view does not fit the window; .view
  · DatabaseError                the server, or the way to it
    - DatabaseUnavailable        nothing was written
    - OutcomeUnknown             the write may have happened: retry with .key
    - ThreadDamaged              the thread's rows contradict its head: run verify; nothing was written
    - PermissionDenied           the login lacks a role; the message says which
    - NotPrimary                 the server is a standby, which may lag behind
    - SchemaOutOfDate
    - UnsupportedDatabase
  · ThreadWentBack               the append was stored, at a seq that the store had been given before; .written
  · NotConfigured
    - MissingExtra

No message of an error holds a message's content: errors name threads, seqs, numbers and sizes.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from traceback import walk_tb
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

from compaction_store.models import Appended, Summary

_LONGEST_PLACE = 300


class CompactionStoreError(Exception):
    """The base of every error raised here."""

    _is_own = False

    def as_dict(self) -> dict[str, Any]:
        """Returns the type and the text; no text where this package did not write it, since it may quote a message."""
        return {"type": type(self).__name__, "text": own_text(self)}

    def __new__(cls, *args: object, **_keywords: object) -> Self:
        error = super().__new__(cls, *args)
        # Callbacks may raise these classes too, with texts that quote a message.
        error._is_own = _is_here(sys._getframe(1).f_globals.get("__name__"))  # noqa: SLF001
        return error


class InvalidInput(CompactionStoreError, ValueError):
    """Refused before anything was sent."""


class InvalidThreadId(InvalidInput):
    """A thread_id is text of 1 to 255 bytes of UTF-8 without NUL."""


class InvalidMessage(InvalidInput):
    """A message is one JSON object."""


class MessageTooLarge(InvalidMessage):
    """A message may take 16 MiB as JSON."""


class MessageTooDeep(InvalidMessage):
    """A message may nest 200 levels deep."""


class InvalidKey(InvalidInput):
    """A key is text of 1 to 255 bytes of UTF-8 without NUL."""


class InvalidMeta(InvalidInput):
    """Meta is one JSON object of at most 8 KiB."""


class InvalidCheckpoint(InvalidInput):
    """A note, a list of heads or a proof is not what a known key signed."""


class CounterFailed(InvalidInput):
    """The token counter raised, or returned no whole number. Of its own error only the type is named."""


class InvalidCallback(InvalidInput, TypeError):
    """A callback, a strategy, a summarizer or a counter is of a kind that this store cannot run."""


class ActorRequired(InvalidInput):
    """The store was opened with require_actor=True, and neither the call nor the store names an actor."""


class BatchTooLarge(InvalidInput):
    """One append takes 1,000 messages and 64 MiB."""


class InvalidSpan(InvalidInput):
    """A span begins where an element of the view begins, and ends where one ends."""


class InvalidBundle(InvalidInput):
    """A bundle that does not prove itself, or not what is asked of it: nothing of it was stored."""

    def __init__(self, what: str, *, line: int | None = None, pos: int | None = None) -> None:
        super().__init__(what if line is None else f"line {line:,} of the bundle: {what}")
        self.line = line
        self.pos = pos


class InvalidSource(InvalidInput):
    """What is to be imported cannot be read as the format it is given for. .line is where, in a file of lines."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class ThreadNotFound(CompactionStoreError, LookupError):
    """The thread has no messages in this tenant."""


class MessageNotFound(CompactionStoreError, LookupError):
    """The thread has no such seq."""


class CompactionNotFound(CompactionStoreError, LookupError):
    """The thread has no record of that number."""


class PositionNotFound(CompactionStoreError, LookupError):
    """The thread has no such pos, or nothing yet at that moment."""


class Conflict(CompactionStoreError):
    """The thread's state refuses the write; nothing was written."""


class IdempotencyConflict(Conflict):
    """The key belongs to an earlier append of other content."""


class SequenceConflict(Conflict):
    """The thread's last seq is not the expected one."""

    def __init__(self, message: str, *, expected: int, actual: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class HeadConflict(Conflict):
    """The thread does not have the entry that the caller saw: at its end, or at the pos of the view.

    `actual` is the entry that it has there, None where it has none.
    """

    def __init__(self, message: str, *, expected: bytes, actual: bytes | None) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class SpanConflict(Conflict):
    """The span touches one that another compaction holds, or the thread is not what the view was read from.

    The latter after a failover or a restore that lost entries: compact the view as it is now.
    """


class ThreadExists(Conflict):
    """The thread is there already, and its head is not the bundle's."""


class ThreadErased(Conflict):
    """The thread was erased: what is left of it can be read and verified, and nothing is added."""


class Held(Conflict):
    """A hold or a retention forbids to erase from the thread. .pos is that of its event."""

    def __init__(self, message: str, *, pos: int) -> None:
        super().__init__(message)
        self.pos = pos


class CheckpointRefused(Conflict):
    """The database contradicts the last checkpoint, so nothing was signed. .findings say in which threads."""

    def __init__(self, message: str, *, findings: tuple[str, ...]) -> None:
        super().__init__(message)
        self.findings = findings


class Rejected(CompactionStoreError):
    """The rules refuse the compaction; it is recorded as rejected. .rule names what `allow=` would take."""

    rule = ""

    def __init__(self, message: str, *, start_seq: int, end_seq: int) -> None:
        super().__init__(message)
        self.start_seq = start_seq
        self.end_seq = end_seq


class SplitPair(Rejected):
    """The span holds a tool call without its result, or a result without its call."""


class PendingCall(Rejected):
    """The span holds a tool call that still waits for its result."""


class SystemInside(Rejected):
    """The span holds a system message."""

    rule = "system"


class LastUserInside(Rejected):
    """The span holds the last message of the user."""

    rule = "last_user"


class EmptySummary(Rejected):
    """The summary says nothing."""


class NotSmaller(Rejected):
    """What would stand in the span's place takes as many tokens as the span, or more."""

    rule = "larger"


class IdsChanged(Rejected):
    """Stand-ins keep exactly the ids of the tool calls and results they replace."""


class PinnedInside(Rejected):
    """The span holds what the caller pinned; the strategy is told so, and no record is made."""


class NoProgress(Rejected):
    """The callback was just rejected on the span, and the thread has not changed since."""


class SummarizerError(CompactionStoreError):
    """A summarizer came to no summary. Of what it was given, and of another's own words, nothing is repeated.

    A summarizer may set `.attempted` to a `Summary` without text: its model, prompt, settings, usage and duration are
    then recorded with the failed attempt.
    """

    attempted: Summary | None = None


class SummaryRefused(SummarizerError):
    """The model would not summarize."""


class SummaryCutShort(SummarizerError):
    """The answer was not finished, and half a summary is none."""


class SummaryUseless(SummarizerError):
    """The answer is empty, or the shell of a summary with nothing in it."""


class SummaryTooLong(SummarizerError):
    """The answer is no shorter than its source."""


class SourceTooLong(SummarizerError):
    """What is to be summarized does not fit the model, and splitting it did not help."""


class NativeRefused(SummarizerError):
    """The API's own compaction would not take this, or not give what may stand there; nothing was sent."""


class SummarizerUnavailable(SummarizerError):
    """The API was overloaded, rate limited or out of reach until the deadline. .status is None where none came."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class SummarizerRejected(SummarizerError):
    """The API refused the request for good; .status is None where it was never sent."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class SummarizersFailed(SummarizerError):
    """Every one of several summarizers failed; .errors are theirs, in order."""

    def __init__(self, message: str, *, errors: tuple[Exception, ...]) -> None:
        super().__init__(message)
        self.errors = errors


class Unreadable(CompactionStoreError):
    """What is stored breaks the rule for documents, so that no view can be made of it."""


class NotRenderable(CompactionStoreError):
    """Part of a message has no form in the format asked for. .part is its place in the content, or the field's name."""

    def __init__(self, message: str, *, seq: int, part: int | str | None) -> None:
        super().__init__(message)
        self.seq = seq
        self.part = part


class DatabaseError(CompactionStoreError):
    """The server refused; .sqlstate says how. What it was sent is not repeated here."""

    def __init__(self, message: str, *, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class DatabaseUnavailable(DatabaseError):
    """No connection could be had, or the server gave up before writing."""


class OutcomeUnknown(DatabaseError):
    """The connection broke while a write was under way. Repeating the call with .key settles it."""

    def __init__(self, message: str, *, key: str | None, sqlstate: str | None = None) -> None:
        super().__init__(message, sqlstate=sqlstate)
        self.key = key


class ThreadDamaged(DatabaseError):
    """The thread's rows are not as this package writes them, so nothing was written. `verify` says where."""


class PermissionDenied(DatabaseError):
    """The login lacks a role that the call needs; the message names what to grant."""


class NotPrimary(DatabaseError):
    """The server is a standby, which may lag behind what was acknowledged."""


class SchemaOutOfDate(DatabaseError):
    """The database's schema is not the one this version of the package was written for."""


class UnsupportedDatabase(DatabaseError):
    """Postgres 15 or newer with server encoding UTF8 is needed."""


class ThreadWentBack(CompactionStoreError):
    """The append was stored, as .written, and the thread has lost messages: this store was given .known_seq before.

    A standby that lacked them has taken over, or a backup was restored. Raised once for every time that it happens.
    """

    def __init__(self, message: str, *, written: Appended, known_seq: int) -> None:
        super().__init__(message)
        self.written = written
        self.known_seq = known_seq


class NotConfigured(CompactionStoreError):
    """Something the call needs was not given."""


class MissingExtra(NotConfigured, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra {extra!r}: {install(extra)}")
        self.extra = extra


def own_text(error: BaseException) -> str | None:
    """Returns an error's text if this package wrote it. Any other may quote what its author was given."""
    return str(error) if isinstance(error, CompactionStoreError) and error._is_own else None  # noqa: SLF001


def _is_here(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == "compaction_store"


def install(*extras: str) -> str:
    """Returns the command that installs extras from where this package came: a clone, a wheel or an index."""
    source = "/path/to/the/clone"
    with suppress(PackageNotFoundError, ValueError, KeyError, TypeError):
        told = distribution("compaction-store").read_text("direct_url.json")
        url = "" if told is None else json.loads(told)["url"]
        if url.startswith("file://"):
            source = url2pathname(urlsplit(url).path)
        elif told is None:
            source = "compaction-store"
    return f"pip install '{source}[{','.join(extras)}]'"


def raised_at(error: BaseException) -> str | None:
    """Where an error came up outside of this package, as module, line and function. No content is in any of these.

    Code that is made at run time may be called whatever it was given: what counts is the place that runs it.
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
