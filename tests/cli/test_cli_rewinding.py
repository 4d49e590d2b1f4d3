"""The verbs that go back: rewind, clear and repair."""

from __future__ import annotations

import pytest
from support.rewinding import SAID, shown

import compaction_store as cs
from cli.program import Run


@pytest.fixture(autouse=True)
def _filled(store: cs.Store) -> None:
    store.append("t", SAID)
    store.compact("t", lambda ctx: ctx.compact(3, 6, "four of them"))


def test_a_rewind_says_what_it_hides_and_what_it_revokes(run: Run, store: cs.Store) -> None:
    done = run("rewind", "t", "8", "--reason", "asked again", "--actor", "anna", "--table")
    assert done.stdout.startswith("t: record 2 hides seqs 9-10: ")
    written = run.json("rewind", "t", "4", "--authority", '{"ticket": "X-1"}')[0]
    assert [(r["kind"], r["revokes"], r["status"]) for r in written["records"]] == [
        ("revocation", 1, "applied"), ("rewind", None, "active"),
    ]  # fmt: skip
    assert written["view_tokens"] == store.view("t").tokens
    assert store.compaction("t", 2).actor == "anna"
    assert store.compaction("t", 4).authority == {"ticket": "X-1"}
    assert shown(store.view("t")) == [1, 2, 3, 4, (5, 10, "rewind")]
    told = run("rewind", "t", "4", "--table").stdout
    assert told == "t: the view ends at seq 4 or before already: nothing is written\n"
    assert "no seq 11" in run("rewind", "t", "11", code=1).stderr
    assert "no such thread" in run("rewind", "nobody", "1", code=1).stderr
    assert [r["number"] for r in run.json("compactions", "t", "--kind", "rewind")] == [2, 4]


def test_a_clear_may_hide_the_thread(run: Run, store: cs.Store) -> None:
    assert "record 2 hides seqs 1-10: 0 tokens now" in run("clear", "t", "--table").stdout
    assert [thread["thread_id"] for thread in run.json("threads")] == ["t"]
    [hidden] = run.json("clear", "t", "--hide", "--reason", "deleted by its user")
    assert hidden["records"][0]["trigger"] == "hide"
    assert run.json("threads") == []
    [listed] = run.json("threads", "--hidden")
    assert (listed["thread_id"], listed["hidden_seq"]) == ("t", 10)
    assert "no such thread" in run("view", "t", code=1).stderr
    for audit in (("replay", "t"), ("compactions", "t"), ("explain", "t", "3"), ("verify", "t"), ("stats", "t")):
        run(*audit)
    assert "view is empty" in run("clear", "t", "--table").stdout
    run("revoke", "t", "3")
    assert not store.thread("t").hidden


def test_a_repair_writes_the_summary_again(run: Run, store: cs.Store) -> None:
    assert store.compaction("t", 1).summary_text == "four of them"
    [done] = run.json("repair", "t", "1", "--reason", "it was too short")
    assert [(r["kind"], r["outcome"], r["revokes"]) for r in done["records"]] == [
        ("revocation", "applied", 1), ("summary", "applied", None),
    ]  # fmt: skip
    assert store.compaction("t", 3).summarizer == "StateSummary"
    assert "is not active: revoked by 2" in run("repair", "t", "1", code=1).stderr
    assert "other than none" in run("repair", "t", "3", "--summarizer", "none", code=2).stderr
    assert "no compaction 9" in run("repair", "t", "9", code=1).stderr


def test_a_repair_that_fails_exits_with_1(run: Run, store: cs.Store) -> None:
    done = run("repair", "t", "1", "--summarizer", "json.dumps", "--table", code=1)
    assert "every attempt failed" in done.stdout
    assert store.compaction("t", 1).status == "active"
