"""The steps of a load, without any I/O: `Load` yields requests to the database, and its caller answers them.

A load is stored in chunks, each in one transaction with its own key. The first chunk has the load's key; each later
chunk has that key followed by the number of the load's messages before the chunk. If a chunk is already stored, its
commitments are compared with the messages, and it is not stored again. An interrupted load therefore continues where it
stopped, even if the size of chunks has changed.

A provider's compaction may be reported by a message or given between two messages. It ends the chunk and is recorded
before the next chunk, so that the log has it at the right place. Its run_id is derived from the load's key and that
place.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from compaction_store import arguments
from compaction_store.errors import Conflict, IdempotencyConflict, InvalidInput, InvalidMessage
from compaction_store.integrity import chain
from compaction_store.messages import answers, encoding, provider_compactions
from compaction_store.messages.keys import Key
from compaction_store.messages.load_chunk import Chunk, Placed, Row
from compaction_store.messages.provider_compactions import Record
from compaction_store.models import Loaded, Observed, Payload, ThreadLoaded, ToLoad
from compaction_store.postgres.calling import call
from compaction_store.postgres.queries import ThreadKey
from compaction_store.rendering import acceptance
from compaction_store.store.threads import writable_key
from compaction_store.tokens import BY_CALLER, Counter

# The most messages and bytes of a transaction, small enough that other writers of the thread wait only briefly.
CHUNK_MESSAGES = 10_000
CHUNK_BYTES = 16 * 1024 * 1024
_PAGE = 1000
_TURN_SECONDS = 0.005


class FindChunk(NamedTuple):
    """Asks for the first seq, the size and the thread_uid of the chunk with a key, or None if there is no chunk."""

    key: str


class CountTokens(NamedTuple):
    """Asks the caller to run `Load.count` in a thread, because the payload takes long to count."""

    payload: Payload
    size: int

    def __repr__(self) -> str:
        return f"CountTokens(size={self.size}, …)"


class ReadCommitments(NamedTuple):
    """Asks for the seq, salt and commitment of up to `limit` messages, in order."""

    first_seq: int
    limit: int


class End:
    """The value to send after the last message."""


Request = CountTokens | FindChunk | ReadCommitments | Chunk | Record
Messages = Iterable[Any]
AsyncMessages = Iterable[Any] | AsyncIterable[Any]
_T = TypeVar("_T")
_Steps = Generator[Request | None, Any, _T]


class LoadOptions(NamedTuple):
    """The arguments of a load, or of `load.threads` for all threads."""

    tenant: str
    counter: Counter
    key: str
    meta: Mapping[str, Any] | None
    tokens: int | None
    actor: str | None
    skip_refused: bool = False
    expected_seq: int | None = None
    raw: bool = False
    subject: str | None = None


class Load:
    """The state of one load. `send` returns a request, to be answered, or None for the next message or `End`."""

    def __init__(self, options: LoadOptions, of_thread: str, in_memory: Iterator[Any] | None = None) -> None:
        self.key = options.key
        self.stored = 0
        self._of_thread = of_thread
        self._counter = options.counter
        self._meta = _meta(options.meta)
        self._tokens = None if options.tokens is None else _tokens(options.tokens)
        self._options = options
        self._read = 0
        self._ended = False
        # The next rows were encoded ahead, or must be compared with a chunk that another call stored first. After them
        # come the messages that were read ahead but not encoded.
        self._encoded: deque[Row] = deque()
        self._unencoded: deque[Any] = deque()
        self._in_memory = in_memory
        self._encode = encoding.encode if options.raw else acceptance.accepted
        self._log = provider_compactions.Log(options.key)
        # The salts of the first chunk if `load.threads` has sent it already. They show whether this load stored it.
        self._sent_salts = b""
        self._uncounted: list[tuple[int, str, int]] = []
        # Known after the first chunk. All later chunks must go to this thread, even if its name now belongs to another
        # thread.
        self.thread_uid: UUID | None = None
        self._first_seq = self._last_seq = self._added = self._recorded = 0
        self._steps = self._run()

    def progress(self) -> str:
        return f"{self.stored:,} messages of the load are stored; repeat it with key={self.key!r} to continue"

    def send(self, answer: Any) -> Request | None:
        try:
            return self._steps.send(answer)
        except StopIteration:
            return None

    def result(self) -> Loaded:
        return Loaded(self._first_seq, self._last_seq, self.stored, self._added, self._recorded)

    def parts(self, message: Any) -> list[Any]:
        """Returns the messages in an API's whole answer. Any other message is returned as it is."""
        if self._options.raw or type(message) is Observed:
            return [message]
        try:
            found = answers.unwrapped(message)
        except InvalidInput as refusal:
            refused = self._refused(refusal, self._read + 1)
        else:
            return [message] if found is None else found
        raise refused

    # ---- reading a whole thread ahead, to store it together with others

    def read_ahead(self, message: Any) -> int:
        """Checks and encodes a message and returns its size. If counting takes long, `count_ahead` does it."""
        if type(message) is Observed:
            self._take(message)
            return 0
        encoded, meta, tokens = self._read_one(message)
        counter = BY_CALLER
        if tokens is None:
            counter, tokens = self._counter.name, 0
            if self._counter.is_ours and not self._counter.takes_long(encoded.size):
                tokens = self.count(encoded.payload, encoded.size)
            else:
                # Keep the text: the caller may use the object again for the next message.
                self._uncounted.append((len(self._encoded), encoded.text, encoded.size))
        row = Row(encoded.text.encode(), encoded.role, counter, tokens, meta)
        self._encoded.append(row)
        return row.size

    def count_ahead(self) -> None:
        """Counts the tokens of the messages that were read ahead. May be called in another OS thread."""
        for place, text, size in self._uncounted:
            tokens = self.count(encoding.decode(text), size, place + 1)
            self._encoded[place] = self._encoded[place]._replace(tokens=tokens)
        self._uncounted.clear()

    @property
    def ahead(self) -> int:
        """The number of messages that were read ahead."""
        return len(self._encoded)

    @property
    def has_records(self) -> bool:
        """Whether a compaction was found among the messages that were read ahead."""
        return not self._log.is_empty()

    def first_chunk(self) -> Chunk:
        """Returns all messages that were read ahead as one chunk. If it cannot be stored, run the load as usual."""
        self._sent_salts = os.urandom(16 * len(self._encoded))
        return Chunk(self.key, None, list(self._encoded), self._sent_salts, self._options.actor, self._options.subject)

    def stored_whole(self) -> Loaded:
        """Returns the result if `first_chunk` was stored in a new thread and nothing follows it."""
        return Loaded(1, self.ahead, self.ahead, self.ahead)

    # ----

    def encode_ahead(self) -> Iterator[None]:
        """Encodes the next messages, one per step, while the database stores a chunk. Runs no code of the caller."""
        if self._in_memory is None or self._encoded or self._unencoded:
            return
        size = 0
        while len(self._encoded) < CHUNK_MESSAGES and size < CHUNK_BYTES:
            if (message := next(self._in_memory, End)) is End:
                return
            parts = self.parts(message)
            self._unencoded.extend(parts)
            row = self._encode_now(message) if len(parts) == 1 else None
            if row is None:
                return
            self._encoded.append(row)
            self._unencoded.clear()
            size += row.size
            yield

    def _encode_now(self, message: Any) -> Row | None:
        """Encodes the next message; returns None if that would take long or run the caller's code."""
        own = type(message) is ToLoad
        plain, meta = (message.message, message.meta) if own else (message, None)
        if type(plain) is not dict or not encoding.is_simple(plain) or not (meta is None or encoding.is_simple(meta)):
            return None
        try:
            encoded, own_meta, tokens = self._checked(message)
            counter = BY_CALLER
            if tokens is None:
                if not self._counter.is_ours or self._counter.takes_long(encoded.size):
                    return None
                counter, tokens = self._counter.name, self._counter.tokens(encoded.payload, encoded.size)
            self._log.add_message(plain, encoded.payload, self._read + 1)
        except InvalidInput:
            # `_next` raises the error when the load reaches this message.
            return None
        self._read += 1
        return Row(encoded.text.encode(), encoded.role, counter, tokens, own_meta)

    def _run(self) -> _Steps[None]:
        while True:
            if self.thread_uid is not None:
                for record in self._log.due(self.stored, self.thread_uid):
                    self._recorded += yield record
            key = self.key if self.stored == 0 else f"{self.key}#{self.stored}"
            placed: Placed | None = None
            salts = self._sent_salts if self.stored == 0 else b""
            found: tuple[int, int, UUID] | None = yield FindChunk(key)
            if found is None:
                rows = yield from self._gather()
                if not rows:
                    if self._log.is_due(self.stored):
                        continue
                    break
                salts = os.urandom(16 * len(rows))
                expected_seq = self._options.expected_seq if self.stored == 0 else None
                placed = yield Chunk(key, expected_seq, rows, salts, self._options.actor, self._options.subject)
                if placed.replayed:
                    self._encoded.extendleft(reversed(rows))
                    found = placed.first_seq, placed.size, placed.thread_uid
            if found is not None:
                placed = yield from self._compare(*found, salts)
            assert placed is not None  # noqa: S101 — set by one of the two branches
            self.thread_uid = placed.thread_uid
            self._log.note(self.stored + 1, placed.first_seq)
            self._first_seq = self._first_seq or placed.first_seq
            self._last_seq = placed.first_seq + placed.size - 1
            self._added += 0 if placed.replayed else placed.size
            self.stored += placed.size
        if not self.stored:
            raise InvalidMessage(
                f"messages must have at least one message, not none; was the iterator used before?{self._of_thread}"
            )

    def _gather(self) -> _Steps[list[Row]]:
        rows: list[Row] = []
        size = 0
        while len(rows) < CHUNK_MESSAGES and size < CHUNK_BYTES and (row := (yield from self._next(counted=True))):
            if self._log.is_due(self.stored + len(rows)):
                # The due record belongs between the last message and this one.
                self._encoded.appendleft(row)
                break
            rows.append(row)
            size += row.size
            if self._log.is_due(self.stored + len(rows)):
                break
        return rows

    def _compare(self, first: int, size: int, thread_uid: UUID, salts: bytes) -> _Steps[Placed]:
        """Compares a stored chunk with the load's messages. It is a replay unless the salts are those of this call."""
        placed = Placed(first, size, replayed=True, thread_uid=thread_uid)
        end = first + size
        while first < end:
            stored = yield ReadCommitments(first, min(_PAGE, end - first))
            for seq, salt, commitment in stored:
                row = yield from self._next(counted=False)
                if row is None:
                    raise IdempotencyConflict(f"the key was used before for a load of more messages{self._of_thread}")
                if salt is None or chain.commitment(salt, row.body) != commitment:
                    raise IdempotencyConflict(
                        f"the key was used before, with other or erased content at seq {seq}{self._of_thread}"
                    )
                if salt == salts[:16]:
                    placed = placed._replace(replayed=False)
            first += len(stored)
        return placed

    def _next(self, *, counted: bool) -> _Steps[Row | None]:
        if self._encoded:
            return self._encoded.popleft()
        if self._ended:
            return None
        while type(message := self._unencoded.popleft() if self._unencoded else (yield None)) is Observed:
            self._take(message)
        if message is End:
            self._ended = True
            return None
        encoded, meta, tokens = self._read_one(message)
        counter = BY_CALLER
        if tokens is None:
            counter, tokens = self._counter.name, 0
            # A message that is only compared needs no count: its tokens are stored already.
            if counted:
                long = self._counter.takes_long(encoded.size)
                plain, size = encoded.payload, encoded.size
                tokens = (yield CountTokens(plain, size)) if long else self.count(plain, size)
        return Row(encoded.text.encode(), encoded.role, counter, tokens, meta)

    def _read_one(self, message: Any) -> tuple[encoding.Encoded, bytes | None, int | None]:
        """Checks the next message. Returns the encoded message, its meta, and its tokens if they are given."""
        self._read += 1
        try:
            checked = self._checked(message)
            plain = message.message if type(message) is ToLoad else message
            self._log.add_message(plain, checked[0].payload, self._read)
        except InvalidInput as refusal:
            refused = self._refused(refusal, self._read)
        else:
            return checked
        raise refused

    def _take(self, given: Observed) -> None:
        """Adds a compaction that was given between two messages."""
        try:
            return self._log.add(given, self._read)
        except InvalidInput as refusal:
            refused = type(refusal)(f"after message {self._read:,} of the load: {refusal}{self._of_thread}")
        raise refused

    def _checked(self, message: Any) -> tuple[encoding.Encoded, bytes | None, int | None]:
        if type(message) is not ToLoad:
            return self._encode(message), self._meta, self._tokens
        meta = self._meta if message.meta is None else _meta(message.meta)
        tokens = self._tokens if message.tokens is None else _tokens(message.tokens)
        return self._encode(message.message), meta, tokens

    def count(self, plain: Payload, size: int, place: int | None = None) -> int:
        try:
            return self._counter.tokens(plain, size)
        except InvalidInput as refusal:
            refused = self._refused(refusal, place or self._read)
        raise refused

    def _refused(self, refusal: InvalidInput, place: int) -> InvalidInput:
        text = f"message {place:,} of the load, of which {self.stored:,} are stored: {refusal}{self._of_thread}"
        if isinstance(refusal, InvalidMessage):
            return type(refusal)(text, index=place - 1, path=refusal.path)
        return type(refusal)(text)


def _meta(meta: Mapping[str, Any] | None) -> bytes | None:
    text = encoding.encode_meta(meta)
    return None if text is None else text.encode()


def _tokens(tokens: object) -> int:
    if type(tokens) is not int or not 0 <= tokens < 2**31:
        raise InvalidInput(f"tokens must be an integer from 0 to 2,147,483,647{arguments.other(tokens)}")
    return tokens


class Source:
    """Iterates over the messages that the caller gave."""

    def __init__(self, messages: Messages) -> None:
        _check(messages)
        self._messages = iter(messages)
        self.in_memory = self._messages if type(messages) in {list, tuple} else None

    def __iter__(self) -> Iterator[Any]:
        return self._messages


class AsyncSource(AsyncIterator[Any]):
    """Iterates over the messages that the caller gave, async or not, and regularly lets the event loop run."""

    def __init__(self, messages: AsyncMessages) -> None:
        self._async = aiter(messages) if isinstance(messages, AsyncIterable) else None
        if not isinstance(messages, AsyncIterable):
            _check(messages)
            self._sync = iter(messages)
        self.in_memory = self._sync if type(messages) in {list, tuple} else None
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
    if encoding.is_one(messages):
        raise InvalidMessage(f"messages must be a list or an iterator of messages, not {type(messages).__name__}")


# ---- many threads: short ones are grouped, to store each group in one transaction
# A thread that is long, or that has compactions to record, is loaded by itself, as `load.messages` does.

_PARTS = "(thread_id, messages) or (thread_id, messages, key)"
_LENGTHS = {2, 3}
Threads = Iterable[Any]
AsyncThreads = Iterable[Any] | AsyncIterable[Any]


def check(threads: object) -> None:
    if isinstance(threads, Mapping | str | bytes) or not isinstance(threads, Iterable | AsyncIterable):
        raise InvalidInput(f"threads must be an iterable of {_PARTS}, not {type(threads).__name__}")


@dataclass
class ThreadToLoad:
    """One thread of the load. `error` is set if it cannot be loaded, `is_whole` if all its messages were read ahead."""

    key: ThreadKey
    load: Load
    messages: Any = field(repr=False)
    source: Any = field(default=None, repr=False)
    size: int = 0
    is_whole: bool = False
    error: Exception | None = None

    def __len__(self) -> int:
        return self.load.ahead

    @property
    def is_alone(self) -> bool:
        """Whether the thread must be loaded alone, because it is not whole, is empty, or has compactions to record."""
        return not self.is_whole or not len(self) or self.load.has_records

    def is_enough(self) -> bool:
        """Returns whether to stop reading ahead."""
        return self.load.has_records or len(self) >= CHUNK_MESSAGES or self.size >= CHUNK_BYTES

    def refused(self, options: LoadOptions) -> ThreadLoaded | None:
        """Returns a result with the thread's error, or None if there is none or it is to be raised."""
        is_told = options.skip_refused and isinstance(self.error, Conflict | InvalidInput)
        return ThreadLoaded(self.key.thread_id, None, self.error) if is_told else None


class Group:
    """Threads that are to be stored together, in the order in which they were given."""

    def __init__(self) -> None:
        self.threads: list[ThreadToLoad] = []
        self._names: set[str] = set()
        self._messages = self._bytes = 0

    def has_room(self, thread: ThreadToLoad) -> bool:
        fits = self._messages + len(thread) <= CHUNK_MESSAGES and self._bytes + thread.size <= CHUNK_BYTES
        return not self.threads or (fits and thread.key.thread_id not in self._names)

    def add(self, thread: ThreadToLoad) -> None:
        self.threads.append(thread)
        self._names.add(thread.key.thread_id)
        self._messages += len(thread)
        self._bytes += thread.size

    def count(self) -> None:
        """Counts the tokens of all threads that were read ahead. An exception becomes the thread's error."""
        for thread in self.threads:
            try:
                if thread.error is None:
                    thread.load.count_ahead()
            except Exception as error:  # noqa: BLE001 — raised after the threads before this one are stored
                thread.error = error

    def chunks(self, options: LoadOptions) -> list[tuple[str, Chunk]]:
        """Returns the threads' names with their first chunks, up to the first thread whose error will be raised."""
        found = []
        for thread in self.threads:
            if thread.error is None:
                found.append((thread.key.thread_id, thread.load.first_chunk()))
            elif thread.refused(options) is None:
                break
        return found

    def key(self) -> str:
        """Returns the key of all threads, to repeat a call with an unknown outcome; `UNKEYED` if they have several."""
        keys = {thread.load.key for thread in self.threads}
        return keys.pop() if len(keys) == 1 else call.UNKEYED


def begin(given: object, options: LoadOptions) -> ThreadToLoad:
    """Makes a thread to load from an item that the caller gave. Does not read its messages."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or len(given) not in _LENGTHS:
        parts = f" of {len(given)}" if isinstance(given, list | tuple) else ""
        raise InvalidInput(f"a thread to load must be {_PARTS}, not {type(given).__name__}{parts}")
    thread_id, messages, *key = given
    if not isinstance(thread_id, str):
        arguments.check_thread_id(thread_id)
    load = Load(options._replace(key=Key(key[0]).text) if key else options, arguments.about(thread_id))
    thread = ThreadToLoad(ThreadKey(None, options.tenant, thread_id), load, messages)
    try:
        writable_key(options.tenant, thread_id)
    except (Conflict, InvalidInput) as refusal:
        thread.error = refusal
    return thread
