"""The verb `retention`."""

from __future__ import annotations

import psycopg
import pytest
from support import aged_threads, superuser_edits

import compaction_store as cs
from cli.program import Run

OLD = ("retention", "apply", "--older-than", "180d")


def test_a_dry_run_lists_exactly_what_the_run_then_does(run: Run, store: cs.Store) -> None:
    for name, days in (("a/1", 200), ("a/2", 200), ("b", 200), ("young", 100)):
        aged_threads.add(store, name, days)
    store.custody.hold("a/2", reason="claim")
    would = run.json(*OLD, "--prefix", "a/", "--dry-run")
    assert [(line["thread_id"], line["kept"], line["messages"], line["dry_run"]) for line in would] == [
        ("a/1", None, 2, True), ("a/2", "held", 0, True),
    ]  # fmt: skip
    shown = run(*OLD, "--prefix", "a/", "--dry-run", "--table").stdout
    assert "a/1: would erase 2 messages and 0 records" in shown
    assert "a/2: kept, a hold" in shown
    assert "would erase 1 thread, 1 kept: a hold" in shown
    assert "a/1" in aged_threads.names(store)
    assert "stdin is not a terminal; pass --yes" in run(*OLD, code=2).stderr
    done = run.json(*OLD, "--prefix", "a/", "--reason", "policy 7", "--actor", "nightly", "--yes")
    changed = {"dry_run": False, "pos": 3}
    assert [line | {"pos": None} for line in done] == [line | {"dry_run": False} for line in would]
    assert done[0] == would[0] | changed
    [begun, ended] = store.audit.events("compaction-store:log")
    assert (begun.actor, begun.body["reason"], ended.body["erased"]["threads"]) == ("nightly", "policy 7", 1)
    assert run(*OLD, "--prefix", "a/", "--yes", "--table").stdout.splitlines()[-1] == "erased 0 threads, 1 kept: a hold"


@pytest.mark.parametrize("age", ["180", "-1d", "0d", "soon", "2026-01-01"])
def test_an_age_that_is_none_is_refused(run: Run, store: cs.Store, age: str) -> None:
    aged_threads.add(store, "old", 200)
    assert "must be an age such as" in run("retention", "apply", "--older-than", age, "--yes", code=2).stderr
    assert aged_threads.names(store) == {"old"}


def test_a_damaged_thread_is_named_and_sets_the_exit_code(
    run: Run, store: cs.Store, superuser: psycopg.Connection[object]
) -> None:
    uid = aged_threads.add(store, "bad", 200)
    superuser_edits.unlock(superuser)
    superuser.execute("DELETE FROM compaction_store.messages WHERE thread_uid = %s AND seq = 2", [uid])
    assert "bad: kept, damaged: run verify (last message missing)" in run(*OLD, "--yes", "--table", code=1).stdout


def test_a_rule_is_stored_in_parts_shown_used_and_ended(run: Run, store: cs.Store) -> None:
    aged_threads.add(store, "chat/old", 200)
    aged_threads.add(store, "other", 200)
    assert "the tenant has no rule with an age" in run("retention", "apply", "--yes", code=3).stderr
    assert run("retention", "show", "--table").stdout == "no rule\n"
    run("retention", "set", "--older-than", "180d", "--prefix", "chat/", "--reason", "policy 7")
    run("retention", "set", "--new-threads", "6y", "--reason", "tax law")
    [shown] = run.json("retention", "show")
    assert shown["body"] == {
        "new_threads_seconds": 6 * 366 * 86400, "older_than_seconds": 180 * 86400, "prefix": "chat/",
        "reason": "tax law",
    }  # fmt: skip
    assert (
        "older than: 180 days\nprefix: chat/\nrecorded at pos 2 of the tenant's log\n"
        in run("retention", "show", "--table").stdout
    )
    assert [line["thread_id"] for line in run.json("retention", "apply", "--yes")] == ["chat/old"]
    store.append("new", {"role": "user", "content": "hi"})
    refusal = run("erase", "new", "--reason", "r", "--yes", code=1).stderr
    assert "the thread is retained until" in refusal
    assert run("retention", "unset", "--reason", "no more", "--table").stdout == "no rule\n"
    assert store.custody.retention_rule() is None
    run("erase", "new", "--reason", "r", "--yes", code=1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("set", "--reason", "r"), "is required with set"),
        (("set", "--older-than", "1d"), "--reason"),
        (("set", "--prefix", "x", "--new-threads", "1d", "--reason", "r"), "prefix must be given with older_than"),
        (("show", "--older-than", "1d"), "'--older-than': must not be given with show"),
        (("show", "--reason", "r"), "'--reason': must not be given with show"),
        (("show", "--actor", "a"), "'--actor': must not be given with show"),
        (("show", "--authority", "{}"), "'--authority': must not be given with show"),
        (("unset", "--prefix", "x", "--reason", "r"), "'--prefix': must not be given with unset"),
        (("apply", "--new-threads", "1d", "--older-than", "1d"), "'--new-threads': must not be given with apply"),
        (("apply", "--prefix", "x", "--yes"), "prefix must be given with older_than"),
        (("set", "--new-threads", "101y", "--reason", "r"), "at most"),
        (("expire",), "apply"),
        (("set", "--older-than", "1d", "--reason", "r", "--dry-run"), "'--dry-run': must not be given with set"),
        (("set", "--older-than", "1d", "--reason", "r", "--yes"), "'--yes': must not be given with set"),
        (("unset", "--reason", "r", "--subject", "x"), "'--subject': must not be given with unset"),
        (("unset", "--reason", "r", "--legal-basis", "x"), "'--legal-basis': must not be given with unset"),
    ],
)
def test_a_wrong_call_says_what_must_be(run: Run, store: cs.Store, given: tuple[str, ...], told: str) -> None:
    assert told in run("retention", *given, code=2).stderr
    assert list(store.audit.events()) == []


@pytest.mark.parametrize("body", ['{"older_than_seconds":"x","prefix":7}', '{"new_threads_seconds":1e300,"prefix":[]}'])
def test_a_rule_that_was_written_by_hand_can_be_shown_and_ended(
    run: Run, store: cs.Store, superuser: psycopg.Connection[object], body: str
) -> None:
    store.custody.set_retention(new_threads=aged_threads.HALF_A_YEAR, reason="r")
    superuser.execute(
        "SELECT compaction_store.record_in_log(u, 'default', 'compaction-store:log', 'rule', NULL, %s, %s)"
        " FROM (SELECT thread_uid AS u FROM compaction_store.threads) AS t",
        [bytes(16), body],
    )
    assert "not a valid age" in run("retention", "show", "--table").stdout
    run("retention", "unset", "--reason", "wrong")
    assert run("retention", "show", "--table").stdout == "no rule\n"
