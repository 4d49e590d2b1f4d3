"""The commands that operate a database and the installation, and those that keep the session files of coding agents."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import compaction_store
from compaction_store.audit.safe_text import named
from compaction_store.cli import options, values
from compaction_store.cli.bundles import REFUSED, argument, misuse, option
from compaction_store.cli.options import ListOptions, PrintOptions, ReadOptions, ServerOptions, TenantOptions, Thread
from compaction_store.cli.output import Column, Output, line, note
from compaction_store.cli.service import ServiceOptions
from compaction_store.errors import CompactionStoreError
from compaction_store.models.roles import ROLES, Role
from compaction_store.module_data import ModuleData
from compaction_store.telemetry.prometheus import Gauge

if TYPE_CHECKING:
    from compaction_store.deploy.conditions import Remark
    from compaction_store.watching.watcher import Watcher, WatchReport

_MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "problem": ("PROBLEM", "bold red")}


def migrate_(
    check: bool = option("--check", default=False),
    partitions: int | None = option("--partitions N", default=None, min=2, max=1024),
    sql: bool = option("--sql", default=False),
    *,
    db: ServerOptions,
    printed: PrintOptions,
) -> None:
    # Imported here, because this import loads alembic, which is slow to load and which no other command needs.
    from compaction_store import migrate
    from compaction_store.postgres import tables

    if sql:
        if check:
            raise misuse("must not be given with --check", "--sql")
        typer.echo(migrate.sql(partitions=partitions), nl=False)
        return
    with db.reachable() as address:
        before = migrate.current(address)
        if check:
            migrate.check(address)
        else:
            migrate.upgrade(address, partitions=partitions)
    text = f"the schema is at {tables.REVISION}{' already' * (before == tables.REVISION)}"
    printed.output().said({"before": before, "revision": tables.REVISION}, text)


Service = Literal["rds", "aurora", "cloud-sql", "alloydb", "neon", "supabase", "azure"]
_ROLES = f"{'; '.join(f'{name} for {role.purpose}' for name, role in ROLES.items())}."


def grant(
    login: Annotated[str, argument("LOGIN", "The database login.")],
    role: Annotated[Role, argument("ROLE", _ROLES)],
    revoke: bool = option("--revoke", default=False),
    *,
    db: ServerOptions,
    printed: PrintOptions,
) -> None:
    from compaction_store.deploy import roles

    with db.reachable() as address:
        (roles.revoke if revoke else roles.grant)(address, login, role)
    text = f"{login} is {'no longer' if revoke else 'now'} a member of {ROLES[role].group}"
    printed.output().said({"login": login, "role": role, "granted": not revoke}, text)


def roles_(db: ServerOptions, printed: ListOptions) -> None:
    from compaction_store.deploy import roles

    out = printed.output()
    with db.reachable() as address:
        found = roles.members(address)
    rows = []
    for name, its in found.items():
        role = ROLES[name]
        logins = [f"{one.login} ({', '.join(one.powers)})" if one.powers else one.login for one in its]
        listed = {
            "role": name, "group": role.group, "purpose": role.purpose, "may": role.may,
            "members": [{"login": one.login, "powers": list(one.powers)} for one in its],
        }  # fmt: skip
        rows.append((listed, [name, ", ".join(logins) or "nobody", role.may]))
    out.rows(["role", Column("members", fold=True), Column("may", fold=True)], rows, none="no roles")


def distribute(
    shards: int | None = option("--shards N", default=None), *, db: ServerOptions, printed: PrintOptions
) -> None:
    from compaction_store.deploy import citus

    with db.reachable() as address:
        done = citus.distribute(address, shards=shards)
    text = f"the tables are {'' if done.now else 'already '}distributed over {done.nodes} nodes"
    printed.output().said({"distributed": done.now, "nodes": done.nodes}, text)


def rebalance(db: ServerOptions, printed: PrintOptions) -> None:
    from compaction_store.deploy import citus

    with db.reachable() as address:
        moved = citus.rebalance(address)
    printed.output().said({"moved": moved}, f"moved {moved} shards" if moved else "no shard had to be moved")


def doctor(
    platform: Service | None = option("--platform", default=None, show_default="recognized by its roles"),
    *,
    db: ServerOptions,
    printed: ListOptions,
) -> None:
    out = printed.output()
    wrong = False
    for check in _checks(db, platform):
        wrong = wrong or check.state == "problem"
        if out.as_json:
            out.json(check.as_dict())
        else:
            mark, style = _MARKS[check.state]
            out.text(f"{mark:<8} {check.what}", style if check.state == "problem" else None)
            if check.remedy is not None:
                out.text(f"         -> {check.remedy}", style)
    out.end()
    if wrong:
        raise typer.Exit(REFUSED)


def _checks(db: ServerOptions, platform: str | None) -> Iterator[Remark]:
    from compaction_store import embedded
    from compaction_store.deploy import doctor as diagnosis
    from compaction_store.deploy.conditions import Remark

    if (days := days_kept()) is not None and days < _YEARS:
        yield Remark(
            "transcripts", "note", f"Claude Code deletes its transcripts after {days} days (cleanupPeriodDays)",
            "keep them with compaction-store watch, or set more days in ~/.claude/settings.json",
        )  # fmt: skip
    try:
        with db.reachable() as address:
            if db.url is None:
                yield Remark("database", "note", f"the embedded Postgres in {embedded.default_folder()}")
            yield from diagnosis.diagnose(address, platform=platform)
    except CompactionStoreError as error:
        yield from diagnosis.installation()
        yield Remark("database", "problem", str(error), "see compaction-store docs embedded, or give a database's URL")


def tenants(db: ServerOptions, printed: ListOptions) -> None:
    from compaction_store.deploy import doctor

    out = printed.output()
    with db.reachable() as address:
        found = doctor.tenants(address)
    out.rows(["tenant"], (({"tenant": name}, [name]) for name in found), none="no tenants")


def url_(wait: bool = option("--wait", default=False), *, db: ServerOptions) -> None:
    with db.reachable() as address:
        out = Output(as_json=False)
        out.text(address)
        out.flush()
        if wait:
            note("the database is running; stop with Ctrl-C")
            while sys.stdin.read(4096):
                pass


# A setting of at least so many days keeps transcripts for good.
_YEARS = 3650
_TITLE = "# "


def folder() -> Path:
    """Returns the folder of the pages, which is in the package of an installed wheel, or beside it in a source tree."""
    package = Path(compaction_store.__file__).parent
    return package / "docs" if (package / "docs").is_dir() else package.parent / "docs"


def pages() -> dict[str, Path]:
    """Maps the name of every page, such as erasure or how-to/citus, to its file."""
    root = folder()
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.md"))}


def docs(page: str | None = argument("[PAGE]", default=None)) -> None:
    out = Output(as_json=False)
    found = pages()
    if page is None:
        width = max(map(len, found), default=0)
        for name, path in found.items():
            with path.open(encoding="utf-8") as stream:
                out.text(f"{name:<{width}}  {stream.readline().removeprefix(_TITLE).strip()}")
        return
    name = page.removeprefix("docs/").removesuffix(".md")
    if name not in found:
        raise misuse(f"there is no page {page!r}; run docs without a page to list all pages", "PAGE")
    for each in found[name].read_text(encoding="utf-8").splitlines():
        out.text(each)


_TEXTS = ModuleData(__file__)
# The longest that a look takes while the database is away.
_LONGEST_LOOK = 120.0


def watch(
    paths: list[Path] | None = argument("[PATHS]...", default=None),
    once: bool = option("--once", default=False),
    every: float = option("--every SECONDS", default=2.0, min=0.1),
    install: bool = option("--install", default=False),
    yes: bool = option("--yes", default=False),
    *,
    service: ServiceOptions,
    db: TenantOptions,
    printed: PrintOptions,
) -> None:
    from compaction_store.importers.formats import SESSIONS
    from compaction_store.watching import watcher

    if install:
        _install(paths or [], db, yes=yes)
        return
    home = [Path.home() / program.folder for program in SESSIONS.values()]
    roots = paths or (home if not once else [root for root in home if root.exists()])
    if not roots or not all(path.exists() for path in paths or ()):
        raise misuse(f"must be there, or without PATHS one of the folders {' and '.join(map(str, home))}", "PATHS")
    out = printed.output()
    with db.reachable() as address, ExitStack() as stack:
        # One watcher for each store and tenant.
        folder = watcher.state_folder() / hashlib.sha256(f"{address}\n{db.tenant}".encode()).hexdigest()[:16]
        # A watcher must not wait long for a database that is away: it looks at the files instead.
        waker = watcher.Waker(folder)
        opening = partial(
            compaction_store.Store.open, address, tenant=db.tenant, pool_size=2, actor=options.user_at_host(),
            deadline=5, connect_timeout=5, telemetry=stack.enter_context(service.running("watch", waker.stop)),
        )  # fmt: skip
        loop = watcher.Watcher(opening, roots, folder, waker, every, partial(_show, out, service))
        silence = every + _LONGEST_LOOK
        service.answer(partial(_gauges, loop), lambda: not loop.is_away, lambda: time.time() - loop.looked_at < silence)
        if not once:
            service.say(f"watching {', '.join(line(str(root)) for root in roots)}")
            loop.run()
        elif not loop.run_once():
            raise typer.Exit(REFUSED)


def _gauges(loop: Watcher) -> Iterator[Gauge]:
    yield "database_up", {}, int(not loop.is_away)
    yield "spool_bytes", {}, loop.spool.size
    yield "look_timestamp_seconds", {}, loop.looked_at


def _show(out: Output, service: ServiceOptions, report: WatchReport) -> None:
    for finding in report.findings:
        service.say(f"compaction-store: {line(finding)}", logging.WARNING)
    if out.as_json:
        out.json(asdict(report) | {"files": sorted(report.files)})
    else:
        lines, new, files = values.count(report.lines, "line"), report.messages, values.count(len(report.files), "file")
        spooled = f", {values.count(report.spooled, 'line')} on disk for later" if report.spooled else ""
        out.text(f"kept {lines} and {values.count(new, 'message')} of {files}{spooled}")
    out.flush()


def _install(paths: list[Path], db: TenantOptions, *, yes: bool) -> None:
    """Prints the file that makes the system run `watch`, and writes it if the user agrees."""
    program = shutil.which("compaction-store") or f"{Path(sys.executable).parent}/compaction-store"
    tenant = [] if db.tenant == "default" else ["--tenant", db.tenant]
    words = [program, "watch", *(str(path.absolute()) for path in paths), *tenant]
    system = "launchd" if sys.platform == "darwin" else "systemd"
    if system == "launchd":
        from xml.sax.saxutils import escape

        command = "".join(f"\n    <string>{escape(word)}</string>" for word in words)
    else:
        command = " ".join(f'"{word}"' for word in words).replace("%", "%%")
    texts = _TEXTS.values[system]
    text = texts["text"].replace("COMMAND", command)
    path = Path.home() / texts["path"]
    sys.stdout.write(text)
    sys.stdout.flush()
    if db.url is not None:
        note(texts["url"])
    if not yes and not sys.stdin.isatty():
        note(f"give --yes to write this to {path}")
        return
    options.confirm(f"Write this to {path}?", yes=yes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    note(f"written; start it with: {texts['start'].replace('PATH', str(path))}")


def hooks(
    what: Annotated[Literal["print", "notify"], argument("print|notify")],
    about: list[str] | None = argument("[AGENT]", default=None),
) -> None:
    if what == "notify":
        from compaction_store.watching import watcher

        # A hook must not fail the program that calls it, so this succeeds even if nobody watches.
        watcher.notify(watcher.state_folder())
        return
    agents = _TEXTS.values["hooks"]
    if about is None or len(about) != 1 or about[0] not in agents:
        raise misuse(f"must be {' or '.join(agents)}", "AGENT")
    sys.stdout.write(agents[about[0]])


def restore(
    thread: Thread,
    to: Annotated[Path, option("--to DIR")],
    generation: int | None = option("--generation N", default=None, min=1),
    skip_redacted: bool = option("--skip-redacted", default=False),
    *,
    call: ReadOptions,
) -> None:
    from compaction_store.watching import keeping

    out = call.output()
    with call.reader() as store:
        for done in keeping.restore(store, thread, to, generation=generation, skip_redacted=skip_redacted):
            if out.as_json:
                out.json({**done._asdict(), "path": str(done.path)})
                continue
            what = "restored" if done.is_new else "there already"
            skipped = f", without {values.count(done.skipped, 'redacted line')}" if done.skipped else ""
            out.text(f"{named(done.thread_id)}: {what}: {line(str(done.path))}, {done.size:,} bytes{skipped}")
    out.end()


def days_kept() -> int | None:
    """Returns after how many days Claude Code deletes its transcripts on this machine; None if it is not used here."""
    path = Path.home() / ".claude" / "settings.json"
    found: Any = None
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
    days = found.get("cleanupPeriodDays") if isinstance(found, dict) else None
    return (days if type(days) is int else 30) if path.parent.is_dir() else None
