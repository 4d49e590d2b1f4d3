"""The hash chain, format version 1: what is hashed, and in which order. `docs/integrity.md` says the same in words.

The SQL functions compute these values when they write; this module computes them again to verify. A change to any of
them needs a new format version.

Every hash is a SHA-256 that begins with one domain byte. Integers are 8 bytes, big-endian, signed. A header is a list
of fields, each its length in 4 bytes and then its bytes; an absent field has the length -1 and no bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
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
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# The columns of a header, in their order. A message's header has its meta commitment besides.
COLUMNS: dict[str, tuple[str, ...]] = {
    "message": ("role", "tokens", "counter", "key", "call_size", "receipt"),
    "compaction": (
        "kind", "outcome", "start_seq", "end_seq", "tokens_before", "tokens_after", "source_count", "source_before",
        "source_end", "inputs", "run_id", "callback", "trigger", "actor", "model", "counter", "revokes",
    ),
    "event": ("kind", "actor"),
}  # fmt: skip


def name(tenant: str, thread_id: str) -> bytes:
    """Returns the JSON array [tenant, thread_id], from which a thread's uid and its genesis are made."""
    return json.dumps([tenant, thread_id], ensure_ascii=False, separators=(",", ":")).encode()


@lru_cache(maxsize=4096)
def thread_uid(tenant: str, thread_id: str) -> UUID:
    """Makes a UUID of version 8 from the SHA-256 of the name; Postgres has no SHA-1 without an extension."""
    digest = bytearray(sha256(_NAMESPACE + name(tenant, thread_id)).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return UUID(bytes=bytes(digest))


def genesis(tenant: str, thread_id: str) -> bytes:
    """Computes the hash before a thread's first entry. It binds every entry to this thread."""
    return sha256(_GENESIS + b"compaction-store/v1\x00" + name(tenant, thread_id)).digest()


def commitment(salt: bytes, body: bytes) -> bytes:
    """Commits to content without revealing it: once the salt is erased, a guess cannot be confirmed."""
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
    inputs: Sequence[int],
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
    """Computes one link. `ordinal` is the seq of a message, the number of a compaction, 0 for an event."""
    return sha256(_ENTRY + previous + _ENTRY_NUMBERS.pack(pos, ordinal, microseconds) + leaf).digest()


def microseconds(moment: datetime) -> int:
    """Returns a time as it is hashed: whole microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND
