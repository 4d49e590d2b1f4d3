"""A web service over an AsyncStore: append to threads, read, compact in the background, and audit.

    pip install fastapi uvicorn
    python examples/service.py        # then: curl localhost:8000/threads/t-1/view

The service uses $COMPACTION_STORE_URL, or else the embedded Postgres. Put your own authentication in front: every
client that can reach the service can read and write all threads of its tenant.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

import uvicorn
from fastapi import Body, Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse

from compaction_store import (
    AsyncStore,
    CompactionNotFound,
    CompactionStoreError,
    Conflict,
    DatabaseError,
    InvalidInput,
    MessageNotFound,
    PositionNotFound,
    ThreadNotFound,
    TokenBudget,
)
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import ExtractiveSummarizer

BUDGET = TokenBudget(context_window=int(os.environ.get("WINDOW", "200000")))
LOOK_EVERY = 0.5
_STATUS: dict[type[CompactionStoreError], int] = {
    InvalidInput: 400,
    ThreadNotFound: 404,
    MessageNotFound: 404,
    PositionNotFound: 404,
    CompactionNotFound: 404,
    Conflict: 409,
    DatabaseError: 503,
}


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Opens one store for the process; it has a connection pool, and any number of tasks may use it."""
    async with AsyncStore.open(actor="service") as store:
        store.on_compact(SlidingWindow(ExtractiveSummarizer(), retain=12))
        app.state.store = store
        compacting = asyncio.create_task(compact_what_is_due(store))
        yield
        compacting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await compacting


async def compact_what_is_due(store: AsyncStore) -> None:
    """Compacts due threads. Any number of processes may do this at the same time: only one of them compacts a thread.

    `compaction-store worker` does the same in a separate process.
    """
    while True:
        with contextlib.suppress(CompactionStoreError):
            async for thread in store.due(BUDGET):
                await store.compact(thread.thread_id, budget=BUDGET)
        await asyncio.sleep(LOOK_EVERY)


app = FastAPI(lifespan=lifespan)


def the_store(request: Request) -> AsyncStore:
    store: AsyncStore = request.app.state.store
    return store


Opened = Annotated[AsyncStore, Depends(the_store)]


@app.exception_handler(CompactionStoreError)
async def refused(_request: Request, error: CompactionStoreError) -> JSONResponse:
    """Returns an error's text. No error of the store contains a message, so all of them may be shown."""
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    return JSONResponse({"error": type(error).__name__, "detail": str(error)}, status)


@app.post("/threads/{thread_id}/messages", status_code=201)
async def append(
    store: Opened,
    thread_id: str,
    message: Annotated[dict[str, Any], Body()],
    idempotency_key: Annotated[str | None, Header()] = None,
) -> dict[str, Any]:
    """Appends a message. A client that got no answer retries with the same Idempotency-Key."""
    [stored] = await store.append(thread_id, message, key=idempotency_key)
    return stored.as_dict()


@app.get("/threads/{thread_id}/messages")
async def replay(store: Opened, thread_id: str, after: int = 0) -> list[dict[str, Any]]:
    return [message.as_dict() async for message in store.replay(thread_id, after=after, until=after + 100)]


@app.get("/threads/{thread_id}/view")
async def view(store: Opened, thread_id: str, at: int | datetime | None = None) -> dict[str, Any]:
    """Returns what the model should see: now, at a pos, or at a time such as 2026-05-01T12:30:00Z."""
    return (await store.view(thread_id, at=at)).as_dict()


@app.get("/threads/{thread_id}/messages/{seq}/seen")
async def seen_by(store: Opened, thread_id: str, seq: int) -> dict[str, Any]:
    """Returns what the model saw when it wrote that message."""
    return (await store.seen_by(thread_id, seq)).as_dict()


@app.get("/compactions")
async def compactions(
    store: Opened, thread_id: str | None = None, actor: str | None = None, since: datetime | None = None
) -> list[dict[str, Any]]:
    """Returns the records of one thread or of all, by actor and time."""
    found = store.compactions(thread_id, actor=actor, since=since)
    return [record.as_dict() async for record in found]


@app.post("/threads/{thread_id}/compactions/{number}/revoke")
async def revoke(store: Opened, thread_id: str, number: int, reason: str) -> dict[str, Any]:
    return (await store.revoke(thread_id, number, reason=reason)).as_dict()


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
