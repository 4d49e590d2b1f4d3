"""A comparison has the parts of two views, as a plain comparison of the views has them, in pages of any size."""

from __future__ import annotations

import random
from typing import Any

import pytest

import compaction_store as cs
from compaction_store.errors import InvalidInput, PositionNotFound, ThreadNotFound
from compaction_store.models import ComparedPart, Element, Part

from .test_outline import _fill

_Place = tuple[int, int, int | None]


def _compared(left: cs.View, right: cs.View, *, only_changes: bool) -> list[tuple[_Place, bool, bool]]:
    """Compares two views seq by seq, and puts the records and the longest runs of messages in order."""
    records, messages = (
        [{_place(e) for e in view.elements if (e.number is None) == plain} for view in (left, right)]
        for plain in (False, True)
    )
    parts: list[tuple[list[_Place], bool, bool]] = [
        ([place], place in records[0], place in records[1]) for place in records[0] | records[1]
    ]
    for place in sorted(messages[0] | messages[1]):
        sides = place in messages[0], place in messages[1]
        if parts and parts[-1][1:] == sides and parts[-1][0][-1] == (place[0] - 1, place[0] - 1, None):
            parts[-1][0].append(place)
        else:
            parts.append(([place], *sides))
    parts.sort(key=lambda part: (part[0][0][0], -part[0][-1][1], part[0][0][2] or 0))
    found = [(place, in_left, in_right) for places, in_left, in_right in parts for place in places]
    return [
        (place, in_left, in_right) for place, in_left, in_right in found if not (only_changes and in_left and in_right)
    ]


def _place(element: Element) -> _Place:
    return element.seq, element.end_seq, element.number


def _places(parts: tuple[ComparedPart, ...]) -> list[tuple[_Place, bool, bool]]:
    return [
        (place, is_left, is_right)
        for part, is_left, is_right in parts
        for place in (
            [(part.seq, part.end_seq, part.number)]
            if part.number is not None
            else [(seq, seq, None) for seq in range(part.seq, part.end_seq + 1)]
        )
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_comparison_has_the_elements_of_both_views_in_order(store: cs.Store, seed: int) -> None:
    _fill(store, seed)
    choose = random.Random(seed)
    last = store.thread("t").last_pos
    for _ in range(12):
        at, beside = choose.randrange(1, last + 1), choose.randrange(1, last + 1)
        views = store.view("t", at=at), store.view("t", at=beside)
        for only_changes in (False, True):
            wanted = _compared(*views, only_changes=only_changes)
            whole = store.audit.compare("t", at, beside, only_changes=only_changes, count=1000)
            assert _places(whole.parts) == wanted
            assert (whole.pos, whole.count) == (at, len(wanted))
            assert whole.changed == sum(not (is_left and is_right) for _, is_left, is_right in wanted)
            assert whole.tokens is None
            assert store.audit.compare("t", at).tokens == store.audit.outline("t", at=at).tokens
            size = choose.randrange(1, 6)
            pages = [
                _places(store.audit.compare("t", at, beside, only_changes=only_changes, start=start, count=size).parts)
                for start in range(0, len(wanted) + size, size)
            ]
            assert pages == [wanted[start : start + size] for start in range(0, len(wanted) + size, size)]


@pytest.mark.parametrize("seed", range(2))
def test_a_view_compared_with_itself_is_the_view_in_pages(store: cs.Store, seed: int) -> None:
    _fill(store, seed)
    for at in (None, 5, store.thread("t").last_pos - 1):
        view = store.view("t", at=at)
        found = store.audit.compare("t", at, start=2, count=4)
        elements = store.audit.elements("t", [each.part for each in found.parts])
        assert elements == list(view.elements[2:6])
        assert (found.count, found.changed) == (len(view.elements), 0)


def test_runs_of_messages_are_as_long_as_they_can_be(store: cs.Store) -> None:
    store.append("t", [{"role": "user", "content": f"message {i} " * 9} for i in range(8)])
    store.compact("t", lambda ctx: ctx.compact(1, 2, "first"))
    store.compact("t", lambda ctx: ctx.compact(1, 4, "second"))
    assert store.audit.compare("t", 9, 10).parts == (
        ComparedPart(Part(1, 4, 2), False, True), ComparedPart(Part(1, 2, 1), True, False),
        ComparedPart(Part(3, 4, None), True, False), ComparedPart(Part(5, 8, None), True, True),
    )  # fmt: skip
    assert store.audit.compare("t", 8, 9, only_changes=True).parts == (
        ComparedPart(Part(1, 2, None), True, False), ComparedPart(Part(1, 2, 1), False, True),
    )  # fmt: skip
    assert store.audit.compare("t", start=10**15, count=10**15).parts == ()


def test_the_same_seqs_are_messages_before_they_are_a_record(store: cs.Store) -> None:
    store.append("t", [{"role": "user", "content": "a long message " * 9}] * 2)
    store.compact("t", lambda ctx: ctx.compact(1, 1, "short"))
    assert [each.part.number for each in store.audit.compare("t", 2, 3, only_changes=True).parts] == [None, 1]


def test_elements_are_read_in_pages_and_a_part_may_end_beyond_the_thread(store: cs.Store) -> None:
    store.append("t", [{"role": "user", "content": f"message {i}"} for i in range(300)])
    parts = [Part(250, 2**60, None), Part(1, 1, 7), Part(1, 200, None)]
    seqs = [element.seq for element in store.audit.elements("t", parts)]
    assert seqs == [*range(250, 301), *range(1, 201)]
    with pytest.raises(ThreadNotFound):
        store.audit.elements("nobody", parts)


def test_what_cannot_be_compared_is_refused(store: cs.Store) -> None:
    store.append("t", {"role": "user", "content": "hello"})
    for at, beside in ((2, 1), (1, 2)):
        with pytest.raises(PositionNotFound, match="pos 2"):
            store.audit.compare("t", at, beside)
    bad: list[dict[str, Any]] = [{"at": 0}, {"beside": "1"}, {"start": -1}, {"count": 0}, {"only_changes": 1}]
    for arguments in bad:
        with pytest.raises(InvalidInput):
            store.audit.compare("t", **arguments)
    with pytest.raises(ThreadNotFound):
        store.audit.compare("nobody", 1)
