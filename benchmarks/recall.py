"""Measures how many facts different summaries of the same length keep, without a model. Rules find six kinds of facts.

    python -m benchmarks.recall threads.json [--shares 0.1 0.25 0.5]

The file has a JSON list of threads, each a list of messages, or one thread per line. The first two and the last four
messages of each thread are left out, because a sliding window would keep them. The summarizer without a model is
compared with random sentences, with the beginning and the end of the source, and with its end alone.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compaction_store.messages.tool_pairs import tools
from compaction_store.models import Element, Payload
from compaction_store.strategies import speaker
from compaction_store.summarizers import Request, StateSummary
from compaction_store.tokens import count_text, cut, o200k_base
from compaction_store.tokens.message_text import read

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BEGINNING = 60
SHORTEST = 9
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
ID = re.compile(r"\b(?=\w*\d)(?=\w*[a-zA-Z_])\w{5,}\b|#\w+\d\w*|\b\d{5,}\b")
PATH = re.compile(r"(?:[\w.~-]*/)+[\w.-]*\w|\b[\w-]+\.(?:py|js|ts|md|json|c|h|rs|go|java|toml|txt|yml|yaml|sh)\b")
AMOUNT = re.compile(r"[$€£]\s?\d[\d,.]*\d|\b\d+(?:\.\d+)?\s?%")
ERROR = re.compile(r"error|exception|traceback|failed|not found|denied", re.IGNORECASE)
WISH = re.compile(r"\b(?:must|only|don't|do not|never|not|please|need|want|prefer|should|without)\b", re.IGNORECASE)
DECISION = re.compile(
    r"\b(?:I will|I'll|let's|let me|we should|decided|because|instead|the issue|fixed|I have|I've|so that)\b",
    re.IGNORECASE,
)
WRITERS = ("state", "random sentences", "head and tail", "tail")


def elements(messages: list[Payload]) -> tuple[Element, ...]:
    counter = o200k_base()
    return tuple(
        Element(seq, seq, seq, (message,), counter.messages([message]), None, NOW)
        for seq, message in enumerate(messages, 3)
    )


def beginnings(texts: list[str], wanted: re.Pattern[str]) -> set[str]:
    sentences = (sentence.strip() for text in texts for sentence in SENTENCE.split(text))
    return {s[:BEGINNING] for s in sentences if len(s) > BEGINNING // 3 and wanted.search(s)}


def facts(messages: list[Payload]) -> dict[str, set[str]]:
    """Returns the facts by class. A class with a star has only the facts that a person or a call named."""
    said = defaultdict[str, list[str]](list)
    for message in messages:
        said[speaker(message)].extend(read(message)[0])
    used = [*said["user"], *said["assistant"]]
    # A summary need not keep the ids that pair calls with results.
    paired = {step.id for message in messages for step in tools(message).steps}
    everything = [*used, *said["result"]]
    return {
        "ids": {found for text in everything for found in ID.findall(text)} - paired,
        "ids*": {found for text in used for found in ID.findall(text)} - paired,
        "paths*": {found for text in used for found in PATH.findall(text)},
        "amounts": {found for text in everything for found in AMOUNT.findall(text)},
        "errors": beginnings(said["result"], ERROR),
        "constraints": beginnings(said["user"], WISH),
        "decisions": beginnings(said["assistant"], DECISION),
    }


def summaries(messages: list[Payload], share: float) -> Iterator[tuple[str, str]]:
    """Yields the text of each summarizer. All others get as many tokens as the summarizer without a model used."""
    request = Request.of(elements(messages))
    source = "\n".join(text for message in messages for text in read(message)[0])
    room = int(count_text(source) * share)
    text = StateSummary(share=min(0.99, 1.5 * share), max_tokens=max(12, room))(request).text
    yield "state", text
    taken = count_text(text)
    sentences = [s for s in SENTENCE.split(source) if s.strip()]
    dice = random.Random(7)
    order = dice.sample(range(len(sentences)), len(sentences))
    kept: list[int] = []
    for place in order:
        size = count_text(sentences[place])
        if size <= taken:
            taken -= size
            kept.append(place)
    yield "random sentences", "\n".join(sentences[place] for place in sorted(kept))
    yield "head and tail", cut(source, count_text(text), "ends")
    yield "tail", cut(source, count_text(text), "tail")


def recall(threads: list[list[Payload]], shares: list[float]) -> dict[float, dict[str, dict[str, float]]]:
    """Returns the kept part of each class by share and summarizer, as the mean over the threads with such facts."""
    table: dict[float, dict[str, dict[str, float]]] = {}
    for share in shares:
        found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in WRITERS}
        for thread in threads:
            messages = thread[2:-4]
            there = facts(messages)
            for name, text in summaries(messages, share):
                for kind, wanted in there.items():
                    if wanted:
                        found[name][kind].append(sum(one in text for one in wanted) / len(wanted))
        table[share] = {
            name: {kind: sum(values) / len(values) for kind, values in kinds.items()} for name, kinds in found.items()
        }
    return table


def shown(table: dict[float, dict[str, dict[str, float]]]) -> Iterator[str]:
    for share, writers in table.items():
        kinds = list(next(iter(writers.values())))
        yield f"| {share:.0%} | " + " | ".join(kinds) + " | mean |"
        yield "|---" * (len(kinds) + 2) + "|"
        for name, by_kind in writers.items():
            mean = sum(by_kind.values()) / len(by_kind)
            cells = " | ".join(f"{100 * by_kind[kind]:.0f}" for kind in kinds)
            yield f"| {name} | {cells} | {100 * mean:.1f} |"
        yield ""


def read_threads(path: Path) -> list[list[Payload]]:
    text = path.read_text(encoding="utf-8")
    parse: Callable[[str], Any] = json.loads
    found = parse(text) if text.lstrip().startswith("[[") else [parse(line) for line in text.splitlines() if line]
    return [thread for thread in found if len(thread) > SHORTEST]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("threads", type=Path)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.25, 0.5])
    given = parser.parse_args()
    for line in shown(recall(read_threads(given.threads), given.shares)):
        print(line)


if __name__ == "__main__":
    main()
