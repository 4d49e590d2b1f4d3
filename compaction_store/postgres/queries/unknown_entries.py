"""Finds the first entry of a thread that changes views and whose kind this release does not know."""

from __future__ import annotations

import sqlalchemy as sa

from compaction_store.models.vocabulary import CRITICAL_EVENTS, KINDS, sql_list
from compaction_store.postgres import tables

# The conditions are the same as in the SQL function refuse_unknown and in two partial indexes, which have exactly these
# entries. In a query for one thread, every table must have a condition on thread_uid. Citus does not infer it from the
# join, and would query all shards.
_UNKNOWN_POS = """least(
    (
        SELECT min(later.pos) FROM compaction_store.compactions AS later
        WHERE later.thread_uid = {uid} AND later.outcome = 'applied'
            AND later.kind NOT IN {kinds}
            AND later.number + 0 <= (
                SELECT its.last_number FROM compaction_store.heads AS its WHERE its.thread_uid = later.thread_uid{named}
            )
    ),
    (
        SELECT min(later.pos) FROM compaction_store.events AS later
        WHERE later.thread_uid = {uid} AND later.critical AND later.kind NOT IN {events}
            AND later.pos <= (
                SELECT its.last_pos FROM compaction_store.heads AS its WHERE its.thread_uid = later.thread_uid{named}
            )
    )
)"""


def _unknown(uid: str, named: str) -> str:
    return _UNKNOWN_POS.format(uid=uid, named=named, kinds=sql_list(KINDS), events=sql_list(sorted(CRITICAL_EVENTS)))


#: The SQL expression for the pos of a thread's first unknown entry, for each row of heads.
UNKNOWN_POS_OF_HEAD: sa.ColumnElement[int] = sa.literal_column(_unknown("heads.thread_uid", ""), sa.BigInteger).label(
    "unknown_pos"
)


def unknown_pos(*, is_one: bool) -> sa.TextClause:
    """Returns the SQL expression for the pos of a thread's first unknown entry, for each row of compactions.

    With `is_one`, the query is for one thread, which is the parameter thread_uid.
    """
    if not is_one:
        return sa.text(_unknown("compactions.thread_uid", "") + " AS unknown_pos")
    statement = _unknown(":thread_uid", " AND its.thread_uid = :thread_uid")
    uid = sa.bindparam("thread_uid", type_=tables.compactions.c.thread_uid.type)
    return sa.text(f"{statement} AS unknown_pos").bindparams(uid)
