"""Evaluates policies: replays threads under each policy and adds up the results of the probes."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from compaction_store import arguments
from compaction_store.errors import InvalidInput
from compaction_store.evaluation.asking import Examiner
from compaction_store.evaluation.judge import Judge
from compaction_store.evaluation.money import ModelPrice, Money, Prices, money_of
from compaction_store.evaluation.replay import RECORDED, Policy, RecordedThread, Replayed, replay
from compaction_store.evaluation.results import Evaluation, RunSums, judged_by, result_of, sums_of
from compaction_store.models import Message, Payload
from compaction_store.module_data import ModuleData
from compaction_store.probes import Planted, Probe
from compaction_store.tokens import Counter as TokenCounter
from compaction_store.tokens import o200k_base

_DATA = ModuleData(__file__).values


class ThreadRuns(NamedTuple):
    """The results of one thread by policy, and a hash of its messages and records. Processes can send them.

    `unfit` is the reason why the thread was left out, or None.
    """

    sums: Mapping[str, tuple[RunSums, ...]]
    runs: Mapping[str, tuple[Replayed, ...]]
    money: Mapping[str, tuple[Money, ...]]
    digest: str
    labels: Mapping[int, bool]
    unfit: str | None = None


@dataclass(frozen=True)
class Settings:
    """The settings of a replay, which `evaluate` describes."""

    counter: TokenCounter
    seed: int = 0
    prices: Prices | None = None
    model: str | None = None
    window: int | None = None
    replicates: int = 1
    planted: int = 0
    judge: Judge | None = None
    keep_runs: bool = True
    ask: Examiner | None = None

    def __post_init__(self) -> None:
        arguments.number(self.seed, "seed", least=0)
        arguments.number(self.replicates, "replicates", least=1)
        arguments.number(self.planted, "plant", least=0)
        if self.prices is not None and self.price is None:
            names = ", ".join(sorted(self.prices.models))
            raise InvalidInput(f"model must be a model that has a price: {names}; not {self.model!r}")

    @property
    def price(self) -> ModelPrice | None:
        return None if self.prices is None else self.prices.of(self.model)


def evaluate(
    threads: Iterable[RecordedThread],
    policies: Sequence[Policy | str],
    *,
    counter: TokenCounter,
    seed: int = 0,
    prices: Prices | None = None,
    model: str | None = None,
    window: int | None = None,
    replicates: int = 1,
    plant: int = 0,
    judge: Judge | None = None,
    ask: Examiner | None = None,
    keep_runs: bool = True,
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """Evaluates policies by replaying threads. The policy "recorded" is a thread's own compactions.

    If `prices` and the `model` of the threads are given, costs and savings are computed too. `window` is the context
    window of this model, for the policy "recorded". Every other policy is replayed `replicates` times, because a
    model's summaries differ each time. `plant` is a number of sentences with known facts, which are inserted into each
    thread in memory. A thread's own compactions did not see these sentences, so "recorded" must not be among the
    policies then. A `judge` is asked about every summary. The examiner `ask` asks questions about every compacted view.
    With `keep_runs=False`, only sums are kept, and not the replays with every probe, which take about a megabyte for
    each long thread.
    """
    settings = Settings(counter, seed, prices, model, window, replicates, plant, judge, keep_runs, ask)
    checked = check_policies(policies, settings)
    return summed((replay_thread(thread, checked, settings) for thread in threads), checked, settings, progress)


def check_policies(policies: Sequence[Policy | str], settings: Settings) -> dict[str, Policy | None]:
    """Returns the policies by name; the policy of the thread's own records is None."""
    if not policies:
        raise InvalidInput("policies must have at least one policy")
    named_: dict[str, Policy | None] = {}
    for policy in policies:
        if policy != RECORDED and not isinstance(policy, Policy):
            raise InvalidInput(f"a policy must be a Policy or {RECORDED!r}, not {type(policy).__name__}")
        named_ |= {policy.name: policy} if isinstance(policy, Policy) else {RECORDED: None}
    if len(named_) < len(policies):
        raise InvalidInput(f"policies must have different names; {len(policies)} policies have {len(named_)} names")
    if settings.planted and RECORDED in named_:
        raise InvalidInput(f"policies must not have {RECORDED!r} with plant: recorded compactions saw no planted facts")
    return named_


def replay_thread(thread: RecordedThread, policies: Mapping[str, Policy | None], settings: Settings) -> ThreadRuns:
    """Replays a thread under all policies."""
    if (reason := _unfit(thread)) is not None:
        return ThreadRuns({}, {}, {}, "", {}, reason)
    digest = _digest(thread)
    if settings.planted:
        thread = plant(thread, settings.planted, seed=settings.seed, counter=settings.counter)
    # The tokens of all messages before each seq.
    before = accumulate((message.tokens for message in thread.messages), initial=0)
    grown = dict(zip((message.seq for message in thread.messages), before, strict=False))
    sums: dict[str, tuple[RunSums, ...]] = {}
    runs: dict[str, tuple[Replayed, ...]] = {}
    money: dict[str, tuple[Money, ...]] = {}
    prices, price = settings.prices, settings.price
    for name, policy in policies.items():
        # A thread's own records are the same in every replicate.
        times = 1 if policy is None else settings.replicates
        made = [
            replay(thread, policy, settings.counter, window=settings.window, judge=settings.judge, ask=settings.ask)
            for _ in range(times)
        ]
        all_runs = tuple(made * (settings.replicates // times))
        sums[name] = tuple(map(sums_of, all_runs))
        if settings.keep_runs:
            runs[name] = all_runs
        if prices is not None and price is not None:
            limit = settings.window if policy is None else policy.budget.limit
            money[name] = tuple(money_of(run, prices, price, window=limit, grown=grown) for run in all_runs)
    return ThreadRuns(sums, runs, money, digest, thread.labels)


_Progress = Callable[[int], object] | None


def summed(
    found: Iterable[ThreadRuns], policies: Mapping[str, Policy | None], settings: Settings, progress: _Progress = None
) -> Evaluation:
    """Adds up the results of threads, in their order."""
    fit: list[ThreadRuns] = []
    skipped = Counter[str]()
    for one in found:
        if one.unfit is not None:
            skipped[one.unfit] += 1
            continue
        fit.append(one)
        if progress is not None:
            progress(len(fit))
    labels = {one.sums[RECORDED][0].thread_id: one.labels for one in fit if one.labels and RECORDED in policies}
    times, asks = settings.replicates, 1 if settings.ask is None else settings.ask.replicates
    results = []
    for name, policy in policies.items():
        sums = [run for one in fit for run in one.sums[name]]
        money = [each for one in fit for each in one.money.get(name, ())]
        runs = [run for one in fit for run in one.runs.get(name, ())]
        judged = judged_by(settings.judge, sums, labels if policy is None else {}) if settings.judge else None
        results.append(result_of(name, sums, money, times=times, judged=judged, asks=asks, runs=runs))
    digests = [one.digest for one in fit]
    inputs = hashlib.sha256(json.dumps([settings.seed, settings.planted, digests]).encode()).hexdigest()
    return Evaluation(
        tuple(results), len(digests), settings.seed, dict(sorted(skipped.items())), inputs, settings.planted,
        None if settings.ask is None else settings.ask.examined(),
    )  # fmt: skip


def _digest(thread: RecordedThread) -> str:
    """Returns the SHA-256 of a thread's messages and records, which two imports of one transcript have in common."""
    whole = hashlib.sha256(json.dumps(thread.thread_id).encode())
    for message in thread.messages:
        text = message.text if message.text is not None else json.dumps(message.payload, sort_keys=True)
        whole.update(f"\n{message.seq} {message.tokens} {len(text)} ".encode())
        whole.update(text.encode(errors="surrogatepass"))
        whole.update(f"\n{json.dumps(message.meta, sort_keys=True)}".encode())
    for record in thread.records:
        said = [getattr(record, name) for name in _DATA["digested"].split()]
        whole.update(f"\n{json.dumps(said, sort_keys=True)}".encode())
    return whole.hexdigest()


def _unfit(thread: RecordedThread) -> str | None:
    if not thread.messages:
        return "it has no messages"
    if thread.is_unknown:
        return "a newer release wrote an entry that changes views"
    return "some of its messages were erased" if thread.is_erased_in_part else None


def lost_in(thread: RecordedThread) -> list[Probe]:
    """Returns the failed probes of a thread's own compactions. Those that cost the most tokens come first."""
    if (reason := _unfit(thread)) is not None:
        raise InvalidInput(f"the thread must be whole: {reason}")
    failed = [probe for probe in replay(thread, None, o200k_base()).probes if probe.is_loss]
    return sorted(failed, key=lambda probe: (-(probe.tokens or 0), probe.record))


# ---- planted sentences, which help with threads in which little is needed later, and in CI. Each sentence is a rule, a
# constraint, a fact, a goal or a preference, and has phrases that are in a view only if the view kept its content.

# The part of a thread in which sentences are planted. Later sentences would mostly not be folded.
_FIRST_PART = 0.7


def plant(thread: RecordedThread, count: int, *, seed: int, counter: TokenCounter) -> RecordedThread:
    """Returns the thread with `count` sentences added, at the ends of texts of users in the first part of the thread.

    If this part has no user message with a text, the thread is returned unchanged. The same seed plants the same
    sentences.
    """
    arguments.number(count, "count", least=1)
    last = int(len(thread.messages) * _FIRST_PART)
    places = [at for at, message in enumerate(thread.messages[:last]) if _can_have(message.payload)]
    if not places:
        return thread
    dice = random.Random(f"{seed}:{thread.thread_id}")  # noqa: S311 — a sample, not a secret
    chosen: defaultdict[int, list[Planted]] = defaultdict(list)
    for number in range(count):
        # Spread the sentences evenly over the places.
        chosen[places[number * len(places) // count]].append(sentence(number, dice))
    messages = [_with(one, chosen[at], counter) if at in chosen else one for at, one in enumerate(thread.messages)]
    kept = {messages[at].seq: tuple(planted) for at, planted in chosen.items()}
    return replace(thread, messages=tuple(messages), planted=kept)


def _can_have(payload: Payload | None) -> bool:
    content = None if payload is None or payload.get("role") != "user" else payload.get("content")
    if isinstance(content, list):
        return any(isinstance(part, dict) and part.get("type") == "text" for part in content)
    return isinstance(content, str)


def _with(message: Message, planted: list[Planted], counter: TokenCounter) -> Message:
    assert message.payload is not None  # noqa: S101 — it can have a sentence
    text = "\n\n" + " ".join(one.text for one in planted)
    content = message.payload["content"]
    if isinstance(content, str):
        content += text
    else:
        at = max(i for i, part in enumerate(content) if isinstance(part, dict) and part.get("type") == "text")
        content = [*content[:at], {**content[at], "text": f"{content[at].get('text', '')}{text}"}, *content[at + 1 :]]
    payload = {**message.payload, "content": content}
    return message._replace(payload=payload, tokens=counter.messages([payload]), text=None)


# ---- the sentences

_DRAWN = re.compile(r"\{(\w)(\d?)\}")


def sentence(number: int, dice: random.Random) -> Planted:
    """Returns a sentence. Any five consecutive numbers give one sentence of each kind."""

    def drawn(place: re.Match[str]) -> str:
        characters, count = _DATA["characters"][place[1]], place[2]
        return "".join(dice.choices(characters, k=int(count))) if count else dice.choice(characters)

    form = _DATA["kinds"][number % len(_DATA["kinds"])]
    names = [_DRAWN.sub(drawn, pattern) for pattern in form["names"]]
    return Planted(form["kind"], form["text"].format(*names), tuple(one.format(*names) for one in form["phrases"]))
