"""A thread with a secret in it."""

from __future__ import annotations

import pytest
from support.faces import Face
from support.redactable_thread import PLAIN, SECRET


@pytest.fixture
def thread(store: Face) -> Face:
    """Twelve messages, the fifth with a secret in its payload and in its meta."""
    for i in range(1, 13):
        content = f"{SECRET} {PLAIN}" if i == 5 else PLAIN
        meta = {"source": SECRET} if i == 5 else {"n": i}
        store.append("t", {"role": "user", "content": content}, key=f"k{i}", meta=meta, tokens=100)
    return store
