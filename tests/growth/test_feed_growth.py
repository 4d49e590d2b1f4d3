"""A page of the feed costs as much as its entries, however many the store has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

import compaction_store as cs

pytestmark = pytest.mark.one_server("the nodes of a cluster number their transactions apart")

_FEW, _MANY = 400, 12_000
_NEW = 3
_MOST_BLOCKS = 90
HI = {"role": "user", "content": "hi"}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def _blocks(connection: psycopg.Connection[Any], cursor: str | None, *, messages: bool) -> tuple[int, int]:
    """Returns how many blocks a page reads, and how many entries it has."""
    values: tuple[Any, ...] = (None, None, None, None, messages)
    if cursor is not None:
        xid, *uid, pos, entry = cursor.split("-")
        values = (xid, UUID("".join(uid)), pos, bytes.fromhex(entry), messages)
    query = "SELECT * FROM compaction_store.feed('default', %s::bigint, %s::uuid, %s::bigint, %s, %s, false, 16)"
    connection.execute(query.encode(), values)
    [(found,)] = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}".encode(), values).fetchall()
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], plan["Actual Rows"]


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_page_reads_its_own_entries_only(
    url: str, superuser: psycopg.Connection[Any], analyzed: bool
) -> None:  # fmt: skip
    with cs.Store.open(url) as store, cs.Store.open(url, tenant="other") as other:
        cost: dict[int, list[int]] = {}
        for count in (_FEW, _MANY):
            for thread in range(20):
                store.load.messages(f"{count}-{thread}", [HI] * (count // 20), tokens=1)
            other.load.messages(f"{count}", [HI] * count, tokens=1)
            store.compact(f"{count}-0", lambda ctx: ctx.remove(1, 4))
            last = list(store.audit.feed())[-1].cursor
            for _ in range(_NEW):
                store.append(f"{count}-1", HI)
                store.custody.hold(f"{count}-1", reason="claim")
            if analyzed:
                superuser.execute("ANALYZE")
            found = [
                _blocks(superuser, last, messages=True), _blocks(superuser, last, messages=False),
                _blocks(superuser, None, messages=True),
            ]  # fmt: skip
            assert [rows for _, rows in found] == [2 * _NEW, _NEW, 16]
            cost[count] = [blocks for blocks, _ in found]
    assert max(cost[_MANY]) <= _MOST_BLOCKS, cost
    assert all(many <= few + 12 for few, many in zip(cost[_FEW], cost[_MANY], strict=True)), cost
