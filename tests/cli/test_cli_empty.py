"""A tenant without threads, or a log that says more than the store, is never a success."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.keys import key_of
from support.superuser_edits import WITH_NAMES

import compaction_store as cs
from cli.program import THREAD, Run
from compaction_store.reporting import envelope
from compaction_store.reporting.document import ReportDocument

OTHER = ("--tenant", "acme-suport")


@pytest.fixture
def signed(run: Run, filled: cs.Store) -> tuple[str, ...]:
    """The options for the checkpoints of the tenant default."""
    filled.append("t-2", {"role": "user", "content": "hi"})
    log, key = str(run.folder / "log.jsonl"), str(run.folder / "audit.key")
    [made] = run.json("checkpoint", log, "--key", key, "--new-key", "example.org/audit")
    return "--checkpoints", log, "--public-key", made["public_key"]


def test_a_tenant_without_threads_is_refused_unless_that_is_right(run: Run, filled: cs.Store) -> None:
    key = str(run.folder / "audit.key")
    run("checkpoint", str(run.folder / "log"), "--key", key, "--new-key", "a/b")
    for arguments in (
        ("verify", "--all"), ("verify", "--all", "--level", "schema"), ("verify", "--all", "--json"),
        ("report", "--since", "7d", "--to", str(run.folder / "r.html")),
        ("export", "--all", "--to", str(run.folder / "out")),
        ("checkpoint", str(run.folder / "other"), "--key", key),
    ):  # fmt: skip
        done = run(*arguments, *OTHER, code=1)
        assert "no threads" in done.stderr, arguments
        assert run(*arguments, *OTHER, "--allow-empty").returncode == 0
        assert "no threads" not in run(*(part.replace("other", "log") for part in arguments)).stderr
    assert cs.CheckpointLog(run.folder / "other", _public(key)).last() is not None
    assert filled.thread(THREAD).last_seq == 25


def _public(key: str) -> bytes:
    name, private = Path(key).read_text(encoding="ascii").split()
    return cs.SigningKey.from_bytes(name, bytes.fromhex(private)).key


def test_a_tenant_without_threads_is_not_signed(run: Run) -> None:
    key, log = run.folder / "audit.key", run.folder / "log"
    run("checkpoint", str(log), "--key", str(key), "--new-key", "a/b", *OTHER, code=1)
    assert not log.exists()
    assert not key.exists()


@pytest.mark.parametrize("tenant", ["empty", "other"])
def test_the_checkpoints_of_another_tenant_are_a_finding(
    run: Run, url: str, signed: tuple[str, ...], tenant: str
) -> None:
    if tenant == "other":
        with cs.Store.open(url, tenant="other") as store:
            store.append("t-1", {"role": "user", "content": "hi"})
    its = ("--tenant", tenant, *signed)
    found = run.json("verify", "--all", "--level", "checkpoint", *its, code=1)
    assert "those of example.org/audit/default, and do not cover this tenant" in found[-1]["findings"][0]["what"]
    if tenant == "other":
        [one] = run.json("verify", "t-1", "--level", "checkpoint", *its, code=1)
        assert "do not cover this tenant" in one["findings"][0]["what"]
    run("report", "--since", "7d", "--to", str(run.folder / "r.html"), *its, code=1)
    run("export", "--all", "--to", str(run.folder / "out"), *its, code=1)
    run("checkpoint", signed[1], "--key", str(run.folder / "audit.key"), "--tenant", tenant, code=1)


@pytest.mark.one_server("Citus does not enable the triggers of shards again, and each is a finding")
def test_a_report_states_what_is_gone_and_the_schema_once(
    run: Run, filled: cs.Store, superuser: psycopg.Connection[Any], signed: tuple[str, ...]
) -> None:
    gone = str(key_of(superuser, "t-2"))
    for name in ("t-3", "t-4"):
        filled.append(name, {"role": "user", "content": "hi"})
    run("checkpoint", signed[1], "--key", str(run.folder / "audit.key"))
    for table in WITH_NAMES:
        superuser.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER USER")
        superuser.execute(f"DELETE FROM compaction_store.{table} WHERE thread_uid = %s", (gone,))
    schema = len(filled.audit.verify_schema().findings)
    file = run.folder / "r.html"
    told = run("report", "--since", "7d", "--to", str(file), *signed, code=1).stderr
    assert f"3 threads, {schema + 1} findings" in told
    page = file.read_text(encoding="utf-8")
    assert f"the thread with the key {gone}, which was at pos 1, is gone" in page
    assert page.count("<strong>Finding</strong>") == schema + 1
    data = run("report", "t-3", "--json", "--to", "-", *signed, code=1).stdout
    stated = json.loads(data)["report"]["completeness"]
    assert stated == {"stored": 3, "reported": 1, "signed": 4, "gone": [{"thread_uid": gone, "pos": 1}]}
    done = run("export", "--all", "--to", str(run.folder / "out"), *signed, code=1)
    assert re.search(f"thread_uid {gone}: the thread was at pos 1 .* and is gone", done.stderr)
    # A report that was made to look complete contradicts itself.
    document = json.loads(data)["report"]
    document["completeness"]["reported"] = 2
    forged = envelope.sealed(ReportDocument.model_validate(document))
    assert "must have 2 threads, and has 1" in run("verify", "-", "--table", stdin=forged, code=1).stdout


def test_only_findings_are_printed_if_that_is_asked_for(
    run: Run, filled: cs.Store, superuser: psycopg.Connection[Any]
) -> None:
    for n in range(3):
        filled.append(f"good {n}", {"role": "user", "content": "hi"})
    assert run("verify", "--all", "--findings-only", "--table").stdout == "4 threads, 0 findings\n"
    assert run("verify", "--all", "--findings-only", "--json").stdout == ""
    superuser.execute("ALTER TABLE compaction_store.heads DISABLE TRIGGER ALL")
    superuser.execute(
        "UPDATE compaction_store.heads SET head = %s WHERE thread_uid = %s", (bytes(32), key_of(superuser, "good 1"))
    )
    lines = run("verify", "--all", "--findings-only", "--table", code=1).stdout.splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == ["good 1", "4 threads, 1 finding"]


def test_a_key_is_changed_and_a_refused_one_leaves_no_file(run: Run, signed: tuple[str, ...]) -> None:
    log, former = signed[1], signed[3]
    new = run.folder / "new.key"
    without = run("checkpoint", log, "--key", str(new), "--new-key", "example.org/audit", code=1)
    assert f"the last line of {log}: no known key signed the note" in without.stderr
    assert not new.exists()
    run("checkpoint", log, "--key", str(new), "--new-key", "other/name", "--public-key", former, code=1)
    assert not new.exists()
    change = ("checkpoint", log, "--key", str(new), "--new-key", "example.org/audit", "--public-key", former)
    [made] = run.json(*change)
    assert made["public_key"] != former
    assert (
        "created" in run("checkpoint", str(run.folder / "l2"), "--key", str(run.folder / "k2"), "--new-key", "x").stderr
    )
    run("checkpoint", log, "--key", str(new), "--public-key", former)
    run("checkpoint", log, "--key", str(new))
    keys = ("--public-key", former, "--public-key", made["public_key"])
    assert run("verify", "--all", "--level", "checkpoint", "--checkpoints", log, *keys).returncode == 0
