"""Bundles: a thread as lines of JSON that prove themselves, from a store's rows and back. Pure.

A bundle is a manifest, every entry in the order of its pos, and an end mark: half a bundle is none. Each line has one
form only, so that a bundle that differs in a byte is another one. `docs/bundles.md` is the format in words, and
`offline.py` checks it by code of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Any, cast

from compaction_store.errors import Conflict, InvalidInput
from compaction_store.integrity.entry_pages import Page, Row
from compaction_store.models import Thread

FORMAT = "compaction-store/bundle/1"
CHAIN = "compaction-store/v1"
LONGEST_LINE = 1024 * 1024 * 1024

Line = dict[str, Any]
Bodies = bool | Callable[[Mapping[str, Any]], bool]

_FIRST_PAGE = 16
_LONGEST_PAGE = 1000
_PAGE_BYTES = 2 * 1024 * 1024
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_MOST_DIGITS = 20
_HASH = re.compile(r"[0-9a-f]{64}")
_SALT = re.compile(r"[0-9a-f]{32}")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_KINDS = {"summary", "truncation", "removal", "revocation"}
_OUTCOMES = {"applied", "rejected", "failed", "observed"}
_EVENTS = {"redaction", "hold", "release", "retention", "import", "checkpoint"}

_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")).encode


# ---- the one form of every line


def _integer(value: object) -> bool:
    return type(value) is int and _SMALLEST <= value <= _LARGEST


def _small(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _text(value: object) -> bool:
    # Postgres holds no NUL in text, so no row ever had one.
    return type(value) is str and "\0" not in value


def _hash(value: object) -> bool:
    return type(value) is str and _HASH.fullmatch(value) is not None


def _salt(value: object) -> bool:
    # Of another length, bytes could move between the salt and what it salts.
    return value is None or (type(value) is str and _SALT.fullmatch(value) is not None)


def _or_none(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


def _one_of(choices: set[str]) -> Callable[[object], bool]:
    return lambda value: type(value) is str and value in choices


def _matching(form: re.Pattern[str]) -> Callable[[object], bool]:
    return lambda value: type(value) is str and form.fullmatch(value) is not None


def _exactly(only: str) -> Callable[[object], bool]:
    return lambda value: type(value) is str and value == only


def is_checkpoint(value: object) -> bool:
    """Whether this is what a manifest carries from a checkpoint: its note, and the proof that the thread is in it."""
    return (
        type(value) is dict
        and tuple(value) == ("note", "proof", "leaf_index", "key")
        and type(value["note"]) is str
        and type(value["key"]) is str
        and _integer(value["leaf_index"])
        and type(value["proof"]) is list
        and all(type(part) is str for part in value["proof"])
    )


_hash_or_none, _text_or_none, _integer_or_none = _or_none(_hash), _or_none(_text), _or_none(_integer)
_WRITTEN = {"commitment": _hash, "entry": _hash, "salt": _salt}

FIELDS: dict[str, dict[str, Callable[[object], bool]]] = {
    "manifest": {
        "type": _text, "format": _exactly(FORMAT), "chain": _exactly(CHAIN), "tenant": _text, "thread_id": _text,
        "schema": _text, "made_at": _matching(_MOMENT), "metadata": _text,
        "last_pos": _integer, "last_seq": _integer, "last_number": _integer, "head": _hash,
        "checkpoint": _or_none(is_checkpoint),
    },
    "message": {
        "type": _text, "pos": _integer, "seq": _integer, "microseconds": _integer, "role": _text_or_none,
        "tokens": _small, "counter": _text, "key": _text_or_none, "call_size": _or_none(_small),
        "receipt": _text_or_none, "meta_commitment": _hash_or_none, "redacted_pos": _integer_or_none, **_WRITTEN,
        "meta": _text_or_none, "payload": _text_or_none,
    },
    "compaction": {
        "type": _text, "pos": _integer, "number": _integer, "microseconds": _integer, "kind": _one_of(_KINDS),
        "outcome": _one_of(_OUTCOMES), "start_seq": _integer_or_none, "end_seq": _integer_or_none,
        "tokens_before": _integer_or_none, "tokens_after": _integer_or_none, "source_count": _integer_or_none,
        "source_before": _hash_or_none, "source_end": _hash_or_none,
        "inputs": lambda value: type(value) is list and all(map(_integer, value)), "run_id": _matching(_UUID),
        "callback": _text_or_none, "trigger": _text_or_none, "actor": _text_or_none, "model": _text_or_none,
        "counter": _text_or_none, "revokes": _integer_or_none, "redacted_pos": _integer_or_none, **_WRITTEN,
        "body": _text_or_none,
    },
    "event": {
        "type": _text, "pos": _integer, "microseconds": _integer, "kind": _one_of(_EVENTS), "actor": _text_or_none,
        **_WRITTEN, "body": _text_or_none,
    },
    "end": {"type": _text, "entries": _integer, "head": _hash, "sha256": _hash},
}  # fmt: skip
_NAMES = {kind: tuple(fields) for kind, fields in FIELDS.items()}


def _refuse_constant(_name: str) -> None:
    raise ValueError


def _whole(digits: str) -> int:
    # Python takes a time that grows with the square of the digits.
    if len(digits) > _MOST_DIGITS:
        raise ValueError
    return int(digits)


_decode = json.JSONDecoder(parse_int=_whole, parse_constant=_refuse_constant).decode


def parse(line: bytes) -> Line:
    """A line as the object it says; `ValueError` says what is wrong with its form, and nothing of what it says."""
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
    if type(kind) is not str or _NAMES.get(kind) != tuple(found):
        raise ValueError("the line has not the fields of a bundle's line")
    for name, is_right in FIELDS[kind].items():
        if not is_right(found[name]):
            raise ValueError(f"the {name} is none that a {kind} has")
    if not same:
        raise ValueError("the line is not written as a bundle's line is")
    return cast("Line", found)


def dump(line: Mapping[str, Any]) -> bytes:
    return (_encode(line) + "\n").encode()


# ---- from rows to lines


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _line(kind: str, row: Row) -> Line:
    """A row as a line, without its content."""
    columns: list[Any] = json.loads(row.columns)
    hashes = {"commitment": row.commitment.hex(), "entry": row.entry.hex(), "salt": None}
    if kind == "message":
        role, tokens, counter, key, call_size, receipt = columns
        return {
            "type": kind, "pos": row.pos, "seq": row.ordinal, "microseconds": row.microseconds, "role": role,
            "tokens": tokens, "counter": counter, "key": key, "call_size": call_size, "receipt": receipt,
            "meta_commitment": _hex(row.meta_commitment), "redacted_pos": row.redacted_pos, **hashes, "meta": None,
            "payload": None,
        }  # fmt: skip
    if kind == "event":
        return {
            "type": kind, "pos": row.pos, "microseconds": row.microseconds, "kind": columns[0], "actor": columns[1],
            **hashes, "body": None,
        }  # fmt: skip
    return {
        "type": kind, "pos": row.pos, "number": row.ordinal, "microseconds": row.microseconds,
        **dict(zip(_NAMES[kind][4:-5], columns, strict=True)), "redacted_pos": row.redacted_pos, **hashes, "body": None,
    }  # fmt: skip


def _with_content(line: Line, row: Row) -> Line:
    line["salt"] = _hex(row.salt)
    if line["type"] == "message":
        line["meta"], line["payload"] = row.meta, row.body
    else:
        line["body"] = row.body
    return line


class _Rows:
    """The rows of one kind up to the head, read a page at a time. Another tenant's are none of the thread's."""

    def __init__(self, kind: str, last: int) -> None:
        self.kind = kind
        self.rows: list[Row] = []
        self._last = last
        self._start = _SMALLEST
        self._limit = _FIRST_PAGE
        self._more = last > 0

    def fill(self, tenant: str) -> Generator[Page, list[tuple[Any, ...]], None]:
        while self._more and not self.rows:
            page = [Row._make(values) for values in (yield Page(self.kind, self._start, self._limit))]
            places = [row.pos if self.kind == "event" else row.ordinal for row in page]
            self._more = len(page) == self._limit and places[-1] < self._last
            if page:
                self._start = places[-1] + 1
                size = sum(len(row.body or "") for row in page) // len(page) + 1
                self._limit = max(1, min(_LONGEST_PAGE, self._limit * 8, _PAGE_BYTES // size))
            fresh = [row for row, place in zip(page, places, strict=True) if place <= self._last]
            self.rows = [row for row in reversed(fresh) if row.tenant == tenant]


def check_options(bodies: object, checkpoint: object) -> None:
    if type(bodies) is not bool and not callable(bodies):
        raise InvalidInput("bodies must be True, False, or a callable that is given an entry")
    if checkpoint is not None and not is_checkpoint(checkpoint):
        raise InvalidInput("checkpoint must be an object of note, proof, leaf_index and key, in this order")


def export(
    tenant: str,
    thread: Thread,
    metadata: str,
    *,
    schema: str,
    made_at: datetime,
    bodies: Bodies,
    checkpoint: Mapping[str, Any] | None,
    about: str,
) -> Generator[Page | bytes, Any, None]:
    """Yields the pages it needs, to be sent their rows, and the lines of the bundle. Holds a page of each kind.

    What is written to the thread meanwhile is not part of the bundle. What is erased meanwhile ends it.
    """
    digest = sha256()
    line = dump({
        "type": "manifest", "format": FORMAT, "chain": CHAIN, "tenant": tenant, "thread_id": thread.thread_id,
        "schema": schema, "made_at": made_at.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z",
        "metadata": metadata, "last_pos": thread.last_pos,
        "last_seq": thread.last_seq, "last_number": thread.last_number, "head": thread.head.hex(),
        "checkpoint": checkpoint,
    })  # fmt: skip
    digest.update(line)
    yield line
    count = 0
    sources = [
        _Rows("message", thread.last_seq), _Rows("compaction", thread.last_number), _Rows("event", thread.last_pos),
    ]  # fmt: skip
    while True:
        for source in sources:
            if not source.rows:
                yield from source.fill(tenant)
        source = min((s for s in sources if s.rows), key=lambda s: s.rows[-1].pos, default=sources[0])
        if not source.rows:
            break
        row = source.rows.pop()
        if row.redacted_pos is not None and row.redacted_pos > thread.last_pos:
            last_pos = (yield Page("head", 0, 1))[0][5]
            if last_pos >= row.redacted_pos:
                raise Conflict(f"pos {row.pos} was erased while the thread was exported: export it again{about}")
        said = _line(source.kind, row)
        if bodies is True or (callable(bodies) and bodies(MappingProxyType(said))):
            said = _with_content(said, row)
        line = dump(said)
        digest.update(line)
        count += 1
        yield line
    yield dump({"type": "end", "entries": count, "head": thread.head.hex(), "sha256": digest.hexdigest()})
