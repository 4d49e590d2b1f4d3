"""A pytest plugin for the SDK's own tests of sessions: they get a StoreSession where they make one of the SDK's.

These are SQLiteSession, and SQLAlchemySession.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import agents
import agents.extensions.memory.sqlalchemy_session
import agents.memory
import agents.memory.sqlite_session
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from compaction_store import Store
from compaction_store.adapters.openai_agents import StoreSession

# Tests of what only the SDK's classes have, by a part of their names, and why.
NOT_OURS = {
    "close_closes_worker_thread_connections": "counts SQLite's connections",
    "reaps_connections_from_exited_worker_threads": "counts SQLite's connections",
    "closes_retired_connections_before_the_next_allocation": "counts SQLite's connections",
    "keeps_connections_of_live_worker_threads": "counts SQLite's connections",
    "closed_rejects_empty_add_items": "a store is closed by its owner, not by a session",
    "pop_item_skips_corrupt_most_recent": "writes broken JSON into SQLite's table",
    "pop_item_returns_none_after_dropping_only_corrupt_rows": "writes broken JSON into SQLite's table",
    "get_items_limit_skips_corrupt_newest_rows": "writes broken JSON into SQLite's table",
    "session_settings_limit_skips_corrupt_rows": "writes broken JSON into SQLite's table",
    "file_lock_is_shared_across_instances": "SQLite's lock on a file",
    "failed_add_items_releases_write_lock": "SQLite's lock on a file",
    "failed_clear_session_rolls_back": "a trigger in SQLite's table",
    "failed_pop_item_releases_write_lock": "a trigger in SQLite's table",
    "rollback_failure_evicts_connection": "a double of SQLite's connection",
    "close_retries_quarantined_connection": "a double of SQLite's connection",
    "settled_pop_failure_invalidates_response_chain": "a double of SQLite's connection",
    "settled_clear_failure_invalidates_response_chain": "a double of SQLite's connection",
    "post_commit_cancellation_propagates_after_known_outcome": "a double of SQLite's connection",
    # Of SQLAlchemySession.
    "escaped_non_ascii_storage": "reads the text in SQLAlchemySession's table",
    "store_non_ascii_without_escaping": "reads the text in SQLAlchemySession's table",
    "sqlite_fallback_reserves_writer": "reads the statements of SQLAlchemySession",
    "supports_unknown_delete_rowcount": "a double of SQLAlchemySession's transaction",
    "retries_returning_claim": "a double of SQLAlchemySession's transaction",
    "cancellation_waits_for_transaction_exit": "a double of SQLAlchemySession's transaction",
    "waits_for_transient_sqlite_write_lock": "SQLite's lock on a file",
    "does_not_strand_table_init_lock": "SQLAlchemySession's lock for making its tables",
    "does_not_allocate_shared_init_lock": "SQLAlchemySession's lock for making its tables",
    "same_timestamp": "writes times into SQLAlchemySession's table",
    "orders_by_id_for_ties": "reads the statements of SQLAlchemySession",
    "engine_property": "a store has no engine of SQLAlchemy's for others",
    "sqlite_configuration_registry": "SQLAlchemySession's registry of engines",
}

_RUN = uuid.uuid4()
_stores: dict[str, Store] = {}


def _store(path: str | Path) -> Store:
    """Returns the store of a file: a tenant of its own; in memory, one for each session."""
    tenant = str(uuid.uuid4() if str(path) == ":memory:" else uuid.uuid5(_RUN, str(path)))
    if tenant not in _stores:
        _stores[tenant] = Store.open(tenant=tenant, pool_size=4)
    return _stores[tenant]


class SQLiteSession(StoreSession):
    def __init__(
        self, session_id: str, db_path: str | Path = ":memory:", *_tables: str, session_settings: Any = None
    ) -> None:
        super().__init__(session_id, _store(db_path), session_settings=session_settings)

    def close(self) -> None:
        """Does nothing: the store is closed after the test."""


class SQLAlchemySession(StoreSession):
    def __init__(
        self, session_id: str, *, engine: Any, create_tables: bool = False, session_settings: Any = None
    ) -> None:
        del create_tables
        # The tests dispose of it.
        self.engine = engine
        super().__init__(session_id, _store(engine.url.database), session_settings=session_settings)

    @classmethod
    def from_url(cls, session_id: str, *, url: str, **options: Any) -> SQLAlchemySession:
        return cls(session_id, engine=create_async_engine(url), **options)


agents.extensions.memory.sqlalchemy_session.SQLAlchemySession = SQLAlchemySession
agents.SQLiteSession = agents.memory.SQLiteSession = SQLiteSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for part, reason in NOT_OURS.items():
            if part in item.name:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    for store in _stores.values():
        store.close()
    _stores.clear()
