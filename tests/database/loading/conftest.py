"""Fixtures of the loader's tests."""

from __future__ import annotations

import pytest
from support.load_sources import CHUNK

from compaction_store.store import loading


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a hundred messages."""
    monkeypatch.setattr(loading, "CHUNK_MESSAGES", CHUNK)
