"""The synchronous face of reading: opening and closing, messages, views and threads.

Every file of this package is derived from `_async` by `scripts/unasync.py`: edit those.
"""

from __future__ import annotations

from collections.abc import Iterator, Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from compaction_store import arguments, embedded, tokens
from compaction_store.errors import InvalidInput, MessageNotFound, PositionNotFound
from compaction_store.integrity import chain, erasure
from compaction_store.models import Compaction, Message, Payload, Thread
from compaction_store.postgres import engines, queries, typed_rows
from compaction_store.postgres._sync.connections import Connections
from compaction_store.postgres.call import deadline_for_opening
from compaction_store.postgres.engines import Engine
from compaction_store.postgres.queries import ThreadKey
from compaction_store.rendering.view import View
from compaction_store.store.last_seqs import LastSeqs
from compaction_store.telemetry.telemetry import Telemetry

_FIRST_PAGE = 16
_LONGEST_PAGE = 2000
_PAGE_BYTES = 4 * 1024 * 1024
_THREADS_PAGE = 500


class Reading:
    """Reads threads; has no method that writes. Made by `open`, closed by `close` or as a context manager."""

    def __init__(
        self, db: Connections, tenant: str, counter: tokens.Counter, share: embedded.Share | None = None
    ) -> None:
        self._db = db
        self._tenant = tenant
        self._counter = counter
        self._share = share
        self._callbacks: list[Callable[..., Any]] = []
        self._last_seqs = LastSeqs()
        self._actor: str | None = None
        self._require_actor = False

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        engine: Engine | None = None,
        tenant: str = "default",
        counter: tokens.Counter | Callable[[Payload], int] | None = None,
        pool_size: int = 16,
        connect_timeout: float = 10.0,
        deadline: float = 30.0,
        actor: str | None = None,
        require_actor: bool = False,
        telemetry: Telemetry | None = None,
    ) -> Self:
        """Connects and checks the database's schema.

        Without a URL: $COMPACTION_STORE_URL, else an embedded Postgres. `deadline` is how long a call goes on
        trying while the database is away or busy. `counter` is one of `compaction_store.tokens`, or a callable that
        is given a message and returns its tokens. `actor` is recorded with every compaction, revocation, erasure and
        hold of this store that names no other; with `require_actor`, one without any is refused. With `telemetry` the
        store tells OpenTelemetry what it does.
        """
        arguments.name(tenant, "tenant")
        arguments.optional_name(actor, "actor")
        arguments.number(pool_size, "pool_size", least=1)
        arguments.seconds(connect_timeout, "connect_timeout")
        arguments.seconds(deadline, "deadline")
        if engine is not None:
            arguments.instance(engine, Engine, "engine")
        count = tokens.chosen(counter)
        if telemetry is not None and not isinstance(telemetry, Telemetry):
            raise InvalidInput("telemetry must be a Telemetry")
        share = None
        if engine is None:
            url = engines.chosen_url(url)
            if url is None:
                share = embedded.join()
                url = share.url
            engine = engines.create_engine(
                url, pool_size=pool_size, connect_timeout=connect_timeout, deadline=deadline
            )
        # Do not retry the first connection: a wrong address should fail at once.
        first = Connections(engine, deadline_for_opening(connect_timeout, deadline), retries=False)
        try:
            spread = first.call(queries.check)
        except BaseException:
            first.close()
            if share is not None:
                share.close()
            raise
        observer = None if telemetry is None else telemetry.observer(*engines.address(engine))
        store = cls(Connections(engine, deadline, spread=spread, observer=observer), tenant, count, share)
        store._actor, store._require_actor = actor, require_actor
        if telemetry is not None:
            telemetry.watch(store, tenant)
        return store

    def close(self) -> None:
        self._db.close()
        if self._share is not None:
            self._share.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _key(self, thread_id: str) -> ThreadKey:
        arguments.check_thread_id(thread_id)
        uid = erasure.stub_uid(thread_id) or chain.thread_uid(self._tenant, thread_id)
        return ThreadKey(uid, self._tenant, thread_id)

    def replay(
        self, thread_id: str, *, after: int = 0, until: int | None = None, last: int | None = None
    ) -> Iterator[Message]:
        """Every message as it was appended, never folded, in pages: memory does not grow with the thread.

        Messages after one seq and up to another, or the newest `last`, always oldest first.
        """
        key = self._key(thread_id)
        arguments.number(after, "after", least=0)
        if until is not None:
            arguments.number(until, "until", least=0)
        if last is None:
            return self._pages(key, thread_id, after, until)
        arguments.number(last, "last", least=1)
        if after or until is not None:
            raise InvalidInput("last= is given alone, without after= and until=")
        return self._newest(key, thread_id, last)

    def _pages(self, key: ThreadKey, thread_id: str, after: int, until: int | None) -> Iterator[Message]:
        limit = _FIRST_PAGE
        while True:
            rows = self._db.call(queries.replay, key, after, until, limit)
            for row in rows:
                yield typed_rows.message(row)
            if len(rows) < limit:
                return
            after = rows[-1][0]
            limit = _next_limit(rows, limit)

    def _newest(self, key: ThreadKey, thread_id: str, last: int) -> Iterator[Message]:
        if last > _LONGEST_PAGE:
            newest = self._db.call(queries.newest, key, 1)
            until = newest[0][0] if newest else 0
            for message in self._pages(key, thread_id, max(0, until - last), until):
                yield message
            return
        rows = self._db.call(queries.newest, key, last)
        for row in reversed(rows):
            yield typed_rows.message(row)

    def message(self, thread_id: str, seq: int) -> Message:
        """The message at a seq."""
        key = self._key(thread_id)
        arguments.number(seq, "seq", least=1)
        rows = self._db.call(queries.replay, key, seq - 1, seq, 1)
        if not rows:
            raise MessageNotFound(f"no seq {seq}{arguments.about(thread_id)}")
        return typed_rows.message(rows[0])

    def view(self, thread_id: str, *, at: int | datetime | Compaction | None = None) -> View:
        """What the model should see: now, at a pos, at the last pos not later than an aware datetime, or just after a
        compaction.
        """
        key = self._key(thread_id)
        about = arguments.about(thread_id)
        if isinstance(at, Compaction):
            if self._key(at.thread_id) != key:
                raise InvalidInput(f"the compaction is one of thread {at.thread_id!r}, not of {thread_id!r}")
            at = at.pos
        if isinstance(at, datetime):
            arguments.moment(at, "at")
            at = self._db.call(queries.pos_at, key, at)
            if at == 0:
                raise PositionNotFound(f"nothing yet at that moment{about}")
        elif at is not None:
            arguments.number(at, "at", least=1)
        return typed_rows.view(thread_id, self._db.call(queries.view, key, at))

    def thread(self, thread_id: str) -> Thread:
        """Where a thread stands."""
        key = self._key(thread_id)
        return typed_rows.thread(self._db.call(queries.thread, key))

    def threads(self, *, after: str = "") -> Iterator[Thread]:
        """The tenant's threads in the order of their names' bytes, those after a name, in pages."""
        if after:
            arguments.check_thread_id(after)
        while True:
            rows = self._db.call(queries.threads, self._tenant, after, _THREADS_PAGE)
            for row in rows:
                yield typed_rows.thread(row)
            if len(rows) < _THREADS_PAGE:
                return
            after = rows[-1][0]


def _next_limit(rows: list[tuple[Any, ...]], limit: int) -> int:
    """A page of about four megabytes, however large the messages are."""
    size = sum(len(row[3] or "") for row in rows) // len(rows) + 1
    return max(1, min(_LONGEST_PAGE, limit * 16, _PAGE_BYTES // size))
