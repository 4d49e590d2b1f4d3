"""Describes the schema on a server and on a Citus cluster. All messages of a thread are in one partition."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.module_data import ModuleData
from compaction_store.postgres import queries, tables


class Layout:
    """The schema on one server."""

    #: The expression of the policies, as Postgres prints it.
    rule = "(tenant = ( SELECT compaction_store.tenant() AS tenant))"
    tables: tuple[sa.Table, ...] = (*tables.metadata.sorted_tables, tables.turns)

    def sql(self, folder: str) -> str:
        """Returns the joined text of all SQL files in a folder."""
        return _joined(folder)

    def view(self, name: str) -> str:
        """Returns the text of the SQL file of a view."""
        return (_folder("views") / f"{name}.sql").read_text(encoding="utf-8")

    def has_setting(self, _setting: str) -> bool:
        """Returns whether functions keep this setting of their SQL files."""
        return True


class ClusterLayout(Layout):
    """The schema on a cluster: more tables and functions, and some functions and views in another form."""

    # Citus does not support a sub-select in a policy.
    rule = "(tenant = compaction_store.tenant())"
    tables = (*Layout.tables, tables.names)

    def sql(self, folder: str) -> str:
        others = _joined("citus") if folder == "functions" else ""
        # A unique index must contain the distribution column. `distribute` makes this one again.
        index = "INDEX threads_tenant_thread_id_idx"
        return super().sql(folder).replace(f"UNIQUE {index}", index) + others + _joined(f"citus/{folder}")

    def view(self, name: str) -> str:
        other = _folder("citus/views") / f"{name}.sql"
        return other.read_text(encoding="utf-8") if other.exists() else super().view(name)

    def has_setting(self, setting: str) -> bool:
        return not setting.startswith("plan_cache_mode=")


SERVER, CLUSTER = Layout(), ClusterLayout()


def _folder(name: str) -> Path:
    return tables.scripts() / "sql" / name


@cache
def _joined(folder: str) -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(_folder(folder).glob("*.sql")))


def count_partitions(connection: Connection) -> int:
    """Returns the number of partitions of the table of messages, which may be 0."""
    return int(queries.fetch(connection, ModuleData(__file__).text("count"))[0][0])


def expected_partitions(found: Mapping[str, str], triggers: str) -> dict[str, str]:
    """Returns the expected facts for a table that has as many partitions as were found."""
    of_messages = sum(subject.endswith(" of messages") and subject.startswith("partition c") for subject in found)
    facts = {
        f"partition compaction_store.messages_{number} of messages": (
            f"FOR VALUES WITH (modulus {of_messages}, remainder {number}), triggers {triggers}"
        )
        for number in range(of_messages)
    }
    return facts | {"partition key of messages": "HASH (thread_uid)"} if found else {}
