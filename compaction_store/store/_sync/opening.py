"""Connects to a database and checks that this version can work with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from compaction_store import embedded
from compaction_store.postgres import queries
from compaction_store.postgres.calling import engines
from compaction_store.postgres.calling._sync.connections import Connections
from compaction_store.postgres.calling.call import deadline_for_opening
from compaction_store.postgres.calling.engines import Engine
from compaction_store.postgres.cluster import Cluster, Server
from compaction_store.telemetry.telemetry import Telemetry


class Opened(NamedTuple):
    """The connections, and this process's `Share` of the embedded server if they lead to that server."""

    db: Connections
    share: embedded.Share | None


def open_database(
    url: str | None,
    engine: Engine | None,
    *,
    pool_size: int,
    connect_timeout: float,
    deadline: float,
    settings: Mapping[str, str],
    telemetry: Telemetry | None,
) -> Opened:
    share = None
    if engine is None:
        url = engines.chosen_url(url)
        if url is None:
            share = embedded.join()
            url = share.url
        engine = engines.create_engine(
            url, pool_size=pool_size, connect_timeout=connect_timeout, deadline=deadline, settings=settings
        )  # fmt: skip
    # Do not retry the first connection: a wrong address should fail at once.
    first = Connections(engine, deadline_for_opening(connect_timeout, deadline), retries=False)
    try:
        citus = first.call(queries.check, settings)
    except BaseException:
        first.close()
        if share is not None:
            share.close()
        raise
    observer = None if telemetry is None else telemetry.observer(*engines.address(first.engine))
    server = Cluster() if citus.is_used else Server(has_citus=citus.is_installed)
    db = Connections(engine, deadline, server=server, observer=observer)
    return Opened(db, share)
