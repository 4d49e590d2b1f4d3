"""Connects to an embedded server, and never to another one, whatever the environment contains.

libpq takes parameters that it is not given from the environment and from service files, even the server's address. The
URL of an embedded server has a socket's folder and an empty `hostaddr`. For such a URL every parameter is given, and a
new connection is used only if it goes over a Unix socket to the database in the folder that the URL names. If the
server has died and this process holds a share in it, it is restarted.
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

from compaction_store.drivers import Call, Work, drive, drive_async
from compaction_store.errors import CompactionStoreError

# Every parameter that libpq takes from the environment or a service file, except those of the URL and the engine. An
# empty value counts as given. The password keeps libpq from reading a password file; the embedded server asks for none.
_GIVEN = {
    "hostaddr": "", "password": "unused", "require_auth": "none", "options": "", "target_session_attrs": "any",
    "load_balance_hosts": "disable", "channel_binding": "disable", "gssencmode": "disable", "sslmode": "disable",
    "sslnegotiation": "postgres", "sslcompression": "0", "sslcert": "", "sslkey": "", "sslpassword": "",
    "sslcertmode": "disable", "sslrootcert": "", "sslcrl": "", "sslcrldir": "", "sslsni": "0", "sslkeylogfile": "",
    "ssl_min_protocol_version": "TLSv1.2", "ssl_max_protocol_version": "", "requirepeer": "", "replication": "",
    "min_protocol_version": "3.0", "max_protocol_version": "3.0", "krbsrvname": "postgres", "gssdelegation": "0",
}  # fmt: skip
# Variables that have no parameter, each with a word from libpq's error about a bad value. Only after such an error is
# the variable removed from the environment, while connecting: with it, nothing in this process can connect anyway.
_ENVIRONMENT = {
    "PGSERVICE": "service", "PGTZ": '"TimeZone"', "PGDATESTYLE": '"DateStyle"', "PGGEQO": '"geqo"',
}  # fmt: skip
# The driver cannot parse times of another DateStyle. Session settings are safe here: no pooler is in between.
_IDENTIFIER = (
    b"SELECT system_identifier FROM pg_catalog.pg_control_system(), pg_catalog.set_config('DateStyle', 'ISO', false)"
)


class Share(Protocol):
    """The share of this process in a running server."""

    folder_of_socket: str
    identifier: int

    def restart(self, seconds: float) -> bool:
        """Starts the server if it has died; returns whether it had died. Raises only this package's errors."""


_shares: weakref.WeakSet[Any] = weakref.WeakSet()


def register(share: Share) -> None:
    _shares.add(share)


def forget(share: Share) -> None:
    _shares.discard(share)


def folder(given: Mapping[str, Any]) -> str | None:
    """Returns the socket's folder if a URL's query or an engine's parameters are those of an embedded server."""
    host = given.get("host")
    return host if isinstance(host, str) and host.startswith("/") and given.get("hostaddr") == "" else None


def parameters() -> dict[str, str]:
    """Returns the parameters of a connection that this version of libpq knows."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    return {name: value for name, value in _GIVEN.items() if name in known}


def identifier(data: Path) -> int:
    """Returns the system identifier in the data folder's control file."""
    with (data / "global" / "pg_control").open("rb") as file:
        found: int = struct.unpack("=q", file.read(8))[0]
    return found


# ---- connecting


class Server:
    """The embedded server of an engine, identified by its socket's folder and its database."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._identifier: int | None = None
        # If the file is missing, it is read again after the first connection.
        with suppress(OSError):
            self._identifier = identifier(Path(folder))

    def connect(self, make: Callable[[], psycopg.Connection[Any]], seconds: float) -> psycopg.Connection[Any]:
        """Connects by calling `make`; if the server has died, restarts it within `seconds`."""
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
        """Restarts a server that has died, if this process holds a share in it; returns whether it did."""
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
        """Closes a connection that does not lead to this server."""
        try:
            _check_socket(connection.pgconn.socket)
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
            raise psycopg.OperationalError("a server with another database listens on the embedded server's socket")


def _check_socket(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as peer:
        if peer.family != socket.AF_UNIX:
            raise psycopg.OperationalError("the connection does not go over the embedded server's Unix socket")


# ---- the environment


def _add_bad_variables(failure: psycopg.Error, bad_variables: set[str]) -> bool:
    """Adds the variables that a failure was caused by; returns whether there is a new one."""
    text = str(failure)
    # Whether the variable is set does not matter: another call may have removed it since.
    found = {name for name, word in _ENVIRONMENT.items() if word in text} - bad_variables
    bad_variables |= found
    return bool(found)


class _Environment:
    """Removes variables from the process's environment for as long as a caller needs this."""

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
