"""The first requests find compiled templates, open connections and a chart that is drawn already."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import jinja2
import psycopg
import pytest
from support import sent_statements

import compaction_store as cs
from compaction_store import web
from compaction_store.store._async.audit import AsyncAudit
from web.audited import ADDRESSES, THREAD, Client, visit


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return sent_statements.recorded(monkeypatch)


@pytest.mark.usefixtures("store")
def test_no_request_compiles_a_template(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        pytest.fail("a request compiled a template")

    async def steps(client: Client) -> None:
        monkeypatch.setattr(jinja2.Environment, "compile", refused)
        for address, parameters in ADDRESSES:
            assert (await client.get(address, params=parameters)).status_code in (200, 303)

    visit(url, steps)


@pytest.mark.usefixtures("store")
def test_warming_up_opens_the_connections_and_shows_nothing_to_anybody(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened: list[object] = []
    connect: Any = psycopg.AsyncConnection.connect

    async def noted(*arguments: Any, **keywords: Any) -> Any:
        opened.append(arguments)
        return await connect(*arguments, **keywords)

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", noted)

    async def run() -> None:
        async with cs.AsyncReader.open(url, pool_size=2) as reader:
            await web.warm_up(reader, connections=2)
            assert len(opened) >= 2
            opened.clear()
            access = web.OneTimeToken()
            transport = httpx.ASGITransport(app=web.audit_app(reader, access=access))
            async with Client(transport=transport, base_url="http://127.0.0.1") as client:
                await client.get("/", params={"token": access.token})
                pages = [client.get("/view", params={"id": THREAD}) for _ in range(2)]
                assert [page.status_code for page in await asyncio.gather(*pages)] == [200, 200]
            assert opened == []

    asyncio.run(run())
    assert "warm" not in caplog.text


@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
def test_warming_up_needs_no_thread_and_no_rights(url: str) -> None:
    async def run(role: str | None) -> None:
        async with cs.AsyncReader.open(url, role=role) as reader:
            await web.warm_up(reader, connections=1)

    asyncio.run(run(None))
    asyncio.run(run("compaction_store_loader"))


@pytest.mark.one_server("on a cluster, each call has one more round trip, which looks up the name")
@pytest.mark.usefixtures("store")
def test_the_page_of_a_thread_has_its_chart_drawn_ahead(url: str, sent: list[str]) -> None:
    async def steps(client: Client) -> None:
        await client.get("/thread", params={"id": THREAD})
        first = (await client.get("/chart.svg", params={"id": THREAD})).text
        sent.clear()
        assert (await client.get("/chart.svg", params={"id": THREAD})).text == first
        assert len(sent) == 1, sent

    visit(url, steps)


def test_a_chart_is_drawn_again_after_an_erasure_and_after_a_failure(
    url: str, store: cs.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(client: Client) -> None:
        before = (await client.get("/chart.svg", params={"id": THREAD})).text
        store.custody.release(THREAD, reason="settled")
        store.custody.redact(THREAD, [1], reason="asked for")
        monkeypatch.setattr(AsyncAudit, "token_steps", _fails)
        assert (await client.get("/chart.svg", params={"id": THREAD})).status_code == 500
        assert (await client.get("/thread", params={"id": THREAD})).status_code == 200
        await asyncio.sleep(0)
        monkeypatch.undo()
        after = await client.get("/chart.svg", params={"id": THREAD})
        assert after.status_code == 200
        assert after.text != before

    visit(url, steps)


async def _fails(*_: object, **__: object) -> Iterator[None]:
    raise RuntimeError("the chart cannot be drawn")
