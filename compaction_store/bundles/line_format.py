"""Parses and writes the lines of a bundle, and makes them from the rows of a thread. Performs no I/O.

`docs/bundles.md` describes the format, and `offline.py` checks it independently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Any, cast

from compaction_store.arguments import other
from compaction_store.errors import Conflict, InvalidInput
from compaction_store.integrity import chain
from compaction_store.integrity.entry import Entry, Kind
from compaction_store.integrity.rows import FIRST_PAGE, RowParser, RowReader, RowRequest, next_limit
from compaction_store.jsonable import time_text
from compaction_store.models import Thread
from compaction_store.models.vocabulary import MOST_BYTES
from compaction_store.module_data import ModuleData

FORMAT = "compaction-store/bundle/1"
CHAIN = "compaction-store/v1"
LONGEST_LINE = 1024 * 1024 * 1024

Line = dict[str, Any]

SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_MOST_DIGITS = 20
_HASH = re.compile(r"[0-9a-f]{64}")
# If a salt could have another length, bytes could be moved between it and the content under the same commitment.
_SALT = re.compile(r"[0-9a-f]{32}")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
# Later versions may add kinds and outcomes, so any name of this form is accepted. The tables accept the same names.
_KIND = re.compile(r"[a-z][a-z0-9_]{0,62}")

_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")).encode


# ---- the valid values of each field


def _integer(value: object) -> bool:
    return type(value) is int and SMALLEST <= value <= _LARGEST


def _small(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _text(value: object) -> bool:
    # Postgres stores no NUL in text, so no row can contain one.
    return type(value) is str and "\0" not in value


def _at_most(column: str) -> Callable[[object], bool]:
    most = MOST_BYTES[column]
    # A lone surrogate can only come from an escape, which no canonical line has.
    return lambda value: _text(value) and len(cast("str", value).encode(errors="surrogatepass")) <= most


def _or_none(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


def _matching(form: re.Pattern[str]) -> Callable[[object], bool]:
    return lambda value: type(value) is str and form.fullmatch(value) is not None


def _exactly(only: str) -> Callable[[object], bool]:
    return lambda value: type(value) is str and value == only


def is_checkpoint(value: object) -> bool:
    """Returns whether a value has the form of the checkpoint in a manifest: a note, a proof, an index and a key."""
    return (
        type(value) is dict
        and tuple(value) == ("note", "proof", "leaf_index", "key")
        and type(value["note"]) is str
        and type(value["key"]) is str
        and _integer(value["leaf_index"])
        and type(value["proof"]) is list
        and all(type(part) is str for part in value["proof"])
    )


_CHECKS: dict[str, Callable[[object], bool]] = {
    "text": _text, "integer": _integer, "small": _small, "checkpoint": is_checkpoint, "hash": _matching(_HASH),
    "salt": _or_none(_matching(_SALT)), "uuid": _matching(_UUID), "moment": _matching(_MOMENT),
    "name": _matching(_KIND), "format": _exactly(FORMAT), "chain": _exactly(CHAIN),
    "switch": lambda value: type(value) is bool,
    "integers": lambda value: type(value) is list and all(map(_integer, value)),
}  # fmt: skip


def _check(form: str) -> Callable[[object], bool]:
    """Returns the check of a field from its form in line_format.toml."""
    if (needed := form.removesuffix(" or none")) != form:
        return _or_none(_check(needed))
    return _CHECKS[form] if form in _CHECKS else _at_most(form.removeprefix("at most "))


FIELDS = {
    kind: {name: _check(form) for name, form in fields.items()} for kind, fields in ModuleData(__file__).values.items()
}
NAMES = {kind: tuple(fields) for kind, fields in FIELDS.items()}


def _refuse_constant(_name: str) -> None:
    raise ValueError


def _whole(digits: str) -> int:
    # Refuse long numbers: the time that Python takes to parse digits grows with the square of their number.
    if len(digits) > _MOST_DIGITS:
        raise ValueError
    return int(digits)


_decode = json.JSONDecoder(parse_int=_whole, parse_constant=_refuse_constant).decode


def parse(line: bytes) -> Line:
    """Parses a line. If the line is malformed, raises a ValueError that says why and never quotes the line."""
    if len(line) > LONGEST_LINE:
        raise ValueError("the line is too long")
    if not line.endswith(b"\n"):
        raise ValueError("the line does not end with a newline")
    try:
        text = line[:-1].decode()
    except UnicodeDecodeError:
        raise ValueError("the line is not UTF-8") from None
    try:
        found = _decode(text)
        same = _encode(found) == text
    except (ValueError, RecursionError):
        raise ValueError("the line is not the JSON of a bundle") from None
    kind = found.get("type") if type(found) is dict else None
    if type(kind) is not str or NAMES.get(kind) != tuple(found):
        raise ValueError("the line does not have the fields of a bundle's line")
    for name, is_right in FIELDS[kind].items():
        if not is_right(found[name]):
            raise ValueError(f"{name} is not valid in a {kind} line")
    if not same:
        raise ValueError("the line is not in the canonical form")
    return cast("Line", found)


def dump(line: Mapping[str, Any]) -> bytes:
    return (_encode(line) + "\n").encode()


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
