"""Walks a thread's chain entry by entry, and collects findings about entries that were changed. Pure.

The same walk checks the rows of a stored thread (`thread`) and the lines of a bundle (`bundles.verification`).
`docs/integrity.md`, section 6, states its rules. The chain alone cannot show that somebody recomputed all of it. For
that, the walk needs an entry that was kept elsewhere, or a checkpoint.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from compaction_store.integrity import chain, erasure, origins
from compaction_store.integrity.entry import ORDINALS, ChainEnd, Entry, KnownEntry, header, message_header
from compaction_store.integrity.erasure import Range
from compaction_store.messages import documents
from compaction_store.models import Finding
from compaction_store.models.vocabulary import CRITICAL_EVENTS, EVENT_KINDS, KINDS, LOG_EVENTS

# The years 1 to 9999 in microseconds since 1970. Postgres allows years that Python cannot represent.
FIRST_MOMENT, LAST_MOMENT = -62_135_596_800_000_000, 253_402_300_799_999_999
_INPUTS = chain.COLUMNS["compaction"].index("inputs")
_RECEIPT = chain.COLUMNS["message"].index("receipt")
_MOST_HEADERS = 4096
_MOST_UNKNOWN = 20


class Walk:
    """The state of a walk. Call `check` with every entry in the order of pos, then `finish` with the expected end."""

    def __init__(
        self,
        tenant: str,
        genesis: bytes,
        *,
        is_log: bool = False,
        content: bool = True,
        may_withhold: bool = False,
        latest: int = LAST_MOMENT,
        kept: KnownEntry | None = None,
        checkpointed: Collection[KnownEntry] = (),
    ) -> None:
        """Begins a walk at the first entry.

        `is_log` says that the thread is the log of its tenant. With `content=False`, the walk ignores bodies. With
        `may_withhold`, an entry may come without its content. `latest` is the latest time that an entry may have.
        `kept` and `checkpointed` are entries that the chain must have, the latter at the moments of signed checkpoints.
        """
        self.tenant = tenant
        self.previous: bytes | None = genesis
        self.pos = 0
        self.ordinals = {"message": 0, "compaction": 0}
        self.count = 0
        self.withheld = 0
        self.first_at: int | None = None
        self.last_at: int | None = None
        self.last_message_at: int | None = None
        self.last_kind = ""
        # The last pos of the copied entries, if the thread is a fork.
        self._copied_to = 0
        # The hash of the subject in the newest event about it, if the walk has seen its body.
        self._subject: tuple[str | None] | None = None
        self.findings = Findings()
        self.redactions = Redactions(self._find_at)
        self.in_force = RecordsInForce()
        self._is_log = is_log
        self._content = content
        self._may_withhold = may_withhold
        self._latest = latest
        self._kept = kept
        self._checkpointed: dict[int, set[bytes]] = {}
        for known in checkpointed:
            self._checkpointed.setdefault(known.pos, set()).add(known.entry)
        self._unknown: list[str] = []
        self._unknown_count = 0
        self._unknown_critical: int | None = None
        self._line: int | None = None
        # Cache headers, because the messages of one call often have equal columns.
        self._message_header = lru_cache(_MOST_HEADERS)(message_header)

    def resume(self, known: KnownEntry, seq: int, number: int, entry: bytes | None) -> None:
        """Begins the walk after a known entry. `seq`, `number` and `entry` are the stored values at its pos."""
        self.pos, self.previous = known.pos, known.entry
        self.ordinals = {"message": seq, "compaction": number}
        if entry != known.entry:
            self.findings.add(known.pos, "the entry is not the one that was kept")
        self._compare_checkpoints(known.pos, known.entry)

    def check(self, entry: Entry) -> dict[str, list[Range]]:
        """Checks the next entry. Returns the ranges, by kind, that a redaction names and that were not seen erased."""
        before = len(self.findings)
        self.count += 1
        self._line = entry.line
        self._check_order(entry)
        self._check_time(entry)
        if entry.tenant != self.tenant:
            self._find(entry, "the row names another tenant")
        self.last_kind = entry.columns[0] if entry.kind == "event" else entry.kind
        self._check_link(entry)
        self._check_kind(entry)
        is_event = entry.kind == "event"
        is_of_log = is_event and self.last_kind in LOG_EVENTS
        if is_of_log is not self._is_log and (not is_event or self.last_kind in EVENT_KINDS):
            self._find(entry, f"the {self.last_kind} is {'not ' if is_of_log else ''}in the log of a tenant")
        self._check_content(entry)
        if entry.kind == "message":
            self.last_message_at = entry.microseconds
            if len(self.findings) > before:
                self.findings.in_message(before, entry.ordinal)
        elif entry.kind == "compaction":
            _, outcome, start, end, *_ = entry.columns
            self._check_record(entry)
            if outcome == "applied":
                self.findings.folded_by(entry.ordinal, start, end)
            self.in_force.record(entry)
        elif self.last_kind == "redaction":
            # If the body of a redaction is withheld, the walk cannot know which rows it erased.
            is_known = self._content and not (self._may_withhold and entry.body is None)
            return self.redactions.reached(entry.pos, entry.body, self.last_message_at, is_known=is_known)
        return {}

    def check_erased(self, entry: Entry) -> None:
        if entry.salt is not None or entry.body is not None or entry.meta is not None:
            self._find(entry, "a redacted entry still has content")

    def is_at(self, end: ChainEnd) -> bool:
        return self.pos == end.last_pos and (self.previous or b"") == end.head

    def finish(self, end: ChainEnd) -> tuple[str, ...]:
        """Checks the end of the chain. Returns notes about entries that could not be checked."""
        self.redactions.unordered(beyond=NEVER)
        if end.erased_pos is not None:
            self._check_erasure(end, end.erased_pos)
        elif self.redactions.erasure is not None:
            self._find_at(self.redactions.erasure, "the thread was erased, but is not marked as erased")
        if self.pos != end.last_pos:
            self._find_end(f"the head is at pos {end.last_pos}, the last entry at {self.pos}", end.line)
        elif not self.is_at(end):
            self._find_end("the head is not the last entry", end.line)
        self._check_subject(end)
        if self._copied_to > self.pos:
            self._find_at(1, "the origin says that more entries were copied than there are")
        for kind, last in (("message", end.last_seq), ("compaction", end.last_number)):
            if self.ordinals[kind] != last:
                name = ORDINALS[kind]
                self._find_end(f"the head's last_{name} is {last}, that of the entries {self.ordinals[kind]}", end.line)
        if self._kept is not None and self._kept.pos > self.pos:
            self.find_cut_off(self._kept.pos, self.pos)
        if (pos := max(self._checkpointed, default=0)) > self.pos:
            self._find_end(f"a checkpoint covers pos {pos}, but the chain ends at pos {self.pos}")
        return self._notes()

    def find_cut_off(self, kept: int, last: int) -> None:
        self._find_end(f"an entry at pos {kept} was kept, but the chain ends at pos {last}")

    def _find(self, entry: Entry, what: str) -> None:
        self.findings.add(entry.pos, what, entry.line)

    def _find_at(self, pos: int | None, what: str) -> None:
        """Adds a finding about an entry that the walk has passed."""
        # In a bundle, the entry at pos 1 is on line 2, after the manifest.
        has_line = self._line is not None and pos is not None and 0 < pos <= self.pos
        self.findings.add(pos, what, (pos or 0) + 1 if has_line else None)

    def _find_end(self, what: str, line: int | None = None) -> None:
        self.findings.add(None, what, line)

    def _check_order(self, entry: Entry) -> None:
        self.pos += 1
        if entry.pos != self.pos:
            self._find(entry, f"pos {self.pos} was expected")
            self.pos = entry.pos
        if entry.kind != "event":
            self.ordinals[entry.kind] += 1
            if entry.ordinal != (expected := self.ordinals[entry.kind]):
                self._find(entry, f"{ORDINALS[entry.kind]} {expected} was expected, {entry.ordinal} is there")
                self.ordinals[entry.kind] = entry.ordinal

    def _check_time(self, entry: Entry) -> None:
        at = entry.microseconds
        if at is not None:
            if self.last_at is not None and at < self.last_at:
                self._find(entry, "the time is earlier than that of the entry before")
            self.last_at = at
            if not FIRST_MOMENT <= at <= LAST_MOMENT:
                self._find(entry, "the time is before the year 1 or after the year 9999")
            elif at > self._latest:
                self._find(entry, "the time is days ahead of this machine's clock")
        if self.count == 1:
            self.first_at = at

    def _check_link(self, entry: Entry) -> None:
        self._check_follows(entry, self.previous or b"")
        # Continue from the stored hash: with the computed one, every entry after a changed one would be a finding.
        self.previous = entry.entry
        if self._kept is not None and entry.pos == self._kept.pos and entry.entry != self._kept.entry:
            self._find(entry, "the entry is not the one that was kept")
        self._compare_checkpoints(entry.pos, entry.entry, entry.line)

    def _check_follows(self, entry: Entry, previous: bytes) -> None:
        try:
            if entry.kind == "message" and entry.meta_commitment is None:
                columns = self._message_header(*entry.columns)
            else:
                columns = header(entry)
            if entry.microseconds is None:
                raise ValueError
            expected = chain.entry(
                previous, entry.pos, entry.ordinal, entry.microseconds, entry.commitment, columns
            )  # fmt: skip
        except (ValueError, TypeError, OverflowError, struct.error):
            self._find(entry, "the columns do not fit format version 1")
        else:
            if expected != entry.entry:
                self._find(entry, "the entry does not follow from its columns and the entry before")

    def _check_record(self, entry: Entry) -> None:
        """Checks that the span and the inputs of a record come before it. A forged row may have columns of any type."""
        kind, _, _, end, *_ = entry.columns
        if kind not in KINDS:
            return
        if type(end) is int and end > self.ordinals["message"]:
            self._find(entry, "the span of the record ends after the last message before the record")
        inputs = entry.columns[_INPUTS]
        if type(inputs) is list and not all(type(n) is int and 0 <= n < entry.ordinal for n in inputs):
            self._find(entry, "the inputs of the record are not the numbers of earlier records")

    def _check_kind(self, entry: Entry) -> None:
        """Checks a message's receipt and an event's `critical` mark. Adds a note about an unknown kind."""
        if entry.kind == "message":
            receipt = entry.columns[_RECEIPT]
            if receipt is not None and (fault := documents.receipt_fault(receipt)) is not None:
                self._find(entry, fault)
            return
        kind, mark = entry.columns[0], entry.columns[1]
        is_event = entry.kind == "event"
        if kind in (EVENT_KINDS if is_event else KINDS):
            if is_event and mark is not (kind in CRITICAL_EVENTS):
                self._find(entry, f"the {kind} is marked as {'critical' if mark is True else 'not critical'}")
            return
        what = "an event" if is_event else "a record"
        self._unknown_count += 1
        if len(self._unknown) < _MOST_UNKNOWN:
            self._unknown.append(
                f"pos {entry.pos} is {what} of the unknown kind {str(kind)[:64]}; its place, its hashes and its"
                " commitment were checked, what it means was not"
            )
        if mark is True or mark == "applied":
            self._unknown_critical = self._unknown_critical or entry.pos

    @property
    def knows_views(self) -> bool:
        """Whether all entries are of kinds from which this release can compute views."""
        return self._unknown_critical is None

    def _notes(self) -> tuple[str, ...]:
        notes = list(self._unknown)
        if self._unknown_count > len(notes):
            notes.append(f"{self._unknown_count - len(notes):,} more entries are of unknown kinds")
        if self._unknown_critical is not None:
            notes.append(
                f"views from pos {self._unknown_critical} on cannot be judged: the entry there changes what a view is,"
                " and this release does not know how"
            )
        return tuple(notes)

    def _compare_checkpoints(self, pos: int, entry: bytes, line: int | None = None) -> None:
        if self._checkpointed.get(pos, {entry}) != {entry}:
            self.findings.add(pos, "a checkpoint has another entry at this pos", line)

    def _check_content(self, entry: Entry) -> None:
        if self.last_kind == "subject":
            self._subject = None
        if entry.redacted_pos is not None:
            self.redactions.claim(entry.kind, entry.ordinal, entry.pos, entry.redacted_pos)
            self.check_erased(entry)
        elif self._may_withhold and entry.salt is None and entry.body is None and entry.meta is None:
            self.withheld += 1
        elif not self._content:
            if entry.salt is None:
                self._find(entry, "the salt is gone without a redaction")
        elif entry.salt is None or entry.body is None:
            self._find(entry, "the content or its salt is gone without a redaction")
        else:
            self._check_commitments(entry, entry.salt, entry.body)
        if entry.salt is not None and len(entry.salt) != chain.SALT_BYTES:
            # With a salt of another length, bytes could move between salt and content under the same commitment.
            self._find(entry, f"the salt is not {chain.SALT_BYTES} bytes")

    def _check_commitments(self, entry: Entry, salt: bytes, body: str) -> None:
        if chain.commitment(salt, body.encode()) != entry.commitment:
            self._find(entry, "the content is not what was committed to")
        elif (fault := _fault(entry, body)) is not None:
            self._find(entry, fault)
        elif entry.pos == 1 and self.last_kind == "origin":
            parent = origins.origin(body)
            self._copied_to = 0 if parent is None else parent.pos + 1
        elif self.last_kind == "subject" and self.count == entry.pos > self._copied_to:
            # A copied event has a hash with the salt of the parent's name.
            self._subject = ((documents.parsed("body", body)[0] or {}).get("new"),)
        meta = None if entry.meta is None else chain.meta_commitment(salt, entry.meta.encode())
        if meta != entry.meta_commitment:
            self._find(entry, "the meta is not what was committed to")
        elif entry.meta is not None and (fault := documents.fault("meta", entry.meta)) is not None:
            self._find(entry, fault)

    def _check_subject(self, end: ChainEnd) -> None:
        if self._subject is not None and end.salt is not None and self.is_at(end):
            named = None if end.subject is None else chain.commitment(end.salt, end.subject.encode()).hex()
            if self._subject != (named,):
                self._find_end("the subject is not that of the newest event about it", end.line)

    def _check_erasure(self, end: ChainEnd, pos: int) -> None:
        erased = self.redactions.erasure
        if not end.is_bare:
            self._find_end("the thread was erased, but its name or metadata were not", end.line)
        if self.redactions.rows != sum(self.ordinals.values()):
            self._find_end("the thread was erased, but some of its content was not")
        if self.last_kind != "redaction" or (erased is None and self._content and not self.withheld):
            self._find_at(pos, "the thread is marked as erased, but does not end with its erasure")
        if pos != end.last_pos or (erased is not None and erased != self.pos):
            self._find_at(pos, "the erasure of the thread is not its last entry")


def _fault(entry: Entry, body: str) -> str | None:
    """Returns a problem of a body that matches its commitment, or None."""
    if entry.kind == "message":
        return documents.message_fault(entry.columns[0], body)
    if entry.kind == "compaction" and entry.columns[0] in KINDS:
        return documents.record_fault(entry.columns[0], entry.columns[1], body)
    fault = documents.fault("body", body)
    if fault is None and entry.kind == "event":
        kind = entry.columns[0]
        if (kind == "origin" and origins.origin(body) is None) or (kind == "fork" and not origins.is_fork(body)):
            return f"the {kind} does not say what was copied"
    return fault


# ---- the findings of a walk

MOST_FINDINGS = 1000
_MOST_RECORDS = 100
_RECORDS_NAMED = 3


class Findings(list[Finding]):
    """The findings in the order of the walk: at most `MOST_FINDINGS`, and then one that says that there are more."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: list[tuple[int, int]] = []
        self._spans: dict[int, list[tuple[int, int, int]]] = {}

    def add(self, pos: int | None, what: str, line: int | None = None) -> None:
        if len(self) < MOST_FINDINGS:
            self.append(Finding(pos, what, line))
        elif len(self) == MOST_FINDINGS:
            self.append(Finding(None, f"more than {MOST_FINDINGS} findings; the rest is not listed"))

    def in_message(self, first: int, seq: int) -> None:
        """Notes that the findings from the index `first` on concern the message with this seq."""
        self._messages += [(index, seq) for index in range(first, min(len(self), MOST_FINDINGS))]

    def folded_by(self, number: int, start: object, end: object) -> None:
        """Adds a compaction to the findings about messages in its span. The walk must have passed the span."""
        if type(start) is not int or type(end) is not int:
            return
        for index, seq in self._messages:
            if start <= seq <= end and len(spans := self._spans.setdefault(index, [])) < _MOST_RECORDS:
                spans.append((number, start, end))

    def listed(self) -> tuple[Finding, ...]:
        """Returns the findings. A finding about a message names the compactions that cover the message."""
        seqs = dict(self._messages)
        for index, spans in self._spans.items():
            names = [
                f"compaction {number} covers seqs {start} to {end}, of which seq {seqs[index]} is not as it was written"
                for number, start, end in spans[:_RECORDS_NAMED]
            ]
            if len(spans) > _RECORDS_NAMED:
                names.append(f"so do {len(spans) - _RECORDS_NAMED} more")
            found = self[index]
            numbers = tuple(number for number, _, _ in spans)
            self[index] = replace(found, what="; ".join((found.what, *names)), records=numbers)
        return tuple(self)


# ---- the records in force
# The SQL functions find the same with indexes. `verify` compares them, because an index that lacks a row changes views
# and leaves no other trace.

_COLUMNS = chain.COLUMNS["compaction"]
_TRIGGER, _REVOKES = _COLUMNS.index("trigger"), _COLUMNS.index("revokes")
_HIDE = "hide"


class _Span(NamedTuple):
    start: int
    end: int
    redacted_pos: int | None
    hides: bool


class RecordsInForce:
    """The applied records with a span that were not revoked, by their numbers."""

    def __init__(self) -> None:
        self._spans: dict[int, _Span] = {}

    def record(self, entry: Entry) -> None:
        """Adds the next record. Its columns may have any type, because the row may be forged."""
        kind, outcome, start, end, *_ = entry.columns
        if outcome != "applied":
            return
        if kind == "revocation" and type(number := entry.columns[_REVOKES]) is int:
            self._spans.pop(number, None)
        elif type(start) is int and type(end) is int:
            hides = kind == "clear" and entry.columns[_TRIGGER] == _HIDE
            self._spans[entry.ordinal] = _Span(start, end, entry.redacted_pos, hides)

    def erase(self, number: int, pos: int) -> None:
        """Notes that the redaction at this pos erased a record, which had its content when it was added."""
        if (span := self._spans.get(number)) is not None:
            self._spans[number] = span._replace(redacted_pos=pos)

    @property
    def hidden_seq(self) -> int | None:
        """The largest seq that clears with the trigger `hide` cover, or None. The head's must be equal to it."""
        return max((s.end for s in self._spans.values() if s.hides and s.redacted_pos is None), default=None)

    def active(self, pos: int) -> list[int]:
        """Returns the numbers of the records in the view at the end of the chain, in the order of their spans."""
        spans = [
            (s.start, -s.end, -n) for n, s in self._spans.items() if s.redacted_pos is None or s.redacted_pos > pos
        ]
        found, reached = [], 0
        for _, end, number in sorted(spans):
            if -end > reached:
                found.append(-number)
                reached = -end
        return found


# ---- erased entries, compared with the redactions that ordered the erasures
# An erased entry claims a redaction, by its pos. A redaction names exactly the entries that it erased, and comes after
# them. An erased entry that its redaction does not name is a finding, and so is a named entry that has its content.

NEVER = -(2**63) - 1


class _Runs:
    """Ascending ordinals as ranges, each with the pos of its first entry, in arrays because there may be very many."""

    def __init__(self) -> None:
        self._starts, self._ends, self._at = array("q"), array("q"), array("q")

    def add(self, ordinal: int, pos: int) -> None:
        if self._ends and self._ends[-1] == ordinal - 1:
            self._ends[-1] = ordinal
        else:
            self._starts.append(ordinal)
            self._ends.append(ordinal)
            self._at.append(pos)

    def ranges(self) -> list[Range]:
        return list(zip(self._starts, self._ends, strict=True))

    def pos(self, ordinal: int) -> int:
        """Returns the pos of the first entry in the range that contains an ordinal."""
        return self._at[bisect_right(self._starts, ordinal) - 1]


class Redactions:
    """The erased entries that a walk has passed, grouped by the pos of the redaction that they claim."""

    def __init__(self, find: Callable[[int | None, str], None]) -> None:
        self._find = find
        self._claims: dict[int, dict[str, _Runs]] = {}
        self.count = 0
        self.rows = 0
        # The pos of the redaction that erased the whole thread.
        self.erasure: int | None = None

    @property
    def latest(self) -> int:
        """The largest claimed pos that the walk has not reached yet, or `NEVER`."""
        return max(self._claims, default=NEVER)

    def claim(self, kind: str, ordinal: int, pos: int, redacted_pos: int) -> None:
        self.rows += 1
        self._claims.setdefault(redacted_pos, {name: _Runs() for name in ORDINALS})[kind].add(ordinal, pos)

    def reached(self, pos: int, body: str | None, last_at: int | None, *, is_known: bool) -> dict[str, list[Range]]:
        """Compares the entries that claim a redaction with the entries that the redaction names.

        Returns the ranges of entries that it names and that do not claim it. If `is_known` is false, its body was not
        read, and nothing is compared. `last_at` is the time of the last message, which a retention policy compares.
        """
        self.count += 1
        claims = self._claims.pop(pos, {name: _Runs() for name in ORDINALS})
        if not is_known:
            return {}
        named = None if body is None else erasure.named(body)
        if named is None:
            self._find(pos, "the redaction names no rows")
            return {}
        if named.is_whole:
            self.erasure = pos
        if named.before is not None and last_at is not None and last_at >= named.before:
            self._find(pos, "a retention policy erased the thread, but the last message is younger than it allows")
        by_kind = {"message": named.seqs, "compaction": named.records}
        for kind, runs in claims.items():
            for extra in erasure.missing(runs.ranges(), by_kind[kind]):
                self._find(
                    runs.pos(extra[0]), f"{_erased(kind, extra)}, which the redaction at pos {pos} does not name"
                )
        return {kind: erasure.missing(ranges, claims[kind].ranges()) for kind, ranges in by_kind.items()}

    def unordered(self, *, beyond: int) -> None:
        """Adds a finding for each range of erased entries that claim a redaction after `beyond`."""
        for pos in [pos for pos in self._claims if pos > beyond]:
            for kind, runs in self._claims.pop(pos).items():
                for found in runs.ranges():
                    self._find(runs.pos(found[0]), f"{_erased(kind, found)}, and there is no redaction at pos {pos}")


def _erased(kind: str, found: Range) -> str:
    start, end = found
    name = ORDINALS[kind]
    return f"{name} {start} is erased" if start == end else f"{name}s {start} to {end} are erased"
