"""Grants logins the schema's roles, so that each login has the privileges it needs and no others.

A login with more power than the schema's roles can only be granted the owner's role. Such a login is, for example, a
superuser, an owner of a table, or a login that may write to all tables or read the server's files. A login with the
role owner cannot also have application, and a login with the role reviewer can have neither application nor loader.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import NamedTuple

from psycopg import errors, sql
from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.arguments import other
from compaction_store.errors import InvalidInput, NotConfigured, PermissionDenied
from compaction_store.models.roles import APART, GROUPS, ROLES, Role
from compaction_store.models.vocabulary import LogEvent
from compaction_store.module_data import ModuleData
from compaction_store.postgres import cluster, queries
from compaction_store.postgres.calling import connections
from compaction_store.postgres.driver.cursor import together
from compaction_store.postgres.schema import role_members
from compaction_store.postgres.schema.role_members import Member

_SQL = ModuleData(__file__).values
_MOST_NAME_BYTES = 63
_INHERIT_OPTION_SINCE = 160000
_TIMEOUT = "idle_in_transaction_session_timeout"


class _Login(NamedTuple):
    inherits: bool
    server_version: int
    database: str


def grant(url: str, login: str, role: Role) -> None:
    """Grants a login one of the schema's roles. Does nothing if the login already has the role.

    A login that writes also gets `idle_in_transaction_session_timeout`, unless it has one, so that a forgotten
    transaction does not stop the writers of a thread. An application can neither erase nor hold unless it is granted
    `eraser` or `custodian` too.
    """
    name = _checked(login, role)
    connections.run_once(url, lambda connection: _grant(connection, login, role, name))


def revoke(url: str, login: str, role: Role) -> None:
    """Revokes a role from a login. Does nothing if the login does not have the role."""
    name = _checked(login, role)
    connections.run_once(url, lambda connection: _revoke(connection, login, role, name))


def members(url: str) -> dict[Role, list[Member]]:
    """Returns the logins that can use each of the schema's roles, with what else each login may do on the server."""
    found = connections.run_once(url, role_members.read)
    return {name: [member for member in found if role.group in member.roles] for name, role in ROLES.items()}


def direct_roles(connection: Connection, login: str) -> set[Role]:
    """Returns the roles of the schema that were granted to the login itself."""
    groups = {group for (group,) in queries.fetch(connection, _SQL["direct"], (login,))}
    return {name for name, role in ROLES.items() if role.group in groups}


def _given(login: object) -> str:
    if not isinstance(login, str):
        return other(login)
    return ", not text with a NUL" if "\0" in login else f", not {_size(login):,} bytes"


def _checked(login: object, role: Role) -> str:
    if role not in tuple(ROLES):
        raise InvalidInput(f"role must be one of {', '.join(ROLES)}, not {role!r}")
    if not isinstance(login, str) or "\0" in login or not 1 <= _size(login) <= _MOST_NAME_BYTES:
        raise InvalidInput(f"login must be text of 1 to {_MOST_NAME_BYTES} bytes without NUL{_given(login)}")
    if login in GROUPS:
        raise InvalidInput(f"login must not be {login}, one of the schema's own roles")
    return ROLES[role].group


def _size(login: str) -> int:
    with suppress(UnicodeEncodeError):
        return len(login.encode())
    return 0


def _login(connection: Connection, login: str) -> _Login:
    if queries.fetch(connection, _SQL["exists"], (list(GROUPS),))[0][0] != len(GROUPS):
        raise NotConfigured("the schema's roles do not exist: migrate again with a login that has CREATEROLE")
    rows = queries.fetch(connection, _SQL["login"], (login,))
    if not rows:
        raise InvalidInput(f"there is no login {login!r}")
    return _Login._make(rows[0])


def _grant(connection: Connection, login: str, role: Role, name: str) -> None:
    found = _login(connection, login)
    member = role_members.of(connection, login)
    if role != "owner" and member.powers:
        what = f"{login!r} is {member.powers[0]}"
        raise InvalidInput(f"{what}: it could do more than its role allows; make another login")
    for apart, names in APART.items():
        if role_members.SUPERUSER not in member.powers and name in apart and apart <= {name, *member.roles}:
            raise InvalidInput(f"{login!r} must not be {names} at once: make a login for each")
    inherit = sql.SQL("")
    if found.server_version >= _INHERIT_OPTION_SINCE:
        inherit = sql.SQL(" WITH INHERIT TRUE, SET TRUE")
    elif not found.inherits:
        raise InvalidInput(f"{login!r} is NOINHERIT: it would not have the privileges of the role")
    statement = sql.SQL("GRANT {} TO {}{}").format(sql.Identifier(name), sql.Identifier(login), inherit)
    _change(connection, "grant", login, role, statement)
    if ROLES[role].locks_threads and not queries.fetch(connection, _SQL["has_timeout"], (login, _TIMEOUT + "=%")):
        # A login that may grant the role may not alter every login. Its administrator then has to.
        with suppress(PermissionDenied):
            quoted = sql.Identifier(login), sql.Identifier(found.database), sql.SQL(_TIMEOUT)
            _send(connection, sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = '60s'").format(*quoted), name)


def _revoke(connection: Connection, login: str, role: Role, name: str) -> None:
    _login(connection, login)
    statement = sql.SQL("REVOKE {} FROM {}").format(sql.Identifier(name), sql.Identifier(login))
    _change(connection, "ungrant", login, role, statement)


def _change(connection: Connection, kind: LogEvent, login: str, role: Role, statement: sql.Composed) -> None:
    """Changes who has a role, and records a change in the log, on a cluster in a second transaction on its node."""
    was = role in direct_roles(connection, login)
    with nullcontext() if cluster.is_distributed(connection) else together(connection):
        _send(connection, statement, ROLES[role].group)
        if was != (role in direct_roles(connection, login)):
            cluster.record_in_database(connection, kind, {"login": login, "role": role})


def _send(connection: Connection, statement: sql.Composed, name: str) -> None:
    try:
        # A name cannot be a parameter, and may contain a percent sign.
        queries.fetch(connection, statement.as_string().replace("%", "%%"))
    except errors.InsufficientPrivilege as error:
        raise PermissionDenied(
            f"this login may not grant or revoke {name}: use a superuser, or a member of {name} with ADMIN OPTION",
            sqlstate=error.sqlstate,
        ) from None
