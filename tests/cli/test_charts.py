"""Charts of threads, without a database."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from compaction_store import Element
from compaction_store.audit.charts import Course, Point, course, drawn, places, strip, svg
from compaction_store.models import TokenStep

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_steps = st.lists(st.integers(-50, 200), min_size=1, max_size=300)


def _line(changes: list[int]) -> Course:
    tokens = 0
    steps = []
    for pos, wanted in enumerate(changes, 1):
        change = max(wanted, -tokens)
        tokens += change
        steps.append(TokenStep(pos, change, None))
    return course(steps, tokens=None, last_pos=len(changes), erased_pos=1)


@given(_steps, st.integers(1, 200), st.integers(1, 12))
def test_a_drawing_has_the_size_that_was_asked_for(changes: list[int], width: int, height: int) -> None:
    line = _line(changes)
    rows = drawn(line, width=width, height=height)
    label = len(f"{max(1, line.top):,}")
    assert len(rows) == height + 2
    assert all(len(row) <= max(width, label + 3) for row in rows[:-1])


@given(_steps, st.text())
def test_a_picture_is_xml_whatever_the_thread_is_called(changes: list[int], title: str) -> None:
    plain = "".join(c for c in title if c.isprintable())
    root = ET.fromstring(svg(_line(changes), plain))  # noqa: S314 — made here
    falls = sum(point.fell for point in _line(changes).points)
    assert len(root.findall("{http://www.w3.org/2000/svg}circle")) == falls


def test_the_places_below_a_chart_are_round_and_have_dates() -> None:
    begun = datetime(2026, 10, 31, 22, 30, tzinfo=timezone(timedelta(hours=2)))
    times = {pos: begun + timedelta(hours=pos // 100) for pos in range(1, 897)}
    picture = svg(Course((Point(1, 5), Point(896, 9)), times), "t")
    labels = re.findall(r'text-anchor="(\w+)">([^<]*)</text>', picture)
    assert [label for label in labels if "pos" in label[1] or " · " in label[1]] == [
        ("start", "pos 1 · 2026-10-31"), ("middle", "400 · 2026-11-01"), ("middle", "600 · 02:30"),
        ("end", "pos 896 · 04:30"),
    ]  # fmt: skip
    assert places(1) == [1]
    assert places(2) == [1, 2]
    for last in (3, 10, 57, 1000, 123_456):
        assert places(last) == sorted(set(places(last)))
        assert all(last < 10 or each % 10 ** (len(str(last)) - 2) == 0 for each in places(last)[1:-1])
        assert len(places(last)) <= 6
    # A time that is not known is left out.
    assert ">pos 1</text>" in svg(Course((Point(1, 5), Point(9, 9))), "t")


def test_the_erased_tokens_are_subtracted_at_the_last_erasure() -> None:
    steps = [TokenStep(2, 20, None), TokenStep(1, 10, None), TokenStep(4, -5, 1), TokenStep(6, None, 2)]
    line = course(steps, tokens=12, last_pos=7, erased_pos=3)
    assert [(p.pos, p.tokens, p.fell) for p in line.points] == [
        (1, 10, False), (2, 30, False), (3, 17, True), (4, 12, True), (6, 12, False), (7, 12, False),
    ]  # fmt: skip
    unknown = course(steps[:2], tokens=None, last_pos=7, erased_pos=3)
    assert [(p.pos, p.tokens) for p in unknown.points] == [(1, 10), (2, 30)]
    assert drawn(Course(()), width=10, height=2) == []
    assert "<svg" in svg(Course(()), "nothing")


def test_a_strip_shows_what_is_folded_where() -> None:
    def element(seq: int, end_seq: int, kind: str | None = None) -> Element:
        return Element(seq, end_seq, 1, (), 1, None, _NOW, kind)

    view = [element(1, 1), element(2, 9, "summary"), element(10, 10)]
    assert strip(view, width=10) == "·████████·"
    assert strip(view, width=5) == "▒███▒"
    assert strip(view, width=100) == "·████████·"
