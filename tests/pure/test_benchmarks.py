"""The benchmark's command is understood, and its page has every row that it names."""

from __future__ import annotations

import sys

import pytest
from support.paths import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.__main__ import LONG, USUAL, chosen, parser
from benchmarks.page import BEGIN, END, replaced

_PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


def test_a_whole_run_has_every_part_and_a_long_one_more() -> None:
    assert tuple(chosen(parser().parse_args([]))) == USUAL
    assert tuple(chosen(parser().parse_args(["--long"]))) == (*USUAL, *LONG)
    assert [part.name for part in chosen(parser().parse_args(["--only", "disk", "append"]))] == ["append", "disk"]


def test_names_are_each_used_once() -> None:
    rows = [row.name for part in (*USUAL, *LONG) for row in part.rows]
    names = [part.name for part in (*USUAL, *LONG)]
    assert len(rows) == len(set(rows))
    assert len(names) == len(set(names))


@pytest.mark.parametrize("part", USUAL, ids=lambda part: part.name)
def test_every_row_stands_on_the_page(part: type) -> None:
    _, _, written = _PAGE.partition(BEGIN)
    missing = [row.name for row in part.rows if f"| {row.name} |" not in written]  # type: ignore[attr-defined]
    assert not missing


def test_what_a_run_writes_takes_the_place_of_what_the_last_one_wrote() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replaced(replaced(page, "newer"), "newest") == f"before\n{BEGIN}\n\nnewest\n{END}\nafter\n"
