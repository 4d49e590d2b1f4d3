"""No text makes a page long, no page stops the others, and a page says soon that the database is away."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import psycopg
import pytest
from reliability.rigs.ground import Postgres

import compaction_store as cs
from compaction_store import migrate
from web.audited import THREAD, Client, visit

LONG = "é" * 400_000
_MOST_BYTES = 400_000
_EVENT = "SELECT compaction_store.record_event(NULL, 'default', 't', %s, %s, %s, %s)"


@pytest.fixture
def long(url: str, superuser: psycopg.Connection[Any]) -> cs.Store:
    """A thread whose texts are as long as the database lets them be."""
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": f"{LONG} {n}"} for n in range(4)], meta={"note": "é" * 4000})
        store.set_metadata("t", {"note": "é" * 4000})
        store.compact("t", lambda ctx: ctx.compact(1, 2, LONG[:300_000], reason="r" * 8000))
        store.custody.hold("t", reason="h" * 8000)
        reasons = [json.dumps({"reason": "x" * 3_000_000})] * 20
        for reason in reasons:
            superuser.execute(_EVENT, ["release", "a" * 255, os.urandom(16), reason])
    return store


_PAGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/thread", {"id": "t"}), ("/view", {"id": "t"}), ("/view", {"id": "t", "at": 4, "beside": 5}), ("/records", {}),
    ("/record", {"id": "t", "number": 1}), ("/message", {"id": "t", "seq": 1}), ("/reply", {"id": "t", "seq": 3}),
    ("/erasures", {}), ("/certificate", {"id": "t", "pos": 8}), ("/search", {"q": "é"}), ("/", {}), ("/threads", {}),
    ("/sample", {"seed": 1, "until": "2100-01-01T00:00:00+00:00"}), ("/integrity", {}), ("/whole", {"id": "t"}),
    ("/whole", {"id": "t", "pos": 8}), ("/whole", {"id": "t", "number": 1}), ("/whole", {"id": "t", "seq": 1}),
)  # fmt: skip


@pytest.mark.usefixtures("long")
def test_no_text_makes_a_page_long(url: str) -> None:
    async def steps(client: Client) -> None:
        for address, parameters in _PAGES:
            answer = await client.get(address, params=parameters)
            assert answer.status_code == 200, (address, answer.text[:400])
            assert len(answer.content) < _MOST_BYTES, (address, len(answer.content))

    visit(url, steps)


@pytest.mark.usefixtures("long")
def test_the_whole_of_a_text_is_one_link_away(url: str) -> None:
    async def steps(client: Client) -> None:
        page = (await client.get("/certificate", params={"id": "t", "pos": 8})).text
        assert "the first 4,000 of 3,000,0" in page
        assert "/whole?id=t&amp;pos=8" in page
        read, part, more = 0, 1, True
        while more:
            answer = (await client.get("/whole", params={"id": "t", "pos": 8, "part": part})).text
            read += answer.count("x" * 100)
            more, part = "Next part" in answer, part + 1
        assert read * 100 >= 2_990_000

    visit(url, steps)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lets the page of a thread wait in its rendering, as a page with much text would."""
    app: Any = import_module("compaction_store.web.app")
    end, shown = threading.Event(), app.described

    def waits(event: cs.Event, **how: Any) -> Any:
        assert end.wait(60)
        return shown(event, **how)

    monkeypatch.setattr(app, "described", waits)
    yield end
    end.set()


@pytest.mark.usefixtures("store")
def test_a_slow_page_does_not_stop_the_others(url: str, slow: threading.Event) -> None:
    async def steps(client: Client) -> None:
        slow_page = asyncio.ensure_future(client.get("/thread", params={"id": THREAD}))
        for _ in range(20):
            assert (await client.get("/style.css")).status_code == 200
            assert (await client.get("/records")).status_code == 200
        assert not slow_page.done()
        slow.set()
        assert (await slow_page).status_code == 200

    visit(url, steps)


@pytest.mark.skipif(not Postgres.possible(), reason="needs the wheel's binaries")
def test_without_the_database_a_page_says_so_soon_and_names_no_host(caplog: pytest.LogCaptureFixture) -> None:
    with Postgres() as server:
        migrate.upgrade(server.url)

        async def steps(client: Client) -> None:
            assert (await client.get("/")).status_code == 200
            server.kill()
            caplog.set_level(logging.ERROR, "compaction_store.web")
            start = time.monotonic()
            answer = await client.get("/records")
            assert answer.status_code == 503
            assert answer.headers["Retry-After"]
            assert "does not answer" in answer.text
            assert str(server.data) not in answer.text
            assert "5432" not in answer.text
            assert (await client.get("/style.css")).status_code == 200
            # Far less than the deadline, which is 30 seconds.
            assert time.monotonic() - start < 15
            server.start()
            assert (await client.get("/records")).status_code == 200

        visit(server.url, steps)
    assert str(server.data) in caplog.text
