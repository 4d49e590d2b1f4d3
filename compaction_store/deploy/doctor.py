"""Checks a database and this installation for problems that would break the store's promises, with remedies. It writes
nothing and reads no messages. A check that could not be made is never reported as ok.
"""

from __future__ import annotations

import platform
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, NamedTuple

import psycopg
from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store import errors
from compaction_store.deploy import conditions, platforms
from compaction_store.deploy.conditions import Remark, sayer
from compaction_store.errors import CompactionStoreError, PermissionDenied
from compaction_store.jsonable import time_text
from compaction_store.models.roles import GROUPS, OWNER, ROLES
from compaction_store.module_data import ModuleData
from compaction_store.postgres import queries, tables
from compaction_store.postgres.calling import connections
from compaction_store.postgres.schema import introspection, schema_check
from compaction_store.postgres.schema.schema_check import SchemaReport

_SQL = ModuleData(__file__).values
_say = sayer(_SQL["remarks"])
NEWEST_SERVER = 18
_PACKAGES = ("compaction-store", "sqlalchemy", "psycopg", "alembic", "tiktoken", "pydantic")
_PATIENCE = 30.0
_REQUIREMENT = re.compile(r"""([\w.-]+)[^;]*;.*\bextra == ["']([\w.-]+)["']""")
# The extras for the development of the package.
_OF_DEVELOPERS = frozenset({"adapters", "browser", "dev", "test"})
# Beyond the first, the times of the program and of the store no longer say what came first; beyond the second, `--since
# 7d` and checkpoints, which use this machine's clock, do not fit the store's times, by which terms and erasures go.
_SKEW_SECONDS, _WRONG_SECONDS = 1.0, 60.0
_FAR_SECONDS = 0.02
_SHORT_TIMEOUT_MS = 30_000


class Seen(NamedTuple):
    """The facts that were read from a server."""

    version: int
    settings: Mapping[str, str]
    login: str
    is_superuser: bool
    bypasses_policies: bool
    #: The roles of the schema that exist, and whether the login has each.
    roles: Mapping[str, bool]
    revision: str | None
    owners: frozenset[str]
    protected: SchemaReport
    in_recovery: bool
    encrypted: bool
    checks_server: bool
    is_local: bool
    pooled: bool
    now: datetime
    own: datetime
    round_trip: float
    around: Sequence[Remark]
    platform: platforms.Platform | None
    is_worker: bool


def diagnose(url: str, *, platform: str | None = None, connect_timeout: float = 10.0) -> Iterator[Remark]:
    """Yields the checks of this installation and of a database. `platform` is the managed service that runs the server,
    a key of `platforms.PLATFORMS`; if it is None, the service is recognized by its roles.
    """
    if platform is not None and platform not in platforms.PLATFORMS:
        raise errors.InvalidInput(f"platform must be one of {', '.join(platforms.PLATFORMS)}, not {platform!r}")
    yield from installation()
    try:
        seen = _look(url, platform, connect_timeout)
    except CompactionStoreError as error:
        yield _say("connection", error=error)
        return
    for look in (_server, _connection, _logging, _durability, _timeouts, _schema, _login):
        for check in look(seen):
            yield platforms.adapted(check, seen.platform)
    yield from seen.around


def installation() -> Iterator[Remark]:
    """Yields the checks of the installed packages."""
    found = ", ".join(f"{name} {there}" for name in _PACKAGES if (there := _version(name)))
    major, minor = divmod(psycopg.pq.version(), 10000)
    yield _say("packages", python=platform.python_version(), found=found, libpq=f"{major}.{minor}")
    extras = _extras()
    installed = [extra for extra, packages in extras.items() if all(map(_version, packages))]
    missing = ", ".join(extra for extra in extras if extra not in installed)
    key = "some_extras" if missing else "all_extras"
    yield _say(key, installed=", ".join(installed) or "none", missing=missing, install=errors.install("NAME"))


def _extras() -> dict[str, list[str]]:
    """Returns the extras that the package declares, in the order of their names, with the packages of each."""
    found: dict[str, list[str]] = {}
    with suppress(PackageNotFoundError):
        for requirement in requires("compaction-store") or ():
            if (parts := _REQUIREMENT.match(requirement)) is not None and parts[2] not in _OF_DEVELOPERS:
                found.setdefault(parts[2], []).append(parts[1])
    return dict(sorted(found.items()))


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _look(url: str, platform: str | None, connect_timeout: float) -> Seen:
    with connections.one_engine(url, connect_timeout) as engine:
        # The first call is not retried, so a wrong address fails at once. The second call has a longer deadline,
        # because it may read from a cluster's shards.
        connections.call_once(engine, lambda _: None)
        return connections.Connections(engine, _PATIENCE).call(lambda connection: _read(connection, platform))


def _read(connection: Connection, given: str | None) -> Seen:
    driver: psycopg.Connection[Any] = connection.driver_connection  # type: ignore[assignment]

    def rows(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return driver.execute(statement.encode(), parameters or None).fetchall()

    start = datetime.now(UTC)
    [(pid, now)] = rows("SELECT pg_backend_pid(), clock_timestamp()")
    end = datetime.now(UTC)
    settings = dict(rows("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", _SQL["settings"].split()))
    [(login, is_superuser, bypasses)] = rows(_SQL["login"])
    [(in_recovery,)] = rows("SELECT pg_is_in_recovery()")
    # Behind a pooler, the process id in the protocol is the pooler's own, and differs from that of the server.
    pooled = driver.info.backend_pid != pid
    address = platforms.Address(driver.info.host, driver.info.port, pooled)
    with queries.reading(connection):
        service, known = platforms.look(connection, address, given)
        around = [*conditions.look(connection), *conditions.on_cluster(connection), *known]
    return Seen(
        version=driver.info.server_version,
        settings=settings,
        login=login,
        is_superuser=is_superuser,
        bypasses_policies=bypasses,
        roles=dict(rows(_SQL["roles"], list(GROUPS))),
        revision=_revision(connection),
        owners=frozenset(owner for (owner,) in rows(_SQL["owners"], tables.SCHEMA)),
        protected=schema_check.check_schema(introspection.read(connection)),
        in_recovery=in_recovery,
        # On the way to the server, or to the pooler or proxy before it.
        encrypted=driver.pgconn.ssl_in_use,
        checks_server=driver.info.get_parameters().get("sslmode", "").startswith("verify-"),
        is_local=_is_own(driver.info.hostaddr),
        pooled=pooled,
        now=now,
        # Of the moments at which the server may have answered, the one that fits its clock best.
        own=min(max(start, now), end),
        round_trip=(end - start).total_seconds(),
        around=around,
        platform=service,
        is_worker=queries.is_worker(connection),
    )


def _revision(connection: Connection) -> str | None:
    """Returns the schema's revision, or an empty string if the login may not read it."""
    with suppress(psycopg.errors.InsufficientPrivilege):
        return queries.revision(connection)
    return ""


def _server(seen: Seen) -> Iterator[Remark]:
    major, minor = divmod(seen.version, 10000)
    if seen.version < queries.OLDEST_SERVER:
        yield _say("old_server", major=major, oldest=queries.OLDEST_SERVER // 10000)
    else:
        yield _say("new_server" if major > NEWEST_SERVER else "server", major=major, minor=minor)
    encoding = seen.settings.get("server_encoding", "unknown")
    if encoding != "UTF8":
        yield _say("encoding", encoding=encoding)
    if seen.in_recovery:
        yield _say("standby")
    elif seen.settings.get("default_transaction_read_only") == "on":
        yield _say("read_only")


def _is_own(address: str) -> bool:
    """Returns whether an address belongs to this machine, so that the connection crosses no network."""
    if not address:
        return True
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _connection(seen: Seen) -> Iterator[Remark]:
    yield _say("pooled" if seen.pooled else "not_pooled")
    if not seen.is_local and not (seen.encrypted and seen.checks_server):
        yield _say("unchecked" if seen.encrypted else "unencrypted")
    skew = abs((seen.now - seen.own).total_seconds())
    key = "wrong_clock" if skew > _WRONG_SECONDS else "other_clock" if skew > _SKEW_SECONDS else "clock"
    how = "ahead of" if seen.now > seen.own else "behind"
    yield _say(key, server=time_text(seen.now), own=time_text(seen.own), seconds=skew, how=how)
    yield _say("far" if seen.round_trip > _FAR_SECONDS else "near", milliseconds=seen.round_trip * 1000)


def _logging(seen: Seen) -> Iterator[Remark]:
    """Checks that the server's log gets no messages. A setting that the login may not see is not checked."""
    settings = seen.settings
    if settings.get("log_parameter_max_length_on_error", "0") != "0":
        yield _say("errors_logged")
    if settings.get("log_parameter_max_length") == "0":
        return
    for name, (nothing, everything) in _SQL["logs"].items():
        if (given := settings.get(name)) is not None and given not in nothing:
            yield _say("logged" if given in everything else "some_logged", name=name, given=given)


def _durability(seen: Seen) -> Iterator[Remark]:
    settings = seen.settings
    for name in ("fsync", "full_page_writes"):
        yield _is_on(settings, name)
    commit = settings.get("synchronous_commit", "unknown")
    yield _say("no_commit" if commit == "off" else "commit", commit=commit)
    if settings.get("data_checksums") == "off":
        yield _say("no_checksums")
    for name in ("zero_damaged_pages", "ignore_checksum_failure"):
        if settings.get(name) == "on":
            yield _say("damaged_pages", name=name)
    yield _is_on(settings, "autovacuum")


def _is_on(settings: Mapping[str, str], name: str) -> Remark:
    given = settings.get(name, "unknown")
    return _say("on", name=name) if given == "on" else _say(name, given=given)


def _timeouts(seen: Seen) -> Iterator[Remark]:
    for name in ("statement_timeout", "transaction_timeout"):
        limit = int(seen.settings.get(name, "0"))
        if 0 < limit < _SHORT_TIMEOUT_MS:
            yield _say("short_timeout", name=name, limit=limit)
    isolation = seen.settings.get("default_transaction_isolation")
    if isolation != "read committed":
        yield _say("isolation", isolation=isolation)


def _schema(seen: Seen) -> Iterator[Remark]:
    if seen.is_worker:
        return
    if seen.revision != tables.REVISION:
        key = {None: "no_schema", "": "unreadable_schema"}.get(seen.revision, "other_schema")
        yield _say(key, login=seen.login, revision=seen.revision, wanted=tables.REVISION)
        return
    yield _say("schema", revision=tables.REVISION)
    for finding in seen.protected.findings:
        yield Remark("protection", "problem", finding.what, _remedy(finding.what))
    if not seen.protected.findings:
        yield _say("protected")
    for note in seen.protected.notes:
        yield Remark("protection", "note", note)
    if seen.owners != {OWNER}:
        yield _say("owner", owners=", ".join(sorted(seen.owners)))


def _remedy(finding: str) -> str:
    remedies: dict[str, str] = _SQL["remedies"]
    beginning = next((name for name in ("everything belongs to ", "login ") if finding.startswith(name)), "")
    return remedies[beginning].format(owner=OWNER)


def _login(seen: Seen) -> Iterator[Remark]:
    if seen.revision is None:
        return
    if missing := [group for group in GROUPS if group not in seen.roles]:
        yield _say("no_roles", missing=", ".join(missing))
    held = sorted(name for name, role in ROLES.items() if seen.roles.get(role.group))
    if seen.is_superuser or seen.bypasses_policies:
        yield _say("superuser" if seen.is_superuser else "exempt", login=seen.login)
    elif seen.login in seen.owners:
        yield _say("owning_login", login=seen.login)
    else:
        key = "login" if held else "login_without_role"
        yield _say(key, login=seen.login, many="s" * (len(held) > 1), held=", ".join(held))


def tenants(url: str) -> list[str]:
    """Returns the tenants that have threads. Needs a login that policies do not restrict, such as a superuser."""
    return connections.run_once(url, _tenants)


def _tenants(connection: Connection) -> list[str]:
    driver: psycopg.Connection[Any] = connection.driver_connection  # type: ignore[assignment]
    free = driver.execute("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user").fetchone()
    if free is None or not free[0]:
        what = "the login must have BYPASSRLS to see all tenants: ALTER ROLE … BYPASSRLS, or name one tenant"
        raise PermissionDenied(what)
    rows = driver.execute("SELECT DISTINCT tenant FROM compaction_store.threads ORDER BY tenant").fetchall()
    return [tenant for (tenant,) in rows]
