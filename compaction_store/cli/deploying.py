"""Setting a database up and finding out what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from compaction_store import embedded
from compaction_store.cli import exits
from compaction_store.cli.options import AsJson, Url
from compaction_store.cli.output import Output
from compaction_store.deploy import citus, roles
from compaction_store.deploy import doctor as diagnosis
from compaction_store.deploy.doctor import Check
from compaction_store.errors import CompactionStoreError
from compaction_store.postgres import engines, schema

_MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "problem": ("PROBLEM", "bold red")}


@contextmanager
def reached(url: str | None) -> Iterator[str]:
    """The database's URL, and for as long as it is wanted the embedded server where none is given."""
    if (given := engines.chosen_url(url)) is not None:
        yield given
        return
    share = embedded.join()
    try:
        yield share.url
    finally:
        share.close()


def migrate_(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 3 if it is not up to date.")
    ] = False,
    url: Url = None,
    as_json: AsJson = None,
) -> None:
    """Brings the database's schema up to date; does nothing where it is.

    Several may run at once. The login should be one that may make roles, and not the application's.
    """
    # It brings alembic, which no other verb needs and which takes longer to load than all the rest.
    from compaction_store import migrate  # noqa: PLC0415

    out = Output(as_json=as_json)
    with reached(url) as address:
        before = migrate.current(address)
        if check:
            migrate.check(address)
        else:
            migrate.upgrade(address)
    if out.as_json:
        out.json({"before": before, "revision": schema.REVISION})
    else:
        out.text(f"the schema is at {schema.REVISION}{' already' if before == schema.REVISION else ''}")


class Role(StrEnum):
    """Those of `grants`."""

    application = "application"
    auditor = "auditor"
    loader = "loader"
    owner = "owner"


def grant(
    login: Annotated[str, typer.Argument(metavar="LOGIN", help="Who logs in.", show_default=False)],
    role: Annotated[Role, typer.Argument(metavar="ROLE", help="application, auditor, loader or owner.")],
    revoke: Annotated[bool, typer.Option("--revoke", help="Take it away instead.")] = False,
    url: Url = None,
    as_json: AsJson = None,
) -> None:
    """Gives a login one of the schema's roles: what it needs for its work, and nothing else.

    application reads and calls the functions that write; it can change nothing stored. auditor reads. loader imports.
    owner migrates, and is no application. compaction-store docs threats says what each may do.
    """
    out = Output(as_json=as_json)
    with reached(url) as address:
        (roles.revoke if revoke else roles.grant)(address, login, role.value)
    if out.as_json:
        out.json({"login": login, "role": role.value, "granted": not revoke})
    else:
        out.text(f"{login} is {'no longer' if revoke else 'now'} a member of {roles.ROLES[role.value]}")


def distribute(
    shards: Annotated[
        int | None,
        typer.Option("--shards", metavar="N", help="How many; else what citus.shard_count says.", show_default=False),
    ] = None,
    url: Url = None,
    as_json: AsJson = None,
) -> None:
    """Spreads the tables of a migrated database over the nodes of its Citus cluster, with what is in them.

    The URL is the coordinator's, the login a superuser. All or nothing; done again, it changes nothing. Writers wait
    meanwhile. compaction-store docs how-to/citus says what else there is to do.
    """
    out = Output(as_json=as_json)
    with reached(url) as address:
        done = citus.distribute(address, shards=shards)
    if out.as_json:
        out.json({"distributed": done.now, "nodes": done.nodes})
    else:
        out.text(f"the tables are spread over {done.nodes} nodes{'' if done.now else ' already'}")


def doctor(url: Url = None, as_json: AsJson = None) -> None:
    """Looks at the installation and the database: durability, versions, roles, poolers; what is wrong, and the remedy.

    The exit code is 1 when there is a problem.
    """
    out = Output(as_json=as_json)
    wrong = False
    for check in _checks(url):
        wrong = wrong or check.state == "problem"
        if out.as_json:
            out.json({"name": check.name, "state": check.state, "what": check.what, "remedy": check.remedy})
        else:
            mark, style = _MARKS[check.state]
            out.text(f"{mark:<8} {check.what}", style if check.state == "problem" else None)
            if check.remedy is not None:
                out.text(f"         -> {check.remedy}", style)
    if wrong:
        raise typer.Exit(exits.REFUSED)


def _checks(url: str | None) -> Iterator[Check]:
    try:
        with reached(url) as address:
            if url is None:
                yield Check("database", "note", f"the embedded Postgres in {embedded.default_folder()}")
            yield from diagnosis.diagnose(address)
    except CompactionStoreError as error:
        yield from diagnosis.installation()
        yield Check("database", "problem", str(error), "see compaction-store docs embedded, or give a database's URL")
