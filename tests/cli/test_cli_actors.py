"""The actor on the command line: user@host, unless --actor gives another."""

from __future__ import annotations

import socket

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
    run("erase", THREAD, "--reason", "asked for", "--yes", LOGNAME="tester")
    log = [record for record in filled.compactions(THREAD) if record.number > 3]
    assert {record.actor for record in log} == {us}
    assert {record.trigger for record in log} >= {"manual", "budget"}
    events = list(filled.events(THREAD))
    assert len(events) == 5
    assert {event.actor for event in events} == {us}


def test_explain_says_when_no_actor_is_on_record(run: Run, filled: cs.Store) -> None:
    filled.redact(THREAD, 25, reason="asked for")
    assert "by an unknown actor" in run("explain", THREAD, "25", "--table").stdout
