"""Counts and checks the partitions of the table of messages. `migrate.upgrade` makes them with `partitions=`.

Messages are distributed by a hash of the thread's key, so all messages of a thread are in one partition. The name of a
partition ends with its number.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.postgres import queries

_COUNT = """
    SELECT count(*) FROM pg_catalog.pg_inherits AS i
    JOIN pg_catalog.pg_class AS c ON c.oid = i.inhparent
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'compaction_store' AND c.relname = 'messages' AND c.relkind = 'p'
"""


def count(connection: Connection) -> int:
    """Returns the number of partitions of the table of messages, which may be 0."""
    return int(queries.fetch(connection, _COUNT)[0][0])


def expected(found: Mapping[str, str], triggers: str) -> dict[str, str]:
    """Returns the expected facts for a table that has as many partitions as were found."""
    of_messages = sum(subject.endswith(" of messages") and subject.startswith("partition c") for subject in found)
    facts = {
        f"partition compaction_store.messages_{number} of messages": (
            f"FOR VALUES WITH (modulus {of_messages}, remainder {number}), triggers {triggers}"
        )
        for number in range(of_messages)
    }
    return facts | {"partition key of messages": "HASH (thread_uid)"} if found else {}
