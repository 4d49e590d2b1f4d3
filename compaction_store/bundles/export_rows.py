"""Converts the rows of a thread to the lines of a bundle. Performs no I/O."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from compaction_store.arguments import other
from compaction_store.bundles.line_format import CHAIN, FORMAT, SMALLEST, Line, dump, is_checkpoint
from compaction_store.errors import Conflict, InvalidInput
from compaction_store.integrity import chain
from compaction_store.integrity.entry import Entry, Kind
from compaction_store.integrity.rows import FIRST_PAGE, RowParser, RowReader, RowRequest, next_limit
from compaction_store.jsonable import time_text
from compaction_store.models import Thread

Bodies = bool | Callable[[Mapping[str, Any]], bool]

_PAGE_BYTES = 2 * 1024 * 1024


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _line(entry: Entry) -> Line:
    """Returns the line of an entry without its content."""
    kind = entry.kind
    columns = dict(zip(chain.COLUMNS[kind], entry.columns, strict=True))
    hashes = {"commitment": entry.commitment.hex(), "entry": entry.entry.hex(), "salt": None}
    if kind == "message":
        return {
            "type": kind, "pos": entry.pos, "seq": entry.ordinal, "microseconds": entry.microseconds, **columns,
            "meta_commitment": _hex(entry.meta_commitment), "redacted_pos": entry.redacted_pos, **hashes, "meta": None,
            "payload": None,
        }  # fmt: skip
    if kind == "event":
        return {"type": kind, "pos": entry.pos, "microseconds": entry.microseconds, **columns, **hashes, "body": None}
    return {
        "type": kind, "pos": entry.pos, "number": entry.ordinal, "microseconds": entry.microseconds, **columns,
        "redacted_pos": entry.redacted_pos, **hashes, "body": None,
    }  # fmt: skip


def _with_content(line: Line, entry: Entry) -> Line:
    line["salt"] = _hex(entry.salt)
    if entry.kind == "message":
        line["meta"], line["payload"] = entry.meta, entry.body
    else:
        line["body"] = entry.body
    return line


class _RowsOfKind:
    """The rows of one kind up to the head, read page by page. Rows of other tenants are left out."""

    def __init__(self, kind: Kind, last: int) -> None:
        self.kind = kind
        self.rows: list[Entry] = []
        self._last = last
        self._start = SMALLEST
        self._limit = FIRST_PAGE
        self._more = last > 0
        self._parser = RowParser()

    def fill(self, tenant: str) -> RowReader:
        while self._more and not self.rows:
            page = self._parser.entries(self.kind, (yield RowRequest(self.kind, self._start, self._limit)))
            ordinals = [row.pos if self.kind == "event" else row.ordinal for row in page]
            self._more = len(page) == self._limit and ordinals[-1] < self._last
            if page:
                self._start = ordinals[-1] + 1
                self._limit = next_limit(page, self._limit, _PAGE_BYTES)
            fresh = [row for row, ordinal in zip(page, ordinals, strict=True) if ordinal <= self._last]
            self.rows = [row for row in reversed(fresh) if row.tenant == tenant]


def check_options(bodies: object, checkpoint: object) -> None:
    if type(bodies) is not bool and not callable(bodies):
        raise InvalidInput(f"bodies must be True, False or a callable, not {type(bodies).__name__}")
    if checkpoint is not None and not is_checkpoint(checkpoint):
        raise InvalidInput(
            f"checkpoint must be a dict with note, proof, leaf_index and key, in this order{other(checkpoint)}"
        )


def export(
    tenant: str,
    thread: Thread,
    name: tuple[bytes | None, bytes],
    metadata: str,
    *,
    schema: str,
    made_at: datetime,
    bodies: Bodies,
    checkpoint: Mapping[str, Any] | None,
    about: str,
) -> Generator[RowRequest | bytes, Any, None]:
    """Yields the lines of the bundle and, between them, requests for rows. Keeps one page of each kind in memory.

    `name` is the salt of the thread's name and the commitment to the name. Entries that are appended during the export
    are left out. Raises `Conflict` if an entry is erased during the export before its line is written.
    """
    digest = sha256()
    line = dump({
        "type": "manifest", "format": FORMAT, "chain": CHAIN, "tenant": tenant, "thread_id": thread.thread_id,
        "thread_uid": str(thread.thread_uid), "name_salt": _hex(name[0]), "name_commitment": _hex(name[1]),
        "schema": schema, "made_at": time_text(made_at),
        "metadata": metadata, "subject": thread.subject, "last_pos": thread.last_pos,
        "last_seq": thread.last_seq, "last_number": thread.last_number, "head": thread.head.hex(),
        "checkpoint": checkpoint,
    })  # fmt: skip
    digest.update(line)
    yield line
    count = 0
    sources = (
        _RowsOfKind("message", thread.last_seq), _RowsOfKind("compaction", thread.last_number),
        _RowsOfKind("event", thread.last_pos),
    )  # fmt: skip
    while True:
        for source in sources:
            if not source.rows:
                yield from source.fill(tenant)
        source = min((s for s in sources if s.rows), key=lambda s: s.rows[-1].pos, default=sources[0])
        if not source.rows:
            break
        row = source.rows.pop()
        if row.redacted_pos is not None and row.redacted_pos > thread.last_pos:
            last_pos = (yield RowRequest(None))[0][5]
            if last_pos >= row.redacted_pos:
                raise Conflict(f"pos {row.pos} was erased during the export: export the thread again{about}")
        fields = _line(row)
        if bodies is True or (callable(bodies) and bodies(MappingProxyType(fields))):
            fields = _with_content(fields, row)
        line = dump(fields)
        digest.update(line)
        count += 1
        yield line
    yield dump({"type": "end", "entries": count, "head": thread.head.hex(), "sha256": digest.hexdigest()})
