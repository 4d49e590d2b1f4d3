"""Rates with intervals, cliffs, limits and money, computed by hand."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from compaction_store import TokenBudget, tokens
from compaction_store.errors import InvalidInput
from compaction_store.evaluation import RECORDED, Policy, PolicyResult, Prices, RecordedThread, evaluate
from compaction_store.evaluation.evaluator import Settings, check_policies, replay_thread, summed
from compaction_store.evaluation.money import total
from compaction_store.evaluation.results import _difference, _rate, _wilson
from compaction_store.models import Message

COUNTER = tokens.bytes_over_four()
PRICES: dict[str, Any] = {"models": {"m": {"input": 10, "output": 50, "cache_read": 1, "cache_write": 12}}}


def thread(*sizes: int, name: str = "t") -> RecordedThread:
    """Alternating messages of a user and the assistant, of so many tokens each."""
    made = []
    for seq, size in enumerate(sizes, 1):
        payload = {"role": "user" if seq % 2 else "assistant", "content": f"word {seq} " * 3}
        at = datetime(2026, 1, 1, tzinfo=UTC)
        made.append(Message(seq, seq, str(payload["role"]), payload, size, at, None, False, json.dumps(payload)))
    return RecordedThread(name, tuple(made))


def drop_first(ctx: Any) -> None:
    """Replaces the first two messages."""
    if ctx.elements[0].number is None:
        ctx.remove(1, 2)


def drop_oldest(ctx: Any) -> None:
    """Replaces ten messages by a text."""
    fresh = [element for element in ctx.elements if element.number is None]
    ctx.compact(fresh[0].seq, fresh[9].seq, "Ten messages.")


def test_an_interval_is_wider_if_threads_differ() -> None:
    alike, apart = _rate([(10, 5)] * 40), _rate([(10, 0), (10, 10)] * 20)
    assert (alike.asked, alike.kept, alike.share) == (400, 200, 0.5)
    assert (alike.low, alike.high) == _wilson(400, 0.5) == (0.4512, 0.5488)
    assert apart.low < 0.4
    assert apart.high > 0.6


def test_replicates_of_a_thread_count_once() -> None:
    once, five_times = _rate([(4, 3), (6, 6), (8, 4)]), _rate([(20, 15), (30, 30), (40, 20)], 5)
    assert (once.share, once.low, once.high) == (five_times.share, five_times.low, five_times.high)
    assert (five_times.asked, five_times.kept) == (90, 65)


Pairs = list[tuple[int, int]]


def population(dice: random.Random, sizes: Sequence[int], *shape: float) -> Pairs:
    """Threads with the numbers of asked and kept probes. The share of a thread has a beta distribution."""
    shares = [(dice.choice(sizes), dice.betavariate(*shape)) for _ in range(200)]
    return [(size, sum(dice.random() < share for _ in range(size))) for size, share in shares]


def populations() -> Iterator[tuple[Pairs, int]]:
    """Threads that keep all or little, long threads that keep most, and five replicates of the first."""
    dice = random.Random(7)
    first = population(dice, range(1, 10), 0.9, 0.7)
    yield first, 1
    yield population(dice, (2, 5, 10, 20, 40), 6, 2.3), 1
    yield [(5 * asked, min(5 * asked, max(0, 5 * kept + dice.randint(-1, 1)))) for asked, kept in first], 5


@pytest.mark.parametrize("count", [2, 3, 5, 9, 10, 20, 40])
def test_an_interval_covers_the_share_of_all_threads(count: int) -> None:
    dice = random.Random(count)
    for threads, times in populations():
        share = sum(kept for _, kept in threads) / sum(asked for asked, _ in threads)
        drawn = [_rate(dice.choices(threads, k=count), times) for _ in range(1000)]
        assert sum(rate.low <= share <= rate.high for rate in drawn) >= 900
        assert count < 40 or sum(rate.high - rate.low for rate in drawn) < 300


def test_a_difference_covers_that_of_all_threads_and_is_narrow_for_the_same_threads() -> None:
    dice = random.Random(3)
    pairs = [(asked, kept, max(0, kept - 1)) for asked, kept in population(dice, (10, 20), 3, 2)]
    true = sum(one - other for _, one, other in pairs) / sum(asked for asked, _, _ in pairs)
    covered = 0
    for _ in range(1000):
        drawn = dice.choices(pairs, k=8)
        found = _difference([one[:2] for one in drawn], [one[::2] for one in drawn])
        covered += found.low <= true <= found.high
        assert found.high - found.low < 0.15
    assert covered >= 900


def test_the_difference_of_threads_that_are_alike_is_not_certain() -> None:
    found = _difference([(1, 1), (1, 1)], [(1, 0), (1, 0)])
    assert found.points == found.high == 1.0
    assert found.low < 0.5
    same = _difference([(3, 3)] * 2, [(3, 3)] * 2)
    assert same.low < 0 < same.high


def test_the_difference_of_one_thread_says_nothing() -> None:
    found = _difference([(4, 4)], [(4, 1)])
    assert (found.points, found.low, found.high) == (0.75, -1.0, 1.0)


@pytest.mark.parametrize(("asked", "kept"), [(1, 0), (1, 1), (40, 40), (40, 0)])
def test_an_interval_of_one_probe_or_without_a_loss_is_never_empty(asked: int, kept: int) -> None:
    for pairs in ([(asked, kept)], [(1, kept // asked)] * asked):
        rate = _rate(pairs)
        assert (rate.asked, rate.kept) == (asked, kept)
        assert 0 <= rate.low < rate.high <= 1
        assert rate.low <= rate.share <= rate.high


def test_an_interval_never_begins_below_zero() -> None:
    """Not even at a negative zero, which would be shown as -0.0."""
    for asked in range(1, 400):
        low, high = _rate([(asked, 0)]).low, _rate([(asked, asked)]).high
        assert (f"{low:.1f}", f"{high:.1f}") == ("0.0", "1.0")


def test_sums_without_the_runs_give_the_same_results_in_little_memory() -> None:
    names = [f"src/part_{number}/file_{number}.py" for number in range(400)]
    made = []
    for seq in range(1, 401):
        payload = {
            "role": "user" if seq % 2 else "assistant",
            "content": f"see {names[(seq * 7) % 400]} and {names[seq % 9]}",
        }
        at = datetime(2026, 1, 1, tzinfo=UTC)
        made.append(Message(seq, seq, str(payload["role"]), payload, 40, at, None, False, json.dumps(payload)))
    threads = [RecordedThread("long", tuple(made)), thread(*[30] * 40, name="short")]
    policy = Policy("drop", (drop_oldest,), TokenBudget(900))
    settings = Settings(COUNTER, keep_runs=False)
    policies = check_policies([policy], settings)
    parts = [replay_thread(one, policies, settings) for one in threads]
    lean = summed(parts, policies, settings)
    full = evaluate(threads, [policy], counter=COUNTER)
    assert lean.as_dict() == full.as_dict()
    assert list(lean.documents()) == list(full.documents())
    assert (len(lean.policies[0].runs), len(full.policies[0].runs)) == (0, 2)
    assert full.policies[0].outcomes["applied"] > 20
    assert len(full.policies[0].runs[0].probes) > 100
    # Neither a process nor the report gets what it does not need.
    assert 4 * len(pickle.dumps(parts)) < len(pickle.dumps(full.policies[0].runs))


def test_a_limit_that_nothing_was_asked_about_is_not_met() -> None:
    found = evaluate([thread(9, 9)], [RECORDED], counter=COUNTER)
    assert found.failures({"needed_later": 0.0}, {"invented": 1.0}) == [
        "needed_later must be at least 0, and nothing was asked about it",
        "the failed share of invented must be at most 1, and nothing was asked",
    ]
    # One policy was asked about it: another one that never folds is not judged.
    rate = _rate([(10, 8)])
    object.__setattr__(found, "policies", (PolicyResult("p", {"invented": rate}, {}, ()), *found.policies))
    assert found.failures({"invented": 0.8}, {"stale": 0.0}) == []
    assert found.failures({"artifact": 0.8}, {}) == ["artifact must be at least 0.8, and nothing was asked about it"]


def test_a_cliff_is_the_first_round_that_loses_much_more() -> None:
    steady = PolicyResult("p", {}, {"artifact": [(10, 10), (10, 9), (10, 8)]}, ())
    fallen = PolicyResult("p", {}, {"artifact": [(10, 10), (3, 0), (10, 4), (10, 0)]}, ())
    assert steady.cliff("artifact") is None
    assert fallen.cliff("artifact") == 3
    assert fallen.cliff("stale") is None


def test_money_is_that_of_the_calls_and_of_each_fold() -> None:
    """Calls of 100, 300, 500 tokens; without the first 200, but with a line of 16, the last two are of 116 and 316."""
    policy = Policy("drop", (drop_first,), TokenBudget(1000, trigger=250, target=100))
    prices = Prices.of_json(PRICES)
    found = evaluate([thread(100, 100, 100, 100, 100, 5)], [policy], counter=COUNTER, prices=prices, model="m")
    [result] = found.policies
    [run], [money] = result.runs, result.money
    assert [(call.seq, call.tokens, call.prefix) for call in run.calls] == [(2, 100, 0), (4, 116, 0), (6, 316, 116)]
    # 100 fresh; 116 fresh after the fold; 200 fresh after 116 from the cache.
    assert money.modelled == pytest.approx((100 * 12 + 116 * 12 + 116 * 1 + 200 * 12) / 1e6)
    [fold] = money.folds
    assert (fold.record, fold.calls, fold.needed) == (1, 2, False)
    assert fold.saved == pytest.approx(2 * 184 * 1 / 1e6)
    assert fold.billed_anew == pytest.approx(16 * (12 - 1) / 1e6)
    assert fold.net == pytest.approx(fold.saved - fold.billed_anew)
    assert (fold.basis, fold.summarizer, money.measured, money.wasted) == ("modelled", 0, 0, 0)
    assert result.money_sum("modelled").net == pytest.approx(fold.net)
    assert result.money_sum("measured").folds == 0


def test_what_is_billed_anew_is_what_stood_after_the_span() -> None:
    def drop_third(ctx: Any) -> None:
        if all(element.number is None for element in ctx.elements):
            ctx.remove(3, 4)

    policy = Policy("drop", (drop_third,), TokenBudget(1000, trigger=450, target=100))
    prices = Prices.of_json(PRICES)
    found = evaluate([thread(100, 100, 50, 50, 100, 100, 100, 5)], [policy], counter=COUNTER, prices=prices, model="m")
    [money] = found.policies[0].money
    # Before the fold the cache had 400 tokens: 200, the span of 100, and 100 that are now billed again after the line.
    assert money.folds[0].billed_anew == pytest.approx(116 * (12 - 1) / 1e6)


def test_a_fold_without_which_the_call_would_not_fit_is_compared_with_nothing() -> None:
    policy = Policy("drop", (drop_first,), TokenBudget(250, trigger=200, target=100))
    prices = Prices.of_json(PRICES)
    found = evaluate([thread(100, 100, 100, 100)], [policy], counter=COUNTER, prices=prices, model="m")
    [money] = found.policies[0].money
    assert money.beyond_window == 1
    assert [fold.needed for fold in money.folds] == [True]
    assert (total([money], "modelled").net, total([money], "modelled").needed) == (0, 1)
    assert money.losing == ()


def test_the_same_input_gives_the_same_figures() -> None:
    policy = Policy("drop", (drop_first,), TokenBudget(1000, trigger=250, target=100))
    threads = [thread(*[60] * (10 + n), name=f"t{n}") for n in range(12)]
    first, second = (
        json.dumps(evaluate(threads, [RECORDED, policy], counter=COUNTER, seed=3).as_dict()) for _ in range(2)
    )
    assert first == second


def test_limits_are_judged_by_type() -> None:
    rate = _rate([(10, 8)])
    result = PolicyResult("p", {"invented": rate, "needed_later": rate}, {}, ())
    found = evaluate([], [RECORDED], counter=COUNTER)
    object.__setattr__(found, "policies", (result,))
    assert found.failures({"needed_later": 0.8}, {"invented": 0.3}) == []
    assert found.failures({"needed_later": 0.9}, {"invented": 0.1}) == [
        "p: the failed share of invented is 0.200, and must be at most 0.1",
        "p: needed_later is 0.800, and must be at least 0.9",
    ]


def test_bad_input_is_refused() -> None:
    budget = TokenBudget(1000)
    with pytest.raises(InvalidInput, match="must not be 'recorded'"):
        Policy(RECORDED, (drop_first,), budget)
    with pytest.raises(InvalidInput, match="at least one callback"):
        Policy("p", (), budget)
    with pytest.raises(InvalidInput, match="at least one policy"):
        evaluate([], [], counter=COUNTER)
    with pytest.raises(InvalidInput, match="different names"):
        evaluate([], [RECORDED, RECORDED], counter=COUNTER)
    with pytest.raises(InvalidInput, match="must be a Policy"):
        evaluate([], ["other"], counter=COUNTER)
    with pytest.raises(InvalidInput, match="model must be a model that has a price: m; not 'n'"):
        evaluate([], [RECORDED], counter=COUNTER, prices=Prices.of_json(PRICES), model="n")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], 'with "models"'), ({"models": {}}, 'with "models"'), ({"models": {"m": 3}}, "must be an object of input"),
        ({"models": {"m": {"input": 1}}}, "output of the price of 'm'"),
        ({"models": {"m": {"input": -1, "output": 1}}}, "input of the price of 'm'"),
        ({"models": {"m": {"input": True, "output": 1}}}, "input of the price of 'm'"),
        ({"models": {"m": {"input": 1, "output": 1, "tea": 2}}}, "must be an object of input"),
        ({"models": {"m": {"input": float("nan"), "output": 1}}}, "input of the price of 'm' .*, not NaN"),
        ({"models": {"m": {"input": 1, "output": 10**400}}}, "output of the price of 'm' .*, not 10{39}…"),
        ({"models": {"m": {"input": "3", "output": 1}}}, 'not "3"'),
        ({"models": {"": {"input": 1, "output": 1}}}, "must not be empty"),
        ({**PRICES, "currency": 3}, "currency of the prices .*, not 3"),
        ({**PRICES, "currency": "  "}, "currency of the prices"),
        ({**PRICES, "currency": "<b>"}, "currency of the prices"),
        ({**PRICES, "as_of": "yesterday"}, 'as_of of the prices .*, not "yesterday"'),
        ({**PRICES, "as_of": "2026-13-01"}, "as_of of the prices"),
    ],
)  # fmt: skip
def test_bad_prices_are_refused(given: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        Prices.of_json(given)


def test_prices_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    with pytest.raises(InvalidInput, match="must be a file that can be read"):
        Prices.read(file)
    file.write_text("{", encoding="utf-8")
    with pytest.raises(InvalidInput, match="must be JSON"):
        Prices.read(file)
    for bad in ("[" * 100_000, '{"models": {}, "models": {}}', '{"models": ' + "9" * 5000 + "}"):
        file.write_text(bad, encoding="utf-8")
        with pytest.raises(InvalidInput, match="must be JSON"):
            Prices.read(file)
    file.write_text(json.dumps({**PRICES, "currency": "EUR", "as_of": "2026-11-01"}), encoding="utf-8-sig")
    prices = Prices.read(file)
    assert (prices.currency, prices.as_of) == ("EUR", "2026-11-01")
    for version in ("m", "m-20260101", "m@20260101", "m-2026-01-01", "m-0613", "m-latest"):
        assert prices.of(version) == prices.models["m"]
    # Other models, with other prices.
    for name in ("mini", "m-mini", "m-5", "m-20260101-mini", "M"):
        assert prices.of(name) is None
    assert prices.of("n") is None
    assert prices.of(None) is None
