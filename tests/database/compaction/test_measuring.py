"""The size of a view by the best figure known: the usage in a thread's replies, without another request."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from anthropic.types import Message as Reply
from support.faces import Face, Faces

from compaction_store import BudgetExceeded, CompactionContext, InvalidInput, TokenBudget
from compaction_store.compaction import size_estimate
from compaction_store.compaction.size_estimate import Reported
from compaction_store.models import Measured
from compaction_store.postgres.queries.functions import ReportedRow
from compaction_store.strategies import Ladder

BUDGET = TokenBudget(context_window=1000)
TEXT = "one two three four five six seven eight nine ten " * 10


def reply(tokens: int, text: str = TEXT, **more: int) -> Reply:
    return Reply.model_validate(
        {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
            "stop_sequence": None, "content": [{"type": "text", "text": text}],
            "usage": {"input_tokens": tokens, "output_tokens": 7, **more},
        }
    )  # fmt: skip


def turn(store: Face, factor: float, beside: int = 0, text: str = TEXT) -> None:
    """Appends a question and the reply of a model whose token counts are `factor` times those of the store."""
    store.append("t", {"role": "user", "content": text})
    view = store.view("t")
    store.append("t", reply(round(view.tokens * factor) + beside), view=view)


# ---- the arithmetic


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input_tokens": 5, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 300}, 325),
        ({"input_tokens": 5, "cache_creation_input_tokens": None}, 5),
        ({"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 30}}, 40),
        ({"input_tokens": 40, "input_tokens_details": {"cached_tokens": 30}}, 40),
        ({"input_tokens": 0}, None),
        ({"input_tokens": "5"}, None),
        ({"input_tokens": -5}, None),
        ({"input_tokens": True}, None),
        ({}, None),
        ([5], None),
        (None, None),
    ],
)
def test_all_that_went_in_is_what_a_request_took(usage: Any, tokens: int | None) -> None:
    text = json.dumps({"usage": usage})
    for row in ((7, 90, text, None), (7, 90, None, text)):
        found = size_estimate.reported([ReportedRow._make(row)])
        assert found == (None if tokens is None else Reported(7, tokens, 90))
    assert size_estimate.reported([]) is None


def test_without_a_report_the_stores_own_figure_holds() -> None:
    assert size_estimate.calibrated(90, BUDGET, None) == Measured(90, 90, "local")


def test_a_report_scales_what_came_since_and_what_was_folded() -> None:
    found = Reported(7, 150, 100)
    assert size_estimate.calibrated(100, BUDGET, found) == Measured(150, 100, "calibrated", 1.5, seq=7)
    assert size_estimate.calibrated(200, BUDGET, found).tokens == 300
    assert size_estimate.calibrated(20, BUDGET, found).tokens == 30


def test_what_is_sent_beside_the_view_is_no_part_of_it() -> None:
    budget = TokenBudget(context_window=1000, overhead=50)
    assert size_estimate.calibrated(200, budget, Reported(7, 150, 100)).tokens == 200
    # Tools of 1,900 tokens were sent but not declared as overhead. They do not grow with the view.
    measured = size_estimate.calibrated(1100, BUDGET, Reported(7, 2000, 100))
    assert (measured.tokens, measured.rate) == (4000, 2.0)


@pytest.mark.parametrize(("tokens", "local"), [(24, 100), (5, 0)])
def test_a_report_that_cannot_be_is_not_believed(tokens: int, local: int) -> None:
    assert size_estimate.calibrated(100, BUDGET, Reported(7, tokens, local)) == Measured(100, 100)
    assert size_estimate.calibrated(100, TokenBudget(1000, overhead=200), Reported(7, 210, 100)).source == "local"


@pytest.mark.parametrize("rate", [0.25, 0.8, 1.0, 1.37, 2.0])
@pytest.mark.parametrize("tokens", [100, 333, 1000])
def test_a_mark_in_own_tokens_is_the_same_mark(rate: float, tokens: int) -> None:
    measured = Measured(tokens, round(tokens / rate), "calibrated", rate)
    for mark in range(50, 1500, 37):
        own = measured.own(mark)
        assert measured.moved(max(0, own)).tokens <= mark or own <= 0
        assert measured.moved(own + 2).tokens >= mark


def test_the_difference_is_reported_and_no_figure_is_negative() -> None:
    measured = Measured(120, 100, "exact", 1.2, counter="c")
    assert measured.difference == 20
    assert measured.moved(100) == measured
    assert measured.moved(50) == Measured(60, 50, "calibrated", 1.2, counter="c")
    assert Measured(10, 100, "exact", 0.25).moved(0).tokens == 0


# ---- from the rows of a thread


def test_estimates_of_a_thread_get_better_as_it_runs(store: Face) -> None:
    store.append("t", {"role": "user", "content": TEXT})
    view = store.fit("t", TokenBudget(100_000))
    assert view.measured == Measured(view.tokens, view.tokens)
    errors = []
    for _ in range(4):
        turn(store, 1.4, beside=200)
        view = store.fit("t", TokenBudget(100_000))
        assert view.measured is not None
        assert (view.measured.source, view.measured.local) == ("calibrated", view.tokens)
        errors.append(abs(view.measured.tokens / (view.tokens * 1.4 + 200) - 1))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05
    assert view.measured.seq == store.thread("t").last_seq
    assert view.measured.difference == view.measured.tokens - view.tokens > 0
    # A view that was never compared with a budget was not measured.
    assert store.view("t").measured is None


def test_the_usage_of_an_sdks_reply_is_kept_with_its_receipt(store: Face) -> None:
    [asked] = store.append("t", {"role": "user", "content": "Hi"})
    view = store.view("t")
    [told] = store.append("t", reply(5, cache_read_input_tokens=3), view=view)
    usage = {"input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": 7}
    assert (asked.meta, told.meta) == (None, {"usage": usage})
    assert store.message("t", 2).meta == {"usage": usage}
    # Without a receipt there is nothing to compare it with, and a caller's own meta stays as it is.
    assert store.append("t", reply(5))[0].meta is None
    assert store.append("t", reply(5), view=store.view("t"), meta={"mine": 1})[0].meta == {"mine": 1}
    assert not store.audit.verify("t").findings


def test_a_usage_may_stand_in_the_reply_or_in_its_meta(store: Face) -> None:
    said: dict[str, Any] = {"role": "assistant", "content": TEXT}
    for name in ("payload", "meta"):
        store.append(name, {"role": "user", "content": TEXT})
        view = store.view(name)
        usage = {"usage": {"prompt_tokens": view.tokens * 2}}
        if name == "payload":
            store.append(name, said | usage, view=view.for_anthropic())
        else:
            store.append(name, said, view=view, meta=usage)
        measured = store.fit(name, TokenBudget(10_000)).measured
        assert measured.source == "calibrated"
        assert measured.rate == pytest.approx(2.0)


def test_only_a_reply_with_a_receipt_and_a_usage_tells(store: Face) -> None:
    store.append("t", {"role": "user", "content": TEXT})
    view = store.view("t")
    store.append("t", {"role": "assistant", "content": TEXT, "usage": {"input_tokens": 999}})
    store.append("t", {"role": "assistant", "content": 'It says "usage":{"input_tokens":1}.'}, view=view)
    store.append("t", {"role": "assistant", "content": [{"usage": {"input_tokens": 1}}]}, view=view, raw=True)
    assert store.fit("t", TokenBudget(10_000)).measured.source == "local"


def test_text_that_json_functions_refuse_does_no_harm(store: Face) -> None:
    store.append("t", {"role": "user", "content": TEXT})
    view = store.view("t")
    store.append("t", {"role": "assistant", "content": "\0\ud800", "usage": {"input_tokens": view.tokens}}, view=view)
    assert store.fit("t", TokenBudget(10_000)).measured.source == "calibrated"


def test_a_compaction_after_the_reply_is_allowed_for(store: Face) -> None:
    for _ in range(6):
        turn(store, 1.5)
    before = store.fit("t", TokenBudget(100_000))
    run = store.compact("t", lambda ctx: ctx.compact(1, 8, "They counted."), budget=TokenBudget(100_000), force=True)
    assert run.applied
    for view in (run.view, store.fit("t", TokenBudget(100_000))):
        assert view.measured.source == "calibrated"
        assert view.measured.local == view.tokens < before.tokens
        assert view.measured.tokens == pytest.approx(view.tokens * 1.5, abs=2)
    # Nor does a later revocation: the measurement belongs to the view of that time.
    store.revoke("t", 1)
    assert store.fit("t", TokenBudget(100_000)).measured == before.measured


def test_a_budget_holds_for_the_models_tokens_and_callbacks_see_it_in_the_stores(store: Face) -> None:
    for _ in range(6):
        turn(store, 1.5)
    local = store.view("t").tokens
    budget = TokenBudget(context_window=local * 2, trigger=round(local * 1.2), target=round(local * 0.75))
    seen: list[tuple[TokenBudget, Measured, int]] = []

    def look(ctx: CompactionContext) -> None:
        assert ctx.budget is not None
        seen.append((ctx.budget, ctx.measured, ctx.total_tokens))

    # By the store's own figures the view is within the budget.
    assert not budget.is_over(local)
    assert store.compact("t", look, budget=budget).reason == "the callbacks found nothing to compact"
    [(own, measured, total)] = seen
    assert measured.source == "calibrated"
    assert budget.is_over(measured.tokens)
    assert total == local
    assert own.is_over(total)
    assert own.limit == pytest.approx(budget.limit / 1.5, rel=0.01)
    assert own.target_tokens == pytest.approx(local / 2, rel=0.02)

    run = store.compact("t", Ladder(lambda _: "They talked.", keep_recent=2, reserve=0), budget=budget)
    assert run.applied
    assert run.view.measured.tokens <= budget.target_tokens
    assert not budget.is_over(run.view)
    for record in run:
        # The record's own figures are the counter's. The figure that the run used is beside them.
        assert record.counter == "tiktoken/o200k_base/pieces-4000/1"
        assert record.body["measured"] == {
            "tokens": measured.tokens, "local": local, "source": "calibrated", "seq": measured.seq
        }  # fmt: skip
        assert record.trigger == "budget"
    assert not store.audit.verify("t").findings


def test_a_plan_says_what_the_view_takes_before_and_after(store: Face) -> None:
    for _ in range(4):
        turn(store, 1.5)
    plan = store.plan("t", lambda ctx: ctx.compact(1, 4, "They counted."), budget=TokenBudget(100_000), force=True)
    assert plan.before.measured.tokens == pytest.approx(plan.before.tokens * 1.5, abs=2)
    assert plan.after.measured.tokens == pytest.approx(plan.after.tokens * 1.5, abs=2)
    assert store.plan("t", lambda _ctx: None).before.measured is None


def test_what_does_not_fit_says_by_whose_figure(store: Face) -> None:
    turn(store, 1.5)
    local = store.view("t").tokens
    with pytest.raises(BudgetExceeded, match=r"at most \d+ tokens, not \d+ tokens \(calibrated\)") as caught:
        store.fit("t", TokenBudget(round(local * 1.2)), lambda _: None)
    assert caught.value.view.measured is not None
    with pytest.raises(BudgetExceeded, match=rf"not ({local} tokens \(calibrated\)|\d+ tokens)"):
        store.fit("t", TokenBudget(10), lambda _: None)


def test_a_thread_within_its_budget_by_what_the_api_reported_is_not_due(store: Face) -> None:
    for name, factor in (("less", 0.5), ("as much", 1.0), ("unknown", 0.0)):
        store.append(name, {"role": "user", "content": TEXT * 20})
        view = store.view(name)
        store.append(name, reply(round(view.tokens * factor)), view=view)
    budget = TokenBudget(context_window=round(store.view("less").tokens * 1.1))
    assert {thread.thread_id for thread in store.due(budget)} == {"as much", "unknown"}
    assert store.compact("less", budget=budget).reason == "the view is within its budget"


def test_a_budget_takes_a_view_or_a_number(store: Face) -> None:
    store.append("t", {"role": "user", "content": TEXT})
    view = store.view("t")
    assert TokenBudget(view.tokens).fits(view)
    assert TokenBudget(view.tokens).fits(view.tokens)
    assert TokenBudget(view.tokens).is_over(view)
    measured = store.fit("t", TokenBudget(10_000))
    assert measured == view
    assert repr(measured) == f"Fitted{view!r}"


def test_another_tenants_replies_say_nothing(faces: Faces, url: str) -> None:
    turn(faces.open(url, tenant="a"), 1.5)
    other = faces.open(url, tenant="b")
    other.append("t", {"role": "user", "content": TEXT})
    assert other.fit("t", TokenBudget(10_000)).measured.source == "local"


def test_a_receipt_that_names_no_earlier_view_is_passed_over(store: Face, superuser: psycopg.Connection[Any]) -> None:
    turn(store, 1.5)
    superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER ALL")
    for receipt in ("{}", '{"pos":0}', '{"pos":2}', '{"pos":99999999999999999999}', "not JSON"):
        superuser.execute("UPDATE compaction_store.messages SET receipt = %s WHERE seq = 2", (receipt,))
        assert store.fit("t", TokenBudget(10_000)).measured.source == "local"


# ---- custom counters


def test_a_callable_may_count_a_view(store: Face) -> None:
    store.append("t", {"role": "user", "content": TEXT})
    budget = TokenBudget(1000, overhead=800, counter=lambda view: view.tokens + 11)
    view = store.fit("t", budget)
    assert (view.measured.tokens, view.measured.source) == (view.tokens + 11, "exact")
    assert view.measured.counter.endswith("<lambda>")


def test_a_counter_that_fails_leaves_the_next_best_figure(store: Face) -> None:
    turn(store, 1.5)
    counters: list[tuple[Any, str]] = [
        (lambda _view: 1 / 0, "the counter raised ZeroDivisionError"),
        (lambda _view: "12", "the counter must return an integer >= 0, not str"),
        (lambda _view: -1, "the counter must return an integer >= 0, not -1"),
        (lambda view: Measured(1, view.tokens), "the counter returned no exact figure"),
    ]
    for counter, said in counters:
        measured = store.fit("t", TokenBudget(600, counter=counter)).measured
        assert (measured.source, measured.error) == ("calibrated", said)


def test_a_counter_that_is_none_is_refused(store: Face) -> None:
    store.append("t", {"role": "user", "content": TEXT})
    with pytest.raises(InvalidInput):
        store.fit("t", TokenBudget(1000, counter=5))  # type: ignore[arg-type]


def test_an_async_counter_needs_an_async_store(faces: Faces, url: str) -> None:
    async def count(_view: Any) -> int:
        return 150

    store = faces.open(url)
    store.append("t", {"role": "user", "content": TEXT})
    budget = TokenBudget(200, counter=count)
    if faces.kind == "sync":
        with pytest.raises(TypeError, match="needs an AsyncStore"):
            store.fit("t", budget)
    else:
        assert store.fit("t", budget).measured.tokens == 150


def test_nobody_is_asked_where_the_answer_would_change_nothing(store: Face) -> None:
    store.append("t", {"role": "user", "content": TEXT})
    view = store.fit("t", TokenBudget(10_000, counter=lambda _view: 1 // 0))
    assert view.measured == Measured(view.tokens, view.tokens)


def test_what_is_no_budget_is_refused(store: Face) -> None:
    store.append("t", {"role": "user", "content": "hi"})
    for call in (store.fit, lambda t, b: store.compact(t, budget=b), lambda t, b: store.plan(t, budget=b)):
        with pytest.raises(InvalidInput, match="budget must be a TokenBudget, not int"):
            call("t", 700)
    with pytest.raises(InvalidInput, match="budget must be a TokenBudget, not int"):
        list(store.due(700))
