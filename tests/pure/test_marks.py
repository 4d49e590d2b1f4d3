"""What a summary kept of its sources and what is new, and charts of long threads."""

from __future__ import annotations

import random

import pytest

from compaction_store.audit import charts
from compaction_store.audit.marks import KnownFacts
from compaction_store.models import TokenStep

_WORDS = (
    "the",
    "refund",
    "of",
    "$1,250.50",
    "1250.5",
    "$999.99",
    "007",
    "order",
    "#44910",
    "ZX-990-AA",
    "zx_990_aa",
    "src/a.py",
    "/srv/orders/0.json",
    "./src/A.py",
    "a.py:12:3",
    "https://x.example/A/?q=1",
    "me@x.example",
    "v1.2.3",
    "1.2.3",
    "10ms",
    "2026-05-01T12:00Z",
    "app.Store.open",
    "store.open",
    "key=value-1,b_2",
    '"the refund of"',
    "\xablost\xbb",
    "Stra\xdfe_9",
    "STRASSE_9",
    "\x1b[31mred_1\x1b[0m",
    '{"a":"x\\nsrc/b.py"}',
    "C:\\Temp\\a.txt",
    "5\u5e745\u6708",
    "\u2018quite so\u2019",
    "3.0",
    "+3",
    "-1250.5",
    "\u2212$999.99",
    "-007",
)


@pytest.mark.parametrize("seed", range(100))
def test_what_is_new_is_the_same_if_only_the_summary_is_looked_for(seed: int) -> None:
    choose = random.Random(seed)

    def text(most: int) -> str:
        return choose.choice((" ", ", ", "\n")).join(choose.choices(_WORDS, k=choose.randrange(1, most)))

    sources, summaries = [text(12) for _ in range(choose.randrange(1, 6))], [text(9), text(9)]
    whole, less = KnownFacts(), KnownFacts(only=summaries)
    for source in sources:
        whole.add(source)
        less.add(source)
    for summary in summaries:
        assert less.marked(summary, missing="new") == whole.marked(summary, missing="new")


@pytest.mark.parametrize("count", [1, 400, 1_500, 40_000])
def test_a_chart_is_bounded_however_many_compactions_there_are(count: int) -> None:
    steps = [
        step for pos in range(1, count + 1) for step in (TokenStep(2 * pos, 90, None), TokenStep(2 * pos + 1, -80, pos))
    ]
    line = charts.course(steps, tokens=10 * count, last_pos=2 * count + 1, erased_pos=1)
    drawn = charts.svg(line, "a thread")
    assert len(drawn) < 130_000
    assert drawn.count("<circle") == count or 250 <= drawn.count("<circle") <= 2_100
