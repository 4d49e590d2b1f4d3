"""Lists the events of all threads of a tenant."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from compaction_store.module_data import ModuleData
from compaction_store.postgres.driver.cursor import Connection, select_of

_SQL = ModuleData(__file__).values
_COLUMNS = ("thread_id", "pos", "kind", "critical", "actor", "login", "created_at", "thread_uid", "body")


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
    given = {name: value for name, value in wanted._asdict().items() if value is not None}
    conditions = [_SQL["where"][name] for name in given]
    given |= {"tenant": tenant, "limit": limit}
    if after is not None:
        given |= dict(zip(("after_at", "after_uid", "after_pos"), after, strict=True))
        conditions.append(_SQL["after"].format(than="<" if newest_first else ">"))
    statement = _SQL["events"].format(
        conditions="".join(f" AND {condition}" for condition in conditions), desc=" DESC" if newest_first else ""
    )
    return [dict(zip(_COLUMNS, row, strict=True)) for row in select_of(connection, tenant, statement, given)]
