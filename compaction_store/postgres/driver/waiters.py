"""Installs waiters on connections of the driver. A waiter ends every wait at the deadline of the call."""

from __future__ import annotations

from typing import Any

import psycopg

from compaction_store.postgres.driver._async.waiter import AsyncWaiter
from compaction_store.postgres.driver._sync.waiter import Waiter as SyncWaiter
from compaction_store.postgres.driver.timeouts import Waiter


def waiter(driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Waiter:
    """Returns the waiter of a connection. The first call for a connection installs it."""
    found = vars(driver).get("wait")
    if isinstance(found, Waiter):
        return found
    made = SyncWaiter(driver) if isinstance(driver, psycopg.Connection) else AsyncWaiter(driver)
    driver.wait = made  # type: ignore[method-assign, assignment]
    return made
