"""Creates engines whose connections and pools never wait longer than the deadline of a call. For a caller's own engine,
this holds as far as the engine's `creator` and the timeout of its pool allow.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import psycopg
import sqlalchemy as sa
from sqlalchemy import Engine as Engine  # noqa: PLC0414 — for the store, which does not import sqlalchemy
from sqlalchemy.util import queue

from compaction_store.errors import InvalidInput, NotConfigured
from compaction_store.postgres.calling import embedded_connection
from compaction_store.postgres.driver import timeouts, waiters

if TYPE_CHECKING:
    from compaction_store.postgres.calling.engines_aio import AsyncEngine

VARIABLE = "COMPACTION_STORE_URL"
# The connect parameter that holds the embedded server's object. It is not passed to the driver.
_OWN = "own_server"
# The maximum number of simultaneous connection attempts, including those whose caller has given up.
_MOST_CONNECTING = 64
_KEEPALIVE_SECONDS = 5
_KEEPALIVES = 3
_LONGEST_SILENCE = 30.0
# A URL as libpq accepts it: with several hosts and their ports, or with a socket's folder whose slashes are encoded.
_LIBPQ_URL = re.compile(r"(?P<scheme>[^:/?#]+://)(?P<user>[^/?#]*@)?(?P<hosts>[^/?#@]*)(?P<rest>.*)", re.DOTALL)
_AUTHORITY = re.compile(r"[^:/?#]+://([^/?#]*)")
_HOST = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>\d*))?")


def chosen_url(url: str | None) -> str | None:
    """Returns the given URL, or else $COMPACTION_STORE_URL, or else None, which means the embedded Postgres.

    With `@FILE`, the URL is read from a file, because other users of the machine can read command lines. Refuses an
    empty value: if the variable is empty by mistake, a deployment must not write to a local disk.
    """
    if url is None:
        url = os.environ.get(VARIABLE)
        if url is not None and not url.strip():
            raise NotConfigured(
                f"${VARIABLE} must be a database URL, not empty: set it, or unset it to use the embedded Postgres"
            )
    elif not isinstance(url, str) or not url.strip():
        given = "empty" if isinstance(url, str) else type(url).__name__
        raise InvalidInput(f"url must be a database URL, not {given}: omit it to use the embedded Postgres")
    return _in_file(url[1:]) if url is not None and url.startswith("@") else url


def _in_file(name: str) -> str:
    """Returns the URL in a file. No error quotes the file, because it may have a password."""
    try:
        lines = Path(name).read_text(encoding="utf-8").split()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidInput(f"url must name a file that can be read, which {name!r:.200} cannot: {why}") from None
    if len(lines) != 1:
        raise InvalidInput(f"url must name a file with one database URL, and {name!r:.200} has {len(lines)}")
    return lines[0]


def create_engine(
    url: str,
    *,
    pool_size: int,
    connect_timeout: float,
    deadline: float = _LONGEST_SILENCE,
    settings: Mapping[str, str] | None = None,
) -> sa.Engine:
    address = driver_url(url)
    options = _options(address, pool_size, connect_timeout, deadline, settings or {})
    engine = sa.create_engine(address, poolclass=_Pool, **options)
    prepare(engine)
    return engine


def create_aio_engine(
    url: str,
    *,
    pool_size: int,
    connect_timeout: float,
    deadline: float = _LONGEST_SILENCE,
    settings: Mapping[str, str] | None = None,
) -> AsyncEngine:
    # Import this here, because a sync store does not need it and the import is slow.
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

    address = driver_url(url)
    options = _options(address, pool_size, connect_timeout, deadline, settings or {})
    engine = create_async_engine(address, poolclass=_AioPool, **options)
    prepare(engine.sync_engine)
    return engine


def driver_url(url: str) -> sa.URL:
    """Converts a URL that libpq accepts to a URL of SQLAlchemy."""
    if _has_raw_at_sign(url):
        raise InvalidInput("the user and the password in url must be percent-encoded: write @ as %40, and / as %2F")
    try:
        parsed = sa.make_url(_with_hosts_apart(url))
        # SQLAlchemy drops empty parameters, but for libpq an empty parameter has a meaning.
        given = parse_qsl(urlsplit(url).query, keep_blank_values=True)
        parsed = parsed.update_query_pairs((name, value) for name, value in given if not value)
    except (sa.exc.ArgumentError, ValueError):
        parsed = None
    if parsed is None or parsed.get_backend_name() not in {"postgresql", "postgres"}:
        form = "a text of another form" if parsed is None else f"{parsed.get_backend_name()}://"
        raise InvalidInput(f"url must look like postgresql://user@host/database, not {form}")
    return parsed.set(drivername="postgresql+psycopg")


def _has_raw_at_sign(url: str) -> bool:
    """Returns whether the URL has another @ than the one before the host. Errors would quote a part of the password."""
    found = _AUTHORITY.match(url)
    return found is not None and url.count("@") != min(found[1].count("@"), 1)


def _with_hosts_apart(url: str) -> str:
    """Moves several hosts, or the folder of a socket, into the query as SQLAlchemy expects: `?host=a,b&port=1,2`."""
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
    """Returns the host or the folder of the socket, the port, and the name of the database."""
    url = engine.url
    host = url.host or url.query.get("host")
    return host if isinstance(host, str) else None, url.port, url.database


def where(engine: sa.Engine) -> str:
    """Returns the server's address for an error message."""
    url = engine.url
    hosts = url.host or url.query.get("host") or "the local socket"
    host = hosts if isinstance(hosts, str) else ",".join(hosts)
    port = url.port or url.query.get("port")
    return f"{host}:{port}" if port and "," not in str(port) else host


def _options(
    url: sa.URL, pool_size: int, connect_timeout: float, deadline: float, settings: Mapping[str, str]
) -> dict[str, Any]:
    folder = embedded_connection.folder(url.query)
    own: dict[str, Any] = {}
    if folder is not None:
        own = {**embedded_connection.parameters(), _OWN: embedded_connection.Server(folder)}
    if settings:
        own["options"] = _with_settings(own.get("options") or url.query.get("options"), settings)
    return {
        "isolation_level": "AUTOCOMMIT",
        # In autocommit, a connection that returns to the pool has no transaction to roll back.
        "pool_reset_on_return": None,
        "pool_size": pool_size,
        "max_overflow": 0,
        "pool_timeout": connect_timeout,
        # Last in, first out. So the pool keeps using a few connections, even if its limit is high.
        "pool_use_lifo": True,
        # Errors must never contain the parameters of statements.
        "hide_parameters": True,
        "connect_args": own
        | {
            # Do not prepare statements, because a transaction pooler may give the connection to another client.
            "prepare_threshold": None,
            "connect_timeout": max(1, round(connect_timeout)),
            # Keepalives also detect a lost server between calls, so that the next call does not get a dead connection.
            "keepalives": 1,
            "keepalives_idle": 30,
            "keepalives_interval": _KEEPALIVE_SECONDS,
            "keepalives_count": _KEEPALIVES,
            "tcp_user_timeout": round(1000 * min(max(deadline, 1.0), _LONGEST_SILENCE)),
            "application_name": "compaction-store",
            "client_encoding": "utf8",
        },
    }


def _with_settings(options: Any, settings: Mapping[str, str]) -> str:
    """Adds settings to the connect options. A SET would stay on a transaction pooler's connection for other clients."""
    given = options if isinstance(options, tuple) else () if options is None else (options,)
    quoted = ("-c " + re.sub(r"([\\\s])", r"\\\1", f"{name}={value}") for name, value in settings.items())
    return " ".join((*given, *quoted))


def _within_deadline(timeout: float | None) -> float | None:
    left = timeouts.left()
    return left if timeout is None else timeout if left is None else min(timeout, left)


class _Queue(queue.Queue[Any]):
    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT002 — as in the base class
        return super().get(block, _within_deadline(timeout))


class _AioQueue(queue.AsyncAdaptedQueue[Any]):
    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT002 — as in the base class
        return super().get(block, _within_deadline(timeout))


class _ClosingPool(sa.QueuePool):
    """A pool that leaves no connection open after `dispose`: connections in use are closed when they are returned."""

    _is_disposed = False

    def dispose(self) -> None:
        self._is_disposed = True
        super().dispose()

    def _do_return_conn(self, record: sa.pool.ConnectionPoolEntry) -> None:
        if self._is_disposed:
            # A caller that waits for the pool gets this entry and opens a new connection.
            record.close()
        super()._do_return_conn(record)


class _Pool(_ClosingPool):
    """A pool whose waits end at the deadline of the call."""

    _queue_class = _Queue


class _AioPool(_ClosingPool, sa.AsyncAdaptedQueuePool):
    _queue_class = _AioQueue


def pool_size(engine: sa.Engine) -> int:
    """Returns how many connections the pool of an engine keeps, or a high number if the pool has no limit."""
    return (engine.pool.size() if isinstance(engine.pool, sa.QueuePool) else 0) or _MOST_CONNECTING


def replace_pool(engine: sa.Engine) -> None:
    """Replaces the pool after Ctrl-C has interrupted a call, and closes the idle connections of the old pool.

    If Ctrl-C interrupts SQLAlchemy while it takes or returns a connection, the pool may count this connection as in use
    forever, or the pool's lock may stay locked. The pools of async stores and of a caller's own engine are not
    replaced.
    """
    pool = engine.pool
    if isinstance(pool, _Pool):
        engine.dispose(close=False)
        # This thread no longer runs code of the pool, so it must release the lock.
        with suppress(RuntimeError):
            while True:
                pool._pool.mutex.release()  # type: ignore[attr-defined]  # noqa: SLF001 — there is no public way
        pool.dispose()


def prepare(engine: sa.Engine) -> None:
    """Makes every connection attempt and every statement of an engine end at the deadline of the call."""
    if engine not in _engines:
        _engines.add(engine)
        sa.event.listen(engine, "do_connect", _connect)
        # An engine with its own `creator` does not fire `do_connect`, so this installs the waiters on its connections.
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
    waiters.waiter(getattr(connection, "driver_connection", connection))


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
    """Connects in a separate thread, because a DNS lookup of libpq cannot be interrupted."""

    permits = timeouts.Permits(_MOST_CONNECTING)

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._is_wanted = True
        self._made: Any = None
        self._error: BaseException | None = None

    def wait(self, seconds: float) -> Any:
        """Returns the connection if it is made in time. A connection that is made later is closed."""
        if not self.permits.acquire(seconds):
            raise _timed_out()
        try:
            threading.Thread(target=self._run, name="compaction-store connect", daemon=True).start()
        except RuntimeError:
            # Python is shutting down and cannot start threads any more.
            self.permits.release()
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
        """Returns the connection if it was made. If it is made later, the connecting thread closes it."""
        with self._lock:
            self._is_wanted = False
            return self._made

    def _run(self) -> None:
        try:
            made = self._connect()
        except BaseException as error:  # noqa: BLE001 — raised in the waiting thread
            self._error = error.with_traceback(None)
        else:
            with self._lock:
                is_wanted = self._is_wanted
                self._made = made if is_wanted else None
            if not is_wanted:
                made.close()
        finally:
            self._done.set()
            self.permits.release()


# ---- after a fork

_engines: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
# The pools of the parent process. This list keeps them alive, because garbage collection would close connections that
# the parent still uses.
_inherited: list[sa.Pool] = []


def _reset_after_fork() -> None:
    timeouts.reset_after_fork()
    _Connecting.permits = timeouts.Permits(_MOST_CONNECTING)
    for engine in list(_engines):
        _inherited.append(engine.pool)
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
