"""Adds up the probes of many threads by policy, type and round, with confidence intervals. There is no total score."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

from compaction_store.audit.facts import Agreement, agreement
from compaction_store.errors import InvalidInput
from compaction_store.evaluation.asking import ASKED
from compaction_store.evaluation.judge import Judge, JudgeVerdict
from compaction_store.evaluation.money import BASES, Basis, Money, MoneySum, advice, total, wasted
from compaction_store.evaluation.replay import Replayed
from compaction_store.jsonable import AsDict
from compaction_store.module_data import ModuleData
from compaction_store.probes import PROBE_TYPES, ProbeType

_FEW_THREADS = 10
# So few threads cannot show how much threads scatter, so each of them counts as at most this many questions.
_MOST_A_THREAD = 2
_Z = 1.959964
# Student's quantiles for 0 to 3 degrees of freedom. One thread has none, and counts as two.
_STUDENT = (12.706, 12.706, 4.303, 3.182)
# A cliff is a round in which the share of kept probes falls by at least this much. It needs at least this many probes
# before the round and in it.
_CLIFF = 0.25
_LEAST_PROBES = 5
OPEN_LOOP = ModuleData(__file__).text("open_loop")


@dataclass(frozen=True, slots=True)
class Rate(AsDict):
    """The rate of kept probes: `kept` of `asked`. `low` and `high` are the ends of its 95 % confidence interval."""

    asked: int
    kept: int
    low: float
    high: float
    #: The smallest and the largest share among the replicates, if there are several.
    spread: tuple[float, float] | None = None

    @property
    def share(self) -> float:
        return self.kept / self.asked if self.asked else 1.0


@dataclass(frozen=True, slots=True)
class Difference(AsDict):
    """The share of a policy minus that of another policy on the same threads, with its 95 % confidence interval."""

    points: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Judged(AsDict):
    """The verdicts of a judge on the summaries of a policy. No other figure includes them.

    Of `asked` summaries, `good` had a majority of yes, `split` had different answers, an unclear answer or a failed
    call, and `undecided` had as many yes as no. `failed` is the number of failed calls. `agreement` compares the judge
    with people's verdicts on the thread's own records; None without verdicts.
    """

    model: str | None
    prompt: str
    replicates: int
    asked: int
    good: int
    low: float
    high: float
    split: int
    undecided: int
    failed: int
    agreement: Agreement | None = None

    @property
    def share(self) -> float:
        return self.good / self.asked if self.asked else 1.0

    def as_dict(self) -> dict[str, Any]:
        return {**AsDict.as_dict(self), "agreement": self.agreement and self.agreement._asdict()}


@dataclass(frozen=True)
class PolicyResult:
    """The results of a policy on all threads and `replicates`. `rounds` counts probes by type and fold, from 1."""

    policy: str
    rates: Mapping[ProbeType, Rate]
    rounds: Mapping[ProbeType, Sequence[tuple[int, int]]]
    sums: tuple[RunSums, ...] = field(repr=False)
    calls: int = 0
    tokens_per_call: float = 0.0
    over_window: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    summarizer_tokens: int = 0
    #: The number of threads with a fold. Threads without a fold do not test the policy.
    folded_threads: int = 0
    #: The number of records that cannot be read, because they are sealed or erased. Only repeated calls are counted.
    unreadable: int = 0
    seconds: float = 0.0
    #: The replays with every probe, if they were kept.
    runs: tuple[Replayed, ...] = field(default=(), repr=False)
    money: tuple[Money, ...] = field(default=(), repr=False)
    replicates: int = 1
    judged: Judged | None = None
    #: How often each question of an `Examiner` was asked.
    asks: int = 1

    def lost_in_100_calls(self, kind: ProbeType) -> float:
        """Returns the number of lost probes in 100 calls of the model. All policies have the same calls."""
        rate = self.rates.get(kind)
        times = self.asks if kind in ASKED else 1
        return 0.0 if rate is None else 100 * (rate.asked - rate.kept) / times / max(1, self.calls)

    def cliff(self, kind: ProbeType) -> int | None:
        """Returns the first round in which much more was lost than in earlier rounds; None if there is none."""
        asked = kept = 0
        for number, (now_asked, now_kept) in enumerate(self.rounds.get(kind, ()), 1):
            if min(asked, now_asked) >= _LEAST_PROBES and now_kept / now_asked <= kept / asked - _CLIFF:
                return number
            asked, kept = asked + now_asked, kept + now_kept
        return None

    def money_sum(self, basis: Basis) -> MoneySum:
        return total(self.money, basis)

    @property
    def advice(self) -> str | None:
        """A sentence on the compactions that lost money, or None if none did or no prices were given."""
        return advice([fold for money in self.money for fold in money.folds])

    def as_dict(self) -> dict[str, Any]:
        """Returns the figures as a dict for `json.dumps`. The time is left out, so equal inputs give equal figures."""
        found: dict[str, Any] = {
            "policy": self.policy,
            "probes": {
                kind: {**rate.as_dict(), "share": round(rate.share, 4), "cliff_round": self.cliff(kind),
                       "lost_in_100_calls": round(self.lost_in_100_calls(kind), 2)}
                for kind, rate in self.rates.items()
            },
            "rounds": {kind: [list(one) for one in rounds] for kind, rounds in self.rounds.items()},
            "records": dict(sorted(self.outcomes.items())), "errors": dict(sorted(self.errors.items())),
            "calls": self.calls, "tokens_per_call": round(self.tokens_per_call, 1), "over_window": self.over_window,
            "summarizer_tokens": self.summarizer_tokens, "unreadable": self.unreadable,
            "threads_with_folds": self.folded_threads, "replicates": self.replicates,
        }  # fmt: skip
        if self.judged is not None:
            found["judge"] = self.judged.as_dict()
        if self.money:
            found["money"] = {
                "currency": self.money[0].currency,
                **{basis: _rounded(self.money_sum(basis)) for basis in BASES},
                "wasted": None if (spent := wasted(self.money)) is None else round(spent, 6),
                "beyond_window": sum(money.beyond_window for money in self.money), "advice": self.advice,
            }  # fmt: skip
        return found


def _rounded(found: MoneySum) -> dict[str, Any]:
    """Returns a sum as values for JSON, rounded to six decimal places."""
    fields = {**found.as_dict(), "net": found.net}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in fields.items()}


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`. `skipped` maps each reason to the number of threads that were skipped for it.

    `inputs` is the SHA-256 of the evaluation's inputs: the threads with their messages and records, the seed, and
    `planted`. `planted` is the number of sentences that were planted in each thread.
    """

    policies: tuple[PolicyResult, ...]
    threads: int
    seed: int
    skipped: Mapping[str, int]
    inputs: str = ""
    planted: int = 0
    #: How a model was asked questions, if it was: the model, the prompt, the settings, the calls and the tokens.
    asked: Mapping[str, Any] | None = None

    def of(self, policy: str) -> PolicyResult:
        if (found := next((result for result in self.policies if result.policy == policy), None)) is None:
            names = ", ".join(result.policy for result in self.policies)
            raise InvalidInput(f"policy must be one of {names}; not {policy!r}")
        return found

    def base(self, kind: ProbeType) -> str | None:
        """Returns the first policy that was asked about a type. The other policies are compared with it."""
        return next((result.policy for result in self.policies if kind in result.rates), None)

    def difference(self, kind: ProbeType, first: str, second: str) -> Difference | None:
        """Returns the share of the policy `first` minus that of `second`; None if one of them was not asked."""
        both = [_by_thread(self.of(policy).sums, kind) for policy in (first, second)]
        threads = sorted({*both[0], *both[1]})
        if not all(both):
            return None
        return _difference(*([pairs.get(thread, (0, 0)) for thread in threads] for pairs in both))

    def failures(self, under: Mapping[str, float], over: Mapping[str, float]) -> list[str]:
        """Returns a sentence for each missed limit. Limits are missed too if nothing was asked."""
        asked = {kind for result in self.policies for kind in result.rates}
        none = "and nothing was asked"
        found = [f"{kind} must be at least {under[kind]:g}, {none} about it" for kind in sorted(under.keys() - asked)]
        limits = () if asked else sorted(over.items())
        found += [f"the failed share of {kind} must be at most {most:g}, {none}" for kind, most in limits]
        for result in self.policies:
            for kind, rate in result.rates.items():
                said, lost = f"{result.policy}: ", 1 - rate.share
                if rate.share < under.get(kind, 0):
                    found.append(f"{said}{kind} is {rate.share:.3f}, and must be at least {under[kind]:g}")
                if lost > over.get(kind, 1):
                    found.append(f"{said}the failed share of {kind} is {lost:.3f}, and must be at most {over[kind]:g}")
        return found

    def documents(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the name of each replayed thread, with the document to record in an event of this thread.

        The figures in the document are those of the thread alone. `inputs` and `report` are the SHA-256 of everything
        that was replayed, and of the whole report as JSON.
        """
        about = {name: getattr(self, name) for name in ("inputs", "threads", "seed", "planted")}
        about["report"] = hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()
        counted = {each.policy: {kind: _by_thread(each.sums, kind) for kind in each.rates} for each in self.policies}
        for thread_id in dict.fromkeys(run.thread_id for result in self.policies for run in result.sums):
            kept = {
                policy: {kind: list(pairs[thread_id]) for kind, pairs in kinds.items() if thread_id in pairs}
                for policy, kinds in counted.items()
            }
            yield thread_id, {**about, "kept": kept}

    def as_dict(self) -> dict[str, Any]:
        """Returns the figures as a dict for `json.dumps`."""
        return {
            "threads": self.threads, "seed": self.seed, "planted": self.planted, "skipped": dict(self.skipped),
            "inputs": self.inputs, "limit": OPEN_LOOP,
            **({} if self.asked is None else {"asked": dict(self.asked)}),
            "policies": [result.as_dict() for result in self.policies],
            "differences": [
                {"probe": kind, "policy": result.policy, "minus": base, **found.as_dict()}
                for kind in PROBE_TYPES for result in self.policies
                if (base := self.base(kind)) not in (None, result.policy)
                and (found := self.difference(kind, result.policy, base)) is not None
            ],
        }  # fmt: skip


def best_policy(found: Evaluation) -> str | None:
    """Returns a sentence on the policy that would have saved the most money, or None if fewer than two can be compared.

    Only modelled figures are compared, because nothing can be measured for policies other than the recorded one.
    """
    sums = [(result.policy, result.money_sum("modelled")) for result in found.policies if result.money]
    compared = [(policy, total) for policy, total in sums if total.compared and not total.unknown]
    if len(compared) < 2:  # noqa: PLR2004 — two can be compared
        return None
    policy, best = max(compared, key=lambda each: each[1].net)
    others = "; ".join(f"{name} {total.net:,.4f} in {total.compared:,}" for name, total in compared if name != policy)
    return (
        f"{policy} would have saved the most: net {best.net:,.4f} in {best.compared:,} compactions, of which"
        f" {best.losing:,} lost money ({others})"
    )


def result_of(
    name: str,
    sums: Sequence[RunSums],
    money: Sequence[Money],
    *,
    times: int,
    judged: Judged | None,
    asks: int = 1,
    runs: Sequence[Replayed] = (),
) -> PolicyResult:
    """Adds up the runs of a policy. `sums` contains the `times` replicates of each thread one after another."""
    rounds: defaultdict[ProbeType, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for run in sums:
        for kind, number, asked, kept in run.counts():
            rounds[kind][number][0] += asked
            rounds[kind][number][1] += kept
    rates = {
        kind: replace(
            _rate(list(_by_thread(sums, kind).values()), times * (asks if kind in ASKED else 1)),
            spread=_spread([_by_thread(sums[place::times], kind).values() for place in range(times)]),
        )
        for kind in PROBE_TYPES
        if kind in rounds
    }
    listed = {kind: [tuple(rounds[kind][number]) for number in range(1, max(rounds[kind]) + 1)] for kind in rates}
    calls = sum(run.calls for run in sums)
    return PolicyResult(
        name, rates, listed, tuple(sums), calls, sum(run.call_tokens for run in sums) / max(1, calls),  # type: ignore[arg-type]
        sum(run.over_window for run in sums), sum((run.outcomes for run in sums), Counter()),
        sum((run.errors for run in sums), Counter()), sum(run.summarizer_tokens for run in sums),
        len({run.thread_id for run in sums if run.has_folds}), sum(run.unreadable for run in sums),
        sum(run.seconds for run in sums), tuple(runs), tuple(money), times, judged, asks,
    )  # fmt: skip


def _by_thread(sums: Sequence[RunSums], kind: ProbeType) -> dict[str, tuple[int, int]]:
    """Returns the numbers of asked and kept probes of each thread with such probes."""
    found: dict[str, tuple[int, int]] = {}
    for run in sums:
        for _, _, asked, kept in (each for each in run.counts() if each[0] == kind):
            before = found.get(run.thread_id, (0, 0))
            found[run.thread_id] = before[0] + asked, before[1] + kept
    return found


def _spread(replicates: Sequence[Collection[tuple[int, int]]]) -> tuple[float, float] | None:
    sums = [[sum(column) for column in zip(*pairs, strict=True)] for pairs in replicates if pairs]
    shares = [round(kept / asked, 4) for asked, kept in sums]
    return (min(shares), max(shares)) if len(shares) > 1 else None


def judged_by(judge: Judge, runs: Sequence[RunSums], labels: Mapping[str, Mapping[int, bool]]) -> Judged:
    """Adds up the verdicts of a judge. `labels` are the verdicts of people, by thread and record."""
    verdicts = [verdict for run in runs for verdict in run.verdicts.values()]
    good = sum(verdict.is_good is True for verdict in verdicts)
    pairs = [
        (verdict.is_good, label)
        for run in runs
        for record, label in labels.get(run.thread_id, {}).items()
        if (verdict := run.verdicts.get(record)) is not None and verdict.is_good is not None
    ]
    low, high = _wilson(len(verdicts), good / len(verdicts)) if verdicts else (0.0, 1.0)
    return Judged(
        judge.model, judge.prompt, judge.replicates, len(verdicts), good, low, high,
        sum(not verdict.is_unanimous for verdict in verdicts), sum(verdict.is_good is None for verdict in verdicts),
        sum(verdict.failed for verdict in verdicts), agreement(pairs) if labels else None,
    )  # fmt: skip


def _rate(pairs: Sequence[tuple[int, int]], times: int = 1) -> Rate:
    """Returns a share with its interval. `pairs` has the sums of the `times` replicates of each thread.

    The questions of a thread are not independent, so Wilson's formula gets the number of independent questions that
    would scatter as much as the threads do, and Student's quantile.
    """
    asked, kept = (sum(column) for column in zip(*pairs, strict=True))
    share, threads = kept / asked, len(pairs)
    scatter, independent = share * (1 - share), asked / times
    error = _error([(kept - share * asked_) / asked for asked_, kept in pairs])
    if error and scatter:
        independent = min(independent, scatter / error**2)
    if threads < _FEW_THREADS:
        independent = min(independent, _MOST_A_THREAD * threads)
    return Rate(asked, kept, *_wilson(independent, share, _student(threads - 1) if error and scatter else _Z))


def _difference(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]) -> Difference:
    """Returns the difference of two shares on the same threads."""
    shares, parts = [], []
    for pairs in (first, second):
        asked, kept = (sum(column) for column in zip(*pairs, strict=True))
        shares.append(kept / asked)
        parts.append([(kept_ - shares[-1] * asked_) / asked for asked_, kept_ in pairs])
    error = _error([one - other for one, other in zip(*parts, strict=True)])
    points = shares[0] - shares[1]
    below = above = _student(len(first) - 1) * error if len(first) > 1 else 2.0
    if not below and len(first) <= len(_STUDENT):
        # So few threads that are alike do not show how much others differ: combine the intervals of the shares.
        one, other = _rate(first), _rate(second)
        below = sqrt((one.share - one.low) ** 2 + (other.high - other.share) ** 2)
        above = sqrt((one.high - one.share) ** 2 + (other.share - other.low) ** 2)
    return Difference(round(points, 4), max(-1.0, round(points - below, 4)), min(1.0, round(points + above, 4)))


def _error(parts: Sequence[float]) -> float:
    """Returns the standard error of a sum of one part for each thread, whose mean is zero."""
    count = len(parts)
    return sqrt(count / (count - 1) * sum(part**2 for part in parts)) if count > 1 else 0.0


def _student(degrees: int) -> float:
    """Returns the 97.5 % quantile of Student's distribution, with three correct decimals."""
    if degrees < len(_STUDENT):
        return _STUDENT[max(0, degrees)]
    return _Z + (_Z**3 + _Z) / (4 * degrees) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * degrees**2)


def _wilson(asked: float, share: float, quantile: float = _Z) -> tuple[float, float]:
    square = quantile**2
    middle = share + square / (2 * asked)
    spread = quantile * sqrt(share * (1 - share) / asked + square / (4 * asked**2))
    whole = 1 + square / asked
    # Rounding errors may give a little less than 0 or more than 1.
    return max(0.0, round((middle - spread) / whole, 4) + 0.0), min(1.0, round((middle + spread) / whole, 4))


# ---- the figures of one replay. They take little memory, so that a report can cover many threads


@dataclass(frozen=True, slots=True)
class RunSums:
    """The sums of a replay. `probes` has the number of probes of each type, each round and each answer."""

    thread_id: str
    probes: Counter[tuple[ProbeType, int, bool]]
    calls: int
    call_tokens: int
    over_window: int
    outcomes: Counter[str]
    errors: Counter[str]
    summarizer_tokens: int
    has_folds: bool
    unreadable: int
    verdicts: Mapping[int, JudgeVerdict]
    seconds: float

    def counts(self) -> Iterator[tuple[ProbeType, int, int, int]]:
        """Yields a type, a round, and the numbers of its asked and kept probes. Rounds without probes are left out."""
        for kind, number in sorted({(kind, number) for kind, number, _ in self.probes}):
            kept = self.probes[kind, number, True]
            yield kind, number, kept + self.probes[kind, number, False], kept


def sums_of(run: Replayed) -> RunSums:
    return RunSums(
        run.thread_id, Counter((probe.type, run.rounds.get(probe.record, 0), probe.kept) for probe in run.probes),
        len(run.calls), sum(call.tokens for call in run.calls), run.over_window, run.outcomes, run.errors,
        sum(use.tokens for use in run.summarizers.values()), bool(run.folds), len(run.unreadable), run.verdicts,
        run.seconds,
    )  # fmt: skip
