"""Many at once: spans stay whole, nobody waits for a callback, and a summary is paid for once."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from support.contended_thread import BUDGET, LONG, chat, held, said, span
from support.faces import Face, Faces

import compaction_store as cs

TIGHT = cs.TokenBudget(1000)


def spans(store: Any, thread_id: str = "t") -> list[tuple[int, int]]:
    return [(e.seq, e.end_seq) for e in store.view(thread_id).elements]


@pytest.fixture
def workers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(24) as made:
        yield made


def test_sixteen_compactors_never_leave_spans_that_overlap(url: str, workers: ThreadPoolExecutor) -> None:
    with cs.Store.open(url, pool_size=16) as store:
        for _ in range(4):
            store.append("t", chat(100), tokens=1000)
        start = threading.Barrier(16)

        def work(seed: int) -> Counter[str]:
            chance = random.Random(seed)
            found: Counter[str] = Counter()
            start.wait()
            for _ in range(100):
                low = chance.randint(1, 400)
                size = chance.choice((0, 1, 2, 5, 20, 100))
                try:
                    run = store.compact("t", span(low, min(400, low + size), "S"))
                except cs.SpanConflict:
                    found["conflict"] += 1
                else:
                    found[run.reason] += 1
            return found

        total = sum(workers.map(work, range(16)), Counter())
        records = list(store.compactions("t"))
        assert total.total() == 1600
        assert set(total) == {"compacted", "conflict"}
        assert total["compacted"] == len(records)
        assert [r.number for r in records] == list(range(1, len(records) + 1))
        active = sorted((r.start_seq or 0, r.end_seq or 0) for r in records if r.status == "active")
        assert all(one[1] < other[0] for one, other in pairwise(active))
        folded = spans(store)
        assert [seq for low, high in folded for seq in range(low, high + 1)] == list(range(1, 401))
        assert active == [s for s in folded if s in set(active)]
        assert store.thread("t").view_tokens == store.view("t").tokens
        assert store.audit.verify("t").findings == ()
        for record in records[:: max(1, len(records) // 10)]:
            assert store.view("t", at=record).pos == record.pos


def fold(store: cs.Store, chance: random.Random) -> None:
    """Compacts any four elements or fewer, and now and then undoes what was compacted last."""
    elements = store.view("t").elements
    low = chance.randrange(len(elements) - 4)
    with suppress(cs.Conflict):
        store.compact("t", span(elements[low].seq, elements[low + chance.randint(1, 4)].end_seq, "S"))
        if chance.random() < 0.3:
            newest = next(store.compactions("t", newest_first=True, kind="summary"))
            store.revoke("t", newest.number)


def until(over: threading.Event, act: Callable[[], Any]) -> list[Any]:
    found = []
    while not over.is_set():
        found.append(act())
    return found


def test_readers_see_whole_views_while_others_append_and_compact(url: str, workers: ThreadPoolExecutor) -> None:
    with cs.Store.open(url, pool_size=16) as store:
        store.append("t", chat(), tokens=100)
        over = threading.Event()
        readers = [workers.submit(until, over, lambda: store.view("t")) for _ in range(3)]
        folders = [workers.submit(until, over, partial(fold, store, random.Random(seed))) for seed in range(2)]
        writers = [
            workers.submit(lambda: [store.append("t", said(i), tokens=100) for i in range(60)]) for _ in range(4)
        ]
        for writer in writers:
            writer.result(120)
        over.set()
        for folder in folders:
            folder.result(30)
        views = {view.pos: view for reader in readers for view in reader.result(30)}
        some = random.Random(1).sample(sorted(views.values(), key=lambda view: view.pos), min(60, len(views)))
        for view in some:
            seqs = [seq for e in view.elements for seq in range(e.seq, e.end_seq + 1)]
            assert seqs == list(range(1, len(seqs) + 1))
            assert store.view("t", at=view.pos) == view
        assert store.audit.verify("t").findings == ()


def test_eight_writers_append_while_a_callback_runs(
    faces: Faces, url: str, workers: ThreadPoolExecutor, superuser: psycopg.Connection[Any]
) -> None:
    compactor, others = faces.open(url, pool_size=1), Faces("sync", None).open(url)
    compactor.append("t", chat(), tokens=100)
    ours = [
        row[0]
        for row in superuser.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend' AND query LIKE '%compaction_store.append%'"
        ).fetchall()
    ]
    states: list[Any] = []

    def write(number: int) -> int:
        return len([others.append("t", said(number), tokens=100) for _ in range(20)])

    def compact(ctx: cs.CompactionContext) -> None:
        # The callback runs until all writers have written, so a writer that waited for it would never finish.
        writers: list[Future[int]] = [workers.submit(write, i) for i in range(8)]
        assert sum(writer.result(60) for writer in writers) == 160
        states.extend(
            superuser.execute(
                "SELECT state, xact_start, (SELECT count(*) FROM pg_locks AS l WHERE l.pid = a.pid)"
                " FROM pg_stat_activity AS a WHERE pid = ANY (%s)",
                (ours,),
            ).fetchall()
        )
        ctx.compact(1, 8, "S")

    run = compactor.compact("t", compact, budget=BUDGET)
    assert states == [("idle", None, 0)]
    assert [(e.seq, e.end_seq) for e in run.view.elements] == [(1, 8), *((i, i) for i in range(9, 173))]
    assert compactor.audit.verify("t").findings == ()
    others.close()


def test_a_callback_may_append_on_the_only_connection_there_is(url: str) -> None:
    with cs.Store.open(url, pool_size=1, connect_timeout=1) as store:
        store.append("t", chat(), tokens=100)

        def compact(ctx: cs.CompactionContext) -> None:
            store.append("t", said(13), tokens=100)
            store.compact("t", span(9, 10))
            ctx.compact(1, 8, "S")

        assert store.compact("t", compact, budget=BUDGET).applied
        assert spans(store) == [(1, 8), (9, 10), (11, 11), (12, 12), (13, 13)]


def test_an_async_callback_may_too(url: str) -> None:
    async def main() -> None:
        async with await cs.AsyncStore.open(url, pool_size=1, connect_timeout=1) as store:
            await store.append("t", chat(), tokens=100)

            async def compact(ctx: cs.CompactionContext) -> None:
                async def summarize(_elements: Any) -> str:
                    await store.append("t", said(13), tokens=100)
                    return "S"

                await ctx.compact(1, 8, summarize)

            assert (await store.compact("t", compact, budget=BUDGET)).applied
            assert len((await store.view("t")).elements) == 6

    asyncio.run(main())


def test_ten_workers_whose_view_does_not_fit_wait_for_one_summary(
    url: str, workers: ThreadPoolExecutor, superuser: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    paid: list[int] = []
    seen = threading.Semaphore(0)
    found_taken: set[int] = set()

    with cs.Store.open(url, pool_size=16) as store:
        store.append("t", chat(), tokens=100)

        def compact(ctx: cs.CompactionContext) -> None:
            paid.append(1)
            for _ in range(9):
                assert seen.acquire(timeout=60)
            ctx.compact(1, 10, "S")

        def wait(seconds: float) -> None:
            """Waits, and reports the first wait of each thread: it has found the lease taken."""
            if threading.get_ident() not in found_taken:
                found_taken.add(threading.get_ident())
                seen.release()
            time.sleep(seconds)

        monkeypatch.setattr(store._db, "sleep", wait)
        views = list(workers.map(lambda _: store.fit("t", TIGHT, compact), range(10)))
        assert paid == [1]
        assert {tuple((e.seq, e.end_seq) for e in view.elements) for view in views} == {((1, 10), (11, 11), (12, 12))}
        assert len(list(store.compactions("t"))) == 1
    assert not held(superuser)


def test_ten_tasks_whose_view_does_not_fit_wait_for_one_summary(url: str) -> None:
    async def main() -> None:
        async with await cs.AsyncStore.open(url) as store:
            await store.append("t", chat(), tokens=100)
            paid: list[int] = []

            async def compact(ctx: cs.CompactionContext) -> None:
                paid.append(1)
                await asyncio.sleep(0.3)
                ctx.compact(1, 10, "S")

            views = await asyncio.gather(*[store.fit("t", TIGHT, compact) for _ in range(10)])
            assert paid == [1]
            assert {len(view.elements) for view in views} == {3}

    asyncio.run(main())


def test_who_has_a_view_that_fits_comes_back_while_the_other_still_works(thread: Face, url: str) -> None:
    other = Faces("sync", None).open(url)
    reasons: list[str] = []

    def never(_ctx: cs.CompactionContext) -> None:
        raise AssertionError

    def compact(ctx: cs.CompactionContext) -> None:
        run = other.compact("t", never, budget=BUDGET)
        reasons.append(run.reason)
        assert (len(run), len(run.view.elements)) == (0, 12)
        assert other.fit("t", BUDGET, never).tokens == 1200
        ctx.compact(1, 8, "S")

    assert thread.compact("t", compact, budget=BUDGET).applied
    assert [reason.split(", since 2")[0] for reason in reasons] == [
        "another run is compacting the thread: no actor given"
    ]
    other.close()


def test_who_waits_for_a_holder_that_died_works_in_its_place(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute(
        "UPDATE compaction_store.heads SET lease_run = %s, lease_until = clock_timestamp() + interval '1 second'",
        (uuid4(),),
    )
    run = thread.compact("t", span(1, 8, "S"), budget=TIGHT)
    assert (run.applied, run[0].trigger) == (True, "budget")
    assert not held(superuser)


@pytest.mark.parametrize("end", ["commits", "plans nothing", "raises"])
def test_a_holder_whose_lease_ran_out_does_not_take_another_ones_along(
    thread: Face, superuser: psycopg.Connection[Any], end: str
) -> None:
    class Interrupt(BaseException):
        pass

    def compact(ctx: cs.CompactionContext) -> None:
        # The run took too long, and another run has the thread now.
        superuser.execute(
            "UPDATE compaction_store.heads SET lease_run = %s, lease_until = clock_timestamp() + interval '1 hour'",
            (uuid4(),),
        )
        theirs.extend(superuser.execute(lease).fetchall())
        if end == "commits":
            ctx.compact(1, 8, "S")
        if end == "raises":
            raise Interrupt

    lease = "SELECT lease_run, lease_until FROM compaction_store.heads"
    theirs: list[Any] = []
    with suppress(Interrupt):
        thread.compact("t", compact, budget=BUDGET)
    assert superuser.execute(lease).fetchall() == theirs
    assert [r.outcome for r in thread.compactions("t")] == (["applied"] if end == "commits" else [])


def test_a_callback_that_gets_nowhere_is_called_and_paid_for_once(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    paid: list[int] = []

    def compact(ctx: cs.CompactionContext) -> None:
        def summarize(_elements: Any) -> str:
            paid.append(1)
            return LONG * 100

        ctx.compact(1, 8, summarize)

    for _ in range(4):
        assert not thread.compact("t", compact, budget=BUDGET).applied
        with pytest.raises(cs.BudgetExceeded):
            thread.fit("t", TIGHT, compact)
    assert paid == [1]
    assert [(r.outcome, r.start_seq, r.end_seq) for r in thread.compactions("t")] == [("rejected", 1, 8)]
    assert not held(superuser)
    thread.append("t", said(13), tokens=100)
    assert not thread.compact("t", compact, budget=BUDGET).applied
    assert paid == [1, 1]


@pytest.mark.parametrize("what", ["raises", "rejected", "plans nothing", "no callback", "summarizer raises"])
def test_a_thread_that_got_nowhere_is_not_due_until_it_has_grown(thread: Face, what: str) -> None:
    def fails(_elements: Any = None) -> str:
        raise ValueError("no")

    callbacks: dict[str, tuple[Any, ...]] = {
        "raises": (fails,), "rejected": (span(1, 8, ""),), "plans nothing": (lambda _ctx: None,), "no callback": (),
        "summarizer raises": (span(1, 8, fails),),
    }  # fmt: skip
    budget = cs.TokenBudget(1100, trigger=1000, target=900)
    assert [t.thread_id for t in thread.due(budget)] == ["t"]
    assert not thread.compact("t", *callbacks[what], budget=budget).applied
    assert list(thread.due(budget)) == []
    thread.append("t", said(13), tokens=99)
    assert list(thread.due(budget)) == []
    thread.append("t", said(14), tokens=1)
    assert [t.thread_id for t in thread.due(budget)] == ["t"]
    assert thread.compact("t", span(1, 12), budget=budget).applied
    assert list(thread.due(budget)) == []


def test_a_thread_that_is_being_compacted_is_not_due(thread: Face, url: str) -> None:
    other = Faces("sync", None).open(url)
    found: list[Any] = []

    def compact(_ctx: cs.CompactionContext) -> None:
        found.extend(other.due(TIGHT))

    thread.compact("t", compact, budget=TIGHT)
    assert found == []
    other.close()


def test_fit_returns_a_view_that_fits_whatever_went_wrong(thread: Face, url: str) -> None:
    other = Faces("sync", None).open(url)

    def raises(_ctx: cs.CompactionContext) -> None:
        raise ValueError("no")

    def beaten(ctx: cs.CompactionContext) -> None:
        other.compact("t", span(1, 2, "another was faster"))
        ctx.compact(1, 3, "S")

    for callback in (raises, span(1, 8, ""), span(3, 99), lambda _ctx: None, beaten):
        assert thread.fit("t", BUDGET, callback).tokens <= BUDGET.limit
    assert spans(thread)[0] == (1, 2)
    with pytest.raises(cs.BudgetExceeded) as caught:
        thread.fit("t", cs.TokenBudget(300), raises)
    assert spans(thread) == [(e.seq, e.end_seq) for e in caught.value.view.elements]
    assert thread.fit("t", cs.TokenBudget(300), span(1, 12, "S")).tokens <= 300
    other.close()


def test_fit_says_what_is_wrong_with_its_arguments(thread: Face) -> None:
    with pytest.raises(TypeError):
        thread.fit("t", BUDGET, 7)
    with pytest.raises(cs.InvalidInput):
        thread.fit("t", BUDGET, span(1, 2), actor="")
    with pytest.raises(cs.ThreadNotFound):
        thread.fit("unknown", BUDGET)
