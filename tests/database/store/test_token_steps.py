"""The steps of a view's tokens add up to the view at every pos."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
from support.faces import Face

import compaction_store as cs


def grow(store: Face, seed: int) -> None:
    """Appends, compacts, rewinds and revokes at random."""
    choose = random.Random(seed)
    store.append("t", {"role": "user", "content": "begin " * 30})
    for number in range(40):
        verb = choose.choice(["append", "append", "append", "compact", "revoke", "rewind"])
        if verb == "append":
            store.append("t", [{"role": "user", "content": "word " * choose.randrange(1, 90)}] * choose.randrange(1, 4))
        elif verb == "compact":
            elements = store.view("t").elements
            first = choose.choice(elements)
            store.compact("t", lambda ctx, seq=first.seq: ctx.compact(seq, ctx.elements[-1].end_seq, "short"))
        elif verb == "revoke":
            active = [record for record in store.compactions("t") if record.status == "active"]
            if active and active[-1].kind == "summary":
                store.revoke("t", active[-1].number, reason="no")
        elif (last := store.thread("t").last_seq) > 5 and number > 20:
            store.rewind("t", last - 2, reason="again")


@pytest.mark.parametrize("seed", range(3))
def test_steps_add_up_to_the_view_at_every_pos(store: Face, seed: int) -> None:
    grow(store, seed)
    steps = store.audit.token_steps("t", ranges=10**6)
    assert [step.pos for step in steps if step.number is None] == [message.pos for message in store.replay("t")]
    for step, total in zip(steps, accumulate(step.change or 0 for step in steps), strict=True):
        assert total == store.view("t", at=step.pos).tokens
    numbers = [step.number for step in steps if step.number is not None]
    assert numbers == [record.number for record in store.compactions("t") if record.outcome == "applied"]


def test_a_long_thread_has_few_steps(store: Face) -> None:
    store.append("t", [{"role": "user", "content": f"{number}"} for number in range(95)])
    steps = store.audit.token_steps("t", ranges=10)
    assert [step.pos for step in steps] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 95]
    assert sum(step.change or 0 for step in steps) == store.thread("t").view_tokens


def test_of_a_thread_that_does_not_exist_there_are_none(store: Face) -> None:
    assert store.audit.token_steps("nobody") == []
    with pytest.raises(cs.InvalidInput, match="ranges must be"):
        store.audit.token_steps("nobody", ranges=0)
