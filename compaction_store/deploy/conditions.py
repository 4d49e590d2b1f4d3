"""Checks a store's server by its own views: old snapshots, replication slots, standbys, settings of logins, statistics,
shards. A check that could not be made, as if the login may not see other sessions, is never reported as ok.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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


def sayer(texts: Mapping[str, Sequence[Any]]) -> Callable[..., Remark]:
    """Returns a function that makes a remark from the text of a data file, with values in its places."""

    def say(key: str, **values: Any) -> Remark:
        name, state, *said = texts[key]
        return Remark(name.format(**values), state, *(text.format(**values) for text in said))

    return say


_say = sayer(_SQL["remarks"])
# Settings that harm a store: the harmful values, the consequence, and how serious it is.
_HARMFUL: Mapping[str, tuple[Sequence[str], str, State]] = _SQL["harmful"]
_SWITCHES = dict.fromkeys(("true", "yes", "1"), "on") | dict.fromkeys(("false", "no", "0"), "off")


def look(connection: Connection) -> list[Remark]:
    """Runs all checks of a server, primary or standby."""
    sees_others = bool(queries.fetch(connection, _SQL["sees_others"])[0][0])
    found = [*_snapshots(connection, sees_others=sees_others), *_slots(connection)]
    found += [*_standbys(connection, sees_others=sees_others), *_of_logins(connection)]
    if names := [name for (name,) in queries.fetch(connection, _SQL["unanalyzed"], (_UNANALYZED_BYTES,))]:
        found.append(_say("unanalyzed", names=", ".join(names)))
    return found


def _snapshots(connection: Connection, *, sees_others: bool) -> Iterator[Remark]:
    for pid, application, login, is_idle, seconds in queries.fetch(connection, _SQL["sessions"], (OLD_SECONDS,)):
        key = "idle_session" if is_idle else "old_session"
        yield _say(key, pid=pid, application=application, login=login, seconds=seconds)
    for name, seconds in queries.fetch(connection, _SQL["prepared"], (OLD_SECONDS,)):
        yield _say("prepared", name=name, seconds=seconds)
    if not sees_others:
        yield _say("unseen_sessions")


def _slots(connection: Connection) -> Iterator[Remark]:
    for name, kept in queries.fetch(connection, _SQL["slots"]):
        yield _say("unread_slot", name=name, size="" if kept is None else f" ({kept:,} bytes so far)")
    for name, age in queries.fetch(connection, _SQL["held_by_slots"]):
        if age > OLD_TRANSACTIONS:
            yield _say("feedback", who=f"replication slot {name!r}", age=age)


def _standbys(connection: Connection, *, sees_others: bool) -> Iterator[Remark]:
    [(names, commit, feedback, in_recovery)] = queries.fetch(connection, _SQL["replication"])
    if in_recovery and feedback == "on":
        yield _say("own_feedback")
    standbys = queries.fetch(connection, _SQL["standbys"])
    for name, age, _ in standbys:
        if age is not None and age > OLD_TRANSACTIONS:
            yield _say("feedback", who=f"standby {name!r}", age=age)
    if not names or in_recovery:
        return
    if commit in {"off", "local"}:
        yield _say("no_commit", commit=commit)
    if not sees_others:
        yield _say("unseen_standbys")
    else:
        is_connected = any(state in {"sync", "quorum"} for _, _, state in standbys)
        yield _say("standby" if is_connected else "no_standby")


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
            kind = "DATABASE" if login is None else "ROLE"
            what = f"{name} is {value} for {who}{where}: {follows}"
            yield Remark("settings", state, what, f"ALTER {kind} … RESET {name}")
    if here["row_security"] == "off":
        yield _say("row_security", follows=_HARMFUL["row_security"][1])


def on_cluster(connection: Connection) -> list[Remark]:
    """Checks, on a Citus cluster, that all nodes are active and that queries send them their tenant."""
    if queries.is_worker(connection):
        return [_say("worker")]
    if not queries.fetch(connection, _SQL["has_citus"])[0][0]:
        return []
    [(shards,)] = queries.fetch(connection, _SQL["shards"])
    if not shards:
        return [_say("undistributed")]
    [(nodes, away)] = queries.fetch(connection, _SQL["nodes"])
    found = [_say("distributed", shards=shards, nodes=nodes)]
    if away:
        found.append(_say("nodes_away", away=away))
    if not queries.fetch(connection, _SQL["tells"])[0][0]:
        found.append(_say("untold"))
    return found
