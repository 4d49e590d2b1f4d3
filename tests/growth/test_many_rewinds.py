"""Any number of rewinds costs the same: one call each, and a view that does not read those inside another.

$COMPACTION_STORE_POPS asks for more of them.
"""

from __future__ import annotations

import os
from typing import Any

import psycopg
import pytest
from reliability.thread_model import tokens_of
from support import sent_statements
from support.rewinding import many, said, shown

import compaction_store as cs

_POPS = int(os.environ.get("COMPACTION_STORE_POPS", "250"))


@pytest.fixture
def store(url: str) -> Any:
    with cs.Store.open(url, counter=tokens_of, pool_size=1) as opened:
        yield opened


def entries(connection: psycopg.Connection[Any], statement: str) -> int:
    """Returns how many entries of the index on records in force a statement reads."""
    read = (
        "SELECT pg_stat_get_tuples_returned('compaction_store.compactions_in_force_idx'::regclass),"
        " pg_stat_force_next_flush()"
    )
    connection.execute("SELECT pg_stat_force_next_flush()")
    [(before, _)] = connection.execute(read).fetchall()
    with connection.transaction(force_rollback=True):
        connection.execute(statement.encode())
    connection.execute("SELECT pg_stat_force_next_flush()")
    [(after, _)] = connection.execute(read).fetchall()
    found: int = after - before
    return found


def cost(connection: psycopg.Connection[Any], last: int) -> tuple[int, int]:
    """Returns the records that a view reads, and those that one more pop reads."""
    view = entries(connection, "SELECT * FROM compaction_store.view(NULL, 'default', 't', NULL)")
    rewind = (
        f"SELECT * FROM compaction_store.rewind(NULL, 'default', 't', gen_random_uuid(), {last - 1}, 'rewind', false,"
        " NULL, NULL, '{}', '{\"replacement\":[]}')"
    )
    return view, entries(connection, rewind)


def pop(store: cs.Store) -> int:
    """Takes the last message off the view; returns the last seq that is left."""
    last = next(element for element in reversed(store.view("t").elements) if element.messages)
    [record] = store.rewind("t", last.seq - 1)
    assert record.end_seq == store.thread("t").last_seq
    return last.seq - 1


def test_the_next_pop_costs_what_the_first_did(store: cs.Store, superuser: psycopg.Connection[Any]) -> None:
    for first in range(1, _POPS + 101, 500):
        store.append("t", many(first, min(first + 499, _POPS + 100)))
    for _ in range(80):
        last = pop(store)
    superuser.execute("VACUUM ANALYZE")
    early = cost(superuser, last)
    for _ in range(_POPS - 80):
        last = pop(store)
    superuser.execute("VACUUM ANALYZE")
    late = cost(superuser, last)
    # The rewinds, each inside the next, must not be read one by one.
    assert 0 < late[0] <= early[0], (early, late)
    assert 0 < late[1] <= early[1], (early, late)
    view = store.view("t")
    assert shown(view) == [*range(1, 101), (101, _POPS + 100, "rewind")]
    assert store.audit.verify("t").findings == ()


def test_pops_and_appends_in_turn_leave_one_active_record(
    store: cs.Store, superuser: psycopg.Connection[Any]
) -> None:  # fmt: skip
    store.append("t", many(1, 20))
    costs = []
    for number in range(1, _POPS + 1):
        store.append("t", said("a failed turn"))
        pop(store)
        if number in {80, _POPS}:
            superuser.execute("VACUUM ANALYZE")
            store.append("t", said("a failed turn"))
            costs.append(cost(superuser, store.thread("t").last_seq))
            pop(store)
    early, late = costs
    assert shown(store.view("t")) == [*range(1, 21), (21, _POPS + 22, "rewind")]
    assert all(0 < after <= before for before, after in zip(early, late, strict=True)), (early, late)


def test_a_rewind_is_one_statement(store: cs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append("t", many(1, 10))
    store.compact("t", lambda ctx: ctx.compact(3, 8, "six"))
    sent = sent_statements.recorded(monkeypatch)
    assert len(store.rewind("t", 5)) == 2
    assert len(store.rewind("t", 5)) == 0
    assert len(store.clear("t", hide=True)) == 1
    assert len(sent) == 3, sent
