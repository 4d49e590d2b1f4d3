"""Clients of the API in this process, with tokens of two tenants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import httpx

import compaction_store as cs
from compaction_store.web.api import Callers, TokenFile, api_app

WRITER, READER, STRANGER = "w" * 40, "r" * 40, "s" * 40
JSON = {"Content-Type": "application/json"}


def line(token: str, tenant: str, actor: str, rights: str) -> str:
    return json.dumps({
        "sha256": sha256(token.encode()).hexdigest(), "tenant": tenant, "actor": actor, "rights": rights,
    })  # fmt: skip


LINES = (
    line(WRITER, "acme", "bot", "write"), line(READER, "acme", "auditor", "read"),
    line(STRANGER, "globex", "spy", "write"),
)  # fmt: skip


def token_file(folder: Path, *lines: str) -> Path:
    path = folder / "tokens.jsonl"
    path.write_text("\n".join(lines or LINES) + "\n", encoding="utf-8")
    return path


class Answer(NamedTuple):
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def kind(self) -> str:
        """The type of an error. Checks that the answer is an error that a program can read."""
        assert set(self.body) == {"type", "message"}
        assert self.body["message"]
        return str(self.body["type"])


class Client:
    """Sends requests with a token."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = WRITER, headers: Any = None, **query: Any
    ) -> Answer:
        sent = ({} if token is None else {"Authorization": f"Bearer {token}"}) | (headers or {})
        content = None
        if method == "POST":
            sent = JSON | sent
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await self.http.request(
            method, httpx.URL(path), content=content, headers=sent, params=query or None
        )  # fmt: skip
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"] == "application/json"
        return Answer(answer.status_code, answer.json(), answer.headers)

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.ask("GET", path, **more)

    async def post(self, path: str, body: Any, **more: Any) -> Answer:
        return await self.ask("POST", path, body, **more)

    async def talk(self, thread: str, count: int) -> None:
        messages = [
            {"role": "user" if i % 2 else "assistant", "content": f"Part {i} of what there is to say. " * 8}
            for i in range(1, count + 1)
        ]
        assert (await self.post(f"/v1/threads/{thread}/messages", {"messages": messages})).status == 201


Steps = Callable[[Client], Coroutine[Any, Any, None]]


def visit(url: str, folder: Path, steps: Steps, *, callers: Callers | None = None, peer: str = "127.0.0.1",
          deadline: float = 30.0, **options: Any) -> None:  # fmt: skip
    """Runs steps with a client of the API."""

    async def run() -> None:
        async with cs.AsyncStore.open(url, tenant="nobody", deadline=deadline) as store:
            app = api_app(store, callers=callers or TokenFile(token_file(folder)), **options)
            transport = httpx.ASGITransport(app=app, client=(peer, 5000))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8781") as http:
                await steps(Client(http))

    asyncio.run(run())
