"""The authority on the command line: recorded, shown with what it allowed, and found by its members."""

from __future__ import annotations

import json

import compaction_store as cs
from cli.program import SECRET, THREAD, Run

TICKET = {"ticket": "X-1", "policy": {"name": "retention", "version": 3}}
GIVEN = ("--authority", json.dumps(TICKET))
SHOWN = 'ticket: X-1, policy: {"name":"retention","version":3}'


def test_every_verb_that_takes_an_actor_takes_an_authority(run: Run, filled: cs.Store) -> None:
    run("revoke", THREAD, "1", *GIVEN)
    run("compact", THREAD, "--strategy", "assistant-runs:tool_results=true,retain=2", *GIVEN)
    run("worker", "--once", "--window", "500", "--strategy", "ladder", "--summarizer", "none", *GIVEN)
    for verb in (("hold",), ("release",), ("retain", "--until", "2020-01-01")):
        run(verb[0], THREAD, *verb[1:], "--reason", "law", *GIVEN)
    log = [record for record in filled.compactions(THREAD) if record.number > 3]
    assert {record.trigger for record in log} >= {"manual", "budget"}
    assert [record.authority for record in log] == [TICKET] * len(log)
    run("redact", THREAD, "1", "--reason", "asked for", "--yes", *GIVEN)
    [done] = run.json("erase", THREAD, "--reason", "asked for", "--yes", *GIVEN)
    assert [event.authority for event in filled.audit.events(done["thread_id"])] == [TICKET] * 5


def test_records_are_found_by_their_authority_which_every_verb_shows(run: Run, filled: cs.Store) -> None:
    run("revoke", THREAD, "1", *GIVEN)
    filled.custody.redact(THREAD, 25, reason="asked for", actor="dpo", authority={"ticket": "X-2"})
    assert [r["number"] for r in run.json("compactions", "--authority", '{"ticket":"X-1"}')] == [4]
    assert [r["number"] for r in run.json("compactions", THREAD, "--authority", '{"ticket":"X-2"}')] == []
    [revoked] = run.json("compactions", "--kind", "revocation")
    assert revoked["authority"] == TICKET
    # Tables are not cut in a pipe.
    assert SHOWN in run("compactions", "--table").stdout
    assert "ticket: X-1" in " ".join(run.on_terminal("compactions", columns=60).split())
    assert run.json("show", THREAD, "4")[0]["compaction"]["authority"] == TICKET
    assert json.dumps(TICKET, separators=(",", ":")) in run("show", THREAD, "4", "--table").stdout
    assert [r["authority"] for r in run.json("explain", THREAD, "3")[0]["records"]] == [None, TICKET]
    assert SHOWN in run("explain", THREAD, "3", "--table").stdout
    assert run.json("explain", THREAD, "25")[0]["redaction"]["authority"] == {"ticket": "X-2"}
    assert "ticket: X-2" in run("explain", THREAD, "25", "--table").stdout
    assert run.json("events", THREAD)[0]["authority"] == {"ticket": "X-2"}
    assert "ticket: X-2" in run("events", THREAD, "--table").stdout


def test_a_table_without_an_authority_has_no_column_for_one(run: Run, filled: cs.Store) -> None:
    filled.custody.hold(THREAD, reason="claim")
    for arguments in (("compactions",), ("events", THREAD), ("explain", THREAD, "3")):
        assert "authority" not in run(*arguments, "--table").stdout


def test_what_is_no_json_object_is_refused(run: Run, filled: cs.Store) -> None:
    for wrong in ("X-1", "[1]", "{", "null"):
        for verb in (("revoke", THREAD, "1"), ("compactions",)):
            done = run(*verb, "--authority", wrong, code=2)
            assert "'--authority': must be a JSON object" in done.stderr
    done = run("hold", THREAD, "--reason", "x", "--authority", json.dumps({"ticket": SECRET * 900}), code=2)
    assert "authority must be at most 8,192 bytes" in done.stderr
    assert SECRET not in done.stderr
    assert list(filled.audit.events(THREAD)) == []
