"""A store with a thread that has something of everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import compaction_store as cs
from web.audited import fill


@pytest.fixture
def store(url: str) -> Iterator[cs.Store]:
    with cs.Store.open(url, actor="agent") as opened:
        fill(opened)
        yield opened
