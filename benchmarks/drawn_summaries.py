"""Draws threads by a seed, summarizes a part of each by rules, and prints the summaries as a page's sections.

    python -m benchmarks.drawn_summaries FOLDER … [--seed 1] [--count 10] [--max-tokens 400]

The same number of threads is drawn from each folder, which `benchmarks.quality` could read. A message keeps its role,
also the output of a shell with the role `user`. The part begins after the system messages and has 50 to 90 % of the
messages.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from benchmarks.quality import NOW, _json, _lists, recorded
from compaction_store.models import Element
from compaction_store.summarizers import StateSummary
from compaction_store.tokens import count_text

LEAST_MESSAGES = 8


def threads(folder: Path) -> list[tuple[str, tuple[Element, ...]]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    found = [recorded(f"{f.stem}/{place}", one) for f in files for place, one in enumerate(_lists(_json(f)))]
    return [
        (
            one.thread_id,
            tuple(Element(m.seq, m.seq, m.seq, (m.payload or {},), m.tokens, None, NOW) for m in one.messages),
        )
        for one in found
        if len(one.messages) >= LEAST_MESSAGES
    ]


def sections(folders: list[Path], seed: int, count: int, max_tokens: int) -> Iterator[str]:
    dice = random.Random(seed)
    for folder in folders:
        for name, elements in sorted(dice.sample(threads(folder), count // len(folders))):
            end = int(len(elements) * dice.uniform(0.5, 0.9))
            part = [element for element in elements[:end] if element.role not in ("system", "developer")]
            text = StateSummary(max_tokens=max_tokens)(part).text
            size = sum(element.tokens for element in part)
            span = f"messages {part[0].seq} to {part[-1].seq}, {size:,} tokens in, {count_text(text)} out"
            yield f"## {name}\n\n{span.capitalize()}:\n\n```text\n{text}\n```"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=400)
    given = parser.parse_args()
    print("\n\n".join(sections(given.folders, given.seed, given.count, given.max_tokens)))


if __name__ == "__main__":
    main()
