"""Writes compaction records. Callbacks run outside of any transaction, and no connection is held meanwhile."""

from __future__ import annotations

import inspect
import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from compaction_store import arguments, errors, tokens, waiting
from compaction_store.arguments import about
from compaction_store.compaction import adoption, records, size_estimate, summary_room
from compaction_store.compaction.adoption import Made
from compaction_store.compaction.asks import Stalled, Summarize
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.callbacks import Callback, Listener, run_callbacks, tell
from compaction_store.compaction.plan import CompactionPlan, CompactionRun
from compaction_store.compaction.planner import Planner
from compaction_store.compaction.records import log_run
from compaction_store.compaction.repair import RepairStrategy, check_repairable
from compaction_store.compaction.summary_request import SummaryResult
from compaction_store.jsonable import time_text
from compaction_store.messages import documents
from compaction_store.models import Compaction, Measured, Payload
from compaction_store.models.vocabulary import Withdrawal
from compaction_store.postgres import queries
from compaction_store.postgres.calling import call
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import ThreadKey
from compaction_store.postgres.queries.functions import LeaseRow
from compaction_store.rendering.view import Rendered, View
from compaction_store.store._async.appends import prepared
from compaction_store.store._async.pages import calibrated
from compaction_store.store._async.reader import AsyncReader
from compaction_store.store.lease_keeper import AsyncLeaseKeeper
from compaction_store.waiting import drive_async

_IS_ASYNC = True
_log = logging.getLogger("compaction_store")
# Short, so that a run that died delays the others for less than a minute. It is renewed while its run lives.
_LEASE_SECONDS = 45.0
#: For how many seconds a lease is renewed, and others wait for it. So a callback that never ends does not keep others
#: from the thread forever.
LONGEST_RUN = 600.0
_RELEASE_SECONDS = 1.0
# How many of the newest records are searched for attempts that made no progress.
_STALLED = 100
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


class WriteOrder(NamedTuple):
    """The reason for records, who writes them, and the callbacks that get them."""

    reason: str | None
    actor: str | None
    authority: Payload | None
    listeners: Sequence[Listener]


class Revoked(NamedTuple):
    """The record that a repair revokes in the same run, and why."""

    number: int
    reason: str | None


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Compacting:
    """One call of `compact`, `plan` or `repair`: a thread, the callbacks for it, and the budget."""

    reader: AsyncReader
    db: AsyncConnections
    counter: tokens.Counter
    thread: ThreadKey
    callbacks: tuple[Callback, ...]
    budget: TokenBudget | None
    force: bool
    #: The seconds to wait for the lease of another run, if the view does not fit the budget.
    wait: float = LONGEST_RUN
    actor: str | None = None
    authority: Payload | None = None
    #: The trigger to record, instead of the one that `compact` would choose.
    trigger: str | None = None
    revoked: Revoked | None = None
    listeners: Sequence[Listener] = ()
    run_id: UUID = field(default_factory=uuid4)
    began: float = field(default_factory=time.monotonic)

    @property
    def thread_id(self) -> str:
        return self.thread.thread_id


async def compact(compacting: Compacting) -> CompactionRun:
    """Runs the callbacks and commits their plan, if there is no budget, the view is over it, or `force` is set."""
    budget = compacting.budget
    if budget is None:
        view = await compacting.reader.view(compacting.thread_id)
        return await run_and_commit(compacting, view, "manual")
    view = await measured_view(compacting.reader, compacting.db, compacting.thread, budget)
    if not compacting.force and not budget.is_over(view):
        return CompactionRun((), "the view is within its budget", view)
    return await compact_measured(compacting, view, budget)


async def compact_measured(compacting: Compacting, view: View, budget: TokenBudget) -> CompactionRun:
    """Compacts a thread whose view has been measured and is over the budget, or must be compacted anyway."""
    leave = partial(_release, compacting.db, compacting.thread, compacting.run_id)
    keeper = AsyncLeaseKeeper(compacting, _renew, leave, _LEASE_SECONDS / 3, at_most=LONGEST_RUN - _LEASE_SECONDS)
    try:
        run = await _compact_alone(compacting, view, budget, keeper)
    except BaseException as error:
        # After an error of the database, the deadline may have passed already.
        await keeper.end(0 if isinstance(error, errors.DatabaseError) else _RELEASE_SECONDS)
        raise
    keeper.stop()
    return run


async def _renew(compacting: Compacting) -> bool:
    """Renews the lease of a run in the background; returns whether to continue."""
    db = compacting.db.with_at_most(_LEASE_SECONDS / 3)
    # After an error, the next attempt comes before the lease ends.
    with suppress(errors.CompactionStoreError):
        if not await db.call(queries.renew_lease, compacting.thread, compacting.run_id, _LEASE_SECONDS):
            about = arguments.about(compacting.thread_id)
            _log.warning("a compaction stalled and lost its lease: another run may have begun%s", about)
            return False
    return True


async def _release(db: AsyncConnections, thread: ThreadKey, run_id: UUID, seconds: float) -> None:
    # Suppress errors: the caller must see the error that ended the run, and the lease also expires by itself.
    with suppress(errors.CompactionStoreError):
        await db.with_at_most(seconds).call(queries.release, thread, run_id, False)


async def plan(compacting: Compacting) -> CompactionPlan:
    """Returns what the callbacks plan for the thread's view. Writes nothing."""
    reader, budget = compacting.reader, compacting.budget
    if budget is None:
        view = await reader.view(compacting.thread_id)
    else:
        view = await measured_view(reader, compacting.db, compacting.thread, budget)
        if not compacting.force and not budget.is_over(view):
            return CompactionPlan((), "the view is within its budget", view, view)
    planner = await _run_callbacks(compacting, view)
    after = replace(view, elements=planner.plan.folded())
    if view.measured is not None:
        after = replace(after, measured=view.measured.moved(after.tokens))
    reason = planner.reason(tried=bool(compacting.callbacks))
    return CompactionPlan(tuple(planner.attempts), reason, view, after, tuple(planner.errors))


async def _written(
    thread: ThreadKey, run_id: UUID, rows: Sequence[Any], listeners: Sequence[Listener]
) -> list[Compaction]:
    """Returns the records that were committed, after telling the listeners of them."""
    written = records.from_commit(thread.thread_id, run_id, rows)
    await drive_async(tell(listeners, written))
    return written


async def revoke(
    db: AsyncConnections, thread: ThreadKey, number: int, view: View | None, order: WriteOrder
) -> Compaction:
    """Writes a revocation and returns it."""
    run_id = uuid4()
    pos, head = (0, None) if view is None else (view.pos, view.head)
    body = records.stated(reason=order.reason, authority=order.authority)
    text = json.dumps([records.revocation(number, body, actor=order.actor)])
    rows = await db.call(queries.commit_compactions, thread, run_id, pos, head, text, key=str(run_id))
    return (await _written(thread, run_id, rows, order.listeners))[0]


async def measured_view(
    reader: AsyncReader, db: AsyncConnections, thread: ThreadKey, budget: TokenBudget, known: View | None = None
) -> View:
    """Returns the thread's view with a measurement of its size, or `known` if it has the same pos and head."""
    size_estimate.check_budget(budget, awaits=_IS_ASYNC)
    view = await reader.view(thread.thread_id)
    if known is not None and (known.pos, known.head) == (view.pos, view.head):
        return known
    return await _measured(db, view, budget, await calibrated(db, thread, view.tokens, budget))


async def _measured(db: AsyncConnections, view: View, budget: TokenBudget, estimate: Measured) -> View:
    """Adds an estimate to the view. Above half of the trigger, the budget's counter, if any, counts exactly instead."""
    if budget.counter is not None and size_estimate.is_worth_counting(estimate, budget):
        try:
            found: Any = await db.run_in_thread(budget.counter, view)
            if inspect.isawaitable(found):
                found = await found
            estimate = size_estimate.counted(estimate, found, budget)
        except Exception as error:  # noqa: BLE001 — the counter may raise anything; the estimate is used instead
            estimate = size_estimate.failed(estimate, error)
    return replace(view, measured=estimate)


async def _compact_alone(
    compacting: Compacting, view: View, budget: TokenBudget, keeper: AsyncLeaseKeeper[None]
) -> CompactionRun:
    """Takes the thread's lease and compacts. Waits for another run only if the view is over the limit."""
    reader, db, thread = compacting.reader, compacting.db, compacting.thread
    claim = partial(db.call, queries.lease, thread, compacting.run_id, _LEASE_SECONDS, compacting.actor)
    pause = _FIRST_PAUSE
    waits_for = ""
    end = compacting.began + compacting.wait
    # If the task is cancelled, the request ends before the lease is released: a request that came after that would take
    # a lease that nobody releases.
    while (lease := await waiting.finished(claim)).held_until is not None:
        who = _holder(lease)
        if budget.fits(view):
            return CompactionRun((), f"another run is compacting the thread: {who}", view)
        left = end - time.monotonic()
        if left <= 0:
            return CompactionRun((), f"another run is compacting the thread: {who}; waited {compacting.wait:g} s", view)
        if who != waits_for:
            waits_for = who
            about = arguments.about(thread.thread_id)
            _log.warning("a compaction waits up to %.0f seconds for another run: %s%s", left, who, about)
        await db.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
        view = await measured_view(reader, db, thread, budget, view)
        if not budget.is_over(view):
            return CompactionRun((), "another run has compacted the thread", view)
    keeper.start()
    if (lease.last_pos, lease.head) != (view.pos, view.head):
        # The callbacks must see everything that has been written since, such as the records of another run.
        view = await measured_view(reader, db, thread, budget, view)
    if not compacting.force and not budget.is_over(view):
        await db.call(queries.release, thread, compacting.run_id, False)
        return CompactionRun((), "another run has compacted the thread", view)
    return await run_and_commit(compacting, view, "budget" if budget.is_over(view) else "forced")


def _holder(claim: LeaseRow) -> str:
    who = "no actor given" if claim.holder is None else f"actor {claim.holder!r}"
    return who + ("" if claim.held_since is None else f", since {time_text(claim.held_since)}")


async def run_and_commit(
    compacting: Compacting, view: View, trigger: str, *, shown: View | None = None
) -> CompactionRun:
    """Runs the callbacks on `view` and commits their plan. In a repair, `shown` is the thread's current view."""
    db, thread, budget, run_id = compacting.db, compacting.thread, compacting.budget, compacting.run_id
    planner = await _run_callbacks(compacting, view)
    reason = planner.reason(tried=bool(compacting.callbacks))
    shown = view if shown is None else shown
    if not planner.attempts:
        if budget is not None:
            await db.call(queries.release, thread, run_id, True)
        return CompactionRun((), reason, shown, tuple(planner.errors))
    text = records.to_json(
        planner.attempts,
        trigger=compacting.trigger or trigger,
        actor=compacting.actor,
        counter=compacting.counter.name,
        measured=size_estimate.as_json(view),
        first=_revocation(compacting, trigger) if planner.applied else (),
    )
    rows = await db.call(queries.commit_compactions, thread, run_id, view.pos, view.head, text, key=str(run_id))
    written = await _written(thread, run_id, rows, compacting.listeners)
    log_run(thread.thread_id, written, planner.errors)
    after = await _view_after(compacting, view, written, rows[-1].entry) if planner.applied else shown
    return CompactionRun(tuple(written), reason, after, tuple(planner.errors))


def _revocation(compacting: Compacting, trigger: str) -> tuple[Payload, ...]:
    """Returns the revocation of the record that a repair replaces, or nothing if the run is not a repair."""
    if compacting.revoked is None:
        return ()
    number, reason = compacting.revoked
    body = records.stated(reason=reason, authority=compacting.authority)
    return (records.revocation(number, body, actor=compacting.actor, trigger=trigger),)


async def _view_after(compacting: Compacting, view: View, written: list[Compaction], head: bytes) -> View:
    after = records.view_after(view, written, head)
    if after is None:
        with call.after_write(str(compacting.run_id), compacting.thread_id):
            after = await compacting.reader.view(compacting.thread_id)
    if compacting.budget is None or view.measured is None:
        return after
    return await _measured(compacting.db, after, compacting.budget, view.measured.moved(after.tokens))


async def _run_callbacks(compacting: Compacting, view: View) -> Planner:
    """Returns the planner after the callbacks ran. Raises a `SpanConflict` if nobody made an attempt."""
    stalled: list[Stalled] = []
    # Earlier attempts without progress do not stop a repair, because the person who asks for it knows about them.
    if compacting.revoked is None:
        rows = await compacting.db.call(queries.stalled, compacting.thread, _STALLED)
        stalled += [Stalled(row.callback, row.start_seq, row.end_seq) for row in rows if records.no_progress(row.body)]
    counter = await prepared(compacting.db, compacting.counter)
    planner = Planner(
        view, counter=counter, budget=compacting.budget, stalled=stalled, awaits=_IS_ASYNC,
        authority=compacting.authority,
    )  # fmt: skip
    await drive_async(run_callbacks(planner, compacting.callbacks))
    conflict = next((error for error in planner.errors if isinstance(error, errors.SpanConflict)), None)
    if conflict is not None and not planner.attempts:
        raise conflict
    return planner


# ---- repairs: a record is revoked and its span summarized again, in one run


async def repair(
    work: Compacting, number: int, summarize: SummaryResult | Summarize, *, reason: str | None, **options: Any
) -> CompactionRun:
    reader = work.reader
    record = await reader.compaction(work.thread_id, number)
    check_repairable(record)
    view = await reader.view(work.thread_id)
    if not any((element.number, element.created_at) == (number, record.created_at) for element in view.elements):
        raise errors.Conflict(f"compaction {number} is not active: run the repair again{about(work.thread_id)}")
    inside = await reader.view(work.thread_id, at=record.pos - 1)
    callback: Any = RepairStrategy(record, summarize, reason=reason, **options)
    work = replace(work, callbacks=(callback,), revoked=Revoked(number, reason))
    return await run_and_commit(work, _without(view, record, inside), "repair", shown=view)


def _without(view: View, record: Compaction, inside: View) -> View:
    """Returns the view as if a record were revoked. Erasing anything in its span would have erased the record too."""
    span = [e for e in inside.elements if (record.start_seq or 0) <= e.seq <= (record.end_seq or 0)]
    elements = [each for element in view.elements for each in (span if element.number == record.number else [element])]
    return replace(view, elements=tuple(elements))


# ---- ends of views at an earlier seq


async def rewind(
    db: AsyncConnections,
    thread: ThreadKey,
    kind: Withdrawal,
    seq: int,
    view: View | None,
    order: WriteOrder,
    *,
    hide: bool,
) -> tuple[Compaction, ...]:
    """Writes a rewind or a clear and the revocations that it needs, or nothing if the view ends at `seq` already."""
    run_id = uuid4()
    revoked = records.stated(reason=order.reason, authority=order.authority)
    head = None if view is None else view.head
    rows = await db.call(
        queries.rewind, thread, run_id, seq, kind, hide, head, order.actor, documents.body_text(revoked),
        documents.body_text({"replacement": [], **revoked}), key=str(run_id),
    )  # fmt: skip
    return tuple(await _written(thread, run_id, rows, order.listeners))


# ---- compactions that a provider made: records that make the same change to the thread's view


async def adopt(
    reader: AsyncReader,
    db: AsyncConnections,
    counter: tokens.Counter,
    thread: ThreadKey,
    made: Made,
    order: WriteOrder,
    *,
    view: View | Rendered | None,
    start_seq: int | None,
    end_seq: int | None,
) -> tuple[Compaction, ...]:
    has_span = start_seq is not None and end_seq is not None
    if made.stand_ins is None and made.record is None and not (made.is_boundary and has_span):
        made = adoption.of_record(await _observed(reader, thread.thread_id, made))
    if made.record is not None:
        # Use thread_uid: the name may belong to another thread by now.
        thread = thread._replace(uid=made.record.thread_uid)
    base = await reader.view(thread.thread_id) if view is None else view.view if isinstance(view, Rendered) else view
    first, last = _range(made, base, start_seq, end_seq)
    plan = adoption.parts(base.elements, first, last, made.stand_ins)
    if not plan:
        return ()
    count = partial(summary_room.count_encoded, await prepared(db, counter))
    reason, actor, authority, listeners = order
    text = adoption.to_json(made, plan, count, counter=counter.name, reason=reason, actor=actor, authority=authority)
    run_id = uuid4()
    rows = await db.call(queries.commit_compactions, thread, run_id, base.pos, base.head, text, key=str(run_id))
    return tuple(await _written(thread, run_id, rows, listeners))


async def _observed(reader: AsyncReader, thread_id: str, made: Made) -> Compaction:
    """Finds the record that was written when the provider's compaction was stored."""
    async for record in reader.compactions(thread_id, outcome="observed", kind="summary", newest_first=True):
        if adoption.is_record_of(record, made):
            return record
    what = "the thread has no record of this compaction; first append the reply that contains it"
    raise errors.CompactionNotFound(what + arguments.about(thread_id))


def _range(made: Made, view: View, start_seq: int | None, end_seq: int | None) -> tuple[int, int]:
    if made.record is not None:
        if start_seq is not None or end_seq is not None:
            raise errors.InvalidInput(
                "start_seq and end_seq must be left out: the observed compaction has its own span"
            )
        assert made.record.start_seq is not None  # noqa: S101 — of_record refuses others
        assert made.record.end_seq is not None  # noqa: S101
        return made.record.start_seq, made.record.end_seq
    if not view.elements:
        raise errors.InvalidInput("view must have at least one element, not none")
    first = view.elements[0].seq if start_seq is None else start_seq
    last = view.elements[-1].end_seq if end_seq is None else end_seq
    if first > last:
        raise errors.InvalidInput(f"start_seq must be at most end_seq = {last}, not {first}")
    return first, last
