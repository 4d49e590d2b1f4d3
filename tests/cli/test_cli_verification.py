"""`verify --all` records its result in the log of the tenant, where the audit pages and `events` show it."""

from __future__ import annotations

import os
from typing import Any

import psycopg
import pytest
from web.audited import visit

import compaction_store as cs
from cli.program import THREAD, Run
from compaction_store.arguments import LOG


def results(store: cs.Store) -> list[dict[str, Any]]:
    try:
        return [event.body for event in store.audit.events(LOG, kind="verification")]
    except cs.ThreadNotFound:
        return []


def test_the_result_is_an_event_of_the_tenant(run: Run, filled: cs.Store) -> None:
    filled.append("other", {"role": "user", "content": "hi"})
    threads = len(list(filled.threads(hidden=True)))
    run("verify", "--all")
    run("verify", "--all", "--level", "schema")
    first, second = results(filled)
    assert (first["level"], first["threads"], first["findings"]) == ("content", threads, 0)
    assert (second["level"], second["threads"], second["seconds"] > 0) == ("schema", threads, True)
    assert f"{threads:,} threads, 0 findings" in run("verify", "--all", "--table").stdout
    listed = run.json("events", "--kind", "verification")
    assert [event["thread_id"] for event in listed] == [LOG] * 3
    assert not filled.audit.verify(LOG).findings
    run("verify", THREAD)
    run("verify", "--all", "--after", THREAD)
    assert len(results(filled)) == 3


def test_a_tenant_without_threads_gets_no_log_and_stays_empty(run: Run) -> None:
    for _ in range(2):
        run("verify", "--all", "--tenant", "acme-suport", code=1)
        run("export", "--all", "--to", str(run.folder / "out"), "--tenant", "acme-suport", code=1)
    with cs.Store.open(run.url, tenant="acme-suport") as store:
        assert results(store) == []
        store.audit.record_verification(level="content", threads=0, findings=0)
    run("verify", "--all", "--tenant", "acme-suport", code=1)


def test_findings_make_the_pages_red_until_a_verification_has_none(
    run: Run, filled: cs.Store, superuser: psycopg.Connection[Any]
) -> None:
    def first_page() -> str:
        pages: list[str] = []

        async def steps(client: Any) -> None:
            pages.extend([(await client.get("/")).text, (await client.get("/integrity")).text])

        assert run.url is not None
        visit(run.url, steps)
        return "\n".join(pages)

    assert "None is recorded" in first_page()
    superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER USER")
    superuser.execute("UPDATE compaction_store.messages SET role = 'judge' WHERE seq = 1")
    superuser.execute("ALTER TABLE compaction_store.messages ENABLE ALWAYS TRIGGER refuse_change")
    superuser.execute("ALTER TABLE compaction_store.messages ENABLE ALWAYS TRIGGER refuse_truncate")
    run("verify", "--all", code=1)
    assert results(filled)[-1]["findings"] > 0
    assert "The verification of all threads at" in first_page()
    filled.audit.record_verification(level="content", threads=1, findings=0)
    page = first_page()
    assert "The verification of all threads at" not in page
    assert "Last verification of all threads" in page


@pytest.mark.superuser_store("it makes logins")
def test_a_login_that_only_reads_verifies_and_records_nothing(
    run: Run, filled: cs.Store, superuser: psycopg.Connection[Any]
) -> None:
    name = f"cs_nightly_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x' IN ROLE compaction_store_auditor".encode())
    try:
        for roles, stored in (("", 0), ("GRANT compaction_store_reviewer TO {}", 1)):
            if roles:
                superuser.execute(roles.format(name).encode())
            with cs.Store.open(run.url, role=name) as store:
                made = store.audit.record_verification(level="content", threads=2, findings=0, actor="nightly")
                assert (made is not None) is bool(stored)
            assert len(results(filled)) == stored
        with cs.Store.open(run.url, settings={"default_transaction_read_only": "on"}) as store:
            assert store.audit.record_verification(level="content", threads=2, findings=0) is None
    finally:
        superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


def test_an_export_of_all_threads_has_the_log_and_goes_to_another_database(
    run: Run, filled: cs.Store, other_url: str
) -> None:
    run("verify", "--all")
    folder = run.folder / "out"
    run("export", "--all", "--to", str(folder))
    bundles = sorted(folder.glob("*.jsonl"))
    assert len(bundles) == len(list(filled.threads(hidden=True))) + 1
    run("verify", *map(str, bundles))
    with cs.Store.open(other_url) as other:
        for bundle in bundles:
            with bundle.open("rb") as lines:
                other.load.bundle(lines)
        assert results(other) == results(filled)
        assert [thread.thread_id for thread in other.threads()] == [thread.thread_id for thread in filled.threads()]


def test_a_signed_log_of_checkpoints_and_a_report_agree_with_the_log(run: Run, filled: cs.Store) -> None:
    run("verify", "--all")
    key, log = str(run.folder / "audit.key"), str(run.folder / "log.jsonl")
    [made] = run.json("checkpoint", log, "--key", key, "--new-key", "example.org/audit")
    signed = ("--checkpoints", log, "--public-key", made["public_key"])
    assert made["threads"] == len(list(filled.threads(hidden=True))) + 1
    run("verify", "--all", "--level", "checkpoint", *signed)
    assert results(filled)[-1]["checkpoint"] == made["digest"]
    run("export", "--all", "--to", str(run.folder / "out"), *signed)
    run("report", "--since", "7d", "--to", str(run.folder / "r.html"), *signed)
