"""The commands that operate a database and the installation, such as `migrate`, `doctor` and `docs`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import compaction_store
from compaction_store.cli import exits, watch
from compaction_store.cli.bundles import argument, option
from compaction_store.cli.exits import misuse
from compaction_store.cli.options import ListOptions, PrintOptions, ServerOptions
from compaction_store.cli.output import Column, Output, note
from compaction_store.errors import CompactionStoreError
from compaction_store.models.roles import ROLES, Role

if TYPE_CHECKING:
    from compaction_store.deploy.conditions import Remark

_MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "problem": ("PROBLEM", "bold red")}


def migrate_(
    check: bool = option("--check", default=False),
    partitions: int | None = option("--partitions N", default=None, min=2, max=1024),
    *,
    db: ServerOptions,
    printed: PrintOptions,
) -> None:
    # Imported here, because this import loads alembic, which is slow to load and which no other command needs.
    from compaction_store import migrate
    from compaction_store.postgres import tables

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
        raise typer.Exit(exits.REFUSED)


def _checks(db: ServerOptions, platform: str | None) -> Iterator[Remark]:
    from compaction_store import embedded
    from compaction_store.deploy import doctor as diagnosis
    from compaction_store.deploy.conditions import Remark

    if (days := watch.days_kept()) is not None and days < _YEARS:
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
    for line in found[name].read_text(encoding="utf-8").splitlines():
        out.text(line)
