"""A thread read page by page, as it is written: the rows of each kind, and which of them are wanted next.

No more than a page of each kind is held, of about a megabyte, however long the thread and however large its bodies are.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from compaction_store.errors import InvalidInput
from compaction_store.models import Report

FIRST_PAGE = 16
LONGEST_PAGE = 1000
PAGE_BYTES = 1024 * 1024
# The years 1 to 9999 as microseconds since 1970. Postgres has more of them than Python can read.
FIRST_MOMENT, LAST_MOMENT = -62_135_596_800_000_000, 253_402_300_799_999_999
_LARGEST = 2**63 - 1
_HASH_BYTES = 32


class Page(NamedTuple):
    """What the verifier wants to read next: entries of one kind from an ordinal on (for events, from a pos on).

    The kind "head" asks where the thread stands by now. `done` of `total` is how far the verifier has come.
    """

    kind: str
    start: int
    limit: int
    done: int = 0
    total: int = 0


class Row(NamedTuple):
    pos: int
    ordinal: int
    tenant: str
    microseconds: int | None
    redacted_pos: int | None
    salt: bytes | None
    commitment: bytes
    entry: bytes
    body: str | None
    meta: str | None
    meta_commitment: bytes | None
    columns: str


class Standing(NamedTuple):
    """Where a thread stands. What ends in _at is how things stood at the pos from which the verification goes on."""

    thread_id: str
    is_bare: bool
    created_microseconds: int | None
    last_seq: int
    last_number: int
    last_pos: int
    last_microseconds: int | None
    head: bytes
    erased_pos: int | None
    seq_at: int | None
    number_at: int
    entry_at: bytes | None
    metadata: str | None


class Place(NamedTuple):
    """A pos and the entry there, as an earlier report told it or somebody kept it."""

    pos: int
    entry: bytes


def place(since: object) -> Place | None:
    """Where a verification goes on: from an earlier report, or from a pos and the entry there."""
    if since is None:
        return None
    match since:
        case Report():
            pos, entry = since.pos, since.head
        case (pos, entry):
            pass
        case _:
            pos, entry = -1, b""
    if type(pos) is not int or not 0 <= pos <= _LARGEST or type(entry) is not bytes or len(entry) != _HASH_BYTES:
        raise InvalidInput("since must be an earlier report, or a pos and the 32 bytes of the entry there")
    return Place(pos, entry) if pos else None


class Pages:
    """A page of each kind, read on when it is used up."""

    def __init__(self, standing: Standing, since: Place | None) -> None:
        self._rows: dict[str, list[Row]] = {"message": [], "compaction": [], "event": []}
        # Before every number there is, not before the first one we would give: a forged row may have any.
        self._start = dict.fromkeys(self._rows, -_LARGEST - 1)
        if since is not None:
            seq, number = (standing.seq_at or 0) + 1, standing.number_at + 1
            self._start |= {"message": seq, "compaction": number, "event": since.pos + 1}
        self._limit = dict.fromkeys(self._rows, FIRST_PAGE)
        self._done = dict.fromkeys(self._rows, False)

    def fill(self, done: int, total: int) -> Generator[Page, list[tuple[Any, ...]], None]:
        for kind, rows in self._rows.items():
            if rows or self._done[kind]:
                continue
            fresh = [
                Row._make(values) for values in (yield Page(kind, self._start[kind], self._limit[kind], done, total))
            ]
            self._done[kind] = len(fresh) < self._limit[kind]
            if fresh:
                last = fresh[-1].pos if kind == "event" else fresh[-1].ordinal
                self._done[kind] = self._done[kind] or last == _LARGEST
                self._start[kind] = min(last + 1, _LARGEST)
                self._limit[kind] = _next_limit(fresh, self._limit[kind])
            rows.extend(reversed(fresh))

    def next(self) -> tuple[int, str] | None:
        """The pos and the kind of the next row; None where there is none."""
        return min(((rows[-1].pos, kind) for kind, rows in self._rows.items() if rows), default=None)

    def pop(self, kind: str) -> Row:
        return self._rows[kind].pop()

    def reopen(self) -> None:
        """Every kind may have more rows by now."""
        self._done = dict.fromkeys(self._rows, False)


def _next_limit(rows: list[Row], limit: int) -> int:
    """A page of about a megabyte, however large the bodies are."""
    size = sum(len(row.body or "") for row in rows) // len(rows) + 1
    return max(1, min(LONGEST_PAGE, limit * 8, PAGE_BYTES // size))
