"""Measures the size of a view that a SummaryTree compacts, and the number of its summaries, by simulating a thread.

    python -m benchmarks.summary_tree [messages]

Messages of 20 to 500 tokens are appended one by one in memory. Whenever the view is over its budget, the tree compacts
it, as in a store. Every summary takes 400 tokens, including its frame.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter as Tally
from datetime import UTC, datetime
from typing import Any

from compaction_store import CompactionContext, TokenBudget
from compaction_store.compaction.callbacks import run_steps
from compaction_store.compaction.planner import Planner
from compaction_store.models import Element
from compaction_store.rendering.view import View
from compaction_store.strategies import SummaryTree
from compaction_store.strategies.tree import level_of
from compaction_store.tokens import Counter
from compaction_store.waiting import drive

_BUDGET = TokenBudget(context_window=100_000)
_NOW = datetime.fromtimestamp(0, UTC)
_SUMMARY = 400
# A counter that tokenizes nothing, because only summaries are counted.
_COUNTER = Counter("fixed", lambda _payload, _size: _SUMMARY)
_REPORTED = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)


def live(messages: int, tree_options: dict[str, Any]) -> None:
    asked: Tally[int] = Tally()
    again = 0

    def summarize(elements: Any) -> str:
        nonlocal again
        asked[1 + max((level_of(e) for e in elements if e.is_summary), default=0)] += 1
        again += sum(e.tokens for e in elements)
        return "notes"

    tree = SummaryTree(summarize, **tree_options)
    dice = random.Random(7)
    view: list[Element] = []
    tokens = largest = folded = runs = number = 0
    start = time.monotonic()
    print("messages   view now   largest   after a fold   summaries   levels   calls/1,000   read/appended token   s")
    appended = 0
    for seq in range(1, messages + 1):
        role = "user" if seq % 10 == 1 else "assistant"
        size = dice.randint(20, 500)
        view.append(Element(seq, seq, seq, ({"role": role, "content": "…"},), size, None, _NOW))
        tokens += size
        appended += size
        if _BUDGET.is_over(tokens):
            runs += 1
            planner = Planner(View("t", seq, tuple(view)), counter=_COUNTER, budget=_BUDGET)
            planner.begin(tree.name)
            ctx = CompactionContext(planner)
            drive(run_steps(planner, tree.steps(ctx)))
            view = []
            for element in ctx.elements:
                planned = element.number is not None and element.number < 0
                number += planned
                view.append(element._replace(number=number) if planned else element)
            tokens = ctx.total_tokens
            folded = max(folded, tokens)
        largest = max(largest, tokens)
        if seq in _REPORTED or seq == messages:
            summaries = [level_of(element) for element in view if element.is_summary]
            levels = max(summaries, default=0)
            print(
                f"{seq:>8,} {tokens:>10,} {largest:>9,} {folded:>14,} {len(summaries):>11} {levels:>8}"
                f" {1000 * asked.total() / seq:>13.2f} {again / appended:>21.3f} {time.monotonic() - start:>3.0f}"
            )
    print(f"{runs:,} runs; summaries asked for by level: {dict(sorted(asked.items()))}")


if __name__ == "__main__":
    live(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, {})
