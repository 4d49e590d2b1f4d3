"""Engines: from a URL, with a pool in which nothing waits longer than the call that asks for a connection.

A name server, a server that accepts and says nothing, a pool that is used up: each ends with the deadline of the call.
That holds for an engine of the caller's as well, as far as its own `creator` and its pool's own timeout allow.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import psycopg
import sqlalchemy as sa
from sqlalchemy import Engine as Engine  # noqa: PLC0414 — the store names it, and imports no library
from sqlalchemy.ext.asyncio import AsyncEngine as AsyncEngine  # noqa: PLC0414
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import queue

from compaction_store.errors import InvalidInput, NotConfigured
from compaction_store.postgres import embedded_connection, timeouts

VARIABLE = "COMPACTION_STORE_URL"
# What an engine's parameters hold besides the driver's.
_OWN = "own_server"
# How many attempts to connect may be left to themselves, because whoever wanted the connection has given up.
_MOST_CONNECTING = 64
_KEEPALIVE_SECONDS = 5
_KEEPALIVES = 3
_LONGEST_SILENCE = 30.0
# libpq's own form of a URL: several hosts, each with its port, or a socket's folder with its slashes encoded.
_LIBPQ_URL = re.compile(r"(?P<scheme>[^:/?#]+://)(?P<user>[^/?#]*@)?(?P<hosts>[^/?#@]*)(?P<rest>.*)", re.DOTALL)
_HOST = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>\d*))?")


def chosen_url(url: str | None) -> str | None:
    """The URL given, else that of the environment; None where neither is, which means the embedded Postgres.

    An empty one is refused: a variable that was left empty must not take a deployment's data to a local disk.
    """
    if url is None:
        url = os.environ.get(VARIABLE)
        if url is not None and not url.strip():
            raise NotConfigured(
                f"${VARIABLE} must be a database's URL, and is empty: set it, or unset it for the embedded Postgres"
            )
    elif not isinstance(url, str) or not url.strip():
        given = "an empty text" if isinstance(url, str) else type(url).__name__
        raise InvalidInput(f"url must be a database's URL, not {given}: leave it out for the embedded Postgres")
    return url


def create_engine(url: str, *, pool_size: int, connect_timeout: float, deadline: float = _LONGEST_SILENCE) -> sa.Engine:
    address = driver_url(url)
    options = _options(address, pool_size, connect_timeout, deadline)
    engine = sa.create_engine(address, poolclass=_Pool, **options)
    prepare(engine)
    return engine


def create_aio_engine(
    url: str, *, pool_size: int, connect_timeout: float, deadline: float = _LONGEST_SILENCE
) -> AsyncEngine:
    address = driver_url(url)
    options = _options(address, pool_size, connect_timeout, deadline)
    engine = create_async_engine(address, poolclass=_AioPool, **options)
    prepare(engine.sync_engine)
    return engine


def driver_url(url: str) -> sa.URL:
    """A URL as SQLAlchemy reads it, from any that libpq takes."""
    try:
        parsed = sa.make_url(_with_hosts_apart(url))
        # An empty parameter is one that is given: libpq then looks for it nowhere else.
        given = parse_qsl(urlsplit(url).query, keep_blank_values=True)
        parsed = parsed.update_query_pairs((name, value) for name, value in given if not value)
    except (sa.exc.ArgumentError, ValueError):
        parsed = None
    if parsed is None or parsed.get_backend_name() not in {"postgresql", "postgres"}:
        raise InvalidInput("a database URL looks like postgresql://user@host/database")
    return parsed.set(drivername="postgresql+psycopg")


def _with_hosts_apart(url: str) -> str:
    """Several hosts, or a socket's folder, as the parameters that SQLAlchemy hands on: `?host=a,b&port=1,2`."""
    parts = _LIBPQ_URL.fullmatch(url)
    if parts is None or not ("," in parts["hosts"] or "%2f" in parts["hosts"].lower()):
        return url
    found = [_HOST.fullmatch(each) for each in parts["hosts"].split(",")]
    hosts = ",".join(unquote(each["host"]).strip("[]") for each in found if each)
    ports = ",".join(each["port"] or "" for each in found if each)
    if not all(found):
        return url
    query = f"host={quote(hosts, safe=',/:')}" + (f"&port={ports}" if ports.strip(",") else "")
    rest, mark, others = parts["rest"].partition("?")
    return f"{parts['scheme']}{parts['user'] or ''}{rest or '/'}?{query}" + (f"&{others}" if mark else "")


def address(engine: sa.Engine) -> tuple[str | None, int | None, str | None]:
    """Returns the host or socket folder, the port and the database."""
    url = engine.url
    host = url.host or url.query.get("host")
    return host if isinstance(host, str) else None, url.port, url.database


def where(engine: sa.Engine) -> str:
    """The address, for an error."""
    url = engine.url
    hosts = url.host or url.query.get("host") or "the local socket"
    host = hosts if isinstance(hosts, str) else ",".join(hosts)
    port = url.port or url.query.get("port")
    return f"{host}:{port}" if port and "," not in str(port) else host


def _options(url: sa.URL, pool_size: int, connect_timeout: float, deadline: float) -> dict[str, Any]:
    folder = embedded_connection.folder(url.query)
    own: dict[str, Any] = {}
    if folder is not None:
        own = {**embedded_connection.parameters(), _OWN: embedded_connection.Server(folder)}
    return {
        "isolation_level": "AUTOCOMMIT",
        # There is no transaction to roll back when a connection returns to the pool.
        "pool_reset_on_return": None,
        "pool_size": pool_size,
        "max_overflow": 0,
        "pool_timeout": connect_timeout,
        # A waiting caller takes the connection returned last: a small hot set behind a large limit.
        "pool_use_lifo": True,
        # Errors never carry what was sent.
        "hide_parameters": True,
        "connect_args": own
        | {
            # Behind a transaction pooler a prepared statement may be another client's.
            "prepare_threshold": None,
            "connect_timeout": max(1, round(connect_timeout)),
            # Between calls too: a connection whose server is gone should not be the one that the next call takes.
            "keepalives": 1,
            "keepalives_idle": 30,
            "keepalives_interval": _KEEPALIVE_SECONDS,
            "keepalives_count": _KEEPALIVES,
            "tcp_user_timeout": round(1000 * min(max(deadline, 1.0), _LONGEST_SILENCE)),
            "application_name": "compaction-store",
            "client_encoding": "utf8",
        },
    }


def _patience(timeout: float | None) -> float | None:
    left = timeouts.left()
    return left if timeout is None else timeout if left is None else min(timeout, left)


class _Queue(queue.Queue[Any]):
    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT002 — as it is there
        return super().get(block, _patience(timeout))


class _AioQueue(queue.AsyncAdaptedQueue[Any]):
    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT002 — as it is there
        return super().get(block, _patience(timeout))


class _Pool(sa.QueuePool):
    """A pool that is waited for no longer than the call has left."""

    _queue_class = _Queue


class _AioPool(sa.AsyncAdaptedQueuePool):
    _queue_class = _AioQueue


# ---- connecting


def prepare(engine: sa.Engine) -> None:
    """Has an engine connect within the deadline of the call that needs it, and its connections wait within theirs."""
    if engine not in _engines:
        _engines.add(engine)
        sa.event.listen(engine, "do_connect", _connect)
        # Where the engine has a creator of its own, the event above is never told.
        sa.event.listen(engine, "connect", _connected, insert=True)


def _connect(dialect: Any, _record: Any, given: list[Any], parameters: dict[str, Any]) -> Any:
    end = timeouts.left()
    own: embedded_connection.Server | None = parameters.get(_OWN)
    others = {name: value for name, value in parameters.items() if name != _OWN}
    seconds = float(others.get("connect_timeout", _LONGEST_SILENCE))
    if dialect.is_async:
        creator = others.pop("async_creator_fn", psycopg.AsyncConnection.connect)
        if own is not None:
            creator = partial(_connect_own_aio, own, seconds, creator)
        made = dialect.connect(*given, **others, async_creator_fn=partial(_connect_aio, creator))
    else:
        make: Callable[[], Any] = partial(dialect.connect, *given, **others)
        if own is not None:
            make = partial(own.connect, make, seconds)
        made = make() if end is None else _Connecting(make).wait(end)
    _connected(made, None)
    return made


async def _connect_own_aio(
    own: embedded_connection.Server,
    seconds: float,
    creator: Callable[..., Awaitable[Any]],
    *given: Any,
    **parameters: Any,
) -> Any:
    return await own.connect_aio(lambda: creator(*given, **parameters), seconds)


def _connected(connection: Any, _record: Any) -> None:
    timeouts.line(getattr(connection, "driver_connection", connection))


async def _connect_aio(creator: Callable[..., Awaitable[Any]], *given: Any, **parameters: Any) -> Any:
    try:
        async with asyncio.timeout(timeouts.left()):
            return await creator(*given, **parameters)
    except TimeoutError:
        pass
    raise _timed_out()


def _timed_out() -> psycopg.OperationalError:
    return psycopg.errors.ConnectionTimeout("connection timeout expired")


class _Connecting:
    """An attempt to connect in a thread of its own: libpq asks name servers, and nothing ends that."""

    room = threading.BoundedSemaphore(_MOST_CONNECTING)

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._is_wanted = True
        self._made: Any = None
        self._error: BaseException | None = None

    def wait(self, seconds: float) -> Any:
        """The connection, if it is there in time. One that comes later is closed."""
        if not self.room.acquire(timeout=seconds):
            raise _timed_out()
        try:
            threading.Thread(target=self._run, name="compaction-store connect", daemon=True).start()
        except RuntimeError:
            # Python is shutting down, and starts no more threads.
            self.room.release()
            return self._connect()
        try:
            self._done.wait(seconds)
        except BaseException:
            if (late := self._give_up()) is not None:
                late.close()
            raise
        if (made := self._give_up()) is not None:
            return made
        error, self._error = self._error, None
        raise error or _timed_out()

    def _give_up(self) -> Any:
        """What there is by now; whatever comes later is closed where it is made."""
        with self._lock:
            self._is_wanted = False
            return self._made

    def _run(self) -> None:
        try:
            made = self._connect()
        except BaseException as error:  # noqa: BLE001 — handed to the one who waits
            self._error = error.with_traceback(None)
        else:
            with self._lock:
                is_wanted = self._is_wanted
                self._made = made if is_wanted else None
            if not is_wanted:
                made.close()
        finally:
            self._done.set()
            self.room.release()


# ---- after a fork

_engines: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
# Pools of the parent's. They are kept: a connection that is let go would be closed, and it is the parent's as well.
_inherited: list[sa.Pool] = []


def _start_anew() -> None:
    timeouts.start_anew()
    _Connecting.room = threading.BoundedSemaphore(_MOST_CONNECTING)
    for engine in list(_engines):
        _inherited.append(engine.pool)
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
