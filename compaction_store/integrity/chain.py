"""Computes the hashes of the chain, in format version 1. `docs/integrity.md` describes the format in words.

The SQL functions compute these hashes when they write. This module computes them again to verify. If a change alters
any of these hashes, it needs a new format version.

Every hash is the SHA-256 of one domain byte and the data. Integers are 8 bytes, big-endian and signed. A header is a
list of fields. Each field is its length in 4 bytes, followed by its bytes. An absent field has the length -1 and no
bytes.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

from compaction_store.module_data import ModuleData

VERSION = 1
SALT_BYTES = 16
# UUIDs of this version begin with a time.
_TIME_ORDERED = 7

_CONTENT = b"\x00"
_ENTRY = b"\x01"
_GENESIS = b"\x02"
_NAME = b"\x03"
_META = b"\x04"

_ABSENT = struct.pack(">i", -1)
_ENTRY_NUMBERS = struct.Struct(">qqq")
_LENGTH = struct.Struct(">i")
_INTEGER = struct.Struct(">q")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# The columns in the header of each kind of entry, in order. A message's header also has the commitment to its meta.
COLUMNS: dict[str, tuple[str, ...]] = {kind: tuple(names) for kind, names in ModuleData(__file__).values.items()}


def born_at(thread_uid: UUID) -> int | None:
    """Returns the time in a thread_uid in the form of `milliseconds`, or None if it is not a UUID of version 7."""
    return int.from_bytes(thread_uid.bytes[:6]) if thread_uid.version == _TIME_ORDERED else None


def milliseconds(microseconds: int | None) -> int | None:
    """Converts a time to the form in a thread_uid: the low 48 bits of its milliseconds, rounded toward 1970."""
    if microseconds is None:
        return None
    return (-(-microseconds // 1000) if microseconds < 0 else microseconds // 1000) % 2**48


def is_name(salt: bytes | None, thread_id: str, commitment: bytes) -> bool:
    """Returns whether a commitment was computed from this name and this salt, which must have 16 bytes."""
    return salt is not None and len(salt) == SALT_BYTES and name_commitment(salt, thread_id) == commitment


def name_commitment(salt: bytes, thread_id: str) -> bytes:
    """Computes the commitment to a thread's name. Without the salt, nobody can use it to confirm a guess."""
    return sha256(_NAME + salt + thread_id.encode()).digest()


def genesis(thread_uid: UUID, tenant: str, name_commitment: bytes) -> bytes:
    """Computes the hash that comes before a thread's first entry, and so binds every entry to its thread."""
    return sha256(_GENESIS + b"compaction-store/v1\x00" + thread_uid.bytes + name_commitment + tenant.encode()).digest()


def commitment(salt: bytes, body: bytes) -> bytes:
    """Computes the commitment to content. Without the salt, nobody can use it to confirm a guess."""
    return sha256(_CONTENT + salt + body).digest()


def meta_commitment(salt: bytes, meta: bytes) -> bytes:
    return sha256(_META + salt + meta).digest()


def _field(value: bytes | str | int | None) -> bytes:
    if value is None:
        return _ABSENT
    if isinstance(value, bool):
        value = bytes((value,))
    elif isinstance(value, int):
        value = _INTEGER.pack(value)
    elif isinstance(value, str):
        value = value.encode()
    return _LENGTH.pack(len(value)) + value


def message_header(**columns: Any) -> bytes:
    """Computes the header of a message from its columns and the commitment to its meta."""
    return _header("message", columns)


def compaction_header(**columns: Any) -> bytes:
    numbers = b"".join(map(_INTEGER.pack, columns["inputs"]))
    return _header("compaction", columns | {"inputs": numbers, "run_id": columns["run_id"].bytes})


def event_header(**columns: Any) -> bytes:
    if type(columns["critical"]) is not bool:
        raise TypeError
    return _header("event", columns)


def _header(kind: str, columns: dict[str, Any]) -> bytes:
    names = COLUMNS[kind] if kind != "message" else (*COLUMNS[kind], "meta_commitment")
    if len(columns) != len(names):
        raise TypeError
    return b"".join(map(_field, (kind, *(columns[name] for name in names))))


def entry(previous: bytes, pos: int, ordinal: int, microseconds: int, commitment: bytes, header: bytes) -> bytes:
    """Computes the hash of an entry, with the hash of the previous one. `ordinal` is as in `Entry`."""
    return sha256(_ENTRY + previous + _ENTRY_NUMBERS.pack(pos, ordinal, microseconds) + commitment + header).digest()


def microseconds(moment: datetime) -> int:
    """Converts a time to the form that is hashed: whole microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND
