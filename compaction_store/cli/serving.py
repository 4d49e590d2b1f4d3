"""Serves a tenant's threads to agents, over MCP."""

from __future__ import annotations

import asyncio
import os
import secrets
from typing import Annotated, Any

import typer

from compaction_store.cli.options import Tenant, Url
from compaction_store.cli.output import note
from compaction_store.cli.wrong_call import misuse
from compaction_store.store import AsyncReader

_TOKEN = "COMPACTION_STORE_MCP_TOKEN"  # noqa: S105 — the name of a variable
_AUDITOR = "compaction_store_auditor"


def mcp(
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="THREAD", help="Serve only this thread.", show_default=False)
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            show_default=False,
            help="Serve over streamable HTTP instead of stdin and stdout, to clients that send the token in"
            f" ${_TOKEN}, or the one that is printed.",
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", min=500, help="The maximum length of a result.")
    ] = 4000,
    as_login: Annotated[
        bool, typer.Option("--as-login", help="Use the login's own rights, not those of the auditor's role.")
    ] = False,
    url: Url = None,
    tenant: Tenant = "default",
) -> None:
    """Serves the tenant's threads to an agent over MCP: to search and read them, and to ask what was compacted.

    Nothing can be written. The session takes the role compaction_store_auditor, which the login must be a member of.
    """
    host, port = ("", 0) if http is None else _address(http)
    # An extra, and slow to import.
    from compaction_store.adapters import mcp as adapter  # noqa: PLC0415

    role = None if as_login else _AUDITOR

    async def serve() -> None:
        async with AsyncReader.open(url, tenant=tenant, pool_size=4, role=role) as reader:
            served = adapter.McpTools(reader, thread_id=thread, max_tokens=max_tokens)
            if http is None:
                await adapter.run_stdio(served)
            else:
                await _serve_http(adapter, served, host, port)

    asyncio.run(serve())


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) < 65536:  # noqa: PLR2004 — as many as there are
        raise misuse(f"must look like 127.0.0.1:8000, not {text!r}", "--http")
    return host.strip("[]"), int(port)


async def _serve_http(adapter: Any, served: Any, host: str, port: int) -> None:
    import uvicorn  # noqa: PLC0415 — comes with the extra

    token = os.environ.get(_TOKEN)
    if not token:
        token = secrets.token_urlsafe(24)
        note(f"the token of this server: {token}")
    config = uvicorn.Config(adapter.http_app(served, token, host=host), host=host, port=port, log_level="warning")
    note(f"serving http://{host}:{port}/mcp")
    await uvicorn.Server(config).serve()
