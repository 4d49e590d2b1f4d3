"""Reads the rows of a thread in pages, and returns them as entries in the order of their pos. Does no I/O itself.

At most one page of each kind is in memory. A page has at most about a megabyte, unless a single row is larger: the
number of its rows depends on the sizes of the bodies in the page before.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from typing import Any, Literal, NamedTuple
from uuid import UUID

from compaction_store.errors import InvalidInput
from compaction_store.integrity.entry import Entry, Kind, KnownEntry
from compaction_store.models import Report

FIRST_PAGE = 16
LONGEST_PAGE = 1000
PAGE_BYTES = 1024 * 1024
_LARGEST = 2**63 - 1
_HASH_BYTES = 32
_MOST_COLUMNS = 4096

_decode = json.JSONDecoder().decode


class RowRequest(NamedTuple):
    """A request for rows of one kind from `start` on. A `kind` of None is the head, and "active" the view."""

    kind: Kind | Literal["active"] | None
    start: int = 0
    limit: int = 1
    done: int = 0
    total: int = 0


Rows = Sequence[tuple[Any, ...]]
RowReader = Generator[RowRequest, Rows, None]


class ThreadHead(NamedTuple):
    """A row of the SQL function `thread_state`: a thread's current head, and its seq, number and entry at a pos."""

    thread_uid: UUID
    thread_id: str
    name_salt: bytes | None
    name_commitment: bytes
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
    hidden_seq: int | None
    is_log: bool
    active_microseconds: int | None
    subject: str | None


def known_entry(since: object) -> KnownEntry | None:
    """Checks the argument `since`: an earlier report, or the pos and the hash of an entry."""
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
        given = type(since).__name__
        raise InvalidInput(
            f"since must be an earlier report, or a pos and the 32-byte hash of the entry there, not {given}"
        )
    return KnownEntry(pos, entry) if pos else None


class RowPages:
    """Reads the rows of a thread, page by page."""

    def __init__(self, head: ThreadHead, since: KnownEntry | None) -> None:
        self._rows: dict[Kind, list[Entry]] = {"message": [], "compaction": [], "event": []}
        # Begin with the smallest integer, because a forged row may have any ordinal.
        self._start = dict.fromkeys(self._rows, -_LARGEST - 1)
        if since is not None:
            seq, number = (head.seq_at or 0) + 1, head.number_at + 1
            self._start |= {"message": seq, "compaction": number, "event": since.pos + 1}
        self._limit = dict.fromkeys(self._rows, FIRST_PAGE)
        self._done = dict.fromkeys(self._rows, False)
        self.parser = RowParser()

    def fill(self, done: int, total: int) -> RowReader:
        """Reads the next page of every kind that has no rows left."""
        for kind, rows in self._rows.items():
            if rows or self._done[kind]:
                continue
            request = RowRequest(kind, self._start[kind], self._limit[kind], done, total)
            page = self.parser.entries(kind, (yield request))
            self._done[kind] = len(page) < self._limit[kind]
            if page:
                last = page[-1].pos if kind == "event" else page[-1].ordinal
                self._done[kind] = self._done[kind] or last == _LARGEST
                self._start[kind] = min(last + 1, _LARGEST)
                self._limit[kind] = next_limit(page, self._limit[kind], PAGE_BYTES)
            rows.extend(reversed(page))

    def next(self) -> tuple[int, Kind] | None:
        """Returns the pos and the kind of the next row, or None if no page has a row left."""
        return min(((rows[-1].pos, kind) for kind, rows in self._rows.items() if rows), default=None)

    def pop(self, kind: Kind) -> Entry:
        return self._rows[kind].pop()

    def reopen(self) -> None:
        """Makes `fill` read all kinds again. Called when the thread has grown."""
        self._done = dict.fromkeys(self._rows, False)


def next_limit(page: list[Entry], limit: int, most_bytes: int) -> int:
    """Returns how many rows to request next, so that a page with bodies as large as in this page fits `most_bytes`."""
    size = sum(len(entry.body or "") for entry in page) // len(page) + 1
    return max(1, min(LONGEST_PAGE, limit * 8, most_bytes // size))


class RowParser:
    """Converts rows of the SQL function `entries` to entries. The last column has the header's columns as JSON."""

    def __init__(self) -> None:
        # Cache parsed columns, because the messages of one call often have equal columns.
        self._columns: dict[str, list[Any]] = {}

    def entries(self, kind: Kind, rows: Rows) -> list[Entry]:
        return [Entry._make((kind, *row[:-1], self._parsed(row[-1]), None)) for row in rows]

    def _parsed(self, text: str) -> list[Any]:
        found = self._columns.get(text)
        if found is None:
            if len(self._columns) >= _MOST_COLUMNS:
                self._columns.clear()
            found = self._columns[text] = _decode(text)
        return found
