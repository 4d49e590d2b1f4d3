"""Imports of whole threads: what is asked of the database and when, and the chained rows that COPY takes.

Pure, so that both faces load by the same rules. A load is a row of chunks, each one transaction under its own key: the
load's key for the first, and for the others that key and how many of the load's messages stand before. A chunk that is
there already is held against the messages that come, commitment by commitment, instead of being stored again. So a
load that was cut off goes on where it stood, whatever the sizes of its chunks.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

from compaction_store import chain, payload
from compaction_store.errors import IdempotencyConflict, InvalidInput, InvalidMessage
from compaction_store.tokens import BY_CALLER, Counter

# What one transaction stores: few enough that another writer of the thread hardly waits.
CHUNK_MESSAGES = 10_000
CHUNK_BYTES = 16 * 1024 * 1024
PAGE = 1000
# Enough for a slow line; the deadline of a chunk is longer by its bytes over this.
SLOWEST_BYTES_A_SECOND = 512 * 1024
_BLOCK_BYTES = 64 * 1024
_TURN_SECONDS = 0.005

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


@dataclass(frozen=True, slots=True)
class ToLoad:
    """A message to load, with its own meta and its own tokens."""

    message: Any = field(repr=False)
    meta: Mapping[str, Any] | None = field(default=None, repr=False)
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load did. `added` of its `count` messages were not there before; others may stand between its chunks."""

    first_seq: int
    last_seq: int
    count: int
    added: int


class Row(NamedTuple):
    """A message that was checked and counted. Its text is in UTF-8, as it is hashed and as it is sent."""

    body: bytes
    role: str | None
    counter: str
    tokens: int
    meta: bytes | None


class Standing(NamedTuple):
    """Where a thread stands under its lock, and the chunk that was stored under the key before, if one was."""

    last_seq: int
    last_pos: int
    head: bytes
    microseconds: int
    found_seq: int | None
    found_size: int | None


class Find(NamedTuple):
    """Asks for the first seq and the size of the chunk under a key, or None."""

    key: str


class Compare(NamedTuple):
    """Asks for the seq, salt and commitment of some messages, in order."""

    first_seq: int
    limit: int


class Chunk(NamedTuple):
    """Asks for some messages to be stored; the answer is the first seq, the size, and whether it was there before."""

    key: str
    expected_seq: int | None
    rows: list[Row]

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


class End:
    """Sent in the place of a message when there are no more."""


Request = Find | Compare | Chunk
Messages = Iterable[Any]
AsyncMessages = Iterable[Any] | AsyncIterable[Any]
_T = TypeVar("_T")
_Steps = Generator[Request | None, Any, _T]


class Load:
    """One load, from its first message to its last: `send` tells what it wants next.

    That is a request, to be sent the database's answer, or None, to be sent the next message and at last `End`.
    """

    def __init__(
        self, key: str, counter: Counter, meta: Mapping[str, Any] | None, tokens: int | None, expected_seq: int | None
    ) -> None:
        self.key = key
        self.stored = 0
        self._counter = counter
        self._meta = payload.encode_meta(meta)
        self._tokens = None if tokens is None else checked_tokens(tokens)
        self._expected_seq = expected_seq
        self._read = 0
        self._ended = False
        # Messages that were made ready for a chunk which somebody else stored first.
        self._waiting: deque[Row] = deque()
        self._first_seq = self._last_seq = self._added = 0
        self._steps = self._run()

    def progress(self) -> str:
        return f"{self.stored:,} messages of the load are stored; the same messages with key={self.key!r} go on there"

    def send(self, answer: Any) -> Request | None:
        try:
            return self._steps.send(answer)
        except StopIteration:
            return None

    def result(self) -> Loaded:
        return Loaded(self._first_seq, self._last_seq, self.stored, self._added)

    def _run(self) -> _Steps[None]:
        while True:
            key = self.key if self.stored == 0 else f"{self.key}#{self.stored}"
            placed: Placed | None = None
            found: tuple[int, int] | None = yield Find(key)
            if found is None:
                rows = yield from self._gather()
                if not rows:
                    break
                placed = yield Chunk(key, self._expected_seq if self.stored == 0 else None, rows)
                if placed.replayed:
                    self._waiting.extendleft(reversed(rows))
                    found = placed.first_seq, placed.size
            if found is not None:
                placed = Placed(*found, replayed=True)
                yield from self._compare(placed)
            assert placed is not None  # noqa: S101 — one of the two ways gave it
            self._first_seq = self._first_seq or placed.first_seq
            self._last_seq = placed.first_seq + placed.size - 1
            self._added += 0 if placed.replayed else placed.size
            self.stored += placed.size
        if not self.stored:
            raise InvalidMessage("a load needs at least one message; was its iterator used up before?")

    def _gather(self) -> _Steps[list[Row]]:
        rows: list[Row] = []
        size = 0
        while len(rows) < CHUNK_MESSAGES and size < CHUNK_BYTES:
            row = yield from self._next(counted=True)
            if row is None:
                break
            rows.append(row)
            size += len(row.body)
        return rows

    def _compare(self, placed: Placed) -> _Steps[None]:
        first = placed.first_seq
        end = first + placed.size
        while first < end:
            stored = yield Compare(first, min(PAGE, end - first))
            for seq, salt, commitment in stored:
                row = yield from self._next(counted=False)
                if row is None or salt is None or chain.commitment(salt, row.body) != commitment:
                    raise IdempotencyConflict(f"the load's key was used before, and for something else at seq {seq}")
            first += len(stored)

    def _next(self, *, counted: bool) -> _Steps[Row | None]:
        if self._waiting:
            return self._waiting.popleft()
        if self._ended:
            return None
        message = yield None
        if message is End:
            self._ended = True
            return None
        self._read += 1
        try:
            return self._row(message, counted)
        except InvalidInput as refusal:
            refused = type(refusal)(
                f"message {self._read:,} of the load, of which {self.stored:,} are stored: {refusal}"
            )
        raise refused

    def _row(self, message: Any, counted: bool) -> Row:
        meta, tokens = self._meta, self._tokens
        if type(message) is ToLoad:
            if message.meta is not None:
                meta = payload.encode_meta(message.meta)
            if message.tokens is not None:
                tokens = checked_tokens(message.tokens)
            message = message.message
        text, size, role, plain = payload.encode(message)
        counter = BY_CALLER
        if tokens is None:
            counter = self._counter.name
            # A message that is only compared has its tokens already.
            tokens = checked_tokens(self._counter.tokens(plain, size)) if counted else 0
        return Row(text.encode(), role, counter, tokens, None if meta is None else meta.encode())


def checked_tokens(tokens: object) -> int:
    if type(tokens) is not int or not 0 <= tokens < 2**31:
        raise InvalidInput("tokens are whole numbers from 0 to 2,147,483,647")
    return tokens


def blocks(thread_uid: UUID, tenant: str, chunk: Chunk, standing: Standing) -> Iterator[bytes]:
    """A chunk as COPY takes it in binary, in pieces, chained from where the thread stands.

    Made by hand, because the driver's way from values to bytes costs more than all the hashing.
    """
    salts = os.urandom(16 * len(chunk.rows))
    seq, pos, head = standing.last_seq, standing.last_pos, standing.head
    shapes: dict[tuple[str | None, str, int, bool], tuple[bytes, bytes]] = {}
    uid = thread_uid.bytes
    moment = standing.microseconds - _POSTGRES_EPOCH
    out = [_SIGNATURE]
    size = 0
    key: str | None = chunk.key
    call_size = len(chunk.rows) if len(chunk.rows) > 1 else None
    for i, (body, role, counter, tokens, meta) in enumerate(chunk.rows):
        seq += 1
        pos += 1
        salt = salts[16 * i : 16 * i + 16]
        commitment = chain.commitment(salt, body)
        shape = None if key else shapes.get((role, counter, tokens, meta is None))
        if shape is None:
            shape = _shape(tenant, key, call_size, role, counter, tokens, meta is None)
            if key is None:
                shapes[role, counter, tokens, meta is None] = shape
            key = call_size = None
        header, columns = shape
        if meta is None:
            rest = columns + _NULL + _NULL
        else:
            meta_commitment = chain.meta_commitment(salt, meta)
            header += meta_commitment
            rest = columns + _field(meta_commitment) + _field(meta)
        head = chain.entry(head, pos, seq, standing.microseconds, chain.leaf(header, commitment))
        out += (
            _FIXED.pack(16, 16, uid, 8, seq, 8, pos, 8, moment, 4, tokens, 16, salt, 32, commitment, 32, head),
            rest, _LENGTH.pack(len(body)), body,
        )  # fmt: skip
        size += len(body) + 300
        if size >= _BLOCK_BYTES:
            yield b"".join(out)
            out.clear()
            size = 0
    out.append(_TRAILER)
    yield b"".join(out)


def _shape(
    tenant: str, key: str | None, call_size: int | None, role: str | None, counter: str, tokens: int, bare: bool
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


class Source:
    """A caller's messages, one by one."""

    def __init__(self, messages: Messages) -> None:
        _check(messages)
        self._messages = messages

    def __iter__(self) -> Iterator[Any]:
        return iter(self._messages)


class AsyncSource(AsyncIterator[Any]):
    """A caller's messages, one by one, whether they must be awaited or not; the event loop has its turns between."""

    def __init__(self, messages: AsyncMessages) -> None:
        self._async = aiter(messages) if isinstance(messages, AsyncIterable) else None
        if not isinstance(messages, AsyncIterable):
            _check(messages)
            self._sync = iter(messages)
        self._turn = time.monotonic()

    async def __anext__(self) -> Any:
        if time.monotonic() - self._turn > _TURN_SECONDS:
            await asyncio.sleep(0)
            self._turn = time.monotonic()
        if self._async is not None:
            return await anext(self._async)
        try:
            return next(self._sync)
        except StopIteration:
            raise StopAsyncIteration from None


def _check(messages: object) -> None:
    if payload.is_one(messages):
        raise InvalidMessage("a load takes several messages: a list, or an iterator of them")
