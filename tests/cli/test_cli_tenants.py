"""Verbs over all tenants, and events over all threads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.superuser_edits import unlock

import compaction_store as cs
from cli.program import THREAD, Run


@pytest.fixture
def two(filled: cs.Store) -> cs.Store:
    filled.custody.hold(THREAD, reason="claim 815", actor="counsel")
    with pytest.raises(cs.Held):
        filled.custody.redact(THREAD, [2, 3], reason="case 9", actor="ben")
    acme = filled.of_tenant("acme")
    acme.append("t-9", [{"role": "user", "content": "the tide of acme " * 20}] * 4)
    acme.compact("t-9", lambda ctx: ctx.compact(1, 2, "of acme"), actor="acme")
    acme.custody.hold("t-9", reason="law")
    return filled


@pytest.fixture
def auditor(url: str, superuser: psycopg.Connection[Any]) -> Iterator[str]:
    """The URL of an auditor, who sees one tenant at a time."""
    name = f"cs_cli_auditor_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE compaction_store_auditor".encode())
    yield sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
    superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


@pytest.mark.parametrize(
    "arguments", [("threads",), ("compactions",), ("events",), ("search", "tide")], ids=lambda given: given[0]
)
@pytest.mark.usefixtures("two")
def test_all_tenants_are_listed_one_after_the_other(run: Run, arguments: tuple[str, ...]) -> None:
    own = [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]
    theirs = [json.loads(line) for line in run(*arguments, "--json", "--tenant", "acme").stdout.splitlines()]
    both = [json.loads(line) for line in run(*arguments, "--json", "--all-tenants").stdout.splitlines()]
    assert theirs
    assert both == [{"tenant": "acme"} | line for line in theirs] + [{"tenant": "default"} | line for line in own]
    shown = run(*arguments, "--table", "--all-tenants").stdout
    assert "acme" in shown
    assert "default" in shown
    assert THREAD in shown


@pytest.mark.usefixtures("two")
def test_events_of_all_threads_are_filtered(run: Run) -> None:
    lines = [json.loads(line) for line in run("events", "--json").stdout.splitlines()]
    assert [(line["thread_id"], line["kind"]) for line in lines] == [(THREAD, "hold"), (THREAD, "refusal")]
    for filters, kinds in (
        (("--kind", "refusal"), ["refusal"]), (("--actor", "counsel"), ["hold"]),
        (("--since", "1h"), ["hold", "refusal"]),
        (("--until", "2001-01-01"), []), (("--limit", "1"), ["hold"]), ((THREAD, "--actor", "ben"), ["refusal"]),
    ):  # fmt: skip
        found = [json.loads(line) for line in run("events", *filters, "--json").stdout.splitlines()]
        assert [line["kind"] for line in found] == kinds, filters
    assert "refused to redact" in run("events", "--table").stdout
    assert "2 to 3" in run("events", "--table").stdout or "2-3" in run("events", "--table").stdout


@pytest.mark.usefixtures("two")
def test_all_tenants_need_a_login_that_may_see_them(run: Run, auditor: str) -> None:
    done = run("threads", "--all-tenants", "--url", auditor, code=3)
    assert "must have BYPASSRLS to see all tenants" in done.stderr
    assert done.stdout == ""


@pytest.mark.usefixtures("two")
def test_a_thread_is_one_tenants(run: Run) -> None:
    for arguments in (("events", THREAD), ("compactions", THREAD), ("search", "x", "--thread", THREAD)):
        done = run(*arguments, "--all-tenants", code=2)
        assert "must not be given with --all-tenants" in " ".join(done.stderr.split())


@pytest.mark.usefixtures("two")
def test_all_tenants_are_verified(run: Run, auditor: str, superuser: psycopg.Connection[Any]) -> None:
    reports = [
        json.loads(line) for line in run("verify", "--all-tenants", "--level", "schema", "--json").stdout.splitlines()
    ]
    assert [(r.get("tenant"), r["thread_id"], r["findings"]) for r in reports] == [
        (None, None, []), ("acme", "t-9", []), ("default", THREAD, []),
    ]  # fmt: skip
    unlock(superuser)
    superuser.execute("UPDATE compaction_store.messages SET role = 'system' WHERE tenant = 'acme' AND seq = 2")
    done = run("verify", "--all-tenants", "--table", code=1)
    assert "acme: t-9" in done.stdout
    assert f"default: {THREAD}" in done.stdout
    assert "2 threads, 2 findings" in done.stdout
    for wrong in (["--all"], [THREAD], ["--after", "t"]):
        run("verify", "--all-tenants", *wrong, code=2)
    denied = run("verify", "--all-tenants", "--url", auditor, code=3)
    assert "must have BYPASSRLS to see all tenants" in denied.stderr
