"""Connects to an embedded server, and never to another server, regardless of the environment.

libpq takes missing parameters from environment variables and service files, even the server's address. The URL of an
embedded server has the folder of a socket and an empty `hostaddr`. For such a URL, this module passes every parameter
to libpq. It keeps a new connection only if the connection goes over a Unix socket to the database in this folder. If
the server has died and this process holds a share in it, the module restarts the server.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg import pq

from compaction_store.errors import CompactionStoreError
from compaction_store.module_data import ModuleData
from compaction_store.waiting import Call, Work, drive, drive_async

# Every parameter that libpq takes from the environment or a service file, except the parameters that the URL has or the
# engine sets. libpq does not replace an empty value. With a password, libpq does not read a password file, and the
# embedded server asks for no password.
_GIVEN: dict[str, str] = ModuleData(__file__).values["given"]
# Environment variables that no parameter overrides, each with a word from libpq's error about a bad value. After such
# an error, the variable is removed from the environment while connecting. This breaks no other code, because none in
# this process can connect with the bad value.
_ENVIRONMENT = {"PGSERVICE": "service", "PGTZ": '"TimeZone"', "PGDATESTYLE": '"DateStyle"', "PGGEQO": '"geqo"'}
# The driver cannot parse times in another DateStyle. A session setting is safe, because there is no pooler in between.
_IDENTIFIER = (
    b"SELECT system_identifier FROM pg_catalog.pg_control_system(), pg_catalog.set_config('DateStyle', 'ISO', false)"
)


class Share(Protocol):
    """The share of this process in a running server."""

    folder_of_socket: str
    identifier: int

    def restart(self, seconds: float) -> bool:
        """Starts the server again if it has died. Returns whether it had died. Raises only errors of this package."""


_shares: weakref.WeakSet[Any] = weakref.WeakSet()


def register(share: Share) -> None:
    _shares.add(share)


def forget(share: Share) -> None:
    _shares.discard(share)


def folder(given: Mapping[str, Any]) -> str | None:
    """Returns the folder of the socket if the parameters of a URL or an engine are those of an embedded server."""
    host = given.get("host")
    return host if isinstance(host, str) and host.startswith("/") and given.get("hostaddr") == "" else None


def parameters() -> dict[str, str]:
    """Returns the parameters for a connection to an embedded server, without those that this libpq does not know."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    return {name: value for name, value in _GIVEN.items() if name in known}


def identifier(data: Path) -> int:
    """Returns the system identifier in the data folder's control file."""
    with (data / "global" / "pg_control").open("rb") as file:
        found: int = struct.unpack("=q", file.read(8))[0]
    return found


class Server:
    """The embedded server of an engine, identified by its socket's folder and its database."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._identifier: int | None = None
        # If the file cannot be read now, it is read after the first connection.
        with suppress(OSError):
            self._identifier = identifier(Path(folder))

    def connect(self, make: Callable[[], psycopg.Connection[Any]], seconds: float) -> psycopg.Connection[Any]:
        """Connects by calling `make`. If the server has died, restarts it within `seconds` and connects again."""
        return drive(self._connect(make, seconds))

    async def connect_aio(
        self, make: Callable[[], Awaitable[psycopg.AsyncConnection[Any]]], seconds: float
    ) -> psycopg.AsyncConnection[Any]:
        return await drive_async(self._connect(make, seconds))

    def _connect(self, make: Callable[[], Any], seconds: float) -> Work[Any]:
        bad_variables: set[str] = set()
        restarted = False
        while True:
            try:
                with _without(bad_variables):
                    connection = yield make()
            except psycopg.OperationalError as error:
                failure = error.with_traceback(None)
            else:
                yield from self._check(connection)
                return connection
            if not _add_bad_variables(failure, bad_variables):
                if restarted or not (yield Call(self._restart, failure, seconds)):
                    raise failure
                restarted = True

    def _restart(self, failure: psycopg.Error, seconds: float) -> bool:
        """Restarts a server that has died, if this process holds a share in it. Returns whether it did so."""
        if isinstance(failure, psycopg.errors.ConnectionTimeout):
            return False
        place = (self._folder, self._identifier)
        shares = (share for share in list(_shares) if (share.folder_of_socket, share.identifier) == place)
        try:
            return any(share.restart(seconds) for share in shares)
        except CompactionStoreError as error:
            why = str(error)
        raise psycopg.OperationalError(why)

    def _check(self, connection: Any) -> Work[None]:
        """Checks that a connection leads to this server. Closes it and raises an error if it does not."""
        try:
            with socket.socket(fileno=os.dup(connection.pgconn.socket)) as peer:
                if peer.family != socket.AF_UNIX:
                    raise psycopg.OperationalError("the connection must go over the Unix socket of the embedded server")
            yield connection.set_autocommit(True)
            cursor = yield connection.execute(_IDENTIFIER)
            self._check_database((yield cursor.fetchone()))
            yield connection.set_autocommit(False)
        except BaseException:
            yield connection.close()
            raise

    def _check_database(self, row: Any) -> None:
        why = ""
        if self._identifier is None:
            try:
                self._identifier = identifier(Path(self._folder))
            except OSError as error:
                why = f"cannot read the embedded server's folder: {error.strerror}"
        if why:
            raise psycopg.OperationalError(why)
        if row is None or row[0] != self._identifier:
            raise psycopg.OperationalError("the server on the embedded server's socket has another database")


def _add_bad_variables(failure: psycopg.Error, bad_variables: set[str]) -> bool:
    """Adds the variables that caused a failure. Returns whether any of them is new."""
    text = str(failure)
    # Do not check whether the variable is set, because another call may have removed it in the meantime.
    found = {name for name, word in _ENVIRONMENT.items() if word in text} - bad_variables
    bad_variables |= found
    return bool(found)


class _Environment:
    """Removes variables from the environment of the process as long as any caller wants them removed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: list[str] = []
        self._taken: dict[str, str] = {}

    def take(self, names: Collection[str]) -> None:
        with self._lock:
            self._wanted += names
            for name in names:
                if name in os.environ:
                    self._taken[name] = os.environ.pop(name)

    def give_back(self, names: Collection[str]) -> None:
        with self._lock:
            for name in names:
                self._wanted.remove(name)
                if name not in self._wanted and name in self._taken:
                    os.environ.setdefault(name, self._taken.pop(name))


_environment = _Environment()


@contextmanager
def _without(names: Collection[str]) -> Iterator[None]:
    names = tuple(names)
    _environment.take(names)
    try:
        yield
    finally:
        _environment.give_back(names)
