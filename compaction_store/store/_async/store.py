"""AsyncStore: adds every method that writes, with its documentation. The work is in the modules beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, overload

from compaction_store import arguments
from compaction_store.compaction import adoption, sent, size_estimate
from compaction_store.compaction.asks import Summarize
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.callbacks import Callback, Listener, check_callback, check_listener
from compaction_store.compaction.checks import Check
from compaction_store.compaction.plan import BudgetExceeded, CompactionPlan, CompactionRun, FittedView
from compaction_store.compaction.records import log_failure
from compaction_store.compaction.repair import check_arguments
from compaction_store.compaction.sent import R, Sent
from compaction_store.compaction.summary_request import SummaryResult
from compaction_store.errors import CompactionStoreError, InvalidInput, NotConfigured, SpanConflict
from compaction_store.messages import encoding
from compaction_store.messages.keys import Key
from compaction_store.models import Appended, Compaction, Forked
from compaction_store.postgres import queries
from compaction_store.postgres.calling import call
from compaction_store.postgres.queries import ThreadKey
from compaction_store.rendering import acceptance
from compaction_store.rendering.view import Rendered, View
from compaction_store.store._async import appends, compactions, forks
from compaction_store.store._async.compactions import WriteOrder
from compaction_store.store._async.reader import AsyncReader
from compaction_store.store._async.turns import LONGEST_LEASE, LONGEST_WAIT, AsyncTurn, check_seconds
from compaction_store.waiting import drive_async, is_async

if TYPE_CHECKING:
    from compaction_store.store._async.audit import AsyncStoreAudit
    from compaction_store.store._async.custody import AsyncCustody
    from compaction_store.store._async.loader import AsyncLoader
    from compaction_store.strategies.thresholds import Threshold

_IS_ASYNC = True
_C = TypeVar("_C", bound=Callback)
_L = TypeVar("_L", bound=Listener)


class AsyncStore(AsyncReader):
    """Reads and writes the threads of a tenant.

    Open a store with `open`. Close it with `close`, or use it as a context manager.
    """

    # ---- groups of methods

    @property
    def audit(self) -> AsyncStoreAudit:
        """Verifies, exports, searches, explains and judges what is stored."""
        group: AsyncStoreAudit = self._group("audit", "audit", "AsyncStoreAudit")
        return group

    @property
    def custody(self) -> AsyncCustody:
        """Erases content, and forbids to erase it."""
        group: AsyncCustody = self._group("custody", "custody", "AsyncCustody")
        return group

    @property
    def load(self) -> AsyncLoader:
        """Stores any number of messages: of one thread, of many threads, or of a bundle."""
        group: AsyncLoader = self._group("load", "loader", "AsyncLoader")
        return group

    # ---- appending

    async def append(
        self,
        thread_id: str,
        messages: Any,
        *,
        key: str | None = None,
        expected_seq: int | None = None,
        expected_head: bytes | None = None,
        view: View | Rendered | None = None,
        meta: appends.Metas = None,
        tokens: int | Sequence[int] | None = None,
        turn: AsyncTurn | None = None,
        actor: str | None = None,
        subject: str | None = None,
        durable: bool = True,
        raw: bool = False,
    ) -> Appended:
        """Appends one message or several, all or none. The first append creates the thread.

        A message is a dict, a pydantic model or an SDK's object, in the form of one of the APIs. An API's whole answer
        (`ChatCompletion`, `Response`, Anthropic's `Message`) is taken apart. A message that no API's request can have
        raises `InvalidMessage`, which names its index and the path of the bad value. With `raw`, any JSON object is
        stored as it is. Repeating a call with the same `key` returns the first result. With `expected_seq`, the thread
        must end with that seq, or `SequenceConflict` is raised. With `expected_head`, which an earlier append, a view
        or `thread` returned, the thread must still have that head, or `HeadConflict` is raised. `view` is the view, or
        its rendering, that a reply was written from. The store keeps a receipt of the view, and raises `HeadConflict`
        if the thread no longer has the last entry of the view, for example after a failover. `meta` and `tokens` are
        one value for all messages, or a list with one for each. If `view` is given without `meta`, the usage that a
        reply reports becomes the meta of its first message. `actor` is stored with the messages.
        `subject` says whose the thread is, such as a person or a case. A new thread gets it; if an existing thread has
        another subject or none, `SubjectConflict` is raised, and `custody.set_subject` can set it. With `turn`, the
        append raises `TurnLost` if the turn has lost the thread.

        With `durable=False`, the call is faster because it does not wait for the server's disk or standbys. If the
        server crashes or fails over within the next second, the messages may be lost after the call has returned. The
        loss leaves no gap, and it never takes only some of the messages of a call. A later durable write to the same
        server makes the messages durable.
        """
        scope = self._scope
        thread, actor = scope.writable_key(thread_id), scope.chosen_actor(actor)
        arguments.instance(durable, bool, "durable")
        arguments.instance(raw, bool, "raw")
        given = acceptance.given(messages, raw=raw)
        checked_key = Key(key)
        arguments.number(expected_seq, "expected_seq", least=0, optional=True)
        arguments.optional_name(subject, "subject")
        if expected_head is not None:
            arguments.head(expected_head, "expected_head")
        if view is not None:
            _check_rendered(view, thread_id)
        if turn is not None:
            arguments.instance(turn, AsyncTurn, "turn")
            turn.check(thread)
        expected = queries.Expected(
            expected_seq, expected_head, None if view is None else view.head, None if turn is None else turn.turn_id,
            subject,
        )  # fmt: skip

        async def write() -> Appended:
            has_view = view is not None
            batch = await appends.batch(self._db, self._counter, given, meta=meta, count=tokens, has_view=has_view)
            return await appends.append(
                self._db, self._shared_commits, self._known_threads, thread, batch, key=checked_key,
                expected=expected, view=view, actor=actor, durable=durable,
            )  # fmt: skip

        return await (write() if turn is None else turn.write(write))

    def turn(self, thread_id: str, *, wait: float = 60.0, lease: float = 30.0, actor: str | None = None) -> AsyncTurn:
        """Returns a turn on a thread, a context manager. A thread has one turn at a time across all processes.

        Turns are granted in the order of the requests. Entering the turn waits up to `wait` seconds, then raises
        `TurnTimeout`. The lease is renewed in the background until the turn ends; if the process dies, the turn ends by
        itself within `lease` seconds. A turn holds no connection. `turn.append` raises `TurnLost` if the turn has lost
        the thread. Appends that use no turn are not affected.
        """
        thread = self._scope.writable_key(thread_id)
        arguments.optional_name(actor, "actor")
        check_seconds(wait, "wait", least=0, most=LONGEST_WAIT)
        check_seconds(lease, "lease", least=1, most=LONGEST_LEASE)
        chosen = self._actor if actor is None else actor
        return AsyncTurn(self._db, self.append, thread, actor=chosen, wait=wait, lease=lease)

    async def set_metadata(self, thread_id: str, metadata: Mapping[str, Any], *, actor: str | None = None) -> None:
        """Replaces the thread's metadata, a JSON object for any data that is not a message.

        An event of the thread names the fields that were set or removed. The names stay if the thread is erased.
        """
        thread, actor = self._scope.writable_key(thread_id), self._scope.chosen_actor(actor)
        await self._db.call(queries.set_metadata, thread, encoding.encode_metadata(metadata), actor, key=call.UNKEYED)

    async def fork(
        self,
        thread_id: str,
        new_thread_id: str,
        *,
        at: int | None = None,
        key: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> Forked:
        """Makes a new thread that begins as a copy of a thread up to the pos `at`, or up to its end.

        The fork copies messages, records and events with their seqs, numbers, keys and salts, and the current metadata.
        The copies have the time of the fork. The two threads are then independent. The first entry of the new thread
        names its parent, and the parent gets an event that names the new thread. Repeating a call with the same `key`
        returns the first result. Raises `ThreadExists` if the new name is taken.
        """
        thread = self._scope.writable_key(thread_id)
        arguments.check_thread_id(new_thread_id)
        self._scope.writable_key(new_thread_id)
        arguments.number(at, "at", least=1, optional=True)
        arguments.reason(reason)
        checked_key = None if key is None else Key(key).text
        return await forks.fork(
            self._db, thread, new_thread_id, at, key=checked_key, reason=reason, actor=self._scope.chosen_actor(actor),
            authority=encoding.authority(authority),
        )  # fmt: skip

    # ---- compacting

    @overload
    def on_compact(self, callback: _C, /) -> _C: ...

    @overload
    def on_compact(self) -> Callable[[_C], _C]: ...

    def on_compact(self, *callbacks: _C) -> _C | Callable[[_C], _C]:
        """Registers a callback or a strategy. Also works as a decorator. Callbacks run in the order of registration."""
        if not callbacks:
            return self.on_compact
        if len(callbacks) > 1:
            raise InvalidInput(f"on_compact must get one callback, not {len(callbacks)}: call it once for each")
        [callback] = callbacks
        check_callback(callback, awaits=_IS_ASYNC)
        self._callbacks[-1].append(callback)
        return callback

    @overload
    def on_recorded(self, callback: _L, /) -> _L: ...

    @overload
    def on_recorded(self) -> Callable[[_L], _L]: ...

    def on_recorded(self, *callbacks: _L) -> _L | Callable[[_L], _L]:
        """Registers a callback that gets each record that this store writes, once it is committed.

        Also works as a decorator. The records are those of `compact`, `fit`, `send`, `repair`, `revoke`, `adopt`,
        `rewind` and `clear`, whatever their outcome. The call waits for the callback, and returns the same result if
        the callback fails: its error is only logged. `audit.feed` yields the records of other programs too.
        """
        if not callbacks:
            return self.on_recorded
        if len(callbacks) > 1:
            raise InvalidInput(f"on_recorded must get one callback, not {len(callbacks)}: call it once for each")
        check_listener(callbacks[0], awaits=_IS_ASYNC)
        self._listeners[-1].append(callbacks[0])
        return callbacks[0]

    @property
    def _heard(self) -> tuple[Listener, ...]:
        return tuple(chain(*self._listeners))

    def _order(self, reason: str | None, actor: str | None, authority: Mapping[str, Any] | None) -> WriteOrder:
        arguments.reason(reason)
        return WriteOrder(reason, self._scope.chosen_actor(actor), encoding.authority(authority), self._heard)

    def _compacting(
        self,
        thread: ThreadKey,
        callbacks: tuple[Callback, ...],
        budget: TokenBudget | None,
        *,
        force: bool,
        wait: float = compactions.LONGEST_RUN,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> compactions.Compacting:
        check_seconds(wait, "wait", least=0, most=LONGEST_WAIT)
        for callback in callbacks:
            check_callback(callback, awaits=_IS_ASYNC)
        chosen = callbacks or tuple(chain(*self._callbacks))
        return compactions.Compacting(
            self, self._db, self._counter, thread, chosen, budget, force=force, wait=wait, actor=actor,
            authority=encoding.authority(authority), listeners=self._heard,
        )  # fmt: skip

    async def compact(
        self,
        thread_id: str,
        *callbacks: Callback,
        budget: TokenBudget | None = None,
        force: bool = False,
        wait: float = compactions.LONGEST_RUN,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> CompactionRun:
        """Runs callbacks on the thread's view and commits the compactions that they planned.

        Without callbacks, the registered ones are run. With a budget, they run only if the view is over the trigger or
        `force` is set. Only one run with a budget compacts a thread at a time. A second such run returns at once if the
        thread's view is within the limit, and otherwise waits up to `wait` seconds for the first. `authority` is
        recorded beside the actor. It is a JSON object of up to 8 KiB that says what permits the compaction, such as a
        policy and its version, an approval or a ticket.
        """
        thread, actor = self._scope.writable_key(thread_id), self._scope.chosen_actor(actor)
        work = self._compacting(thread, callbacks, budget, force=force, wait=wait, actor=actor, authority=authority)
        return await compactions.compact(work)

    async def plan(
        self, thread_id: str, *callbacks: Callback, budget: TokenBudget | None = None, force: bool = False
    ) -> CompactionPlan:
        """Returns what `compact` would write now. Runs the callbacks and their summarizers, but writes nothing."""
        thread = self._scope.writable_key(thread_id)
        return await compactions.plan(self._compacting(thread, callbacks, budget, force=force))

    async def fit(
        self,
        thread_id: str,
        budget: TokenBudget,
        *callbacks: Callback,
        when: Threshold | None = None,
        wait: float = compactions.LONGEST_RUN,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> FittedView:
        """Returns the thread's view, after compacting the thread if the view is over the budget's trigger.

        With `when`, the thread is also compacted if the view reaches this threshold, such as
        `over(fraction=0.4) & idle(minutes=5)`: the provider's prompt cache is then cold anyway.

        The view's `measured` has its size and the source of that figure, and its `run` the run that compacted it. If
        compacting fails or is not enough, the view is returned anyway if it is within the budget's limit; otherwise
        `BudgetExceeded` is raised. If the view is over the trigger and there is no callback, neither registered nor
        passed, `NotConfigured` is raised. If the view is over the limit and another run is
        compacting the thread, waits up to `wait` seconds for that run.
        """
        # Check on every call, so that a missing actor is noticed at once and not only when the view is over the budget.
        actor = self._scope.chosen_actor(actor)
        authority = encoding.authority(authority)
        check_seconds(wait, "wait", least=0, most=LONGEST_WAIT)
        given: object = when
        if given is not None and (isinstance(given, type) or not callable(getattr(given, "is_reached", None))):
            raise InvalidInput(f"when must be a threshold such as idle(minutes=5){arguments.other(when)}")
        view = await compactions.measured_view(self, self._db, self._scope.key(thread_id), budget)
        early = not budget.is_over(view)
        if early and (when is None or not when.is_reached(view.elements, budget.limit)):
            return FittedView.of(view, None)
        run: CompactionRun | None = None
        failure: CompactionStoreError | None = None
        thread = self._scope.writable_key(thread_id)
        work = self._compacting(thread, callbacks, budget, force=early, wait=wait, actor=actor, authority=authority)
        if not work.callbacks:
            reached = "has reached the threshold of when=" if early else "is over the budget's trigger"
            raise NotConfigured(
                f"the view {reached}, but there is no callback to compact it: register one with"
                f" on_compact, or pass one to this call{arguments.about(thread_id)}"
            )
        try:
            run = await compactions.compact_measured(work, view, budget)
            view = run.view
        except InvalidInput:
            raise
        except CompactionStoreError as error:
            log_failure(thread_id, error)
            failure = error
            if isinstance(error, SpanConflict):
                view = await compactions.measured_view(self, self._db, self._scope.key(thread_id), budget)
        fitted = FittedView.of(view, run)
        if budget.fits(view):
            return fitted
        raise BudgetExceeded(
            f"the view must take at most {budget.limit} tokens, not {size_estimate.describe(view)}"
            f"{arguments.about(thread_id)}: {type(failure).__name__ if run is None else run.summed_up}",
            view=fitted,
        ) from failure

    async def send(
        self,
        thread_id: str,
        call: Callable[[Any], R | Awaitable[R]],
        budget: TokenBudget,
        *callbacks: Callback,
        render: Callable[[View], View | Rendered] | None = None,
        attempts: int = 3,
        wait: float = compactions.LONGEST_RUN,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> Sent[R]:
        """Calls a model with the thread's view. If the API refuses the request as too long, compacts more and retries.

        `call` is called with the request: the view that `fit` returns, rendered by `render` if it is given. Any other
        error of `call` is raised at once. The last refusal is raised if all `attempts` were refused or nothing more can
        be compacted. The result has the reply, the request and the runs that compacted it; append the reply with
        `append(thread_id, reply, view=request)`. A refusal is recognized by its code, or by the texts that providers
        are known to use, whatever the SDK. `wait` is as in `fit`.
        """
        if not callable(call):
            raise InvalidInput(f"call must be a callable, not {type(call).__name__}")
        if render is not None and not callable(render):
            raise InvalidInput(f"render must be a callable, not {type(render).__name__}")
        if not _IS_ASYNC and is_async(call):
            raise InvalidInput("call must be synchronous on a Store; use an AsyncStore for an async callable")
        arguments.number(attempts, "attempts", least=1)
        thread, actor = self._scope.writable_key(thread_id), self._scope.chosen_actor(actor)
        view = await self.fit(thread_id, budget, *callbacks, wait=wait, actor=actor, authority=authority)

        def compact(harder: TokenBudget) -> Any:
            work = self._compacting(thread, callbacks, harder, force=True, wait=wait, actor=actor, authority=authority)
            return compactions.compact(replace(work, trigger="too long"))

        return await drive_async(sent.send(view, budget, call, render, compact, attempts))

    async def revoke(
        self,
        thread_id: str,
        number: int,
        *,
        view: View | None = None,
        reason: str | None = None,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> Compaction:
        """Undoes an active compaction, so that the view shows its span as before, and returns the revocation.

        `view` is the view in which the caller found the number. If the thread no longer has the last entry of that
        view, the number may belong to another compaction, and `SpanConflict` is raised.
        """
        thread = self._scope.writable_key(thread_id)
        arguments.number(number, "number", least=1)
        _check_view(view, thread_id)
        return await compactions.revoke(self._db, thread, number, view, self._order(reason, actor, authority))

    async def adopt(
        self,
        thread_id: str,
        compaction: object,
        *,
        view: View | Rendered | None = None,
        start_seq: int | None = None,
        end_seq: int | None = None,
        reason: str | None = None,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> tuple[Compaction, ...]:
        """Applies a provider's compaction to the thread's view. Returns the written records.

        `compaction` may be OpenAI's CompactedResponse or a list of messages. These messages then replace the view that
        was sent (`view`), or the part of it from `start_seq` to `end_seq`. `compaction` may also be a reply that
        contains a compaction, a Claude Code boundary, or an observed record. In these three cases, the thread already
        has the messages that the provider put in place of earlier ones, so the earlier messages are only hidden. A
        boundary that no import recorded needs `start_seq` and `end_seq`, and is recorded with its `summary_text`. The
        provider's messages are kept unchanged; a compaction that only the provider can read has no `summary_text`.
        System messages are not replaced. `revoke` undoes an adoption. If the compaction was adopted before, nothing is
        written.
        """
        thread = self._scope.writable_key(thread_id)
        made = adoption.read(compaction)
        if view is not None:
            _check_rendered(view, thread_id)
        elif made.stand_ins is not None and made.record is None:
            raise InvalidInput("view must be given: the view that the provider compacted")
        for seq, what in ((start_seq, "start_seq"), (end_seq, "end_seq")):
            arguments.number(seq, what, least=1, optional=True)
        if made.record is not None and made.record.thread_id != thread_id:
            raise InvalidInput(f"compaction must be of thread {thread_id!r}, not of {made.record.thread_id!r}")
        order = self._order(reason, actor, authority)
        return await compactions.adopt(
            self, self._db, self._counter, thread, made, order, view=view, start_seq=start_seq, end_seq=end_seq
        )

    async def repair(
        self,
        thread_id: str,
        number: int,
        summarizer: SummaryResult | Summarize,
        *,
        allow: Collection[str] = (),
        checks: Sequence[Check] = (),
        reason: str | None = None,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> CompactionRun:
        """Revokes an active compaction and summarizes the same span again, in one run, all or nothing.

        If the summarizer fails, or a rule or one of `checks` refuses its summary, the compaction stays unchanged and
        the attempt is recorded. The new summary may break the rules that the old compaction was allowed to break, and
        the rules in `allow`.
        """
        thread = self._scope.writable_key(thread_id)
        arguments.number(number, "number", least=1)
        check_arguments(summarizer, allow, reason, checks, awaits=_IS_ASYNC)
        actor = self._scope.chosen_actor(actor)
        work = self._compacting(thread, (), None, force=False, actor=actor, authority=authority)
        return await compactions.repair(work, number, summarizer, reason=reason, allow=allow, checks=checks)

    # ---- rewinding

    async def rewind(
        self,
        thread_id: str,
        seq: int,
        *,
        view: View | None = None,
        reason: str | None = None,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> tuple[Compaction, ...]:
        """Hides all messages after a seq from the view, until the rewind is revoked.

        `replay` still yields the messages, and later appends continue with the next seq. A compaction that covers
        messages on both sides of the seq is revoked in the same run. Messages that are hidden already stay hidden.
        Returns the written records, with the rewind last, or nothing if the view ends at the seq already. `view` is the
        view in which the caller found the seq. If the thread has changed since then, `HeadConflict` is raised.
        """
        thread = self._scope.writable_key(thread_id)
        arguments.number(seq, "seq", least=0)
        _check_view(view, thread_id)
        order = self._order(reason, actor, authority)
        return await compactions.rewind(self._db, thread, "rewind", seq, view, order, hide=False)

    async def clear(
        self,
        thread_id: str,
        *,
        hide: bool = False,
        reason: str | None = None,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> tuple[Compaction, ...]:
        """Hides all messages from the view, until the clear is revoked. Nothing is erased.

        With `hide`, the methods `view`, `thread`, `threads` and `due` do not find the thread until the next append;
        audits still find it. Returns the written records, or nothing if the view is empty already.
        """
        thread = self._scope.writable_key(thread_id)
        arguments.instance(hide, bool, "hide")
        order = self._order(reason, actor, authority)
        return await compactions.rewind(self._db, thread, "clear", 0, None, order, hide=hide)


def _check_view(view: View | None, thread_id: str) -> None:
    arguments.instance(view, View, "view", optional=True)
    if view is not None:
        _check_rendered(view, thread_id)


def _check_rendered(view: object, thread_id: str) -> None:
    if not isinstance(view, View | Rendered):
        raise InvalidInput(f"view must be a View or its rendering for an API, not {type(view).__name__}")
    if view.thread_id != thread_id:
        raise InvalidInput(f"view must be a view of thread {thread_id!r}, not of {view.thread_id!r}")
