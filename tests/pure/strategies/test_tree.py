"""Leaves and levels: a view that stays bounded, a prefix that stays the same, and pairs that stay whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategy_runs import (
    FORMS,
    REFUSED,
    Payload,
    attempts_of,
    committed,
    elements,
    malformed,
    mistakes,
    run,
    until_stable,
    well_formed,
)

from compaction_store import InvalidInput
from compaction_store.compaction.context import planner_of
from compaction_store.models import Element
from compaction_store.strategies import Node, SummaryTree, plan_summary_tree
from compaction_store.strategies.tree import HIGHEST, level_of
from compaction_store.tokens import Counter

# A message counts as many tokens as its "n", a summary 10.
SIMPLE = Counter("simple", lambda payload, _size: payload.get("n", 10))


def message(n: int, role: str = "assistant") -> Payload:
    return {"role": role, "content": "x", "n": n}


def short(_elements: Any) -> str:
    return "notes"


class Life:
    """A thread that is appended to, and folded whenever its view is over a limit."""

    def __init__(self, tree: SummaryTree, limit: int) -> None:
        self.tree = tree
        self.limit = limit
        self.view: list[Element] = []
        self.seq = 0
        self.numbers = 0
        self.largest = 0
        self.prefixes: list[tuple[list[Element], list[Element]]] = []

    def append(self, payload: Payload) -> None:
        self.seq += 1
        (element,) = elements([payload], SIMPLE)
        self.view.append(element._replace(seq=self.seq, end_seq=self.seq))
        if sum(e.tokens for e in self.view) > self.limit:
            ctx = run(self.tree, self.view, counter=SIMPLE)
            assert not mistakes(ctx)
            before, self.view = self.view, []
            for e in ctx.elements:
                self.numbers += (planned := (e.number or 0) < 0)
                self.view.append(e._replace(number=self.numbers) if planned else e)
            self.prefixes.append((before, self.view))
        self.largest = max(self.largest, sum(e.tokens for e in self.view))

    def levels(self) -> list[int]:
        return [level_of(e) for e in self.view if e.is_summary]


def test_leaves_are_folded_and_full_levels_merged() -> None:
    nodes = plan_summary_tree([message(10) for _ in range(40)], 40, 3, keep_recent=2, counter=SIMPLE)
    assert nodes == [
        Node(1, 1, 4), Node(1, 5, 8), Node(1, 9, 12), Node(2, 1, 12),
        Node(1, 13, 16), Node(1, 17, 20), Node(1, 21, 24), Node(2, 13, 24),
        Node(1, 25, 28), Node(1, 29, 32), Node(1, 33, 36), Node(2, 25, 36), Node(3, 1, 36),
    ]  # fmt: skip


def test_what_does_not_fill_a_leaf_stays() -> None:
    assert plan_summary_tree([message(10) for _ in range(5)], 40, 3, keep_recent=2, counter=SIMPLE) == []
    assert plan_summary_tree([], 40, 3) == []


def test_records_say_their_level_and_what_went_in() -> None:
    ctx = run(
        SummaryTree(short, 40, 3, keep_recent=2), elements([message(10) for _ in range(16)], SIMPLE), counter=SIMPLE
    )
    assert [(a.callback, a.start_seq, a.end_seq) for a in attempts_of(ctx)] == [
        ("SummaryTree(leaf_tokens=40, fan_in=3, keep_recent=2) level 1", 1, 4),
        ("SummaryTree(leaf_tokens=40, fan_in=3, keep_recent=2) level 1", 5, 8),
        ("SummaryTree(leaf_tokens=40, fan_in=3, keep_recent=2) level 1", 9, 12),
        ("SummaryTree(leaf_tokens=40, fan_in=3, keep_recent=2) level 2", 1, 12),
    ]
    assert attempts_of(ctx)[3].inputs == (-1, -2, -3)
    # Later records have the same name as without the tree.
    assert planner_of(ctx).rename("other") == "test"
    assert level_of(ctx.elements[0]) == 2


def test_the_view_is_bounded_and_its_beginning_is_stable() -> None:
    life = Life(SummaryTree(short, 100, 4, keep_recent=5), limit=600)
    for n in range(20_000):
        life.append(message(20, "user" if n % 10 == 0 else "assistant"))
    assert life.largest <= 600 + 20
    assert sorted(life.levels(), reverse=True) == life.levels()
    assert len(life.view) < 60
    # The part of the view before the first element that a run touched stays the same, byte for byte.
    unchanged = []
    for before, after in life.prefixes:
        same = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
        assert before[:same] == after[:same]
        unchanged.append(same)
    assert sum(unchanged) / len(unchanged) > 3


def test_each_message_is_read_about_once_for_each_level() -> None:
    read = 0

    def summarize(part: Any) -> str:
        nonlocal read
        read += sum(element.end_seq - element.seq + 1 for element in part)
        return "notes"

    life = Life(SummaryTree(summarize, 100, 4, keep_recent=5), limit=600)
    for n in range(10_000):
        life.append(message(20, "user" if n % 10 == 0 else "assistant"))
    # Leaves of five messages, levels of four: the sixth level needs 5 * 4 ** 5.
    assert read / 10_000 <= 6


def test_the_highest_level_is_merged_into_itself() -> None:
    view = elements([message(10) for _ in range(6)], SIMPLE)
    view = [
        e._replace(kind="summary", number=n + 1, callback=f"SummaryTree level {HIGHEST}") if n < 4 else e
        for n, e in enumerate(view)
    ]
    ctx = run(SummaryTree(short, 40, 4, keep_recent=2), view, counter=SIMPLE)
    assert [(level_of(e), e.seq, e.end_seq) for e in ctx.elements if e.is_summary] == [(HIGHEST, 1, 4)]


def test_summaries_of_others_are_leaves_and_small_rests_between_are_merged_in() -> None:
    view = elements([message(10) for _ in range(8)], SIMPLE)
    for n in (0, 3, 4):
        view[n] = view[n]._replace(kind="summary", number=n + 1, callback="AssistantRuns()")
    ctx = run(SummaryTree(short, 40, 3, keep_recent=2), view, counter=SIMPLE)
    assert [(e.seq, e.end_seq) for e in ctx.elements if e.is_summary] == [(1, 5)]


def test_levels_out_of_order_do_not_pile_up() -> None:
    view = elements([message(10) for _ in range(10)], SIMPLE)
    for n, level in enumerate((2, 1, 2, 1, 2)):
        view[n] = view[n]._replace(kind="summary", number=n + 1, callback=f"SummaryTree level {level}")
    ctx = run(SummaryTree(short, 40, 5, keep_recent=5), view, counter=SIMPLE)
    assert [(level_of(e), e.seq, e.end_seq) for e in ctx.elements if e.is_summary] == [(3, 1, 5)]


def test_system_messages_pending_calls_and_the_last_user_message_bound_the_leaves() -> None:
    call = {"id": "open", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [message(10) for _ in range(30)]
    messages[0] = message(10, "system")
    messages[9] = {"role": "assistant", "content": None, "tool_calls": [call], "n": 10}
    messages[20] = message(10, "user")
    nodes = plan_summary_tree(messages, 40, 9, keep_recent=0, counter=SIMPLE)
    assert [(node.start_seq, node.end_seq) for node in nodes] == [
        (2, 5),
        (6, 9),
        (11, 14),
        (15, 18),
        (22, 25),
        (26, 29),
    ]


def test_a_leaf_ends_where_no_pair_is_parted() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [message(10) for _ in range(20)]
    messages[3] = {"role": "assistant", "content": None, "tool_calls": [call], "n": 10}
    messages[4] = {"role": "tool", "tool_call_id": "c", "content": "x", "n": 10}
    assert plan_summary_tree(messages, 40, 9, keep_recent=8, counter=SIMPLE)[:2] == [Node(1, 1, 5), Node(1, 6, 9)]


def test_a_summarizer_that_fails_is_not_asked_again_in_the_run() -> None:
    calls = 0

    def summarize(_part: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise TimeoutError
        return "notes"

    view = elements([message(10) for _ in range(40)], SIMPLE)
    ctx = run(SummaryTree(summarize, 40, 3, keep_recent=2), view, counter=SIMPLE)
    assert [a.outcome for a in attempts_of(ctx)] == ["applied", "failed"]
    ctx = run(SummaryTree(summarize, 40, 3, keep_recent=2), committed(ctx), counter=SIMPLE)
    assert [e.is_summary for e in ctx.elements] == [True, *[False] * 4]


def test_a_summary_that_is_too_long_leaves_its_leaf_to_the_next_level() -> None:
    def summarize(part: Any) -> str:
        return "notes" if part[0].seq != 5 else "long notes " * 90

    counter = Counter("simple", lambda payload, size: payload.get("n", size // 20))
    view = elements([message(10) for _ in range(20)], counter)
    ctx = run(SummaryTree(summarize, 40, 3, keep_recent=2), view, counter=counter)
    assert [a.outcome for a in attempts_of(ctx)] == ["applied", "rejected", "applied", "applied", "applied"]
    assert [(e.seq, e.end_seq) for e in ctx.elements if e.is_summary] == [(1, 16)]


def test_pins_hold() -> None:
    view = elements([message(10) for _ in range(20)], SIMPLE)
    ctx = run(SummaryTree(short, 40, 3, keep_recent=2, pin=6), view, counter=SIMPLE)
    assert [(e.seq, e.end_seq) for e in ctx.elements if e.is_summary] == [(1, 4), (7, 18)]


@pytest.mark.parametrize("options", [(short, 0), (short, 10, 1), (short, 10, 2.0)])
def test_options_are_judged(options: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInput):
        SummaryTree(*options)
    with pytest.raises(TypeError):
        SummaryTree(None)  # type: ignore[arg-type]


_TREES = st.builds(
    SummaryTree,
    st.just(short),
    st.sampled_from([1, 60, 500]),
    st.integers(2, 4),
    keep_recent=st.integers(0, 4),
)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), tree=_TREES)
def test_every_well_formed_thread_stays_well_formed(form: str, data: st.DataObject, tree: SummaryTree) -> None:
    messages = data.draw(well_formed(form))
    view = until_stable(tree, elements(messages))
    assert not REFUSED[form]([message for element in view for message in element.messages])


@settings(max_examples=150, deadline=None)
@given(malformed(), _TREES)
def test_no_thread_makes_it_raise_or_grow(messages: list[Payload], tree: SummaryTree) -> None:
    if messages:
        until_stable(tree, elements(messages))


@pytest.mark.parametrize("size", [1000, 8000])
def test_the_work_grows_with_the_thread(size: int) -> None:
    asked = 0

    def summarize(part: Any) -> str:
        nonlocal asked
        asked += len(part)
        return "notes"

    view = elements([message(10) for _ in range(size)], SIMPLE)
    run(SummaryTree(summarize, 100, 4), view, counter=SIMPLE)
    assert asked < 1.5 * size
