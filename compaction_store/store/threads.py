"""The threads that a store works with: the last seqs that it received, and the keys by which queries find threads.

After a thread is erased, another thread may get its name. Then a call by name reads the other thread, unless the name
is bound with `pinned`.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

from compaction_store import arguments
from compaction_store.errors import InvalidInput, ThreadErased, UnknownEntry
from compaction_store.integrity import erasure
from compaction_store.models import Thread

if TYPE_CHECKING:
    from compaction_store.postgres.queries import ThreadKey

# Any store or reader. This module must not import them, because they import it.
S = TypeVar("S", bound=Any)
_MOST = 10_000


class KnownThread(NamedTuple):
    """The thread that had a name at the last append, and the last seq of this append."""

    thread_uid: UUID
    last_seq: int


class KnownThreads:
    """Up to 10,000 known threads by name. Several OS threads may use it without a lock: every step is atomic."""

    def __init__(self) -> None:
        self._threads: OrderedDict[str, KnownThread] = OrderedDict()

    def get(self, thread_id: str) -> KnownThread | None:
        return self._threads.get(thread_id)

    def put(self, thread_id: str, before: KnownThread | None, now: KnownThread) -> None:
        """Stores the last seq of an append. `before` is the entry that was known when the append began.

        A seq that is lower than the thread's known one is ignored, because concurrent appends may end in any order. But
        a seq that is not above that of `before` is stored: the thread has lost messages.
        """
        there = self._threads.get(thread_id)
        is_same = there is not None and there.thread_uid == now.thread_uid
        went_back = before is not None and now.last_seq <= before.last_seq
        if there is None or not is_same or went_back or now.last_seq > there.last_seq:
            self._threads[thread_id] = now
        if len(self._threads) > _MOST:
            self._threads.popitem(last=False)


def thread_key(tenant: str, thread_id: str) -> ThreadKey:
    """Returns the key of a thread to read. `thread_id` may be the name of an erased thread's stub."""
    # The help of a command needs this module, and no database.
    from compaction_store.postgres.queries import ThreadKey  # noqa: PLC0415

    arguments.check_thread_id(thread_id)
    return ThreadKey(None, tenant, thread_id)


def writable_key(tenant: str, thread_id: str) -> ThreadKey:
    """Returns the key of a thread to write. Refuses the stub of an erased thread and the log of a tenant."""
    key = thread_key(tenant, thread_id)
    if erasure.stub_uid(thread_id) is not None:
        raise ThreadErased(f"the thread was erased{arguments.about(thread_id)}")
    arguments.check_new_thread_id(tenant, thread_id)
    return key


def refuse_unknown(thread: Thread) -> None:
    """Raises an error if the thread has an entry that changes views and is unknown, as reading a view would."""
    if thread.unknown_pos is not None:
        raise UnknownEntry(
            f"the entry at pos {thread.unknown_pos} is of a kind that this release does not know"
            f"{arguments.about(thread.thread_id)}"
        )


def recency(place: object) -> tuple[datetime, UUID]:
    """Returns the time and the key in a thread's cursor."""
    given = place.cursor if isinstance(place, Thread) else place
    try:
        time, key = str(given).split("/")
        return datetime.fromisoformat(time).astimezone(UTC), UUID(key)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"after must be a thread, or its cursor, in a list by recency{arguments.other_choice(place)}"
        ) from None


def pinned(store: S, thread_id: str, thread_uid: UUID) -> S:
    """Returns a store of the same kind that finds this thread by the name, even if the name goes to another thread."""
    found: S = store._pinned(thread_id, thread_uid)  # noqa: SLF001 — for this package only
    return found


def impatient(store: S, seconds: float) -> S:
    """Returns a store of the same kind that stops trying to reach an unreachable server after some seconds."""
    # No plain copy: its methods that report to OpenTelemetry would be those of the store.
    other: S = store.of_tenant(store._tenant)  # noqa: SLF001 — for this package only
    other._db = store._db.with_patience(seconds)  # noqa: SLF001
    other._uids = store._uids  # noqa: SLF001
    return other
