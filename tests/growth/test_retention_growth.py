"""A retention policy reads a bounded number of threads in a statement, by index, however many threads there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from compaction_store import Store
from compaction_store.postgres.queries.across_threads import EXPIRING, ranges

_THREADS = 4_000
_LIMIT = 100


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


@pytest.mark.one_server("the plan of a cluster has the plans of its nodes")
@pytest.mark.parametrize("age", [timedelta(days=1), timedelta(0)], ids=["all young", "all old"])
def test_a_page_reads_its_threads_by_index(url: str, superuser: psycopg.Connection[Any], age: timedelta) -> None:
    messages = [{"role": "user", "content": "hello"}]
    with Store.open(url) as store:
        for _ in store.load.threads((f"t{i:05}", messages) for i in range(_THREADS)):
            pass
    superuser.execute("VACUUM ANALYZE")
    [(low, end), *_] = ranges("t0")
    before = datetime.now(UTC) - age
    given = (_LIMIT, before, None, None, "default", low, "t02000", end, _LIMIT, _LIMIT)
    with superuser.transaction(force_rollback=True):
        superuser.execute("SET LOCAL ROLE compaction_store_owner")
        superuser.execute("SELECT set_config('compaction_store.tenant', 'default', true)")
        statement = "EXPLAIN (ANALYZE, FORMAT JSON) " + EXPIRING.replace("%b", "%s")
        row = superuser.execute(statement.encode(), given).fetchone()
    assert row is not None
    plan: dict[str, Any] = (json.loads(row[0]) if isinstance(row[0], str) else row[0])[0]["Plan"]
    for node in _nodes(plan):
        assert node["Node Type"] not in {"Seq Scan", "Hash Join", "Bitmap Heap Scan"}, node["Node Type"]
        # One row more: the scan of names reads ahead.
        assert node["Actual Rows"] * node["Actual Loops"] <= _LIMIT + 1
