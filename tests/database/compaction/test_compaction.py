"""Compaction in both kinds of store: the records of a run, and the view after it."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from support import cluster
from support.compactable_thread import LONG, chat, log, span
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.errors import NoProgress
from compaction_store.messages.framing import frame
from compaction_store.messages.stand_ins import left_out
from compaction_store.models.compactions import status_in_words
from compaction_store.strategies import Ask

SECRET = "s3cr3t-of-the-user"


def shape(store: Face, at: Any = None) -> list[tuple[int, int]]:
    return [(e.seq, e.end_seq) for e in store.view("t", at=at).elements]


def test_a_run_writes_one_record_a_span_with_everything_about_it(thread: Face) -> None:
    def compact(ctx: cs.CompactionContext) -> None:
        summary = cs.Summary("kept", model="m-1", prompt="say less", usage={"input_tokens": 7}, coverage={"parts": 1})
        ctx.compact(1, 4, summary, reason="it was time")
        ctx.remove(5, 6)

    run = thread.compact("t", compact, actor="worker-1")
    assert (run.reason, run.applied, len(run), run.errors) == ("compacted", True, 2, ())
    first, second = run
    frame_tokens = first.tokens_after
    assert (first.number, first.pos, first.kind, first.outcome) == (1, 13, "summary", "applied")
    assert (first.start_seq, first.end_seq, first.source_count, first.tokens_before) == (1, 4, 4, 400)
    assert (first.actor, first.trigger, first.model, first.status) == ("worker-1", "manual", "m-1", "active")
    assert first.callback == f"{__name__}.{compact.__qualname__}"
    assert (first.summary_text, first.replacement, first.reason) == ("kept", [frame("kept", 1, 4)], "it was time")
    assert first.body == {
        "summary_text": "kept", "prompt": "say less", "usage": {"input_tokens": 7}, "coverage": {"parts": 1},
        "replacement": [frame("kept", 1, 4)], "reason": "it was time",
    }  # fmt: skip
    line = cs.tokens.o200k_base().messages([left_out(5, 6)])
    assert (second.kind, second.replacement, second.tokens_after, second.run_id) == ("removal", [], line, first.run_id)
    assert run.view == thread.view("t")
    assert run.view.tokens == 600 + (frame_tokens or 0) + line == thread.thread("t").view_tokens
    assert thread.view("t", at=12).messages == chat()
    assert [m.payload for m in thread.replay("t")] == chat()
    assert thread.audit.verify("t").findings == ()


def test_callbacks_run_in_the_order_of_registration_and_see_what_was_planned(thread: Face) -> None:
    seen: list[list[tuple[int, int]]] = []

    @thread.on_compact  # type: ignore[untyped-decorator]
    def first(ctx: cs.CompactionContext) -> None:
        seen.append([(e.seq, e.end_seq) for e in ctx.elements][:2])
        ctx.compact(1, 4, "one")

    @thread.on_compact()  # type: ignore[untyped-decorator]
    def second(ctx: cs.CompactionContext) -> None:
        seen.append([(e.seq, e.end_seq) for e in ctx.elements][:2])
        ctx.compact(1, 6, "two")

    run = thread.compact("t")
    assert seen == [[(1, 1), (2, 2)], [(1, 4), (5, 5)]]
    assert [(c.number, status_in_words(c), c.inputs) for c in run] == [(1, "superseded by 2", ()), (2, "active", (1,))]
    assert shape(thread)[:2] == [(1, 6), (7, 7)]


def test_a_callback_that_raises_voids_its_own_plan_only(thread: Face) -> None:
    def bad(ctx: cs.CompactionContext) -> None:
        ctx.compact(5, 6, "planned in vain")
        raise ValueError(SECRET)

    run = thread.compact("t", span(1, 2), bad, span(3, 4))
    assert [(c.outcome, c.start_seq) for c in run] == [("applied", 1), ("failed", None), ("applied", 3)]
    line = bad.__code__.co_firstlineno + 2
    where = f"{__name__}:{line} in bad"
    assert run[1].error == {"type": "ValueError", "text": "the callback failed", "at": where}
    assert [type(e) for e in run.errors] == [ValueError]
    assert shape(thread)[:3] == [(1, 2), (3, 4), (5, 5)]


def test_only_failed_attempts_are_recorded_too(thread: Face) -> None:
    def bad(_ctx: cs.CompactionContext) -> None:
        raise ValueError(SECRET)

    run = thread.compact("t", bad)
    assert (run.reason, run.applied, [c.outcome for c in run]) == ("every attempt failed", False, ["failed"])
    run = thread.compact("t", span(1, 2, "x" * 5000))
    assert (run.reason, [c.outcome for c in run]) == ("every attempt was rejected", ["rejected"])
    run = thread.compact("t", span(1, 2, "x" * 5000), bad)
    assert (run.reason, len(run)) == ("every attempt failed or was rejected", 2)
    assert thread.view("t", at=12).messages == thread.view("t").messages == chat()
    assert [c.status for c in log(thread)] == ["failed", "rejected", "rejected", "failed"]
    assert thread.audit.verify("t").findings == ()


def test_a_span_that_made_no_progress_is_not_tried_again_until_something_changed(thread: Face) -> None:
    calls: list[int] = []

    def compact(ctx: cs.CompactionContext) -> None:
        def summarize(_elements: Any) -> str:
            calls.append(1)
            return LONG * 20

        ctx.compact(1, 4, summarize)

    assert [c.outcome for c in thread.compact("t", compact)] == ["rejected"]
    again = thread.compact("t", compact)
    assert (list(again), len(calls), type(again.errors[0])) == ([], 1, NoProgress)
    assert again.reason == "the last attempt made no progress, and nothing has changed since"
    thread.append("t", {"role": "user", "content": "news"})
    assert [c.outcome for c in thread.compact("t", compact)] == ["rejected"]
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("callbacks", "reason"),
    [((), "no callback is registered"), ((lambda _ctx: None,), "the callbacks found nothing to compact")],
)
def test_a_run_that_does_nothing_says_why(thread: Face, callbacks: tuple[Any, ...], reason: str) -> None:
    run = thread.compact("t", *callbacks)
    assert (run.reason, list(run), run.view.messages) == (reason, [], chat())
    assert log(thread) == []


def test_within_its_budget_a_thread_is_left_alone(thread: Face) -> None:
    budget = cs.TokenBudget(2000)
    run = thread.compact("t", span(1, 4), budget=budget)
    assert (run.reason, list(run)) == ("the view is within its budget", [])
    run = thread.compact("t", span(1, 4), budget=budget, force=True)
    assert [(c.trigger, c.outcome) for c in run] == [("forced", "applied")]
    thread.append("t", chat(8), tokens=100)
    run = thread.compact("t", span(5, 8), budget=budget)
    assert [(c.trigger, c.outcome) for c in run] == [("budget", "applied")]


def test_fit_returns_a_view_that_fits_whatever_failed(thread: Face) -> None:
    def bad(_ctx: cs.CompactionContext) -> None:
        raise ValueError(SECRET)

    view = thread.fit("t", cs.TokenBudget(1400), bad)
    assert view.messages == chat()
    with pytest.raises(cs.BudgetExceeded) as caught:
        thread.fit("t", cs.TokenBudget(1000), bad)
    assert caught.value.view.messages == chat()
    assert SECRET not in str(caught.value)
    assert thread.fit("t", cs.TokenBudget(1000), span(1, 8)).tokens < 1000
    assert thread.fit("t", cs.TokenBudget(10_000), bad).tokens < 1000


def test_a_span_another_holds_is_a_conflict_and_leaves_nothing(thread: Face) -> None:
    thread.compact("t", span(1, 4))
    before = thread.thread("t")
    with pytest.raises(cs.SpanConflict):
        thread.compact("t", span(3, 6))
    with pytest.raises(cs.SpanConflict):
        thread.compact("t", span(2, 3))
    assert thread.thread("t") == before


def test_of_two_runs_on_one_snapshot_one_wins(thread: Face, url: str) -> None:
    other = Faces("sync", None).open(url)

    def compact(ctx: cs.CompactionContext) -> None:
        other.compact("t", span(2, 5, "the other was faster"))
        ctx.compact(1, 4, "too late")
        ctx.remove(9, 10)

    with pytest.raises(cs.SpanConflict):
        thread.compact("t", compact)
    assert [(c.number, c.summary_text) for c in log(thread)] == [(1, "the other was faster")]
    assert shape(thread)[:3] == [(1, 1), (2, 5), (6, 6)]
    other.close()


def test_appends_meanwhile_stay_in_the_view(thread: Face, url: str) -> None:
    other = Faces("sync", None).open(url)

    def compact(ctx: cs.CompactionContext) -> None:
        other.append("t", chat(2), tokens=100)
        ctx.compact(1, 10, "most of it")

    run = thread.compact("t", compact)
    assert [(e.seq, e.end_seq) for e in run.view.elements] == [(1, 10), *[(i, i) for i in range(11, 15)]]
    assert [e.seq for e in thread.view("t", at=14).elements] == list(range(1, 15))
    assert thread.audit.verify("t").findings == ()
    other.close()


def test_no_transaction_and_no_connection_is_held_while_a_callback_runs(
    faces: Faces, url: str, superuser: psycopg.Connection[Any]
) -> None:
    store = faces.open(url, pool_size=1, connect_timeout=2)
    store.append("t", chat(), tokens=100)
    states: list[Any] = []

    def compact(ctx: cs.CompactionContext) -> None:
        query = (
            "SELECT state, xact_start, wait_event FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        states.extend(superuser.execute(query).fetchall())
        ctx.compact(1, 4, "S")

    assert store.compact("t", compact, budget=cs.TokenBudget(1000)).applied
    # The nodes of a cluster keep idle connections to each other.
    assert cluster.given() or len(states) == 1
    assert {(state, start) for state, start, _ in states} == {("idle", None)}


def test_revoke_brings_back_what_was_visible_before(thread: Face) -> None:
    thread.compact("t", span(1, 4, "inner"))
    inner = thread.view("t")
    thread.compact("t", span(1, 8, "outer"))
    with pytest.raises(cs.Conflict, match="compaction 1 is not active"):
        thread.revoke("t", 1)
    record = thread.revoke("t", 2, reason="too much was lost", actor="auditor")
    assert (record.kind, record.revokes, record.start_seq, record.end_seq) == ("revocation", 2, 1, 8)
    assert (record.reason, record.actor, record.status) == ("too much was lost", "auditor", "applied")
    assert thread.view("t").elements == inner.elements
    assert [(c.status, c.revoked_by) for c in log(thread)] == [("active", None), ("revoked", 3), ("applied", None)]
    with pytest.raises(cs.CompactionNotFound, match="no compaction 9"):
        thread.revoke("t", 9)
    for number in (2, 3):
        with pytest.raises(cs.Conflict):
            thread.revoke("t", number)
    thread.compact("t", span(1, 8, "again"))
    assert [status_in_words(c) for c in log(thread)] == ["superseded by 4", "revoked by 3", "applied", "active"]
    thread.revoke("t", 4)
    thread.revoke("t", 1)
    assert thread.view("t").messages == chat()
    assert thread.thread("t").view_tokens == 1200
    assert thread.audit.verify("t").findings == ()


def test_every_past_view_can_be_rebuilt(thread: Face) -> None:
    returned = {12: thread.view("t")}
    moments = {12: thread.thread("t").last_at}
    for plan in (span(1, 4), span(5, 6), span(1, 6, "nested"), lambda ctx: ctx.remove(7, 8)):
        view = thread.compact("t", plan).view
        returned[view.pos] = view
        moments[view.pos] = thread.thread("t").last_at
    thread.revoke("t", 3)
    thread.append("t", {"role": "user", "content": "more"})
    for pos, view in returned.items():
        assert thread.view("t", at=pos) == view
        assert thread.view("t", at=moments[pos]) == view
    for record in log(thread, kind="summary"):
        assert thread.view("t", at=record) == returned[record.pos]
    thread.append("u", chat(1))
    record = log(thread)[0]
    with pytest.raises(cs.InvalidInput, match="of thread 'u', not of 't'"):
        thread.view("u", at=record)


def test_ten_workers_pay_for_one_summary(url: str) -> None:
    budget = cs.TokenBudget(1400)
    stores = [Faces("sync", None).open(url) for _ in range(10)]
    stores[0].append("t", chat(), tokens=100)
    paid: list[int] = []
    start = threading.Barrier(10)
    runs: list[cs.CompactionRun] = []

    def work(store: Face) -> None:
        def compact(ctx: cs.CompactionContext) -> None:
            def summarize(_elements: Any) -> str:
                paid.append(1)
                time.sleep(0.5)
                return "S"

            ctx.compact(1, 10, summarize)

        start.wait()
        runs.append(store.compact("t", compact, budget=budget))

    workers = [threading.Thread(target=work, args=(store,)) for store in stores]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(paid) == 1
    assert sorted(len(run) for run in runs) == [0] * 9 + [1]
    assert {run.reason.split(":")[0] for run in runs if not run} <= {
        "another run is compacting the thread", "another run has compacted the thread", "the view is within its budget",
    }  # fmt: skip
    for store in stores:
        store.close()


def test_who_has_a_view_that_does_not_fit_waits_for_who_compacts(store: Face, url: str) -> None:
    store.append("t", chat(), tokens=100)
    other = Faces("sync", None).open(url)
    begun = threading.Event()

    def slow(ctx: cs.CompactionContext) -> None:
        begun.set()
        time.sleep(0.6)
        ctx.compact(1, 10, "S")

    worker = threading.Thread(target=lambda: other.compact("t", slow, budget=cs.TokenBudget(1000)))
    worker.start()
    begun.wait()

    def never(_ctx: cs.CompactionContext) -> None:
        raise AssertionError

    assert store.fit("t", cs.TokenBudget(1000), never).tokens < 1000
    worker.join()
    other.close()


def test_a_lease_dies_with_its_holder(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute(
        "UPDATE compaction_store.heads SET lease_run = %s, lease_until = now() + interval '0.5 seconds'", (uuid4(),)
    )
    budget = cs.TokenBudget(1400)
    reason = thread.compact("t", span(1, 8), budget=budget).reason
    assert reason == "another run is compacting the thread: no actor given"
    time.sleep(0.6)
    assert thread.compact("t", span(1, 8), budget=budget).applied
    assert superuser.execute("SELECT lease_run, lease_until FROM compaction_store.heads").fetchall() == [(None, None)]


def test_an_interrupted_run_gives_its_lease_back(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    class Interrupt(BaseException):
        pass

    def compact(ctx: cs.CompactionContext) -> None:
        ctx.compact(1, 2, "S")
        raise Interrupt

    with pytest.raises(Interrupt):
        thread.compact("t", compact, budget=cs.TokenBudget(1400))
    assert superuser.execute("SELECT lease_run, stalled_tokens FROM compaction_store.heads").fetchall() == [
        (None, None)
    ]
    assert log(thread) == []


async def _async_callback(_ctx: cs.CompactionContext) -> None: ...


class _AsyncCallable:
    async def __call__(self, _ctx: cs.CompactionContext) -> None: ...


@pytest.mark.parametrize("callback", [_async_callback, _AsyncCallable()])
def test_an_async_callback_on_a_store_is_a_type_error_at_registration(url: str, callback: Any) -> None:
    with cs.Store.open(url) as store:
        with pytest.raises(TypeError, match="AsyncStore"):
            store.on_compact(callback)
        store.append("t", chat())
        with pytest.raises(TypeError, match="AsyncStore"):
            store.compact("t", callback)


@pytest.mark.parametrize("callback", [5, "name", None])
def test_what_cannot_be_called_is_no_callback(thread: Face, callback: Any) -> None:
    with pytest.raises(TypeError):
        thread.compact("t", callback)


def test_async_callbacks_and_summarizers_are_awaited(url: str) -> None:
    async def main() -> None:
        async with await cs.AsyncStore.open(url) as store:
            await store.append("t", chat(), tokens=100)

            @store.on_compact
            async def compact(ctx: cs.CompactionContext) -> None:
                async def summarize(elements: Any) -> str:
                    await asyncio.sleep(0)
                    return f"of {len(elements)}"

                await ctx.compact(1, 4, summarize)
                await ctx.compact(5, 6, "plain text")
                await ctx.compact(7, 8, lambda elements: f"of {len(elements)} at once")

            run = await store.compact("t")
            assert [c.summary_text for c in run] == ["of 4", "plain text", "of 2 at once"]

    asyncio.run(main())


def test_no_content_is_in_what_a_failed_attempt_leaves(
    thread: Face, superuser: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    thread.append("t", {"role": "user", "content": f"{SECRET} {LONG}"}, tokens=100)

    def fails(ctx: cs.CompactionContext) -> None:
        def summarize(elements: Any) -> str:
            raise RuntimeError(str(elements[0].message))

        ctx.compact(13, 13, summarize, allow={"last_user"})

    attempts = [fails, span(13, 13, SECRET * 100, allow={"last_user"}), span(13, 13), span(1, 1, "")]
    for attempt in attempts:
        run = thread.compact("t", attempt)
        assert SECRET not in repr(run) + str(run.records) + str([c.error for c in run])
    rows = superuser.execute("SELECT to_json(c)::text FROM compaction_store.compactions AS c").fetchall()
    assert len(rows) == len(attempts)
    assert SECRET not in json.dumps(rows) + caplog.text


def test_the_names_callbacks_go_by(thread: Face) -> None:
    class Named:
        name = "my strategy(2)"

        def __call__(self, ctx: cs.CompactionContext) -> None:
            ctx.compact(1, 2, "S")

    class Plain:
        def __call__(self, ctx: cs.CompactionContext) -> None:
            ctx.compact(3, 4, "S")

    run = thread.compact("t", Named(), Plain())
    assert [c.callback for c in run] == ["my strategy(2)", f"{__name__}.{Plain.__qualname__}"]
    assert inspect.isclass(Plain)


def test_text_of_any_kind_goes_into_a_record_and_comes_back(thread: Face) -> None:
    texts = ["  line one\n\nünïcödé 漢字 🧵\t end  ", "nul \0 inside", "half \ud83d alone", '"quoted" \\ {json}']
    for i, text in enumerate(texts):
        thread.compact("t", span(2 * i + 1, 2 * i + 2, text, reason=text))
    assert [(c.summary_text, c.reason) for c in log(thread)] == [(text, text) for text in texts]
    assert [e.message["content"] for e in thread.view("t").elements[:4] if e.message] == [
        frame(text, 2 * i + 1, 2 * i + 2)["content"] for i, text in enumerate(texts)
    ]
    assert thread.audit.verify("t").findings == ()


def test_errors_that_a_strategy_handles_are_recorded_too(thread: Face) -> None:
    class Careful:
        def steps(self, _ctx: cs.CompactionContext) -> Any:
            error = yield Ask(1, 2, lambda _elements: str(1 / 0))
            assert isinstance(error, ZeroDivisionError)
            yield Ask(3, 4)

    run = thread.compact("t", Careful())
    assert [c.outcome for c in run] == ["failed", "applied"]
    assert [type(e) for e in run.errors] == [ZeroDivisionError]


def test_a_callback_that_returns_its_summary_is_refused_with_the_call_to_make(thread: Face) -> None:
    run = thread.compact("t", lambda _ctx: "They spoke.")
    [record] = run
    assert (record.outcome, record.error["type"]) == ("failed", "InvalidInput")
    assert "ctx.compact" in record.error["text"]


def test_why_a_record_cannot_be_revoked_is_said(thread: Face) -> None:
    thread.compact("t", span(1, 2))
    thread.compact("t", span(1, 4))
    thread.compact("t", lambda _ctx: "They spoke.")
    for number, why in ((1, "a later one replaced it"), (3, "it failed")):
        with pytest.raises(cs.Conflict, match=f"compaction {number} is not active: {why}"):
            thread.revoke("t", number)
    thread.revoke("t", 2)
    for number, why in ((2, "it is revoked"), (4, "a revocation is not undone")):
        with pytest.raises(cs.Conflict, match=f"compaction {number} is not active: {why}"):
            thread.revoke("t", number)
