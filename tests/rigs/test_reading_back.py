"""A write that is done, and whose result cannot be read, is never told as one that did not happen."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

import compaction_store as cs
from rigs.proxy import Proxy

HI = {"role": "assistant", "content": "hi"}


@pytest.fixture
def way(url: str) -> Iterator[Proxy]:
    with Proxy(url, random.Random(1)) as made:
        yield made


def cut_after(way: Proxy, written: bytes) -> None:
    """From the next request on behind the one that writes, the server is out of reach."""
    seen: list[bool] = []

    def cut(request: bytes) -> bool:
        if written in request:
            seen.append(True)
            return False
        return bool(seen)

    way.on_request = cut


@pytest.mark.parametrize(
    ("written", "act"),
    [
        (b"commit_compactions", lambda store: store.compact("t", lambda ctx: ctx.remove(2, 3))),
        (b"commit_compactions", lambda store: store.revoke("t", 1)),
        (b"compaction_store.append", lambda store: store.append("t", HI, key="mine")),
    ],
    ids=["compact", "revoke", "an append once more"],
)
def test_what_was_written_and_cannot_be_read_back_is_unknown(
    faces: Any, url: str, way: Proxy, written: bytes, act: Callable[[Any], Any]
) -> None:
    store, healthy = faces.open(way.url, deadline=0.5, connect_timeout=1), faces.open(url)
    healthy.append("t", [HI] * 10)
    healthy.append("t", HI, key="mine")
    healthy.compact("t", lambda ctx: ctx.remove(5, 6))
    cut_after(way, written)
    with pytest.raises(cs.OutcomeUnknown) as caught:
        act(store)
    assert caught.value.key is not None
    if caught.value.key == "mine":
        assert healthy.append("t", HI, key="mine")[0].seq == 11
    else:
        assert [r.number for r in healthy.compactions("t", run_id=UUID(caught.value.key))] == [2]
    assert healthy.verify("t").findings == ()
