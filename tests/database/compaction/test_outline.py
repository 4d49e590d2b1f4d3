"""An outline is the view without its messages, at every pos, whole and in part."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from support.compactable_thread import span as planned

import compaction_store as cs
from compaction_store.errors import InvalidInput, PositionNotFound
from compaction_store.models import Part


def _fill(store: cs.Store, seed: int) -> None:
    choose = random.Random(seed)
    store.append("t", [{"role": "user", "content": f"message {i} " * 9} for i in range(12)])
    for step in range(18):
        elements = store.view("t").elements
        kind = choose.choice(("fold", "fold", "fold", "append", "revoke", "rewind", "redact"))
        with suppress(cs.CompactionStoreError):
            if kind == "append":
                store.append("t", [{"role": "user", "content": f"more {step} {i} " * 9} for i in range(3)])
            elif kind == "fold":
                low = choose.randrange(len(elements))
                high = choose.randrange(low, min(len(elements), low + 5))
                span = elements[low].seq, elements[high].end_seq
                store.compact("t", planned(*span, "short", allow={"last_user", "larger"}))
            elif kind == "revoke":
                active = [record.number for record in store.compactions("t") if record.status == "active"]
                store.revoke("t", choose.choice(active or [1]), reason="wrong")
            elif kind == "rewind":
                store.rewind("t", choose.choice(elements[len(elements) // 2 :]).end_seq, reason="a wrong turn")
            else:
                store.custody.redact("t", [choose.randrange(1, 13)], reason="asked for")


def _parts(elements: list[cs.Element]) -> list[Part]:
    """Returns elements as an outline has them: messages that follow each other are one part."""
    found: list[Part] = []
    for element in elements:
        last = found[-1] if found else None
        if element.number is None and last is not None and last.number is None and last.end_seq + 1 == element.seq:
            found[-1] = Part(last.seq, element.seq, None)
        else:
            found.append(Part(element.seq, element.end_seq, element.number))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_an_outline_has_the_elements_and_the_tokens_of_the_view(store: cs.Store, seed: int) -> None:
    _fill(store, seed)
    choose = random.Random(seed)
    for at in range(1, store.thread("t").last_pos + 1):
        view, outline = store.view("t", at=at), store.audit.outline("t", at=at)
        assert (outline.pos, outline.count, list(outline.parts)) == (
            at,
            len(view.elements),
            _parts(list(view.elements)),
        )
        if at == store.thread("t").last_pos:
            assert outline.tokens == view.tokens
        low = choose.randrange(len(view.elements))
        some = list(view.elements[low : choose.randrange(low, len(view.elements)) + 1])
        part = store.audit.outline("t", at=at, span=(some[0].seq, some[-1].end_seq))
        assert list(part.parts) == _parts(some)
        whole = store.audit.outline("t", at=at, span=(1, view.elements[-1].end_seq))
        assert (whole.parts, whole.tokens) == (outline.parts, outline.tokens)
        assert part.tokens == sum(element.tokens for element in some)


def test_a_span_may_end_beyond_the_view(store: cs.Store) -> None:
    store.append("t", [{"role": "user", "content": "hello"}] * 3)
    assert store.audit.outline("t", span=(2, 99)).parts == (Part(2, 3, None),)
    assert store.audit.outline("t", span=(7, 99)).parts == ()


@pytest.mark.parametrize("span", [(0, 1), (2, 1), (1,), [1, 2], "12", (1, True), (1, 2.0), (1, None)])
def test_a_span_must_be_two_seqs(store: cs.Store, span: object) -> None:
    store.append("t", {"role": "user", "content": "hello"})
    with pytest.raises(InvalidInput, match="span must be"):
        store.audit.outline("t", span=span)  # type: ignore[arg-type]


def test_a_pos_must_be_one_of_the_thread(store: cs.Store) -> None:
    store.append("t", {"role": "user", "content": "hello"})
    with pytest.raises(PositionNotFound):
        store.audit.outline("t", at=2, span=(1, 1))
