"""Lists the logins that have the schema's roles, and the logins that have more power than their roles allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.models.roles import APART, APPLICATION, AUDITOR, GROUPS, LOADER, OWNER
from compaction_store.module_data import ModuleData
from compaction_store.postgres import queries

_SQL = ModuleData(__file__).values
SUPERUSER = "a superuser"
BYPASSES = "exempt from row-level security"
# Roles of Postgres that can write to all tables without a grant. The last two have the rights of the server's account.
_WRITERS = ("pg_write_all_data", "pg_write_server_files", "pg_execute_server_program")
# A member of this role can read the rows of all tenants in the server's files.
_READS_FILES = "pg_read_server_files"
# A member of this role of Postgres 17 can lock and rewrite every table.
_MAINTAINS = "pg_maintain"
#: The predefined roles of Postgres that neither policies nor grants restrict.
UNRESTRICTED = (*_WRITERS, _READS_FILES, _MAINTAINS)

BECOMES = "able to become {} (ADMIN OPTION)"
OWNS = "the owner of the schema, or of a table in it"
MAKES_ROLES = "able to give itself any role (CREATEROLE, before Postgres 16)"


class Member(NamedTuple):
    """A login, its roles of the schema, its other powers, and whether it owns the database."""

    login: str
    roles: Sequence[str]
    powers: Sequence[str]
    owns_database: bool


class _Held(NamedTuple):
    """A role that a login can use, or the login itself. With `by_grant`, the login must first grant itself the role."""

    login: str
    role: str
    is_superuser: bool
    bypasses: bool
    makes_roles: bool
    owns: bool
    owns_database: bool
    by_grant: bool

    def powers(self) -> list[str]:
        """Returns the powers of the role. A login with a role of the schema may have only those in `_allowed`."""
        if self.is_superuser:
            return [SUPERUSER]
        powers = ((BYPASSES, self.bypasses), (MAKES_ROLES, self.makes_roles), (OWNS, self.owns))
        found = [what for what, so in powers if so]
        return [*found, _member_of(self.role)] if self.role in UNRESTRICTED else found


def read(connection: Connection) -> list[Member]:
    """Returns every login that has a role of the schema, or has or can give itself an unrestricted role of Postgres."""
    found = []
    for login, those in groupby(_held(connection, None), key=attrgetter("login")):
        held = list(those)
        if any(h.role in UNRESTRICTED or (h.role in GROUPS and not h.by_grant) for h in held):
            found.append(Member(login, _ours(held), _all_powers(held), _owns_database(held)))
    return found


def of(connection: Connection, login: str) -> Member:
    """Returns one login. A power that comes from another role names this role."""
    held = _held(connection, login)
    powers = []
    for one in held:
        for power in one.powers():
            if one.by_grant:
                how = BECOMES.format(one.role)
                powers.append(how if power == _member_of(one.role) else f"{how}, which is {power}")
            elif one.role == login or power == _member_of(one.role):
                powers.append(power)
            else:
                powers.append(f"a member of {one.role!r}, which is {power}")
        if one.by_grant and one.role == OWNER:
            powers.append(BECOMES.format(OWNER))
    return Member(login, _ours(held), powers, _owns_database(held))


def _held(connection: Connection, login: str | None) -> list[_Held]:
    whom = "r.rolcanlogin" if login is None else "r.rolname = %(login)s::text"
    parameters = {"ours": list(GROUPS), "unrestricted": list(UNRESTRICTED), "login": login}
    rows = queries.fetch(connection, _SQL["held"].format(whom=whom) + _SQL["roles_held"], parameters)
    return [_Held._make(row) for row in rows]


def _ours(held: Sequence[_Held]) -> list[str]:
    return [h.role for h in held if h.role in GROUPS and not h.by_grant]


def _owns_database(held: Sequence[_Held]) -> bool:
    return any(h.owns_database and not h.by_grant for h in held)


def _all_powers(held: Sequence[_Held]) -> list[str]:
    """Returns the powers of several roles, each once. That of a superuser includes the others."""
    has = [power for h in held if not h.by_grant for power in h.powers()]
    if SUPERUSER in has:
        return [SUPERUSER]
    becomes = [BECOMES.format(h.role) for h in held if h.by_grant and (h.powers() or h.role == OWNER)]
    own = [power for power in (BYPASSES, MAKES_ROLES, OWNS) if power in has]
    return [*own, *becomes, *(power for power in has if power not in own)]


def also_in(connection: Connection, group: str) -> list[str]:
    """Returns the logins that can use the role `group` and have a role of the schema other than the owner's."""
    parameters = {"granted": [role for role in GROUPS if role != OWNER], "group": group, "owner": OWNER}
    rows = queries.fetch(connection, _SQL["held"].format(whom="r.rolcanlogin") + _SQL["also_in"], parameters)
    return [login for (login,) in rows]


def findings(members: Sequence[Member]) -> Iterator[str]:
    """Yields findings about combinations of roles and powers that `grants.grant` would refuse."""
    for member in members:
        bound = [role for role in member.roles if role != OWNER]
        powers = [power for power in member.powers if power not in _allowed(bound)]
        if bound and powers:
            yield f"login {member.login!r} is a member of {_and(bound)}, and {_and(powers)}"
        elif SUPERUSER not in member.powers:
            for roles, names in APART.items():
                if roles <= set(member.roles):
                    yield f"login {member.login!r} is {names} at once"


def notes(members: Sequence[Member]) -> Iterator[str]:
    """Yields notes about logins whose roles or powers are worth knowing, but are not a finding."""
    others = [m for m in members if not m.roles and m.powers and SUPERUSER not in m.powers]
    less = {_member_of(_READS_FILES), _member_of(_MAINTAINS)}
    found = {
        f"logins that may change everything, as members of {OWNER}": [
            m for m in members if OWNER in m.roles and SUPERUSER not in m.powers
        ],
        f"auditors of all tenants, {BYPASSES}": [m for m in members if AUDITOR in m.roles and BYPASSES in m.powers],
        "logins that write and, as auditors, can keep checkpoints waiting": [
            m for m in members if AUDITOR in m.roles and {APPLICATION, LOADER} & set(m.roles)
        ],
        "logins with a role of the schema that may drop the database, as its owner": [
            m for m in members if m.owns_database and set(m.roles) - {OWNER}
        ],
        "logins that may write to every table of the server": [m for m in others if set(m.powers) - less],
        "logins that may read every file of the server": [m for m in others if _member_of(_READS_FILES) in m.powers],
        "logins that may lock and rewrite every table of the server": [
            m for m in others if _member_of(_MAINTAINS) in m.powers
        ],
    }
    for what, those in found.items():
        if those:
            yield f"{what}: {', '.join(repr(m.login) for m in those)}"


def _allowed(roles: Sequence[str]) -> Sequence[str]:
    """Returns the powers that a login with these roles may have. An auditor of all tenants must bypass the policies."""
    return (BYPASSES,) if list(roles) == [AUDITOR] else ()


def _member_of(name: str) -> str:
    return f"a member of {name}"


def _and(parts: Sequence[str]) -> str:
    return " and ".join(parts)
