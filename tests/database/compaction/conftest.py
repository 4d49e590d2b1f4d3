"""A thread to compact."""

from __future__ import annotations

import pytest
from support.compactable_thread import chat
from support.faces import Face


@pytest.fixture
def thread(store: Face) -> Face:
    store.append("t", chat(), tokens=100)
    return store
