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
  · ThreadNotFound
  · MessageNotFound
  · PositionNotFound             a pos, a moment or a record that the thread does not have
  · Conflict                     well-formed, but the thread says no; nothing was written
    - IdempotencyConflict        the key was used before, for other content
    - SequenceConflict           expected_seq is not the last seq
    - SpanConflict               another compaction holds part of the span
  · DatabaseError                the server, or the way to it
    - DatabaseUnavailable        nothing was written
    - OutcomeUnknown             the write may have happened: retry with .key
    - SchemaOutOfDate
    - UnsupportedDatabase
  · NotConfigured
    - MissingExtra

No message of an error holds a message's content: errors name threads, seqs, numbers and sizes.
"""

from __future__ import annotations


class CompactionStoreError(Exception):
    """The base of every error raised here."""


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


class BatchTooLarge(InvalidInput):
    """One append takes 1,000 messages and 64 MiB."""


class ThreadNotFound(CompactionStoreError, LookupError):
    """The thread has no messages in this tenant."""


class MessageNotFound(CompactionStoreError, LookupError):
    """The thread has no such seq."""


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


class SpanConflict(Conflict):
    """The span touches one that another compaction holds."""


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


class SchemaOutOfDate(DatabaseError):
    """The database's schema is not the one this version of the package was written for."""


class UnsupportedDatabase(DatabaseError):
    """Postgres 15 or newer with server encoding UTF8 is needed."""


class NotConfigured(CompactionStoreError):
    """Something the call needs was not given."""


class MissingExtra(NotConfigured, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra {extra!r}: pip install 'compaction-store[{extra}]'")
        self.extra = extra
