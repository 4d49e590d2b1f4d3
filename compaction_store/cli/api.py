"""The command `api`, which serves the store over HTTP to programs in other languages."""

from __future__ import annotations

import asyncio
from pathlib import Path

from compaction_store.cli import choices
from compaction_store.cli.bundles import option
from compaction_store.cli.compact import STRATEGY, SUMMARIZER
from compaction_store.cli.exits import misuse
from compaction_store.cli.options import ServerOptions
from compaction_store.cli.serve import log_access_to, parsed_address, serve_app

_CONNECTIONS = 16


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
        async with AsyncStore.open(address, pool_size=_CONNECTIONS) as store:
            app = web.api_app(store, callers=callers, strategies=strategies, hosts=hosts)
            # Another program could otherwise pretend to be at the address of the proxy.
            await serve_app(app, host, port, proxy_headers=False)

    with db.reachable() as address:
        asyncio.run(run(address))
