"""Checks for documented pitfalls of managed Postgres services that the server or its address shows, with remedies."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.deploy.conditions import Remark, sayer
from compaction_store.models.roles import APPLICATION, AUDITOR, GROUPS, OWNER
from compaction_store.module_data import ModuleData
from compaction_store.postgres import queries
from compaction_store.postgres.schema import role_members


class Platform(NamedTuple):
    """A managed service, with the facts by which it is recognized, and with texts for remedies."""

    title: str
    #: The role by which a server of the service is recognized.
    group: str
    #: Where a setting of the server is changed.
    settings: str
    pooler: str
    #: Matches "host:port" of the service's pooler.
    pooled_at: str
    #: The address of the server without the pooler.
    direct: str
    remedy: str | None = None
    #: Whether the service stores the WAL and pages in its own way, so that fsync and full_page_writes have no effect.
    has_own_storage: bool = False
    #: Members of this role log in with tokens that are valid for minutes.
    iam_group: str | None = None
    #: The setting that refuses unencrypted connections.
    encrypts_by: str | None = None


_DATA = ModuleData(__file__).values
_SQL = _DATA["queries"]
_say = sayer(_DATA["remarks"])
PLATFORMS: Mapping[str, Platform] = {name: Platform(**facts) for name, facts in _DATA["services"].items()}

_ADMIN_SINCE = 160000
# The roles under which Supabase's API runs its requests, and the setting with the schemas that it exposes.
_API_ROLES = ("anon", "authenticated", "service_role")
_OF_SERVER: Mapping[str, str] = _DATA["of_server"]
_MADE_UP_FOR = ("fsync", "full_page_writes")


class Address(NamedTuple):
    """The host and port of the URL, and whether a pooler answers there."""

    host: str
    port: int
    is_pooled: bool


class Login(NamedTuple):
    """The connected login. `ungrantable` are the schema's roles, except the owner's, that it may not grant, or None."""

    name: str
    is_superuser: bool
    makes_roles: bool
    bypasses: bool
    may_create: bool
    server_version: int
    is_owner: bool | None
    ungrantable: Sequence[str] | None
    grants_instead: str | None


def recognized(connection: Connection) -> list[str]:
    """Returns the names of the services whose roles exist on the server."""
    groups = [platform.group for platform in PLATFORMS.values()]
    names = []
    for group, is_aurora in queries.fetch(connection, _SQL["groups"], (groups,)):
        found = [name for name, platform in PLATFORMS.items() if platform.group == group]
        names.append("aurora" if is_aurora and "aurora" in found else found[0])
    return names


def look(connection: Connection, address: Address, given: str | None) -> tuple[Platform | None, list[Remark]]:
    """Returns the service, given or recognized, and its checks."""
    names = recognized(connection)
    chosen = given or (names[0] if names else None)
    if chosen is None:
        return None, []
    platform = PLATFORMS[chosen]
    found = [*_recognition(names, given)]
    login = Login._make(queries.fetch(connection, _SQL["login"], (OWNER, list(GROUPS[1:]), APPLICATION))[0])
    if login.makes_roles and not login.is_superuser:
        is_migrated = queries.fetch(connection, _SQL["is_migrated"])[0][0]
        found += _administrator(login, is_migrated=is_migrated)
        found += _all_tenants(connection, login)
    found += _pooler(platform, address, login)
    found += _members(connection, platform)
    found += _encryption(connection, platform)
    if chosen == "supabase":
        found += _api(connection)
    return platform, found


def _recognition(names: Sequence[str], given: str | None) -> Iterator[Remark]:
    for name in names:
        found = PLATFORMS[name]
        remark = _say("looks_like", title=found.title, group=found.group)
        yield remark if found.remedy is None else dataclasses.replace(remark, state="note", remedy=found.remedy)
    if given is not None and PLATFORMS[given].group not in {PLATFORMS[name].group for name in names}:
        yield _say("looks_unlike", title=PLATFORMS[given].title, group=PLATFORMS[given].group)


def _administrator(login: Login, *, is_migrated: bool) -> Iterator[Remark]:
    found: list[Remark] = []
    if not is_migrated and not login.may_create:
        found.append(_say("may_not_create", login=login.name))
    by = "the administrator that migrated first" if login.grants_instead is None else login.grants_instead
    is_new = login.server_version >= _ADMIN_SINCE
    if login.is_owner is False:
        options = " WITH INHERIT TRUE, SET TRUE" if is_new else ""
        found.append(_say("no_owner", login=login.name, owner=OWNER, by=by, options=options))
    # Before Postgres 16, CREATEROLE allows granting every role.
    if login.ungrantable and is_new:
        found.append(_say("may_not_grant", login=login.name, by=by, roles=", ".join(login.ungrantable)))
    yield from found or [_say("may_migrate", login=login.name)]


def _all_tenants(connection: Connection, login: Login) -> Iterator[Remark]:
    """Checks whether a login can make a checkpoint of all tenants at once."""
    if login.is_owner is None:
        return
    members = role_members.read(connection)
    audits = [m.login for m in members if AUDITOR in m.roles and role_members.BYPASSES in m.powers]
    if audits:
        yield _say("all_tenants", login=audits[0])
    else:
        key = "no_auditor" if login.bypasses and login.server_version >= _ADMIN_SINCE else "no_bypass"
        yield _say(key, login=login.name)


def _pooler(platform: Platform, address: Address, login: Login) -> Iterator[Remark]:
    if not address.is_pooled and not re.search(platform.pooled_at, f"{address.host}:{address.port}"):
        return
    key = "pooled_migration" if login.makes_roles or login.is_owner else "pooled"
    yield _say(key, pooler=platform.pooler, direct=platform.direct)


def _members(connection: Connection, platform: Platform) -> Iterator[Remark]:
    """Checks logins that have a role of the schema and are also members of the service's groups."""
    for login in role_members.also_in(connection, platform.group):
        yield _say("powerful_login", login=login, group=platform.group)
    if platform.iam_group is None:
        return
    for login in role_members.also_in(connection, platform.iam_group):
        yield _say("token_login", login=login, group=platform.iam_group)


def _encryption(connection: Connection, platform: Platform) -> Iterator[Remark]:
    if platform.encrypts_by is None:
        return
    [(value,)] = queries.fetch(connection, _SQL["setting"], (platform.encrypts_by,))
    if value in {"0", "off"}:
        yield _say("unencrypted", setting=platform.encrypts_by, where=platform.settings)


def _api(connection: Connection) -> Iterator[Remark]:
    """Checks that requests of Supabase's API do not reach the schema."""
    may = [name for (name,) in queries.fetch(connection, _SQL["api_may"], (list(_API_ROLES),))]
    if may:
        yield _say("api_may", roles=", ".join(may))
    if queries.fetch(connection, _SQL["api_shows"]):
        yield _say("api_shows")
    elif not may:
        yield _say("api_safe")


def adapted(check: Remark, platform: Platform | None) -> Remark:
    """Returns the check with a remedy that a customer of the service can use."""
    if platform is None or check.state == "ok":
        return check
    if check.name in _MADE_UP_FOR and platform.has_own_storage:
        what = f"{check.name} is off: {platform.title} sets this for all customers, because it has its own storage"
        return Remark(check.name, "note", what)
    if check.name in _OF_SERVER:
        return dataclasses.replace(check, remedy=f"{check.name} = {_OF_SERVER[check.name]} {platform.settings}")
    if check.name == "data_checksums":
        return dataclasses.replace(check, remedy="customers cannot enable them: run verify --all regularly")
    return check
