"""Adds up the probes of many threads by policy, type and round, with intervals. There is no total score."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from compaction_store import arguments
from compaction_store.errors import InvalidInput
from compaction_store.evaluation.money import Money, money_of
from compaction_store.evaluation.policies import RECORDED, Policy
from compaction_store.evaluation.prices import Prices
from compaction_store.evaluation.recorded_thread import RecordedThread
from compaction_store.evaluation.replaying import Replayed, replay
from compaction_store.jsonable import AsDict
from compaction_store.probes import PROBE_TYPES, ProbeType
from compaction_store.tokens import Counter as TokenCounter

# With fewer threads, resampling them says little; then the interval is that of single probes.
_LEAST_THREADS = 10
_RESAMPLES = 1000
_TAIL = 0.025
_Z = 1.959964
# A cliff: so much is lost at once, and so many probes show it.
_CLIFF = 0.25
_LEAST_PROBES = 5
OPEN_LOOP = (
    "Replies are the recorded ones, whatever the view was: this shows what a view still offered, not what the model"
    " would have done with it."
)


@dataclass(frozen=True, slots=True)
class Rate(AsDict):
    """Of `asked` probes `kept` passed; the true share is between `low` and `high` in 95 of 100 cases."""

    asked: int
    kept: int
    low: float
    high: float
    #: By resampling threads, or by Wilson's formula for single probes if there are few threads.
    by: str = "threads"

    @property
    def share(self) -> float:
        return self.kept / self.asked if self.asked else 1.0


@dataclass(frozen=True)
class PolicyResult:
    """A policy on all threads. `rounds` counts probes by type and round: the first fold of a thread is round 1."""

    policy: str
    rates: Mapping[ProbeType, Rate]
    rounds: Mapping[ProbeType, Sequence[tuple[int, int]]]
    runs: tuple[Replayed, ...] = field(repr=False)
    money: tuple[Money, ...] = field(default=(), repr=False)

    def cliff(self, kind: ProbeType) -> int | None:
        """Returns the first round in which much more was lost than in all rounds before, None if there is none."""
        asked = kept = 0
        for number, (now_asked, now_kept) in enumerate(self.rounds.get(kind, ()), 1):
            is_counted = asked >= _LEAST_PROBES and now_asked >= _LEAST_PROBES
            if is_counted and now_kept / now_asked <= kept / asked - _CLIFF:
                return number
            asked, kept = asked + now_asked, kept + now_kept
        return None

    @property
    def calls(self) -> int:
        return sum(len(run.calls) for run in self.runs)

    @property
    def tokens_per_call(self) -> float:
        return sum(call.tokens for run in self.runs for call in run.calls) / max(1, self.calls)

    @property
    def over_window(self) -> int:
        return sum(run.over_window for run in self.runs)

    @property
    def outcomes(self) -> Counter[str]:
        return sum((run.outcomes for run in self.runs), Counter())

    @property
    def errors(self) -> Counter[str]:
        return sum((run.errors for run in self.runs), Counter())

    @property
    def summarizer_tokens(self) -> int:
        uses = [use for run in self.runs for use in run.summarizers.values()]
        return sum(use.input_tokens + use.output_tokens for use in uses)

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.runs)

    def as_dict(self) -> dict[str, Any]:
        """Returns the figures, ready for `json.dumps`; without the time, the same input gives the same."""
        found: dict[str, Any] = {
            "policy": self.policy,
            "probes": {
                kind: {**rate.as_dict(), "share": round(rate.share, 4), "cliff_round": self.cliff(kind)}
                for kind, rate in self.rates.items()
            },
            "rounds": {kind: [list(one) for one in rounds] for kind, rounds in self.rounds.items()},
            "records": dict(sorted(self.outcomes.items())), "errors": dict(sorted(self.errors.items())),
            "calls": self.calls, "tokens_per_call": round(self.tokens_per_call, 1), "over_window": self.over_window,
            "summarizer_tokens": self.summarizer_tokens, "unreadable": sum(run.unreadable for run in self.runs),
        }  # fmt: skip
        if self.money:
            nets = [money.net for money in self.money]
            compared = [fold for money in self.money for fold in money.folds if not fold.needed]
            found["money"] = {
                "currency": self.money[0].currency,
                "calls": round(sum(money.calls for money in self.money), 6),
                "compared": len(compared),
                "saved": round(sum(fold.saved for fold in compared), 6),
                "billed_anew": round(sum(fold.billed_anew for fold in compared), 6),
                "summarizers": _sum(money.summarizers for money in self.money),
                "net": _sum(nets),
                "losing": sum(len(money.losing) for money in self.money),
                "beyond_window": sum(money.beyond_window for money in self.money),
            }  # fmt: skip
        return found


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`. `skipped` has the threads that were not replayed, by the reason."""

    policies: tuple[PolicyResult, ...]
    threads: int
    seed: int
    skipped: Mapping[str, int]

    def of(self, policy: str) -> PolicyResult:
        found = next((result for result in self.policies if result.policy == policy), None)
        if found is None:
            raise InvalidInput(f"policy must be one of {', '.join(result.policy for result in self.policies)}")
        return found

    def failures(self, under: Mapping[str, float], over: Mapping[str, float]) -> list[str]:
        """Returns a sentence for each rate below a minimum, and each share of failed probes above a maximum."""
        found = []
        for result in self.policies:
            for kind, rate in result.rates.items():
                if rate.asked and kind in under and rate.share < under[kind]:
                    found.append(f"{result.policy}: {kind} is {rate.share:.3f}, and must be at least {under[kind]:g}")
                if rate.asked and kind in over and 1 - rate.share > over[kind]:
                    lost = 1 - rate.share
                    found.append(f"{result.policy}: {kind} failed for {lost:.3f}, and must for at most {over[kind]:g}")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Returns the figures, ready for `json.dumps`."""
        return {
            "threads": self.threads, "seed": self.seed, "skipped": dict(self.skipped), "limit": OPEN_LOOP,
            "policies": [result.as_dict() for result in self.policies],
        }  # fmt: skip


def evaluate(
    threads: Iterable[RecordedThread],
    policies: Sequence[Policy | str],
    *,
    counter: TokenCounter,
    seed: int = 0,
    prices: Prices | None = None,
    model: str | None = None,
    window: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """Replays threads under policies; the string "recorded" names the thread's own compactions.

    With `prices` and the `model` that the threads were for, money is modelled too. `window` is that model's window,
    for the recorded policy.
    """
    checked = [_checked(policy) for policy in policies]
    if not checked:
        raise InvalidInput("policies must have at least one policy")
    names = [RECORDED if policy is None else policy.name for policy in checked]
    if len(set(names)) < len(names):
        raise InvalidInput("policies must have different names")
    arguments.number(seed, "seed", least=0)
    price = None if prices is None else prices.of(model)
    if prices is not None and price is None:
        raise InvalidInput(f"model must be one that has a price: {', '.join(sorted(prices.models))}; not {model!r}")
    runs: dict[str, list[Replayed]] = {name: [] for name in names}
    money: dict[str, list[Money]] = {name: [] for name in names}
    skipped: Counter[str] = Counter()
    count = 0
    for thread in threads:
        if (reason := _unfit(thread)) is not None:
            skipped[reason] += 1
            continue
        grown = _grown(thread)
        for name, policy in zip(names, checked, strict=True):
            run = replay(thread, policy, counter, window=window)
            if prices is not None and price is not None:
                limit = window if policy is None else policy.budget.limit
                money[name].append(money_of(run, prices, price, window=limit, grown=grown))
            runs[name].append(run)
        count += 1
        if progress is not None:
            progress(count)
    results = tuple(_result(name, runs[name], money[name], seed) for name in names)
    return Evaluation(results, count, seed, dict(sorted(skipped.items())))


def _checked(policy: Policy | str) -> Policy | None:
    if policy == RECORDED:
        return None
    if not isinstance(policy, Policy):
        raise InvalidInput(f"a policy must be a Policy or {RECORDED!r}, not {type(policy).__name__}")
    return policy


def _unfit(thread: RecordedThread) -> str | None:
    if not thread.messages:
        return "it has no messages"
    return "some of its messages were erased" if thread.is_erased_in_part else None


def _grown(thread: RecordedThread) -> dict[int, int]:
    """Returns the tokens of all messages before each seq."""
    total, found = 0, {}
    for message in thread.messages:
        found[message.seq] = total
        total += message.tokens
    return found


def _result(name: str, runs: list[Replayed], money: list[Money], seed: int) -> PolicyResult:
    by_type: dict[ProbeType, list[tuple[int, int]]] = {}
    rounds: dict[ProbeType, defaultdict[int, list[int]]] = {}
    for run in runs:
        counted: defaultdict[ProbeType, list[int]] = defaultdict(lambda: [0, 0])
        for probe in run.probes:
            place = rounds.setdefault(probe.type, defaultdict(lambda: [0, 0]))[run.rounds.get(probe.record, 0)]
            for pair in (counted[probe.type], place):
                pair[0] += 1
                pair[1] += probe.kept
        for kind, (asked, kept) in counted.items():
            by_type.setdefault(kind, []).append((asked, kept))
    rates = {kind: _rate(by_type[kind], f"{seed}:{name}:{kind}") for kind in PROBE_TYPES if kind in by_type}
    listed = {
        kind: [tuple(found[number]) for number in range(1, max(found) + 1)]
        for kind in PROBE_TYPES
        if (found := rounds.get(kind))
    }
    return PolicyResult(name, rates, listed, tuple(runs), tuple(money))  # type: ignore[arg-type]


def _rate(pairs: list[tuple[int, int]], seed: str) -> Rate:
    asked, kept = (sum(column) for column in zip(*pairs, strict=True))
    if len(pairs) < _LEAST_THREADS:
        return Rate(asked, kept, *_wilson(asked, kept), by="probes")
    chance = random.Random(seed)  # noqa: S311 — an interval, not a secret
    shares = []
    for _ in range(_RESAMPLES):
        drawn = chance.choices(pairs, k=len(pairs))
        shares.append(sum(pair[1] for pair in drawn) / sum(pair[0] for pair in drawn))
    shares.sort()
    place = round(_TAIL * _RESAMPLES)
    return Rate(asked, kept, round(shares[place], 4), round(shares[-1 - place], 4))


def _wilson(asked: int, kept: int) -> tuple[float, float]:
    share = kept / asked
    middle = share + _Z**2 / (2 * asked)
    spread = _Z * sqrt(share * (1 - share) / asked + _Z**2 / (4 * asked**2))
    whole = 1 + _Z**2 / asked
    return round((middle - spread) / whole, 4), round((middle + spread) / whole, 4)


def _sum(parts: Iterable[float | None]) -> float | None:
    found: list[float] = []
    for part in parts:
        if part is None:
            return None
        found.append(part)
    return round(sum(found), 6)
