"""Verifies a bundle line by line. Performs no I/O.

The walk that checks stored threads also checks the chain of a bundle. A finding never quotes a line. A line that cannot
be read ends the check, because the lines after it cannot be placed in the chain; the report says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from uuid import UUID

from compaction_store import arguments
from compaction_store.bundles import line_format
from compaction_store.bundles.line_format import Line
from compaction_store.checkpoints.keys import public_key
from compaction_store.checkpoints.notes import Proved, check_proof
from compaction_store.errors import InvalidCheckpoint, InvalidInput
from compaction_store.integrity import chain, erasure
from compaction_store.integrity.entry import ORDINALS, ChainEnd, Entry, KnownEntry
from compaction_store.integrity.walk import Walk
from compaction_store.messages import documents
from compaction_store.models import Finding, Report


class BundleVerifier:
    """A verifier of one bundle: `feed` takes each line, and `finish` returns the report."""

    def __init__(
        self, *, pos: int | None = None, head: bytes | None = None, public_keys: Sequence[bytes | str] = ()
    ) -> None:
        self.manifest: Line | None = None
        self.lines = 0
        self._head = head if pos is None else None
        self._kept = None if pos is None or head is None else KnownEntry(pos, head)
        self._keys = public_keys
        self._proved: Proved | None = None
        self._digest = sha256()
        self._is_ended = self._is_broken = False
        # A placeholder until the manifest is read.
        self._walk = Walk("", b"")

    @property
    def first_finding(self) -> Finding | None:
        return self._walk.findings[0] if self._walk.findings else None

    def _find(self, what: str, line: int | None = None) -> None:
        self._walk.findings.add(None, what, line)

    def feed(self, data: bytes) -> Line | None:
        """Checks the next line. Returns the parsed line if it is an entry, else None."""
        self.lines += 1
        line = None if self._is_broken else self._read(data)
        if line is None:
            return None
        if line["type"] == "end":
            self._end(line)
            return None
        self._digest.update(data)
        if line["type"] == "manifest":
            self._begin(line)
            return None
        for kind, ranges in self._walk.check(_entry(line, self._walk.tenant, self.lines)).items():
            for start, end in ranges:
                what = f"{ORDINALS[kind]} {start}" if start == end else f"{ORDINALS[kind]}s {start} to {end}"
                self._walk.findings.add(line["pos"], f"the redaction names {what}, which it did not erase", self.lines)
        return line

    def _read(self, data: bytes) -> Line | None:
        try:
            if self._is_ended:
                raise ValueError("the line comes after the end of the bundle")
            line = line_format.parse(data)
            if (line["type"] == "manifest") != (self.lines == 1):
                raise ValueError("a bundle must have its manifest in its first line, and nowhere else")
        except ValueError as error:
            self._find(f"{error}; nothing from here on was checked", self.lines)
            self._is_broken = True
            return None
        return line

    def _begin(self, manifest: Line) -> None:
        self.manifest = manifest
        tenant, thread_id, uid = manifest["tenant"], manifest["thread_id"], UUID(manifest["thread_uid"])
        salt, commitment = _bytes(manifest["name_salt"]), bytes.fromhex(manifest["name_commitment"])
        checkpointed: tuple[KnownEntry, ...] = ()
        try:
            if self._keys and manifest["checkpoint"] is not None:
                self._proved = check_proof(manifest["checkpoint"], uid, *self._keys)
                checkpointed = (KnownEntry(self._proved.pos, self._proved.entry),)
        except InvalidCheckpoint as error:
            why = f"the checkpoint that the manifest carries does not hold: {error}"
        else:
            why = "the bundle carries no checkpoint that could be checked with the public key"
        self._walk = Walk(
            tenant, chain.genesis(uid, tenant, commitment), is_log=thread_id == arguments.LOG, may_withhold=True,
            kept=self._kept, checkpointed=checkpointed,
        )  # fmt: skip
        try:
            arguments.check_thread_id(tenant)
            arguments.check_thread_id(thread_id)
        except InvalidInput:
            self._find("no thread can have the names in the manifest", 1)
        if thread_id.startswith(erasure.STUB):
            if erasure.stub_uid(thread_id) != uid or salt is not None:
                self._find("the name is that of an erased thread, and not of this one", 1)
        elif not chain.is_name(salt, thread_id, commitment):
            self._find("the name is not the one that the thread was made with", 1)
        if (fault := documents.fault("metadata", manifest["metadata"])) is not None:
            self._find(fault, 1)
        if self._keys and self._proved is None:
            self._find(why, 1)

    def _end(self, line: Line) -> None:
        self._is_ended = True
        if line["sha256"] != self._digest.hexdigest():
            self._find("the bundle is not, byte for byte, what was exported", self.lines)
        if line["entries"] != self._walk.count:
            self._find(f"the end mark counts {line['entries']} entries, the bundle has {self._walk.count}", self.lines)
        if self.manifest is not None and line["head"] != self.manifest["head"]:
            self._find("the end mark names another head than the manifest", self.lines)

    def finish(self) -> Report:
        """Returns the report. All lines must have been fed."""
        manifest, walk = self.manifest, self._walk
        if not self._is_ended and not self._is_broken:
            self._find("the bundle has no end: part of it is missing", self.lines + 1)
        if manifest is None:
            return Report("", "none", 0, 0, walk.findings.listed(), b"")
        notes = () if self._is_broken else self._finish_walk(manifest)
        if self._proved is not None:
            notes += (self._covered(self._proved),)
        elif manifest["checkpoint"] is not None and not self._keys:
            notes += ("the bundle carries a checkpoint, which was not checked",)
        return Report(
            manifest["thread_id"], "structure" if walk.withheld else "content", walk.count, walk.redactions.rows,
            walk.findings.listed(), bytes.fromhex(manifest["head"]), walk.redactions.count, notes, walk.withheld,
            pos=manifest["last_pos"], covered=0 if self._proved is None else self._proved.pos,
            thread_uid=UUID(manifest["thread_uid"]),
        )  # fmt: skip

    def _finish_walk(self, manifest: Line) -> tuple[str, ...]:
        head = bytes.fromhex(manifest["head"])
        is_erased = erasure.stub_uid(manifest["thread_id"]) is not None
        is_bare = (manifest["metadata"], manifest["subject"]) == ("{}", None)
        end = ChainEnd(
            manifest["last_pos"], manifest["last_seq"], manifest["last_number"], head,
            erased_pos=manifest["last_pos"] if is_erased else None, is_bare=is_bare,
            subject=manifest["subject"], salt=_bytes(manifest["name_salt"]), line=1,
        )  # fmt: skip
        notes = self._walk.finish(end)
        if self._walk.count and chain.born_at(UUID(manifest["thread_uid"])) != chain.milliseconds(self._walk.first_at):
            self._find("the thread's key is not a UUID of version 7 with the time of its first entry", 1)
        if self._head is not None and head != self._head:
            self._find("the head is not the one that was kept", 1)
        return notes

    def _covered(self, proved: Proved) -> str:
        """Returns a note for the report: the signer of the checkpoint, its time, and the pos that it covers."""
        newer = self._walk.pos - proved.pos
        later = f"; {newer:,} of the entries are newer" if newer > 0 else ""
        signed = f"{proved.checkpoint.origin} signed pos {proved.pos} and its entry"
        return f"{signed} at {proved.checkpoint.time.isoformat()}{later}"


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else bytes.fromhex(value)


def _entry(line: Line, tenant: str, number: int) -> Entry:
    kind = line["type"]
    return Entry(
        kind, line["pos"], line[ORDINALS[kind]] if kind in ORDINALS else 0, tenant, line["microseconds"],
        line.get("redacted_pos"), _bytes(line["salt"]), bytes.fromhex(line["commitment"]), bytes.fromhex(line["entry"]),
        line["payload" if kind == "message" else "body"], line.get("meta"), _bytes(line.get("meta_commitment")),
        [line[name] for name in chain.COLUMNS[kind]], number,
    )  # fmt: skip


def check_lines(lines: object) -> None:
    """Raises InvalidInput for a text or a mapping, which would otherwise be iterated as if it were lines."""
    if isinstance(lines, str | bytes | bytearray | Mapping):
        raise InvalidInput(_not_lines(lines))


def check_line(line: object) -> bytes:
    if type(line) is not bytes:
        raise InvalidInput(f"a line of a bundle must be bytes, not {type(line).__name__}: open the file with mode 'rb'")
    return line


def _not_lines(given: object) -> str:
    return f"a bundle must be given as its lines, not as {type(given).__name__}: give a file opened with mode 'rb'"


def verify_bundle(
    lines: Iterable[bytes],
    *,
    pos: int | None = None,
    head: bytes | None = None,
    public_keys: Iterable[bytes | str] = (),
) -> Report:
    """Verifies the lines of a bundle without a database. The report lists the findings, at most 1,000 of them.

    `head` is a hash that you kept elsewhere: that of the entry at `pos` or, without `pos`, of the last entry. A bundle
    whose chain was recomputed has another hash there. With `public_keys`, the bundle must carry a checkpoint that
    contains the thread and that one of these keys signed. The keys must not come from the bundle. `covered` in the
    report is the last pos that the checkpoint covers.
    """
    check_lines(lines)
    if not isinstance(lines, Iterable):
        raise InvalidInput(_not_lines(lines))
    if head is not None:
        arguments.head(head, "head")
    if pos is not None:
        if type(pos) is not int or pos < 1:
            raise InvalidInput(f"pos must be an integer >= 1{arguments.other(pos)}")
        if head is None:
            raise InvalidInput("pos must be given together with head, the hash of the entry at that pos")
    if isinstance(public_keys, str | bytes) or not isinstance(public_keys, Iterable):
        raise InvalidInput(f"public_keys must be a list of public keys, not {type(public_keys).__name__}")
    verifier = BundleVerifier(pos=pos, head=head, public_keys=[public_key(key) for key in public_keys])
    for line in lines:
        verifier.feed(check_line(line))
    return verifier.finish()
