"""The MCP server, as the SDK's own client meets it: in the process, over stdio, and over streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import psycopg
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from support.later_releases import change_views
from support.superuser_edits import unlock

from compaction_store import AsyncReader, InvalidInput, Store, tokens
from compaction_store import __version__ as version
from compaction_store.adapters.mcp import McpTools, server

SAID = "The parcel for Chur is in hall seven."
TOOLS = {
    "list_threads", "list_compactions", "explain_message", "seen_by_reply", "what_was_lost", "recall_search",
    "recall_expand", "recall_describe",
}  # fmt: skip


@pytest.fixture
def stored(url: str) -> Iterator[Store]:
    """A store with two threads; the first has been compacted and has a reply with a receipt."""
    with Store.open(url) as store:
        store.append("parcels", [{"role": "user", "content": SAID}, {"role": "assistant", "content": "Noted."}])
        store.append("parcels", {"role": "user", "content": "Where is it?"})
        store.compact("parcels", lambda ctx: ctx.compact(1, 2, "A parcel was found."), actor="nightly")
        request = store.view("parcels").for_anthropic()
        store.append("parcels", {"role": "assistant", "content": "In hall seven."}, view=request)
        store.append("trains", {"role": "user", "content": "When does the train leave?"})
        yield store


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[Client]:
    async with AsyncReader.open(url) as reader, Client(server(McpTools(reader, **options))) as client:
        yield client


async def called(client: Client, name: str, **given: Any) -> Any:
    """Returns the JSON of a result."""
    result = await client.call_tool(name, given)
    assert not result.is_error, result.content[0].text
    return json.loads(re.search(r"^\{.*\}$", result.content[0].text, re.MULTILINE)[0])  # type: ignore[index]


async def refused(client: Client, name: str, **given: Any) -> str:
    result = await client.call_tool(name, given)
    assert result.is_error
    text: str = result.content[0].text
    return text


async def all_is_answered(client: Client) -> None:
    assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
    listed = await called(client, "list_threads")
    assert [(t["thread_id"], t["messages"], t["records"]) for t in listed["threads"]] == [
        ("parcels", 4, 1), ("trains", 1, 0)
    ]  # fmt: skip
    found = await called(client, "recall_search", thread_id="parcels", query="Chur")
    assert [(hit["seq"], hit["folded_into_record"]) for hit in found["found"]] == [(1, 1)]
    read = await called(client, "recall_expand", thread_id="parcels", start_seq=1)
    assert read["messages"][0]["message"]["content"] == SAID
    [record] = (await called(client, "recall_describe", thread_id="parcels"))["records"]
    assert record["summary"] == "A parcel was found."


@pytest.mark.usefixtures("stored")
def test_the_tools_answer(url: str) -> None:
    async def check() -> None:
        async with connected(url) as client:
            await all_is_answered(client)
            [record] = (await called(client, "list_compactions"))["records"]
            assert (record["thread_id"], record["record"], record["actor"]) == ("parcels", 1, "nightly")
            assert (record["messages"], record["status"]) == ([1, 2], "active")
            explained = await called(client, "explain_message", thread_id="parcels", seq=2)
            assert explained["in_the_view_as"] | {"tokens": 0} == {
                "record": 1, "kind": "summary", "replaces": [1, 2], "tokens": 0
            }  # fmt: skip
            assert [r["record"] for r in explained["records"]] == [1]
            seen = await called(client, "seen_by_reply", thread_id="parcels", seq=4)
            assert (seen["evidence"], [e.get("seq") for e in seen["elements"]]) == ("proved", [None, 3])

    asyncio.run(check())


def test_a_call_without_a_thread_is_about_the_session_that_calls(
    url: str, stored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("codex:1-a", "claude-code:2-b"):
        stored.append(name, {"role": "user", "content": f"This is {name}."})
    monkeypatch.delenv("CLAUDE_CODE_SESSION_ID", raising=False)

    async def check() -> None:
        async with connected(url) as client:
            assert all("thread_id" not in tool.input_schema["required"] for tool in (await client.list_tools()).tools)
            given = {"start_seq": 1}
            told = await client.call_tool("recall_expand", given, meta={"threadId": "1-a"})
            assert "This is codex:1-a." in told.content[0].text
            monkeypatch.setenv("CLAUDE_CODE_SESSION_ID", "2-b")
            told = await client.call_tool("recall_expand", given)
            assert "This is claude-code:2-b." in told.content[0].text
            # A named thread is that thread, and a list is of all.
            assert (await called(client, "recall_expand", thread_id="parcels", **given))["messages"]
            assert len((await called(client, "list_threads"))["threads"]) == 4
            assert len((await called(client, "list_compactions"))["records"]) == 1
            monkeypatch.setenv("CLAUDE_CODE_SESSION_ID", "none such")
            assert "no such thread" in await refused(client, "what_was_lost")

    asyncio.run(check())


def test_what_was_lost_lists_the_losses_and_goes_on(url: str, stored: Store) -> None:
    facts = [f"The code of locker {number} is {number}{number}-QX{number}." for number in range(10, 60)]
    for fact in facts:
        stored.append("codes", [{"role": "user", "content": fact}, {"role": "assistant", "content": "Noted."}])
    stored.append("codes", {"role": "user", "content": "And now?"})
    stored.compact("codes", lambda ctx: ctx.compact(1, 100, "They spoke of lockers."))
    stored.append("codes", [{"role": "user", "content": fact} for fact in facts])

    command = [sys.executable, "-m", "compaction_store", "explain", "codes", "--lost", "--text", "--json"]
    done = subprocess.run([*command, "--url", url], capture_output=True, text=True, check=True)
    lost = [json.loads(line) for line in done.stdout.splitlines()]

    async def check() -> None:
        async with connected(url, max_tokens=600) as client:
            found, given = [], dict[str, Any]()
            while True:
                page = await called(client, "what_was_lost", thread_id="codes", **given)
                found += page["losses"]
                if (given := page.get("next")) is None:
                    break
            assert len(found) == len(lost) > 40
            assert {loss["text"] for loss in found} == {loss["text"] for loss in lost}
            assert all(loss["record"] == 1 for loss in found)
            assert (await called(client, "what_was_lost", thread_id="trains"))["losses"] == []
        stored.custody.redact("codes", 1, reason="a test")
        async with connected(url) as client:
            assert "some of its messages were erased" in await refused(client, "what_was_lost", thread_id="codes")

    asyncio.run(check())


@pytest.mark.usefixtures("stored")
def test_no_column_of_a_record_makes_a_result_too_long(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as superuser:
        unlock(superuser)
        superuser.execute(
            "UPDATE compaction_store.compactions SET callback = repeat('é~', 100000), actor = repeat('🔒', 60000),"
            " model = repeat('x y', 100000), login = repeat('z', 300000)"
        )

    async def check() -> None:
        async with connected(url, max_tokens=500) as client:
            for tool, given in (("list_compactions", {}), ("explain_message", {"thread_id": "parcels", "seq": 2})):
                found = await called(client, tool, **given)
                assert tokens.o200k_base().text(json.dumps(found)) <= 500
                assert len(found["records"]) == 1

    asyncio.run(check())


def test_lists_go_on_where_they_were_cut(url: str, stored: Store) -> None:
    for number in range(60):
        stored.append(f"more-{number:02}", {"role": "user", "content": "Hello."})
        stored.compact(f"more-{number:02}", lambda ctx: ctx.compact(1, 1, "Hi.", allow={"larger", "last_user"}))

    async def check() -> None:
        async with connected(url, max_tokens=500) as client:
            for tool, name, key in (
                ("list_threads", "threads", "thread_id"), ("list_compactions", "records", "thread_id")
            ):  # fmt: skip
                found: list[str] = []
                more: dict[str, Any] = {}
                while True:
                    page = await called(client, tool, **more)
                    found += [entry[key] for entry in page[name]]
                    if (more := page.get("next", {})) == {}:
                        break
                assert len(found) == len(set(found)) == len(list(getattr(stored, tool.removeprefix("list_"))()))

    asyncio.run(check())


@pytest.mark.usefixtures("stored")
def test_a_server_for_one_thread_shows_no_other(url: str) -> None:
    async def check() -> None:
        async with connected(url, thread_id="trains") as client:
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(listed) == TOOLS - {"list_threads"}
            assert all("thread_id" not in tool.input_schema["properties"] for tool in listed.values())
            assert (await called(client, "recall_search", query="train"))["found"]
            assert not (await called(client, "list_compactions"))["records"]
            assert "must be among" in await refused(client, "explain_message", thread_id="parcels", seq=1)
            assert "must be among" in await refused(client, "recall_search", thread_id="parcels", query="Chur")

    asyncio.run(check())


@pytest.mark.usefixtures("stored")
def test_wrong_calls_say_what_must_be(url: str) -> None:
    async def check() -> None:
        async with connected(url) as client:
            assert "thread_id must be given" in await refused(client, "recall_search", query="Chur")
            assert "thread_id must be given" in await refused(client, "explain_message", seq=1)
            assert "thread_id must be the name" in await refused(client, "recall_search", thread_id=1, query="Chur")
            assert "no such thread" in await refused(client, "explain_message", thread_id="nowhere", seq=1)
            assert "no seq 99" in await refused(client, "explain_message", thread_id="parcels", seq=99)
            assert "seq must be" in await refused(client, "seen_by_reply", thread_id="parcels", seq=0)
            assert "outcome must be one of" in await refused(client, "list_compactions", outcome="odd")
            assert "the tool must be one of" in await refused(client, "erase", thread_id="parcels")

    asyncio.run(check())


def test_a_reader_and_its_limits_are_checked() -> None:
    with pytest.raises(InvalidInput, match="reader must be"):
        McpTools(3)  # type: ignore[arg-type]


ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("COMPACTION_")}


def test_over_stdio_it_reads_as_the_auditor(url: str, stored: Store) -> None:
    async def check() -> None:
        command = StdioServerParameters(
            command=sys.executable, args=["-m", "compaction_store", "mcp", "--url", url], env=ENVIRONMENT
        )  # fmt: skip
        async with Client(command) as client:
            await all_is_answered(client)
        assert stored.thread("parcels").last_pos == 5

    asyncio.run(check())


@contextmanager
def over_http(url: str, *more: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """Yields a server with the token `open-sesame`, its address, and what it had said until it had that."""
    command = (sys.executable, "-m", "compaction_store", "mcp", "--url", url, "--http", "127.0.0.1:0", *more)
    environment = ENVIRONMENT | {"COMPACTION_STORE_MCP_TOKEN": "open-sesame"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    said = []
    try:
        for line in process.stderr:
            said.append(line)
            if (serving := re.search(r'serving ([^\s"]+)', line)) is not None:
                break
        assert serving is not None, said
        yield process, serving[1], said
    finally:
        process.kill()
        process.wait(10)
        process.stderr.close()


@asynccontextmanager
async def client_over_http(address: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"authorization": "Bearer open-sesame"}) as http,
        Client(streamable_http_client(address, http_client=http)) as client,
    ):
        yield client


@pytest.mark.usefixtures("stored")
def test_over_http_it_wants_the_token(url: str) -> None:
    async def check(address: str) -> None:
        async with httpx2.AsyncClient() as plain:
            for headers in ({}, {"authorization": "Bearer wrong"}):
                assert (await plain.post(address, json={}, headers=headers)).status_code == 401
            foreign = {"authorization": "Bearer open-sesame", "host": "evil.example"}
            assert (await plain.post(address, json={}, headers=foreign)).status_code in {403, 421}
        async with client_over_http(address) as client:
            await all_is_answered(client)

    with over_http(url) as (_, address, said):
        asyncio.run(check(address))
        assert "open-sesame" not in "".join(said)


@pytest.mark.usefixtures("stored")
def test_over_http_it_says_how_it_is_and_ends_at_a_signal_although_a_client_is_connected(url: str) -> None:
    def get(address: str, page: str) -> str:
        return httpx2.get(f"{address}/{page}", timeout=30).text

    async def check(process: subprocess.Popen[str], address: str, metrics: str) -> None:
        async with client_over_http(address) as client:
            await called(client, "explain_message", thread_id="parcels", seq=1)
            assert (get(metrics, "healthz"), get(metrics, "readyz")) == ("ok\n", "ready\n")
            said = get(metrics, "metrics")
            assert f'compaction_store_info{{version="{version}",command="mcp"}} 1' in said
            assert "compaction_store_database_up{} 1" in said
            assert "compaction_store_operation_duration_seconds_count{" in said
            process.send_signal(signal.SIGHUP)
            assert get(metrics, "healthz") == "ok\n"
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0

    with over_http(url, "--metrics", "127.0.0.1:0", "--log", "json") as (process, address, said):
        lines = [json.loads(line) for line in said]
        assert {(line["level"], line["logger"]) for line in lines} == {("info", "compaction_store.mcp")}
        [metrics] = re.findall(r"metrics at (http://\S+)/metrics", "\n".join(line["message"] for line in lines))
        asyncio.run(check(process, address, metrics))


def test_a_thread_whose_view_a_newer_release_has_changed_is_not_shown(
    url: str, stored: Store, superuser: psycopg.Connection[Any]
) -> None:
    change_views(superuser, "parcels")
    assert len(list(stored.replay("parcels"))) == 4

    async def check() -> None:
        async with connected(url) as client:
            for name, given in (
                ("explain_message", {"seq": 1}), ("recall_search", {"query": "Chur"}),
                ("recall_expand", {"start_seq": 1}), ("recall_expand", {"record": 1}),
            ):  # fmt: skip
                told = await refused(client, name, thread_id="parcels", **given)
                assert "is of kind later_kind" in told or "of a kind that this release does not know" in told
                assert SAID not in told
            listed = (await called(client, "list_threads"))["threads"]
            assert [thread["tokens"] for thread in listed if thread["thread_id"] == "parcels"] == [None]
            for name in ("list_compactions", "recall_describe"):
                [record] = (await called(client, name, thread_id="parcels"))["records"]
                assert record["status"] == "unknown"
            seen = await called(client, "seen_by_reply", thread_id="parcels", seq=4)
            assert seen["evidence"] == "proved"

    asyncio.run(check())
