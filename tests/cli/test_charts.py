"""Charts of threads, without a database."""

from __future__ import annotations

from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from compaction_store import Element
from compaction_store.audit.charts import Course, course, drawn, strip, svg
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
