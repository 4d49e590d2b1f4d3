"""Encodes chunks of a load as arguments of the SQL functions `load` and `load_threads`, faster than the driver does."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

# The speed of a slow network. The deadline of a chunk is extended by the time that sending it takes at this speed.
SLOWEST_BYTES_A_SECOND = 512 * 1024
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)
# The header of a binary array: the number of dimensions, whether it has nulls, the type, the length, the first index.
_ARRAY = struct.Struct(">iiiii")
_TEXT, _INT4 = 25, 23


class Row(NamedTuple):
    """A message that was checked and whose tokens were counted. Its texts are in UTF-8, as they are hashed."""

    body: bytes
    role: str | None
    counter: str
    tokens: int
    meta: bytes | None

    @property
    def size(self) -> int:
        return len(self.body) + len(self.meta or b"")

    def encoded(self, encoding: str) -> Row:
        """Returns the row with its texts in an encoding."""
        if encoding == "utf-8":
            return self
        meta = None if self.meta is None else self.meta.decode().encode(encoding)
        return self._replace(body=self.body.decode().encode(encoding), meta=meta)

    def __repr__(self) -> str:
        return f"Row(role={self.role!r}, tokens={self.tokens}, …)"


class Chunk(NamedTuple):
    """A request to store some messages. Every attempt has the same salts, by which the server recognizes it."""

    key: str
    expected_seq: int | None
    rows: list[Row]
    salts: bytes
    actor: str | None
    subject: str | None

    @property
    def size(self) -> int:
        return sum(row.size for row in self.rows)

    @property
    def seconds(self) -> float:
        return self.size / SLOWEST_BYTES_A_SECOND


class Placed(NamedTuple):
    """The place where a chunk is stored. `replayed` says whether an earlier attempt stored it."""

    first_seq: int
    size: int
    replayed: bool
    thread_uid: UUID


def values(
    thread_uid: UUID | None, tenant: str, thread_id: str, chunk: Chunk, encoding: str
) -> tuple[bytes | str | None, ...]:
    """Returns the binary arguments of `load` in their order, with texts in the connection's encoding."""
    rows = [row.encoded(encoding) for row in chunk.rows]
    return (
        None if thread_uid is None else thread_uid.bytes, tenant, thread_id,
        _array(_TEXT, [row.body for row in rows]), chunk.salts, *_columns(rows, encoding), chunk.key,
        None if chunk.expected_seq is None else chunk.expected_seq.to_bytes(8), chunk.actor,
        chunk.subject,
    )  # fmt: skip


def values_of_threads(
    tenant: str, chunks: Sequence[tuple[str, Chunk]], encoding: str
) -> tuple[bytes | str | None, ...]:
    """Returns the binary arguments of `load_threads`. `chunks` has pairs of a thread's name and a chunk."""
    rows = [row.encoded(encoding) for _, chunk in chunks for row in chunk.rows]
    return (
        tenant,
        _array(_TEXT, [thread_id.encode(encoding) for thread_id, _ in chunks]),
        _array(_TEXT, [chunk.key.encode(encoding) for _, chunk in chunks]),
        _array(_INT4, [_LENGTH.pack(len(chunk.rows)) for _, chunk in chunks]),
        _array(_TEXT, [row.body for row in rows]),
        b"".join([chunk.salts for _, chunk in chunks]),
        *_columns(rows, encoding), chunks[0][1].actor, chunks[0][1].subject,
    )  # fmt: skip


def _columns(rows: Sequence[Row], encoding: str) -> tuple[bytes | None, ...]:
    """Returns the arguments that both functions have in the same order: roles, tokens, counters and metas."""
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
