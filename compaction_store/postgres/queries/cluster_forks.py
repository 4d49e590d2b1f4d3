"""Forks and erases threads on a Citus cluster.

A fork is in its parent's shard. So both operations write rows of several threads in one shard, and also a row of the
table `names`, which may be in another shard. Inside a transaction, Citus sends a function call to a node only if the
function accesses the rows of one thread. So `fork` and `erase` are called in a query of the thread's head: Citus runs
the query on the node that has the thread, and there the functions may read and write all rows of the shard.
"""

from __future__ import annotations

from typing import Any

from compaction_store.postgres.driver.cursor import Connection, fetch, literal, together
from compaction_store.postgres.queries.across_threads import NESTED
from compaction_store.postgres.queries.cluster_listing import name_uid
from compaction_store.postgres.queries.functions import ERASE, FORK, EraseRow, ForkRow, ThreadKey

_JOIN = "SELECT * FROM compaction_store.join_transaction(%b::uuid, %b::text, %b::text)"
# OFFSET 0 keeps the planner from calling the function once for each column.
_ON_NODE = """
    SELECT (called.result).* FROM (
        SELECT {} AS result FROM compaction_store.heads AS h WHERE h.thread_uid = %b::uuid OFFSET 0
    ) AS called
"""
CLAIM = "SELECT * FROM compaction_store.claim_name(%b::uuid, %b::text, %b::text, %b::uuid)"
_END_TURNS = "SELECT * FROM compaction_store.end_turns(%b::text, %b::text, %b::bool)"
_UNNAME = "SELECT * FROM compaction_store.unname_thread(%b::uuid, %b::text, %b::text, %b::uuid)"


def fork_on_cluster(connection: Connection, key: ThreadKey, new_thread_id: str, *arguments: Any) -> ForkRow:
    """Does the same as `fork`, and adds the new thread's name to the table of names in the same transaction."""
    with together(connection):
        row = ForkRow._make(_on_node(connection, FORK, key, (new_thread_id, *arguments)))
        if not row.replayed:
            name = key.tenant, new_thread_id
            fetch(connection, CLAIM, (name_uid(*name), *name, row.child_uid))
    return row


def erase_on_cluster(connection: Connection, key: ThreadKey, *arguments: Any) -> EraseRow:
    """Does the same as `erase`. If this erases the thread, also ends the thread's turns and frees its name."""
    name = key.tenant, key.thread_id
    with together(connection):
        fetch(connection, _END_TURNS, (*name, False))
        row = EraseRow._make(_on_node(connection, ERASE, key, arguments))
        if row.event_pos is not None:
            fetch(connection, _END_TURNS, (*name, True))
            fetch(connection, _UNNAME, (name_uid(*name), *name, key.uid))
    return row


def _on_node(connection: Connection, statement: str, key: ThreadKey, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Calls a function on the node that has a thread, in the current transaction."""
    fetch(connection, f"SET LOCAL compaction_store.tenant = {literal(key.tenant)}")
    fetch(connection, NESTED)
    fetch(connection, _JOIN, tuple(key))
    return fetch(connection, _ON_NODE.format(statement.removeprefix("SELECT * FROM ")), (*key, *arguments, key.uid))[0]
