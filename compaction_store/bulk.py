"""Messages as the rows that COPY takes, chained: what goes through the bulk door, made without the driver."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol
from uuid import UUID

from compaction_store import chain

# Enough for a slow line; the deadline of a chunk is longer by its bytes over this.
SLOWEST_BYTES_A_SECOND = 512 * 1024
_BLOCK_BYTES = 64 * 1024

COLUMNS = (
    "thread_uid", "seq", "pos", "created_at", "tokens", "salt", "commitment", "entry", "call_size", "key", "tenant",
    "role", "counter", "meta_commitment", "meta", "payload",
)  # fmt: skip
_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
# The columns of one width, from thread_uid to entry, each after its length in bytes; first of all, how many columns.
_FIXED = struct.Struct(">h i16s iq iq iq ii i16s i32s i32s")
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)
_NO_META = bytes(32)
# Postgres counts from the year 2000.
_POSTGRES_EPOCH = 946_684_800_000_000


class Row(NamedTuple):
    """A message that was checked and counted. Its text is in UTF-8, as it is hashed and as it is sent."""

    body: bytes
    role: str | None
    counter: str
    tokens: int
    meta: bytes | None

    def __repr__(self) -> str:
        return f"Row(role={self.role!r}, tokens={self.tokens}, …)"


class Standing(NamedTuple):
    """Where a thread stands under its lock, and the chunk that was stored under the key before, if one was."""

    last_seq: int
    last_pos: int
    head: bytes
    microseconds: int
    found_seq: int | None
    found_size: int | None


class Chunk(NamedTuple):
    """Asks for some messages to be stored; the answer is the first seq, the size, and whether it was there before.

    The salts, 16 bytes for each message, are those of every attempt: so the chunk knows itself again when it was stored
    and the answer was lost.
    """

    key: str
    expected_seq: int | None
    rows: list[Row]
    salts: bytes

    @property
    def size(self) -> int:
        return sum(len(row.body) + len(row.meta or b"") for row in self.rows)

    @property
    def seconds(self) -> float:
        return self.size / SLOWEST_BYTES_A_SECOND


class Placed(NamedTuple):
    first_seq: int
    size: int
    replayed: bool


class Place(Protocol):
    """Makes the blocks of a COPY from where the thread stands."""

    def __call__(self, thread_uid: UUID, tenant: str, chunk: Chunk, standing: Standing, /) -> Iterable[bytes]: ...


def blocks(thread_uid: UUID, tenant: str, chunk: Chunk, standing: Standing) -> Iterator[bytes]:
    """A chunk as COPY takes it in binary, in pieces, chained from where the thread stands.

    The driver's own way from values to bytes would cost more than all the hashing.
    """
    out = [_SIGNATURE]
    size = 0
    for fixed, texts, length, body in _rows(thread_uid, tenant, chunk, standing):
        out += (fixed, texts, length, body)
        size += len(fixed) + len(texts) + len(body)
        if size >= _BLOCK_BYTES:
            yield b"".join(out)
            out.clear()
            size = 0
    out.append(_TRAILER)
    yield b"".join(out)


def _rows(
    thread_uid: UUID, tenant: str, chunk: Chunk, standing: Standing
) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
    uid, head, microseconds = thread_uid.bytes, standing.head, standing.microseconds
    moment = microseconds - _POSTGRES_EPOCH
    call_size = len(chunk.rows) if len(chunk.rows) > 1 else None
    shapes: dict[tuple[str | None, str, int, bool], tuple[bytes, bytes]] = {}
    for i, (body, role, counter, tokens, meta) in enumerate(chunk.rows, 1):
        seq, pos = standing.last_seq + i, standing.last_pos + i
        salt = chunk.salts[16 * i - 16 : 16 * i]
        commitment = chain.commitment(salt, body)
        alike = (role, counter, tokens, meta is None)
        if i == 1:
            header, texts = _shape(tenant, *alike, key=chunk.key, call_size=call_size)
        elif shape := shapes.get(alike):
            header, texts = shape
        else:
            header, texts = shapes[alike] = _shape(tenant, *alike, key=None, call_size=None)
        if meta is None:
            texts += _NULL + _NULL
        else:
            meta_commitment = chain.meta_commitment(salt, meta)
            header += meta_commitment
            texts += _field(meta_commitment) + _field(meta)
        head = chain.entry(head, pos, seq, microseconds, chain.leaf(header, commitment))
        yield (
            _FIXED.pack(16, 16, uid, 8, seq, 8, pos, 8, moment, 4, tokens, 16, salt, 32, commitment, 32, head),
            texts, _LENGTH.pack(len(body)), body,
        )  # fmt: skip


def _shape(
    tenant: str, role: str | None, counter: str, tokens: int, bare: bool, *, key: str | None, call_size: int | None
) -> tuple[bytes, bytes]:
    """What messages alike have in common: the header, up to the meta's commitment where there is one, and columns."""
    header = chain.message_header(
        role=role, tokens=tokens, counter=counter, key=key, call_size=call_size, receipt=None,
        meta_commitment=None if bare else _NO_META,
    )  # fmt: skip
    size = None if call_size is None else _LENGTH.pack(call_size)
    texts = (None if value is None else value.encode() for value in (key, tenant, role, counter))
    columns = b"".join(map(_field, (size, *texts)))
    return header if bare else header[: -len(_NO_META)], columns


def _field(value: bytes | None) -> bytes:
    return _NULL if value is None else _LENGTH.pack(len(value)) + value
