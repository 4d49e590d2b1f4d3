"""Encodes chunks of loads as arguments of the SQL functions `load` and `load_threads`, faster than the driver does."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

# The rate of a slow network: the deadline of a chunk is extended by its size divided by this.
SLOWEST_BYTES_A_SECOND = 512 * 1024
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)
# The header of a binary array: one dimension, whether it has nulls, the type, the length, the first index.
_ARRAY = struct.Struct(">iiiii")
_TEXT, _INT4 = 25, 23


class Row(NamedTuple):
    """A message that was checked and counted. Its text is in UTF-8, as it is hashed and sent."""

    body: bytes
    role: str | None
    counter: str
    tokens: int
    meta: bytes | None

    @property
    def size(self) -> int:
        return len(self.body) + len(self.meta or b"")

    def encoded(self, encoding: str) -> Row:
        """Returns the row with its texts in another encoding."""
        meta = None if self.meta is None else self.meta.decode().encode(encoding)
        return self._replace(body=self.body.decode().encode(encoding), meta=meta)

    def __repr__(self) -> str:
        return f"Row(role={self.role!r}, tokens={self.tokens}, …)"


class Chunk(NamedTuple):
    """A request to store some messages.

    `salts` has 16 bytes for each message. Every attempt sends the same ones, so that a chunk that was stored is
    recognized if its response was lost.
    """

    key: str
    expected_seq: int | None
    rows: list[Row]
    salts: bytes

    @property
    def size(self) -> int:
        return sum(row.size for row in self.rows)

    @property
    def seconds(self) -> float:
        return self.size / SLOWEST_BYTES_A_SECOND


class Placed(NamedTuple):
    """Where a chunk is stored. `replayed` says that it was stored before."""

    first_seq: int
    size: int
    replayed: bool
    thread_uid: UUID


def values(
    thread_uid: UUID | None, tenant: str, thread_id: str, chunk: Chunk, encoding: str
) -> tuple[bytes | str | None, ...]:
    """Returns the arguments of `load` in binary, in its order, with texts in the connection's encoding."""
    rows = chunk.rows
    if encoding != "utf-8":
        rows = [row.encoded(encoding) for row in rows]
    return (
        None if thread_uid is None else thread_uid.bytes, tenant, thread_id,
        _array(_TEXT, [row.body for row in rows]), chunk.salts, *_columns(rows, encoding), chunk.key,
        None if chunk.expected_seq is None else chunk.expected_seq.to_bytes(8),
    )  # fmt: skip


def values_of_threads(
    tenant: str, chunks: Sequence[tuple[str, Chunk]], encoding: str
) -> tuple[bytes | str | None, ...]:
    """Returns the arguments of `load_threads` in binary: chunks with the names of their threads."""
    rows = [row for _, chunk in chunks for row in chunk.rows]
    if encoding != "utf-8":
        rows = [row.encoded(encoding) for row in rows]
    return (
        tenant,
        _array(_TEXT, [thread_id.encode(encoding) for thread_id, _ in chunks]),
        _array(_TEXT, [chunk.key.encode(encoding) for _, chunk in chunks]),
        _array(_INT4, [_LENGTH.pack(len(chunk.rows)) for _, chunk in chunks]),
        _array(_TEXT, [row.body for row in rows]),
        b"".join([chunk.salts for _, chunk in chunks]),
        *_columns(rows, encoding),
    )


def _columns(rows: Sequence[Row], encoding: str) -> tuple[bytes | None, ...]:
    """Returns the roles, tokens, counters and metas. Both functions have them in this order."""
    metas = None if all(row.meta is None for row in rows) else _array(_TEXT, [row.meta for row in rows])
    return (
        _array(_TEXT, [_bytes(row.role, encoding) for row in rows]),
        _array(_INT4, [_LENGTH.pack(row.tokens) for row in rows]),
        _array(_TEXT, [_bytes(row.counter, encoding) for row in rows]), metas,
    )  # fmt: skip


def _bytes(value: str | None, encoding: str) -> bytes | None:
    return None if value is None else value.encode(encoding)


def _array(kind: int, items: Sequence[bytes | None]) -> bytes:
    parts = [_ARRAY.pack(1, None in items, kind, len(items), 1)]
    for item in items:
        if item is None:
            parts.append(_NULL)
        else:
            parts += (_LENGTH.pack(len(item)), item)
    return b"".join(parts)
