"""The database roles of the schema: one row each, which the grants, the checks, the errors and the help read.

The SQL that makes the roles and grants their rights is plain text. A test compares it with these rows.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Role = Literal["owner", "application", "loader", "auditor", "reviewer", "eraser", "custodian"]


class RoleRow(NamedTuple):
    """One of the schema's roles. Nobody can log in as a role; logins become members of it."""

    #: The role in Postgres.
    group: str
    purpose: str
    may: str
    #: The SQL functions that need this role, because an application may not call them.
    functions: tuple[str, ...] = ()
    #: The roles that a member must not also have. A login that makes compactions must not change tables or review.
    apart_from: tuple[Role, ...] = ()
    #: Whether a member locks threads for the time of a transaction, so that one which it forgets stops their writers.
    locks_threads: bool = True


ROLES: dict[Role, RoleRow] = {
    "owner": RoleRow(
        "compaction_store_owner",
        "migrations",
        "change the schema, and everything in it",
        apart_from=("application",),
        # Migrations take as long as they need.
        locks_threads=False,
    ),
    "application": RoleRow(
        "compaction_store_app",
        "the program",
        "read as the policies allow, and call the functions that write; it cannot change a table directly",
    ),
    "loader": RoleRow(
        "compaction_store_loader",
        "imports",
        "call the functions that read, and those that add whole threads and messages to the tenant they name; it may"
        " read no table but the schema's revision, and insert only into the staging table of imports",
        functions=("find_load", "load", "load_threads", "observe", "begin_import", "finish_import"),
    ),
    "auditor": RoleRow(
        "compaction_store_auditor",
        "audits, checkpoints over a tenant",
        "read as the policies allow",
        functions=("checkpoint_turn",),
        # Its transaction stays open while checkpoints are signed.
        locks_threads=False,
    ),
    "reviewer": RoleRow(
        "compaction_store_reviewer",
        "verdicts on compactions",
        "record verdicts, and results of verifications in the log of a tenant, and read nothing but the schema's"
        " revision",
        functions=("record_verdict",),
        apart_from=("application", "loader"),
    ),
    "eraser": RoleRow(
        "compaction_store_eraser",
        "erasures that people ask for",
        "erase messages and threads within holds and retentions, and read counters and events of a thread, but no"
        " messages",
        functions=("redact", "erase"),
    ),
    "custodian": RoleRow(
        "compaction_store_custodian",
        "counsel, records officers",
        "hold, release and retain threads, and read the same; together with `eraser`, override a hold or a retention",
        functions=("record_event",),
    ),
}
#: The roles in Postgres.
GROUPS = tuple(role.group for role in ROLES.values())
OWNER, APPLICATION, LOADER, AUDITOR, REVIEWER, *_ = GROUPS
#: The pairs of roles that no login may have together, in words.
APART = {
    frozenset({role.group, ROLES[other].group}): f"{name} and {other}"
    for name, role in ROLES.items()
    for other in role.apart_from
}
