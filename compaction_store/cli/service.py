"""The signals of the long-running commands, their log for programs, their health and their metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from itertools import islice
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import compaction_store
from compaction_store.audit._sync import threads
from compaction_store.cli.bundles import Bundle, exit_code, misuse, option
from compaction_store.cli.output import note
from compaction_store.errors import CompactionStoreError, InvalidCheckpoint
from compaction_store.jsonable import time_text
from compaction_store.store.threads import impatient
from compaction_store.telemetry import prometheus
from compaction_store.telemetry.prometheus import Gauge
from compaction_store.telemetry.telemetry import Telemetry

if TYPE_CHECKING:
    from compaction_store import Reader, TokenBudget
    from compaction_store.checkpoints import CheckpointLog

# The seconds after which a database that does not answer counts as away.
_PATIENCE = 2.0
_MOST_DUE = 1000
# The database is read again after so many times the seconds that it took.
_REST = 20


class ServiceOptions(Bundle):
    """How a long-running command is operated."""

    metrics: Annotated[str | None, option("--metrics HOST:PORT")] = None
    log: Annotated[Literal["text", "json"], option("--log FORMAT")] = "text"

    @contextmanager
    def running(self, verb: str, stop: Callable[[], object] | None = None) -> Iterator[Telemetry | None]:
        """Sets up the log and the signals until the command ends. Yields what its stores report to.

        The first SIGTERM or SIGINT calls `stop`, and the second ends the process at once.
        """
        self.verb, self.stop, self.ended, self.registry = verb, stop, ExitStack(), prometheus.Registry()
        #: Called on SIGHUP, and by a signal's handler.
        self.reload: Callable[[], object] = bool
        numbers = [] if stop is None else [signal.SIGTERM, signal.SIGINT]
        # On a terminal, SIGHUP says that the terminal was closed.
        numbers += [] if any(map(os.isatty, (0, 1, 2))) else [signal.SIGHUP]
        for number in numbers:
            self.ended.callback(signal.signal, number, signal.signal(number, self.handle))
        if self.log == "json":
            handler = logging.StreamHandler()
            handler.setFormatter(_Lines())
            logging.getLogger().addHandler(handler)
            logging.getLogger(f"compaction_store.{verb}").setLevel(logging.INFO)
        with self.ended:
            try:
                yield None if self.metrics is None else Telemetry(meter_provider=self.registry)  # type: ignore[arg-type]
            except CompactionStoreError as error:
                if self.log == "text":
                    raise
                self.say(str(error), logging.ERROR)
                raise typer.Exit(exit_code(error)) from None

    def handle(self, number: int, _: object) -> None:
        stop = self.stop
        if number == signal.SIGHUP:
            self.reload()
        elif stop is None:
            # Exit without cleaning up, because a Python thread that waits for a summary cannot be interrupted.
            os._exit(128 + number)
        else:
            self.stop = None
            stop()

    def say(self, text: str, level: int = logging.INFO) -> None:
        """Prints a text for the person who runs the command, or logs it as JSON."""
        if self.log == "json":
            logging.getLogger(f"compaction_store.{self.verb}").log(level, "%s", text)
        else:
            note(text)

    def answer(
        self,
        gauges: Callable[[], Iterable[Gauge]],
        is_ready: Callable[[], bool],
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """Begins to answer at the address of the option --metrics, if it was given."""
        if self.metrics is None:
            return
        info = "info", {"version": compaction_store.__version__, "command": self.verb}, 1
        pages = {
            "/healthz": lambda: (200, "ok\n") if is_alive() else (503, "the command makes no progress\n"),
            "/readyz": lambda: (200, "ready\n") if is_ready() else (503, "the database does not answer\n"),
            "/metrics": lambda: (200, self.registry.text([info, *gauges()])),
        }
        listener, address = listening(self.metrics, "--metrics")
        handler = type("Handler", (_Handler,), {"pages": pages})
        endpoint = self.ended.enter_context(ThreadingTCPServer(("", 0), handler, bind_and_activate=False))
        endpoint.socket.close()
        endpoint.socket, endpoint.daemon_threads = listener, True
        self.ended.callback(endpoint.shutdown)
        threading.Thread(target=endpoint.serve_forever, name="metrics", daemon=True).start()
        self.say(f"metrics at http://{address}/metrics")


class _Handler(BaseHTTPRequestHandler):
    timeout = 5
    pages: Mapping[str, Callable[[], tuple[int, str]]]

    def do_GET(self) -> None:
        status, text = self.pages.get(self.path.partition("?")[0], lambda: (404, "not found\n"))()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


class _Lines(logging.Formatter):
    """Formats a record of the log as a line of JSON. Of an exception, only the type is in it."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        said = {"time": time_text(datetime.fromtimestamp(record.created, UTC)), "level": record.levelname.lower()}
        # The lines of the pages and of the API are JSON already.
        said |= json.loads(text) if record.name.startswith("compaction_store.web") else {"message": text}
        said |= {name: value for name, value in vars(record).items() if name.startswith("gen_ai.")}
        if record.exc_info and record.exc_info[0] is not None:
            said["error"] = record.exc_info[0].__name__
        return json.dumps({**said, "logger": record.name})


@dataclass
class ServiceState:
    """The gauges of the metrics, and whether the database answers.

    `ready` is asked whether it does, and `of` is the store with the pool; it may be the same. `own` returns the gauges
    of the command itself.
    """

    ready: Reader
    of: Any
    readers: Callable[[], Iterable[tuple[str, Reader]]] = tuple
    own: Callable[[], Iterable[Gauge]] = tuple
    budget: TokenBudget | None = None
    idle: float = 0.0
    checkpoints: CheckpointLog | None = None
    _lock: Any = field(default_factory=threading.Lock)
    _found: tuple[Gauge, ...] = ()
    _next: float = 0.0

    def is_ready(self) -> bool:
        with suppress(CompactionStoreError):
            next(iter(impatient(self.ready, _PATIENCE).threads()), None)
            return True
        return False

    def gauges(self) -> Iterator[Gauge]:
        """Yields all gauges. Those that are read from the database may be some seconds old."""
        pool = self.of._db.engine.pool  # noqa: SLF001 — for this package only
        yield "pool_connections", {}, pool.checkedout()
        yield "pool_size", {}, pool.size()
        with self._lock:
            if (start := time.monotonic()) >= self._next:
                self._found = tuple(self._look())
                self._next = time.monotonic() + _REST * (time.monotonic() - start)
            yield from (*self.own(), *self._found)

    def _look(self) -> Iterator[Gauge]:
        if self.checkpoints is not None:
            newest = None
            # A log that cannot be read is as bad as none, and the same rule notices it; the pages say why.
            with suppress(InvalidCheckpoint, OSError):
                newest = self.checkpoints.last()
            origin, at = (newest.origin, newest.time.timestamp()) if newest else ("", 0)
            yield "checkpoint_timestamp_seconds", {"origin": origin}, at
        is_up = self.is_ready()
        try:
            for tenant, reader in self.readers() if is_up else ():
                yield from ((name, {"tenant": tenant}, value) for name, value in self._of_tenant(reader))
        except CompactionStoreError:
            is_up = False
        yield "database_up", {}, int(is_up)

    def _of_tenant(self, given: Reader) -> Iterator[tuple[str, float]]:
        reader = impatient(given, _PATIENCE)
        if self.budget is not None:
            due = list(islice(reader.due(self.budget, idle_minutes=self.idle), _MOST_DUE))
            since = [(thread.last_message_at or thread.created_at).timestamp() for thread in due]
            leases = reader.leases(self.budget)
            yield from (("due_threads", len(due)), ("leases", len(leases)))
            yield from (("due_oldest_timestamp_seconds", at) for at in sorted(since)[:1])
            yield from (("lease_oldest_timestamp_seconds", each.since.timestamp()) for each in leases[:1])
        if (newest := threads.verified(reader)) is not None:
            yield "verification_timestamp_seconds", newest.created_at.timestamp()
            yield "verification_findings", newest.body["findings"]


def beating() -> Callable[[], bool]:
    """Returns a function that says, in any thread, whether the running event loop goes on."""
    loop = asyncio.get_running_loop()
    return lambda: bool(wait([asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop)], 5).done)


def parsed_address(text: str, option: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) < 65536:  # noqa: PLR2004 — the number of ports
        raise misuse(f"must look like 127.0.0.1:8000, not {text!r}", option)
    return host.strip("[]"), int(port)


def listening(text: str, option: str) -> tuple[socket.socket, str]:
    """Listens at the address that an option gives. Returns it with the port that was chosen if it was 0."""
    host, port = parsed_address(text, option)
    try:
        made = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]
        raise misuse(f"cannot listen on {host}:{port}: {why}", option) from None
    return made, f"{text.rpartition(':')[0]}:{made.getsockname()[1]}"
