"""A web service that streams answers, and keeps what there is of an answer when the client goes away.

    pip install fastapi uvicorn
    python examples/streaming.py        # then: curl -N -d 'Tell me a story.' localhost:8000/chats/c-1

The service uses $COMPACTION_STORE_URL, or else the embedded Postgres. The model is a stand-in that needs no key. Put
your own authentication in front, and take the tenant from it and not from a header.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Header, Request
from fastapi.responses import StreamingResponse

from compaction_store import AsyncStore, TokenBudget, View
from compaction_store.errors import TurnTimeout
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import StateSummary

BUDGET = TokenBudget(context_window=200_000)
STORY = "The sea was calm that morning, and the lighthouse keeper counted the boats as they came home. " * 8


async def model(_view: View) -> AsyncIterator[str]:
    """Stands in for a model. With Anthropic's SDK:

    async with client.messages.stream(model=MODEL, max_tokens=4096, **view.for_anthropic()) as stream:
        async for text in stream.text_stream:
            yield text
    """
    for word in STORY.split(" "):
        yield f"{word} "
        await asyncio.sleep(0.02)


async def answer(store: AsyncStore, chat: str, question: str) -> AsyncIterator[str]:
    try:
        async with store.turn(chat, wait=20) as turn:
            await turn.append({"role": "user", "content": question})
            view = await store.fit(chat, BUDGET)
            said: list[str] = []
            is_complete = False
            try:
                async for text in model(view):
                    said.append(text)
                    yield text
                is_complete = True
            finally:
                # This is stored even if the request is being cancelled, because it is an append of the turn.
                if said:
                    reply: dict[str, Any] = {"role": "assistant", "content": "".join(said)}
                    await turn.append(reply, view=view, meta={"complete": is_complete})
    except TurnTimeout:
        yield "Another question in this chat is being answered. Please try again."


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncStore.open(actor="chat") as store:
        # The stores of all tenants have this callback too.
        store.on_compact(SlidingWindow(StateSummary(), retain=12))
        app.state.store = store
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/chats/{chat}")
async def ask(request: Request, chat: str, tenant: Annotated[str, Header()] = "default") -> StreamingResponse:
    store = request.app.state.store.of_tenant(tenant)
    question = (await request.body()).decode()
    return StreamingResponse(answer(store, chat, question), media_type="text/plain")


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
