"""The synchronous face of compaction: callbacks are run on a view, outside of any transaction, and what they planned is
committed in one piece.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, overload
from uuid import UUID, uuid4

from compaction_store import arguments
from compaction_store.compaction import records, size_estimate
from compaction_store.compaction.asking import Stalled
from compaction_store.compaction.budget import BudgetExceeded, TokenBudget
from compaction_store.compaction.callbacks import callback_name, check_callback, run_callback
from compaction_store.compaction.context import CompactionContext
from compaction_store.compaction.plan import CompactionPlan, CompactionRun
from compaction_store.errors import CompactionStoreError, DatabaseError, InvalidInput, SpanConflict
from compaction_store.models import Compaction, Measured
from compaction_store.postgres import call, queries
from compaction_store.postgres.queries import CompactionFilter, ThreadKey
from compaction_store.rendering.view import View
from compaction_store.store._sync.redacting import Redacting

_AWAITS = False
_LEASE_SECONDS = 600.0
_RELEASE_SECONDS = 1.0
_STALLED = 100
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 2.0
# An honest run is over by then, or its lease has run out.
_LONGEST_QUEUE = _LEASE_SECONDS
_C = TypeVar("_C", bound=Callable[..., Any])


class Store(Redacting):
    """Runs `on_compact` callbacks and commits what they plan."""

    @overload
    def on_compact(self, callback: _C) -> _C: ...

    @overload
    def on_compact(self) -> Callable[[_C], _C]: ...

    def on_compact(self, callback: _C | None = None) -> _C | Callable[[_C], _C]:
        """Registers a callback or a strategy, as a decorator or by a call. They run in the order of registration."""
        if callback is None:
            return self.on_compact
        check_callback(callback, awaits=_AWAITS)
        self._callbacks.append(callback)
        return callback

    def compact(
        self,
        thread_id: str,
        *callbacks: Callable[..., Any],
        budget: TokenBudget | None = None,
        force: bool = False,
        actor: str | None = None,
    ) -> CompactionRun:
        """Runs the callbacks given, else the registered ones, on the thread's view, and commits what they planned.

        With a budget, only where the view is over it (or `force`), and one run at a time: of several that want the
        thread one works, and the others come back at once, or wait for it where their view does not fit the window.
        """
        key = self._own_key(thread_id)
        actor = self._by(actor)
        chosen = self._chosen(callbacks)
        run_id = uuid4()
        if budget is None:
            view = self.view(thread_id)
            return self._compact(key, view, run_id, chosen, None, "manual", actor)
        view = self._look(thread_id, budget)
        if not force and not budget.is_over(view):
            return CompactionRun((), "the view is within its budget", view)
        try:
            return self._compact_alone(key, view, run_id, chosen, budget, force, actor)
        except BaseException as error:
            # What went wrong is what to tell; a lease that cannot be given back runs out by itself. Where the database
            # is what went wrong, it has had its time.
            seconds = 0 if isinstance(error, DatabaseError) else _RELEASE_SECONDS
            with suppress(CompactionStoreError):
                self._db.with_at_most(seconds).call(queries.release, key, run_id, False)
            raise

    def plan(
        self,
        thread_id: str,
        *callbacks: Callable[..., Any],
        budget: TokenBudget | None = None,
        force: bool = False,
    ) -> CompactionPlan:
        """What `compact` would do now: the callbacks are run, with their summarizers, and nothing is written."""
        key = self._own_key(thread_id)
        chosen = self._chosen(callbacks)
        view = self.view(thread_id) if budget is None else self._look(thread_id, budget)
        if budget is not None and not force and not budget.is_over(view):
            return CompactionPlan((), "the view is within its budget", view, view)
        ctx = self._run(key, view, chosen, budget)
        measured = None if view.measured is None else view.measured.moved(ctx.total_tokens)
        after = replace(view, elements=ctx.elements, measured=measured)
        return CompactionPlan(tuple(ctx.attempts), ctx.reason(tried=bool(chosen)), view, after, tuple(ctx.errors))

    def fit(
        self,
        thread_id: str,
        budget: TokenBudget,
        *callbacks: Callable[..., Any],
        actor: str | None = None,
    ) -> View:
        """The view, compacted first if it is over the budget. Its `measured` says what it takes, and how that is known.

        Whatever failed, a view that fits the window is returned; one that does not is `BudgetExceeded`.
        """
        # An actor that is missing shows on the first call, and not only once the view has grown.
        actor = self._by(actor)
        view = self._look(thread_id, budget)
        if not budget.is_over(view):
            return view
        failure: CompactionStoreError | None = None
        try:
            view = (self.compact(thread_id, *callbacks, budget=budget, actor=actor)).view
        except SpanConflict:
            view = self._look(thread_id, budget)
        except InvalidInput:
            raise
        except CompactionStoreError as error:
            failure = error
        if budget.fits(view):
            return view
        raise BudgetExceeded(
            f"the view takes {size_estimate.told(view)}, {budget.limit} fit{arguments.about(thread_id)}", view=view
        ) from failure

    def revoke(
        self,
        thread_id: str,
        number: int,
        *,
        view: View | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> Compaction:
        """Undoes an active compaction: what was visible before it is again. Itself a record, which is returned.

        `view` is the view that the number was taken from: a thread that no longer has that view refuses, since the
        number can be another compaction's there (`SpanConflict`).
        """
        key = self._own_key(thread_id)
        arguments.number(number, "number", least=1)
        if view is not None and not isinstance(view, View):
            raise InvalidInput(f"view must be a View, not {type(view).__name__}")
        if view is not None and view.thread_id != thread_id:
            raise InvalidInput(f"the view is one of thread {view.thread_id!r}, not of {thread_id!r}")
        arguments.text(reason, "reason")
        actor = self._by(actor)
        run_id = uuid4()
        base = (0, None) if view is None else (view.pos, view.head)
        self._commit(key, thread_id, run_id, base, records.revocation(number, reason=reason, actor=actor))
        with call.after_write(str(run_id), thread_id):
            return (self._records(key, run_id))[0]

    def _compact_alone(
        self,
        key: ThreadKey,
        view: View,
        run_id: UUID,
        callbacks: tuple[Callable[..., Any], ...],
        budget: TokenBudget,
        force: bool,
        actor: str | None,
    ) -> CompactionRun:
        """A run while no other has the thread; or none, where another one is at it or has done what was wanted."""
        thread_id = view.thread_id
        wait = _FIRST_WAIT
        end = time.monotonic() + _LONGEST_QUEUE
        while self._leased(key, thread_id, run_id):
            if budget.fits(view):
                return CompactionRun((), "another run is compacting the thread", view)
            if time.monotonic() > end:
                why = f"other runs have been compacting the thread for {_LONGEST_QUEUE:.0f} seconds"
                return CompactionRun((), why, view)
            self._db.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
            view = self._look(thread_id, budget, view)
            if not budget.is_over(view):
                return CompactionRun((), "another run has compacted the thread", view)
        # What another run did before the lease came free is part of what the callbacks see.
        view = self._look(thread_id, budget, view)
        if not force and not budget.is_over(view):
            self._release(key, thread_id, run_id, stalled=False)
            return CompactionRun((), "another run has compacted the thread", view)
        trigger = "budget" if budget.is_over(view) else "forced"
        return self._compact(key, view, run_id, callbacks, budget, trigger, actor)

    def _compact(
        self,
        key: ThreadKey,
        view: View,
        run_id: UUID,
        callbacks: tuple[Callable[..., Any], ...],
        budget: TokenBudget | None,
        trigger: str,
        actor: str | None,
    ) -> CompactionRun:
        ctx = self._run(key, view, callbacks, budget)
        if not ctx.attempts:
            if budget is not None:
                self._release(key, view.thread_id, run_id, stalled=True)
            return CompactionRun((), ctx.reason(tried=bool(callbacks)), view, tuple(ctx.errors))
        text = records.to_json(
            ctx.attempts,
            trigger=trigger,
            actor=actor,
            counter=self._counter.name,
            measured=size_estimate.as_json(view),
        )
        self._commit(key, view.thread_id, run_id, (view.pos, view.head), text)
        with call.after_write(str(run_id), view.thread_id):
            written = self._records(key, run_id)
            after = self.view(view.thread_id) if ctx.applied else view
        if ctx.applied and budget is not None and view.measured is not None:
            after = self._counted(after, budget, view.measured.moved(after.tokens))
        return CompactionRun(tuple(written), ctx.reason(tried=bool(callbacks)), after, tuple(ctx.errors))

    def _look(self, thread_id: str, budget: TokenBudget, known: View | None = None) -> View:
        """The view, with what it takes by the best figure known. What is known of it at the same pos still holds."""
        size_estimate.check_budget(budget, awaits=_AWAITS)
        view = self.view(thread_id)
        if known is not None and (known.pos, known.head) == (view.pos, view.head):
            return known
        return self._counted(view, budget, self._calibrated(thread_id, view.tokens, budget))

    def _counted(self, view: View, budget: TokenBudget, estimate: Measured) -> View:
        """The view with an estimate of what it takes, or with an exact count. No connection is held meanwhile."""
        if budget.counter is not None and size_estimate.is_worth_counting(estimate, budget):
            try:
                found: Any = self._db.run_in_thread(budget.counter, view)
                if inspect.isawaitable(found):
                    found = found
                estimate = size_estimate.counted(estimate, found, budget)
            except Exception as error:  # noqa: BLE001 — whatever keeps a count from being made, the estimate is there
                estimate = size_estimate.failed(estimate, error)
        return replace(view, measured=estimate)

    def _chosen(self, callbacks: tuple[Callable[..., Any], ...]) -> tuple[Callable[..., Any], ...]:
        for callback in callbacks:
            check_callback(callback, awaits=_AWAITS)
        return callbacks or tuple(self._callbacks)

    def _run(
        self, key: ThreadKey, view: View, callbacks: tuple[Callable[..., Any], ...], budget: TokenBudget | None
    ) -> CompactionContext:
        """What the callbacks planned on a view, and what they failed with. A conflict is raised where it is all."""
        rows = self._db.call(queries.stalled, key, _STALLED)
        stalled = [Stalled(*row[:3]) for row in rows if records.no_progress(row[3])]
        ctx = CompactionContext(view, counter=self._ready(), budget=budget, stalled=stalled, awaits=_AWAITS)
        for callback in callbacks:
            mark = ctx.begin(callback_name(callback))
            try:
                run_callback(ctx, callback)
            except Exception as error:  # noqa: BLE001 — a callback's failure voids its own plan, and is recorded
                ctx.void(mark, error)
        conflict = next((error for error in ctx.errors if isinstance(error, SpanConflict)), None)
        if conflict is not None and not ctx.attempts:
            raise conflict
        return ctx

    def _commit(
        self, key: ThreadKey, thread_id: str, run_id: UUID, base: tuple[int, bytes | None], text: str
    ) -> None:
        self._db.call(queries.commit_compactions, key, run_id, base, text, key=str(run_id))

    def _records(self, key: ThreadKey, run_id: UUID) -> list[Compaction]:
        return [record for record in self._log(None, CompactionFilter(key.uid, run_id=run_id))]

    def _leased(self, key: ThreadKey, thread_id: str, run_id: UUID) -> bool:
        """Whether another run holds the thread; if none does, this one does now."""
        until = self._db.call(queries.lease, key, run_id, _LEASE_SECONDS)
        return until is not None

    def _release(self, key: ThreadKey, thread_id: str, run_id: UUID, *, stalled: bool) -> None:
        self._db.call(queries.release, key, run_id, stalled)
