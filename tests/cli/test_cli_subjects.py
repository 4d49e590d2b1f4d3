"""Threads of a subject on the command line."""

from __future__ import annotations

import json

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
