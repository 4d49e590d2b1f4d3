"""Compacts a thread: runs the callbacks and commits what they planned.

With a budget, a run first measures the view and takes the thread's lease. Callbacks run outside of any transaction, and
no connection is held meanwhile.
"""

from __future__ import annotations

import inspect
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from compaction_store import tokens
from compaction_store.compaction import records, size_estimate
from compaction_store.compaction.asking import Stalled
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.callbacks import Callback, callback_name, run_callback
from compaction_store.compaction.plan import CompactionPlan, CompactionRun
from compaction_store.compaction.plan_builder import PlanBuilder
from compaction_store.compaction.run_log import log_run
from compaction_store.errors import CompactionStoreError, DatabaseError, SpanConflict
from compaction_store.models import Compaction, Measured, Payload
from compaction_store.postgres import queries
from compaction_store.postgres.calling import call
from compaction_store.postgres.calling._sync.connections import Connections
from compaction_store.postgres.queries import ThreadKey
from compaction_store.rendering.view import View
from compaction_store.store._sync.auditing import calibrated
from compaction_store.store._sync.reader import Reader
from compaction_store.store._sync.writing import prepared
from compaction_store.waiting import drive

_IS_ASYNC = False
_LEASE_SECONDS = 600.0
_RELEASE_SECONDS = 1.0
# How many of the newest records are searched for attempts that made no progress.
_STALLED = 100
# The index of the entry's hash in a row that the commit returns.
_ENTRY = -2
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 2.0
# How long to wait for the lease. After this time, every run that was active at the start of the wait has ended, or its
# lease has expired.
_LONGEST_QUEUE = _LEASE_SECONDS


class Revoked(NamedTuple):
    """The record that a repair revokes in the same run, and why."""

    number: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Compacting:
    """One call of `compact`, `plan` or `repair`: a thread, the callbacks for it, and the budget."""

    reader: Reader
    db: Connections
    counter: tokens.Counter
    thread: ThreadKey
    callbacks: tuple[Callback, ...]
    budget: TokenBudget | None
    force: bool
    actor: str | None = None
    authority: Payload | None = None
    #: The trigger to record, instead of the one that `compact` would choose.
    trigger: str | None = None
    revoked: Revoked | None = None
    run_id: UUID = field(default_factory=uuid4)

    @property
    def thread_id(self) -> str:
        return self.thread.thread_id


def compact(compacting: Compacting) -> CompactionRun:
    """Runs the callbacks and commits their plan.

    With a budget, does so only if the view is over the budget's trigger or `force` is set.
    """
    budget = compacting.budget
    if budget is None:
        view = compacting.reader.view(compacting.thread_id)
        return run_and_commit(compacting, view, "manual")
    view = measured_view(compacting.reader, compacting.db, compacting.thread, budget)
    if not compacting.force and not budget.is_over(view):
        return CompactionRun((), "the view is within its budget", view)
    return compact_measured(compacting, view, budget)


def compact_measured(compacting: Compacting, view: View, budget: TokenBudget) -> CompactionRun:
    """Compacts a thread whose view has been measured and is over the budget, or must be compacted anyway."""
    try:
        return _compact_alone(compacting, view, budget)
    except BaseException as error:
        # Suppress errors of the release: the caller must see the first error, and the lease also expires by itself.
        # After a database error the deadline may have passed already, so the release gets no additional time.
        seconds = 0 if isinstance(error, DatabaseError) else _RELEASE_SECONDS
        with suppress(CompactionStoreError):
            compacting.db.with_at_most(seconds).call(
                queries.release, compacting.thread, compacting.run_id, False
            )  # fmt: skip
        raise


def plan(compacting: Compacting) -> CompactionPlan:
    """Returns what the callbacks plan for the thread's view. Writes nothing."""
    reader, budget = compacting.reader, compacting.budget
    if budget is None:
        view = reader.view(compacting.thread_id)
    else:
        view = measured_view(reader, compacting.db, compacting.thread, budget)
        if not compacting.force and not budget.is_over(view):
            return CompactionPlan((), "the view is within its budget", view, view)
    builder = _run_callbacks(compacting, view)
    after = replace(view, elements=builder.plan.folded())
    if view.measured is not None:
        after = replace(after, measured=view.measured.moved(after.tokens))
    reason = builder.reason(tried=bool(compacting.callbacks))
    return CompactionPlan(tuple(builder.attempts), reason, view, after, tuple(builder.errors))


def revoke(
    db: Connections,
    thread: ThreadKey,
    number: int,
    view: View | None,
    *,
    reason: str | None,
    actor: str | None,
    authority: Payload | None,
) -> Compaction:
    """Writes a revocation and returns it."""
    run_id = uuid4()
    base = (0, None) if view is None else (view.pos, view.head)
    body = records.stated(reason=reason, authority=authority)
    text = json.dumps([records.revocation(number, body, actor=actor)])
    rows = db.call(queries.commit_compactions, thread, run_id, base, text, key=str(run_id))
    return records.from_commit(thread.thread_id, run_id, rows)[0]


def measured_view(
    reader: Reader, db: Connections, thread: ThreadKey, budget: TokenBudget, known: View | None = None
) -> View:
    """Returns the thread's view with a measurement of its size.

    Returns `known` instead if it is a measured view with the same pos and head.
    """
    size_estimate.check_budget(budget, awaits=_IS_ASYNC)
    view = reader.view(thread.thread_id)
    if known is not None and (known.pos, known.head) == (view.pos, view.head):
        return known
    return _measured(db, view, budget, calibrated(db, thread, view.tokens, budget))


def _measured(db: Connections, view: View, budget: TokenBudget, estimate: Measured) -> View:
    """Adds an estimate to the view. Above half of the trigger, the budget's counter, if any, counts exactly instead."""
    if budget.counter is not None and size_estimate.is_worth_counting(estimate, budget):
        try:
            found: Any = db.run_in_thread(budget.counter, view)
            if inspect.isawaitable(found):
                found = found
            estimate = size_estimate.counted(estimate, found, budget)
        except Exception as error:  # noqa: BLE001 — the counter may raise anything; the estimate is used instead
            estimate = size_estimate.failed(estimate, error)
    return replace(view, measured=estimate)


def _compact_alone(compacting: Compacting, view: View, budget: TokenBudget) -> CompactionRun:
    """Takes the thread's lease and compacts.

    If another run has the lease, returns if the view is within the budget's limit, and otherwise waits for the lease.
    """
    reader, db, thread = compacting.reader, compacting.db, compacting.thread
    wait = _FIRST_WAIT
    end = time.monotonic() + _LONGEST_QUEUE
    claim = (thread, compacting.run_id, _LEASE_SECONDS, compacting.actor)
    while (lease := db.call(queries.lease, *claim)).held_until is not None:
        if budget.fits(view):
            return CompactionRun((), "another run is compacting the thread", view)
        if time.monotonic() > end:
            why = f"other runs have been compacting the thread for {_LONGEST_QUEUE:.0f} seconds"
            return CompactionRun((), why, view)
        db.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
        view = measured_view(reader, db, thread, budget, view)
        if not budget.is_over(view):
            return CompactionRun((), "another run has compacted the thread", view)
    if (lease.last_pos, lease.head) != (view.pos, view.head):
        # The callbacks must see everything that has been written since, such as the records of another run.
        view = measured_view(reader, db, thread, budget, view)
    if not compacting.force and not budget.is_over(view):
        db.call(queries.release, thread, compacting.run_id, False)
        return CompactionRun((), "another run has compacted the thread", view)
    return run_and_commit(compacting, view, "budget" if budget.is_over(view) else "forced")


def run_and_commit(
    compacting: Compacting, view: View, trigger: str, *, shown: View | None = None
) -> CompactionRun:
    """Runs the callbacks on a view and commits what they planned.

    `view` is the view that the callbacks get. In a repair, it is the view as it will be after the revocation, and
    `shown` is the thread's current view. A repair revokes nothing if no attempt is applied.
    """
    db, thread, budget, run_id = compacting.db, compacting.thread, compacting.budget, compacting.run_id
    builder = _run_callbacks(compacting, view)
    reason = builder.reason(tried=bool(compacting.callbacks))
    shown = view if shown is None else shown
    if not builder.attempts:
        if budget is not None:
            db.call(queries.release, thread, run_id, True)
        return CompactionRun((), reason, shown, tuple(builder.errors))
    text = records.to_json(
        builder.attempts,
        trigger=compacting.trigger or trigger,
        actor=compacting.actor,
        counter=compacting.counter.name,
        measured=size_estimate.as_json(view),
        first=_revocation(compacting, trigger) if builder.applied else (),
    )
    rows = db.call(queries.commit_compactions, thread, run_id, (view.pos, view.head), text, key=str(run_id))
    written = records.from_commit(thread.thread_id, run_id, rows)
    log_run(thread.thread_id, written, builder.errors)
    after = _view_after(compacting, view, written, rows[-1][_ENTRY]) if builder.applied else shown
    return CompactionRun(tuple(written), reason, after, tuple(builder.errors))


def _revocation(compacting: Compacting, trigger: str) -> tuple[Payload, ...]:
    """Returns the revocation of the record that a repair replaces, or nothing if the run is not a repair."""
    if compacting.revoked is None:
        return ()
    number, reason = compacting.revoked
    body = records.stated(reason=reason, authority=compacting.authority)
    return (records.revocation(number, body, actor=compacting.actor, trigger=trigger),)


def _view_after(compacting: Compacting, view: View, written: list[Compaction], head: bytes) -> View:
    after = records.view_after(view, written, head)
    if after is None:
        with call.after_write(str(compacting.run_id), compacting.thread_id):
            after = compacting.reader.view(compacting.thread_id)
    if compacting.budget is None or view.measured is None:
        return after
    return _measured(compacting.db, after, compacting.budget, view.measured.moved(after.tokens))


def _run_callbacks(compacting: Compacting, view: View) -> PlanBuilder:
    """Runs the callbacks and returns the builder with their attempts and errors.

    Raises the first `SpanConflict` of a callback if no callback made an attempt.
    """
    stalled: list[Stalled] = []
    # Earlier attempts without progress do not stop a repair, because the person who asks for it knows about them.
    if compacting.revoked is None:
        rows = compacting.db.call(queries.stalled, compacting.thread, _STALLED)
        stalled += [Stalled(*row[:3]) for row in rows if records.no_progress(row[3])]
    counter = prepared(compacting.db, compacting.counter)
    builder = PlanBuilder(
        view, counter=counter, budget=compacting.budget, stalled=stalled, awaits=_IS_ASYNC,
        authority=compacting.authority,
    )  # fmt: skip
    for callback in compacting.callbacks:
        mark = builder.begin(callback_name(callback))
        try:
            drive(run_callback(builder, callback))
        except Exception as error:  # noqa: BLE001 — an error is recorded, and discards only the callback's own plan
            builder.void(mark, error)
    conflict = next((error for error in builder.errors if isinstance(error, SpanConflict)), None)
    if conflict is not None and not builder.attempts:
        raise conflict
    return builder
