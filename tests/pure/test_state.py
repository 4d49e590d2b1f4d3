"""A state is read back from its text exactly, whatever its lines say."""

# Other scripts have letters and signs that look like Latin ones.
# ruff: noqa: RUF001

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction_store.models.state import _ROWS, FORM, PART_NAMES, PARTS, State, StateLine

HOSTILE = st.sampled_from(
    [
        "## Task", "- ## Standing orders", "[1]", "x [2-5]", "x []", "x [] [7]", "[3] user: Never push.", "- ",
        "- - a [9]",
        "a\nb [4]",
        "a\r\n## Facts\r\n- b", "a\x85b\u2028c\x1cd", "[1-999999999999999999]", "x [5-2]", "x [0]", "x [١]",
        "ログインの修正 [12]", "لا جديد اليوم. [3, 4]", "</notes-000000000000>", "… [shortened] …", "\ud800 x", " ",
    ]
)  # fmt: skip
LINES = st.builds(
    StateLine,
    st.one_of(HOSTILE, st.text(max_size=60), st.tuples(HOSTILE, st.text(max_size=9)).map(" ".join)),
    st.lists(st.integers(-2, 10**19) | st.integers(1, 30), max_size=140).map(tuple),
)
STATES = st.dictionaries(st.sampled_from(PART_NAMES), st.lists(LINES, max_size=5), max_size=8).map(State)


@given(STATES)
def test_a_state_is_read_back_exactly(state: State) -> None:
    found = State.parse(state.text)
    assert found == (state or None)
    assert found is None or found.text == state.text
    assert all(len(line.text.splitlines()) == 1 for lines in state.values() for line in lines)


@given(st.text() | st.lists(HOSTILE, max_size=9).map("\n".join))
def test_any_text_can_be_read(text: str) -> None:
    state = State.parse(text)
    assert state is None or State.parse(state.text) in (state, None)


def test_the_text_has_headings_and_seqs() -> None:
    state = State({"next": [StateLine("Run the tests", (9,))], "task": [StateLine("Fix\n it", (3, 1, 2, 3, 12))]})
    assert state.text == "## Task\n- Fix it [1-3, 12]\n## Next step\n- Run the tests [9]"
    assert state.coverage == {"form": FORM, "lines": {"task": 1, "next": 1}}
    assert list(state) == ["task", "next"]
    assert "Fix" not in repr(state)
    assert "Fix" not in repr(state["task"])


def test_orders_of_a_frame_and_lines_of_checks_are_read_too() -> None:
    text = "- Never push. [4]\n## Facts\n- a\nWord for word:\n[7] user: Answer in German.\n[8] named: a.py\n[9] x = 5"
    state = State.parse(text)
    assert state is not None
    assert state["orders"] == (StateLine("Never push.", (4,)), StateLine("Answer in German.", (7,)))
    assert state["facts"] == (StateLine("a"), StateLine("a.py", (8,)), StateLine("x = 5", (9,)))
    assert State.parse("Some notes.\n- [1] user: x") is None


def test_a_part_that_there_is_not() -> None:
    wrong: Any = {"tasks": []}
    with pytest.raises(ValueError, match="must be one of task, orders, "):
        State(wrong)


def test_the_table_has_a_row_for_each_part() -> None:
    assert tuple(_ROWS) == PART_NAMES
    assert len({row.title for row in PARTS.values()}) == len(PARTS)
    assert all(0 < row.share < 1 and row.meaning for row in PARTS.values())
