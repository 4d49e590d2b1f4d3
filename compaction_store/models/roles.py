"""The database roles: one row each, for the grants, the checks, the errors and the help. A test compares the SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from compaction_store.module_data import ModuleData

Role = Literal["owner", "application", "loader", "auditor", "reviewer", "eraser", "custodian"]


class RoleRow(NamedTuple):
    """One of the schema's roles. Nobody can log in as a role; logins become members of it."""

    #: The role in Postgres.
    group: str
    purpose: str
    may: str
    #: The SQL functions that need this role, because an application may not call them.
    functions: Sequence[str] = ()
    #: The roles that a member must not also have. A login that makes compactions must not change tables or review.
    apart_from: Sequence[Role] = ()
    #: Whether a member locks threads for the time of a transaction, so that one which it forgets stops their writers.
    locks_threads: bool = True


_ROWS: Any = ModuleData(__file__).values
ROLES: dict[Role, RoleRow] = {name: RoleRow(**row) for name, row in _ROWS.items()}
#: The roles in Postgres.
GROUPS = tuple(role.group for role in ROLES.values())
OWNER, APPLICATION, LOADER, AUDITOR, REVIEWER, *_ = GROUPS
#: The pairs of roles that no login may have together, in words.
APART = {
    frozenset({role.group, ROLES[other].group}): f"{name} and {other}"
    for name, role in ROLES.items()
    for other in role.apart_from
}
