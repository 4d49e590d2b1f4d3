"""Lists the events of all threads of a tenant."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from compaction_store.postgres import tables
from compaction_store.postgres.driver.cursor import Connection, select_named


class EventFilter(NamedTuple):
    """Conditions on events. A condition that is None matches any value."""

    kinds: list[str] | None = None
    actor: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    subject: str | None = None


def tenant_events(
    connection: Connection,
    tenant: str,
    wanted: EventFilter,
    after: tuple[datetime, UUID, int] | None,
    newest_first: bool,
    limit: int,
) -> list[dict[str, Any]]:
    """Returns a page of events, in the order of their times, as their columns by name."""
    t, e, h = tables.threads.c, tables.events.c, tables.heads.alias("h")
    order = (e.created_at, e.thread_uid, e.pos)
    # A row beyond the head is not an event. This is a subselect for each row, because a join would change the plan.
    last_pos = sa.select(h.c.last_pos).where(h.c.thread_uid == e.thread_uid).correlate(tables.events).scalar_subquery()
    query = (
        sa.select(
            t.thread_id, e.pos, e.kind, e.critical, e.actor, e.login, e.created_at, e.thread_uid,
            sa.cast(e.body, sa.Text).label("body"),
        )
        .join_from(tables.events, tables.threads, t.thread_uid == e.thread_uid)
        .where(e.tenant == tenant, e.pos <= last_pos)
        .order_by(*[column.desc() if newest_first else column for column in order])
        .limit(limit)
    )  # fmt: skip
    if wanted.kinds is not None:
        query = query.where(sa.or_(sa.false(), *(e.kind == kind for kind in wanted.kinds)))
    if wanted.actor is not None:
        query = query.where(e.actor == wanted.actor)
    if wanted.since is not None:
        query = query.where(e.created_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(e.created_at <= wanted.until)
    if wanted.subject is not None:
        query = query.where(e.thread_uid.in_(sa.select(h.c.thread_uid).where(h.c.subject == wanted.subject)))
    if after is not None:
        at, reached = sa.tuple_(*order), sa.tuple_(*after)
        query = query.where(at < reached if newest_first else at > reached)
    return select_named(connection, tenant, query)
