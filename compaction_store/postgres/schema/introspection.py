"""Reads the schema of a database as facts: subjects and their descriptions, both as text.

The queries in `facts` read the catalog, where n is always the namespace compaction_store, and need no privileges. They
qualify every name, so that no object in the database can replace a catalog table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.models.roles import GROUPS
from compaction_store.module_data import ModuleData
from compaction_store.postgres import queries, tables
from compaction_store.postgres.schema import role_members
from compaction_store.postgres.schema.layout import CLUSTER, SERVER, Layout
from compaction_store.postgres.schema.role_members import Member

_SQL = ModuleData(__file__).values
_FOLDER = Path(__file__).parent / "facts"
_QUERIES: list[str] = _SQL["queries"]


class ClusterFacts(NamedTuple):
    """The shards and nodes of a cluster. All fields are empty on a single server."""

    #: For each shard: its table, its number, and its policies and triggers as a text.
    shards: Sequence[tuple[str, int, str]] = ()
    #: For each worker: its name and the digest of its functions.
    nodes: Sequence[tuple[str, str]] = ()
    #: The digest of the coordinator's functions.
    functions: str = ""


class Facts(NamedTuple):
    """The facts about the schema of a database. `facts`, `roles` and `partitions` map subjects to descriptions."""

    facts: dict[str, str]
    roles: dict[str, str]
    members: Sequence[Member] = ()
    notes: Sequence[str] = ()
    cluster: ClusterFacts = ClusterFacts()
    partitions: Mapping[str, str] = MappingProxyType({})

    @property
    def layout(self) -> Layout:
        return CLUSTER if self.cluster.shards else SERVER


def read(connection: Connection) -> Facts:
    """Reads all facts in one snapshot."""
    with queries.reading(connection):
        found = {subject: fact for name in _QUERIES for subject, fact in facts(connection, name)}
        roles: dict[str, str] = dict(facts(connection, "roles"))
        members = role_members.read(connection)
        notes = [note for (note,) in facts(connection, "notes")]
        return Facts(found, roles, members, notes, _cluster(connection), dict(facts(connection, "partitions")))


def facts(connection: Connection, name: str) -> list[tuple[Any, ...]]:
    """Sends a query of the folder. Its parameter `ours` has the schema's roles."""
    text = _text(name).replace("%", "%%").replace(":ours", "%(ours)s::text[]")
    return queries.fetch(connection, text, {"ours": list(GROUPS)})


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")


def _cluster(connection: Connection) -> ClusterFacts:
    shards = _shards(connection) if queries.fetch(connection, _SQL["is_sharded"])[0][0] else []
    if not shards:
        return ClusterFacts()
    # A digest of all properties that determine the behaviour of the functions.
    digest = _text("on_node")
    nodes: list[tuple[str, str]] = [*queries.fetch(connection, _SQL["on_nodes"], (digest,))]
    [(functions,)] = queries.fetch(connection, digest)
    return ClusterFacts(shards, nodes, functions)


def _shards(connection: Connection) -> list[tuple[str, int, str]]:
    """Reads the policies and triggers of each shard as a text. For an unreachable shard, the text is the error."""
    names = [table.name for table in (*tables.metadata.sorted_tables, tables.names, tables.turns)]
    return [
        (name, shard, result)
        for (name,) in queries.fetch(connection, _SQL["sharded"], (names,))
        for shard, _, result in queries.fetch(connection, _SQL["on_shards"], (name, _text("on_shard")))
    ]
