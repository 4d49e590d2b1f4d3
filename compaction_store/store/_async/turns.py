"""Turns on threads. A turn is a lease in the database, and holds no connection or lock: a waiting turn polls."""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self
from uuid import UUID, uuid4

from compaction_store import arguments, errors, waiting
from compaction_store.models import Appended, Span
from compaction_store.postgres import queries
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import ThreadKey
from compaction_store.postgres.queries.functions import TakeTurnRow
from compaction_store.rendering.view import Rendered, View
from compaction_store.store._async.appends import Metas
from compaction_store.store.lease_keeper import AsyncLeaseKeeper

# The seconds that ending a turn may take, and the seconds that a request for a turn gets at least.
_LEAVE_SECONDS = 2.0
_LEAST_SECONDS = 2.0


class AsyncTurn:
    """The exclusive right to a thread among callers that take turns.

    The store's method `turn` makes a turn, a context manager that can be entered once. `last_seq` and `head` are the
    thread's when the turn begins; each append through the turn updates them. `head` is None for a thread that does not
    exist yet. `until` is the end of the lease by the server's clock. `lost` is true if the turn is known to have lost
    the thread.
    """

    def __init__(
        self,
        db: AsyncConnections,
        append: Callable[..., Any],
        thread: ThreadKey,
        *,
        actor: str | None,
        wait: float,
        lease: float,
    ) -> None:
        self.turn_id: UUID = uuid4()
        self.last_seq = 0
        self.head: bytes | None = None
        self.until: datetime | None = None
        self.lost = False
        self._db = db
        self._append = append
        self._thread = thread
        self._actor = actor
        self._wait = wait
        self._lease = lease
        self._began = False
        self._is_over = False
        self._first_seq = 1
        self._own: list[Span] = []
        self._keeper: AsyncLeaseKeeper[bool | None] | None = None

    @property
    def thread_id(self) -> str:
        """The name of the turn's thread."""
        return self._thread.thread_id

    async def append(
        self,
        messages: Any,
        *,
        key: str | None = None,
        expected_seq: int | None = None,
        expected_head: bytes | None = None,
        view: View | Rendered | None = None,
        meta: Metas = None,
        tokens: int | Sequence[int] | None = None,
        actor: str | None = None,
        subject: str | None = None,
        durable: bool = True,
        raw: bool = False,
    ) -> Appended:
        """Appends as the store's `append` does. Raises `TurnLost` if the turn has lost the thread.

        `expected_seq=turn.last_seq` refuses the append if anybody has appended outside of the turn.
        `expected_head=turn.head` refuses it if anybody has written anything else to the thread.
        """
        appended: Appended = await self._append(
            self.thread_id, messages, key=key, expected_seq=expected_seq, expected_head=expected_head, view=view,
            meta=meta, tokens=tokens, turn=self, actor=self._actor if actor is None else actor,
            subject=subject, durable=durable, raw=raw,
        )  # fmt: skip
        return appended

    async def renew(self) -> datetime:
        """Extends the lease and returns its end. Only code that blocks the renewal in the background needs this."""
        self.check(self._thread)
        with self.watching():
            self.until = until = await self._db.call(queries.renew_turn, self._thread, self.turn_id, self._lease)
        return until

    async def others(self) -> tuple[Span, ...]:
        """Returns the spans of messages that were appended since the turn began, but not through the turn."""
        self.check(self._thread)
        try:
            row = await self._db.call(queries.thread, self._thread)
        except errors.ThreadNotFound:
            return ()
        return gaps(self._own, self._first_seq, row.last_seq)

    # ---- used by the store for an append in a turn

    def check(self, thread: ThreadKey) -> None:
        """Raises `InvalidInput` if the turn has not begun or is on another thread."""
        if not self._began:
            raise errors.InvalidInput("a turn must be entered with `with` or `async with` before it is used")
        if thread != self._thread:
            raise errors.InvalidInput(f"turn must be a turn on thread {thread.thread_id!r}, not on {self.thread_id!r}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Marks the turn as lost if the body of the `with` statement raises `TurnLost`."""
        try:
            yield
        except errors.TurnLost:
            self.lost = not self._is_over
            raise

    async def write(self, append: Callable[[], Any]) -> Appended:
        """Runs an append to its end even if the task is cancelled: it is often all that is left of an answer."""

        async def noted() -> Appended:
            with self.watching():
                appended: Appended = await append()
            self._note(appended)
            return appended

        return await waiting.finished(noted)

    def _note(self, appended: Appended) -> None:
        """Records which messages were appended through the turn."""
        span = Span(appended[0].seq, appended[-1].seq)
        if span.start_seq < self._first_seq or any(own.start_seq <= span.start_seq <= own.end_seq for own in self._own):
            # The append was a replay: its messages were stored earlier, before or during this turn.
            return
        if self._own and self._own[-1].end_seq + 1 == span.start_seq:
            self._own[-1] = Span(self._own[-1].start_seq, span.end_seq)
        else:
            self._own.append(span)
        if span.end_seq > self.last_seq:
            self.last_seq, self.head = span.end_seq, appended.head

    # ---- beginning and ending the turn

    async def __aenter__(self) -> Self:
        if self._began:
            raise errors.InvalidInput("a turn must be entered only once; call turn() to get another turn")
        self._began = True
        # The copy can be used even if the store is closed before the turn ends.
        leave = partial(_leave, self._db, copy(self._db), self._thread, self.turn_id)
        self._keeper = keeper = AsyncLeaseKeeper(self, AsyncTurn._renew, leave, self._lease / 3)
        try:
            await self._take()
            keeper.start()
        except BaseException as error:
            # Leave the queue: otherwise the turns behind this one would wait until its place expires.
            self._is_over = True
            # After an error of the database, the deadline may have passed already.
            await keeper.end(0 if isinstance(error, errors.DatabaseError) else _LEAVE_SECONDS)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        try:
            had = None if self._keeper is None else await self._keeper.end(_LEAVE_SECONDS)
        except CancelledError:
            if isinstance(error, CancelledError):
                # The body was cancelled too. Its error is the one that an outer scope expects.
                return
            raise
        if had is False:
            self.lost = True
        if self.lost and error is None:
            what = "the turn was lost before it ended: messages of others may be between those of the turn"
            raise errors.TurnLost(f"{what}{arguments.about(self.thread_id)}")

    async def _take(self) -> None:
        moved = time.monotonic()
        end = moved + self._wait
        place = 0
        while True:
            left = end - time.monotonic()
            db = self._db.with_at_most(max(left, _LEAST_SECONDS))
            # If the task is cancelled, the request ends before the turn leaves the queue: a request that came after
            # that would get a turn that nobody has.
            ask = partial(db.call, queries.take_turn, self._thread, self.turn_id, self._actor, self._lease, left > 0)
            found = await waiting.finished(ask)
            if found.place == 0:
                break
            if left <= 0:
                raise timeout(found, self._wait, self.thread_id)
            if found.place != place:
                place, moved = found.place, time.monotonic()
            await self._db.sleep(min(pause(place, time.monotonic() - moved), left))
        self.until, self.last_seq, self.head = found.held_until, found.last_seq or 0, found.head
        self._first_seq = self.last_seq + 1

    async def _renew(self) -> bool:
        """Renews the lease in the background; returns whether to continue."""
        try:
            with self.watching():
                db = self._db.with_at_most(self._lease / 3)
                self.until = await db.call(queries.renew_turn, self._thread, self.turn_id, self._lease)
        except errors.TurnLost:
            return False
        except errors.CompactionStoreError:
            # The next attempt comes before the lease ends.
            return True
        return True


async def _leave(
    store: AsyncConnections, db: AsyncConnections, thread: ThreadKey, turn_id: UUID, seconds: float
) -> bool | None:
    """Ends the turn and returns whether it had the thread until now; None if the database does not answer."""
    try:
        with suppress(errors.CompactionStoreError):
            return await db.with_at_most(seconds).call(queries.leave_turn, thread, turn_id)
        return None
    finally:
        if store.closed:
            # The call has opened a connection again.
            await store.close()


# ---- waiting

LONGEST_WAIT = 86_400
LONGEST_LEASE = 3_600
_FIRST_PAUSE = 0.008
# The pause is this fraction of the time since the turn's place in the queue last changed, within limits.
_PART = 0.3
# The longest pauses of the first turn in the queue and of the others. A turn that does not poll for 5 seconds loses its
# place.
_LONGEST_FIRST = 0.25
_LONGEST_PAUSE = 0.5


def check_seconds(value: object, what: str, *, least: int, most: int) -> None:
    if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]
        raise errors.InvalidInput(
            f"{what} must be a number of seconds from {least} to {most:,}{arguments.other(value)}"
        )


def pause(place: int, since: float) -> float:
    """Returns the seconds to the next poll: more for a late place in the queue, and for one that is long the same."""
    return min(max(_FIRST_PAUSE * place, _PART * since), _LONGEST_FIRST if place == 1 else _LONGEST_PAUSE)


def timeout(found: TakeTurnRow, waited: float, thread_id: str) -> errors.TurnTimeout:
    """Makes the error for a turn that waited too long."""
    ahead = found.place - 1
    who = "another turn" if found.holder is None else f"the turn of {found.holder!r}"
    if found.held_until is None:
        what = "the thread is reserved for turns that were requested earlier"
    else:
        what = f"{who} has the thread, until {found.held_until:%Y-%m-%d %H:%M:%S%z} unless it is renewed"
    behind = f"; turns ahead in the queue: {ahead}" if ahead else ""
    return errors.TurnTimeout(
        f"{what}{behind}; waited {waited:g} seconds{arguments.about(thread_id)}",
        actor=found.holder, login=found.holder_login, until=found.held_until, ahead=ahead,
    )  # fmt: skip


def gaps(own: Iterable[Span], first: int, last: int) -> tuple[Span, ...]:
    """Returns the spans from `first` to `last` that are not in `own`."""
    return tuple(_gaps(own, first, last))


def _gaps(own: Iterable[Span], first: int, last: int) -> Iterator[Span]:
    for span in sorted(own):
        if span.start_seq > first:
            yield Span(first, span.start_seq - 1)
        first = max(first, span.end_seq + 1)
    if first <= last:
        yield Span(first, last)
