"""A compaction whose reply is lost, or that is cancelled or fails: written once or not at all, no content left."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.contended_thread import BUDGET, LONG, chat, held, span
from support.faces import Face, Faces
from support.lost_replies import Proxy

import compaction_store as cs
from compaction_store.errors import EmptySummary
from compaction_store.strategies import Ask
from reliability.rigs.cancel import CancelledAt, quiet


class CommitProxy(Proxy):
    """Loses the reply to a commit. If `dies` is set, it refuses all connections after that."""

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
    assert [(r.number, r.status) for r in store.compactions("t")] == [(1, "active"), (2, "revoked"), (3, "applied")]
    assert store.audit.verify("t").findings == ()
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
    assert healthy.audit.verify("t").findings == ()


def test_an_unknown_outcome_is_reported_even_if_the_lease_cannot_be_given_back(
    faces: Faces, url: str, proxy: CommitProxy
) -> None:
    store, healthy = faces.open(proxy.url, deadline=0.5, connect_timeout=1), faces.open(url)
    store.append("t", chat(), tokens=100)
    proxy.cuts, proxy.dies = 1, True
    with pytest.raises(cs.OutcomeUnknown) as caught:
        store.compact("t", span(1, 4), budget=BUDGET)
    assert caught.value.key is not None
    assert len(list(healthy.compactions("t", run_id=UUID(caught.value.key)))) == 1


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
                assert (await store.audit.verify(thread_id)).findings == ()
                at += 1

    assert asyncio.run(main()) > 5


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
            # Errors of the user's own code are returned unchanged. This package's errors have no content.
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
    assert thread.audit.verify("t").findings == ()
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
