"""The sliding window over any objects: what is folded, and that all items can be recovered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.thread_patterns import Said, calm, chat, said, shown

from compaction_store import InvalidInput
from compaction_store.strategies import Piece, Slid, Window, over, plan_sliding_window, sliding_window


class Summarizer:
    """Records its inputs, and fails at the call with that number."""

    def __init__(self, fails_at: int = 0) -> None:
        self.sources: list[str] = []
        self.fails_at = fails_at

    def __call__(self, items: Sequence[Said]) -> Said:
        if len(self.sources) + 1 == self.fails_at:
            raise OSError("no model")
        self.sources.append(shown(list(items)))
        return Said("S")


def longer_than(number: int) -> Callable[[Window[Said]], bool]:
    return lambda window: len(window) > number


@pytest.mark.parametrize(
    ("pattern", "number", "retain", "result", "sources"),
    [
        ("suua", 4, 0, "suua", []),
        ("suuu", 4, 0, "suuu", []),
        ("suuu", -1, 0, "suuu", []),
        ("suaua", 4, 0, "suS", ["aua"]),
        # One more item at the end stays, and the folded span is the same.
        ("suauau", 4, 0, "suSu", ["aua"]),
        # An empty window reaches the threshold: one summary at the end, not one for each message.
        ("suaaau", -1, 0, "suS", ["aaau"]),
        # The end of the whole thread is kept, not that of the window.
        ("suauauauau", 5, 4, "suSauau", ["auau"]),
        ("suaaaauaa", 3, 3, "suSSSuaa", ["aa", "a", "a"]),
        # Parallel results stay with their call.
        ("sutrra", -1, 0, "suS", ["trra"]),
        ("utrr", 2, 0, "uS", ["trr"]),
        ("utrra", 2, 1, "uSa", ["trr"]),
        ("uttrrua", 3, 2, "uSua", ["ttrr"]),
        # An unanswered call limits the span.
        ("suaut", -1, 0, "suSt", ["au"]),
        ("uataa", -1, 0, "uStS", ["a", "aa"]),
    ],
)
def test_what_becomes_of_a_pattern(pattern: str, number: int, retain: int, result: str, sources: list[str]) -> None:
    summarize = Summarizer()
    items = said(pattern)
    slid = sliding_window(items, summarize=summarize, threshold=longer_than(number), retain=retain)
    assert shown(slid.items) == result
    assert summarize.sources == sources
    assert slid.originals == items
    assert slid.error is None
    assert [shown(list(piece.source)) for piece in slid if piece.is_summary] == sources
    assert all(piece.source == (piece.item,) for piece in slid if not piece.is_summary)


@calm
@given(st.text("suuaaatr", max_size=30), st.integers(-1, 8), st.integers(0, 4))
def test_all_that_was_given_can_be_had_back(pattern: str, number: int, retain: int) -> None:
    items = said(pattern)
    slid = sliding_window(items, summarize=Summarizer(), threshold=longer_than(number), retain=retain)
    assert slid.originals == items
    kept = min(retain, len(items))
    assert slid.items[len(slid) - kept :] == items[len(items) - kept :]
    assert [item for item in slid.items if item.is_system()] == [item for item in items if item.is_system()]
    # If the result is passed in again, nothing changes.
    again = sliding_window(slid, summarize=Summarizer(fails_at=1), threshold=longer_than(number), retain=retain)
    assert again == slid


@calm
@given(st.lists(st.text("uuaaatr", max_size=8), max_size=6), st.integers(0, 8), st.integers(0, 3))
def test_the_result_goes_on_with_what_comes_after_it(parts: list[str], number: int, retain: int) -> None:
    pieces: Sequence[Piece[Said]] = ()
    given_in: list[Said] = []
    for part in parts:
        fresh = said(part)
        given_in += fresh
        before = [piece for piece in pieces if piece.is_summary]
        slid: Slid[Said] = sliding_window(
            [*pieces, *fresh], summarize=Summarizer(), threshold=longer_than(number), retain=retain
        )
        assert slid.originals == given_in
        assert [piece for piece in slid if piece.is_summary][: len(before)] == before
        pieces = slid


def test_messages_as_plain_dicts() -> None:
    messages = chat("suaatrrau")
    slid = sliding_window(messages, summarize=lambda _: {"role": "user", "content": "x"}, threshold=over(messages=5))
    spans = plan_sliding_window(messages, threshold=over(messages=5), allow={"last_user"})
    after = 0
    ends = []
    for piece in slid:
        after += len(piece.source)
        if piece.is_summary:
            ends.append((after - len(piece.source) + 1, after))
    assert ends == spans
    assert slid.originals == messages
    # The last message of the user may be kept.
    slid = sliding_window(messages, summarize=lambda _: {"role": "user", "content": "x"}, allow=())
    assert slid.items[-1] is messages[-1]


def test_what_is_folded_before_a_failure_is_kept() -> None:
    items = said("suaaaaaaaa")
    slid = sliding_window(items, summarize=Summarizer(fails_at=2), threshold=longer_than(4))
    assert shown(slid.items) == "suSaaaaa"
    assert slid.originals == items
    assert isinstance(slid.error, OSError)


class WithIds(Said):
    def __init__(self, letter: str, *ids: str) -> None:
        super().__init__(letter)
        self.ids = ids

    def toolcall_ids(self) -> tuple[str, ...]:
        return self.ids


def test_ids_tell_which_results_belong_to_a_call() -> None:
    """By its position alone, the last result would be paired with the second call."""
    items = [
        Said("u"), WithIds("t", "1", "2"), WithIds("r", "1"), WithIds("t", "3"), WithIds("r", "3"), WithIds("r", "2"),
        Said("a"), Said("a"),
    ]  # fmt: skip
    assert shown(sliding_window(items, summarize=Summarizer(), threshold=longer_than(4)).items) == "uSaa"
    assert shown(sliding_window(items, summarize=Summarizer(), retain=3).items) == "utrtrraa"
    by_place = [Said(item.letter) for item in items]
    assert shown(sliding_window(by_place, summarize=Summarizer(), retain=3).items) == "uStrraa"


def test_tokens_are_counted_by_the_given_counter() -> None:
    items = said("u" + "a" * 9)
    slid = sliding_window(
        items, summarize=Summarizer(), threshold=50, count=lambda item: 3 if item.letter == "S" else 10
    )
    assert shown(slid.items) == "uSSa"
    assert shown(sliding_window(items, summarize=Summarizer(), retain=0.3, count=lambda _: 10).items) == "uSaaa"
    assert shown(sliding_window(items, summarize=Summarizer(), pin=lambda item: item is items[4]).items) == "uSaS"


@pytest.mark.parametrize("item", [3, "text", None])
def test_what_does_not_say_what_it_is_is_refused(item: Any) -> None:
    with pytest.raises(InvalidInput, match="item 1"):
        sliding_window([Said("u"), item], summarize=Summarizer())


def test_each_item_is_asked_what_it_is_a_fixed_number_of_times() -> None:
    asked: list[int] = []

    class Counted(Said):
        def is_assistant(self) -> bool:
            asked.append(1)
            return super().is_assistant()

    costs = []
    for count in (1_000, 10_000, 50_000):
        asked.clear()
        looked: list[int] = []

        def reached(window: Window[Said], looked: list[int] = looked) -> bool:
            looked.append(1)
            return window.messages >= 40

        items: list[Said] = [Counted("uaatr"[place % 5]) for place in range(count)]
        sliding_window(items, summarize=Summarizer(), threshold=reached)
        costs.append((len(asked) + len(looked)) / count)
    assert max(costs) < 2.2
