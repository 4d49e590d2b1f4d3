"""Checks a database and this installation for problems that would break the store's promises, with remedies.

The doctor writes nothing, and reads no messages. A server that cannot be reached is a finding too. If the login may not
see something, the check says so. A check that could not be made is never reported as ok.
"""

from __future__ import annotations

import platform
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, NamedTuple

import psycopg
from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store import errors
from compaction_store.deploy import conditions, platforms
from compaction_store.deploy.conditions import Remark
from compaction_store.errors import CompactionStoreError, PermissionDenied
from compaction_store.models.roles import GROUPS, OWNER, ROLES
from compaction_store.module_data import ModuleData
from compaction_store.postgres import queries, tables
from compaction_store.postgres.calling import connections
from compaction_store.postgres.schema import introspection, schema_check
from compaction_store.postgres.schema.schema_check import SchemaReport

_SQL = ModuleData(__file__).values
NEWEST_SERVER = 18
_PACKAGES = ("compaction-store", "sqlalchemy", "psycopg", "alembic", "tiktoken", "pydantic")
_PATIENCE = 30.0
_REQUIREMENT = re.compile(r"""([\w.-]+)[^;]*;.*\bextra == ["']([\w.-]+)["']""")
# The extras for the development of the package.
_OF_DEVELOPERS = frozenset({"adapters", "browser", "dev", "test"})
_SETTINGS = (
    "fsync", "full_page_writes", "synchronous_commit", "data_checksums", "default_transaction_read_only",
    "default_transaction_isolation", "statement_timeout", "transaction_timeout", "max_connections", "autovacuum",
    "zero_damaged_pages", "ignore_checksum_failure", "server_encoding", "log_statement", "log_min_duration_statement",
    "log_parameter_max_length",
)  # fmt: skip
_SKEW_SECONDS = 5.0
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
    encrypted: bool | None
    is_local: bool
    pooled: bool
    skew: float
    round_trip: float
    around: Sequence[Remark]
    platform: platforms.Platform | None
    is_worker: bool


def diagnose(url: str, *, platform: str | None = None, connect_timeout: float = 10.0) -> Iterator[Remark]:
    """Yields the checks of this installation and of a database.

    `platform` is the managed service that runs the server, a key of `platforms.PLATFORMS`. If it is None, the service
    is recognized by its roles.
    """
    platforms.check_name(platform)
    yield from installation()
    try:
        seen = _look(url, platform, connect_timeout)
    except CompactionStoreError as error:
        yield Remark("connection", "problem", str(error), "start the server, or correct the URL")
        return
    for look in (_server, _connection, _logging, _durability, _timeouts, _schema, _login):
        for check in look(seen):
            yield platforms.adapted(check, seen.platform)
    yield from seen.around


def installation() -> Iterator[Remark]:
    """Yields the checks of the installed packages."""
    found = ", ".join(f"{name} {there}" for name in _PACKAGES if (there := _version(name)))
    yield Remark("packages", "ok", f"Python {platform.python_version()}, {found}, libpq {_libpq()}")
    extras = _extras()
    installed = [extra for extra, packages in extras.items() if all(map(_version, packages))]
    missing = [extra for extra in extras if extra not in installed]
    has = f"installed: {', '.join(installed) or 'none'}"
    if missing:
        remedy = f"if you need some of them: {errors.install('NAME')}"
        yield Remark("extras", "note", f"{has}; not installed: {', '.join(missing)}", remedy)
    else:
        yield Remark("extras", "ok", has)


def _extras() -> dict[str, list[str]]:
    """Returns the extras that the package declares, in the order of their names, with the packages of each."""
    found: dict[str, list[str]] = {}
    try:
        declared = requires("compaction-store") or ()
    except PackageNotFoundError:
        return {}
    for requirement in declared:
        if (parts := _REQUIREMENT.match(requirement)) is not None and parts[2] not in _OF_DEVELOPERS:
            found.setdefault(parts[2], []).append(parts[1])
    return dict(sorted(found.items()))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _libpq() -> str:
    number = psycopg.pq.version()
    return f"{number // 10000}.{number % 10000}"


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

    start = time.monotonic()
    [(pid, now)] = rows("SELECT pg_backend_pid(), clock_timestamp()")
    round_trip = time.monotonic() - start
    skew = (now - datetime.now(UTC)).total_seconds()
    settings = dict(rows("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", list(_SETTINGS)))
    [(login, is_superuser, bypasses)] = rows(_SQL["login"])
    [(in_recovery,)] = rows("SELECT pg_is_in_recovery()")
    tls = rows("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    # Behind a pooler, the process id in the protocol is the pooler's own, and differs from that of the server.
    pooled = driver.info.backend_pid != pid
    address = platforms.Address(driver.info.host, driver.info.port, pooled)
    service, around = _around(connection, address, given)
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
        encrypted=tls[0][0] if tls else None,
        is_local=_is_own(driver.info.hostaddr),
        pooled=pooled,
        skew=skew,
        round_trip=round_trip,
        around=around,
        platform=service,
        is_worker=queries.is_worker(connection),
    )


def _around(
    connection: Connection, address: platforms.Address, given: str | None
) -> tuple[platforms.Platform | None, list[Remark]]:
    with queries.reading(connection):
        service, known = platforms.look(connection, address, given)
        return service, [*conditions.look(connection), *conditions.on_cluster(connection), *known]


def _revision(connection: Connection) -> str | None:
    """Returns the schema's revision, or an empty string if the login may not read it."""
    try:
        return queries.revision(connection)
    except psycopg.errors.InsufficientPrivilege:
        return ""


def _server(seen: Seen) -> Iterator[Remark]:
    major = seen.version // 10000
    if seen.version < queries.OLDEST_SERVER:
        oldest = queries.OLDEST_SERVER // 10000
        yield Remark("server", "problem", f"Postgres {major}", f"upgrade it: {oldest} or newer is needed")
    elif major > NEWEST_SERVER:
        yield Remark("server", "note", f"Postgres {major} is newer than any that this version was tested with")
    else:
        yield Remark("server", "ok", f"Postgres {major}.{seen.version % 10000}")
    encoding = seen.settings.get("server_encoding", "unknown")
    if encoding != "UTF8":
        remedy = "create a database with ENCODING 'UTF8' TEMPLATE template0"
        yield Remark("encoding", "problem", f"the database's encoding is {encoding}", remedy)
    if seen.in_recovery:
        remedy = "to write, connect to the primary: target_session_attrs=read-write in the URL"
        yield Remark("primary", "note", "this is a standby: it can be read and verified, but not written", remedy)
    elif seen.settings.get("default_transaction_read_only") == "on":
        remedy = "ALTER ROLE or ALTER DATABASE … SET default_transaction_read_only = off"
        yield Remark("primary", "problem", "transactions are read-only by default", remedy)


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
    if seen.pooled:
        what = "connected through a pooler; transaction and session mode work, because no session state is used"
        yield Remark("pooler", "ok", what)
    else:
        yield Remark("pooler", "ok", "connected without a pooler")
    if seen.encrypted is False and not seen.is_local and not seen.pooled:
        yield Remark(
            "encryption", "problem", "messages cross the network unencrypted", "add sslmode=verify-full to the URL"
        )
    if seen.encrypted is None:
        yield Remark("encryption", "note", "cannot see whether the connection is encrypted")
    if abs(seen.skew) > _SKEW_SECONDS:
        what = (
            f"the server's clock is {abs(seen.skew):,.0f} s {'ahead of' if seen.skew > 0 else 'behind'} this machine's"
        )
        yield Remark("clock", "note", what, "run a time service such as NTP on both; created_at is the server's time")
    if seen.round_trip > _FAR_SECONDS:
        remedy = "an append takes one round trip: run the application near the server"
        yield Remark("distance", "note", f"a round trip takes {seen.round_trip * 1000:,.0f} ms", remedy)
    else:
        yield Remark("distance", "ok", f"a round trip takes {seen.round_trip * 1000:.1f} ms")


def _logging(seen: Seen) -> Iterator[Remark]:
    """Checks that the server's log gets no messages. A setting that the login may not see is not checked."""
    settings = seen.settings
    if settings.get("log_parameter_max_length") == "0":
        return
    if (logged := settings.get("log_statement", "none")) in ("mod", "all"):
        remedy = "ALTER SYSTEM SET log_statement = 'none', or log_parameter_max_length = 0"
        yield Remark("logging", "problem", f"log_statement is {logged}: the server's log has messages", remedy)
    elif settings.get("log_min_duration_statement", "-1") != "-1":
        what = "the server logs slow statements with their parameters, which are messages"
        yield Remark("logging", "note", what, "ALTER SYSTEM SET log_parameter_max_length = 0")


def _durability(seen: Seen) -> Iterator[Remark]:
    settings = seen.settings
    for name, lost in (
        ("fsync", "a crash of the machine may destroy the database"),
        ("full_page_writes", "a crash of the machine may leave torn pages"),
    ):
        yield from _is_on(settings, name, lost, f"{name} = on in postgresql.conf")
    commit = settings.get("synchronous_commit", "unknown")
    if commit == "off":
        what = "synchronous_commit is off: a crash may lose messages that were acknowledged"
        yield Remark("synchronous_commit", "problem", what, "ALTER DATABASE … SET synchronous_commit = on")
    else:
        yield Remark("synchronous_commit", "ok", f"synchronous_commit is {commit}")
    if settings.get("data_checksums") == "off":
        what = "data checksums are off: only verify finds errors of the disk"
        yield Remark("data_checksums", "note", what, "stop the server and run pg_checksums --enable")
    for name in ("zero_damaged_pages", "ignore_checksum_failure"):
        if settings.get(name) == "on":
            what = f"{name} is on: damaged data is read without an error"
            yield Remark(name, "problem", what, f"{name} = off in postgresql.conf")
    yield from _is_on(
        settings, "autovacuum", "the table of heads grows, and erased content stays on disk", "autovacuum = on"
    )


def _is_on(settings: Mapping[str, str], name: str, lost: str, remedy: str) -> Iterator[Remark]:
    if settings.get(name) == "on":
        yield Remark(name, "ok", f"{name} is on")
    else:
        yield Remark(name, "problem", f"{name} is {settings.get(name, 'unknown')}: {lost}", remedy)


def _timeouts(seen: Seen) -> Iterator[Remark]:
    for name in ("statement_timeout", "transaction_timeout"):
        limit = int(seen.settings.get(name, "0"))
        if 0 < limit < _SHORT_TIMEOUT_MS:
            what = f"{name} is {limit:,} ms: it may cancel a load, an erasure or a large page"
            yield Remark(
                name, "note", what, f"ALTER ROLE … SET {name} = 0; every call of a store has a deadline anyway"
            )
    isolation = seen.settings.get("default_transaction_isolation")
    if isolation != "read committed":
        what = f"transactions are {isolation} by default: writers of one thread retry instead of waiting"
        remedy = "ALTER ROLE … SET default_transaction_isolation = 'read committed'"
        yield Remark("isolation", "note", what, remedy)


def _schema(seen: Seen) -> Iterator[Remark]:
    if seen.is_worker:
        return
    if seen.revision is None:
        yield Remark("schema", "problem", "the database has no compaction_store schema", "run compaction-store migrate")
        return
    if seen.revision == "":
        yield Remark("schema", "note", f"{seen.login} may not read the schema's revision")
        return
    if seen.revision != tables.REVISION:
        what = f"the schema is at revision {seen.revision}, this version needs {tables.REVISION}"
        yield Remark(
            "schema", "problem", what, "run compaction-store migrate, or install the version that fits the database"
        )
        return
    yield Remark("schema", "ok", f"the schema is at revision {tables.REVISION}")
    for finding in seen.protected.findings:
        yield Remark("protection", "problem", finding.what, _remedy(finding.what))
    if not seen.protected.findings:
        yield Remark("protection", "ok", "triggers, policies, functions and grants are as shipped")
    for note in seen.protected.notes:
        yield Remark("protection", "note", note)
    if seen.owners != {OWNER}:
        what = f"the tables belong to {', '.join(sorted(seen.owners))}, which can change them without a record"
        remedy = "migrate with a login that may create roles, or use another login for the application"
        yield Remark("owner", "note", what, remedy)


def _remedy(finding: str) -> str:
    if finding.startswith("everything belongs to "):
        return (
            f"GRANT {OWNER} TO it, as docs/how-to/managed.md says; then export all threads, downgrade to"
            " base, migrate again and import the threads"
        )
    if finding.startswith("login "):
        return "revoke what it must not have, or give the role to another login: compaction-store grant"
    return "find out who changed it, restore it from a newly migrated database, then run verify --all"


def _login(seen: Seen) -> Iterator[Remark]:
    if seen.revision is None:
        return
    missing = [group for group in GROUPS if group not in seen.roles]
    if missing:
        what = f"these roles are missing: {', '.join(missing)}"
        yield Remark("roles", "note", what, "migrate with a login that may create roles (CREATEROLE)")
    if seen.is_superuser or seen.bypasses_policies:
        why = "a superuser" if seen.is_superuser else "exempt from row-level security"
        remedy = "use another login for the application: compaction-store grant LOGIN application"
        yield Remark("login", "note", f"{seen.login} is {why}: the policies do not restrict it", remedy)
    elif seen.login in seen.owners:
        remedy = "use another login for the application: compaction-store grant LOGIN application"
        yield Remark("login", "note", f"{seen.login} owns the tables and can remove their protection", remedy)
    else:
        held = [name for name, role in ROLES.items() if seen.roles.get(role.group)]
        if held:
            what = f"{seen.login} has the role{'s' if len(held) > 1 else ''} {', '.join(sorted(held))}"
            yield Remark("login", "ok", what)
        else:
            remedy = f"run as the owner: compaction-store grant {seen.login} application"
            yield Remark("login", "problem", f"{seen.login} has none of the roles", remedy)


def tenants(url: str) -> list[str]:
    """Returns the tenants that have threads. Needs a login that policies do not restrict, such as a superuser."""
    return connections.run_once(url, _tenants)


def _tenants(connection: Connection) -> list[str]:
    driver: psycopg.Connection[Any] = connection.driver_connection  # type: ignore[assignment]
    free = driver.execute("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user").fetchone()
    if free is None or not free[0]:
        raise PermissionDenied(
            "the login must have BYPASSRLS to see all tenants: ALTER ROLE … BYPASSRLS, or name one tenant"
        )
    rows = driver.execute("SELECT DISTINCT tenant FROM compaction_store.threads ORDER BY tenant").fetchall()
    return [tenant for (tenant,) in rows]
