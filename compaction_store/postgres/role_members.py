"""Lists the logins that have the schema's roles, and those with more power than their role allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.postgres import queries

_OWNER, _APP, _AUDITOR, _LOADER, _REVIEWER = ROLES = (
    "compaction_store_owner", "compaction_store_app", "compaction_store_auditor", "compaction_store_loader",
    "compaction_store_reviewer",
)  # fmt: skip
SUPERUSER = "a superuser"
BYPASSES = "exempt from row-level security"
# Roles of Postgres that can write to all tables without a grant. The last two can do what the server's account can.
_WRITERS = ("pg_write_all_data", "pg_write_server_files", "pg_execute_server_program")
# The files have the rows of all tenants.
_READS_FILES = "pg_read_server_files"
#: Postgres's own roles that no policy and no grant restricts.
UNRESTRICTED = (*_WRITERS, _READS_FILES)
# Roles that no login must have at once: who can change tables, or judge compactions, must not be who makes them.
APART = {
    frozenset({_OWNER, _APP}): "owner and application",
    frozenset({_REVIEWER, _APP}): "reviewer and application",
    frozenset({_REVIEWER, _LOADER}): "reviewer and loader",
}

BECOMES_OWNER = f"able to become {_OWNER} (ADMIN OPTION)"
MAKES_ROLES = "able to give itself any role (CREATEROLE, before Postgres 16)"
# The roles that each login can use. Since Postgres 16, some memberships only allow granting the role.
_HELD = """
    WITH RECURSIVE edges AS (
        SELECT a.member, a.roleid FROM pg_catalog.pg_auth_members AS a
        WHERE coalesce((pg_catalog.to_jsonb(a) ->> 'inherit_option')::bool, true)
            OR coalesce((pg_catalog.to_jsonb(a) ->> 'set_option')::bool, true)
    ), held (login, roleid) AS (
        SELECT r.oid, r.oid FROM pg_catalog.pg_roles AS r WHERE {whom}
        UNION
        SELECT h.login, e.roleid FROM held AS h JOIN edges AS e ON e.member = h.roleid
    )
"""
# A login that may grant the owner's role can grant it to itself.
_ADMIN = """EXISTS (
    SELECT FROM pg_catalog.pg_auth_members AS a JOIN pg_catalog.pg_roles AS o ON o.oid = a.roleid
    WHERE a.member = g.oid AND a.admin_option AND o.rolname = %(owner)s::text
)"""
_MEMBERS = """
    SELECT pg_catalog.pg_get_userbyid(h.login)::text,
        pg_catalog.array_agg(g.rolname::text) FILTER (WHERE g.rolname = ANY (%(ours)s::text[])),
        pg_catalog.array_agg(g.rolname::text) FILTER (WHERE g.rolname = ANY (%(unrestricted)s::text[])),
        pg_catalog.bool_or(g.rolsuper),
        pg_catalog.bool_or(g.rolbypassrls AND g.rolname <> ALL (%(ours)s::text[])),
        pg_catalog.bool_or(g.rolcreaterole)
            AND pg_catalog.current_setting('server_version_num')::int4 < 160000,
        pg_catalog.bool_or({admin}) AND NOT pg_catalog.bool_or(g.rolname = %(owner)s::text)
    FROM held AS h JOIN pg_catalog.pg_roles AS g ON g.oid = h.roleid
    GROUP BY h.login
    HAVING pg_catalog.bool_or(g.rolname = ANY (%(ours)s::text[]) OR g.rolname = ANY (%(unrestricted)s::text[]))
    ORDER BY 1
"""

_POWERS = """
    SELECT g.rolname::text, g.rolsuper, g.rolbypassrls,
        g.rolcreaterole AND pg_catalog.current_setting('server_version_num')::int4 < 160000,
        {admin} AND NOT EXISTS (
            SELECT FROM held AS e JOIN pg_catalog.pg_roles AS o ON o.oid = e.roleid WHERE o.rolname = %(owner)s::text
        )
    FROM held AS h JOIN pg_catalog.pg_roles AS g ON g.oid = h.roleid ORDER BY 1
"""
_ALSO_IN = """
    SELECT pg_catalog.pg_get_userbyid(h.login)::text
    FROM held AS h JOIN pg_catalog.pg_roles AS g ON g.oid = h.roleid
    GROUP BY h.login
    HAVING pg_catalog.bool_or(g.rolname = ANY (%(granted)s::text[])) AND pg_catalog.bool_or(g.rolname = %(group)s::text)
        AND NOT pg_catalog.bool_or(g.rolsuper OR g.rolname = %(owner)s::text)
    ORDER BY 1
"""


class Member(NamedTuple):
    """A login, its roles of the schema, and its other powers."""

    login: str
    roles: Sequence[str]
    powers: Sequence[str]


def read(connection: Connection) -> list[Member]:
    """Reads every login that has a role of the schema, or one of Postgres that no policy restricts."""
    found = []
    parameters = {"ours": list(ROLES), "unrestricted": list(UNRESTRICTED), "owner": _OWNER}
    for login, roles, postgres_roles, *has in queries.fetch(
        connection, (_HELD + _MEMBERS).format(whom="r.rolcanlogin", admin=_ADMIN), parameters
    ):
        powers = _named(*has)
        powers += [_member_of(name) for name in sorted(postgres_roles or ())]
        found.append(Member(login, sorted(roles or ()), powers))
    return found


def also_in(connection: Connection, group: str) -> list[str]:
    """Returns the logins that have a role of the schema, not the owner's, and can use this other role too."""
    parameters = {"granted": [_APP, _AUDITOR, _LOADER, _REVIEWER], "group": group, "owner": _OWNER}
    rows = queries.fetch(connection, _HELD.format(whom="r.rolcanlogin") + _ALSO_IN, parameters)
    return [login for (login,) in rows]


def reach(connection: Connection, login: str) -> Iterator[str]:
    """Yields what a login can do, by itself or as another role, that no member of the schema's roles must be able to
    do.
    """
    parameters = {"login": login, "owner": _OWNER}
    for name, *has in queries.fetch(
        connection, (_HELD + _POWERS).format(whom="r.rolname = %(login)s::text", admin=_ADMIN), parameters
    ):
        for power in _named(*has):
            yield power if name == login else f"a member of {name!r}, which is {power}"


def _named(is_superuser: bool, bypasses: bool, makes_roles: bool, becomes_owner: bool) -> list[str]:
    """Returns the powers that are true. A superuser has all of them."""
    if is_superuser:
        return [SUPERUSER]
    powers = ((BYPASSES, bypasses), (MAKES_ROLES, makes_roles), (BECOMES_OWNER, becomes_owner))
    return [what for what, so in powers if so]


def findings(members: Sequence[Member]) -> Iterator[str]:
    """Yields combinations of roles and powers that exist although `grants.grant` refuses them."""
    for member in members:
        bound = [role for role in member.roles if role != _OWNER]
        powers = [power for power in member.powers if power not in _allowed(bound)]
        if bound and powers:
            yield f"login {member.login!r} is a member of {_and(bound)}, and {_and(powers)}"
        elif SUPERUSER not in member.powers:
            for roles, names in APART.items():
                if roles <= set(member.roles):
                    yield f"login {member.login!r} is {names} at once"


def notes(members: Sequence[Member]) -> Iterator[str]:
    """Yields the logins that may change or read everything, and are allowed to."""
    owners = [m.login for m in members if _OWNER in m.roles and SUPERUSER not in m.powers]
    if owners:
        yield f"logins that may change everything, as members of {_OWNER}: {_names(owners)}"
    auditors = [m.login for m in members if _AUDITOR in m.roles and BYPASSES in m.powers]
    if auditors:
        yield f"auditors of all tenants, {BYPASSES}: {_names(auditors)}"
    blockers = [m.login for m in members if _AUDITOR in m.roles and {_APP, _LOADER} & set(m.roles)]
    if blockers:
        yield f"logins that write and, as auditors, can keep checkpoints waiting: {_names(blockers)}"
    others = [m for m in members if not m.roles and m.powers and SUPERUSER not in m.powers]
    readers = [m.login for m in others if list(m.powers) == [_member_of(_READS_FILES)]]
    writers = [m.login for m in others if m.login not in readers]
    if writers:
        yield f"logins that may write to every table of the server: {_names(writers)}"
    if readers:
        yield f"logins that may read every file of the server: {_names(readers)}"


def _allowed(roles: Sequence[str]) -> Sequence[str]:
    """Returns the powers a role may have. An auditor who makes checkpoints over all tenants bypasses the policies."""
    return (BYPASSES,) if list(roles) == [_AUDITOR] else ()


def _member_of(name: str) -> str:
    return f"a member of {name}"


def _and(parts: Sequence[str]) -> str:
    return " and ".join(parts)


def _names(logins: Sequence[str]) -> str:
    return ", ".join(repr(login) for login in logins)
