"""AsyncReader: reads threads, their compaction logs and what a model saw, and verifies them.

The file is longer than others because it holds every reading method with its documentation; the work is in the modules
beside it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Never, Self, Unpack
from uuid import UUID

from compaction_store import arguments, embedded, tokens
from compaction_store.bundles import export_rows
from compaction_store.checkpoints import Checkpoint, CheckpointLog, Signer
from compaction_store.checkpoints.make import Sink
from compaction_store.compaction import records, size_estimate
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.callbacks import Callback
from compaction_store.errors import (
    CompactionNotFound,
    InvalidInput,
    MessageNotFound,
    PositionNotFound,
    ThreadNotFound,
    UnknownEntry,
    Unreadable,
)
from compaction_store.models import (
    Compaction,
    CompactionTree,
    Comparison,
    Element,
    Event,
    Explanation,
    Found,
    Lease,
    Level,
    Message,
    Outline,
    Part,
    Payload,
    Report,
    Sample,
    Thread,
    TokenStep,
)
from compaction_store.models.record_filters import RecordFilters, SampleFilters
from compaction_store.models.vocabulary import EventKind
from compaction_store.postgres import queries, typed_rows
from compaction_store.postgres.calling import engines
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.calling._async.shared_commits import AsyncSharedCommits
from compaction_store.postgres.calling.engines_aio import AsyncEngine
from compaction_store.postgres.queries import CompactionFilter, CompactionKey, EventFilter, ThreadKey
from compaction_store.rendering import receipts
from compaction_store.rendering.given import System
from compaction_store.rendering.view import SeenView, View
from compaction_store.results import AsyncResults
from compaction_store.store._async import auditing, exporting, forking, pages, searching, verifying
from compaction_store.store._async.opening import open_database
from compaction_store.store.awaitable_context import awaitable_context
from compaction_store.store.known_threads import KnownThreads
from compaction_store.store.text_search import TextSearch
from compaction_store.store.thread_keys import thread_key
from compaction_store.store.unknown_entries import refuse_unknown
from compaction_store.telemetry.telemetry import Telemetry

_IS_ASYNC = True
_MOST_LEASES = 1000


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
    ) -> Self:
        """Connects to the database and checks its schema.

        Without a URL, the store uses $COMPACTION_STORE_URL if it is set, and an embedded Postgres otherwise. `deadline`
        is the number of seconds for which a call retries while the database is unavailable or busy. `counter` is a
        counter from `compaction_store.tokens`, or a callable that returns the number of tokens of a message. `role` is
        a database role that the login is a member of, such as `compaction_store_auditor`: the store then has the rights
        of that role. `settings` are Postgres settings for every session, such as
        `{"default_transaction_read_only": "on"}`. `actor` is recorded with every compaction, revocation, erasure and
        hold for which the call names no other actor; with `require_actor`, a call without an actor is refused. Appends
        of concurrent callers share commits unless `share_commits` is false. With `telemetry`, the store reports to
        OpenTelemetry.
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
        if telemetry is not None:
            arguments.instance(telemetry, Telemetry, "telemetry")
        db, share = await open_database(
            url, engine, pool_size=pool_size, connect_timeout=connect_timeout, deadline=deadline,
            settings=begun_with, telemetry=telemetry,
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

    def _key(self, thread_id: str) -> ThreadKey:
        return thread_key(self._tenant, thread_id)._replace(uid=self._uids.get(thread_id))

    # ---- messages and threads

    def replay(
        self, thread_id: str, *, after: int = 0, until: int | None = None, last: int | None = None
    ) -> AsyncIterator[Message]:
        """Yields messages as they were appended, oldest first. Compactions do not change the result.

        `after` excludes messages up to that seq, and `until` excludes messages after that seq. `last` limits the result
        to that many of the newest messages. The messages are read in pages, so memory does not grow with the thread.
        """
        key = self._key(thread_id)
        arguments.number(after, "after", least=0)
        if until is not None:
            arguments.number(until, "until", least=0)
        if last is None:
            return pages.messages(self._db, key, after, until)
        arguments.number(last, "last", least=1)
        if after or until is not None:
            raise InvalidInput("last must be given alone, without after and until")
        return pages.last_messages(self._db, key, last)

    async def message(self, thread_id: str, seq: int) -> Message:
        """Returns the message at a seq."""
        key = self._key(thread_id)
        arguments.number(seq, "seq", least=1)
        return await pages.message(self._db, key, seq)

    async def view(self, thread_id: str, *, at: int | datetime | Compaction | None = None) -> View:
        """Returns the thread as the model should see it, with every compacted span replaced.

        Without `at`, this is the current view. `at` may be a pos; a timezone-aware datetime, for the view at that time;
        or a compaction, for the view right after it. The current view of a thread that `clear` has hidden cannot be
        read (`ThreadNotFound`).
        """
        key = self._key(thread_id)
        if isinstance(at, Compaction):
            if at.thread_id != thread_id:
                raise InvalidInput(f"at must be a compaction of thread {thread_id!r}, not of {at.thread_id!r}")
            key, at = key._replace(uid=at.thread_uid), at.pos
        if isinstance(at, datetime):
            arguments.moment(at, "at")
            # Use thread_uid for the next calls: the name may go to another thread between two calls.
            found = typed_rows.thread(await self._db.call(queries.thread, key))
            key = key._replace(uid=found.thread_uid)
            at = await self._db.call(queries.pos_at, key, at)
            if at == 0:
                raise PositionNotFound(f"the thread has no entry up to that time{arguments.about(thread_id)}")
        elif at is not None:
            if type(at) is not int or at < 1:
                raise InvalidInput(
                    f"at must be a pos >= 1, a datetime with a time zone, or a compaction{arguments.other(at)}"
                )
            arguments.number(at, "at", least=1)
        return typed_rows.view(thread_id, await self._db.call(queries.view, key, at))

    async def outline(self, thread_id: str, *, at: int | None = None, span: tuple[int, int] | None = None) -> Outline:
        """Returns the parts of the current view, or of the view at a pos, without their messages.

        If a view may be too large to read completely, read its outline, and then some of its parts with `elements`.
        With `span`, only the elements from one seq to another are read; one element must begin at the first seq, and
        one must end at the last. This method also finds a thread that `clear` has hidden.
        """
        key = self._key(thread_id)
        if at is not None:
            arguments.number(at, "at", least=1)
        start, end = (None, None) if span is None else arguments.seqs(span, "span")
        rows = await self._db.call(queries.outline, key, at, (start, end))
        return typed_rows.outline(thread_id, rows, (start, end))

    async def compare(
        self,
        thread_id: str,
        at: int | None = None,
        beside: int | None = None,
        *,
        only_changes: bool = False,
        start: int = 0,
        count: int = 50,
    ) -> Comparison:
        """Compares the view at a pos with the view at another pos, and returns a page of their parts.

        A part is a record or a range of messages. `start` and `count` count elements, that is records and single
        messages, not parts. Read the messages with `elements`. With
        `only_changes`, elements that are in both views are left out. Without `at`, the first view is the current view.
        Without `beside`, the view is compared with itself, so the page is of this view alone. The database does the
        work, so memory does not grow with the thread. This method also finds a thread that `clear` has hidden.
        """
        key = self._key(thread_id)
        for name, pos in (("at", at), ("beside", beside)):
            if pos is not None:
                arguments.number(pos, name, least=1)
        arguments.instance(only_changes, bool, "only_changes")
        arguments.number(start, "start", least=0)
        arguments.number(count, "count", least=1)
        rows = await self._db.call(queries.compare, key, at, beside, only_changes, start, count)
        return typed_rows.comparison(thread_id, rows)

    async def elements(self, thread_id: str, parts: Iterable[Part]) -> list[Element]:
        """Returns the elements of the given parts of an outline, in order."""
        wanted = list(parts)
        for part in wanted:
            arguments.instance(part, Part, "every part in parts")
        return [element async for element in pages.elements(self._db, self._key(thread_id), wanted)]

    async def names_of(self, thread_uids: Iterable[UUID]) -> dict[UUID, str]:
        """Returns the current names of threads by thread_uid. Leaves out threads that the tenant does not have."""
        wanted = list(thread_uids)
        for each in wanted:
            arguments.instance(each, UUID, "thread_uids")
        return dict(await self._db.call(queries.names_of, self._tenant, wanted)) if wanted else {}

    async def neighbours(self, thread_id: str, pos: int) -> tuple[int | None, int | None]:
        """Returns the pos of the last compaction record up to a pos, and the pos of the first record after that."""
        arguments.number(pos, "pos", least=0)
        found = await self._db.call(queries.neighbours, self._key(thread_id), pos)
        earlier = max((each for each in found if each <= pos), default=None)
        return earlier, min((each for each in found if each > pos), default=None)

    async def token_steps(self, thread_id: str, *, ranges: int = 1000) -> list[TokenStep]:
        """Returns how the number of tokens in a thread's view changed over time, for a chart.

        There is one step for each applied record. The thread is divided into at most `ranges` equal ranges of pos, and
        all messages of a range are one step. The steps do not include erasures; `thread` returns the tokens of the
        current view. The result is empty for a thread that does not exist. The steps end before the thread's
        `unknown_pos`.
        """
        key = self._key(thread_id)
        arguments.number(ranges, "ranges", least=1)
        try:
            found = typed_rows.thread(await self._db.call(queries.thread, key))
        except ThreadNotFound:
            return []
        key = key._replace(uid=found.thread_uid)
        last_pos = found.last_pos if found.unknown_pos is None else found.unknown_pos - 1
        messages = await self._db.call(queries.appended_tokens, key, ranges, last_pos)
        return records.token_steps(messages, await self._db.call(queries.applied_tokens, key, last_pos))

    async def thread(self, thread_id: str, *, hidden: bool = False) -> Thread:
        """Returns a thread's counters, head and metadata. With `hidden`, also finds threads that `clear` has hidden.

        Without it, a hidden thread raises `ThreadNotFound`, or `UnknownEntry` if a newer release may have unhidden it.
        """
        key = self._key(thread_id)
        arguments.instance(hidden, bool, "hidden")
        found = typed_rows.thread(await self._db.call(queries.thread, key))
        if found.hidden and not hidden:
            refuse_unknown(found)
            raise ThreadNotFound(f"no such thread{arguments.about(thread_id)}")
        return found

    def threads(self, *, after: str = "", hidden: bool = False) -> AsyncIterator[Thread]:
        """Yields the tenant's threads in the byte order of their names, with erased threads last.

        `after` skips all names up to that name. A thread that is erased during the iteration is yielded once. Threads
        that `clear` has hidden are left out unless `hidden` is set.
        """
        arguments.instance(hidden, bool, "hidden")
        if after:
            arguments.check_thread_id(after)
        return pages.threads(self._db, self._tenant, after, hidden=hidden)

    def tenants(self, *, after: str = "") -> AsyncIterator[str]:
        """Yields the names of the tenants that have threads, in byte order. `after` skips all names up to that name.

        The login must be exempt from row-level security, as a superuser is. Any other login gets `PermissionDenied`,
        because row-level security would show it only one tenant.
        """
        if after:
            arguments.name(after, "after")
        return auditing.tenants(self._db, after)

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
        wanted = CompactionFilter(filters=auditing.checked_filters(filters))
        if after is not None:
            arguments.instance(after, Compaction, "after")
        if thread_id is not None:
            arguments.check_thread_id(thread_id)
        return self._log(thread_id, wanted, newest_first=newest_first, after=after)

    async def _log(
        self,
        thread_id: str | None,
        wanted: CompactionFilter,
        *,
        newest_first: bool = False,
        after: Compaction | None = None,
    ) -> AsyncIterator[Compaction]:
        """Yields the records that match a filter. Raises `ThreadNotFound` if a given thread does not exist."""
        start = None
        if thread_id is not None:
            uid = self._uids.get(thread_id) or (await self.thread(thread_id, hidden=True)).thread_uid
            wanted = wanted._replace(thread_uid=uid)
        if after is not None:
            start = CompactionKey(after.created_at, after.thread_uid, after.number)
        log = auditing.compaction_log(self._db, self._tenant, wanted, newest_first=newest_first, after=start)
        async for record in log:
            yield record

    async def compaction(self, thread_id: str, number: int) -> Compaction:
        """Returns the compaction record with the given number."""
        arguments.number(number, "number", least=1)
        async for record in self._log(thread_id, CompactionFilter(number=number)):
            return record
        raise CompactionNotFound(f"no compaction {number}{arguments.about(thread_id)}")

    def originals(self, compaction: Compaction) -> AsyncIterator[Message]:
        """Yields the messages of a compaction's span, as they were appended."""
        arguments.instance(compaction, Compaction, "compaction")
        if compaction.start_seq is None or compaction.end_seq is None:
            raise InvalidInput(f"compaction {compaction.number} has no span{arguments.about(compaction.thread_id)}")
        # Use thread_uid: the name may belong to another thread by now.
        key = self._key(compaction.thread_id)._replace(uid=compaction.thread_uid)
        return pages.messages(self._db, key, compaction.start_seq - 1, compaction.end_seq)

    async def sample(
        self, seed: int, count: int = 10, *, among: int = 20_000, **filters: Unpack[SampleFilters]
    ) -> Sample:
        """Draws a random sample of matching compaction records from all threads of the tenant.

        Revocations, and records without a span, are left out. The sample consists of the records with the lowest
        SHA-256 of `seed/thread_uid/number`, in that order, so the same seed draws the same records again. If more than
        `among` records match, the sample is drawn from the oldest `among` of them.
        """
        known = SampleFilters.__annotations__
        wanted = CompactionFilter(filters=auditing.checked_filters(filters, known))
        arguments.number(seed, "seed", least=0)
        arguments.number(count, "count", least=1)
        arguments.number(among, "among", least=1)
        return await auditing.sample(self._db, self._tenant, wanted, seed, count, among)

    async def tree(self, compaction: Compaction) -> CompactionTree:
        """Returns a record with the records that it was made from, down to messages.

        Raises `UnknownEntry` if an earlier entry may change views in a way that this release does not know.
        """
        arguments.instance(compaction, Compaction, "compaction")
        if compaction.unknown_pos is not None and compaction.unknown_pos < compaction.pos:
            raise UnknownEntry(
                f"compaction {compaction.number} was made after pos {compaction.unknown_pos}, whose kind this release"
                f" does not know{arguments.about(compaction.thread_id)}"
            )
        if compaction.start_seq is None or compaction.end_seq is None:
            return CompactionTree(compaction, ())
        span = (compaction.start_seq, compaction.end_seq)
        wanted = CompactionFilter(compaction.thread_uid, within=span, filters={"outcome": "applied"})
        return records.tree(compaction, [record async for record in self._log(None, wanted)])

    def search(self, text: str, *, thread_id: str | None = None, after: str = "") -> AsyncIterator[Found]:
        """Yields every message, record and metadata that contains a text, in one or all threads of the tenant.

        Use it to answer requests to erase. It searches messages and their metas, the bodies of records, and the
        metadata of threads, in the order of the threads' names; `after` skips all threads up to that name. Case,
        Unicode normal forms, invisible characters and the length of white space make no difference, and JSON escapes
        inside a string are decoded. It does not search pictures and files.
        """
        wanted = TextSearch(text)
        if thread_id is not None:
            return searching.search_thread(self._db, self._key(thread_id), wanted)
        if after:
            arguments.check_thread_id(after)
        return searching.search_all(self._db, self._tenant, wanted, after)

    async def explain(
        self,
        thread_id: str,
        seq: int,
        *,
        tools: Sequence[Any] | None = None,
        system: System | None = None,
        records: int | None = None,
    ) -> Explanation:
        """Returns a message's receipt, its element in the current view, and every record that ever covered it.

        For a message that a fork copied, the result also says where it was first appended. `tools` and `system` are
        compared with the hashes in the receipt of a reply. `records` limits the result to that many of the newest
        records.
        """
        key, wanted = self._key(thread_id), receipts.digests(tools, system)
        arguments.number(seq, "seq", least=1)
        if records is not None:
            arguments.number(records, "records", least=1)
        # Use thread_uid for all calls: the name may go to another thread between two calls.
        thread = await self.thread(thread_id, hidden=True)
        key = key._replace(uid=thread.thread_uid)
        message, redacted_pos = await pages.message_and_erasure(self._db, key, seq)
        covering = CompactionFilter(thread.thread_uid, filters={"covering": seq})
        log = []
        async for record in self._log(None, covering, newest_first=records is not None):
            log.append(record)
            if len(log) == records:
                break
        if records is not None:
            log.reverse()
        rows = await self._db.call(queries.element, key, seq)
        if not rows:
            raise Unreadable(f"the view has no element for seq {seq}; run verify{arguments.about(thread_id)}")
        [element] = typed_rows.view(thread_id, rows).elements
        redaction = await auditing.redaction_of(self._db, key, message, redacted_pos)
        found = await auditing.receipt_of(self._db, key, seq)
        receipt = None if found is None else found.receipt
        origin = await forking.origin(self._db, key, seq, message.pos)
        same_tools = receipts.has_digest(receipt, "tools", wanted.tools)
        same_system = receipts.has_digest(receipt, "system", wanted.system)
        return Explanation(message, tuple(log), element, redaction, receipt, same_tools, same_system, origin)

    def events(
        self,
        thread_id: str | None = None,
        *,
        kind: EventKind | Sequence[EventKind] | None = None,
        actor: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        newest_first: bool = False,
        after: int | Event = 0,
    ) -> AsyncIterator[Event]:
        """Yields the events of a thread or of all the tenant's threads, such as redactions, holds, forks and verdicts.

        `kind` is one kind of event or several. The events of one thread are in the order of their pos, and `after`
        skips all events up to a pos or an event. The events of all threads are in the order of their times, and `after`
        skips all events up to an event.
        """
        wanted = auditing.check_event_filter(EventFilter(auditing.event_kinds(kind), actor, since, until))
        arguments.instance(newest_first, bool, "newest_first")
        if thread_id is not None:
            if isinstance(after, Event) and after.thread_id != thread_id:
                raise InvalidInput(f"after must be an event of the thread{arguments.about(thread_id)}")
            pos = after.pos if isinstance(after, Event) else after
            arguments.number(pos, "after", least=0)
            return auditing.matching_events(self._db, self._key(thread_id), pos, wanted, newest_first=newest_first)
        if not isinstance(after, Event) and (type(after) is not int or after != 0):
            raise InvalidInput("after must be an Event if thread_id is not given: a pos needs its thread")
        return self._tenant_events(wanted, after if isinstance(after, Event) else None, newest_first=newest_first)

    async def _tenant_events(
        self, wanted: EventFilter, after: Event | None, *, newest_first: bool
    ) -> AsyncIterator[Event]:
        reached = None
        if after is not None:
            thread = await self.thread(after.thread_id, hidden=True)
            reached = (after.created_at, thread.thread_uid, after.pos)
        async for event in auditing.tenant_events(
            self._db, self._tenant, wanted, newest_first=newest_first, after=reached
        ):
            yield event

    async def seen_by(self, thread_id: str, seq: int) -> SeenView:
        """Returns the view that a reply was written from, and whether a receipt proves it.

        The view of a reply that a fork copied is a view of the thread where the reply was written.
        """
        arguments.number(seq, "seq", least=1)
        key = self._key(thread_id)
        found = await auditing.receipt_of(self._db, key, seq)
        if found is None:
            await self.thread(thread_id, hidden=True)
            raise MessageNotFound(f"no seq {seq}{arguments.about(thread_id)}")
        pos, receipt, key = found
        if receipt is None:
            if seq == 1:
                raise MessageNotFound(f"there is nothing before seq {seq}{arguments.about(thread_id)}")
            view = typed_rows.view(thread_id, await self._db.call(queries.view, key, pos - 1))
            return SeenView("reconstructed", view, None)
        view, is_proved = await forking.seen_in(self._db, key, pos, receipt)
        return SeenView("proved" if is_proved else "differs", view, receipt)

    def due(self, budget: TokenBudget) -> AsyncIterator[Thread]:
        """Yields the threads whose view is over the budget's trigger, roughly the largest first.

        The size of a view is estimated from the stored token counts and the usage that the API last reported; the
        budget's counter is not called. Threads that are being compacted are left out. A thread whose last attempt made
        no progress is left out until its view has grown by the difference between the budget's trigger and target.
        """
        size_estimate.check_budget(budget, awaits=_IS_ASYNC)
        return auditing.due(self._db, self._tenant, budget)

    async def leases(self, budget: TokenBudget) -> tuple[Lease, ...]:
        """Returns the runs that compact threads over the budget's trigger now, the oldest first, at most 1,000.

        These are the threads that `due` leaves out because of a lease, also if the process of the run has died.
        """
        size_estimate.check_budget(budget, awaits=_IS_ASYNC)
        rows = await self._db.call(queries.leases, self._tenant, budget.trigger_tokens, _MOST_LEASES)
        return tuple(Lease(*row) for row in rows)

    # ---- proofs

    async def verify(
        self,
        thread_id: str,
        *,
        level: Level = "content",
        since: Report | tuple[int, bytes] | None = None,
        checkpoints: CheckpointLog | None = None,
        progress: verifying.Progress | None = None,
    ) -> Report:
        """Recomputes a thread's hash chain and reports the level that was verified and every finding.

        Level "structure" reads no content, and level "content" reads it. Level "schema" also checks that the database
        still protects the thread. Level "checkpoint" also compares the thread with checkpoints of the log
        `checkpoints`. `since` is an earlier report of the thread, or a pos and the hash of the entry at that pos: only
        later entries are verified. `progress` is called with the number of verified entries and the total.
        """
        verification = verifying.Verification(self._db, self._tenant, level, checkpoints, progress)
        return await verifying.verify_thread(verification, self._key(thread_id), since)

    async def verify_schema(self) -> Report:
        """Checks that the database still protects the threads, as level "schema" does, and reads no thread."""
        return await verifying.verify_schema(self._db)

    def verify_all(
        self,
        *,
        level: Level = "content",
        after: str | UUID | Report | None = None,
        checkpoints: CheckpointLog | None = None,
        progress: verifying.Progress | None = None,
    ) -> AsyncIterator[Report]:
        """Verifies every thread of the tenant and yields a report on each, in the order of thread_uid.

        Threads are found by thread_uid, not by name, so a thread whose name is wrong or missing is reported too. So are
        rows that belong to no thread. Bad data is a finding, never an exception. `after` skips all threads up to one,
        given by its report, its thread_uid or its name.

        At levels "schema" and "checkpoint", the first report is on the schema. At level "checkpoint", the order of all
        checkpoints of the log is checked, and a last report has a finding for each of their threads that was not
        found. Both reports have an empty thread_id and no thread_uid. `progress` is called with the number of verified
        threads and the total.

        Nothing is verified until the result is iterated over. If nobody does, the result warns when it is dropped.
        """
        verification = verifying.Verification(self._db, self._tenant, level, checkpoints, progress)
        return AsyncResults("verify_all()", verifying.verify_all(verification, after))

    async def checkpoint(
        self,
        signer: Signer,
        log: CheckpointLog,
        *sinks: Sink,
        all_tenants: bool = False,
        allow_empty: bool = True,
    ) -> Checkpoint:
        """Signs the head of every thread of the tenant and appends the checkpoint to the log.

        Computes the chain of every thread that has grown, from its entry in the log's last checkpoint up to its head.
        Raises `CheckpointRefused` if anything is found: a thread is missing, is shorter, or has another entry at the
        recorded pos, or its chain does not hold. Without `allow_empty`, also refuses if there is no thread.

        A checkpoint without new messages is useful too, because it shows that nothing was removed. Each sink is called
        with the checkpoint and the path of its list of heads, after both are on disk. `all_tenants` needs a login that
        is exempt from row-level security.
        """
        return await verifying.make_checkpoint(
            self._db, None if all_tenants else self._tenant, signer, log, sinks, allow_empty=allow_empty
        )

    def export(
        self, thread_id: str, *, bodies: export_rows.Bodies = True, checkpoint: Mapping[str, Any] | None = None
    ) -> AsyncIterator[bytes]:
        """Yields the lines of a bundle: the whole thread up to its head, and everything that is needed to verify it.

        The thread is read in pages, so memory does not grow with the thread. `bodies=False` withholds the content of
        every entry. `bodies` may also be a callable that takes the line of an entry, as a mapping without content: the
        content is withheld if the callable returns False. Commitments stay, so the bundle still verifies. `checkpoint`
        is copied into the manifest. Entries that are appended during the export are left out; an erasure during the
        export raises a `Conflict`.
        """
        key = self._key(thread_id)
        export_rows.check_options(bodies, checkpoint)
        return exporting.bundle_lines(self._db, key, bodies, checkpoint)
