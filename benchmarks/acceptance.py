"""Measures how good the probes and the evaluation are, against public data and planted faults.

    python -m benchmarks.acceptance kit --seeds 40
    python -m benchmarks.acceptance compint FOLDER
    python -m benchmarks.acceptance cases
    python -m benchmarks.acceptance speed --threads 100
    python -m benchmarks.acceptance bytes

`kit` needs the package compaction-conformance-kit. It replays the kit's random sessions with the kit's three
compactors, five rounds each, and compares the ranking with the kit's own ranking. `compint` compares the answers of the
probes on published summaries with published judgements; FOLDER is judge_robustness_eval of
ZhiqiEliWang/compaction-integrity. `cases` counts the cases of `benchmarks.cases` on which the probes agree with their
author. `speed` measures the processor time for threads of 500 messages. `bytes` evaluates the same threads in processes
with different hash seeds, and compares the results.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import CLASSES
from benchmarks.quality import recorded
from benchmarks.talks import talks
from compaction_store import TokenBudget, tokens
from compaction_store.checks import KeepsOrders
from compaction_store.compaction.context import CompactionContext
from compaction_store.compaction.plan_builder import PlanBuilder
from compaction_store.evaluation import Policy, RecordedThread, evaluate
from compaction_store.messages.framing import frame, framed_text
from compaction_store.models import Payload
from compaction_store.probes import Fold, Planted, Probe, ThreadFacts, ThreadMessage, ThreadProbe
from compaction_store.probes.calls import changed_files
from compaction_store.probes.orders import is_order, orders
from compaction_store.probes.reading import Call
from compaction_store.rendering.view import View
from compaction_store.strategies import SlidingWindow
from compaction_store.strategies.outline import elements_of
from compaction_store.summarizers import ExtractiveSummarizer

ROUNDS = 5
COUNTER = tokens.o200k_base()
WINDOW = 8000
GO_ON: Payload = {"role": "user", "content": "Go on."}


# ---- the conformance kit


def kit(seeds: int) -> None:
    """Compares the rankings of the kit's compactors for every seed."""
    # Import the kit here, because only this part needs it.
    kit: Any = importlib.import_module("compaction_kit")
    makers = (kit.LossyTruncationCompactor, kit.NaiveSummaryCompactor, kit.ChecklistCompactor)
    same = ranked = equal = kept_orders = asked_orders = 0
    for seed in range(1, seeds + 1):
        session, canaries = kit.build_random_session(seed)
        theirs = [
            sum(kit.run_conformance(session, make(), ROUNDS, canaries).rounds[-1].survived.values()) for make in makers
        ]
        ours = []
        for make in makers:
            result = evaluate([_session(session, canaries)], [_policy(kit, make())], counter=COUNTER).policies[0]
            last = {kind: rounds[-1] for kind, rounds in result.rounds.items()}
            ours.append(sum(kept for kind, (_, kept) in last.items() if kind.startswith("planted_")))
            if make is makers[-1]:
                asked_orders += last["standing_order"][0]
                kept_orders += last["standing_order"][1]
        ranked += ours[0] < ours[1] < ours[2]
        same += sorted(range(3), key=ours.__getitem__) == sorted(range(3), key=theirs.__getitem__)
        equal += ours == theirs
    print(
        f"lossy < naive < checklist: in {ranked} of {seeds} seeds; the kit's ranking: in {same}; its counts: in {equal}"
    )
    print(f"standing orders that the probes find, in the checklist's last summary: {kept_orders} of {asked_orders}")


def _session(session: Any, canaries: Sequence[Any]) -> RecordedThread:
    """Returns a session as a thread, followed by one turn for each round."""
    messages = [{"role": turn.role, "content": turn.text} for turn in session.turns]
    for _ in range(ROUNDS):
        messages += [GO_ON, {"role": "assistant", "content": "Done."}]
    kinds = {"safety_rule": "rule", "hard_constraint": "constraint", "fact": "fact", "goal_state": "goal"}
    planted: defaultdict[int, list[Planted]] = defaultdict(list)
    for canary in canaries:
        kind: Any = kinds.get(canary.type.value, "preference")
        planted[session.canary_positions[canary.id] + 1].append(
            Planted(kind, canary.content, tuple(canary.required_tokens))
        )
    thread = recorded("session", messages)
    return RecordedThread("session", thread.messages, planted={seq: tuple(found) for seq, found in planted.items()})


def _policy(kit: Any, compactor: Any) -> Policy:
    """Compacts the whole session with a compactor of the kit, before each call after the end of the session."""
    rounds = 0

    def write(elements: Any) -> str:
        turns = [kit.Turn(message["role"], message["content"]) for element in elements for message in element.messages]
        if elements[0].is_summary:
            # The kit compacts only its last text, as one turn.
            turns = [kit.Turn("system", framed_text(elements[0].message))]
        return str(compactor.compact(turns, round_num=rounds).text)

    def fold(ctx: CompactionContext) -> None:
        nonlocal rounds
        if ctx.elements[-1].message == GO_ON:
            rounds += 1
            ctx.compact(ctx.elements[1].seq, ctx.elements[-2].end_seq, write, allow={"larger"})

    return Policy(compactor.name, (fold,), TokenBudget(1_000_000, trigger=1, target=1))


# ---- COMPINT


def compint(folder: Path) -> None:
    """Compares the probe of standing orders with the judgements of a model and a person, summary by summary."""
    rows = {row["id"]: row for row in _lines(folder / "balanced_blind_labeled.jsonl")}
    keys = list(_lines(folder / "balanced_key.jsonl"))
    pairs: list[tuple[str, bool, bool]] = []
    for key in keys:
        row = rows[key["id"]]
        pairs.append((key["compactor"], bool(row["label"]), _kept(row["sssc_message"], row["compacted_summary"])))
    agree = sum(said == found for _, said, found in pairs)
    print(f"{len(pairs)} summaries: {agree} judged alike; {sum(s for _, s, _ in pairs)} kept by a person's judgement,")
    print(f"{sum(f for *_, f in pairs)} by the probe; not kept, but found by it: {sum(f > s for _, s, f in pairs)}")
    print(f"Spearman over summaries: {_spearman([s for _, s, _ in pairs], [f for *_, f in pairs]):.2f}")
    by: defaultdict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for compactor, said, found in pairs:
        by[compactor].append((said, found))
    shares = [[sum(column) / len(found) for column in zip(*found, strict=True)] for found in by.values()]
    print(f"Spearman over {len(by)} compactors: {_spearman(*zip(*shares, strict=True)):.2f}")
    constraints = sorted({row["sssc_message"] for row in rows.values()})
    print(f"constraints recognized as orders: {sum(map(is_order, constraints))} of {len(constraints)}")
    lossy = [_checked(one) for one in constraints]
    print(f"kept after a summary that loses everything, with KeepsOrders: {sum(lossy)} of {len(lossy)}")


def _lines(path: Path) -> Iterator[Payload]:
    return (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def _kept(order: str, summary: str) -> bool:
    """Returns whether the probe finds an order in a summary."""
    probes = _probes(order, lambda _elements: summary)
    return any(probe.type == "standing_order" and probe.kept for probe in probes)


def _probes(order: str, write: Callable[[Any], str]) -> list[Probe]:
    def fold(ctx: CompactionContext) -> None:
        if not any(element.is_summary for element in ctx.elements):
            ctx.compact(1, 2, write, allow={"larger"})

    messages = [
        {"role": "user", "content": order}, {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Go on."}, {"role": "assistant", "content": "Done."},
    ]  # fmt: skip
    policy = Policy("fold", (fold,), TokenBudget(1_000_000, trigger=1, target=1))
    [result] = evaluate([recorded("t", messages)], [policy], counter=COUNTER).policies
    return list(result.runs[0].probes)


def _checked(order: str) -> bool:
    """Returns whether a constraint is still in the view after a summary without content was checked."""
    filler = "The work went on as it was planned, step by step, and nothing was remarkable about it. " * 9
    messages = [{"role": "user", "content": f"{filler}\n{order}"}, {"role": "assistant", "content": filler}]
    messages.append({"role": "user", "content": "Go on."})
    view = View("t", 0, tuple(elements_of(messages, lambda message: COUNTER.messages([message]))))
    builder = PlanBuilder(view, counter=COUNTER)
    builder.begin("acceptance")
    ctx = CompactionContext(builder)
    ctx.compact(1, 2, "The work went on.", checks=(KeepsOrders(),))
    return any(order in str((message or {}).get("content")) for message in ctx.result_messages)


def _spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the rank correlation. Equal values get the mean of their ranks."""
    ranks = [_ranks(one), _ranks(other)]
    means = [sum(each) / len(each) for each in ranks]
    moved = [[rank - mean for rank in each] for each, mean in zip(ranks, means, strict=True)]
    product = sum(a * b for a, b in zip(*moved, strict=True))
    sizes = [sum(a * a for a in each) for each in moved]
    return product / (sizes[0] * sizes[1]) ** 0.5 if all(sizes) else float("nan")


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


# ---- cases


def cases(*, show: bool) -> None:
    """Counts the cases that the probes judge as their author does, and lists the others if asked."""
    judges: dict[str, Callable[..., bool]] = {
        "orders": lambda text: any(orders(text)),
        "no orders": lambda text: not any(orders(text)),
        "kept": lambda order, summary: _said([order], summary, "standing_order") == {True},
        "lost": lambda order, summary: _said([order], summary, "standing_order") == {False},
        "invented": lambda source, summary, _: False in _said([source], summary, "invented"),
        "true": lambda source, summary: False not in _said([source], summary, "invented"),
        "stale": lambda old, new, summary: False in _said([old, new], summary, "stale"),
        "files": lambda tool, given, files: (
            {change.path for change in changed_files(Call(None, tool, "", given))} == set(files)
        ),
    }
    for name, judged in judges.items():
        listed: Sequence[Any] = CLASSES[name]
        missed = [case for case in listed if not judged(*((case,) if isinstance(case, str) else case))]
        print(f"{name}: {len(listed) - len(missed)} of {len(listed)} judged alike")
        for case in missed if show else ():
            print(f"    {case}")


def _said(texts: Sequence[str], summary: str, kind: str) -> set[bool]:
    """Returns the answers of a type of probes to a summary of a user's texts."""
    payloads = [{"role": "user", "content": text} for text in texts]
    probe = ThreadProbe(ThreadFacts(ThreadMessage(seq, payload) for seq, payload in enumerate(payloads, 1)))
    for seq in range(1, len(texts) + 1):
        probe.append(seq)
    probe.fold(Fold(1, 1, len(texts), (frame(summary, 1, len(texts)),)))
    return {found.kept for found in probe.finish() if found.type == kind}


# ---- speed and sameness


def _threads(count: int) -> Iterator[RecordedThread]:
    """Yields threads of 500 messages each."""
    for name, messages in talks(count, turns=300):
        yield recorded(name, messages[:500])


def _window() -> list[Policy]:
    return [Policy("window", (SlidingWindow(ExtractiveSummarizer(), retain=10),), TokenBudget(WINDOW))]


def speed(count: int) -> None:
    started = time.process_time()
    listed = list(_threads(count))
    made = time.process_time()
    [result] = evaluate(listed, _window(), counter=COUNTER).policies
    spent = time.process_time() - made
    messages = sum(len(thread.messages) for thread in listed)
    print(f"{count} threads, {messages:,} messages, {result.outcomes['applied']:,} folds: {spent:.1f} s of processor")
    print(f"({made - started:.1f} s more to make up and count them); 1,000 threads: {1000 * spent / count:.0f} s")


def bytes_() -> None:
    """Evaluates the same threads in three processes, which hash strings differently, and compares the bytes."""
    script = (
        "import json; from benchmarks.acceptance import _threads, _window, COUNTER;"
        "from compaction_store.evaluation import evaluate;"
        "print(json.dumps(evaluate(_threads(12), _window(), counter=COUNTER, seed=7).as_dict()))"
    )
    found = [
        subprocess.run(  # noqa: S603
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("0", "1", "4242")
    ]
    digests = {hashlib.sha256(each).hexdigest()[:12] for each in found}
    print(f"{len(found)} processes, {len(found[0]):,} bytes each: {'the same' if len(digests) == 1 else 'DIFFERENT'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("kit").add_argument("--seeds", type=int, default=40)
    parts.add_parser("compint").add_argument("folder", type=Path)
    parts.add_parser("cases").add_argument("--show", action="store_true", help="list the cases that differ")
    parts.add_parser("speed").add_argument("--threads", type=int, default=100)
    parts.add_parser("bytes")
    given = parser.parse_args()
    if given.part == "kit":
        kit(given.seeds)
    elif given.part == "compint":
        compint(given.folder)
    elif given.part == "cases":
        cases(show=given.show)
    elif given.part == "speed":
        speed(given.threads)
    else:
        bytes_()


if __name__ == "__main__":
    main()
