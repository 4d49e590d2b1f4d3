"""Creates the data folder of an embedded Postgres, completely or not at all, and runs programs on it.

In the folder, `data` belongs to the server, `locks` has the lock files, and `log` is the server's log. A new `data`
folder gets its name only when it is complete, so a folder with this name always works. The permissions of parent
folders are not changed. Postgres refuses to run as root. So for root, it runs under a separate account, which is
created if there is none.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compaction_store.errors import DatabaseUnavailable, NotConfigured, UnsupportedDatabase
from compaction_store.files import sync_folder
from compaction_store.module_data import ModuleData
from compaction_store.postgres_embedded import postmaster

ACCOUNT = "compaction-store"
_TEXTS: dict[str, str] = ModuleData(__file__).values
# How a program names its working directory on Linux.
_WORKING_DIRECTORY = "/proc/self/cwd"
_INCOMPLETE = "making"
_LOG_BYTES = 4 * 1024 * 1024
# The minimum free space that the server needs: one segment of the write-ahead log.
_LEAST_FREE = 16 * 1024 * 1024


@dataclass(frozen=True)
class Binaries:
    """The folder and the major version of the newest Postgres in the wheel."""

    folder: Path
    major: int


@dataclass(frozen=True)
class DataFolder:
    """A data folder and its binaries. `timeout` is the number of seconds to wait for the locks and for the server."""

    path: Path
    binaries: Binaries
    timeout: float

    @property
    def data(self) -> Path:
        return self.path / postmaster.DATA

    @property
    def exists(self) -> bool:
        return (self.data / "PG_VERSION").exists()

    def program(self, name: str) -> str:
        return str(self.binaries.folder / name)


def find_binaries(package: Path) -> Binaries | None:
    """Finds the newest Postgres in the wheel, without importing the wheel, which would change shared folders."""
    found = []
    for catalog in package.glob("pginstall*/share/postgresql/postgres.bki"):
        with catalog.open(encoding="utf-8") as lines:
            # The first line is "# PostgreSQL 18".
            found.append(Binaries(catalog.parents[2] / "bin", int(next(lines).split()[2])))
    return max(found, key=lambda binaries: binaries.major, default=None)


def check_version(folder: DataFolder) -> None:
    """Raises an error if a different major version of Postgres, or another program, made the data. Changes nothing."""
    needed = folder.binaries.major
    for data in (folder.data, folder.path):
        with suppress(FileNotFoundError, NotADirectoryError):
            found = (data / "PG_VERSION").read_text(encoding="utf-8", errors="replace").strip()[:20]
            if found != str(needed):
                found = found or "of an unknown version"
                raise UnsupportedDatabase(_TEXTS["other_version"].format(data=data, found=found, needed=needed))
            if data == folder.path:
                raise UnsupportedDatabase(f"{data} is the Postgres data folder of another program")


def create(folder: DataFolder, account: pwd.struct_passwd | None, starting: int) -> None:
    """Runs initdb in a folder with a temporary name, and renames the folder. The caller holds the lock `starting`."""
    if folder.data.exists() and any(folder.data.iterdir()):
        raise DatabaseUnavailable(f"{folder.data} must be empty or a Postgres data folder, but it is neither")
    for left in folder.path.glob(f"{_INCOMPLETE}*"):
        shutil.rmtree(left)
    incomplete = folder.path / _INCOMPLETE
    incomplete.mkdir(mode=0o700)
    try:
        if account is not None:
            os.chown(incomplete, account.pw_uid, account.pw_gid)
        where, options = run_options(account, incomplete)
        command = (
            folder.program("initdb"), "-D", where, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"
        )  # fmt: skip
        with open_log(folder) as (log, _):
            # initdb inherits the lock. So if only this process is killed, no other process starts until initdb ends.
            # The output is captured in memory first, because the disk of the log may be full.
            done = run(
                command, account, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(starting,), **options
            )
            with suppress(OSError):
                os.write(log, done.stdout)
            if done.returncode:
                why = _failure(done.stdout, folder)
                raise DatabaseUnavailable(f"cannot create the embedded Postgres in {folder.path}: {why}")
        incomplete.rename(folder.data)
    finally:
        shutil.rmtree(incomplete, ignore_errors=True)
    sync_folder(folder.path)


def account_for(data: Path) -> pwd.struct_passwd | None:
    """Finds or creates the account for the server. Returns None if the caller is not root and needs no account."""
    if os.geteuid() != 0:
        return None
    with suppress(FileNotFoundError):
        owner = data.stat().st_uid
        if owner:
            return pwd.getpwuid(owner)
    with suppress(KeyError):
        return pwd.getpwnam(ACCOUNT)
    with suppress(OSError, KeyError):
        return _create_account()
    raise NotConfigured(_TEXTS["no_account"].format(account=ACCOUNT))


def _create_account() -> pwd.struct_passwd:
    """Creates the account. Only one process at a time may run useradd, which checks the name before it takes its own
    lock: a second would replace the account with one that has a different uid and cannot read the files.
    """
    command = ("useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", ACCOUNT)
    folder = os.open("/etc", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with suppress(KeyError):
            return pwd.getpwnam(ACCOUNT)
        subprocess.run(command, check=False, capture_output=True)  # noqa: S603 — a constant
        return pwd.getpwnam(ACCOUNT)
    finally:
        os.close(folder)


def run_options(account: pwd.struct_passwd | None, folder: Path) -> tuple[str, dict[str, Any]]:
    """Returns the path by which a program under the account reaches the folder, and the options to run the program."""
    options: dict[str, Any] = {
        "cwd": folder,
        "env": {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
        | {"LC_ALL": "C"},
        "stdin": subprocess.DEVNULL,
    }
    if account is None:
        return str(folder), options
    options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    # The folder is often in the home of root, which the account cannot enter. On Linux, a process can reach its working
    # directory nevertheless. So the permissions of the parent folders need not be changed.
    return (_WORKING_DIRECTORY if sys.platform == "linux" else str(folder)), options


def run(
    command: Sequence[str], account: pwd.struct_passwd | None, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, check=False, **options)  # noqa: S603 — our own words, no shell
    except PermissionError:
        who = "this user" if account is None else f"the account {account.pw_name}, which runs the server for root,"
    raise NotConfigured(f"{who} must be able to run {command[0]}: install the package where all users can read it")


def run_detached(command: Sequence[str], account: pwd.struct_passwd | None, **options: Any) -> None:
    """Starts a program that outlives this process, is not its child process, and gets no signals from its terminal."""
    shell = ("/bin/sh", "-c", 'exec "$@" &', "sh", *command)
    run(shell, account, start_new_session=True, **options)


@contextmanager
def open_log(folder: DataFolder) -> Iterator[tuple[int, Callable[[], str]]]:
    """Opens the log for appending. Yields its descriptor, and a function that finds the reason for a failure in it."""
    path = folder.path / "log"
    with suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_BYTES:
            path.replace(folder.path / "log.old")
    log = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    start = os.fstat(log).st_size
    try:
        yield log, lambda: _failure(os.pread(log, _LOG_BYTES, start), folder)
    finally:
        os.close(log)


def _failure(output: bytes, folder: DataFolder) -> str:
    """Returns why a program failed: the lines around its first error, and whether the disk is full."""
    lines = output.decode("utf-8", "replace").replace(_WORKING_DIRECTORY, str(folder.data)).splitlines()
    serious = (i for i, line in enumerate(lines) if any(word in line for word in ("error:", "FATAL:", "PANIC:")))
    # The reason is in the line with the error, in the line before it or in the line after it.
    first = next(serious, len(lines) - 1)
    why = [line.strip() for line in lines[max(0, first - 1) : first + 2]] or ["it printed nothing"]
    return "; ".join((*why, *_disk_trouble(folder.path)))


def _disk_trouble(folder: Path) -> Iterator[str]:
    """Yields a text if the disk is full or cannot be written. The program may have been unable to log this."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(8192))
    except OSError as error:
        yield f"the folder cannot be written: {error.strerror}"
    else:
        if (free := shutil.disk_usage(folder).free) < _LEAST_FREE:
            yield f"its disk has {free:,} bytes left"
