"""Draws three threads as each strategy leaves them, and writes the figures into docs/strategies.md.

With --check, fails if the page or a picture is out of date. The threads are made up and always the same; no database,
model or network is used.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from compaction_store import CompactionContext, TokenBudget
from compaction_store.compaction.callbacks import run_callback
from compaction_store.compaction.planner import Planner
from compaction_store.models import Element, Payload
from compaction_store.rendering.view import View
from compaction_store.strategies import AssistantRuns, ClearToolResults, Ladder, SlidingWindow, SummaryTree, speaker
from compaction_store.summarizers import StateSummary
from compaction_store.tokens import o200k_base
from compaction_store.waiting import drive

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "strategies.md"
PICTURES = ROOT / "docs" / "pictures"
NOW = datetime(2026, 1, 1, tzinfo=UTC)

TEXT = (
    "the order service retries a payment when the gateway answers late and the ledger then shows two rows "
    "for one cart so we look at the handler its tests and the queue before anything is changed because a "
    "customer was charged twice last week and support needs an answer today with the numbers of the "
    "invoices and the time of each call "
)
WORDS = TEXT.split()


TOOL_TURN, LAST_QUESTION = 2, 7


def prose(dice: random.Random, words: int) -> str:
    sentences = []
    while words > 0:
        size = min(words, dice.randint(6, 16))
        sentences.append(" ".join(dice.choices(WORDS, k=size)).capitalize() + ".")
        words -= size
    return " ".join(sentences)


def coding() -> Iterator[Payload]:
    """Makes the thread of a coding agent, in Anthropic's format, with large results and few texts of the user."""
    dice = random.Random(1)  # noqa: S311 — made-up threads, the same every time
    call = 0
    for turn in range(6):
        yield {"role": "user", "content": [{"type": "text", "text": prose(dice, 30)}]}
        for _ in range(dice.randint(4, 7)):
            call += 1
            name = dice.choice(["read_file", "run_tests", "search"])
            yield {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": prose(dice, 15)},
                    {"type": "tool_use", "id": f"toolu_{call}", "name": name, "input": {"path": f"src/part_{call}.py"}},
                ],
            }
            found = prose(dice, dice.randint(100, 900))
            yield {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": f"toolu_{call}", "content": found}],
            }
        yield {"role": "assistant", "content": [{"type": "text", "text": prose(dice, 60 + 10 * turn)}]}


def support() -> Iterator[Payload]:
    """Makes a long chat with a customer, in OpenAI's chat format, with short messages and few tool calls."""
    dice = random.Random(2)  # noqa: S311 — made-up threads, the same every time
    yield {"role": "system", "content": prose(dice, 80)}
    for turn in range(24):
        yield {"role": "user", "content": prose(dice, dice.randint(10, 60))}
        if turn % 5 == TOOL_TURN:
            function = {"name": "find_order", "arguments": f'{{"number": {1000 + turn}}}'}
            calls = [{"id": f"call_{turn}", "type": "function", "function": function}]
            yield {"role": "assistant", "content": None, "tool_calls": calls}
            yield {"role": "tool", "tool_call_id": f"call_{turn}", "content": prose(dice, 120)}
        for _ in range(dice.choice([1, 1, 2, 3])):
            yield {"role": "assistant", "content": prose(dice, dice.randint(20, 90))}


def research() -> Iterator[Payload]:
    """Makes a research thread, in OpenAI's chat format, with parallel calls and long runs without the user."""
    dice = random.Random(3)  # noqa: S311 — made-up threads, the same every time
    yield {"role": "system", "content": prose(dice, 40)}
    yield {"role": "user", "content": prose(dice, 50)}
    for step in range(12):
        ids = [f"call_{step}_{i}" for i in range(dice.randint(2, 4))]
        function = {"name": "search", "arguments": f'{{"query": "part {step}"}}'}
        calls = [{"id": i, "type": "function", "function": function} for i in ids]
        yield {"role": "assistant", "content": prose(dice, 20), "tool_calls": calls}
        for i in ids:
            yield {"role": "tool", "tool_call_id": i, "content": prose(dice, dice.randint(150, 500))}
        yield {"role": "assistant", "content": prose(dice, 80)}
        if step == LAST_QUESTION:
            yield {"role": "user", "content": prose(dice, 25)}


THREADS: dict[str, Callable[[], Iterator[Payload]]] = {"coding": coding, "support": support, "research": research}
SUMMARIZE = StateSummary()
STRATEGIES: dict[str, Any] = {
    "as it is": None,
    "AssistantRuns(s)": AssistantRuns(SUMMARIZE),
    "AssistantRuns(s, tool_results=True)": AssistantRuns(SUMMARIZE, tool_results=True),
    "SlidingWindow(s, threshold=2000, retain=8)": SlidingWindow(SUMMARIZE, threshold=2000, retain=8),
    "ClearToolResults(keep=3)": ClearToolResults(keep=3),
    "Ladder(s, keep_recent=8)": Ladder(SUMMARIZE, keep_recent=8),
    "Ladder(), without a summarizer": Ladder(keep_recent=8),
    "SummaryTree(s, leaf_tokens=1500, fan_in=3)": SummaryTree(SUMMARIZE, leaf_tokens=1500, fan_in=3, keep_recent=8),
}


class Drawn(NamedTuple):
    name: str
    elements: tuple[Element, ...]
    messages: int
    tokens: int


def compacted(messages: list[Payload], name: str, strategy: Any) -> Drawn:
    counter = o200k_base()
    elements = tuple(
        Element(seq, seq, seq, (message,), counter.messages([message]), None, NOW)
        for seq, message in enumerate(messages, 1)
    )
    total = sum(element.tokens for element in elements)
    budget = TokenBudget(context_window=max(1, round(total * 0.8)))
    planner = Planner(View("t", len(elements), elements), counter=counter, budget=budget)
    ctx = CompactionContext(planner)
    if strategy is not None:
        planner.begin(name)
        drive(run_callback(planner, strategy))
    return Drawn(name, ctx.elements, len(ctx.result_messages), ctx.total_tokens)


COLOURS = {"user": "#2f6f9f", "assistant": "#8fb8d6", "tool": "#c9b458", "system": "#6b6b6b"}
FOLDED = {"summary": "#b5523b", "truncation": "#ead9a0", "removal": "#ffffff"}
CELL, ROW, LEFT, RIGHT = 8, 26, 310, 190


def picture(name: str, rows: list[Drawn], count: int) -> str:
    width = LEFT + CELL * count + RIGHT
    height = ROW * (len(rows) + 2)
    attributes = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" role="img"'
    label = f"What each strategy leaves of the thread {name}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {attributes} aria-label="{label}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for i, row in enumerate(rows):
        y = ROW * i + 6
        parts.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{_escaped(row.name)}</text>')
        parts.extend(_cell(element, y) for element in row.elements)
        figures = f"{row.messages} messages, {row.tokens:,} tokens"
        parts.append(f'<text x="{LEFT + CELL * count + 8}" y="{y + 13}" fill="#444444">{figures}</text>')
    x = LEFT
    legend = [*COLOURS.items(), ("summary", FOLDED["summary"]), ("shortened", FOLDED["truncation"])]
    for label, colour in legend:
        y = ROW * (len(rows) + 1)
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}" stroke="#777777"/>')
        parts.append(f'<text x="{x + 16}" y="{y + 11}">{label}</text>')
        x += 24 + 7 * len(label) + 12
    return "\n".join([*parts, "</svg>", ""])


def _cell(element: Element, y: int) -> str:
    x = LEFT + CELL * (element.seq - 1)
    width = CELL * (element.end_seq - element.seq + 1) - 1
    if element.kind is not None:
        colour = FOLDED[element.kind]
    else:
        message = element.message or {}
        colour = COLOURS.get(speaker(message), COLOURS["tool"])
    edge = ' stroke="#777777" stroke-width="0.5"' if element.kind in {"truncation", "removal"} else ""
    return f'<rect x="{x}" y="{y}" width="{width}" height="18" fill="{colour}"{edge}/>'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def drawn() -> tuple[dict[str, str], str]:
    """Returns the pictures by their names, and the table of figures."""
    pictures = {}
    lines = ["| strategy | " + " | ".join(THREADS) + " |", "|---|" + "---|" * len(THREADS)]
    table: dict[str, list[str]] = {}
    for name, make in THREADS.items():
        messages = list(make())
        rows = [compacted(messages, *strategy) for strategy in STRATEGIES.items()]
        pictures[name] = picture(name, rows, len(messages))
        for row in rows:
            share = f"{row.tokens / rows[0].tokens:.0%}"
            table.setdefault(row.name, []).append(f"{row.messages} messages, {row.tokens:,} tokens ({share})")
    lines.extend(f"| {name} | " + " | ".join(cells) + " |" for name, cells in table.items())
    return pictures, "\n".join(lines)


def main() -> None:
    pictures, table = drawn()
    page = PAGE.read_text(encoding="utf-8")
    wanted = re.sub(
        r"(<!-- figures -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}\n{table}\n\n{m[2]}", page, flags=re.DOTALL
    )
    files = {PAGE: wanted} | {PICTURES / f"strategies-{name}.svg": text for name, text in pictures.items()}
    if "--check" in sys.argv:
        stale = [str(p.relative_to(ROOT)) for p, t in files.items() if not p.is_file() or p.read_text("utf-8") != t]
        if stale:
            raise SystemExit(f"{', '.join(stale)}: run python scripts/strategies.py")
        return
    PICTURES.mkdir(exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
