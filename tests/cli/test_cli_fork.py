"""The verb fork, and how other verbs show forks."""

from __future__ import annotations

import compaction_store as cs
from cli.program import THREAD, Run


def test_a_thread_is_forked(run: Run, filled: cs.Store) -> None:
    told = run("fork", THREAD, "again", "--at", "3", "--key", "k", "--reason", "try", "--table").stdout
    assert told == f"again: a copy of {THREAD} up to pos 3, with 3 messages\n"
    again = run.json("fork", THREAD, "again", "--at", "3", "--key", "k")
    assert (again[0]["added"], again[0]["at"], again[0]["pos"]) == (False, 3, 4)
    assert filled.thread("again").last_seq == 3
    assert "taken" in run("fork", THREAD, "again", code=1).stderr
    assert "no pos" in run("fork", THREAD, "other", "--at", "99999", code=1).stderr


def test_events_and_explain_show_the_other_thread(run: Run, filled: cs.Store) -> None:
    done = filled.fork(THREAD, "again", reason="try")
    assert f"at pos {done.at} from {done.parent_uid}" in run("events", "again", "--table").stdout
    assert f"at pos {done.at} to {done.thread_uid}" in run("events", THREAD, "--table").stdout
    assert f"in {THREAD}, at pos 2" in run("explain", "again", "2", "--table").stdout
    origin = run.json("explain", "again", "2")[0]["origin"]
    assert (origin["thread_id"], origin["pos"]) == (THREAD, 2)
    assert run.json("explain", THREAD, "2")[0]["origin"] is None


def test_erasing_says_which_forks_it_reached(run: Run, filled: cs.Store) -> None:
    filled.fork(THREAD, "again")
    asked = ("redact", THREAD, "2", "--reason", "asked for", "--table")
    assert "1 message of its fork again" in run(*asked, "--dry-run").stdout.replace(" and 1 record", "")
    assert "left alone" in run(*asked, "--dry-run", "--no-forks").stdout
    assert "again: a fork that still has 1 message" in run(*asked, "--yes", "--no-forks").stdout
    assert "again: a fork; erased 1 message" in run(*asked, "--yes").stdout
    would = run.json("erase", THREAD, "--dry-run")[0]["forks"]
    assert [fork["thread_id"] for fork in would] == ["again"]


def test_costs_count_a_copied_record_once(run: Run, filled: cs.Store) -> None:
    before = run.json("stats")[0]
    filled.fork(THREAD, "again")
    after = run.json("stats")[0]
    assert (after["costs"], after["groups"]) == (before["costs"], before["groups"])
    assert before["groups"]
    assert run.json("stats", "again")[0]["costs"] == []
