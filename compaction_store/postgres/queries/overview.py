"""Counts the threads of a tenant, and its compactions by day and outcome."""

from __future__ import annotations

from datetime import datetime

from compaction_store.models import DayFigures, Figures
from compaction_store.models.vocabulary import NO_ATTEMPTS, sql_list
from compaction_store.module_data import ModuleData
from compaction_store.postgres.driver.cursor import Connection, fetch, transaction

_SQL = ModuleData(__file__).values
_DAYS = _SQL["days"].format(no_attempts=sql_list(NO_ATTEMPTS))


def figures(connection: Connection, tenant: str, since: datetime) -> Figures:
    """Counts with two statements: one reads the records since a time by their index, the other one all heads."""
    with transaction(connection, tenant, read_only=True):
        [(threads, erased, messages, records, leased)] = fetch(connection, _SQL["heads"], {"tenant": tenant})
        days = fetch(connection, _DAYS, {"tenant": tenant, "since": since})
    return Figures(threads, erased, messages, records, leased, tuple(DayFigures(*row) for row in days))
