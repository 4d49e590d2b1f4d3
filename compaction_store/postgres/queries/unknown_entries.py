"""Finds the first entry of a thread that changes views and whose kind this release does not know."""

from __future__ import annotations

import sqlalchemy as sa

from compaction_store.models.vocabulary import CRITICAL_EVENTS, KINDS, sql_list
from compaction_store.module_data import ModuleData
from compaction_store.postgres import tables

_UNKNOWN_POS = ModuleData(__file__).text("unknown_pos")


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
