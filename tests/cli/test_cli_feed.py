"""`events --follow` prints the feed as JSON lines, from any cursor."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

import compaction_store as cs
from cli.program import SECRET, Run, command, environment

pytestmark = pytest.mark.one_server("the nodes of a cluster number their transactions apart")


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_it_prints_what_the_store_yields_and_ends_if_asked(run: Run, filled: cs.Store) -> None:
    everything = lines(run("events", "--follow", "--messages", "--every", "0").stdout)
    assert everything == [entry.as_dict() for entry in filled.audit.feed(messages=True)]
    assert SECRET not in json.dumps(everything)
    assert lines(run("events", "--follow", "--every", "0").stdout) == [e for e in everything if e["type"] != "message"]
    middle = everything[3]["cursor"]
    found = lines(run("events", "--follow", "--after", middle, "--messages", "--content", "--limit", "2").stdout)
    assert [entry["cursor"] for entry in found] == [entry["cursor"] for entry in everything[4:6]]
    assert SECRET in json.dumps(found)


def test_it_goes_on_with_what_is_written_until_it_is_stopped(url: str, tmp_path: Path, filled: cs.Store) -> None:
    last = list(filled.audit.feed(messages=True))[-1].cursor
    asked = ("events", "--follow", "--after", last, "--messages", "--every", "0.1")
    with subprocess.Popen(command(*asked), stdout=subprocess.PIPE, env=environment(tmp_path, url)) as program:
        assert program.stdout is not None
        for name in ("a", "b", "c"):
            filled.append(name, {"role": "user", "content": "hi"})
            assert json.loads(program.stdout.readline())["thread_id"] == name
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130


def test_it_waits_for_a_database_that_is_gone(
    url: str, tmp_path: Path, filled: cs.Store, superuser: psycopg.Connection[Any]
) -> None:
    asked = ("events", "--follow", "--every", "0.1")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command(*asked), env=environment(tmp_path, url), **pipes) as program:
        assert program.stdout is not None
        known = len(list(filled.audit.feed()))
        cursors = [json.loads(program.stdout.readline())["cursor"] for _ in range(known)]
        for _ in range(3):
            superuser.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            filled.custody.hold("t-1", reason="claim")
            cursors.append(json.loads(program.stdout.readline())["cursor"])
        program.send_signal(signal.SIGINT)
        program.wait(60)
    assert cursors == [entry.cursor for entry in filled.audit.feed()]


@pytest.mark.parametrize(
    "asked",
    [
        ("--follow", "t-1"),
        ("--follow", "--kind", "hold"),
        ("--follow", "--all-tenants"),
        ("--follow", "--csv"),
        ("--follow", "--after", "5"),
        ("--messages",),
        ("--after", "x"),
    ],
)
@pytest.mark.usefixtures("filled")
def test_what_does_not_go_together_is_refused(run: Run, asked: tuple[str, ...]) -> None:
    done = run("events", *asked, code=2)
    assert SECRET not in done.stderr
    assert "must" in done.stderr


def test_a_cursor_of_another_database_is_refused(run: Run, filled: cs.Store) -> None:
    last = list(filled.audit.feed())[-1].cursor
    done = run("events", "--follow", "--after", last, "--tenant", "other", code=3)
    assert "not in the database" in done.stderr
