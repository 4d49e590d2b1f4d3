"""Groups the threads of a call of `load.threads`, to store each group in one transaction. Does no I/O.

A thread that is long, or that has compactions to record, is not put into a group but loaded by itself, as
`load.messages` does.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compaction_store import arguments
from compaction_store.errors import Conflict, InvalidInput
from compaction_store.messages.keys import Key
from compaction_store.messages.load_chunk import Chunk
from compaction_store.models import ThreadLoaded
from compaction_store.postgres.calling import call
from compaction_store.postgres.queries import ThreadKey
from compaction_store.store import loading
from compaction_store.store.thread_keys import writable_key
from compaction_store.tokens import Counter

_PARTS = "(thread_id, messages) or (thread_id, messages, key)"
_LENGTHS = {2, 3}
Threads = Iterable[Any]
AsyncThreads = Iterable[Any] | AsyncIterable[Any]


class Options(NamedTuple):
    """The arguments of `load.threads` that apply to all threads."""

    tenant: str
    counter: Counter
    key: str
    meta: Mapping[str, Any] | None
    tokens: int | None
    actor: str | None
    skip_refused: bool
    expected_seq: int | None = None
    raw: bool = False


def check(threads: object) -> None:
    if isinstance(threads, Mapping | str | bytes) or not isinstance(threads, Iterable | AsyncIterable):
        raise InvalidInput(f"threads must be an iterable of {_PARTS}, not {type(threads).__name__}")


@dataclass
class Thread:
    """One thread of the load.

    `error` is set if the thread cannot be loaded. `is_whole` is true if all its messages were read ahead.
    """

    key: ThreadKey
    load: loading.Load
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
        return not self.is_whole or not len(self) or self.load.has_records()

    def is_enough(self) -> bool:
        """Returns whether to stop reading ahead."""
        return self.load.has_records() or len(self) >= loading.CHUNK_MESSAGES or self.size >= loading.CHUNK_BYTES

    def count(self) -> None:
        """Counts the tokens of the messages that were read ahead. Stores any exception as the thread's error."""
        if self.error is not None:
            return
        try:
            self.load.count_ahead()
        except Exception as error:  # noqa: BLE001 — raised after the threads before this one are stored
            self.error = error

    def is_refused(self, options: Options) -> bool:
        """Returns whether to report the thread's error instead of raising it."""
        return options.skip_refused and isinstance(self.error, Conflict | InvalidInput)

    def refused(self) -> ThreadLoaded:
        assert isinstance(self.error, Conflict | InvalidInput)  # noqa: S101 — `is_refused` returned True
        return ThreadLoaded(self.key.thread_id, None, self.error)


class Group:
    """Threads that are to be stored together, in the order in which they were given."""

    def __init__(self) -> None:
        self.threads: list[Thread] = []
        self._names: set[str] = set()
        self._messages = self._bytes = 0

    def has_room(self, thread: Thread) -> bool:
        if not self.threads:
            return True
        return (
            thread.key.thread_id not in self._names
            and self._messages + len(thread) <= loading.CHUNK_MESSAGES
            and self._bytes + thread.size <= loading.CHUNK_BYTES
        )

    def add(self, thread: Thread) -> None:
        self.threads.append(thread)
        self._names.add(thread.key.thread_id)
        self._messages += len(thread)
        self._bytes += thread.size

    def count(self) -> None:
        """Counts the tokens of all threads."""
        for thread in self.threads:
            thread.count()

    def chunks(self, options: Options) -> list[tuple[str, Chunk]]:
        """Returns the threads' names with their first chunks, up to the first thread whose error will be raised."""
        found = []
        for thread in self.threads:
            if thread.error is None:
                found.append((thread.key.thread_id, thread.load.first_chunk()))
            elif not thread.is_refused(options):
                break
        return found

    def key(self) -> str:
        """Returns the key of all threads, to repeat a call with an unknown outcome; `UNKEYED` if they have several."""
        keys = {thread.load.key for thread in self.threads}
        return keys.pop() if len(keys) == 1 else call.UNKEYED


def begin(given: object, options: Options) -> Thread:
    """Makes a Thread from an item that the caller gave. Does not read its messages."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or len(given) not in _LENGTHS:
        parts = f" of {len(given)}" if isinstance(given, list | tuple) else ""
        raise InvalidInput(f"a thread to load must be {_PARTS}, not {type(given).__name__}{parts}")
    thread_id, messages, *key = given
    if not isinstance(thread_id, str):
        arguments.check_thread_id(thread_id)
    load = loading.Load(
        Key(key[0]).text if key else options.key, options.counter, expected_seq=options.expected_seq, meta=options.meta,
        tokens=options.tokens, actor=options.actor, of_thread=arguments.about(thread_id), raw=options.raw,
    )  # fmt: skip
    thread = Thread(ThreadKey(None, options.tenant, thread_id), load, messages)
    try:
        writable_key(options.tenant, thread_id)
    except (Conflict, InvalidInput) as refusal:
        thread.error = refusal
    return thread
