"""AsyncReader: every method that reads, with its documentation. The work is in the modules beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, Self, Unpack
from uuid import UUID

from compaction_store import arguments, embedded, tokens
from compaction_store.compaction import size_estimate
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.callbacks import Callback, Listener
from compaction_store.errors import CompactionNotFound, InvalidInput, MessageNotFound, PositionNotFound, ThreadNotFound
from compaction_store.messages import encoding
from compaction_store.models import Compaction, Lease, Message, Payload, Thread
from compaction_store.models.record_filters import RecordFilters
from compaction_store.postgres import queries, typed_rows
from compaction_store.postgres.calling import engines
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.calling._async.shared_commits import AsyncSharedCommits
from compaction_store.postgres.calling.call import deadline_for_opening
from compaction_store.postgres.calling.engines_aio import AsyncEngine
from compaction_store.postgres.cluster import Cluster, Server
from compaction_store.postgres.queries import CompactionFilter, CompactionKey, ListFilter
from compaction_store.postgres.sealed_server import SealedServer
from compaction_store.rendering import receipts
from compaction_store.rendering.view import SeenView, View
from compaction_store.results import AsyncResults, awaitable_context
from compaction_store.sealing.keys import Keys
from compaction_store.store._async import forks, pages
from compaction_store.store._async.scope import AsyncScope
from compaction_store.store.threads import KnownThreads, recency, refuse_unknown
from compaction_store.telemetry.telemetry import Telemetry

if TYPE_CHECKING:
    from compaction_store.store._async.audit import AsyncAudit

_IS_ASYNC = True
_MOST_LEASES = 1000
# A year, in minutes.
_MOST_IDLE = 525_600


class AsyncReader:
    """Read-only access to the threads of a tenant and their compaction logs.

    Open a reader with `open`. Close it with `close`, or use it as a context manager.
    """

    def __init__(
        self,
        db: AsyncConnections | None = None,
        tenant: str = "",
        counter: tokens.Counter | None = None,
        share: embedded.Share | None = None,
        **_named: Never,
    ) -> None:
        if not isinstance(db, AsyncConnections) or counter is None:
            kind = type(self).__name__
            how = f"`await {kind}.open(url)`, or `async with {kind}.open(url) as store`"
            raise InvalidInput(f"a store must be opened, not constructed: write {how}")
        self._db = db
        self._tenant = tenant
        self._counter = counter
        self._share = share
        # The callbacks of the stores that this store was made from, by `of_tenant`, and then its own.
        self._callbacks: list[list[Callback]] = [[]]
        self._listeners: list[list[Listener]] = [[]]
        self._known_threads = KnownThreads()
        self._actor: str | None = None
        self._require_actor = False
        self._telemetry: Telemetry | None = None
        self._shared_commits = AsyncSharedCommits(engines.pool_size(db.engine))
        self._is_borrowed = False
        # The keys of the threads whose names this store does not look up.
        self._uids: dict[str, UUID] = {}

    @classmethod
    @awaitable_context
    async def open(
        cls,
        url: str | None = None,
        *,
        engine: AsyncEngine | None = None,
        tenant: str = "default",
        counter: tokens.Counter | Callable[[Payload], int] | None = None,
        pool_size: int = 16,
        connect_timeout: float = 10.0,
        deadline: float = 30.0,
        actor: str | None = None,
        require_actor: bool = False,
        role: str | None = None,
        settings: Mapping[str, str] | None = None,
        share_commits: bool = True,
        telemetry: Telemetry | None = None,
        seal: Keys | None = None,
    ) -> Self:
        """Connects to the database and checks its schema.

        Without a URL, the store uses $COMPACTION_STORE_URL if it is set, and an embedded Postgres otherwise. `deadline`
        is the number of seconds for which a call retries while the database is unavailable or busy. `counter` is a
        counter from `compaction_store.tokens`, or a callable that returns the number of tokens of a message. `role` is
        a database role that the login is a member of, such as `compaction_store_auditor`: the store then has the rights
        of that role. `settings` are Postgres settings for every session, such as
        `{"default_transaction_read_only": "on"}`. `actor` is recorded with every message, compaction, revocation,
        erasure and hold for which the call names no other actor; with `require_actor`, a call without an actor is
        refused. Appends of concurrent callers share commits unless `share_commits` is false. With `telemetry`, the
        store reports to OpenTelemetry. With the keys `seal`, or those in the folder $COMPACTION_STORE_KEYS, content is
        sealed before it leaves the process, and opened after reading.
        """
        arguments.name(tenant, "tenant")
        arguments.optional_name(actor, "actor")
        arguments.instance(require_actor, bool, "require_actor")
        arguments.number(pool_size, "pool_size", least=1)
        arguments.seconds(connect_timeout, "connect_timeout")
        arguments.seconds(deadline, "deadline")
        arguments.optional_name(role, "role")
        begun_with = arguments.settings(settings, role)
        arguments.instance(share_commits, bool, "share_commits")
        if engine is not None:
            arguments.instance(engine, AsyncEngine, "engine")
            if url is not None:
                raise InvalidInput("url and engine must not both be given")
            if begun_with:
                raise InvalidInput("role and settings must be left out with an engine: its connections have them")
        count = tokens.chosen(counter)
        arguments.instance(telemetry, Telemetry, "telemetry", optional=True)
        db, share = await open_database(
            url, engine, pool_size=pool_size, connect_timeout=connect_timeout, deadline=deadline,
            settings=begun_with, telemetry=telemetry, keys=Keys.chosen(seal),
        )  # fmt: skip
        shared_commits = AsyncSharedCommits(engines.pool_size(db.engine), is_on=share_commits)
        return cls._made(
            db, tenant, count, share, shared_commits, actor=actor, require_actor=require_actor, telemetry=telemetry,
        )  # fmt: skip

    def of_tenant(self, tenant: str) -> Self:
        """Returns a store of the same kind for another tenant, with the connections, counter and actor of this store.

        The returned store also runs the callbacks of this store, including those that are registered later, and then
        its own. It works until this store is closed; closing the returned store does nothing.
        """
        arguments.name(tenant, "tenant")
        store = self._made(
            self._db, tenant, self._counter, None, self._shared_commits, actor=self._actor,
            require_actor=self._require_actor, telemetry=self._telemetry, is_borrowed=True,
        )  # fmt: skip
        store._callbacks = [*self._callbacks, []]  # noqa: SLF001 — an instance of this class
        store._listeners = [*self._listeners, []]  # noqa: SLF001
        return store

    @classmethod
    def _made(
        cls,
        db: AsyncConnections,
        tenant: str,
        counter: tokens.Counter,
        share: embedded.Share | None,
        shared_commits: AsyncSharedCommits,
        *,
        actor: str | None,
        require_actor: bool,
        telemetry: Telemetry | None,
        is_borrowed: bool = False,
    ) -> Self:
        store = cls(db, tenant, counter, share)
        store._actor, store._require_actor = actor, require_actor
        store._telemetry, store._is_borrowed = telemetry, is_borrowed
        store._shared_commits = shared_commits
        if telemetry is not None:
            telemetry.instrument(store, tenant)
        return store

    def _pinned(self, thread_id: str, thread_uid: UUID) -> Self:
        store = self.of_tenant(self._tenant)
        store._uids = {**self._uids, thread_id: thread_uid}  # noqa: SLF001 — an instance of this class
        return store

    async def close(self) -> None:
        """Closes the connections. Does nothing for a store that `of_tenant` returned."""
        if self._is_borrowed:
            return
        await self._db.close()
        if self._share is not None:
            await self._share.close_aio()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- groups of methods

    @property
    def _scope(self) -> AsyncScope:
        return AsyncScope(self._db, self._tenant, self._counter, self._actor, self._require_actor, self._uids)

    def _group(self, name: str, module: str, kind: str) -> Any:
        """Makes a group of methods. Its module is imported on first use, because many programs only append and view."""
        made = getattr(import_module(f"{__package__}.{module}"), kind)(self._scope)
        if self._telemetry is not None:
            self._telemetry.instrument(made, self._tenant, name)
        return made

    @property
    def audit(self) -> AsyncAudit:
        """Verifies, exports, searches and explains what is stored."""
        group: AsyncAudit = self._group("audit", "audit", "AsyncAudit")
        return group

    # ---- messages and threads

    def replay(
        self, thread_id: str, *, after: int = 0, until: int | None = None, last: int | None = None
    ) -> AsyncIterator[Message]:
        """Yields messages as they were appended, oldest first. Compactions do not change the result.

        `after` excludes messages up to that seq, and `until` excludes messages after that seq. `last` limits the result
        to that many of the newest messages. The messages are read in pages, so memory does not grow with the thread.
        """
        key = self._scope.key(thread_id)
        arguments.number(after, "after", least=0)
        arguments.number(until, "until", least=0, optional=True)
        if last is None:
            return AsyncResults("replay(…)", pages.messages(self._db, key, after, until), works=False)
        arguments.number(last, "last", least=1)
        if after or until is not None:
            raise InvalidInput("last must be given alone, without after and until")
        return AsyncResults("replay(…)", pages.last_messages(self._db, key, last), works=False)

    async def message(self, thread_id: str, seq: int) -> Message:
        """Returns the message at a seq."""
        key = self._scope.key(thread_id)
        arguments.number(seq, "seq", least=1)
        return await pages.message(self._db, key, seq)

    async def view(self, thread_id: str, *, at: int | datetime | Compaction | None = None) -> View:
        """Returns the thread as the model should see it, with every compacted span replaced.

        Without `at`, this is the current view. `at` may be a pos; a timezone-aware datetime, for the view at that time;
        or a compaction, for the view right after it. The current view of a thread that `clear` has hidden cannot be
        read (`ThreadNotFound`).
        """
        key = self._scope.key(thread_id)
        if isinstance(at, Compaction):
            if at.thread_id != thread_id:
                raise InvalidInput(f"at must be a compaction of thread {thread_id!r}, not of {at.thread_id!r}")
            key, at = key._replace(uid=at.thread_uid), at.pos
        if isinstance(at, datetime):
            arguments.moment(at, "at")
            # Use thread_uid for the next calls: the name may go to another thread between two calls.
            key = key._replace(uid=typed_rows.thread(await self._db.call(queries.thread, key)).thread_uid)
            at = int(await self._db.call(queries.pos_at, key, at))
            if at == 0:
                raise PositionNotFound(f"the thread has no entry up to that time{arguments.about(thread_id)}")
        elif at is not None:
            if type(at) is not int or at < 1:
                raise InvalidInput(
                    f"at must be a pos >= 1, a datetime with a time zone, or a compaction{arguments.other(at)}"
                )
            arguments.number(at, "at", least=1)
        return typed_rows.view(thread_id, await self._db.call(queries.view, key, at))

    async def thread(self, thread_id: str, *, hidden: bool = False) -> Thread:
        """Returns a thread's counters, head and metadata. With `hidden`, also finds threads that `clear` has hidden.

        Without it, a hidden thread raises `ThreadNotFound`, or `UnknownEntry` if a newer release may have unhidden it.
        """
        key = self._scope.key(thread_id)
        arguments.instance(hidden, bool, "hidden")
        found = typed_rows.thread(await self._db.call(queries.thread, key))
        if found.hidden and not hidden:
            refuse_unknown(found)
            raise ThreadNotFound(f"no such thread{arguments.about(thread_id)}")
        return found

    def threads(
        self,
        *,
        subject: str | None = None,
        prefix: str = "",
        metadata: Mapping[str, Any] | None = None,
        order: Literal["name", "recent"] = "name",
        limit: int | None = None,
        after: Thread | str = "",
        hidden: bool = False,
    ) -> AsyncIterator[Thread]:
        """Yields the tenant's threads in the byte order of their names, with erased threads last.

        With `order="recent"`, the thread with the newest message comes first, and erased threads are left out.
        `subject` selects the threads of a person or a case, `prefix` those whose names begin with a text, and
        `metadata` those whose metadata has at least these members. `limit` is the largest number of threads.
        `after` skips all threads up to a thread, which is a thread of an earlier page, its name, or, by recency, its
        `cursor`. A thread that changes between two pages by recency may be missed, as it is then among the newest;
        all others are yielded once. A thread that is erased during the iteration is yielded once.
        Threads that `clear` has hidden are left out unless `hidden` is set.
        """
        arguments.optional_name(subject, "subject")
        if prefix != "":
            arguments.name(prefix, "prefix")
        wanted_metadata = encoding.json_object(metadata, "metadata")
        arguments.instance(order, str, "order")
        arguments.one_of(order, ("name", "recent"), "order")
        arguments.number(limit, "limit", least=1, optional=True)
        arguments.instance(hidden, bool, "hidden")
        wanted = ListFilter(subject, prefix, hidden)
        size = pages.THREADS_PAGE if limit is None or metadata is not None else min(limit, pages.THREADS_PAGE)
        if order == "recent":
            found = pages.recent_threads(self._db, self._tenant, recency(after) if after != "" else None, wanted, size)
        else:
            name = after.thread_id if isinstance(after, Thread) else after
            if name != "":
                arguments.check_thread_id(name)
            found = pages.threads(self._db, self._tenant, name, wanted, size)
        return AsyncResults("threads()", pages.chosen_threads(found, wanted_metadata, limit), works=False)

    # ---- the compaction log

    def compactions(
        self,
        thread_id: str | None = None,
        *,
        newest_first: bool = False,
        after: Compaction | None = None,
        **filters: Unpack[RecordFilters],
    ) -> AsyncIterator[Compaction]:
        """Yields the compaction records of a thread, or of all the tenant's threads, that match all filters.

        The records of one thread are in the order of their numbers; those of several threads are in the order of their
        times. `authority` selects records whose authority has at least these members. `revokes` is
        the number of the record that was revoked, and `made_from` the number of a record that the summary replaced and
        was made from. `tokens_before` and `tokens_after` are a lowest and a highest number, of which either may be
        None. `after` skips all records up to that record.
        """
        wanted = CompactionFilter(filters=pages.checked_filters(filters))
        arguments.instance(after, Compaction, "after", optional=True)
        if thread_id is not None:
            arguments.check_thread_id(thread_id)
        log = self._log(thread_id, wanted, after, newest_first=newest_first)
        return AsyncResults("compactions(…)", log, works=False)

    async def _log(
        self, thread_id: str | None, wanted: CompactionFilter, after: Compaction | None, *, newest_first: bool
    ) -> AsyncIterator[Compaction]:
        """Yields the records that match a filter. Raises `ThreadNotFound` if a given thread does not exist."""
        if thread_id is not None:
            uid = self._uids.get(thread_id) or (await self.thread(thread_id, hidden=True)).thread_uid
            wanted = wanted._replace(thread_uid=uid)
        start = None if after is None else CompactionKey(after.created_at, after.thread_uid, after.number)
        log = pages.compaction_log(self._db, self._tenant, wanted, newest_first=newest_first, after=start)
        async for record in log:
            yield record

    async def compaction(self, thread_id: str, number: int) -> Compaction:
        """Returns the compaction record with the given number."""
        arguments.number(number, "number", least=1)
        async for record in self._log(thread_id, CompactionFilter(number=number), None, newest_first=False):
            return record
        raise CompactionNotFound(f"no compaction {number}{arguments.about(thread_id)}")

    async def seen_by(self, thread_id: str, seq: int) -> SeenView:
        """Returns the view that a reply was written from, and whether a receipt proves it.

        The view of a reply that a fork copied is a view of the thread where the reply was written. For a reply of a
        coding agent, the result has the messages of the agent's request too, if its session file has the request.
        """
        arguments.number(seq, "seq", least=1)
        key = self._scope.key(thread_id)
        found = await pages.receipt_of(self._db, key, seq)
        if found is None:
            thread = await self.thread(thread_id, hidden=True)
            raise MessageNotFound(f"no seq {seq}: the last seq is {thread.last_seq}{arguments.about(thread_id)}")
        pos, receipt, key = found
        if receipt is None:
            if seq == 1:
                raise MessageNotFound(f"there is nothing before seq {seq}{arguments.about(thread_id)}")
            view = typed_rows.view(thread_id, await self._db.call(queries.view, key, pos - 1))
            return await self._seen_by_agent(view, seq) or SeenView("reconstructed", view, None)
        view, is_proved = await forks.seen_in(self._db, key, pos, receipt)
        return SeenView("proved" if is_proved else "differs", view, receipt)

    async def _seen_by_agent(self, view: View, seq: int) -> SeenView | None:
        """Returns the request of a coding agent that the meta of a reply has a receipt of; None without a receipt."""
        receipt = receipts.agents_receipt(await self.message(view.thread_id, seq))
        if receipt is None:
            return None
        # Few programs read the requests of coding agents.
        agent_requests = import_module("compaction_store.rendering.agent_requests")
        sent = agent_requests.NOTHING
        try:
            for after, until in agent_requests.places(receipt):
                lines = self.replay(receipt["lines"], after=after, until=until)
                found = [(line.seq, line.payload) async for line in lines]
                sent = await self._db.run_in_thread(agent_requests.sent, receipt, found)
                if sent.where is None:
                    break
        except ThreadNotFound:
            return SeenView("reconstructed", view, receipt, None, f"the thread {receipt['lines']} is missing")
        return SeenView("differs" if sent.where else "proved", view, receipt, sent.messages, sent.where)

    def due(self, budget: TokenBudget, *, idle_minutes: float = 0) -> AsyncIterator[Thread]:
        """Yields the threads whose view is over the budget's trigger, roughly the largest first.

        The size of a view is estimated from the stored token counts and the usage that the API last reported; the
        budget's counter is not called. Threads that are being compacted are left out. A thread whose last attempt made
        no progress is left out until its view has grown by the difference between the budget's trigger and target.

        With `idle_minutes`, only threads without a message for so long are yielded. A budget with a lower trigger then
        finds threads to compact before they are used again, while the provider's prompt cache is cold.
        """
        if type(idle_minutes) not in (int, float) or not 0 <= idle_minutes <= _MOST_IDLE:
            raise InvalidInput(f"idle_minutes must be a number from 0 to {_MOST_IDLE}{arguments.other(idle_minutes)}")
        size_estimate.check_budget(budget, awaits=_IS_ASYNC)
        return AsyncResults("due(…)", pages.due(self._db, self._tenant, budget, idle_minutes * 60), works=False)

    async def leases(self, budget: TokenBudget | None = None) -> tuple[Lease, ...]:
        """Returns the runs that compact threads now, the oldest first, at most 1,000.

        With a budget, these are the runs on threads over its trigger, which `due` leaves out because of a lease, also
        if the process of the run has died. Without one, they are all runs, and those whose lease has expired.
        """
        if budget is not None:
            size_estimate.check_budget(budget, awaits=_IS_ASYNC)
        trigger = None if budget is None else budget.trigger_tokens
        return tuple(await self._db.call(queries.leases, self._tenant, trigger, _MOST_LEASES))


async def open_database(
    url: str | None,
    engine: AsyncEngine | None,
    *,
    pool_size: int,
    connect_timeout: float,
    deadline: float,
    settings: Mapping[str, str],
    telemetry: Telemetry | None,
    keys: Keys | None,
) -> tuple[AsyncConnections, embedded.Share | None]:
    """Returns the connections, and this process's share of the embedded server if they lead to that server."""
    share = None
    if engine is None:
        url = engines.chosen_url(url)
        if url is None:
            share = await embedded.join_aio()
            url = share.url
        engine = engines.create_aio_engine(
            url, pool_size=pool_size, connect_timeout=connect_timeout, deadline=deadline, settings=settings
        )  # fmt: skip
    # Do not retry the first connection: a wrong address should fail at once.
    first = AsyncConnections(engine, deadline_for_opening(connect_timeout, deadline), retries=False)
    try:
        citus = await first.call(queries.check, settings)
    except BaseException:
        await first.close()
        if share is not None:
            await share.close_aio()
        raise
    observer = None if telemetry is None else telemetry.observer(*engines.address(first.engine))
    server = Cluster() if citus.is_used else Server(has_citus=citus.is_installed)
    if keys is not None:
        server = SealedServer(server, keys)
    return AsyncConnections(engine, deadline, server=server, observer=observer), share
