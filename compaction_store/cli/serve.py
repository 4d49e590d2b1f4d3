"""The commands that serve: pages to auditors, threads to agents, the store to programs, and workers to the store."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from importlib.util import find_spec
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

import compaction_store
from compaction_store.audit.safe_text import named, shown
from compaction_store.cli import choices, options, values
from compaction_store.cli.bundles import REFUSED, misuse, option
from compaction_store.cli.compact import STRATEGY, SUMMARIZER, Wait, leased
from compaction_store.cli.options import BudgetOptions, Idle, PrintOptions, ServerOptions, TenantOptions
from compaction_store.cli.output import Output, private
from compaction_store.cli.service import ServiceOptions, ServiceState, beating, listening, parsed_address
from compaction_store.cli.verify import LogFile, PublicKeys, open_log
from compaction_store.errors import DatabaseError, MissingExtra, SchemaOutOfDate, own_text
from compaction_store.jsonable import time_text
from compaction_store.models.roles import AUDITOR, REVIEWER
from compaction_store.store import lease_keeper
from compaction_store.telemetry.prometheus import Gauge

if TYPE_CHECKING:
    from compaction_store import CompactionRun, Store, Telemetry, Thread, TokenBudget

_TOKEN = "COMPACTION_STORE_MCP_TOKEN"  # noqa: S105 — the name of a variable
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_CONNECTIONS, _API_CONNECTIONS = 4, 16
# For how many seconds a request may go on after SIGTERM.
_GRACE, _STREAM_GRACE = 20, 2
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
    service: ServiceOptions,
    db: TenantOptions,
) -> None:
    from compaction_store.store import AsyncReader, AsyncStore, Reader

    if review and not content:
        raise misuse("must not be given with --no-content, because reviewers must see the text", "--review")
    if actor is not None and auth is not None:
        raise misuse("must not be given with --auth, which names the reader", "--actor")
    host, _ = parsed_address(listen, "--listen")
    if auth is None and host not in _LOOPBACK:
        raise misuse(f"must be on 127.0.0.1 unless --auth is given, not {host!r}", "--listen")
    # Imported here, because the import is slow and needs an extra.
    from compaction_store import web
    from compaction_store.evaluation import Prices
    from compaction_store.reporting import gather, page
    from compaction_store.store.threads import pinned

    budget = options.budget(window, reserve, trigger, target)
    costs = None if prices is None else Prices.read(prices)
    log = open_log(checkpoints, public_key)
    log_access_to(access_log, service)
    access = web.OneTimeToken(actor or options.user_at_host()) if auth is None else web.BehindProxy(auth)
    hosts = ("127.0.0.1", "localhost", "[::1]", *(names or ()))

    async def run(address: str, telemetry: Telemetry | None) -> None:
        reading: dict[str, Any] = {"tenant": db.tenant, "role": None if as_login else AUDITOR, "settings": _READ_ONLY}

        def report(thread: Thread, made_by: str) -> bytes:
            with Reader.open(address, pool_size=1, **reading) as own:
                found = pinned(own, thread.thread_id, thread.thread_uid)
                return page.render(gather(
                    found, [thread.thread_id], tenant=db.tenant, made_by=made_by, content=content, checkpoints=log
                ))  # fmt: skip

        async with AsyncExitStack() as stack:
            # A verification of all threads has one more connection, so that it holds up no page.
            opening = AsyncReader.open(address, pool_size=_CONNECTIONS + review, telemetry=telemetry, **reading)
            reader = await stack.enter_async_context(opening)
            if telemetry is not None:
                ready = stack.enter_context(Reader.open(address, pool_size=1, **reading))
                state = ServiceState(ready, reader, lambda: [(db.tenant, ready)], budget=budget, checkpoints=log)
                service.answer(state.gauges, state.is_ready, beating())
            reviews = None
            if review:
                writing = AsyncStore.open(address, tenant=db.tenant, pool_size=1, role=None if as_login else REVIEWER)
                reviews = await stack.enter_async_context(writing)
            app = web.audit_app(
                reader, access=access, hosts=hosts, tenant=db.tenant, content=content, budget=budget, prices=costs,
                checkpoints=log, reviews=reviews, allow_empty=allow_empty, report=report,
            )  # fmt: skip
            await web.warm_up(reader, connections=_CONNECTIONS)
            # Garbage collections then skip everything that exists now, which is most of the memory.
            gc.freeze()
            token = f"?token={access.token}" if isinstance(access, web.OneTimeToken) else ""
            await serve_app(service, app, listen, getattr(access, "path", ""), f"/{token}")

    with service.running("serve") as telemetry, db.reachable() as address, options.naming(db.tenant):
        asyncio.run(run(address, telemetry))


class _AccessLog(WatchedFileHandler):
    """A file that only its owner may read. If it was moved away, the next line begins a new one."""

    def _open(self) -> Any:
        private(Path(self.baseFilename))
        return super()._open()


def log_access_to(file: Path | None, service: ServiceOptions) -> None:
    log = logging.getLogger("compaction_store.web.access")
    log.setLevel(logging.INFO)
    # Without a file, a log for programs has these lines too.
    log.propagate = file is None and service.log == "json"
    if file is not None:
        try:
            log.addHandler(_AccessLog(file, encoding="utf-8"))
        except OSError as error:
            raise misuse(f"cannot write {shown(str(file))}: {error.strerror}", "--access-log") from None
    elif not log.propagate:
        log.addHandler(logging.StreamHandler())


async def serve_app(
    service: ServiceOptions,
    app: Any,
    listen: str,
    path: str = "",
    page: str = "/",
    option: str = "--listen",
    **more: Any,
) -> None:
    """Serves an ASGI application under a path, and prints the address of a page. `more` are settings of uvicorn."""
    if find_spec("uvicorn") is None:
        raise MissingExtra("the web server", "web")
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Mount

    if path:
        # The tasks of a mounted application end with the server.
        app = Starlette(routes=[Mount(path, app)], lifespan=app.router.lifespan_context)
    # Listen before the address is printed, because its reader may connect before uvicorn is ready.
    listener, address = listening(listen, option)
    with listener:
        service.say(f"serving http://{address}{path}{page}")
        more |= {"log_config": None} if service.log == "json" else {}
        more = {"access_log": False, "server_header": False, "timeout_graceful_shutdown": _GRACE} | more
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", **more))
        service.stop = partial(setattr, server, "should_exit", True)
        server.handle_exit = service.handle  # type: ignore[assignment]
        await server.serve(sockets=[listener])
        # Those that had to be cancelled give back their leases.
        if tasks := server.server_state.tasks:
            await asyncio.wait(tasks, timeout=_GRACE)


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
    service: ServiceOptions,
    db: TenantOptions,
) -> None:
    from compaction_store.store import AsyncReader, Reader

    host, _ = ("127.0.0.1", 0) if http is None else parsed_address(http, "--http")
    if not os.environ.get(_TOKEN) and host not in _LOOPBACK:
        raise misuse(f"must be on 127.0.0.1 unless ${_TOKEN} is set, not {host!r}", "--http")
    # Imported here, because the import is slow and needs an extra.
    from compaction_store.adapters import mcp as adapter

    async def run(address: str, telemetry: Telemetry | None) -> None:
        reading: dict[str, Any] = {"tenant": db.tenant, "role": None if as_login else AUDITOR}
        async with (
            AsyncReader.open(address, pool_size=_CONNECTIONS, telemetry=telemetry, **reading) as reader,
            AsyncExitStack() as stack,
        ):
            if telemetry is not None:
                state = ServiceState(stack.enter_context(Reader.open(address, pool_size=1, **reading)), reader)
                service.answer(state.gauges, state.is_ready, beating())
            served = adapter.McpTools(reader, thread_id=thread, max_tokens=max_tokens)
            if http is None:
                await adapter.run_stdio(served)
                return
            if not (token := os.environ.get(_TOKEN)):
                service.say(f"the token of this server: {(token := secrets.token_urlsafe(24))}")
            app = adapter.http_app(served, token, host=host)
            # Clients keep streams open, which only this ends, and an answer that is cut off can be asked for again.
            await serve_app(service, app, http, page="/mcp", option="--http", timeout_graceful_shutdown=_STREAM_GRACE)

    with service.running("mcp") as telemetry, db.reachable() as address:
        asyncio.run(run(address, telemetry))


def api(
    listen: str = option("--listen HOST:PORT", default="127.0.0.1:8781"),
    token_file: Path | None = option("--token-file FILE", default=None),
    trust_proxy: list[str] | None = option("--trust-proxy ADDRESS", default=None),
    names: list[str] | None = option("--name HOST", default=None),
    strategy: list[str] = STRATEGY,
    summarizer: list[str] = SUMMARIZER,
    access_log: Path | None = option("--access-log FILE", default=None),
    *,
    service: ServiceOptions,
    db: ServerOptions,
) -> None:
    from compaction_store.store import AsyncStore, Reader
    from compaction_store.web import api as web

    if (token_file is None) == (not trust_proxy):
        raise misuse("or --trust-proxy must be given, and not both", "--token-file")
    parsed_address(listen, "--listen")
    callers: web.Callers = web.TrustedProxy(trust_proxy or ()) if token_file is None else web.TokenFile(token_file)
    strategies = {spec.partition(":")[0]: choices.strategy([spec], summarizer) for spec in strategy}
    if len(strategies) < len(strategy):
        raise misuse("must not be given twice with the same name", "--strategy")
    hosts = ("127.0.0.1", "localhost", "[::1]", *(names or ()))
    log_access_to(access_log, service)

    async def run(address: str, telemetry: Telemetry | None) -> None:
        async with (
            AsyncStore.open(address, pool_size=_API_CONNECTIONS, telemetry=telemetry) as store,
            AsyncExitStack() as stack,
        ):
            if telemetry is not None:
                state = ServiceState(stack.enter_context(Reader.open(address, pool_size=1)), store)
                service.answer(state.gauges, state.is_ready, beating())
            app = web.api_app(store, callers=callers, strategies=strategies, hosts=hosts)
            # Another program could otherwise pretend to be at the address of the proxy.
            await serve_app(service, app, listen, proxy_headers=False)

    with service.running("api") as telemetry, db.reachable() as address:
        asyncio.run(run(address, telemetry))


# ---- the worker, which compacts the threads that are due until it is stopped; a lease gives a thread to one worker


_FIRST_BACKOFF, _MAX_BACKOFF = 60.0, 3600.0
_POLL_SECONDS, _REST_SECONDS, _RELEASE_SECONDS = 0.2, 1.0, 2.0
_NONE_DUE = "no thread is due; a thread whose last attempt made no progress is retried after it grows"


def worker(
    of: BudgetOptions,
    strategy: list[str] = STRATEGY,
    summarizer: list[str] = SUMMARIZER,
    parallel: int = option("--parallel N", default=4, min=1, max=256),
    every: float = option("--every SECONDS", default=5.0, min=0.1),
    wait: Wait = 0.0,
    idle: Idle = 0.0,
    once: bool = option("--once", default=False),
    grace: float = option("--grace SECONDS", default=100.0, min=0, max=86_400),
    *,
    service: ServiceOptions,
    deed: options.DeedOptions,
    db: ServerOptions,
    tenant: list[str] = option(
        "--tenant NAME", default=["default"], envvar="COMPACTION_STORE_TENANT", show_default="default"
    ),
    all_tenants: bool = option("--all-tenants", default=False),
    printed: PrintOptions,
) -> None:
    from compaction_store.deploy import doctor

    budget = of.budget()
    callback = choices.strategy(strategy, summarizer)
    out = printed.output()
    stop = threading.Event()
    with (
        service.running("worker", stop.set) as telemetry,
        db.reachable() as address,
        compaction_store.Store.open(
            address, pool_size=parallel + 1, actor=options.user_at_host(), telemetry=telemetry
        ) as opened,
    ):
        # The stores of all tenants share one pool of connections.
        store_of = cache(opened.of_tenant)

        def names() -> Sequence[str]:
            return doctor.tenants(address) if all_tenants else tenant

        for name in names():
            # A wrong name or a missing right fails at once. While the worker runs, it waits for the database instead.
            store_of(name)
        loop = _Loop(
            store_of, names, callback, budget, deed.actor, deed.authority, parallel, wait, idle, stop, out, service.say
        )
        service.reload = partial(setattr, loop, "again", True)
        state = ServiceState(
            opened, opened, lambda: ((name, store_of(name)) for name in names()), loop.gauges, budget=budget, idle=idle
        )
        service.answer(state.gauges, state.is_ready)
        whose = "all tenants" if all_tenants else f"tenant {', '.join(map(repr, tenant))}"
        service.say(f"worker for {whose}: compacts threads above {budget.trigger_tokens:,} tokens, {parallel} at once")
        with ThreadPoolExecutor(parallel, thread_name_prefix="compact") as pool:
            while not stop.is_set() and (loop.round(pool) or not once):
                loop.rest(0 if once else every)
            loop.finish(grace)
        service.say(loop.summary)
    if once and loop.failures:
        raise typer.Exit(REFUSED)


class _ThreadKey(NamedTuple):
    tenant: str
    thread_id: str


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
    say: Callable[..., None]
    begun: int = 0
    compacted: int = 0
    failures: int = 0
    covered: int = 0
    # The threads that are being compacted, since when, and the seconds and the ends of the pauses after failures.
    _busy: dict[Future[CompactionRun], tuple[_ThreadKey, float]] = field(default_factory=dict)
    _paused: dict[_ThreadKey, tuple[float, float]] = field(default_factory=dict)
    # The threads whose run ended in this round. The list of due threads was read before, so it may still contain them.
    _ended: set[_ThreadKey] = field(default_factory=set)
    # When the due threads were last found out, and whether the loop must not rest.
    _searched: float = field(default_factory=time.time)
    again: bool = False

    @property
    def summary(self) -> str:
        if not self.begun:
            with suppress(DatabaseError):
                found = (self.store_of(name).leases(self.budget) for name in self.tenants())
                return _NONE_DUE + leased([lease for leases in found for lease in leases])
            return _NONE_DUE
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
                    run = pool.submit(
                        store.compact, place.thread_id, self.callback, budget=self.budget, wait=self.wait,
                        actor=self.actor, authority=self.authority,
                    )  # fmt: skip
                    self._busy[run] = place, time.monotonic()
                    begun += 1
                    self.begun += 1
            self._searched = time.time()
        except SchemaOutOfDate:
            raise
        except DatabaseError as error:
            # The database may be restarting: keep running.
            self._report(None, {"error": type(error).__name__}, str(error))
            begun += 1
            self.stop.wait(1)
        self._reap(_POLL_SECONDS if begun == 0 and self._busy else 0)
        return bool(begun or self._busy)

    def rest(self, seconds: float) -> None:
        """Waits until the next search, and reports each run when it ends."""
        end = time.monotonic() + seconds
        while not (self.stop.is_set() or self.again) and (left := end - time.monotonic()) > 0:
            if self._busy:
                self._reap(min(_POLL_SECONDS, left))
            else:
                self.stop.wait(min(_REST_SECONDS, left))
        if self.again:
            self.again = False
            self._paused.clear()
            self.say("SIGHUP: threads that failed are tried again now")

    def finish(self, grace: float) -> None:
        """Waits for the runs under way. After a signal and `grace` seconds, gives their leases back and exits."""
        if self._busy and self.stop.is_set():
            runs = values.count(len(self._busy), "run")
            self.say(f"stopping after {runs} under way, in at most {grace:g} s; a second signal ends it at once")
        end = time.monotonic() + grace
        while self._busy:
            self._reap(_POLL_SECONDS)
            if self._busy and self.stop.is_set() and time.monotonic() >= end:
                lease_keeper.end_all(_RELEASE_SECONDS)
                self.say(f"gave up {values.count(len(self._busy), 'run')}, with the leases", logging.WARNING)
                os._exit(REFUSED)

    def gauges(self) -> Iterator[Gauge]:
        now = time.monotonic()
        yield "worker_runs", {"state": "running"}, len(self._busy)
        yield "worker_runs", {"state": "paused"}, sum(end > now for _, end in list(self._paused.values()))
        yield "worker_slots", {}, self.parallel
        yield "worker_search_timestamp_seconds", {}, self._searched

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
        if place in self._ended or any(place == busy for busy, _ in self._busy.values()):
            return False
        return self._paused.get(place, (0, 0))[1] <= time.monotonic()

    def _reap(self, seconds: float) -> None:
        done, _ = wait(self._busy, timeout=seconds, return_when=FIRST_COMPLETED)
        for run in done:
            place, start = self._busy.pop(run)
            self._ended.add(place)
            took = time.monotonic() - start
            if (error := run.exception()) is not None:
                self._fail(place)
                # An error from outside this package may quote a message, so print only its type.
                name = type(error).__name__
                self._report(place, {"error": name, "seconds": round(took, 3)}, own_text(error) or name)
                continue
            result = run.result()
            self.compacted += result.applied
            if result.applied or not (result.records or result.errors):
                self._paused.pop(place, None)
            else:
                self._fail(place)
            self._report_result(place, result, took)

    def _fail(self, place: _ThreadKey) -> None:
        self.failures += 1
        seconds = min(_MAX_BACKOFF, 2 * self._paused.get(place, (_FIRST_BACKOFF / 2, 0))[0])
        self._paused[place] = seconds, time.monotonic() + seconds

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
            level = "warning" if "error" in parts or parts["failed"] or parts["covered"] else "info"
            self.out.json({"time": time_text(datetime.now(UTC)), "level": level} | where | parts)
        else:
            self.out.text(text if place is None else f"{named(place.thread_id)}: {text}")
        self.out.flush()
