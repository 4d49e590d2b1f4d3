"""A thread that has something of everything, and a client of the pages in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx

import compaction_store as cs
from compaction_store import web
from compaction_store.web.routes import PARAMETERS

THREAD = "ticket/8812"
SUMMARY = "Order #44910 went out with ZX-990-AA, see /srv/orders/0.json. A refund of $999.99 was promised."
Client = httpx.AsyncClient


def fill(store: cs.Store) -> None:
    """Makes a thread with a record that is active, one that was superseded, one rejected, one failed, and events."""
    for turn in range(8):
        store.append(THREAD, {
            "role": "user", "content": f"Order #4491{turn} is not at 12 Elm Street, see /srv/orders/{turn}.json",
        })  # fmt: skip
        view = store.view(THREAD).for_openai()
        store.append(THREAD, {"role": "assistant", "content": f"It was sent with ZX-99{turn}-AA."}, view=view)
    store.compact(THREAD, lambda ctx: ctx.compact(1, 6, SUMMARY), actor="nightly")
    store.compact(THREAD, lambda ctx: ctx.compact(9, 10, "much too long " * 900), actor="nightly")
    store.compact(THREAD, lambda ctx: ctx.compact(1, 8, SUMMARY), actor="nightly")
    store.custody.redact(THREAD, [16], reason="asked for", actor="privacy desk")
    # A redaction also erases the body of an attempt whose span is not known.
    store.compact(THREAD, _fails, actor="nightly")
    store.custody.hold(THREAD, reason="a lawsuit", actor="legal")
    store.append("other", {"role": "user", "content": "hello"})


def _fails(_: cs.CompactionContext) -> None:
    raise RuntimeError("the model is away")


Visit = Callable[[Client], Coroutine[Any, Any, None]]


@asynccontextmanager
async def client(url: str, **options: Any) -> AsyncIterator[Client]:
    """Opens the pages in this process, with the token's cookie."""
    tenant = options.pop("tenant", "default")
    access = options.pop("access", None) or web.OneTimeToken()
    deadline = options.pop("deadline", 30.0)
    async with cs.AsyncReader.open(url, tenant=tenant, deadline=deadline) as reader:
        app = web.audit_app(reader, access=access, tenant=tenant, **options)
        transport = httpx.ASGITransport(app=app)
        async with Client(transport=transport, base_url="http://127.0.0.1:8780") as opened:
            if isinstance(access, web.OneTimeToken):
                answer = await opened.get("/", params={"token": access.token})
                assert answer.status_code == 303
            yield opened


def visit(url: str, steps: Visit, **options: Any) -> None:
    async def run() -> None:
        async with client(url, **options) as opened:
            await steps(opened)

    asyncio.run(run())


ADDRESSES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/", {}),
    ("/threads", {}),
    ("/leases", {}),
    ("/thread", {"id": THREAD}),
    ("/view", {"id": THREAD}),
    ("/view", {"id": THREAD, "at": 5}),
    ("/view", {"id": THREAD, "at": 16, "beside": 20}),
    ("/view", {"id": THREAD, "at": 16, "beside": 20, "all": 1}),
    ("/record", {"id": THREAD, "number": 1}),
    ("/record", {"id": THREAD, "number": 2}),
    ("/record", {"id": THREAD, "number": 3}),
    ("/record", {"id": THREAD, "number": 4}),
    ("/compare", {"id": THREAD, "number": 1, "with": 3}),
    ("/message", {"id": THREAD, "seq": 2}),
    ("/message", {"id": THREAD, "seq": 16}),
    ("/reply", {"id": THREAD, "seq": 4}),
    ("/records", {}),
    ("/records", {"outcome": "failed", "actor": "nightly", "since": "7d"}),
    ("/search", {"q": "elm street"}),
    ("/erasures", {}),
    ("/certificate", {"id": THREAD, "pos": 20}),
    ("/integrity", {}),
    ("/integrity", {"id": THREAD}),
    ("/sample", {"seed": 3, "until": "2100-01-01T00:00:00+00:00"}),
    ("/sample", {}),
    ("/reviews", {}),
    ("/chart.svg", {"id": THREAD}),
    ("/style.css", {}),
    ("/icon.svg", {}),
)


def known(address: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters that a page knows."""
    return {name: value for name, value in given.items() if name in PARAMETERS[address]}
