"""Format version 1: what is hashed, and in which order. `docs/integrity.md` is the same in words.

The SQL functions compute these values when they write; this module computes them again when somebody verifies. A change
here is a new format version, never an edit.

Everything is SHA-256 under one leading domain byte. Integers are 8 bytes, big-endian, signed. A header is a list of
fields, each its length in 4 bytes and then its bytes; a field that is absent has the length -1 and no bytes.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from hashlib import sha256
from uuid import UUID

VERSION = 1

_CONTENT = b"\x00"
_ENTRY = b"\x01"
_GENESIS = b"\x02"
_LEAF = b"\x03"
_META = b"\x04"

_NAMESPACE = UUID("6f0b1c7e-52a4-5d0e-9c3b-a1d5f2e84790").bytes
_ABSENT = struct.pack(">i", -1)
_ENTRY_NUMBERS = struct.Struct(">qqq")
_LENGTH = struct.Struct(">i")
_INTEGER = struct.Struct(">q")


def name(tenant: str, thread_id: str) -> bytes:
    """The JSON array [tenant, thread_id]: what a thread's id and its genesis are made from."""
    return json.dumps([tenant, thread_id], ensure_ascii=False, separators=(",", ":")).encode()


@lru_cache(maxsize=4096)
def thread_uid(tenant: str, thread_id: str) -> UUID:
    """A name-based UUID: version 8 over SHA-256, because Postgres has no SHA-1 without an extension."""
    digest = bytearray(sha256(_NAMESPACE + name(tenant, thread_id)).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return UUID(bytes=bytes(digest))


def genesis(tenant: str, thread_id: str) -> bytes:
    """What stands before a thread's first entry, so that no entry can be moved to another thread."""
    return sha256(_GENESIS + b"compaction-store/v1\x00" + name(tenant, thread_id)).digest()


def commitment(salt: bytes, body: bytes) -> bytes:
    """Binds content without revealing it: once the salt is erased, not even a guess can be confirmed."""
    return sha256(_CONTENT + salt + body).digest()


def meta_commitment(salt: bytes, meta: bytes) -> bytes:
    return sha256(_META + salt + meta).digest()


def _field(value: bytes | str | int | None) -> bytes:
    if value is None:
        return _ABSENT
    if isinstance(value, int):
        value = _INTEGER.pack(value)
    elif isinstance(value, str):
        value = value.encode()
    return _LENGTH.pack(len(value)) + value


def message_header(
    *,
    role: str | None,
    tokens: int,
    counter: str,
    key: str | None,
    call_size: int | None,
    receipt: str | None,
    meta_commitment: bytes | None,
) -> bytes:
    fields = ("message", role, tokens, counter, key, call_size, receipt, meta_commitment)
    return b"".join(map(_field, fields))


def compaction_header(
    *,
    kind: str,
    outcome: str,
    start_seq: int | None,
    end_seq: int | None,
    tokens_before: int | None,
    tokens_after: int | None,
    source_count: int | None,
    source_before: bytes | None,
    source_end: bytes | None,
    inputs: list[int],
    run_id: UUID,
    callback: str | None,
    trigger: str | None,
    actor: str | None,
    model: str | None,
    counter: str | None,
    revokes: int | None,
) -> bytes:
    numbers = b"".join(map(_INTEGER.pack, inputs))
    fields = (
        "compaction", kind, outcome, start_seq, end_seq, tokens_before, tokens_after, source_count, source_before,
        source_end, numbers, run_id.bytes, callback, trigger, actor, model, counter, revokes,
    )  # fmt: skip
    return b"".join(map(_field, fields))


def event_header(*, kind: str, actor: str | None) -> bytes:
    return b"".join(map(_field, ("event", kind, actor)))


def leaf(header: bytes, commitment: bytes) -> bytes:
    return sha256(_LEAF + header + commitment).digest()


def entry(previous: bytes, pos: int, ordinal: int, microseconds: int, leaf: bytes) -> bytes:
    """One link: `ordinal` is the seq of a message, the number of a compaction, 0 for an event."""
    return sha256(_ENTRY + previous + _ENTRY_NUMBERS.pack(pos, ordinal, microseconds) + leaf).digest()
