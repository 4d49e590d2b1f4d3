"""A thread with everything in it that a fork copies."""

from __future__ import annotations

from typing import Any

import pytest
from support.faces import Face


@pytest.fixture
def parent(store: Face) -> Face:
    """Thread p: twelve messages; compactions 1 and 2, the second revoked; a hold and its release; a redaction.

    Seq 9 is a reply with a receipt. The last pos is 18.
    """
    fill(store)
    return store


@pytest.fixture
def whole(store: Face) -> Face:
    """The same thread without the redaction."""
    fill(store, erases=False)
    return store


def fill(store: Face, *, erases: bool = True) -> None:
    for i in range(1, 9):
        store.append("p", message(i), key=f"k{i}", meta={"n": i}, tokens=100)
    store.compact("p", lambda ctx: ctx.compact(1, 4, "The first four."))
    store.append("p", {"role": "assistant", "content": "A reply."}, view=store.view("p"))
    store.compact("p", lambda ctx: ctx.compact(5, 6, "Five and six."))
    store.custody.hold("p", reason="case 1")
    store.append("p", [message(i) for i in range(10, 13)], tokens=100)
    store.revoke("p", 2, reason="wrong")
    store.custody.release("p", reason="case 1 is settled")
    if erases:
        store.custody.redact("p", 7, reason="case 2")
    store.set_metadata("p", {"topic": "forks"})


def message(i: int) -> dict[str, Any]:
    return {"role": "user", "content": f"message {i} " + "words " * 40}


def shown(view: Any) -> list[Any]:
    """What a view shows, without the positions and times that belong to its thread."""
    return [(e.seq, e.end_seq, e.messages, e.tokens, e.number, e.kind, e.callback) for e in view.elements]


def said(messages: Any) -> list[Any]:
    return [(m.seq, m.role, m.text, m.tokens, m.meta, m.redacted) for m in messages]
