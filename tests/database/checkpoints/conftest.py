"""A log, a superuser without triggers, and a store with a checkpoint over its threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.checkpoints import KEY
from support.faces import Face
from support.superuser_edits import WITH_NAMES

import compaction_store as cs


@pytest.fixture
def log(tmp_path: Path) -> cs.CheckpointLog:
    return cs.CheckpointLog(tmp_path / "checkpoints.jsonl", KEY.key)


@pytest.fixture
def root(superuser: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    for table in WITH_NAMES:
        superuser.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER ALL")
    return superuser


@pytest.fixture
def checked(store: Face, log: cs.CheckpointLog) -> Face:
    """A store of three threads, with a checkpoint over five messages each and one message more in thread a."""
    for name in ("a", "b", "c"):
        store.append(name, [{"n": n} for n in range(5)], raw=True)
    store.audit.checkpoint(KEY, log)
    store.append("a", {"n": 6}, raw=True)
    return store
