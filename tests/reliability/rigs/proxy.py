"""A proxy that cuts, slows and stalls connections to the server, by a plan that a seed repeats.

It knows where a request begins and where its reply ends, so a cut is either before the server gets any part of a
request, or after it has done the work and before the client gets the reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

_CHUNK = 65536
_HEAD = 5
_READY = ord("Z")
_LOOK = 0.01


@dataclass
class Plan:
    """The share of requests for each fault, and the seconds of delays."""

    before: float = 0.0
    after: float = 0.0
    slow: float = 0.0
    slowest: float = 0.05
    stall: float = 0.0
    stalled: float = 2.0


class _Replies:
    """Follows the messages of a server, to find when it is ready for the next request."""

    def __init__(self) -> None:
        self._rest = b""
        self._skip = 0

    def ends(self, data: bytes) -> bool:
        """Returns whether the server says in this data that it is ready."""
        ready = False
        at = 0
        data = self._rest + data
        self._rest = b""
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
            elif len(data) - at < _HEAD:
                self._rest = data[at:]
                break
            else:
                ready = ready or data[at] == _READY
                self._skip = 1 + int.from_bytes(data[at + 1 : at + _HEAD])
        return ready


class _Session:
    """One client's connection."""

    def __init__(self) -> None:
        # The server speaks first: it is ready once the client has been let in.
        self.idle = False
        self.doomed = False
        self.replies = _Replies()


# The name and the text of a statement in the message that prepares it.
_PARSED = re.compile(rb"(compaction_store_[0-9a-f]{40})\0([^\0]+)\0")


class Proxy:
    """Listens on this machine; `url` leads through it. `seen` counts what happened."""

    def __init__(self, url: str, chance: random.Random, plan: Plan | None = None) -> None:
        self.plan = plan or Plan()
        self.seen: Counter[str] = Counter()
        # Called with every request before it is passed on, and before every reply: True cuts the connection. A request
        # that names a prepared statement is given with the statement's text, as if it had been sent whole.
        self.on_request: Callable[[bytes], bool] | None = None
        self.on_reply: Callable[[], bool] | None = None
        # While these are set, no data is passed on, and connections stay open.
        self.keeps_requests = self.keeps_replies = False
        self._prepared: dict[bytes, bytes] = {}
        self._target = conninfo_to_dict(url)
        self._chance = chance
        self._writers: set[asyncio.StreamWriter] = set()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="proxy")
        self._thread.start()
        self._listening.wait()
        address = sa.make_url(url).set(host="127.0.0.1", port=self.port)
        options = {"sslmode": "disable", "gssencmode": "disable"}
        self.url = address.set(query=options).render_as_string(hide_password=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def retarget(self, url: str) -> None:
        """Leads to another server from now on, and cuts existing connections."""
        self._target = conninfo_to_dict(url)
        self._loop.call_soon_threadsafe(self._cut_all)

    def hush(self, *, requests: bool = True, replies: bool = True) -> None:
        """Passes nothing on from now on, in one direction or both. Data under way is lost."""
        self.keeps_requests, self.keeps_replies = requests, replies

    def _cut_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()
        accepted: list[asyncio.StreamWriter] = []

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(writer)
            if self._over.is_set():
                writer.transport.abort()
                return
            task = asyncio.ensure_future(self._serve(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._over.wait()
        # asyncio leaves a connection open that was accepted just before its server closed.
        for listening in server.sockets:
            self._loop.remove_reader(listening.fileno())
        await asyncio.sleep(0.01)
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A task that was cancelled before its first step has closed nothing.
        for writer in accepted:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen["connections"] += 1
        writers = [writer]
        try:
            await self._silence(requests=True)
            up_reader, up_writer = await self._connect()
            writers.append(up_writer)
            self._writers |= set(writers)
            session = _Session()
            ways = [
                asyncio.ensure_future(self._requests(reader, up_writer, session)),
                asyncio.ensure_future(self._answers(up_reader, writer, session)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in writers:
                self._writers.discard(end)
                end.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = str(self._target.get("host", "127.0.0.1")), int(self._target.get("port") or 5432)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: _Session) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if session.idle:
                    session.idle = False
                    if await self._cut_before(data, session):
                        return
                await self._silence(requests=True)
                writer.write(data)
                await writer.drain()

    async def _silence(self, *, requests: bool) -> None:
        while self.keeps_requests if requests else self.keeps_replies:  # noqa: ASYNC110 — set by other threads
            await asyncio.sleep(_LOOK)

    async def _cut_before(self, data: bytes, session: _Session) -> bool:
        """Decides the fault for a request."""
        if data[0] == ord("X"):
            return False
        self.seen["requests"] += 1
        self._prepared.update(_PARSED.findall(data))
        texts = (text for name, text in self._prepared.items() if name in data)
        if self.on_request is not None and self.on_request(b"".join((data, *texts))):
            self.seen["cut before"] += 1
            return True
        plan, fate = self.plan, self._chance.random()
        if fate < plan.before:
            self.seen["cut before"] += 1
            return True
        fate -= plan.before
        session.doomed = 0 <= fate < plan.after
        fate -= plan.after
        if 0 <= fate < plan.slow:
            self.seen["slowed"] += 1
            await asyncio.sleep(self._chance.uniform(0, plan.slowest))
        elif 0 <= fate - plan.slow < plan.stall:
            self.seen["stalled"] += 1
            await asyncio.sleep(plan.stalled)
        return False

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: _Session) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if session.replies.ends(data):
                    lost = self.on_reply is not None and self.on_reply()
                    if session.doomed or lost:
                        self.seen["cut after"] += 1
                        return
                    session.idle = True
                await self._silence(requests=False)
                writer.write(data)
                await writer.drain()
