"""Whatever happened to a thread: a fork of it at any pos is the thread as it was there."""

from __future__ import annotations

import io
import itertools
import random
from contextlib import suppress

import pytest
from support.faces import Face

import compaction_store as cs
from compaction_store import offline

from .conftest import said, shown

_names = itertools.count(1)


def step(store: Face, name: str, rng: random.Random) -> None:
    """Does one random thing to a thread; what the store refuses is not done."""
    last = store.thread(name).last_seq
    kind = rng.choice(
        ["append", "append", "batch", "reply", "fold", "fold", "refold", "revoke", "redact", "hold", "rewind", "clear"]
    )
    if kind == "append":
        store.append(name, {"role": "user", "content": "x" * rng.randint(0, 200)}, meta={"n": last}, key=f"k{last}")
    elif kind == "batch":
        store.append(name, [{"role": "user", "content": f"{last} {i} é\u2028"} for i in range(rng.randint(2, 4))])
    elif kind == "reply":
        store.append(name, {"role": "assistant", "content": "so"}, view=store.view(name))
    elif kind in ("fold", "refold"):
        elements = store.view(name).elements
        first = rng.randrange(len(elements))
        until = min(len(elements) - 1, first + rng.randint(0, 3))
        span = (elements[first].seq, elements[until].end_seq)
        store.compact(name, lambda ctx: ctx.compact(*span, "short", allow=("larger", "last_user")))
    elif kind == "revoke":
        numbers = [element.number for element in store.view(name).elements if element.number]
        if numbers:
            store.revoke(name, rng.choice(numbers))
    elif kind == "rewind":
        store.rewind(name, rng.randint(1, last))
    elif kind == "clear":
        store.clear(name)
    elif kind == "redact":
        store.custody.redact(name, rng.randint(1, last), reason="case", override="court", forks=rng.random() < 0.5)
    else:
        getattr(store.custody, rng.choice(["hold", "release"]))(name, reason="case")


@pytest.mark.parametrize("seed", range(4))
def test_forks_of_random_threads(store: Face, seed: int) -> None:
    rng = random.Random(seed)
    store.append("t0", {"role": "user", "content": "first"})
    threads = ["t0"]
    for _ in range(45):
        name = rng.choice(threads)
        if rng.random() < 0.2:
            new = f"t{next(_names)}"
            at = rng.choice([None, rng.randint(1, store.thread(name).last_pos)])
            try:
                done = store.fork(name, new, at=at)
            except cs.PositionNotFound:
                continue
            threads.append(new)
            assert shown(store.view(new, at=done.pos)) == shown(store.view(name, at=done.at))
            assert said(store.replay(new)) == said(store.replay(name, until=done.last_seq))
            if at is None:
                assert shown(store.view(new)) == shown(store.view(name))
                assert store.thread(new).view_tokens == store.thread(name).view_tokens
            continue
        with suppress(cs.Conflict, cs.Rejected):
            step(store, name, rng)
    assert len(threads) > 3
    for name in threads:
        assert store.audit.verify(name).findings == ()
        assert store.thread(name).view_tokens == store.view(name).tokens
        lines = list(store.audit.export(name))
        assert cs.verify_bundle(lines).findings == ()
        assert offline.check(io.BytesIO(b"".join(lines))).findings == []
