"""`watch` keeps session files while they are written: nothing is lost and nothing is doubled, whatever happens."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from reliability.rigs.proxy import Proxy
from support import codex_sessions
from support.agent_sessions import Session, assert_sound, kept, said, stored_lines

import compaction_store as cs
from cli.program import Run

_NOWHERE = "postgresql://postgres@127.0.0.1:1/postgres"


def until(true: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def assert_kept_once(store: cs.Store, session: Session) -> None:
    """Each line is stored once, and the conversation has each of its messages once."""
    data = session.data()
    lines = stored_lines(store, session.thread)
    assert sum(lines.values()) == len(data.splitlines())
    assert b"".join(lines) == data
    assert set(lines.values()) == {1}
    assert_sound(store, session.thread, f"{session.thread}/lines")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    made = Session(tmp_path)
    made.add(5)
    return made


def test_a_session_is_kept_line_by_line_and_as_a_conversation(
    run: Run, store: cs.Store, session: Session, tmp_path: Path
) -> None:
    [first] = run.json("watch", "--once")
    assert (first["lines"], first["messages"], first["files"], first["findings"]) == (5, 5, [str(session.path)], [])
    [again] = run.json("watch", "--once")
    assert (again["lines"], again["messages"]) == (0, 0)
    session.add(2)
    with session.path.open("ab") as file:
        file.write(b'{"type":"user","not":"finished')
    [third] = run.json("watch", "--once")
    assert (third["lines"], third["messages"], third["findings"]) == (2, 2, [])
    assert kept(store, session.thread, tmp_path) == session.data().rpartition(b"\n")[0] + b"\n"
    assert said(store, session.thread) == [str(i) for i in range(1, 8)]
    subjects = {t.thread_id: t.subject for t in store.threads()}
    assert subjects == {session.thread: session.thread, f"{session.thread}/lines": session.thread}
    assert_sound(store, *subjects)


def test_a_session_of_codex_is_kept_with_its_requests(run: Run, store: cs.Store, tmp_path: Path) -> None:
    path = codex_sessions.path_of(tmp_path, codex_sessions.SESSION)
    lines = codex_sessions.rollout()
    codex_sessions.write_lines(path, lines[:6])
    traces = tmp_path / "traces"
    codex_sessions.write_bundle(traces, requests=codex_sessions.REQUESTS[:2])
    [report] = run.json("watch", "--once", str(path), CODEX_ROLLOUT_TRACE_ROOT=str(traces))
    assert (report["lines"], report["findings"]) == (6, [])
    codex_sessions.write_lines(path, lines)
    codex_sessions.write_bundle(traces, "b2", requests=codex_sessions.REQUESTS[2:])
    [report] = run.json("watch", "--once", str(path), CODEX_ROLLOUT_TRACE_ROOT=str(traces))
    assert (report["lines"], report["findings"]) == (len(lines) - 6, [])
    thread = f"codex:{codex_sessions.SESSION}"
    for seq, number in codex_sessions.REPLIES.items():
        seen = store.seen_by(thread, seq)
        assert (seen.evidence, seen.messages) == ("proved", codex_sessions.REQUESTS[number][1])
    assert_sound(store, thread, f"{thread}/lines", f"{thread}/requests/b1", f"{thread}/requests/b2")


def test_watch_and_import_continue_each_other(run: Run, store: cs.Store, session: Session) -> None:
    def imported() -> list[int]:
        return [thread["added"] for thread in run.json("import", str(session.path))]

    assert imported() == [5, 5]
    session.add(3)
    [report] = run.json("watch", "--once")
    assert (report["lines"], report["messages"]) == (3, 3)
    assert imported() == [0, 0]
    session.add(1)
    assert imported() == [1, 1]
    session.add(1)
    [report] = run.json("watch", "--once")
    assert (report["lines"], report["messages"]) == (1, 1)
    assert_kept_once(store, session)


@pytest.mark.parametrize("state", [True, False])
def test_a_truncated_file_loses_nothing_that_is_kept(
    run: Run, store: cs.Store, session: Session, tmp_path: Path, state: bool
) -> None:
    run("watch", "--once")
    before = session.data()
    session.path.write_bytes(b"".join(before.splitlines(keepends=True)[:2]))
    if not state:
        _forget(tmp_path)
    [report] = run.json("watch", "--once", code=1)
    assert any("was rewritten" in finding for finding in report["findings"])
    assert kept(store, session.thread, tmp_path, generation=1) == before
    assert kept(store, session.thread, tmp_path) == session.data()
    assert said(store, session.thread) == ["1", "2"]
    session.add(1)
    run("watch", "--once")
    assert kept(store, session.thread, tmp_path) == session.data()
    assert said(store, session.thread) == ["1", "2", "6"]
    # Only the new line was added: the lines that both versions have are stored once.
    assert set(stored_lines(store, session.thread).values()) == {1}
    assert_sound(store, session.thread, f"{session.thread}/lines")


@pytest.mark.parametrize("how", ["in place", "renamed", "same size", "same size and time"])
@pytest.mark.parametrize("state", [True, False])
def test_a_rewritten_file_is_kept_in_both_versions(
    run: Run, store: cs.Store, session: Session, tmp_path: Path, how: str, state: bool
) -> None:
    run("watch", "--once")
    before, seen = session.data(), session.path.stat()
    lines = before.splitlines(keepends=True)
    changed = b"".join([lines[0], lines[1].replace(b" 2", b" X"), *lines[2:]])
    if not how.startswith("same size"):
        changed = lines[0] + session.line("new") + lines[4]
    if how == "renamed":
        (tmp_path / "new").write_bytes(changed)
        (tmp_path / "new").rename(session.path)
    else:
        session.path.write_bytes(changed)
    if how == "same size and time":
        os.utime(session.path, ns=(seen.st_mtime_ns, seen.st_mtime_ns))
    if not state:
        _forget(tmp_path)
    [report] = run.json("watch", "--once", code=1)
    assert any("was rewritten" in finding for finding in report["findings"])
    assert kept(store, session.thread, tmp_path, generation=1) == before
    assert kept(store, session.thread, tmp_path) == changed
    [again] = run.json("watch", "--once")
    assert (again["lines"], again["messages"]) == (0, 0)
    assert said(store, session.thread) == [json.loads(n)["message"]["content"].strip() for n in changed.splitlines()]
    # The first version comes back: it is a third one, and its lines are stored already.
    session.path.write_bytes(before)
    run("watch", "--once", code=1)
    assert kept(store, session.thread, tmp_path) == before
    assert kept(store, session.thread, tmp_path, generation=2) == changed
    assert said(store, session.thread) == [str(i) for i in range(1, 6)]
    assert_sound(store, session.thread, f"{session.thread}/lines")


def _forget(folder: Path) -> None:
    """Removes what the watcher remembers, as if it ran on another machine."""
    for path in folder.glob("state/compaction-store/watch/*/state"):
        path.unlink()


def test_an_emptied_file_loses_nothing_that_is_kept(
    run: Run, store: cs.Store, session: Session, tmp_path: Path
) -> None:
    run("watch", "--once")
    before = session.data()
    session.path.write_bytes(b"")
    run("watch", "--once", code=1)
    session.add(2)
    run("watch", "--once")
    assert kept(store, session.thread, tmp_path) == session.data()
    assert kept(store, session.thread, tmp_path, generation=1) == before
    assert said(store, session.thread) == ["6", "7"]


def test_a_vanished_file_changes_nothing(run: Run, store: cs.Store, session: Session, tmp_path: Path) -> None:
    data = session.data()
    run("watch", "--once")
    session.path.unlink()
    [report] = run.json("watch", "--once")
    assert report["findings"] == []
    assert kept(store, session.thread, tmp_path) == data
    # It is restored, and goes on.
    run("restore", session.thread, "--to", str(session.path.parent.parent))
    assert session.data() == data
    session.add(1)
    [report] = run.json("watch", "--once")
    assert (report["lines"], report["messages"], report["findings"]) == (1, 1, [])
    assert_kept_once(store, session)


@pytest.mark.parametrize("seed", range(2))
def test_kills_at_any_moment_lose_and_double_nothing(run: Run, store: cs.Store, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sessions = [Session(tmp_path) for _ in range(3)]
    for _ in range(4):
        with run.in_background("watch", "--every", "0.1") as (running, _):
            end = time.monotonic() + chance.uniform(0.05, 1.5)
            while time.monotonic() < end:
                chance.choice(sessions).add(chance.randint(1, 40))
                time.sleep(0.02)
            running.kill(signal.SIGKILL)
            running.wait()
    run("watch", "--once")
    for session in sessions:
        assert_kept_once(store, session)
        assert said(store, session.thread) == [str(i) for i in range(1, session.count + 1)]


def test_the_database_may_be_away(run: Run, store: cs.Store, url: str, tmp_path: Path, session: Session) -> None:
    """Lines wait on disk, even if the file is rewritten, deleted, or the watcher killed meanwhile."""
    gone, other = Session(tmp_path), Session(tmp_path)
    spool = tmp_path / "state" / "compaction-store" / "watch"
    with Proxy(url, random.Random(1)) as way:
        run.url = way.url
        run("watch", "--once")
        way.retarget(_NOWHERE)
        with run.in_background("watch", "--every", "0.1") as (running, out):
            session.add(4)
            lost = gone.line() + gone.line()
            gone.path.write_bytes(lost)
            until(lambda: any(lost in path.read_bytes() for path in spool.glob("*/spool/?*[0-9]")))
            until(lambda: "lines are kept on disk meanwhile" in out.read_text())
            gone.path.unlink()
            first = other.line() + other.line()
            other.path.write_bytes(first)
            until(lambda: any(first in path.read_bytes() for path in spool.glob("*/spool/?*[0-9]")))
            other.path.write_bytes(other.line("rewritten"))
            until(lambda: any(b"rewritten 3" in path.read_bytes() for path in spool.glob("*/spool/?*[0-9]")))
            running.kill(signal.SIGKILL)
            running.wait()
        with run.in_background("watch", "--every", "0.1") as (running, out):
            session.add(1)
            until(lambda: "lines are kept on disk" in out.read_text())
            way.retarget(url)
            until(lambda: not list(spool.glob("*/spool/?*[0-9]")))
            session.add(1)
            until(lambda: store.thread(f"{session.thread}/lines").last_seq == 11)
            running.kill(signal.SIGTERM)
            assert running.wait() == 0
        run("watch", "--once", code=None)
    assert_kept_once(store, session)
    assert kept(store, gone.thread, tmp_path) == lost
    assert kept(store, other.thread, tmp_path, generation=1) == first
    assert kept(store, other.thread, tmp_path) == other.data()
    assert said(store, other.thread) == ["rewritten 3"]


def test_one_watcher_at_a_time(run: Run, store: cs.Store, session: Session) -> None:
    with run.in_background("watch", "--every", "0.1") as (running, out):
        until(lambda: "watching" in out.read_text())
        assert "another process watches" in run("watch", "--once", code=1).stderr
        running.kill(signal.SIGTERM)
        assert running.wait() == 0
    run("watch", "--once")
    assert_kept_once(store, session)


def test_two_watchers_on_two_machines_store_each_line_once(
    run: Run, store: cs.Store, session: Session, tmp_path: Path
) -> None:
    """As with a home folder that two machines share: they have no lock in common."""
    more = {"XDG_STATE_HOME": str(tmp_path / "other")}
    with (
        run.in_background("watch", "--every", "0.1") as (one, _),
        run.in_background("watch", "--every", "0.1", **more) as (two, _),
    ):
        for _ in range(30):
            session.add(3)
            time.sleep(0.03)
        until(lambda: len(list(store.threads())) == 2)
        until(lambda: store.thread(f"{session.thread}/lines").last_seq == 95)
        until(lambda: len(said(store, session.thread)) == 95)
        for running in (one, two):
            running.kill(signal.SIGTERM)
            assert running.wait() == 0
    assert_kept_once(store, session)


def test_a_hook_wakes_the_watcher(run: Run, store: cs.Store, session: Session) -> None:
    run("hooks", "notify")
    with run.in_background("watch", "--every", "600") as (running, out):
        until(lambda: "kept 5" in out.read_text() or '"lines":5' in out.read_text())
        session.add(1)
        run("hooks", "notify", '{"type":"agent-turn-complete"}')
        until(lambda: store.thread(f"{session.thread}/lines").last_seq == 6)
        running.kill(signal.SIGINT)
        assert running.wait() == 0


def test_the_hooks_are_printed_and_no_settings_are_changed(run: Run, tmp_path: Path) -> None:
    printed = json.loads(run("hooks", "print", "claude").stdout)
    assert set(printed["hooks"]) == {"SessionEnd", "PreCompact"}
    assert run("hooks", "print", "codex").stdout == 'notify = ["compaction-store", "hooks", "notify"]\n'
    assert "claude or codex" in run("hooks", "print", code=2).stderr
    assert not (tmp_path / ".claude").exists()


def test_a_service_is_printed_and_written_if_the_user_agrees(run: Run, tmp_path: Path) -> None:
    path = tmp_path / ".config" / "systemd" / "user" / "compaction-store-watch.service"
    printed = run("watch", "--install", "--tenant", "my agents").stdout
    assert '"watch" "--tenant" "my agents"\n' in printed
    assert not path.exists()
    assert run("watch", "--install", "--tenant", "my agents", "--yes").stdout == printed
    assert path.read_text() == printed


def test_what_is_not_understood_is_said(run: Run, store: cs.Store, session: Session, tmp_path: Path) -> None:
    with session.path.open("ab") as file:
        file.write(b"no json\n\xff\xfe\n")
    strange = session.path.with_name(f"{'0' * 8}-0000-4000-8000-{'0' * 12}.jsonl")
    strange.write_bytes(b'{"type":"new-format"}\n')
    foreign = tmp_path / "notes.jsonl"
    foreign.write_bytes(b'{"a":1}\n')
    found = run.json("watch", "--once", str(session.path.parent), str(foreign), code=1)[0]["findings"]
    assert sorted(finding.partition(str(tmp_path))[0] for finding in found) == [
        "",
        "lines of ",
        "lines of ",
        "nothing in ",
    ]
    assert "no json" not in str(found)
    assert kept(store, session.thread, tmp_path) == session.data()
    assert kept(store, f"claude-code:{strange.stem}", tmp_path) == strange.read_bytes()


def test_two_files_with_one_session_are_both_kept(run: Run, store: cs.Store, session: Session, tmp_path: Path) -> None:
    run("watch", "--once")
    copy = session.path.parent.with_name("-home-me-copy") / session.path.name
    copy.parent.mkdir()
    copy.write_bytes(session.data() + session.line("only in the copy"))
    for _ in range(2):
        run("watch", "--once", code=None)
        _forget(tmp_path)
    threads = [t.thread_id for t in store.threads() if t.thread_id.endswith("/lines")]
    assert len(threads) == 2
    assert sorted(kept(store, name, tmp_path) for name in threads) == sorted([session.data(), copy.read_bytes()])
    assert_sound(store, *threads)


def test_a_moved_file_is_the_same_session(run: Run, store: cs.Store, session: Session) -> None:
    run("watch", "--once")
    moved = session.path.parent.with_name("-home-me-moved") / session.path.name
    moved.parent.mkdir()
    session.path.rename(moved)
    session.path = moved
    session.add(1)
    [report] = run.json("watch", "--once")
    assert (report["lines"], report["findings"]) == (1, [])
    assert store.thread(f"{session.thread}/lines").metadata["file"] == f"-home-me-moved/{moved.name}"
    assert_kept_once(store, session)


def test_what_was_erased_is_not_stored_again(run: Run, store: cs.Store, session: Session) -> None:
    run("watch", "--once")
    done = store.custody.erase_subject(session.thread, reason="asked")
    assert len(list(done)) == 2
    session.add(1)
    [report] = run.json("watch", "--once", code=1)
    assert any("its thread was erased" in finding for finding in report["findings"])
    assert [t.thread_id for t in store.threads() if not t.thread_id.startswith("erased:")] == []
    [report] = run.json("watch", "--once")
    assert (report["lines"], report["messages"]) == (0, 0)


def test_a_redacted_line_is_not_stored_again(run: Run, store: cs.Store, session: Session, tmp_path: Path) -> None:
    run("watch", "--once")
    store.custody.redact(f"{session.thread}/lines", [2], reason="asked")
    _forget(tmp_path)
    session.add(1)
    [report] = run.json("watch", "--once")
    assert (report["lines"], report["findings"]) == (1, [])
    assert store.thread(f"{session.thread}/lines").last_seq == 6
    target = tmp_path / "out"
    assert "seq 2" in run("restore", session.thread, "--to", str(target), code=2).stderr
    assert list(target.rglob("*.jsonl")) == []
    said_ = run("restore", session.thread, "--to", str(target), "--skip-redacted", "--table").stdout
    assert "without 1 redacted line" in said_
    lines = session.data().splitlines(keepends=True)
    assert next(target.rglob("*.jsonl")).read_bytes() == b"".join([lines[0], *lines[2:]])


def test_a_redacted_message_is_not_stored_again(run: Run, store: cs.Store, session: Session) -> None:
    run("watch", "--once")
    store.custody.redact(session.thread, [2], reason="asked")
    session.add(1)
    [report] = run.json("watch", "--once", code=1)
    assert report["lines"] == 1
    assert any("is not imported" in finding for finding in report["findings"])
    session.path.write_bytes(session.line("new") + session.data())
    run("watch", "--once", code=1)
    assert store.thread(session.thread).last_seq == 5


def test_the_doctor_says_how_long_claude_code_keeps_transcripts(run: Run, tmp_path: Path) -> None:
    def found() -> list[str]:
        return [check["what"] for check in run.json("doctor") if check["name"] == "transcripts"]

    assert found() == []
    (tmp_path / ".claude").mkdir()
    assert "after 30 days" in found()[0]
    settings = tmp_path / ".claude" / "settings.json"
    settings.write_text('{"cleanupPeriodDays": 7}')
    assert "after 7 days" in found()[0]
    settings.write_text('{"cleanupPeriodDays": 99999}')
    assert found() == []
