"""Where nothing is found, the program names the tenant that it looked in: the thread may be another tenant's."""

from __future__ import annotations

from pathlib import Path

import pytest

import compaction_store as cs
from cli.program import THREAD, Run

OTHER = ("--tenant", "acme")


@pytest.mark.parametrize(
    "arguments",
    [
        ("view", THREAD), ("replay", THREAD), ("compactions", THREAD), ("show", THREAD, "1"), ("explain", THREAD, "3"),
        ("events", THREAD), ("stats", THREAD), ("verify", THREAD), ("revoke", THREAD, "1"), ("compact", THREAD),
        ("redact", THREAD, "1", "--reason", "x", "--yes"), ("hold", THREAD, "--reason", "x"), ("export", THREAD),
    ],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_an_error_for_a_missing_thread_names_the_tenant(run: Run, filled: cs.Store, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, *OTHER, code=1)
    assert done.stderr == f"compaction-store: no such thread (thread {THREAD!r}) of tenant 'acme'\n"
    assert filled.thread(THREAD).last_seq == 25


def test_so_does_one_for_a_missing_message_record_or_pos(run: Run, filled: cs.Store) -> None:
    for arguments in (
        ("show", THREAD, "77"), ("explain", THREAD, "99"), ("view", THREAD, "--at", "999"),
        ("view", THREAD, "--at", "compaction:77"), ("view", THREAD, "--at", "2w"), ("view", THREAD, "--seen-by", "99"),
        ("redact", THREAD, "99", "--reason", "x", "--yes"), ("revoke", THREAD, "77"),
    ):  # fmt: skip
        done = run(*arguments, code=1)
        assert done.stderr.endswith(f"(thread {THREAD!r}) of tenant 'default'\n"), done.stderr
    run("compact", THREAD, "t-0", code=1)
    assert "(thread 't-0') of tenant 'default'" in run("compact", THREAD, "t-0", code=1).stderr
    assert filled.thread(THREAD).last_seq == 25


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("threads",), "no threads of tenant 'acme'"), (("compactions",), "no records found in tenant 'acme'"),
        (("compactions", "--outcome", "rejected"), "no records found in tenant 'acme'"),
        (("search", "tide"), "no matches in tenant 'acme'"), (("stats",), "no threads of tenant 'acme'"),
        (("events",), "no events in tenant 'acme'"),
    ],
    ids=lambda given: given[0] if isinstance(given, tuple) else "",
)  # fmt: skip
def test_an_empty_list_names_the_tenant(run: Run, filled: cs.Store, arguments: tuple[str, ...], said: str) -> None:
    assert run(*arguments, *OTHER, "--table").stdout.splitlines()[0] == said
    if arguments != ("events",):
        assert "tenant" not in run(*arguments, "--table").stdout
    assert filled.thread(THREAD).last_seq == 25


def test_where_no_thread_is_due_the_tenant_is_named(run: Run, filled: cs.Store) -> None:
    due = ("compact", "--due", "--window", "2000", "--dry-run")
    filled.append(THREAD, {"role": "user", "content": "What did he write of the tide? " * 90})
    assert run(*due, *OTHER, "--table").stdout == "no thread is due in tenant 'acme'\n"
    assert run(*due, *OTHER, "--json").stdout == ""
    assert "tenant" not in run(*due, "--table").stdout


def test_a_program_gets_no_line_and_a_terminal_a_note(run: Run, filled: cs.Store) -> None:
    done = run("compactions", "--json", *OTHER)
    assert (done.stdout, done.stderr) == ("", "")
    assert run.on_terminal("compactions", "--json", *OTHER) == "no records found in tenant 'acme'\n"
    assert run("events", THREAD, "--json").stderr == ""
    assert filled.thread(THREAD).last_seq == 25


def test_an_export_of_a_tenant_without_threads_says_so(run: Run, filled: cs.Store, tmp_path: Path) -> None:
    assert "no threads of tenant 'acme'" in run("export", "--all", "--to", str(tmp_path / "x"), *OTHER, code=1).stderr
    assert "tenant" not in run("export", "--all", "--to", str(tmp_path / "y")).stderr
    assert filled.thread(THREAD).last_seq == 25
