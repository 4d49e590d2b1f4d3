"""The commands that serve: pages to auditors, threads to agents, and the store to programs."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import socket
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compaction_store.audit.safe_text import shown
from compaction_store.cli import choices, options
from compaction_store.cli.bundles import misuse, option
from compaction_store.cli.compact import STRATEGY, SUMMARIZER
from compaction_store.cli.options import ServerOptions, TenantOptions
from compaction_store.cli.output import note, private
from compaction_store.cli.verify import LogFile, PublicKeys, open_log
from compaction_store.errors import MissingExtra
from compaction_store.models.roles import AUDITOR, REVIEWER

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

    budget = options.budget(window, reserve, trigger, target)
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
                reader, access=access, hosts=hosts, tenant=db.tenant, content=content, budget=budget, checkpoints=log,
                reviews=reviews, allow_empty=allow_empty,
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
