"""The actor on the command line: user@host, unless --actor gives another."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

import compaction_store as cs
from cli.program import THREAD, Run


def test_what_is_done_without_an_actor_is_recorded_with_the_user_and_the_host(run: Run, filled: cs.Store) -> None:
    us = f"tester@{socket.gethostname()}"
    run("revoke", THREAD, "1", LOGNAME="tester")
    run("compact", THREAD, "--strategy", "assistant-runs:tool_results=true,retain=2", LOGNAME="tester")
    run("worker", "--once", "--window", "500", "--strategy", "ladder", "--summarizer", "none", LOGNAME="tester")
    for verb in (("hold",), ("release",), ("retain", "--until", "2020-01-01")):
        run(verb[0], THREAD, *verb[1:], "--reason", "law", LOGNAME="tester")
    run("redact", THREAD, "1", "--reason", "asked for", "--yes", LOGNAME="tester")
    done = json.loads(run("erase", THREAD, "--reason", "asked for", "--yes", LOGNAME="tester").stdout)
    log = [record for record in filled.compactions(done["thread_id"]) if record.number > 3]
    assert {record.actor for record in log} == {us}
    assert {record.trigger for record in log} >= {"manual", "budget"}
    events = list(filled.audit.events(done["thread_id"]))
    assert len(events) == 5
    assert {event.actor for event in events} == {us}


def test_explain_says_when_no_actor_is_on_record(run: Run, filled: cs.Store) -> None:
    filled.custody.redact(THREAD, 25, reason="asked for")
    assert "by an unknown actor (login postgres)" in run("explain", THREAD, "25", "--table").stdout


_ROLES = "compaction_store_app, compaction_store_eraser, compaction_store_custodian"


@pytest.fixture
def login(url: str, superuser: psycopg.Connection[Any]) -> Iterator[str]:
    """The URL of a login of the application's."""
    name = f"cs_cli_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE {_ROLES}".encode())
    yield sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
    superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


@pytest.mark.usefixtures("filled")
def test_the_login_is_shown_beside_the_actor(run: Run, login: str) -> None:
    """The program says who the actor is, and the database who the login is."""
    name = f"cs_cli_{os.getpid()}"
    for verb in (("revoke", THREAD, "1"), ("hold", THREAD, "--reason", "law"), ("release", THREAD, "--reason", "law")):
        run(*verb, "--actor", "anna", "--url", login)
    run("redact", THREAD, "25", "--reason", "asked for", "--yes", "--actor", "anna", "--url", login)
    records, events = run.json("compactions", THREAD), run.json("events", THREAD)
    assert [(r["actor"], r["login"]) for r in records][-2:] == [("somebody", "postgres"), ("anna", name)]
    assert [(e["actor"], e["login"]) for e in events] == [("anna", name)] * 3
    assert [e["critical"] for e in events] == [False, False, True]
    assert run.json("show", THREAD, "4")[0]["compaction"]["login"] == name
    assert run.json("explain", THREAD, "25")[0]["redaction"]["login"] == name
    for listing in ("compactions", "events"):
        head, *rest = run(listing, THREAD, "--table").stdout.splitlines()
        assert re.search(r" actor +login ", head)
        assert re.search(rf" anna +{name}\b", rest[-1])
    assert re.search(rf"^login +{name}$", run("show", THREAD, "4", "--table").stdout, re.MULTILINE)
    assert f"by anna (login {name})" in run("explain", THREAD, "25", "--table").stdout
    assert f"by anna (login {name})" in run("compactions", "--table", COLUMNS="60").stdout


def test_the_key_of_a_thread_is_in_the_json(run: Run, filled: cs.Store) -> None:
    uid = str(filled.thread(THREAD).thread_uid)
    assert [t["thread_uid"] for t in run.json("threads")] == [uid]
    assert {r["thread_uid"] for r in run.json("compactions")} == {uid}
    assert run.json("show", THREAD, "1")[0]["compaction"]["thread_uid"] == uid
    assert uid in run("show", THREAD, "1", "--table").stdout


@pytest.mark.parametrize("verb", [("redact", THREAD, "1"), ("erase", THREAD)])
def test_an_erasure_that_a_hold_refuses_is_recorded_before_anybody_is_asked(
    run: Run, filled: cs.Store, verb: tuple[str, ...]
) -> None:
    us = f"tester@{socket.gethostname()}"
    filled.custody.hold(THREAD, reason="law")
    run(*verb, "--dry-run", code=1, LOGNAME="tester")
    assert [event.kind for event in filled.audit.events(THREAD)] == ["hold"]
    assert "held since pos" in run(*verb, "--reason", "asked for", code=1, LOGNAME="tester").stderr
    refusal = list(filled.audit.events(THREAD))[-1]
    assert refusal.body is not None
    assert (refusal.kind, refusal.actor) == ("refusal", us)
    assert (refusal.body["refused"], refusal.body["reason"]) == (verb[0], "asked for")
    filled.custody.release(THREAD, reason="settled")
    assert "pass --yes" in run(*verb, "--reason", "asked for", code=2, LOGNAME="tester").stderr
    assert [event.kind for event in filled.audit.events(THREAD)] == ["hold", "refusal", "release"]
    assert not any(message.redacted for message in filled.replay(THREAD))


def test_an_erasure_is_repeated_by_the_name_of_the_stub(run: Run, filled: cs.Store) -> None:
    stub = f"erased:{filled.thread(THREAD).thread_uid}"
    [done] = run.json("erase", stub, "--reason", "asked for", "--yes")
    assert (done["thread_id"], len(done["seqs"]) > 0) == (stub, True)
    [again] = run.json("erase", stub, "--reason", "asked for", "--yes")
    assert (again["thread_id"], again["pos"], again["seqs"]) == (stub, None, [])
