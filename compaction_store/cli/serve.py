"""The commands that serve: pages to auditors, threads to agents, the store to programs, and workers to the store."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

import compaction_store
from compaction_store.audit.safe_text import named, shown
from compaction_store.cli import choices, options, values
from compaction_store.cli.bundles import REFUSED, misuse, option
from compaction_store.cli.compact import STRATEGY, SUMMARIZER, Wait, leased
from compaction_store.cli.options import PrintOptions, Reserve, ServerOptions, Target, TenantOptions, Trigger
from compaction_store.cli.output import Output, note, private
from compaction_store.cli.verify import LogFile, PublicKeys, open_log
from compaction_store.errors import DatabaseError, MissingExtra, SchemaOutOfDate, own_text
from compaction_store.models.roles import AUDITOR, REVIEWER

if TYPE_CHECKING:
    from compaction_store import CompactionRun, Store, Thread, TokenBudget

_TOKEN = "COMPACTION_STORE_MCP_TOKEN"  # noqa: S105 — the name of a variable
_CONNECTIONS = 4
_READ_ONLY = {"default_transaction_read_only": "on", "statement_timeout": "20s"}


def serve(
    listen: str = option("--listen HOST:PORT", default="127.0.0.1:8780"),
    auth: str | None = option("--auth HEADER", default=None),
    names: list[str] | None = option("--name HOST", default=None),
    content: bool = option("--content/--no-content", default=True),
    window: options.Window = None,
    reserve: options.Reserve = 0,
    trigger: options.Trigger = "0.8",
    target: options.Target = "0.5",
    prices: Path | None = option("--prices FILE", default=None),
    checkpoints: LogFile = None,
    public_key: PublicKeys = None,
    access_log: Path | None = option("--access-log FILE", default=None),
    review: bool = option("--review", default=False),
    actor: str | None = option("--actor NAME", default=None, show_default="user@host"),
    as_login: bool = option("--as-login", default=False),
    allow_empty: bool = option("--allow-empty", default=False),
    *,
    db: TenantOptions,
) -> None:
    from compaction_store.store import AsyncReader, AsyncStore

    if review and not content:
        raise misuse("must not be given with --no-content, because reviewers must see the text", "--review")
    if actor is not None and auth is not None:
        raise misuse("must not be given with --auth, which names the reader", "--actor")
    host, port = parsed_address(listen, "--listen")
    if auth is None and not _is_loopback(host):
        raise misuse(f"must be on 127.0.0.1 unless --auth is given, not {host!r}", "--listen")
    # Imported here, because the import is slow and needs an extra.
    from compaction_store import web
    from compaction_store.evaluation import Prices

    budget = options.budget(window, reserve, trigger, target)
    costs = None if prices is None else Prices.read(prices)
    log = open_log(checkpoints, public_key)
    log_access_to(access_log)
    access = web.OneTimeToken(actor or options.user_at_host()) if auth is None else web.BehindProxy(auth)
    hosts = ("127.0.0.1", "localhost", "[::1]", *(names or ()))

    async def run(address: str) -> None:
        role = None if as_login else AUDITOR
        async with AsyncExitStack() as stack:
            reader = await stack.enter_async_context(
                AsyncReader.open(address, tenant=db.tenant, pool_size=_CONNECTIONS, role=role, settings=_READ_ONLY)
            )
            reviews = None
            if review:
                reviews = await stack.enter_async_context(
                    AsyncStore.open(address, tenant=db.tenant, pool_size=1, role=None if as_login else REVIEWER)
                )
            app = web.audit_app(
                reader, access=access, hosts=hosts, tenant=db.tenant, content=content, budget=budget, prices=costs,
                checkpoints=log, reviews=reviews, allow_empty=allow_empty,
            )  # fmt: skip
            await web.warm_up(reader, connections=_CONNECTIONS)
            # Garbage collections then skip everything that exists now, which is most of the memory.
            gc.freeze()
            await serve_app(app, host, port, getattr(access, "path", ""), getattr(access, "token", None))

    with db.reachable() as address, options.naming(db.tenant):
        asyncio.run(run(address))


def _is_loopback(host: str) -> bool:
    return host in ("127.0.0.1", "localhost", "::1")


def log_access_to(file: Path | None) -> None:
    handler: logging.Handler = logging.StreamHandler()
    if file is not None:
        try:
            handler = logging.FileHandler(private(file), encoding="utf-8")
        except OSError as error:
            raise misuse(f"cannot write {shown(str(file))}: {error.strerror}", "--access-log") from None
    log = logging.getLogger("compaction_store.web.access")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


async def serve_app(
    app: Any, host: str, port: int, path: str = "", token: str | None = None, *, proxy_headers: bool = True
) -> None:
    """Serves an ASGI application under a path, and prints its address, with the token if it has one."""
    if find_spec("uvicorn") is None:
        raise MissingExtra("the web server", "web")
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Mount

    if path:
        app = Starlette(routes=[Mount(path, app)])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            # Listen before the address is printed, because its reader may connect before uvicorn is ready.
            listening.listen()
        except OSError as error:
            raise misuse(f"cannot listen on {host}:{port}: {error.strerror}", "--listen") from None
        address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}{path}/"
        note(f"serving {address}{f'?token={token}' if token else ''}")
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, proxy_headers=proxy_headers
        )
        await uvicorn.Server(config).serve(sockets=[listening])


def mcp(
    thread: str | None = option("--thread THREAD", default=None),
    http: str | None = option(
        "--http HOST:PORT",
        "Serve over streamable HTTP instead of stdin and stdout. Clients must send the token in"
        f" ${_TOKEN}. If it is not set, a token is printed, and the address must be on 127.0.0.1.",
        None,
    ),
    max_tokens: int = option("--max-tokens N", default=4000, min=500),
    as_login: bool = option("--as-login", default=False),
    *,
    db: TenantOptions,
) -> None:
    from compaction_store.store import AsyncReader

    host, port = ("127.0.0.1", 0) if http is None else parsed_address(http, "--http")
    if not os.environ.get(_TOKEN) and not _is_loopback(host):
        raise misuse(f"must be on 127.0.0.1 unless ${_TOKEN} is set, not {host!r}", "--http")
    # Imported here, because the import is slow and needs an extra.
    from compaction_store.adapters import mcp as adapter

    role = None if as_login else AUDITOR

    async def serve(address: str) -> None:
        async with AsyncReader.open(address, tenant=db.tenant, pool_size=4, role=role) as reader:
            served = adapter.McpTools(reader, thread_id=thread, max_tokens=max_tokens)
            if http is None:
                await adapter.run_stdio(served)
            else:
                await _serve_http(adapter, served, host, port)

    with db.reachable() as address:
        asyncio.run(serve(address))


def parsed_address(text: str, option: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) < 65536:  # noqa: PLR2004 — the number of ports
        raise misuse(f"must look like 127.0.0.1:8000, not {text!r}", option)
    return host.strip("[]"), int(port)


async def _serve_http(adapter: Any, served: Any, host: str, port: int) -> None:
    import uvicorn

    token = os.environ.get(_TOKEN)
    if not token:
        token = secrets.token_urlsafe(24)
        note(f"the token of this server: {token}")
    config = uvicorn.Config(adapter.http_app(served, token, host=host), host=host, port=port, log_level="warning")
    note(f"serving http://{host}:{port}/mcp")
    await uvicorn.Server(config).serve()


_API_CONNECTIONS = 16


def api(
    listen: str = option("--listen HOST:PORT", default="127.0.0.1:8781"),
    token_file: Path | None = option("--token-file FILE", default=None),
    trust_proxy: list[str] | None = option("--trust-proxy ADDRESS", default=None),
    names: list[str] | None = option("--name HOST", default=None),
    strategy: list[str] = STRATEGY,
    summarizer: list[str] = SUMMARIZER,
    access_log: Path | None = option("--access-log FILE", default=None),
    *,
    db: ServerOptions,
) -> None:
    from compaction_store.store import AsyncStore
    from compaction_store.web import api as web

    if (token_file is None) == (not trust_proxy):
        raise misuse("or --trust-proxy must be given, and not both", "--token-file")
    host, port = parsed_address(listen, "--listen")
    callers: web.Callers = web.TrustedProxy(trust_proxy or ()) if token_file is None else web.TokenFile(token_file)
    strategies = {spec.partition(":")[0]: choices.strategy([spec], summarizer) for spec in strategy}
    if len(strategies) < len(strategy):
        raise misuse("must not be given twice with the same name", "--strategy")
    hosts = ("127.0.0.1", "localhost", "[::1]", *(names or ()))
    log_access_to(access_log)

    async def run(address: str) -> None:
        async with AsyncStore.open(address, pool_size=_API_CONNECTIONS) as store:
            app = web.api_app(store, callers=callers, strategies=strategies, hosts=hosts)
            # Another program could otherwise pretend to be at the address of the proxy.
            await serve_app(app, host, port, proxy_headers=False)

    with db.reachable() as address:
        asyncio.run(run(address))


# ---- the worker, which compacts the threads that are due, several at once, until it is stopped
#
# Any number of workers may run. Leases in the database ensure that only one worker at a time compacts a thread. If a
# worker is killed, others take over its threads when its leases expire. After the first signal, a worker finishes its
# runs and starts no new ones. After the second signal, it exits at once.


_FIRST_BACKOFF = 60.0
_MAX_BACKOFF = 3600.0
_POLL_SECONDS = 0.2
_NONE_DUE = "no thread is due; a thread whose last attempt made no progress is retried after it grows"


def worker(
    window: Annotated[int, option("--window TOKENS", "The model's context window.", min=1)],
    strategy: list[str] = STRATEGY,
    summarizer: list[str] = SUMMARIZER,
    reserve: Reserve = 0,
    trigger: Trigger = "0.8",
    target: Target = "0.5",
    parallel: int = option("--parallel N", default=4, min=1, max=256),
    every: float = option("--every SECONDS", default=5.0, min=0.1),
    wait: Wait = 0.0,
    idle: float = option("--idle MINUTES", default=0.0, min=0, max=525_600),
    once: bool = option("--once", default=False),
    *,
    deed: options.DeedOptions,
    db: ServerOptions,
    tenant: list[str] = option(
        "--tenant NAME", default=["default"], envvar="COMPACTION_STORE_TENANT", show_default="default"
    ),
    all_tenants: bool = option("--all-tenants", default=False),
    printed: PrintOptions,
) -> None:
    from compaction_store.deploy import doctor

    budget = options.budget(window, reserve, trigger, target)
    if budget is None:  # pragma: no cover — typer asks for a window
        raise misuse("is required", "--window")
    callback = choices.strategy(strategy, summarizer)
    out = printed.output()
    with (
        db.reachable() as address,
        compaction_store.Store.open(address, pool_size=parallel + 1, actor=options.user_at_host()) as opened,
        _stop_signal() as stop,
    ):
        # The stores of all tenants share one pool of connections.
        store_of = cache(opened.of_tenant)

        def names() -> Sequence[str]:
            return doctor.tenants(address) if all_tenants else tenant

        for name in names():
            # A wrong name or a missing right fails at once. While the worker runs, it waits for the database instead.
            store_of(name)
        loop = _Loop(store_of, names, callback, budget, deed.actor, deed.authority, parallel, wait, idle, stop, out)
        whose = "all tenants" if all_tenants else f"tenant {', '.join(map(repr, tenant))}"
        note(f"worker for {whose}: compacts threads above {budget.trigger_tokens:,} tokens, {parallel} at once")
        with ThreadPoolExecutor(parallel, thread_name_prefix="compact") as pool:
            while not stop.is_set() and (loop.round(pool) or not once):
                loop.rest(0 if once else every)
            loop.finish()
        note(loop.summary)
    if once and loop.failures:
        raise typer.Exit(REFUSED)


@contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    stop = threading.Event()

    def handle(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            # Exit without cleaning up, because a Python thread that waits for a summary cannot be interrupted.
            os._exit(128 + number)
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _ThreadKey(NamedTuple):
    tenant: str
    thread_id: str


class _Ended(NamedTuple):
    """The result or the error of a run, and its duration in seconds."""

    result: CompactionRun | None
    error: Exception | None
    seconds: float


@dataclass
class _Backoff:
    seconds: float
    until: float


@dataclass
class _Loop:
    """The loop of the worker, with the runs under way, the pauses of failed threads, and counts."""

    store_of: Callable[[str], Store]
    tenants: Callable[[], Sequence[str]]
    callback: Callable[..., Any]
    budget: TokenBudget
    actor: str | None
    authority: Mapping[str, Any] | None
    parallel: int
    wait: float
    idle: float
    stop: threading.Event
    out: Output
    begun: int = 0
    compacted: int = 0
    failures: int = 0
    covered: int = 0
    _busy: dict[Future[_Ended], _ThreadKey] = field(default_factory=dict)
    _paused: dict[_ThreadKey, _Backoff] = field(default_factory=dict)
    # The threads whose run ended in this round. The list of due threads was read before, so it may still contain them.
    _ended: set[_ThreadKey] = field(default_factory=set)

    @property
    def summary(self) -> str:
        if not self.begun:
            return _NONE_DUE + self._leased()
        counts = f"{self.compacted:,} compacted, {self.failures:,} failed"
        replaced = f", {values.count(self.covered, 'failed summary')} replaced by another summarizer"
        return f"{counts}{replaced if self.covered else ''}"

    def round(self, pool: ThreadPoolExecutor) -> bool:
        """Starts the runs that are due. Returns whether any run is under way, or the database must be asked again."""
        begun = 0
        self._ended.clear()
        try:
            for store, place in self._due():
                while len(self._busy) >= self.parallel and not self.stop.is_set():
                    self._reap(_POLL_SECONDS)
                if self.stop.is_set():
                    break
                if self._is_free(place):
                    self._busy[pool.submit(self._compact, store, place.thread_id)] = place
                    begun += 1
                    self.begun += 1
        except SchemaOutOfDate:
            raise
        except DatabaseError as error:
            # The database may be restarting: keep running.
            self._report(None, {"error": type(error).__name__}, str(error))
            begun += 1
            self.stop.wait(1)
        self._reap(_POLL_SECONDS if begun == 0 and self._busy else 0)
        return bool(begun or self._busy)

    def _leased(self) -> str:
        try:
            leases = [lease for tenant in self.tenants() for lease in self.store_of(tenant).leases(self.budget)]
        except DatabaseError:
            return ""
        return leased(leases)

    def _compact(self, store: Store, thread_id: str) -> _Ended:
        start, result, error = time.monotonic(), None, None
        try:
            result = store.compact(
                thread_id, self.callback, budget=self.budget, wait=self.wait, actor=self.actor, authority=self.authority
            )
        except Exception as raised:  # noqa: BLE001 — reported as the result of this run
            error = raised
        return _Ended(result, error, time.monotonic() - start)

    def rest(self, seconds: float) -> None:
        """Waits until the next search, and reports each run when it ends."""
        end = time.monotonic() + seconds
        while not self.stop.is_set() and (left := end - time.monotonic()) > 0:
            if self._busy:
                self._reap(min(_POLL_SECONDS, left))
            else:
                self.stop.wait(left)

    def finish(self) -> None:
        if self._busy and self.stop.is_set():
            note(f"stopping after {values.count(len(self._busy), 'run')} under way; a second signal ends it at once")
        while self._busy:
            self._reap(_POLL_SECONDS)

    def _due(self) -> Iterator[tuple[Store, _ThreadKey]]:
        """Yields the threads that are due, from each tenant in turn, so that a large tenant does not block others."""
        turns: deque[tuple[Store, str, Iterator[Thread]]] = deque()
        for tenant in self.tenants():
            store = self.store_of(tenant)
            turns.append((store, tenant, iter(store.due(self.budget, idle_minutes=self.idle))))
        while turns:
            store, tenant, waiting = turns.popleft()
            if (thread := next(waiting, None)) is not None:
                yield store, _ThreadKey(tenant, thread.thread_id)
                turns.append((store, tenant, waiting))

    def _is_free(self, place: _ThreadKey) -> bool:
        if place in self._ended or place in self._busy.values():
            return False
        rest = self._paused.get(place)
        return rest is None or rest.until <= time.monotonic()

    def _reap(self, seconds: float) -> None:
        done, _ = wait(self._busy, timeout=seconds, return_when=FIRST_COMPLETED)
        for run in done:
            place, ended = self._busy.pop(run), run.result()
            self._ended.add(place)
            result, error = ended.result, ended.error
            if result is None:
                self._fail(place)
                # An error from outside this package may quote a message, so print only its type.
                name = type(error).__name__
                text = (error and own_text(error)) or name
                self._report(place, {"error": name, "seconds": round(ended.seconds, 3)}, text)
                continue
            self.compacted += result.applied
            if result.applied or not (result.records or result.errors):
                self._paused.pop(place, None)
            else:
                self._fail(place)
            self._report_result(place, result, ended.seconds)

    def _fail(self, place: _ThreadKey) -> None:
        self.failures += 1
        rest = self._paused.get(place)
        seconds = _FIRST_BACKOFF if rest is None else min(_MAX_BACKOFF, 2 * rest.seconds)
        self._paused[place] = _Backoff(seconds, time.monotonic() + seconds)

    def _report_result(self, place: _ThreadKey, result: CompactionRun, took: float) -> None:
        outcomes = [record.outcome for record in result.records]
        parts = {
            "reason": result.reason, "applied": outcomes.count("applied"), "rejected": outcomes.count("rejected"),
            "failed": outcomes.count("failed"), "covered": len(result.covered),
            "tokens": result.view.tokens, "seconds": round(took, 3),
        }  # fmt: skip
        text = f"{result.reason}: {result.view.tokens:,} tokens now, {parts['applied']} applied, {took:.1f} s"
        if result.covered:
            self.covered += len(result.covered)
            text += f"; instead of {'; '.join(map(values.failure, result.covered))}"
        self._report(place, parts, text)

    def _report(self, place: _ThreadKey | None, parts: dict[str, Any], text: str) -> None:
        if self.out.as_json:
            where = {"tenant": None, "thread_id": None} if place is None else place._asdict()
            self.out.json(where | parts)
        else:
            self.out.text(text if place is None else f"{named(place.thread_id)}: {text}")
        self.out.flush()
