"""Compares strategies and summarizers that need no API key, on recorded threads in memory, and prints a table.

    python -m benchmarks.quality FOLDER [--window 8000] [--strategy NAME …] [--summarizer SPEC …] [--most N] [--json]

Every file of the folder is read. A file has a JSON list of messages, a JSON object with messages in `traj`, `history`
or `messages`, a list of such objects, or one such object per line. In a `.traj` file of SWE-agent, the shell's output
has the role `user`: it is read as the result of the command before it. Each strategy compacts before each model call
for which the view takes more than 80 % of the window. Besides running the probes, this program counts mistakes of a
strategy: it shortens results that no model has read although the view would fit the window, it compacts to save less
than a tenth of a span, or it drops a summary that it has requested. A summarizer is given as on the command line, such
as `state:openai:model=NAME,base_url=URL` for a model on a local server.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from compaction_store import Summary, TokenBudget, tokens
from compaction_store.checks import KeepsIdentifiers, KeepsOrders
from compaction_store.cli import choices
from compaction_store.compaction.asks import Steps
from compaction_store.compaction.context import CompactionContext, planner_of
from compaction_store.compaction.summary_request import texts
from compaction_store.evaluation import Policy, PolicyResult, Rate, RecordedThread, evaluate
from compaction_store.language.names import NameReader
from compaction_store.models import Element, Message, Payload
from compaction_store.strategies import (
    AssistantRuns,
    ClearToolResults,
    Ladder,
    Pipeline,
    SlidingWindow,
    SummaryTree,
)
from compaction_store.strategies.base import MIN_SAVING, BaseStrategy
from compaction_store.strategies.outline import unread
from compaction_store.summarizers import Request, StateSummary

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LISTS = ("traj", "history", "messages")
KEPT_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "function_call")
PROBES = ("needed_later", "standing_order", "artifact", "invented")
Summarize = Callable[[Any], Any]


# ---- threads


def read_folder(folder: Path) -> Iterator[RecordedThread]:
    """Yields the threads of all files. Leaves out threads without a reply."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        for place, messages in enumerate(_lists(_json(file))):
            if file.suffix == ".traj":
                _read_commands(messages)
            if any(message["role"] == "assistant" for message in messages):
                yield recorded(f"{file.stem}/{place}", messages)


def long_threads(threads: list[RecordedThread], window: int, most: int, seed: int) -> list[RecordedThread]:
    """Returns threads that fill a window, in a random order."""
    long = [one for one in threads if sum(message.tokens for message in one.messages) > window]
    return random.Random(seed).sample(long, min(most, len(long)))


def recorded(name: str, messages: list[Payload]) -> RecordedThread:
    counter = tokens.o200k_base()
    counted = [(message, counter.messages([message])) for message in messages]
    return RecordedThread(
        name,
        tuple(
            Message(seq, seq, message["role"], message, size, NOW, None, False, json.dumps(message))
            for seq, (message, size) in enumerate(counted, 1)
        ),
    )


def _json(file: Path) -> Any:
    text = file.read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def _lists(found: Any) -> Iterator[list[Payload]]:
    if isinstance(found, dict):
        yield from _lists(next((found[name] for name in LISTS if isinstance(found.get(name), list)), []))
    elif isinstance(found, list) and found and all(isinstance(one, dict) and "role" in one for one in found):
        yield [_message(one) for one in found]
    elif isinstance(found, list):
        for one in found:
            yield from _lists(one)


def _read_commands(messages: list[Payload]) -> None:
    """Makes calls of the commands in a session of SWE-agent, and results of the outputs that follow them."""
    for place, (said, output) in enumerate(pairwise(messages)):
        if (said["role"], output["role"]) == ("assistant", "user"):
            thought, _, command = str(said["content"]).partition("```")
            function = {"name": "shell", "arguments": json.dumps({"command": command.strip("`\n")})}
            said |= {"content": thought, "tool_calls": [{"id": f"c{place}", "type": "function", "function": function}]}
            output |= {"role": "tool", "tool_call_id": f"c{place}"}


def _message(given: Payload) -> Payload:
    kept = {name: given[name] for name in KEPT_FIELDS if given.get(name) is not None}
    ids = given.get("tool_call_ids")
    if given["role"] == "tool" and "tool_call_id" not in kept and isinstance(ids, list) and len(ids) == 1:
        kept["tool_call_id"] = ids[0]
    return {"content": "", **kept}


# ---- policies


class Watched(BaseStrategy):
    """A strategy whose mistakes are counted."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        #: Unread results that were changed, and those of them that would have fitted.
        self.changed = self.needless = 0
        #: Records that saved less than a tenth of their span, and summaries that were written and not used.
        self.thin = self.dropped = 0

    @property
    def name(self) -> str:
        return str(self.inner.name)

    def steps(self, ctx: CompactionContext) -> Steps:
        before = ctx.elements
        new = [before[index] for index in unread(before)]
        known = len(planner_of(ctx).attempts)
        yield from self.inner.steps(ctx)
        for made in planner_of(ctx).attempts[known:]:
            self.dropped += made.outcome != "applied" and made.summary is not None
            self.thin += made.outcome == "applied" and (made.tokens_after or 0) > (1 - MIN_SAVING) * (
                made.tokens_before or 0
            )
        whole = {element.seq for element in ctx.elements if element.kind is None}
        changed = [element for element in new if element.kind is None and element.seq not in whole]
        self.changed += len(changed)
        if changed and ctx.budget is not None and ctx.total_tokens + _lost(changed, ctx.elements) <= ctx.budget.limit:
            self.needless += len(changed)


def _lost(changed: list[Element], view: Any) -> int:
    sizes = {element.seq: element.tokens for element in view}
    return sum(element.tokens - sizes.get(element.seq, 0) for element in changed)


def head_and_tail(asked: Any) -> str:
    """Returns the beginning and the end of the source, as a baseline that any other summary must beat."""
    request = Request.of(asked)
    counter = tokens.o200k_base()
    text = "\n".join(text for element in request for text in texts(element))
    room = sum(element.tokens for element in request) // 4
    return counter.cut(text, min(room, room if request.budget is None else request.budget), "ends")


def names_only(asked: Any) -> str:
    """Returns a bare list of the names in the source, which any summary must beat."""
    request = Request.of(asked)
    counter, reader = tokens.o200k_base(), NameReader()
    text = ", ".join(name.text for name in reader.names("\n".join(text for one in request for text in texts(one))))
    room = sum(element.tokens for element in request) // 4
    return counter.cut(text, min(room, room if request.budget is None else request.budget), "head")


SUMMARIZERS: dict[str, Summarize] = {
    "state": StateSummary(),
    "state, checked": StateSummary(checks=(KeepsOrders(), KeepsIdentifiers())),
    "head and tail": head_and_tail,
    "names only": names_only,
}


def strategies(summarize: Summarize) -> dict[str, Any]:
    """Returns the strategies that need a summarizer."""
    return {
        "AssistantRuns": AssistantRuns(summarize, tool_results=True),
        "SlidingWindow": SlidingWindow(summarize, retain=6),
        "SummaryTree": SummaryTree(summarize, leaf_tokens=1500, fan_in=3),
        "Ladder": Ladder(summarize, keep_recent=6),
        "ClearToolResults, Ladder": Pipeline(ClearToolResults(), Ladder(summarize, keep_recent=6)),
        "Pipeline": Pipeline(ClearToolResults(), SlidingWindow(summarize, retain=6), Ladder(keep_recent=6)),
    }


def policies(budget: TokenBudget, summarizers: dict[str, Summarize]) -> dict[str, tuple[Watched, Policy]]:
    made: dict[str, Any] = {
        "ClearToolResults · none": ClearToolResults(),
        "Ladder · none": Ladder(keep_recent=6),
        "SlidingWindow · none": SlidingWindow(Summary("Earlier messages are left out."), retain=6),
    }
    for writer, summarize in summarizers.items():
        made |= {f"{name} · {writer}": strategy for name, strategy in strategies(summarize).items()}
    watched = {name: Watched(strategy) for name, strategy in made.items()}
    return {name: (one, Policy(name, (one,), budget)) for name, one in watched.items()}


# ---- output


def row(result: PolicyResult, watched: Watched, lengths: dict[str, int]) -> dict[str, Any]:
    rates: dict[str, Rate | None] = {kind: result.rates.get(kind) for kind in PROBES}  # type: ignore[call-overload]
    outcomes = result.outcomes
    return {
        "policy": result.policy,
        **{
            kind: None if rate is None else [rate.asked, rate.share, rate.low, rate.high]
            for kind, rate in rates.items()
        },
        "tokens_per_call": round(result.tokens_per_call),
        "over_window": result.over_window,
        "records_in_8": round(8 * outcomes["applied"] / sum(lengths.values()), 2),
        "folded": len({run.thread_id for run in result.runs if run.outcomes["applied"]}),
        "lost_in_100_calls": round(result.lost_in_100_calls("needed_later"), 1),
        "rejected": outcomes["rejected"],
        "failed": outcomes["failed"],
        "unread_changed": watched.changed,
        "unread_needless": watched.needless,
        "thin": watched.thin,
        "dropped": watched.dropped,
        "most_records_in_8": round(max(8 * run.outcomes["applied"] / lengths[run.thread_id] for run in result.runs), 2),
    }


def table(rows: list[dict[str, Any]]) -> str:
    names = [
        "folded threads", "needed later", "lost in 100 calls", "orders", "files", "invented", "tokens a call",
        "over window", "records in 8 messages",
    ]  # fmt: skip
    lines = [f"| strategy · summarizer | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for found in rows:
        needed, *kept = (_share(found[kind]) for kind in PROBES[:3])
        invented = found["invented"]
        none = "-" if invented is None else f"{round(invented[0] * (1 - invented[1])):,} of {invented[0]:,}"
        cells = [
            found["folded"], needed, found["lost_in_100_calls"], *kept, none, f"{found['tokens_per_call']:,}",
            found["over_window"], found["records_in_8"],
        ]  # fmt: skip
        lines.append(f"| {found['policy']} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _share(found: list[float] | None) -> str:
    if found is None:
        return "-"
    asked, share, low, high = found
    return f"{100 * share:.0f} % ({100 * low:.0f} to {100 * high:.0f}), n {asked:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--window", type=int, default=8000, help="the model's window in tokens")
    parser.add_argument("--strategy", action="append", help="run only the policies whose names begin with this")
    parser.add_argument("--summarizer", action="append", help="use this one, such as openai:model=NAME,base_url=URL")
    parser.add_argument("--most", type=int, help="only so many of the threads that fill the window, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="write all figures as JSON")
    given = parser.parse_args()
    threads = list(read_folder(given.folder))
    if given.most is not None:
        threads = long_threads(threads, given.window, given.most, given.seed)
    own = {spec.partition(":model=")[0]: choices.summarize([spec]) for spec in given.summarizer or ()}
    chosen = {
        name: one
        for name, one in policies(TokenBudget(given.window), own or SUMMARIZERS).items()
        if not given.strategy or name.startswith(tuple(given.strategy))
    }
    found = evaluate(threads, [policy for _, policy in chosen.values()], counter=tokens.o200k_base(), seed=given.seed)
    lengths = {thread.thread_id: len(thread.messages) for thread in threads}
    rows = [row(result, chosen[result.policy][0], lengths) for result in found.policies]
    print(f"{found.threads:,} threads, {sum(lengths.values()):,} messages, a window of {given.window:,} tokens")
    if given.json:
        print(json.dumps(rows, indent=1))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
