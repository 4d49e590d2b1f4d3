"""Connections to an embedded server: to that one and no other, whatever the environment says.

libpq fills what it is not given from the environment and from service files, the server's address included. An embedded
server is known by its URL, which names a socket's folder and an empty `hostaddr`. For such a URL every parameter is
given, and a new connection is used only if it goes over a Unix socket to the database whose folder the URL names.
A server that has died is started again by whoever has a share in it.
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

from compaction_store import drivers
from compaction_store.errors import CompactionStoreError

# Every parameter that libpq takes from the environment or a service file, but what a URL or an engine gives. An empty
# one is given, too. There is a password so that no password file is read: a server that asked for one is not ours.
_GIVEN = {
    "hostaddr": "", "password": "unused", "require_auth": "none", "options": "", "target_session_attrs": "any",
    "load_balance_hosts": "disable", "channel_binding": "disable", "gssencmode": "disable", "sslmode": "disable",
    "sslnegotiation": "postgres", "sslcompression": "0", "sslcert": "", "sslkey": "", "sslpassword": "",
    "sslcertmode": "disable", "sslrootcert": "", "sslcrl": "", "sslcrldir": "", "sslsni": "0", "sslkeylogfile": "",
    "ssl_min_protocol_version": "TLSv1.2", "ssl_max_protocol_version": "", "requirepeer": "", "replication": "",
    "min_protocol_version": "3.0", "max_protocol_version": "3.0", "krbsrvname": "postgres", "gssdelegation": "0",
}  # fmt: skip
# What libpq takes from the environment alone, by what an error over a bad one says. It is taken out of the environment
# only then, for as long as connecting takes: nobody in this process can connect with it anyway.
_ENVIRONMENT = {
    "PGSERVICE": "service", "PGTZ": '"TimeZone"', "PGDATESTYLE": '"DateStyle"', "PGGEQO": '"geqo"',
}  # fmt: skip
# The driver reads times in text of no other style; this server is nobody else's, so that a session may have settings.
_IDENTIFIER = (
    b"SELECT system_identifier FROM pg_catalog.pg_control_system(), pg_catalog.set_config('DateStyle', 'ISO', false)"
)


class Share(Protocol):
    """A part that this process has in a running server."""

    folder_of_socket: str
    identifier: int

    def restart(self, seconds: float) -> bool:
        """Starts the server if it has died; whether that was necessary. Errors are ours."""


_shares: weakref.WeakSet[Any] = weakref.WeakSet()


def register(share: Share) -> None:
    _shares.add(share)


def forget(share: Share) -> None:
    _shares.discard(share)


def folder(given: Mapping[str, Any]) -> str | None:
    """The folder of the socket, where a URL's query or an engine's parameters are those of an embedded server."""
    host = given.get("host")
    return host if isinstance(host, str) and host.startswith("/") and given.get("hostaddr") == "" else None


def parameters() -> dict[str, str]:
    """What a connection is made with, as far as this libpq knows it."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    return {name: value for name, value in _GIVEN.items() if name in known}


def identifier(data: Path) -> int:
    """What tells a database from every other, as its own file has it."""
    with (data / "global" / "pg_control").open("rb") as file:
        found: int = struct.unpack("=q", file.read(8))[0]
    return found


# ---- connecting


class Server:
    """The embedded server that an engine is for: known by the folder of its socket, and by its database."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._identifier: int | None = None
        # One that is not there cannot be connected to either; it is looked for again then.
        with suppress(OSError):
            self._identifier = identifier(Path(folder))

    def connect(self, make: Callable[[], psycopg.Connection[Any]], seconds: float) -> psycopg.Connection[Any]:
        """A connection that `make` makes; a server that has died is started again within so many seconds."""
        blamed: set[str] = set()
        restarted = False
        while True:
            try:
                with _without(blamed):
                    made = make()
            except psycopg.OperationalError as error:
                failure = error.with_traceback(None)
            else:
                return self._checked(made)
            if not _blame(failure, blamed):
                if restarted or not self._restart(failure, seconds):
                    raise failure
                restarted = True

    async def connect_aio(
        self, make: Callable[[], Awaitable[psycopg.AsyncConnection[Any]]], seconds: float
    ) -> psycopg.AsyncConnection[Any]:
        """The same for the async driver. What blocks has a thread."""
        blamed: set[str] = set()
        restarted = False
        while True:
            try:
                with _without(blamed):
                    made = await make()
            except psycopg.OperationalError as error:
                failure = error.with_traceback(None)
            else:
                return await self._checked_aio(made)
            if not _blame(failure, blamed):
                if restarted or not await drivers.in_thread(self._restart, failure, seconds):
                    raise failure
                restarted = True

    def _restart(self, failure: psycopg.Error, seconds: float) -> bool:
        """Whether it had died and runs again. Only whoever has a share in it starts it."""
        if isinstance(failure, psycopg.errors.ConnectionTimeout):
            return False
        place = (self._folder, self._identifier)
        shares = (share for share in list(_shares) if (share.folder_of_socket, share.identifier) == place)
        try:
            return any(share.restart(seconds) for share in shares)
        except CompactionStoreError as error:
            why = str(error)
        raise psycopg.OperationalError(why)

    def _checked(self, made: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
        try:
            _check_socket(made.pgconn.socket)
            made.autocommit = True
            self._check_database(made.execute(_IDENTIFIER).fetchone())
            made.autocommit = False
        except BaseException:
            made.close()
            raise
        return made

    async def _checked_aio(self, made: psycopg.AsyncConnection[Any]) -> psycopg.AsyncConnection[Any]:
        try:
            _check_socket(made.pgconn.socket)
            await made.set_autocommit(True)
            self._check_database(await (await made.execute(_IDENTIFIER)).fetchone())
            await made.set_autocommit(False)
        except BaseException:
            await made.close()
            raise
        return made

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


def _check_socket(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as peer:
        if peer.family != socket.AF_UNIX:
            raise psycopg.OperationalError("the connection does not go over the embedded server's own socket")


# ---- the environment


def _blame(failure: psycopg.Error, blamed: set[str]) -> bool:
    """Whether a variable of the environment is to blame that was not before."""
    said = str(failure)
    # Another call may have taken it out since.
    found = {name for name, mark in _ENVIRONMENT.items() if mark in said} - blamed
    blamed |= found
    return bool(found)


class _Environment:
    """Variables that are out of the process's environment while anyone wants them out."""

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
