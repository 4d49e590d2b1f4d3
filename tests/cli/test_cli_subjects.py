"""Threads of a subject on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import compaction_store as cs
from cli.program import Run

MESSAGE = json.dumps({"role": "user", "content": "hello"})
NAMES = ["a-1", "a-2", "b-1"]


@pytest.fixture
def threads(store: cs.Store) -> cs.Store:
    for name in NAMES:
        store.append(name, json.loads(MESSAGE), subject="alice" if name < "b" else None)
        store.set_metadata(name, {"name": name})
    return store


def names(run: Run, *given: str) -> list[str]:
    return [line["thread_id"] for line in run.json("threads", *given)]


@pytest.mark.usefixtures("threads")
def test_threads_are_listed_by_subject_prefix_metadata_and_recency(run: Run) -> None:
    assert names(run, "--order", "recent") == NAMES[::-1]
    assert names(run, "--order", "recent", "--subject", "alice") == ["a-2", "a-1"]
    assert names(run, "--prefix", "b") == ["b-1"]
    assert names(run, "--having", '{"name":"a-2"}') == ["a-2"]
    first = run.json("threads", "--order", "recent", "--limit", "1")
    assert names(run, "--order", "recent", "--after", first[0]["cursor"]) == ["a-2", "a-1"]
    assert first[0]["subject"] is None
    assert "no threads" in run("threads", "--subject", "bob", "--table").stdout


def test_a_subject_is_set_changed_and_removed(run: Run, store: cs.Store) -> None:
    run("append", "t", "--subject", "alice", stdin=MESSAGE)
    assert store.thread("t").subject == "alice"
    assert "subject" in run("append", "t", "--subject", "bob", stdin=MESSAGE, code=None).stderr
    assert "now belongs to bob" in run("subject", "t", "bob", "--reason", "mistaken", "--table").stdout
    assert store.thread("t").subject == "bob"
    assert run.json("subject", "t", "--remove")[0]["kind"] == "subject"
    assert store.thread("t").subject is None
    for wrong in ((), ("bob", "--remove")):
        assert "SUBJECT" in run("subject", "t", *wrong, code=2).stderr


@pytest.mark.usefixtures("threads")
def test_all_threads_of_a_subject_are_erased(run: Run, store: cs.Store) -> None:
    store.custody.hold("a-2", reason="claim")
    deed = ("erase", "--subject", "alice", "--reason", "asked for")
    assert [(e["thread_id"], e["kept"]) for e in run.json(*deed, "--dry-run")] == [("a-1", None), ("a-2", "held")]
    assert store.thread("a-1").erased_pos is None
    assert "erased 1 thread, 1 kept: a hold" in run(*deed, "--yes", "--table").stdout
    assert [thread.thread_id for thread in store.threads(subject="alice")] == ["a-2"]
    assert run.json(*deed, "--yes", "--override", "order of the court")[0]["messages"] == 1
    for wrong in (("a-1", "--subject", "alice"), (), ("--subject", "alice", "--no-forks")):
        assert "THREAD" in run("erase", *wrong, "--reason", "x", "--yes", code=2).stderr


@pytest.mark.usefixtures("threads")
def test_all_threads_of_a_subject_are_exported(run: Run, tmp_path: Path) -> None:
    run("export", "--subject", "alice", "--to", str(tmp_path / "out"))
    bundles = [json.loads(file.read_text().splitlines()[0]) for file in (tmp_path / "out").glob("*.jsonl")]
    assert {(said["thread_id"], said["subject"]) for said in bundles} == {("a-1", "alice"), ("a-2", "alice")}
    assert "--to" in run("export", "--subject", "alice", code=2).stderr
    assert "--subject" in run("export", "--subject", "alice", "--all", "--to", "x", code=2).stderr
    assert run("export", "--subject", "nobody", "--to", str(tmp_path / "none"), code=None).returncode == 1


def test_records_events_and_reports_by_subject(run: Run, store: cs.Store) -> None:
    for name, subject in (("a", "ann"), ("b", "ben")):
        store.append(name, [{"role": "user", "content": "long " * 99}] * 3, subject=subject)
        store.compact(name, lambda ctx: ctx.compact(1, 2, "short"))
        store.custody.hold(name, reason="claim")
    assert [line["thread_id"] for line in run.json("compactions", "--subject", "ann")] == ["a"]
    assert [line["thread_id"] for line in run.json("events", "--subject", "ben")] == ["b"]
    assert "--subject" in run("events", "--follow", "--subject", "ben", code=2).stderr
    to = run.folder / "r.json"
    assert "1 thread, no findings" in run("report", "--subject", "ann", "--json", "--to", str(to)).stderr
    [reported] = json.loads(to.read_bytes())["report"]["threads"]
    assert json.loads(reported["bundle"][0])["thread_id"] == "a"
    assert "no threads of subject 'nobody'" in run("report", "--subject", "nobody", "--to", str(to), code=1).stderr
    run("report", "a", "--subject", "ann", "--to", str(to), code=2)
