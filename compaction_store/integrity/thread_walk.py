"""Holding a thread to its chain: pure, so that both faces, and one day an export, are judged by the same code.

Structure needs no content: seq, number and pos are dense, each entry follows from the one before, the head is the last.
Content holds every body against its commitment, and every erased row against the redaction that names it. Schema is
`protection`, which looks at the database and not at a thread. Neither says that nobody rewrote the whole chain: that
shows against heads that were kept somewhere else, which is the level checkpoint.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Literal
from uuid import UUID

from compaction_store.integrity import chain, erasure
from compaction_store.integrity.entry_pages import (
    FIRST_MOMENT,
    LAST_MOMENT,
    LONGEST_PAGE,
    Page,
    Pages,
    Place,
    Row,
    Standing,
)
from compaction_store.integrity.redactions import NEVER, Redactions
from compaction_store.messages import documents
from compaction_store.models import Finding, Report

Level = Literal["structure", "content", "schema", "checkpoint"]
# Each level holds what the one before holds, and more.
LEVELS: tuple[Level, ...] = ("structure", "content", "schema", "checkpoint")

MOST_FINDINGS = 1000
SALT_BYTES = 16
# An import lets a day pass, by the server's clock, and this one may be another.
_MOST_AHEAD = 2 * 24 * 3600 * 1_000_000
_MOST_RECORDS = 100
_RECORDS_NAMED = 3
_MOST_HEADERS = 4096
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


class _Findings(list[Finding]):
    """What was found, in the order of the walk, and the records that stand for a message that is not as written."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: list[tuple[int, int]] = []
        self._spans: dict[int, list[tuple[int, int, int]]] = {}

    def add(self, pos: int | None, what: str) -> None:
        if len(self) < MOST_FINDINGS:
            self.append(Finding(pos, what))
        elif len(self) == MOST_FINDINGS:
            self.append(Finding(None, f"more than {MOST_FINDINGS} findings; the rest is not listed"))

    def in_message(self, since: int, seq: int) -> None:
        """The findings from an index on are in a message."""
        self._messages += [(index, seq) for index in range(since, min(len(self), MOST_FINDINGS))]

    def reached_by(self, number: int, start: object, end: object) -> None:
        """A record stands for a span: the messages it was made from are all before it."""
        if type(start) is not int or type(end) is not int:
            return
        for index, seq in self._messages:
            if start <= seq <= end and len(spans := self._spans.setdefault(index, [])) < _MOST_RECORDS:
                spans.append((number, start, end))

    def told(self) -> tuple[Finding, ...]:
        """Each finding in a message with the records that stand for it."""
        seqs = dict(self._messages)
        for index, spans in self._spans.items():
            names = [
                f"compaction {number} stands for seqs {start} to {end}, of which seq {seqs[index]} is not as it was "
                "written"
                for number, start, end in spans[:_RECORDS_NAMED]
            ]
            if len(spans) > _RECORDS_NAMED:
                names.append(f"so do {len(spans) - _RECORDS_NAMED} more")
            found = self[index]
            numbers = tuple(number for number, _, _ in spans)
            self[index] = replace(found, what="; ".join((found.what, *names)), records=numbers)
        return tuple(self)


class _Chain:
    """The state of a walk along one chain, from genesis or a place on; without a name, from the first entry on."""

    def __init__(
        self,
        tenant: str,
        name: str,
        content: bool,
        standing: Standing,
        since: Place | None,
        anchors: Mapping[int, bytes],
    ) -> None:
        self.tenant = tenant
        self.content = content
        self.since = since
        self.anchors = anchors
        self.previous = chain.genesis(tenant, name) if erasure.stub_uid(name) is None else None
        self.genesis = self.previous
        self.first: tuple[str, Row] | None = None
        self.first_at: int | None = None
        self.pos = 0
        self.count = 0
        self.ordinals = {"message": 0, "compaction": 0, "event": 0}
        self.last_at: int | None = None
        self.latest = time.time_ns() // 1000 + _MOST_AHEAD
        self.last_kind = ""
        self.findings = _Findings()
        self.redactions = Redactions(content, self.findings.add)
        self._headers: dict[str, bytes] = {}
        if since is not None:
            self._go_on(since, standing)

    def _go_on(self, since: Place, standing: Standing) -> None:
        self.pos, self.previous = since.pos, since.entry
        self.ordinals |= {"message": standing.seq_at or 0, "compaction": standing.number_at}
        if standing.entry_at != since.entry:
            self.findings.add(since.pos, "the entry is not the one that was kept")
        self._held(since.pos, since.entry)

    def check(self, kind: str, row: Row) -> None:
        before = len(self.findings)
        self.count += 1
        self._places(kind, row)
        self._times(row)
        if row.tenant != self.tenant:
            self.findings.add(row.pos, "the row names another tenant")
        self.last_kind = json.loads(row.columns)[0] if kind == "event" else kind
        self._link(kind, row)
        if row.redacted_pos is not None:
            self.redactions.claim(kind, row.ordinal, row.pos, row.redacted_pos)
            self.erased(row)
        elif self.content:
            self._body(kind, row)
        self._salt(row)
        if self.anchors:
            self._held(row.pos, row.entry)
        if kind == "message":
            if len(self.findings) > before:
                self.findings.in_message(before, row.ordinal)
        elif kind == "compaction":
            _, outcome, start, end, *_ = json.loads(row.columns)
            if outcome == "applied":
                self.findings.reached_by(row.ordinal, start, end)

    def _places(self, kind: str, row: Row) -> None:
        self.pos += 1
        if row.pos != self.pos:
            self.findings.add(row.pos, f"pos {self.pos} was expected")
            self.pos = row.pos
        if kind != "event":
            self.ordinals[kind] += 1
            if row.ordinal != self.ordinals[kind]:
                what = "seq" if kind == "message" else "number"
                self.findings.add(row.pos, f"{what} {self.ordinals[kind]} was expected, {row.ordinal} is there")
                self.ordinals[kind] = row.ordinal

    def _times(self, row: Row) -> None:
        if row.microseconds is not None:
            if self.last_at is not None and row.microseconds < self.last_at:
                self.findings.add(row.pos, "created_at is earlier than the entry before")
            self.last_at = row.microseconds
            if not FIRST_MOMENT <= row.microseconds <= LAST_MOMENT:
                self.findings.add(row.pos, "the time is before the year 1 or after the year 9999")
            elif row.microseconds > self.latest:
                self.findings.add(row.pos, "the time is days ahead of the clock here")
        if self.count == 1:
            self.first_at = row.microseconds

    def _held(self, pos: int, entry: bytes) -> None:
        """Holds an entry against the checkpoint that was made over it."""
        kept = self.anchors.get(pos)
        if kept is not None and kept != entry:
            self.findings.add(
                pos, "a checkpoint was made over another entry here: the chain is not the one it was then"
            )

    def _link(self, kind: str, row: Row) -> None:
        if self.previous is None:
            self.first = (kind, row)
        else:
            self._follows(kind, row, self.previous)
        # Going on from the stored entry tells one changed row from all that come after it.
        self.previous = row.entry

    def _follows(self, kind: str, row: Row, previous: bytes) -> None:
        try:
            header = self._header(kind, row)
            leaf = chain.leaf(header, row.commitment)
            if row.microseconds is None:
                raise ValueError
            expected = chain.entry(previous, row.pos, row.ordinal, row.microseconds, leaf)
        except (ValueError, TypeError, OverflowError, struct.error):
            self.findings.add(row.pos, "the row cannot be read as format version 1")
        else:
            if expected != row.entry:
                self.findings.add(row.pos, "the entry does not follow from the row and the entry before")

    def _header(self, kind: str, row: Row) -> bytes:
        """Remembered for messages that are alike in every column."""
        if kind != "message" or row.meta_commitment is not None:
            return _header(kind, row)
        header = self._headers.get(row.columns)
        if header is None:
            if len(self._headers) >= _MOST_HEADERS:
                self._headers.clear()
            header = self._headers[row.columns] = _header(kind, row)
        return header

    def check_name(self, name: str, thread: Standing) -> tuple[str, ...]:
        """Holds a thread's name against its erasure, if it has one; returns what could not be looked at."""
        if thread.erased_pos is None:
            if thread.thread_id != name:
                self.findings.add(None, "the thread is stored under another name")
            elif erasure.stub_uid(name) is not None:
                self.findings.add(None, "the thread is called erased, and its head does not say so")
            if self.redactions.erasure is not None:
                self.findings.add(self.redactions.erasure[0], "the thread was erased, and its head does not say so")
        else:
            self._stub(name, thread)
        if self.genesis is None and self.redactions.erasure is not None:
            self.genesis = self.redactions.erasure[1]
        elif self.redactions.erasure is not None and self.genesis != self.redactions.erasure[1]:
            self.findings.add(self.redactions.erasure[0], "the erasure does not keep the genesis of the thread")
        if self.content and (fault := documents.fault("metadata", thread.metadata or "")) is not None:
            self.findings.add(None, fault)
        if self.first is None:
            return ()
        if self.genesis is not None:
            self._follows(*self.first, self.genesis)
        return (
            "the thread's name is erased, so that its thread_uid and its genesis could not be computed from it"
            + ("" if self.genesis is None else "; the genesis is that which the erasure kept"),
        )

    def _stub(self, name: str, thread: Standing) -> None:
        uid = erasure.stub_uid(name) or chain.thread_uid(self.tenant, name)
        if thread.thread_id != erasure.stub_name(uid) or not thread.is_bare:
            self.findings.add(None, "the thread was erased, and its name or metadata are not")
        if self.redactions.rows != self.ordinals["message"] + self.ordinals["compaction"]:
            self.findings.add(None, "the thread was erased, and some of its content is not")
        if thread.erased_pos != thread.last_pos:
            self.findings.add(thread.erased_pos, "the erasure of the thread is not its last entry")
        if self.last_kind != "redaction" or (self.content and self.redactions.erasure is None):
            self.findings.add(thread.erased_pos, "the head tells of an erasure that is not there")

    def erased(self, row: Row) -> None:
        if row.salt is not None or row.body is not None or row.meta is not None:
            self.findings.add(row.pos, "a redacted row still has content")

    def _salt(self, row: Row) -> None:
        if row.salt is not None and len(row.salt) != SALT_BYTES:
            # Else bytes could move between salt and content, under the same commitment.
            self.findings.add(row.pos, f"the salt is not {SALT_BYTES} bytes")
        if row.salt is None and row.redacted_pos is None and not self.content:
            self.findings.add(row.pos, "the salt is gone without a redaction")

    def _body(self, kind: str, row: Row) -> None:
        if row.salt is None or row.body is None:
            self.findings.add(row.pos, "the content is gone without a redaction")
            return
        if chain.commitment(row.salt, row.body.encode()) != row.commitment:
            self.findings.add(row.pos, "the content is not what was committed to")
        elif (fault := _fault(kind, row.columns, row.body)) is not None:
            self.findings.add(row.pos, fault)
        meta = None if row.meta is None else chain.meta_commitment(row.salt, row.meta.encode())
        if meta != row.meta_commitment:
            self.findings.add(row.pos, "the meta is not what was committed to")
        elif row.meta is not None and (fault := documents.fault("meta", row.meta)) is not None:
            self.findings.add(row.pos, fault)


def _fault(kind: str, columns: str, body: str) -> str | None:
    """What is wrong with a document of a thread, apart from not being the one that was committed to."""
    if kind == "event":
        return documents.fault("body", body)
    first, second, *_ = json.loads(columns)
    if kind == "compaction":
        return documents.record_fault(first, second, body)
    return documents.message_fault(first, body)


def _header(kind: str, row: Row) -> bytes:
    values: list[Any] = json.loads(row.columns)
    if kind == "message":
        role, tokens, counter, key, call_size, receipt = values
        return chain.message_header(
            role=role, tokens=tokens, counter=counter, key=key, call_size=call_size, receipt=receipt,
            meta_commitment=row.meta_commitment,
        )  # fmt: skip
    if kind == "event":
        return chain.event_header(kind=values[0], actor=values[1])
    names = (
        "kind", "outcome", "start_seq", "end_seq", "tokens_before", "tokens_after", "source_count", "source_before",
        "source_end", "inputs", "run_id", "callback", "trigger", "actor", "model", "counter", "revokes",
    )  # fmt: skip
    columns = dict(zip(names, values, strict=True))
    for name in ("source_before", "source_end"):
        columns[name] = None if columns[name] is None else bytes.fromhex(columns[name])
    columns["run_id"] = UUID(columns["run_id"])
    return chain.compaction_header(**columns)


def verify(
    tenant: str,
    name: str,
    thread: Standing,
    level: Level,
    *,
    since: Place | None = None,
    anchors: Mapping[int, bytes] = MappingProxyType({}),
) -> Generator[Page, list[tuple[Any, ...]], Report]:
    """Yields the pages it needs and is sent their rows; returns the report. Holds a page of each kind at most.

    `name` is what the caller calls the thread: a thread may be stored under another name once it was erased. The walk
    goes on from `since`, if given; `anchors` are the entries that checkpoints were made over, by pos.
    """
    lost = since if since is not None and since.pos > thread.last_pos else None
    if lost is not None or thread.erased_pos is not None:
        # Whether all of an erased thread is gone is asked of all of it.
        since = None
    walk = _Chain(tenant, name, level != "structure", thread, since, anchors)
    if lost is not None:
        walk.findings.add(None, f"the thread ends at pos {thread.last_pos}, and an entry at pos {lost.pos} was kept")
    pages = Pages(thread, since)
    while True:
        yield from pages.fill(walk.pos, thread.last_pos)
        # A row may be erased while we walk: the redaction then stands past the head that we know.
        pos, kind = pages.next() or (walk.redactions.latest, None)
        if pos > thread.last_pos:
            # Appended since the head was read, or never appended at all: the head of now tells which.
            known, thread = thread, Standing._make((yield Page("head", 0, 1, walk.pos, thread.last_pos))[0])
            if thread.erased_pos is not None and known.erased_pos is None:
                # Nothing comes after an erasure: what was read before it is read again, and for good.
                return (yield from verify(tenant, name, thread, level, anchors=anchors))
            walk.redactions.unordered(beyond=thread.last_pos)
            if thread.last_pos > known.last_pos or thread.head != known.head:
                pages.reopen()
            elif kind is not None:
                walk.findings.add(pos, f"a {kind} stands past the head")
                pages.pop(kind)
            continue
        if kind is None:
            break
        row = pages.pop(kind)
        walk.check(kind, row)
        yield from _again(walk, row)
    walk.redactions.unordered(beyond=NEVER)
    notes = walk.check_name(name, thread)
    _head(walk, thread)
    covered = max((pos for pos in anchors if pos <= walk.pos), default=0)
    return Report(
        name, level, walk.count, walk.redactions.rows, walk.findings.told(), thread.head,
        walk.redactions.count, notes, pos=thread.last_pos, since=0 if since is None else since.pos, covered=covered,
    )  # fmt: skip


def _again(walk: _Chain, event: Row) -> Generator[Page, list[tuple[Any, ...]], None]:
    """Reads rows again that a redaction names and that had their content: it may have been erased since."""
    if walk.last_kind != "redaction":
        return
    for kind, ranges in walk.redactions.reached(event.pos, event.body).items():
        for start, end in ranges:
            yield from _reread(walk, kind, event.pos, start, end)


def _reread(walk: _Chain, kind: str, pos: int, start: int, end: int) -> Generator[Page, list[tuple[Any, ...]], None]:
    at = start
    while at <= end:
        rows = [Row._make(values) for values in (yield Page(kind, at, min(LONGEST_PAGE, end - at + 1)))]
        for row in rows:
            if row.ordinal <= end and row.redacted_pos == pos:
                walk.redactions.rows += 1
                walk.erased(row)
            elif row.ordinal <= end:
                walk.findings.add(row.pos, f"the redaction at pos {pos} names the row, which is not erased by it")
        at = rows[-1].ordinal + 1 if rows else end + 1


def _head(walk: _Chain, thread: Standing) -> None:
    if walk.pos != thread.last_pos:
        walk.findings.add(None, f"the head is at pos {thread.last_pos}, the last entry at {walk.pos}")
    elif walk.previous != thread.head:
        walk.findings.add(None, "the head is not the last entry")
    elif walk.count and walk.last_at != thread.last_microseconds:
        walk.findings.add(None, "the head's time is not that of the last entry")
    if walk.count and walk.since is None and walk.first_at != thread.created_microseconds:
        walk.findings.add(None, "the thread's time is not that of its first entry")
    if walk.anchors and (latest := max(walk.anchors)) > walk.pos:
        walk.findings.add(
            None, f"a checkpoint was made over pos {latest}, and the thread ends at pos {walk.pos}: its end was cut off"
        )
    if walk.ordinals["message"] != thread.last_seq:
        walk.findings.add(None, f"the head counts {thread.last_seq} messages, {walk.ordinals['message']} are there")
    if walk.ordinals["compaction"] != thread.last_number:
        walk.findings.add(
            None, f"the head counts {thread.last_number} records, {walk.ordinals['compaction']} are there"
        )
