"""A checkpoint reads the entries that are new since the last one, however long the threads are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.checkpoints import KEY

import compaction_store as cs


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts statements, and the rows of the statement that reads new entries."""
    found: Counter[str] = Counter()
    execute: Any = psycopg.Cursor.execute

    def noted(self: Any, query: Any, parameters: Any = None, **keywords: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        result = execute(self, query, parameters, **keywords)
        found["statements"] += 1
        if "compaction_store.entries(" in text:
            found["entries"] += self.rowcount
        return result

    monkeypatch.setattr(psycopg.Cursor, "execute", noted)
    return found


def test_the_cost_of_a_checkpoint_is_that_of_the_new_entries(url: str, tmp_path: Path, answered: Counter[str]) -> None:
    log = cs.CheckpointLog(tmp_path / "log", KEY.key)
    with cs.Store.open(url) as store:
        costs = []
        for size in (20, 400):
            for thread in range(10):
                store.append(f"t{thread}", [{"role": "user", "content": f"words {n}"} for n in range(size)])
                store.compact(f"t{thread}", lambda ctx: ctx.compact(1, 2, "s"), force=True)
                store.custody.hold(f"t{thread}", reason="r")
            answered.clear()
            store.audit.checkpoint(KEY, log)
            assert answered["entries"] == 10 * (size + 2)
            for thread in (2, 5):
                store.append(f"t{thread}", [{"role": "user", "content": "new"}] * 3)
            answered.clear()
            store.audit.checkpoint(KEY, log)
            costs.append(dict(answered))
            answered.clear()
            store.audit.checkpoint(KEY, log)
            assert answered["entries"] == 0
        assert costs[0] == costs[1]
        assert costs[0]["entries"] == 6
