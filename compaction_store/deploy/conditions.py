"""Checks a store's server: old snapshots, replication slots, standbys, settings of logins, statistics, shards.

All facts come from the server's own views. If the login may not see other sessions, a check says so. A check that could
not be made is never reported as ok.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.jsonable import AsDict
from compaction_store.module_data import ModuleData
from compaction_store.postgres import queries
from compaction_store.postgres.schema import role_members

_SQL = ModuleData(__file__).values
State = Literal["ok", "note", "problem"]

# An old snapshot keeps every version of a thread's head, which slows down appends to the thread.
OLD_SECONDS = 300.0
OLD_TRANSACTIONS = 100_000
_UNANALYZED_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Remark(AsDict):
    """The result of one check. A problem has a remedy; a note is for information."""

    name: str
    state: State
    what: str
    remedy: str | None = None


# Settings that harm a store: the harmful values, the consequence, and how serious it is.
_HARMFUL: Mapping[str, tuple[Sequence[str], str, State]] = _SQL["harmful"]
_SWITCHES = dict.fromkeys(("true", "yes", "1"), "on") | dict.fromkeys(("false", "no", "0"), "off")


def look(connection: Connection) -> list[Remark]:
    """Runs all checks of a server, primary or standby."""
    sees_others = bool(queries.fetch(connection, _SQL["sees_others"])[0][0])
    found = [*_snapshots(connection, sees_others=sees_others), *_slots(connection)]
    found += _standbys(connection, sees_others=sees_others)
    found += _of_logins(connection)
    found += _statistics(connection)
    return found


def _snapshots(connection: Connection, *, sees_others: bool) -> Iterator[Remark]:
    slow = "appends to busy threads slow down until it ends"
    for pid, application, login, is_idle, seconds in queries.fetch(connection, _SQL["sessions"], (OLD_SECONDS,)):
        doing = "idle in a transaction" if is_idle else "in a transaction"
        what = f"process {pid} ({application!r}, login {login!r}) is {doing} for {seconds:,.0f} s: {slow}"
        remedy = f"SELECT pg_terminate_backend({pid}), and set idle_in_transaction_session_timeout"
        yield Remark("snapshots", "problem" if is_idle else "note", what, remedy if is_idle else None)
    for name, seconds in queries.fetch(connection, _SQL["prepared"], (OLD_SECONDS,)):
        what = f"transaction {name!r} was prepared {seconds:,.0f} s ago and is still open: {slow}"
        yield Remark("snapshots", "problem", what, "end it with COMMIT PREPARED or ROLLBACK PREPARED")
    if not sees_others:
        what = "this login may not see whether another session holds an old snapshot"
        yield Remark("snapshots", "note", what, "run doctor with a member of pg_monitor")


def _slots(connection: Connection) -> Iterator[Remark]:
    for name, kept in queries.fetch(connection, _SQL["slots"]):
        size = "" if kept is None else f" ({kept:,} bytes so far)"
        what = f"replication slot {name!r} has no reader: the server keeps all WAL for it{size}"
        yield Remark("slots", "problem", what, "start its reader again, or SELECT pg_drop_replication_slot(…)")
    for name, age in queries.fetch(connection, _SQL["held_by_slots"]):
        if age > OLD_TRANSACTIONS:
            yield _feedback(f"replication slot {name!r}", age)


def _feedback(who: str, age: int) -> Remark:
    what = f"{who} holds back the vacuum of {age:,} transactions: appends to busy threads slow down"
    return Remark("snapshots", "note", what, "end long queries on the standby, or set hot_standby_feedback = off there")


def _standbys(connection: Connection, *, sees_others: bool) -> Iterator[Remark]:
    [(names, commit, feedback, in_recovery)] = queries.fetch(connection, _SQL["replication"])
    if in_recovery and feedback == "on":
        what = "hot_standby_feedback is on: long queries on this standby slow down appends on the primary"
        yield Remark("snapshots", "note", what)
    standbys = queries.fetch(connection, _SQL["standbys"])
    for name, age, _ in standbys:
        if age is not None and age > OLD_TRANSACTIONS:
            yield _feedback(f"standby {name!r}", age)
    if not names or in_recovery:
        return
    if commit in {"off", "local"}:
        what = f"synchronous_standby_names is set, but synchronous_commit is {commit}: a failover may lose messages"
        yield Remark("standby", "note", what, "ALTER DATABASE … SET synchronous_commit = on")
    if not sees_others:
        yield Remark("standby", "note", "this login may not see whether a synchronous standby is connected")
    elif not any(state in {"sync", "quorum"} for _, _, state in standbys):
        what = "synchronous_standby_names is set, but no synchronous standby is connected"
        yield Remark("standby", "problem", what, "start a standby: until then commits wait, or are on this server only")
    else:
        yield Remark("standby", "ok", "a synchronous standby is connected")


def _of_logins(connection: Connection) -> Iterator[Remark]:
    """Checks settings that are made for all logins, or for a login that has one of the schema's roles."""
    here = dict(queries.fetch(connection, _SQL["here"], (list(_HARMFUL),)))
    ours = [member.login for member in role_members.read(connection) if member.roles]
    for login, of_database, name, given in queries.fetch(connection, _SQL["settings"], (ours,)):
        value = _SWITCHES.get(given.strip().lower(), given.strip().lower())
        values, follows, state = _HARMFUL.get(name, ((), "", "note"))
        if value in values and (login is not None or here[name] != value):
            who = "every login" if login is None else f"login {login!r}"
            where = " in this database" if of_database else ""
            remedy = "ALTER DATABASE … RESET" if login is None else "ALTER ROLE … RESET"
            what = f"{name} is {value} for {who}{where}: {follows}"
            yield Remark("settings", state, what, f"{remedy} {name}")
    if here["row_security"] == "off":
        what = f"row_security is off here: {_HARMFUL['row_security'][1]}"
        yield Remark("settings", "problem", what, "row_security = on")


def _statistics(connection: Connection) -> Iterator[Remark]:
    names = [name for (name,) in queries.fetch(connection, _SQL["unanalyzed"], (_UNANALYZED_BYTES,))]
    if names:
        what = f"never analyzed: {', '.join(names)}; queries across threads may read whole tables"
        yield Remark("statistics", "note", what, "run ANALYZE, or wait for autovacuum")


def on_cluster(connection: Connection) -> list[Remark]:
    """Checks, on a Citus cluster, that all nodes are active and that queries send them their tenant."""
    if queries.is_worker(connection):
        return [Remark("cluster", "problem", "this is a worker of a Citus cluster", "connect to the coordinator")]
    placements = queries.fetch(connection, "SELECT pg_catalog.to_regclass('pg_catalog.pg_dist_shard') IS NOT NULL")
    if not placements[0][0]:
        return []
    [(shards,)] = queries.fetch(connection, _SQL["shards"])
    if not shards:
        return [
            Remark(
                "cluster",
                "note",
                "Citus is installed, but the tables are not distributed",
                "run compaction-store distribute",
            )
        ]
    [(nodes, away)] = queries.fetch(connection, _SQL["nodes"])
    found = [Remark("cluster", "ok", f"the tables are distributed over {shards:,} shards on {nodes:,} nodes")]
    if away:
        what = f"{away:,} nodes are not active: their threads cannot be reached"
        found.append(Remark("cluster", "problem", what, "start them, then SELECT citus_activate_node(…)"))
    [(tells,)] = queries.fetch(
        connection, "SELECT pg_catalog.current_setting('citus.propagate_set_commands', true) = 'local'"
    )
    if not tells:
        what = "citus.propagate_set_commands is not local: queries across threads fail on the nodes"
        found.append(
            Remark(
                "cluster", "problem", what, "run compaction-store distribute, which sets it, and open new connections"
            )
        )
    return found
