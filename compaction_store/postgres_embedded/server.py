"""Starts the server of a data folder for its first user, and stops it after its last user has left."""

from __future__ import annotations

import fcntl
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from compaction_store.errors import DatabaseUnavailable
from compaction_store.module_data import ModuleData
from compaction_store.postgres_embedded import data_folder, locks, postmaster, reaper, socket_links
from compaction_store.postgres_embedded.data_folder import DataFolder
from compaction_store.postgres_embedded.locks import PAUSE, open_lock, opened, try_lock

# These settings are passed on the command line, so that neither postgresql.conf nor ALTER SYSTEM can override them.
_SETTINGS = ModuleData(__file__).values["settings"]


def start(folder: DataFolder) -> int:
    """Creates, starts or joins the server, which runs while any process holds the users' lock. Returns the descriptor
    of this lock, held shared. If this process is killed at any point, the next call completes the folder.
    """
    data_folder.check_version(folder)
    (folder.path / locks.FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
    end = time.monotonic() + folder.timeout
    with _locked(folder, locks.STARTING, fcntl.LOCK_EX, end) as starting:
        _stop_lingering_stranger(folder)
        users = _lock(folder, locks.USERS, fcntl.LOCK_SH, end)
        try:
            account = data_folder.account_for(folder.data)
            if not folder.exists:
                data_folder.create(folder, account, starting)
            _start_reaper(folder)
            _start_server(folder, account, end)
        except BaseException:
            os.close(users)
            raise
    return users


def restart(folder: DataFolder) -> bool:
    """Starts the server again if it has died. Returns whether it had died. The caller must hold the users' lock.

    If several processes find that the server has died, one starts it and the others wait. If the folder was removed
    while it was in use, this raises an error and does not create an empty folder.
    """
    end = time.monotonic() + folder.timeout
    with _locked(folder, locks.STARTING, fcntl.LOCK_EX, end):
        if postmaster.is_running(folder.path) and postmaster.is_ready(folder.data):
            return False
        if not folder.exists:
            raise DatabaseUnavailable(f"the data of the embedded Postgres in {folder.path} has been removed")
        _start_reaper(folder)
        _start_server(folder, data_folder.account_for(folder.data), end)
    return True


def leave(folder: DataFolder, users: int, *, linger: float) -> None:
    """Releases the users' lock. If the caller is the last user, stops the server and waits until it has stopped.

    With `linger`, the reaper stops the server this many seconds later, unless a new user has joined. If there is no
    reaper, or the disk is full, this call stops the server at once.
    """
    lingers = linger > 0 and _let_linger(folder, linger)
    os.close(users)
    if lingers:
        return
    end = time.monotonic() + folder.timeout
    with _locked(folder, locks.STARTING, fcntl.LOCK_EX, end), opened(folder.path / locks.USERS) as last:
        # If even a shared lock is refused, the reaper holds the lock. Wait until the reaper has stopped the server.
        is_last = try_lock(last)
        if is_last or not try_lock(last, fcntl.LOCK_SH):
            postmaster.stop(folder.path, folder.timeout)
            socket_links.remove(folder.path)


def _let_linger(folder: DataFolder, seconds: float) -> bool:
    with suppress(OSError):
        with opened(folder.path / locks.REAPER) as reaper_lock:
            if try_lock(reaper_lock, fcntl.LOCK_SH):
                return False
        reaper.let_linger(folder.path, seconds)
        return True
    return False


def _lock(folder: DataFolder, name: str, how: int, end: float) -> int:
    lock = open_lock(folder.path / name)
    while not try_lock(lock, how):
        if time.monotonic() >= end:
            os.close(lock)
            raise DatabaseUnavailable(
                f"another process is starting or stopping the embedded Postgres in {folder.path}, "
                f"and did not finish within {folder.timeout:g} seconds"
            )
        time.sleep(PAUSE)
    return lock


@contextmanager
def _locked(folder: DataFolder, name: str, how: int, end: float) -> Iterator[int]:
    lock = _lock(folder, name, how, end)
    try:
        yield lock
    finally:
        os.close(lock)


def _start_reaper(folder: DataFolder) -> None:
    """Starts a reaper unless one is running or there is no interpreter for it. It must start before the server does."""
    python = _python()
    with opened(folder.path / locks.REAPER) as lock:
        if python is not None and try_lock(lock):
            # With -P and -S, the reaper can import only the standard library.
            data_folder.run_detached(
                (str(python), "-P", "-S", "-c", reaper.COMMAND, str(Path(__file__).resolve().parents[1]), str(lock)),
                None, cwd=folder.path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=(lock,),
            )  # fmt: skip


def _python() -> Path | None:
    """Finds the interpreter of this process, to run the reaper. Returns None if a program embeds Python."""
    for path in (Path(sys.executable or "-"), Path(sys.prefix) / "bin" / "python3"):
        if path.name.startswith(("python", "pypy")) and path.exists():
            return path
    return None


def _start_server(folder: DataFolder, account: pwd.struct_passwd | None, end: float) -> None:
    """Starts the server unless it is running, and waits until it accepts connections."""
    with data_folder.open_log(folder) as (log, failure):
        started = False
        while True:
            with opened(folder.path / locks.RUNNING) as running:
                if try_lock(running):
                    if started:
                        raise DatabaseUnavailable(f"the embedded Postgres in {folder.path} did not start: {failure()}")
                    _remove_leftovers(folder)
                    _run_server(folder, account, log, running)
                    started = True
                elif postmaster.is_ready(folder.data):
                    return
            if time.monotonic() >= end:
                raise DatabaseUnavailable(
                    f"the embedded Postgres in {folder.path} was not ready after {folder.timeout:g} seconds"
                )
            time.sleep(PAUSE)


def _stop_lingering_stranger(folder: DataFolder) -> None:
    """Stops a server without users if its program is from another installation, which may have been removed."""
    with opened(folder.path / locks.USERS) as users:
        if try_lock(users) and postmaster.runs(folder.data, folder.program("postgres")) is False:
            postmaster.stop(folder.path, folder.timeout)


def _run_server(folder: DataFolder, account: pwd.struct_passwd | None, log: int, running: int) -> None:
    where, options = data_folder.run_options(account, folder.data)
    # Postgres refuses to start if the folder has other permissions, which a copied folder often has.
    folder.data.chmod(0o700)
    settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
    command = (folder.program("postgres"), "-D", where, *settings)
    data_folder.run_detached(command, account, stdout=log, stderr=log, pass_fds=(running,), **options)


def _remove_leftovers(folder: DataFolder) -> None:
    """Removes what a killed server left behind, which would block a start if another program has its process id now.
    The caller must hold the running lock. Raises an error if a server that was started by hand runs on the folder.
    """
    pid, _ = postmaster.read_pid_file(folder.data)
    if pid is not None and _is_server_on(pid, folder.data):
        raise DatabaseUnavailable(f"another Postgres, process {pid}, is running on {folder.data}: stop it first")
    for name in ("postmaster.pid", ".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
        (folder.data / name).unlink(missing_ok=True)


def _is_server_on(pid: int, data: Path) -> bool:
    known = postmaster.works_in(pid, data)
    ps = Path("/bin/ps")
    if known is not None or not ps.exists():
        return bool(known)
    shown = subprocess.run((ps, "-ww", "-o", "args=", "-p", str(pid)), check=False, capture_output=True)  # noqa: S603
    return os.fsencode(data) in shown.stdout
