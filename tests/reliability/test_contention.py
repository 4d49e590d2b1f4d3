"""Many at once, and cut off anywhere: spans stay whole, a summary is paid for once, and nothing is left half done."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.errors import EmptySummary
from compaction_store.integrity import chain
from compaction_store.strategies import Ask
from reliability.rigs.cancel import CancelledAt, quiet
from reliability.test_faults import Proxy

LONG = "word " * 60
BUDGET = cs.TokenBudget(1400)
TIGHT = cs.TokenBudget(1000)


def said(number: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"{number} {LONG}"}


def chat(count: int = 12) -> list[dict[str, Any]]:
    return [said(i) for i in range(count)]


def span(start: int, end: int, text: Any = "a summary", **options: Any) -> Callable[[cs.CompactionContext], None]:
    def compact(ctx: cs.CompactionContext) -> None:
        ctx.compact(start, end, text, **options)

    return compact


def spans(store: Any, thread_id: str = "t") -> list[tuple[int, int]]:
    return [(e.seq, e.end_seq) for e in store.view(thread_id).elements]


def held(superuser: psycopg.Connection[Any], thread_id: str = "t") -> bool:
    """Whether somebody has the thread's lease."""
    row = superuser.execute(
        "SELECT lease_run IS NOT NULL OR lease_until IS NOT NULL FROM compaction_store.heads WHERE thread_uid = %s",
        (chain.thread_uid("default", thread_id),),
    ).fetchone()
    assert row is not None
    return bool(row[0])


@pytest.fixture
def thread(store: Face) -> Face:
    store.append("t", chat(), tokens=100)
    return store


@pytest.fixture
def workers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(24) as made:
        yield made


# ---- Many compactors


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
        assert store.verify("t").findings == ()
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
        assert store.verify("t").findings == ()


# ---- While a callback runs


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
        # The callback lasts until all have written: whoever waited for it would never get there.
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
    assert compactor.verify("t").findings == ()
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


# ---- One summary, one payer


def test_ten_workers_whose_view_does_not_fit_wait_for_one_summary(
    url: str, workers: ThreadPoolExecutor, superuser: psycopg.Connection[Any]
) -> None:
    paid: list[int] = []
    seen = threading.Semaphore(0)

    with cs.Store.open(url, pool_size=16) as store:
        store.append("t", chat(), tokens=100)

        def compact(ctx: cs.CompactionContext) -> None:
            paid.append(1)
            for _ in range(9):
                assert seen.acquire(timeout=60)
            ctx.compact(1, 10, "S")

        class Watched(cs.Store):
            """Says when it has found the thread taken."""

            def _leased(self, *arguments: Any) -> bool:
                taken = super()._leased(*arguments)
                if taken and not told.get(threading.get_ident()):
                    told[threading.get_ident()] = True
                    seen.release()
                return taken

        told: dict[int, bool] = {}
        store.__class__ = Watched
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
    assert reasons == ["another run is compacting the thread"]
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
        # It took too long: another has the thread by now.
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


# ---- Guards


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


# ---- Lost replies


class CommitProxy(Proxy):
    """Loses the reply to a commit; if `dies`, it is gone for good after that."""

    dies = False

    def _to_server(self, data: bytes, appending: threading.Event) -> bool:
        if b"compaction_store.commit_compactions" in data:
            appending.set()
        return True

    def _to_client(self, data: bytes, appending: threading.Event) -> bool:
        passes = super()._to_client(data, appending)
        if not passes and self.dies:
            self._listener.shutdown(socket.SHUT_RDWR)
        return passes


@pytest.fixture
def proxy(url: str) -> Iterator[CommitProxy]:
    made = CommitProxy(url)
    yield made
    made.close()


@pytest.mark.parametrize("budget", [None, BUDGET], ids=["manual", "budget"])
def test_a_run_whose_reply_is_lost_is_written_once(
    faces: Faces, proxy: CommitProxy, superuser: psycopg.Connection[Any], budget: Any
) -> None:
    store = faces.open(proxy.url)
    store.append("t", chat(), tokens=100)
    proxy.cuts = 2

    def compact(ctx: cs.CompactionContext) -> None:
        ctx.compact(1, 4, "S")
        ctx.remove(5, 6)

    run = store.compact("t", compact, budget=budget)
    assert proxy.lost_replies == 2
    assert [r.number for r in run] == [1, 2]
    proxy.cuts = 1
    assert store.revoke("t", 2).number == 3
    assert proxy.lost_replies == 3
    assert [(r.number, r.status) for r in store.compactions("t")] == [(1, "active"), (2, "revoked by 3"), (3, None)]
    assert store.verify("t").findings == ()
    assert not held(superuser)


@pytest.mark.parametrize("budget", [None, BUDGET], ids=["manual", "budget"])
def test_an_unknown_outcome_names_the_run(faces: Faces, url: str, proxy: CommitProxy, budget: Any) -> None:
    store, healthy = faces.open(proxy.url, deadline=1), faces.open(url)
    store.append("t", chat(), tokens=100)
    proxy.cuts = 10**6
    with pytest.raises(cs.OutcomeUnknown) as caught:
        store.compact("t", span(1, 4), budget=budget)
    assert caught.value.key is not None
    found = list(healthy.compactions("t", run_id=UUID(caught.value.key)))
    assert [(r.number, r.start_seq, r.end_seq) for r in found] == [(1, 1, 4)]
    with pytest.raises(cs.OutcomeUnknown) as caught:
        store.revoke("t", 1)
    assert caught.value.key is not None
    assert [r.revokes for r in healthy.compactions("t", run_id=UUID(caught.value.key))] == [1]
    assert healthy.verify("t").findings == ()


def test_an_unknown_outcome_is_told_even_if_the_lease_cannot_be_given_back(
    faces: Faces, url: str, proxy: CommitProxy
) -> None:
    store, healthy = faces.open(proxy.url, deadline=0.5, connect_timeout=1), faces.open(url)
    store.append("t", chat(), tokens=100)
    proxy.cuts, proxy.dies = 1, True
    with pytest.raises(cs.OutcomeUnknown) as caught:
        store.compact("t", span(1, 4), budget=BUDGET)
    assert caught.value.key is not None
    assert len(list(healthy.compactions("t", run_id=UUID(caught.value.key)))) == 1


# ---- Cancelled


async def _async_plan(ctx: cs.CompactionContext) -> None:
    async def summarize(_elements: Any) -> str:
        await asyncio.sleep(0)
        return "S"

    await ctx.compact(1, 2, summarize)
    ctx.remove(3, 4)
    try:
        await ctx.compact(5, 6, "")
    except EmptySummary:
        await asyncio.sleep(0)


@pytest.mark.parametrize("served", [False, True], ids=["at once", "when the server is done"])
def test_a_run_may_be_cancelled_wherever_it_waits(url: str, superuser: psycopg.Connection[Any], served: bool) -> None:
    def first() -> None:
        if served:
            quiet(superuser)

    async def main() -> int:
        async with await cs.AsyncStore.open(url, pool_size=1) as store:
            at = 0
            while True:
                thread_id = f"t{at}"
                await store.append(thread_id, chat(), tokens=100)
                run = CancelledAt(store.compact(thread_id, _async_plan, budget=BUDGET), at, first)

                async def wait(run: Any = run) -> Any:
                    return await run

                try:
                    await asyncio.create_task(wait())
                except asyncio.CancelledError:
                    pass
                else:
                    return at
                quiet(superuser)
                assert not held(superuser, thread_id), f"the lease is still held after a cancel at wait {at}"
                written = [r.outcome async for r in store.compactions(thread_id)]
                assert written in ([], ["applied", "applied", "rejected"])
                if not written:
                    assert (await store.compact(thread_id, _async_plan, budget=BUDGET)).applied
                assert (await store.verify(thread_id)).findings == ()
                at += 1

    assert asyncio.run(main()) > 10


def test_a_summarizer_that_outlives_its_callback_plans_nothing(url: str) -> None:
    async def main() -> None:
        async with await cs.AsyncStore.open(url) as store:
            await store.append("t", chat(), tokens=100)
            later, done = asyncio.Event(), asyncio.Event()

            async def slow(_elements: Any) -> str:
                await later.wait()
                return "too late"

            async def fails(_elements: Any) -> str:
                raise ValueError("no")

            async def hasty(ctx: cs.CompactionContext) -> None:
                async def plan() -> None:
                    with suppress(TypeError):
                        await ctx.compact(1, 2, slow)
                    done.set()

                task = asyncio.create_task(plan())
                left.append(task)
                await asyncio.sleep(0)
                await ctx.compact(3, 4, fails)

            async def patient(ctx: cs.CompactionContext) -> None:
                later.set()
                await done.wait()
                ctx.compact(5, 6, "in time")

            left: list[asyncio.Task[None]] = []
            run = await store.compact("t", hasty, patient)
            assert [(r.outcome, r.start_seq, r.end_seq) for r in run] == [("failed", 3, 4), ("applied", 5, 6)]
            await asyncio.gather(*left)

    asyncio.run(main())


# ---- No content in what is left behind


SECRET = "s3cr3t"


def test_no_failure_leaves_content_behind(
    thread: Face, url: str, superuser: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    other = Faces("sync", None).open(url)
    call = {"id": SECRET, "type": "function", "function": {"name": SECRET, "arguments": SECRET}}
    thread.append("t", {"role": "system", "content": f"{SECRET} {LONG}"}, tokens=100)
    thread.append("t", {"role": "assistant", "content": SECRET, "tool_calls": [call]}, tokens=100)
    thread.append("t", {"role": "tool", "tool_call_id": SECRET, "content": f"{SECRET} {LONG}"}, tokens=100)
    thread.append("t", {"role": "assistant", "content": SECRET, "tool_calls": [{**call, "id": "x"}]}, tokens=100)
    thread.append("t", {"role": "user", "content": f"{SECRET} {LONG}"}, tokens=100)

    def raises(_ctx: Any) -> Any:
        raise ValueError(SECRET)

    def beaten(ctx: cs.CompactionContext) -> None:
        other.compact("t", span(1, 2, "S"))
        ctx.compact(1, 3, SECRET)

    stand_in = {"role": "assistant", "content": SECRET}
    attempts: list[Any] = [
        raises, span(1, 4, raises), span(1, 4, lambda _e: {SECRET: 1}), span(1, 4, lambda _e: cs.Summary(SECRET * 500)),
        span(1, 4, SECRET * 500), span(1, 4, ""), span(14, 14, SECRET), span(15, 15, SECRET), span(16, 16, SECRET),
        span(13, 13, SECRET), span(17, 17, SECRET), span(1, 99, SECRET), span(1, 4, 7),
        span(1, 4, SECRET, allow={SECRET}),
        lambda ctx: ctx.replace(14, 15, [stand_in]), lambda ctx: ctx.replace(1, 2, [{SECRET: float("nan")}]),
        lambda ctx: ctx.replace(1, 1, [{"role": "user", "content": SECRET * 500}]), lambda ctx: ctx.replace(1, 1, []),
        lambda ctx: ctx.safe_span(SECRET, SECRET), lambda ctx: ctx.compact(SECRET, SECRET, SECRET),
        lambda ctx: ctx.count([{SECRET: {1, 2}}]), beaten,
    ]  # fmt: skip
    told = []
    for attempt in attempts:
        try:
            run = thread.compact("t", attempt)
        except cs.CompactionStoreError as error:
            told += _everything(error)
        else:
            told += [run.reason, repr(run), repr(run.records), repr(run.view)]
            # What a user's own code raised is handed back as it is; what we raise says nothing of content.
            told += [t for e in run.errors if isinstance(e, cs.CompactionStoreError) for t in _everything(e)]
            assert not run.applied
    try:
        thread.fit("t", cs.TokenBudget(100), raises)
    except cs.BudgetExceeded as error:
        told += _everything(error)
    assert not [text for text in told if SECRET in text]
    records = [r for r in thread.compactions("t") if r.outcome != "applied"]
    assert len(records) >= len(attempts) - 4
    rows = superuser.execute(
        "SELECT to_json(c)::text, c.body::text FROM compaction_store.compactions AS c WHERE outcome <> 'applied'"
    ).fetchall()
    assert SECRET not in json.dumps(rows) + caplog.text
    assert thread.verify("t").findings == ()
    other.close()


def _everything(error: BaseException | None) -> list[str]:
    """An error's texts, and those of the errors it came from."""
    found = []
    while error is not None:
        found += [str(error), repr(error), repr(error.args), repr(vars(error))]
        error = error.__cause__ or error.__context__
    return found


def test_what_a_strategy_asks_for_shows_no_content() -> None:
    ask = Ask(1, 2, SECRET, ({"role": "user", "content": SECRET},), reason=SECRET)
    assert SECRET not in repr(ask)
