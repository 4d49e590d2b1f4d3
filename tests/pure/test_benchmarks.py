"""The benchmark's command is understood, and its page has every row that it names."""

from __future__ import annotations

import sys

import pytest
from support.paths import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.__main__ import LONG, USUAL, chosen, parser
from benchmarks.page import BEGIN, END, replaced
from benchmarks.quality import head_and_tail
from compaction_store.messages import framing
from compaction_store.strategies.outline import elements_of

_PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


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


def test_the_baseline_reads_blocks_as_text_and_earlier_summaries_without_their_frame() -> None:
    block = {"type": "tool_use", "id": "call_1", "name": "Read", "input": {"file_path": "src/a.py"}}
    [said] = elements_of([{"role": "assistant", "content": [block]}], lambda _: 400)
    [summary] = elements_of([framing.frame("The earlier notes.", 1, 2)], lambda _: 400)
    text = head_and_tail([summary._replace(kind="summary"), said._replace(seq=3, end_seq=3)])
    assert text.startswith("The earlier notes.")
    assert '{"file_path":"src/a.py"}' in text
    assert "'type'" not in text
