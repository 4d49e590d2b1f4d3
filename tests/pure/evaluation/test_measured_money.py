"""Money from recorded usage, computed by hand, and kept apart from what is modelled."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from compaction_store.evaluation import RECORDED, PolicyResult, Prices, RecordedThread, evaluate
from compaction_store.evaluation.judge import SummarizerUse, Usage, usage_of
from compaction_store.models import Compaction
from compaction_store.models.vocabulary import Kind, Outcome

from .test_results import COUNTER, PRICES, thread

PRICE = Prices.of_json(PRICES)


def record(model: str | None = None, usage: dict[str, Any] | None = None) -> Compaction:
    """A summary of the first two messages, applied after the fourth."""
    told = {"summarizer": {"name": "model"}, "usage": usage} if model else {}
    return Compaction(
        thread_id="t", number=1, pos=5, created_at=datetime(2026, 1, 1, tzinfo=UTC), kind="summary", outcome="applied",
        start_seq=1, end_seq=2, tokens_before=200, tokens_after=20, source_count=2, inputs=(0,), run_id=UUID(int=1),
        callback="app.compact", trigger="budget", actor=None, login="app", model=model, counter="bytes/4", revokes=None,
        redacted_pos=None, superseded_by=None, revoked_by=None, thread_uid=UUID(int=2),
        body={"summary_text": "s", "replacement": [{"role": "user", "content": "s"}], **told},
    )  # fmt: skip


def recorded(usages: dict[int, dict[str, Any]], **columns: Any) -> RecordedThread:
    """Messages of 100 tokens, the replies with their usage."""
    made = thread(*[100] * 8)
    messages = [
        message._replace(
            pos=message.seq + (message.seq > 4), payload={**(message.payload or {}), "usage": usages.get(message.seq)}
        )
        for message in made.messages
    ]
    return RecordedThread("t", tuple(messages), (record(**columns),))


def result_of(made: RecordedThread) -> PolicyResult:
    return evaluate([made], [RECORDED], counter=COUNTER, prices=PRICE, model="m").policies[0]


def usage(fresh: int, read: int, write: int) -> dict[str, Any]:
    return {"input_tokens": fresh, "cache_read_input_tokens": read, "cache_creation_input_tokens": write}


def test_recorded_usage_is_what_calls_cost() -> None:
    used = {2: usage(0, 0, 100), 4: usage(0, 100, 200), 6: usage(0, 0, 320), 8: usage(0, 320, 200)}
    [money] = result_of(recorded(used, model="m", usage=usage(200, 0, 0) | {"output_tokens": 20})).money
    assert money.modelled == 0
    assert money.measured == pytest.approx(((100 + 200 + 320 + 200) * 12 + (100 + 320) * 1) / 1e6)
    [fold] = money.folds
    assert (fold.basis, fold.calls) == ("measured", 2)
    # The first call with it wrote all to the cache, so it would have written 180 tokens more; the next one read them.
    assert fold.saved == pytest.approx((180 * 12 + 180 * 1) / 1e6)
    # That call wrote 320, of which 200 are messages since the call before: 120 were paid again.
    assert fold.billed_anew == pytest.approx(120 * (12 - 1) / 1e6)
    assert fold.summarizer == pytest.approx((200 * 10 + 20 * 50) / 1e6)
    assert fold.is_loss


def test_one_call_without_usage_makes_a_fold_modelled_and_sums_stay_apart() -> None:
    result = result_of(recorded({2: usage(0, 0, 100), 4: usage(0, 100, 200), 6: usage(0, 0, 320)}))
    [fold] = result.money[0].folds
    assert fold.basis == "modelled"
    assert result.money[0].modelled > 0
    assert result.money[0].measured > 0
    measured, modelled = result.money_sum("measured"), result.money_sum("modelled")
    assert (measured.folds, modelled.folds) == (0, 1)
    shown = result.as_dict()["money"]
    assert (shown["measured"]["requests"], shown["modelled"]["requests"]) == (
        round(measured.requests, 6), round(modelled.requests, 6),
    )  # fmt: skip


def test_a_summarizer_without_usage_or_price_is_unknown_and_in_no_sum() -> None:
    for columns in ({"model": "m"}, {"model": "n", "usage": usage(200, 0, 0)}):
        result = result_of(recorded({}, **columns))
        assert result.money[0].folds[0].net is None
        total = result.money_sum("modelled")
        assert (total.unknown, total.compared, total.net) == (1, 0, 0)


def test_the_names_of_each_api_are_read() -> None:
    anthropic = {"input_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 11}
    chat = {"prompt_tokens": 12, "prompt_tokens_details": {"cached_tokens": 7}}
    responses = {"input_tokens": 12, "input_tokens_details": {"cached_tokens": 7}}
    assert usage_of({"usage": anthropic}) == Usage(5, 7, 11)
    assert usage_of({"usage": chat}) == usage_of({"usage": responses}) == Usage(5, 7, 0)
    for none in (None, 5, {}, {"input_tokens": "5"}, {"input_tokens": -5}, {"prompt_tokens": True}):
        assert usage_of({"usage": none}) is None
    use = SummarizerUse()
    use.add(responses | {"output_tokens": 3})
    use.add(None)
    assert (use.attempts, use.without_usage, use.input_tokens, use.cache_read, use.output_tokens) == (2, 1, 5, 7, 3)
    assert use.tokens == 15


def test_a_model_without_usage_is_never_free() -> None:
    """Neither one whose price is not listed, nor one of several calls of a listed one."""
    use = SummarizerUse()
    use.add(None, by_model=False)
    assert use.without_usage == 0
    for model in ("m", "not-listed"):
        used = {seq: usage(100, 0, 0) for seq in (2, 4, 6, 8)}
        result = result_of(recorded(used, model=model, usage=None))
        assert [fold.summarizer for fold in result.money[0].folds] == [None]
        assert (result.money_sum("measured").compared, result.money_sum("measured").unknown) == (0, 1)


@pytest.mark.parametrize(("kind", "outcome"), [("adoption", "applied"), ("summary", "observed")])
def test_the_summary_of_another_program_is_not_free(kind: Kind, outcome: Outcome) -> None:
    """Its cost is on no record, so it is modelled, and so are the savings, even if all calls reported their usage."""
    used = {2: usage(0, 0, 100), 4: usage(0, 100, 200), 6: usage(0, 0, 320), 8: usage(0, 320, 200)}
    made = recorded(used)
    [before] = made.records
    observed = replace(before, kind=kind, outcome=outcome)
    [fold] = result_of(RecordedThread("t", made.messages, (observed,))).money[0].folds
    assert fold.basis == "modelled"
    # The model read the span from the cache, and wrote 20 tokens.
    assert fold.summarizer == pytest.approx((200 * 1 + 20 * 50) / 1e6)
    result = result_of(RecordedThread("t", made.messages, (replace(observed, tokens_after=0),)))
    assert result.money[0].folds[0].net is None
    assert result.money_sum("modelled").unknown == 1
