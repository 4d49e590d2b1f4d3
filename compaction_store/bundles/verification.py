"""Holding a bundle to its chain, line by line as it comes: the same rules that `audit` holds a stored thread to. Pure.

A finding names its line and its pos, never what a line says. Of a line that cannot be read nothing is known, not even
what should come next: the check ends there and says so.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any
from uuid import UUID

from compaction_store import arguments
from compaction_store.bundles import line_format
from compaction_store.bundles.line_format import Line
from compaction_store.checkpoints import signed_heads
from compaction_store.checkpoints.signed_heads import Proved
from compaction_store.errors import InvalidCheckpoint, InvalidInput
from compaction_store.integrity import chain, erasure
from compaction_store.integrity.entry_pages import FIRST_MOMENT, LAST_MOMENT
from compaction_store.integrity.redactions import NEVER, Redactions
from compaction_store.messages import documents
from compaction_store.models import Finding, Report

MOST_FINDINGS = 1000
_ORDINALS = {"message": "seq", "compaction": "number"}
_HASH_BYTES = 32


class Walk:
    """The state of a walk along a bundle. `feed` is given its lines, `finish` tells what came of it."""

    def __init__(
        self, *, pos: int | None = None, head: bytes | None = None, public_keys: Sequence[bytes | str] = ()
    ) -> None:
        self.manifest: Line | None = None
        self.findings: list[Finding] = []
        self.lines = 0
        self.count = 0
        self.withheld = 0
        self._kept = (pos, head)
        self._keys = public_keys
        self._proved: Proved | None = None
        self._digest = sha256()
        self._ended = self._broken = False
        self._previous: bytes | None = None
        self.genesis: bytes | None = None
        self._first: Line | None = None
        self._pos = 0
        self._ordinals = {"message": 0, "compaction": 0}
        self._last_at: int | None = None
        self._last_kind = ""
        self._is_lenient = False
        self._redactions = Redactions(content=True, find=self._find)

    def _find(self, pos: int | None, what: str, *, line: int | None = None) -> None:
        if self._is_lenient:
            return
        if line is None and pos is not None and pos <= self._pos:
            # What concerns an earlier entry: after the manifest, entries stand in the order of their pos.
            line = pos + 1
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(Finding(pos, what, line))
        elif len(self.findings) == MOST_FINDINGS:
            self.findings.append(Finding(None, f"more than {MOST_FINDINGS} findings; the rest is not listed"))

    def _here(self, pos: int | None, what: str) -> None:
        self._find(pos, what, line=self.lines)

    def feed(self, data: bytes) -> Line | None:
        """Checks the next line; returns it where it is an entry that could be read."""
        self.lines += 1
        line = None if self._broken else self._read(data)
        if line is None:
            return None
        kind = line["type"]
        if kind == "end":
            self._end(line)
            return None
        self._digest.update(data)
        if kind == "manifest":
            self._begin(line)
            return None
        self._entry(kind, line)
        return line

    def _read(self, data: bytes) -> Line | None:
        try:
            if self._ended:
                raise ValueError("the line stands after the end of the bundle")
            line = line_format.parse(data)
            if (line["type"] == "manifest") != (self.lines == 1):
                raise ValueError("a bundle has its manifest in its first line, and nowhere else")
        except ValueError as error:
            self._here(None, f"{error}; nothing from here on was checked")
            self._broken = True
            return None
        return line

    def _begin(self, line: Line) -> None:
        self.manifest = line
        try:
            for name in ("tenant", "thread_id"):
                arguments.check_thread_id(line[name])
        except InvalidInput:
            self._here(None, "the manifest's names are none that a thread has")
        if (fault := documents.fault("metadata", line["metadata"])) is not None:
            self._here(None, fault)
        if self._keys:
            self._prove(line)
        if erasure.stub_uid(line["thread_id"]) is None:
            self.genesis = self._previous = chain.genesis(line["tenant"], line["thread_id"])

    def _prove(self, manifest: Line) -> None:
        """Checks the checkpoint that the manifest carries, as far as it goes without the entries."""
        if manifest["checkpoint"] is None:
            self._here(None, "the bundle carries no checkpoint that could be checked with the public key")
            return
        try:
            self._proved = signed_heads.check_proof(
                manifest["checkpoint"], manifest["tenant"], manifest["thread_id"], *self._keys
            )
        except InvalidCheckpoint as error:
            self._here(None, f"the checkpoint that the manifest carries does not hold: {error}")

    def _entry(self, kind: str, line: Line) -> None:
        self.count += 1
        self._pos += 1
        pos = line["pos"]
        if pos != self._pos:
            self._here(pos, f"pos {self._pos} was expected")
            self._pos = pos
        if kind != "event":
            self._ordinals[kind] += 1
            name = _ORDINALS[kind]
            if line[name] != self._ordinals[kind]:
                self._here(pos, f"{name} {self._ordinals[kind]} was expected, {line[name]} is there")
                self._ordinals[kind] = line[name]
        if self._last_at is not None and line["microseconds"] < self._last_at:
            self._here(pos, "the time is earlier than that of the entry before")
        self._last_at = line["microseconds"]
        if not FIRST_MOMENT <= line["microseconds"] <= LAST_MOMENT:
            self._here(pos, "the time is before the year 1 or after the year 9999")
        self._last_kind = line["kind"] if kind == "event" else kind
        entry = bytes.fromhex(line["entry"])
        if self._previous is None:
            self._first = line
        else:
            self._follows(line, self._previous)
        self._previous = entry
        if pos == self._kept[0] and entry != self._kept[1]:
            self._here(pos, "the entry is not the one that was kept elsewhere")
        if self._proved is not None and pos == self._proved.pos and entry != self._proved.entry:
            self._here(pos, "the checkpoint was made over another entry here")
        self._content(kind, line)
        if self._last_kind == "redaction":
            self._redaction(line)

    def _follows(self, line: Line, previous: bytes) -> None:
        ordinal = line[_ORDINALS[line["type"]]] if line["type"] in _ORDINALS else 0
        try:
            leaf = chain.leaf(_header(line), bytes.fromhex(line["commitment"]))
            expected = chain.entry(previous, line["pos"], ordinal, line["microseconds"], leaf)
        except (ValueError, struct.error):
            self._here(line["pos"], "the line cannot be read as format version 1")
        else:
            if expected.hex() != line["entry"]:
                self._here(line["pos"], "the entry does not follow from the line and the entry before")

    def _content(self, kind: str, line: Line) -> None:
        pos, salt, body = line["pos"], line["salt"], line["payload" if kind == "message" else "body"]
        meta = line.get("meta")
        if (redacted_pos := line.get("redacted_pos")) is not None:
            self._redactions.claim(kind, line[_ORDINALS[kind]], pos, redacted_pos)
            if not salt is body is meta is None:
                self._here(pos, "a redacted entry still has content")
        elif salt is body is meta is None:
            self.withheld += 1
        elif salt is None or body is None:
            self._here(pos, "part of the content is missing")
        else:
            self._committed(line, bytes.fromhex(salt), body, meta)

    def _committed(self, line: Line, salt: bytes, body: str, meta: str | None) -> None:
        if chain.commitment(salt, body.encode()).hex() != line["commitment"]:
            self._here(line["pos"], "the content is not what was committed to")
        elif (fault := _fault(line, body)) is not None:
            self._here(line["pos"], fault)
        found = None if meta is None else chain.meta_commitment(salt, meta.encode()).hex()
        if found != line.get("meta_commitment"):
            self._here(line["pos"], "the meta is not what was committed to")
        elif meta is not None and (fault := documents.fault("meta", meta)) is not None:
            self._here(line["pos"], fault)

    def _redaction(self, line: Line) -> None:
        # Without its body, what an event erased is not known: that it stands there is what structure asks for.
        self._is_lenient = line["body"] is None
        named = self._redactions.reached(line["pos"], line["body"])
        self._is_lenient = False
        for kind, ranges in named.items():
            for start, end in ranges:
                what = f"{_ORDINALS[kind]} {start}" if start == end else f"{_ORDINALS[kind]}s {start} to {end}"
                self._here(line["pos"], f"the redaction names {what}, not erased by it")

    def _end(self, line: Line) -> None:
        self._ended = True
        if line["sha256"] != self._digest.hexdigest():
            self._here(None, "the bundle is not, byte for byte, what was exported")
        if line["entries"] != self.count:
            self._here(None, f"the bundle ends after {line['entries']} entries, {self.count} are there")
        if self.manifest is not None and line["head"] != self.manifest["head"]:
            self._here(None, "the end names another head than the manifest")

    def finish(self) -> Report:
        """The report, once every line was fed."""
        manifest = self.manifest
        if not self._ended and not self._broken:
            self._find(None, "the bundle has no end: part of it is missing", line=self.lines + 1)
        if manifest is None:
            return Report("", "none", 0, 0, tuple(self.findings), b"")
        notes: tuple[str, ...] = ()
        if not self._broken:
            self._redactions.unordered(beyond=NEVER)
            notes = self._named(manifest)
            self._headed(manifest)
        if self._proved is not None:
            notes += self._covered(self._proved)
        elif manifest["checkpoint"] is not None and not self._keys:
            notes += ("the bundle carries a checkpoint, which was not looked at",)
        return Report(
            manifest["thread_id"], "structure" if self.withheld else "content", self.count, self._redactions.rows,
            tuple(self.findings), bytes.fromhex(manifest["head"]), self._redactions.count, notes, self.withheld,
            pos=manifest["last_pos"], covered=0 if self._proved is None else self._proved.pos, thread_uid=self._uid(),
        )  # fmt: skip

    def _uid(self) -> UUID | None:
        assert self.manifest is not None  # noqa: S101 — only asked once there is one
        try:
            return signed_heads.thread_uid(self.manifest["tenant"], self.manifest["thread_id"])
        except ValueError:
            return None

    def _covered(self, proved: Proved) -> tuple[str, ...]:
        """Holds the bundle's end against the checkpoint; returns what the checkpoint says of the bundle."""
        moment = proved.checkpoint.time.isoformat()
        if not self._broken and proved.pos > self._pos:
            self._find(None, f"a checkpoint was made over pos {proved.pos}, and the bundle ends at pos {self._pos}")
        newer = self._pos - proved.pos
        later = f"; {newer:,} of the entries are newer" if newer > 0 else ""
        return (f"{proved.checkpoint.origin} signed pos {proved.pos} and its entry at {moment}{later}",)

    def _named(self, manifest: Line) -> tuple[str, ...]:
        """Holds the name against the thread's erasure, if there was one; returns what could not be looked at."""
        told = self._redactions.erasure
        if erasure.stub_uid(manifest["thread_id"]) is None:
            if told is not None:
                self._find(told[0], "the thread was erased, and its name is not")
            return ()
        if manifest["metadata"] != "{}":
            self._find(None, "the thread was erased, and its metadata are not", line=1)
        if self._redactions.rows != sum(self._ordinals.values()):
            self._find(None, "the thread was erased, and some of its content is not")
        if self._last_kind != "redaction" or (told is not None and told[0] != self._pos):
            self._find(None, "the erasure of the thread is not its last entry")
        if told is None and not self.withheld:
            self._find(None, "the name tells of an erasure that is not there", line=1)
        if told is not None and self._first is not None:
            self.genesis = told[1]
            self._follows_at(self._first, told[1])
        kept = "" if told is None else "; the genesis is that which the erasure kept"
        return (f"the thread's name is erased, so that its genesis could not be computed from it{kept}",)

    def _follows_at(self, line: Line, previous: bytes) -> None:
        lines, self.lines = self.lines, 2
        self._follows(line, previous)
        self.lines = lines

    def _headed(self, manifest: Line) -> None:
        if self._pos != manifest["last_pos"]:
            self._find(None, f"the manifest says pos {manifest['last_pos']}, the last entry is at {self._pos}", line=1)
        elif (self._previous or self.genesis or b"").hex() != manifest["head"]:
            self._find(None, "the head is not the last entry", line=1)
        for kind, name in _ORDINALS.items():
            told, there = manifest[f"last_{name}"], self._ordinals[kind]
            if told != there:
                self._find(None, f"the manifest says {name} {told}, the last one is {there}", line=1)
        pos, head = self._kept
        if pos is not None and pos > self._pos:
            self._find(None, f"the bundle ends before pos {pos}, of which an entry was kept elsewhere")
        if pos is None and head is not None and head.hex() != manifest["head"]:
            self._find(None, "the head is not the one that was kept elsewhere", line=1)


def _fault(line: Line, content: str) -> str | None:
    if line["type"] == "message":
        return documents.message_fault(line["role"], content)
    if line["type"] == "compaction":
        return documents.record_fault(line["kind"], line["outcome"], content)
    return documents.fault("body", content)


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else bytes.fromhex(value)


def _header(line: Mapping[str, Any]) -> bytes:
    if line["type"] == "message":
        return chain.message_header(
            role=line["role"], tokens=line["tokens"], counter=line["counter"], key=line["key"],
            call_size=line["call_size"], receipt=line["receipt"], meta_commitment=_bytes(line["meta_commitment"]),
        )  # fmt: skip
    if line["type"] == "event":
        return chain.event_header(kind=line["kind"], actor=line["actor"])
    return chain.compaction_header(
        kind=line["kind"], outcome=line["outcome"], start_seq=line["start_seq"], end_seq=line["end_seq"],
        tokens_before=line["tokens_before"], tokens_after=line["tokens_after"], source_count=line["source_count"],
        source_before=_bytes(line["source_before"]), source_end=_bytes(line["source_end"]), inputs=line["inputs"],
        run_id=UUID(line["run_id"]), callback=line["callback"], trigger=line["trigger"], actor=line["actor"],
        model=line["model"], counter=line["counter"], revokes=line["revokes"],
    )  # fmt: skip


def check_lines(lines: object) -> None:
    """Refuses what is no bundle at all before it is asked for its lines."""
    if isinstance(lines, str | bytes | bytearray | Mapping):
        raise InvalidInput("a bundle must be given as its lines: open its file with mode 'rb', and give the file")


def check_line(line: object) -> bytes:
    if type(line) is not bytes:
        raise InvalidInput("a line of a bundle must be bytes, with its newline: open its file with mode 'rb'")
    return line


def verify_bundle(
    lines: Iterable[bytes],
    *,
    pos: int | None = None,
    head: bytes | None = None,
    public_keys: Iterable[bytes | str] = (),
) -> Report:
    """Holds a bundle, given as its lines, to its chain, from the bundle alone. The report names every finding.

    `head` is the entry at `pos`, or at the end, as it was kept elsewhere: a chain that was computed anew has another.
    With `public_keys`, which were not got from the bundle, the checkpoint that it carries must be signed by one of them
    and hold for the thread; the report's `covered` is the pos up to which it does.
    """
    check_lines(lines)
    if not isinstance(lines, Iterable):
        raise InvalidInput("a bundle must be given as its lines: open its file with mode 'rb', and give the file")
    if (head is not None and (type(head) is not bytes or len(head) != _HASH_BYTES)) or (
        pos is not None and head is None
    ):
        raise InvalidInput("head must be the 32 bytes of an entry, given with pos")
    if pos is not None and (type(pos) is not int or pos < 1):
        raise InvalidInput("pos must be an integer >= 1")
    if isinstance(public_keys, str | bytes) or not isinstance(public_keys, Iterable):
        raise InvalidInput("public_keys must be several public keys, such as a list of one")
    walk = Walk(pos=pos, head=head, public_keys=[signed_heads.public_key(key) for key in public_keys])
    for line in lines:
        walk.feed(check_line(line))
    return walk.finish()
