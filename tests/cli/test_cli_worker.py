"""Workers compact due threads, several side by side, and stop at a signal."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

import compaction_store as cs
from cli.program import SECRET, Run

_ASK = ("--window", "1000", "--strategy", "ladder:keep_recent=2", "--every", "0.2")
_SLOW = """
import pathlib, time, uuid

def slow(ctx):
    pathlib.Path(f"begun-{uuid.uuid4()}").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    ctx.compact(ctx.elements[0].seq, ctx.elements[-3].end_seq, "all of it")

def broken(ctx):
    raise ValueError(str(ctx.elements[0].message))
"""


def _fill(store: cs.Store, thread: str) -> None:
    store.append(thread, [{"role": "user", "content": f"{SECRET} " + f"{i} and the tide " * 40} for i in range(12)])


def _until(true: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def test_what_is_due_is_compacted_once_and_the_rest_is_left(run: Run, store: cs.Store) -> None:
    for name in ("a", "b", "c"):
        _fill(store, name)
    store.append("small", {"role": "user", "content": "hi"})
    done = run("worker", *_ASK, "--once", "--parallel", "2", "--actor", "night")
    assert "3 compacted, 0 failed" in done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(line["thread_id"] for line in told) == ["a", "b", "c"]
    assert all(line["reason"] == "compacted" and line["applied"] for line in told)
    assert all(store.view(name).tokens <= 800 for name in ("a", "b", "c"))
    assert {record.actor for record in store.compactions()} == {"night"}
    assert store.thread("small").last_number == 0
    done = run("worker", *_ASK, "--once", "--table")
    assert done.stdout == ""
    assert "above 800 tokens" in done.stderr
    assert "no thread is due" in done.stderr


def test_threads_in_use_can_be_left_alone(run: Run, store: cs.Store) -> None:
    _fill(store, "a")
    done = run("worker", *_ASK, "--once", "--idle", "60")
    assert "no thread is due" in done.stderr
    assert store.thread("a").last_number == 0
    assert "1 compacted" in run("worker", *_ASK, "--once", "--idle", "0.0001").stderr


def test_several_workers_compact_every_thread_once(run: Run, store: cs.Store) -> None:
    names = [f"t-{i}" for i in range(6)]
    for name in names:
        _fill(store, name)
    with (
        run.in_background("worker", *_ASK, "--once") as (first, one),
        run.in_background("worker", *_ASK, "--once") as (second, two),
    ):
        assert (first.wait(), second.wait()) == (0, 0)
    runs = [line["thread_id"] for line in _lines(one) + _lines(two) if line["applied"]]
    assert sorted(runs) == names
    for name in names:
        assert len({record.run_id for record in store.compactions(name)}) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_stopped_finishes_its_work(run: Run, store: cs.Store, number: signal.Signals) -> None:
    (run.folder / "ours.py").write_text(_SLOW)
    for name in ("a", "b"):
        _fill(store, name)
    slow = ("--window", "1000", "--strategy", "ours.slow", "--parallel", "1", "--every", "0.2")
    with run.in_background("worker", *slow) as (worker, path):
        _until(lambda: list(run.folder.glob("begun-*")))
        worker.kill(number)
        _until(lambda: "stopping after 1 run under way" in path.read_text())
        (run.folder / "go").touch()
        assert worker.wait() == 0
    [line] = _lines(path)
    assert line["applied"] == 1
    assert sorted(thread.last_number for thread in store.threads()) == [0, 1]


def test_a_second_signal_ends_it_at_once_and_the_thread_is_free_when_its_lease_expires(
    run: Run, store: cs.Store, superuser: psycopg.Connection[Any]
) -> None:
    (run.folder / "ours.py").write_text(_SLOW)
    _fill(store, "a")
    slow = ("--window", "1000", "--strategy", "ours.slow")
    with run.in_background("worker", *slow) as (worker, path):
        _until(lambda: list(run.folder.glob("begun-*")))
        worker.kill(signal.SIGTERM)
        _until(lambda: "stopping" in path.read_text())
        worker.kill(signal.SIGTERM)
        assert worker.wait() == 128 + signal.SIGTERM
    assert store.thread("a").last_number == 0
    done = run("worker", *_ASK, "--once")
    assert done.stdout == ""
    leased = r"; 1 thread leased by \S+@\S+, the longest since 2\S+Z, until 2\S+Z unless renewed$"
    assert re.search("no thread is due; .*" + leased, done.stderr, re.MULTILINE)
    done = run("compact", "--due", "--window", "1000", "--table")
    assert re.search("^no thread is due in tenant 'default'" + leased, done.stdout, re.MULTILINE)
    line = run.json("compact", "a", "--window", "1000", "--wait", "0")[0]
    assert re.search("^another run is compacting the thread: actor '.+', since 2", line["reason"])
    superuser.execute("UPDATE compaction_store.heads SET lease_until = now() - interval '1 second'")
    assert [line["thread_id"] for line in run.json("worker", *_ASK, "--once")] == ["a"]


def test_a_result_is_reported_when_it_happens(run: Run, store: cs.Store) -> None:
    """Also in the pause between two searches."""
    (run.folder / "ours.py").write_text(_SLOW)
    for name in ("a", "b"):
        _fill(store, name)
    with run.in_background("worker", "--window", "1000", "--strategy", "ours.slow", "--every", "3600") as (
        worker,
        path,
    ):
        _until(lambda: len(list(run.folder.glob("begun-*"))) == 2)
        (run.folder / "go").touch()
        _until(lambda: len(_lines(path)) == 2)
        worker.kill(signal.SIGTERM)
        assert worker.wait() == 0
    assert [line["applied"] for line in _lines(path)] == [1, 1]


def test_a_failure_is_reported_without_content_and_its_thread_rests(run: Run, store: cs.Store) -> None:
    (run.folder / "ours.py").write_text(_SLOW)
    _fill(store, "a")
    done = run("worker", "--window", "1000", "--strategy", "ours.broken", "--once", code=1)
    assert SECRET not in done.stdout + done.stderr
    [line] = [json.loads(text) for text in done.stdout.splitlines()]
    assert (line["thread_id"], line["applied"], line["failed"]) == ("a", 0, 1)
    assert [record.outcome for record in store.compactions("a")] == ["failed"]


def test_a_worker_outlives_its_connections(run: Run, store: cs.Store, superuser: psycopg.Connection[Any]) -> None:
    with run.in_background("worker", *_ASK) as (worker, path):
        _fill(store, "a")
        _until(lambda: _lines(path))
        superuser.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        _fill(store, "b")
        _until(lambda: any(line["thread_id"] == "b" for line in _lines(path)))
        worker.kill(signal.SIGTERM)
        assert worker.wait() == 0
