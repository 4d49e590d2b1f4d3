"""The data folder of an embedded Postgres and the server on it: made whole or not at all, and started once.

Everything lies in one folder: `data` is the server's own, `locks` says who uses it, `log` is what it reported. A new
`data` is made under another name and renamed when it is complete, so a folder that exists is a folder that works.
Only the binaries of the wheel are used. Nothing outside the folder is changed; run as root, which Postgres refuses to
be, the server gets an account of its own, and no folder on the way is opened for others.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compaction_store.errors import DatabaseUnavailable, NotConfigured, UnsupportedDatabase
from compaction_store.postgres_embedded import reaper
from compaction_store.postgres_embedded.reaper import DATA, PAUSE, open_lock, try_lock

ACCOUNT = "compaction-store"
_MAKING = "making"
_LOG_BYTES = 4 * 1024 * 1024
# A file of the server's own log of changes, of which it needs one at the least.
_LEAST_FREE = 16 * 1024 * 1024

# On the command line, where neither postgresql.conf nor ALTER SYSTEM can undo them.
_SETTINGS = {
    # Only a socket in the data folder, which is its owner's alone. Relative, because a socket's path may be short only.
    "listen_addresses": "",
    "unix_socket_directories": ".",
    "unix_socket_permissions": "0700",
    "port": "5432",
    # An acknowledged message survives a crash of the machine.
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    # The log is one file and never quotes a row or a statement.
    "logging_collector": "off",
    "log_destination": "stderr",
    "log_statement": "none",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}


@dataclass(frozen=True)
class Binaries:
    """The wheel's newest Postgres."""

    folder: Path
    major: int


@dataclass(frozen=True)
class Cluster:
    """One data folder, the binaries for it, and how long anyone waits for anyone."""

    folder: Path
    binaries: Binaries
    patience: float

    @property
    def data(self) -> Path:
        return self.folder / DATA


def find_binaries(package: Path) -> Binaries | None:
    """The newest server in the wheel. The wheel itself is not imported: that would touch folders all users share."""
    found = []
    for catalog in package.glob("pginstall*/share/postgresql/postgres.bki"):
        with catalog.open(encoding="utf-8") as lines:
            # The first line is "# PostgreSQL 18".
            found.append(Binaries(catalog.parents[2] / "bin", int(next(lines).split()[2])))
    return max(found, key=lambda binaries: binaries.major, default=None)


def refuse_other_version(cluster: Cluster) -> None:
    """Raises, with nothing touched, where the data is not this Postgres's to open."""
    needed = cluster.binaries.major
    for data in (cluster.data, cluster.folder):
        with suppress(FileNotFoundError, NotADirectoryError):
            found = (data / "PG_VERSION").read_text(encoding="utf-8", errors="replace").strip()[:20]
            if found != str(needed):
                raise UnsupportedDatabase(
                    f"{data} was made by Postgres {found or 'of an unknown version'} and needs it; this installation "
                    f"brings Postgres {needed}. Where the former one is installed, write the store to a file with "
                    "`compaction-store export`; move the folder away; read the file with `compaction-store import`"
                )
            if data == cluster.folder:
                raise UnsupportedDatabase(f"{data} is another program's Postgres data folder")


def start(cluster: Cluster) -> int:
    """A running server, made, started or joined. The lock returned is the caller's share: while it is open, it runs.

    Killed at any moment, this leaves a folder that the next call completes.
    """
    refuse_other_version(cluster)
    (cluster.folder / reaper.LOCKS).mkdir(mode=0o700, parents=True, exist_ok=True)
    end = time.monotonic() + cluster.patience
    with _locked(cluster, reaper.STARTING, fcntl.LOCK_EX, end) as starting:
        users = _lock(cluster, reaper.USERS, fcntl.LOCK_SH, end)
        try:
            account = _account(cluster)
            if not (cluster.data / "PG_VERSION").exists():
                _make(cluster, account, starting)
            _keep(cluster)
            _run(cluster, account, end)
        except BaseException:
            os.close(users)
            raise
    return users


def restart(cluster: Cluster) -> bool:
    """Starts the server again if it has died; whether that was necessary. For whoever has a share.

    Of several who find it dead, one starts it and the others wait. Nothing is made: a folder that was removed while it
    was in use is not replaced by an empty one.
    """
    end = time.monotonic() + cluster.patience
    with _locked(cluster, reaper.STARTING, fcntl.LOCK_EX, end):
        if _is_running(cluster):
            return False
        if not (cluster.data / "PG_VERSION").exists():
            raise DatabaseUnavailable(f"the data of the embedded Postgres in {cluster.folder} has been removed")
        _keep(cluster)
        _run(cluster, _account(cluster), end)
    return True


def leave(cluster: Cluster, users: int) -> None:
    """Gives a share back; the last one stops the server, before this returns."""
    os.close(users)
    end = time.monotonic() + cluster.patience
    with _locked(cluster, reaper.STARTING, fcntl.LOCK_EX, end):
        last = open_lock(cluster.folder / reaper.USERS)
        try:
            # Where it cannot even be shared, the keeper was faster: then its stopping is waited for.
            is_last = try_lock(last)
            if is_last or not try_lock(last, fcntl.LOCK_SH):
                reaper.stop(cluster.folder, cluster.patience)
                reaper.remove_links(cluster.folder)
        finally:
            os.close(last)


def _lock(cluster: Cluster, name: str, how: int, end: float) -> int:
    lock = open_lock(cluster.folder / name)
    while not try_lock(lock, how):
        if time.monotonic() >= end:
            os.close(lock)
            raise DatabaseUnavailable(
                f"the embedded Postgres in {cluster.folder} is being started or stopped by another process, "
                f"which has not finished within {cluster.patience:g} seconds"
            )
        time.sleep(PAUSE)
    return lock


@contextmanager
def _locked(cluster: Cluster, name: str, how: int, end: float) -> Iterator[int]:
    lock = _lock(cluster, name, how, end)
    try:
        yield lock
    finally:
        os.close(lock)


def _account(cluster: Cluster) -> pwd.struct_passwd | None:
    """Whom the server runs as: None for the caller himself, which Postgres allows to anyone but root."""
    if os.geteuid() != 0:
        return None
    with suppress(FileNotFoundError):
        owner = cluster.data.stat().st_uid
        if owner:
            return pwd.getpwuid(owner)
    with suppress(KeyError):
        return pwd.getpwnam(ACCOUNT)
    command = ("useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", ACCOUNT)
    with suppress(OSError):
        subprocess.run(command, check=False, capture_output=True)  # noqa: S603 — no part of it is input
    with suppress(KeyError):
        return pwd.getpwnam(ACCOUNT)
    raise NotConfigured(
        f"Postgres does not run as root, and the account {ACCOUNT} for it could not be made: "
        "make it, run as another user, or give a database's URL"
    )


def _as(account: pwd.struct_passwd | None, folder: Path) -> tuple[str, dict[str, Any]]:
    """How a command sees the data folder, and the way to run it there as the account."""
    options: dict[str, Any] = {
        "cwd": folder,
        "env": {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
        | {"LC_ALL": "C"},
        "stdin": subprocess.DEVNULL,
    }
    if account is None:
        return str(folder), options
    options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    # The account may have no way to the folder, which often lies in root's own home. It starts inside it, and Linux
    # lets a process reach where it stands, so that no folder on the way must be opened for everyone.
    return ("/proc/self/cwd" if sys.platform == "linux" else str(folder)), options


def _make(cluster: Cluster, account: pwd.struct_passwd | None, starting: int) -> None:
    if cluster.data.exists() and any(cluster.data.iterdir()):
        raise DatabaseUnavailable(f"{cluster.data} is not empty, and it is no Postgres data folder")
    for rest in cluster.folder.glob(f"{_MAKING}*"):
        shutil.rmtree(rest)
    making = cluster.folder / _MAKING
    making.mkdir(mode=0o700)
    try:
        if account is not None:
            os.chown(making, account.pw_uid, account.pw_gid)
        where, options = _as(account, making)
        command = (
            _program(cluster, "initdb"), "-D", where, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"
        )  # fmt: skip
        with _log(cluster) as (log, _):
            # It holds the lock too: when only this process is killed, nobody else begins before initdb has ended. What
            # it says comes here first, because the log is on the disk that may be full.
            done = _spawn(
                command, account, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(starting,), **options
            )
            with suppress(OSError):
                os.write(log, done.stdout)
            if done.returncode:
                why = _reason(done.stdout, cluster.folder)
                raise DatabaseUnavailable(f"the embedded Postgres could not be made in {cluster.folder}: {why}")
        making.rename(cluster.data)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    _sync(cluster.folder)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _keep(cluster: Cluster) -> None:
    """A keeper, unless there is one. Before the server, so that a kill in between leaves no server without one."""
    python = _python()
    lock = open_lock(cluster.folder / reaper.KEEPER)
    try:
        if python is not None and try_lock(lock):
            # -P and -S: nothing but the standard library, and none of it shadowed by this package's modules.
            _detached(
                (str(python), "-P", "-S", str(Path(reaper.__file__).resolve()), str(lock)), None,
                cwd=cluster.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=(lock,),
            )  # fmt: skip
    finally:
        os.close(lock)


def _python() -> Path | None:
    """The interpreter that runs us. A program that embeds Python may name itself instead: then there is no keeper."""
    for path in (Path(sys.executable or "-"), Path(sys.prefix) / "bin" / "python3"):
        if path.name.startswith(("python", "pypy")) and path.exists():
            return path
    return None


def _run(cluster: Cluster, account: pwd.struct_passwd | None, end: float) -> None:
    """Returns when the server takes connections. One that is starting or recovering already is waited for."""
    with _log(cluster) as (log, reported):
        started = False
        while True:
            running = open_lock(cluster.folder / reaper.RUNNING)
            try:
                if try_lock(running):
                    if started:
                        raise DatabaseUnavailable(
                            f"the embedded Postgres in {cluster.folder} did not start: {reported()}"
                        )
                    _clear(cluster)
                    _serve(cluster, account, log, running)
                    started = True
                elif reaper.is_ready(cluster.data):
                    return
            finally:
                os.close(running)
            if time.monotonic() >= end:
                raise DatabaseUnavailable(
                    f"the embedded Postgres in {cluster.folder} is not ready after {cluster.patience:g} seconds"
                )
            time.sleep(PAUSE)


def _is_running(cluster: Cluster) -> bool:
    running = open_lock(cluster.folder / reaper.RUNNING)
    try:
        return not try_lock(running, fcntl.LOCK_SH) and reaper.is_ready(cluster.data)
    finally:
        os.close(running)


def _serve(cluster: Cluster, account: pwd.struct_passwd | None, log: int, running: int) -> None:
    where, options = _as(account, cluster.data)
    # A copy of the folder often has other modes, with which Postgres does not start.
    cluster.data.chmod(0o700)
    settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
    command = (_program(cluster, "postgres"), "-D", where, *settings)
    _detached(command, account, stdout=log, stderr=log, pass_fds=(running,), **options)


def _clear(cluster: Cluster) -> None:
    """Removes what a killed server left. Its process id may be another program's by now, and Postgres would not start.

    Called with the running lock held: no server of ours is alive. One started by hand is left alone.
    """
    pid, _ = reaper.postmaster(cluster.data)
    if pid is not None and _serves(pid, cluster.data):
        raise DatabaseUnavailable(f"another Postgres, process {pid}, was started on {cluster.data}: stop it first")
    for name in ("postmaster.pid", ".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
        (cluster.data / name).unlink(missing_ok=True)


def _serves(pid: int, data: Path) -> bool:
    """Whether a process is a Postgres on this data folder."""
    known = reaper.works_in(pid, data)
    ps = Path("/bin/ps")
    if known is not None or not ps.exists():
        return bool(known)
    shown = subprocess.run((ps, "-ww", "-o", "args=", "-p", str(pid)), check=False, capture_output=True)  # noqa: S603
    return os.fsencode(data) in shown.stdout


def _program(cluster: Cluster, name: str) -> str:
    return str(cluster.binaries.folder / name)


def _spawn(
    command: Sequence[str], account: pwd.struct_passwd | None, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, check=False, **options)  # noqa: S603 — our own words, no shell
    except PermissionError:
        who = "this user" if account is None else f"the account {account.pw_name}, which stands in for root,"
    raise NotConfigured(f"{who} may not run {command[0]}: install the package where all users can read it")


def _detached(command: Sequence[str], account: pwd.struct_passwd | None, **options: Any) -> None:
    """Starts a program that outlives this process, is nobody's child and hears no terminal's signals."""
    shell = ("/bin/sh", "-c", 'exec "$@" &', "sh", *command)
    _spawn(shell, account, start_new_session=True, **options)


@contextmanager
def _log(cluster: Cluster) -> Iterator[tuple[int, Callable[[], str]]]:
    """The log to append to, and what the programs say in it from now on of why they failed, in one line."""
    path = cluster.folder / "log"
    with suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_BYTES:
            path.replace(cluster.folder / "log.old")
    log = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    start = os.fstat(log).st_size

    try:
        yield log, lambda: _reason(os.pread(log, _LOG_BYTES, start), cluster.folder)
    finally:
        os.close(log)


def _reason(said: bytes, folder: Path) -> str:
    """Why a program failed, by what it said and by what room there is on its disk, in one line."""
    lines = said.decode("utf-8", "replace").splitlines()
    serious = (i for i, line in enumerate(lines) if any(word in line for word in ("error:", "FATAL:", "PANIC:")))
    # The reason stands in that line, or in the one before or after it.
    first = next(serious, len(lines) - 1)
    why = [line.strip() for line in lines[max(0, first - 1) : first + 2]] or ["it said nothing"]
    return "; ".join((*why, *_no_room(folder)))


def _no_room(folder: Path) -> Iterator[str]:
    """Whether nothing can be written in a folder: programs often cannot say so, for want of room for their log."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(8192))
    except OSError as error:
        yield f"nothing can be written there: {error.strerror}"
    else:
        if (free := shutil.disk_usage(folder).free) < _LEAST_FREE:
            yield f"its disk has {free:,} bytes left"
