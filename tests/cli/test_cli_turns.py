"""A command in a turn."""

from __future__ import annotations

import psycopg

import compaction_store as cs
from cli.program import Run


def test_a_command_runs_in_a_turn_and_gives_its_exit_code(run: Run, superuser: psycopg.Connection[tuple[int]]) -> None:
    done = run("turn", "t", "--", "sh", "-c", "echo mine; exit 3", code=3)
    assert done.stdout == "mine\n"
    assert run("turn", "t", "true").stdout == ""
    assert superuser.execute("SELECT count(*) FROM compaction_store.turns").fetchall() == [(0,)]


def test_a_command_that_gets_no_turn_is_not_run(run: Run, url: str) -> None:
    with cs.Store.open(url) as store, store.turn("t", actor="web-1"):
        done = run("turn", "t", "--wait", "0", "echo", "mine", code=1)
    assert done.stdout == ""
    assert "the turn of 'web-1' has the thread, until 2" in done.stderr


def test_a_command_that_cannot_be_run_is_misuse(run: Run) -> None:
    assert "cannot run the command: No such file or directory" in run("turn", "t", "/no/such/command", code=2).stderr
