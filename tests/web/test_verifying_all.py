"""A reader verifies all threads from a page: beside the requests, one verification at a time, with a stored result."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

import compaction_store as cs
from compaction_store import web
from compaction_store.arguments import LOG
from compaction_store.models import Event
from web.audited import Client, client, visit
from web.served import serving
from web.test_overview import text_of
from web.test_verdicts import fields, reviewing

pytestmark = pytest.mark.one_server("it takes a role that may not log in, and locks a table of one server")
_RED = "This store is not as it should be"
_RUNNING = "Verifying all threads:"


def recorded(store: cs.Store) -> list[Event]:
    try:
        return list(store.audit.events(LOG, kind="verification"))
    except cs.ThreadNotFound:
        return []


async def token_of(client: Client) -> str:
    return fields((await client.get("/integrity")).text)["token"]


async def press(client: Client, token: str, level: str = "content") -> str:
    """Sends the form of the page, and returns the page that follows."""
    answer = await client.post("/verify", data={"token": token, "level": level})
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"] == "/integrity#all-threads"
    return (await client.get("/integrity")).text


async def end(client: Client) -> str:
    """Looks at the page until no verification runs, and returns its text."""
    for _ in range(2000):
        page = (await client.get("/integrity")).text
        if _RUNNING not in page:
            break
        await asyncio.sleep(0.05)
    return page


@contextmanager
def locked(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Lets nobody else read a message."""
    with connection.transaction():
        connection.execute("LOCK TABLE compaction_store.messages IN ACCESS EXCLUSIVE MODE")
        yield


def change(connection: psycopg.Connection[Any], statement: bytes) -> None:
    """Changes what is stored, and leaves the schema as it was."""
    with connection.transaction():
        connection.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER USER")
        connection.execute(statement)
        for name in ("refuse_change", "refuse_truncate"):
            connection.execute(f"ALTER TABLE compaction_store.messages ENABLE ALWAYS TRIGGER {name}".encode())


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("level", ["content", "structure", "schema"])
def test_the_result_is_shown_and_recorded(url: str, store: cs.Store, level: str) -> None:
    async def steps(client: Client) -> None:
        assert "Nobody has recorded a verification" in (await client.get("/")).text
        page = text_of(await press(client, await token_of(client), level))
        assert f"No findings in 2 threads, at level {level}, by the holder of the token" in page
        assert "The result is recorded" in page
        first = text_of((await client.get("/")).text)
        assert f"No findings 2 threads, level {level}, 0 minutes ago" in first
        [link] = set(re.findall(r'href="(/certificate\?[^"]*)">recorded', (await client.get("/integrity")).text))
        assert (await client.get(link.replace("&amp;", "&"))).status_code == 200

    reviewing(url, steps)
    [event] = recorded(store)
    assert event.actor == "the holder of the token"
    assert {name: event.body[name] for name in ("level", "threads", "findings")} == {
        "level": level, "threads": 2, "findings": 0,
    }  # fmt: skip
    assert event.body["seconds"] >= 0


@pytest.mark.usefixtures("store")
def test_a_tampered_store_turns_red_on_every_page(
    url: str, store: cs.Store, superuser: psycopg.Connection[Any]
) -> None:
    name = "a\nb <i>'"
    store.append(name, [{"role": "user", "content": "hi"}] * 3)
    uid = store.thread(name).thread_uid
    change(superuser, f"UPDATE compaction_store.messages SET tokens = 99 WHERE thread_uid = '{uid}'".encode())

    async def steps(client: Client) -> None:
        assert _RED not in (await client.get("/")).text
        page = await press(client, await token_of(client))
        assert re.search(r"<strong>\d findings</strong> in 3 threads", page)
        assert "<i>" not in page
        assert r"a\nb &lt;i&gt;" in page
        for address in ("/", "/threads", "/records", "/integrity", "/sample", "/erasures"):
            assert _RED in (await client.get(address)).text, address
        assert "The verification of all threads at" in (await client.get("/")).text
        links = re.findall(r'href="(/(?:integrity|view)\?id=a[^"]*)"', page)
        assert links
        for link in links:
            assert (await client.get(link.replace("&amp;", "&"))).status_code == 200

    reviewing(url, steps)
    [event] = recorded(store)
    assert event.body["findings"] > 0


def test_threads_that_no_checkpoint_has_are_named(url: str, store: cs.Store, tmp_path: Path) -> None:
    key = cs.SigningKey.generate("example.org/audit")
    log = cs.CheckpointLog(tmp_path / "log.jsonl", key.key)
    store.audit.checkpoint(key, log)
    store.append("begun later", {"role": "user", "content": "hello"})

    async def steps(client: Client) -> None:
        assert "In no checkpoint yet" not in await press(client, await token_of(client))
        page = text_of(await press(client, await token_of(client), "checkpoint"))
        assert "No findings in 3 threads, at level checkpoint" in page
        [named] = re.findall(r"In no checkpoint yet: (.*?)\. ", page)
        assert [name.strip() for name in named.split(",")] == ["begun later", LOG]

    reviewing(url, steps, checkpoints=log)


@pytest.mark.usefixtures("store")
def test_only_the_first_findings_are_kept(url: str, store: cs.Store, superuser: psycopg.Connection[Any]) -> None:
    store.append("long", [{"role": "user", "content": "hi"}] * 250)
    uid = store.thread("long").thread_uid
    change(superuser, f"UPDATE compaction_store.messages SET tokens = 99 WHERE thread_uid = '{uid}'".encode())

    async def steps(client: Client) -> None:
        page = await press(client, await token_of(client))
        assert page.count("<li>") - page.count('<li><a href="/') >= 100
        assert re.search(r"and \d+ more; the command below prints all", page)
        assert page.count('href="/integrity?id=long"') == 100

    reviewing(url, steps)


@pytest.mark.usefixtures("store")
def test_a_second_press_joins_the_one_that_runs_and_other_pages_are_read(
    url: str, store: cs.Store, superuser: psycopg.Connection[Any]
) -> None:
    async def steps(client: Client) -> None:
        token = await token_of(client)
        with locked(superuser):
            page = await press(client, token)
            assert "Verifying all threads: none yet, no findings so far." in text_of(page)
            assert '<progress aria-label="Verified threads" max="1" value="0">' in page
            assert "<script" not in page
            assert 'action="/verify"' not in page
            begun = re.findall("begun by [^<]*UTC", page)
            again = await press(client, token, level="structure")
            assert re.findall("begun by [^<]*UTC", again) == begun
            for address in ("/threads", "/erasures", "/sample", "/records"):
                assert (await client.get(address)).status_code == 200
        assert "No findings in 2 threads, at level content" in text_of(await end(client))
        # The next press begins another one.
        assert "at level structure" in await press(client, token, level="structure")

    reviewing(url, steps)
    assert [event.body["level"] for event in recorded(store)] == ["content", "structure"]


@pytest.mark.usefixtures("store")
def test_two_tenants_are_verified_at_once(url: str, store: cs.Store, superuser: psycopg.Connection[Any]) -> None:
    other = store.of_tenant("other")
    for number in range(5):
        other.append(f"t-{number}", {"role": "user", "content": "hi"})

    async def run() -> None:
        async with (
            cs.AsyncStore.open(url, role="compaction_store_reviewer") as reviews,
            client(url, reviews=reviews) as mine,
            client(url, tenant="other", reviews=reviews.of_tenant("other")) as theirs,
        ):
            tokens = [await token_of(each) for each in (mine, theirs)]
            with locked(superuser):
                for each, token in zip((mine, theirs), tokens, strict=True):
                    assert _RUNNING in await press(each, token)
            assert "No findings in 2 threads" in text_of(await end(mine))
            assert "No findings in 5 threads" in text_of(await end(theirs))

    asyncio.run(run())
    assert [event.body["threads"] for event in recorded(store)] == [2]
    assert [event.body["threads"] for event in recorded(other)] == [5]


@pytest.mark.usefixtures("store")
def test_a_failure_is_shown_by_its_type_and_nothing_is_recorded(
    url: str, store: cs.Store, superuser: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def steps(client: Client) -> None:
        token = await token_of(client)
        with locked(superuser):
            await press(client, token)
            superuser.execute("ALTER TABLE compaction_store.messages RENAME TO moved")
        page = text_of(await end(client))
        superuser.execute("ALTER TABLE compaction_store.moved RENAME TO messages")
        assert re.search(r"The verification failed ?: DatabaseError: [^<]+42P01", page), page
        assert "Elm Street" not in page
        assert "No findings in 2 threads" in text_of(await press(client, token))

    reviewing(url, steps)
    assert len(recorded(store)) == 1
    assert any("DatabaseError" in line for line in caplog.messages)
    assert not any("Elm Street" in line for line in caplog.messages)


def test_a_tenant_without_threads_records_nothing(url: str) -> None:
    async def steps(client: Client) -> None:
        page = text_of(await press(client, await token_of(client)))
        assert "No findings in 0 threads" in page
        assert "Nothing is recorded, because there are no threads." in page

    reviewing(url, steps, allow_empty=True)
    with cs.Store.open(url) as store:
        assert not recorded(store)


@pytest.mark.usefixtures("store")
def test_it_is_refused_as_a_verdict_is(url: str, store: cs.Store) -> None:
    async def without(client: Client) -> None:
        assert "Verify all threads" not in (await client.get("/integrity")).text
        refused = [await client.post(address, data={"level": "content"}) for address in ("/verify", "/verdict")]
        assert [each.status_code for each in refused] == [405, 405]
        assert refused[0].text == refused[1].text

    visit(url, without)

    async def steps(client: Client) -> None:
        jane = {"X-User": "jane"}
        token = fields((await client.get("/integrity", headers=jane)).text)["token"]
        form = {"token": token, "level": "content"}
        for data, headers, status in (
            (form, {"X-User": "eve"}, 403), (form | {"token": ""}, jane, 403), ({"level": "content"}, jane, 403),
            (form, {}, 403), (form, jane | {"Origin": "http://evil.example"}, 403),
            (form, jane | {"Host": "evil.example"}, 421), (form | {"level": "all"}, jane, 400),
            ({"token": token}, jane, 400), (form | {"level": "checkpoint"}, jane, 400),
        ):  # fmt: skip
            answer = await client.post("/verify", data=data, headers=headers)
            assert answer.status_code == status, (data, headers, answer.text)
        assert (await client.post("/verify?level=content", data=form, headers=jane)).status_code == 400
        assert (await client.get("/verify", headers=jane)).status_code == 405
        assert _RUNNING not in (await client.get("/integrity", headers=jane)).text
        assert not recorded(store)
        assert (await client.post("/verify", data=form, headers=jane)).status_code == 303

    reviewing(url, steps, access=web.BehindProxy("X-User"))
    assert [event.actor for event in recorded(store)] == ["jane"]


def test_serve_stops_while_threads_are_verified(url: str, store: cs.Store, superuser: psycopg.Connection[Any]) -> None:
    with serving(url, "--review", "--actor", "jane") as (process, address), httpx.Client() as browser:
        browser.get(address)
        base = address.partition("?")[0]
        form = fields(browser.get(f"{base}integrity").text) | {"level": "content"}
        with locked(superuser):
            assert browser.post(f"{base}verify", data=form).status_code == 303
            assert _RUNNING in browser.get(f"{base}integrity").text
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
        assert process.stderr is not None
        found = process.stderr.read()
    [line] = [line for line in found.splitlines() if '"verification"' in line]
    said = json.loads(line[line.index("{") :])
    assert (said["verification"], said["progress"][1], said["findings"]) == ("stopped", 0, 0)
    assert "Traceback" not in found
    assert "never" not in found
    assert not recorded(store)
    with serving(url, "--review", "--actor", "jane") as (_, address), httpx.Client(follow_redirects=True) as browser:
        browser.get(address)
        base = address.partition("?")[0]
        form = fields(browser.get(f"{base}integrity").text) | {"level": "content"}
        assert "No findings" in browser.post(f"{base}verify", data=form).text
    assert len(recorded(store)) == 1
