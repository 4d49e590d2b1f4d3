"""Transcripts of the Claude Agent SDK: each line comes back, and what Claude Code compacts or deletes stays."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import claude_agent_sdk
import psycopg
import pytest
from claude_agent_sdk import InMemorySessionStore
from claude_agent_sdk.testing import run_session_store_conformance
from support.later_releases import change_views

from compaction_store import AsyncStore, InvalidInput, Store
from compaction_store.adapters.claude_agent_sdk import StoreSessions, thread_id
from compaction_store.errors import UnknownEntry

KEY: dict[str, Any] = {"project_key": "-home-ana", "session_id": "0a4f2a3e-7d3c-4f0e-9d8a-0c8f5b1c2d3e"}
SUB: dict[str, Any] = KEY | {"subpath": "subagents/agent-1"}
NAME = thread_id(**KEY)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


@pytest.fixture(params=["theirs", "ours"])
def sessions(request: pytest.FixtureRequest, store: Store) -> Any:
    """The SDK's own store in memory, and ours: they must do the same."""
    return InMemorySessionStore() if request.param == "theirs" else StoreSessions(store)


def said(role: str, text: Any, uuid: str, **fields: Any) -> dict[str, Any]:
    return {"type": role, "uuid": uuid, "message": {"role": role, "content": text}, **fields}


def boundary(uuid: str, **about: Any) -> dict[str, Any]:
    return {
        "type": "system", "subtype": "compact_boundary", "uuid": uuid, "content": "Conversation compacted",
        "compactMetadata": {"trigger": "auto", "preTokens": 155_000, **about},
    }  # fmt: skip


def summary(text: str, uuid: str) -> dict[str, Any]:
    return said("user", text, uuid, isCompactSummary=True)


def talk(count: int, prefix: str = "m") -> list[dict[str, Any]]:
    return [said("assistant" if n % 2 else "user", f"Text {prefix}{n}", f"{prefix}{n}") for n in range(count)]


def texts(view: Any) -> list[Any]:
    return [message["content"] for message in view.messages if "role" in message]


# ---- the SDK's own suite


@pytest.mark.parametrize("on_delete", ["hide", "erase"])
def test_the_sdks_conformance_suite_passes(url: str, on_delete: Any) -> None:
    tenants = itertools.count()
    with Store.open(url) as opened:
        made: list[StoreSessions] = []

        def make() -> StoreSessions:
            made.append(StoreSessions(opened.of_tenant(f"t{next(tenants)}"), on_delete=on_delete))
            return made[-1]

        asyncio.run(run_session_store_conformance(make))
    # One to look at the methods, and one for each of 14 contracts: none is skipped.
    assert len(made) == 1 + 14


def test_the_sdks_conformance_suite_passes_on_an_async_store(url: str) -> None:
    async def run() -> None:
        async with AsyncStore.open(url) as opened:
            tenants = itertools.count()
            await run_session_store_conformance(lambda: StoreSessions(opened.of_tenant(f"t{next(tenants)}")))

    asyncio.run(run())


def test_every_method_that_the_sdk_looks_for_is_there() -> None:
    wanted = {name for name, _ in inspect.getmembers(claude_agent_sdk.SessionStore, inspect.iscoroutinefunction)}
    assert wanted == {"append", "load", "list_sessions", "list_session_summaries", "delete", "list_subkeys"}
    assert wanted <= set(vars(StoreSessions))


# ---- the contract, of their store and ours


def test_lines_come_back_as_they_were_appended(sessions: Any) -> None:
    given = [
        {"type": "summary", "summary": "A trip", "leafUuid": "x"},
        said("user", "Look: \U0001f600", "a", cwd="/home", parentUuid=None, isSidechain=False),
        said("assistant", [{"type": "tool_use", "id": "t", "name": "find", "input": {"n": None}}], "b", requestId="r"),
        said("user", [{"type": "tool_result", "tool_use_id": "t", "content": ""}], "c", toolUseResult={"deep": [1.5]}),
        {"type": "user", "uuid": "d", "message": "no object"},
        {"type": "user", "uuid": "e", "message": {"role": "user", "content": "odd", "line": 1}},
        {"type": "user", "uuid": "f", "message": {}},
        {"type": "x", "role": "user", "line": {"line": []}},
    ]

    async def run() -> None:
        await sessions.append(KEY, given[:3])
        await sessions.append(KEY, given[3:])
        assert await sessions.load(KEY) == given
        assert await sessions.load(SUB) is None

    asyncio.run(run())


def test_names_with_slashes_and_quotes_stay_apart(sessions: Any) -> None:
    async def run() -> None:
        keys = [("p", 's"'), ('p"', "s"), ("p,", "s"), ("pé", "s"), ("p", "s")]
        for project, session in keys:
            key = {"project_key": project, "session_id": session}
            await sessions.append(key, [{"type": "x", "of": [project, session]}])
        for project, session in keys:
            key = {"project_key": project, "session_id": session}
            assert await sessions.load(key) == [{"type": "x", "of": [project, session]}]
        assert {each["session_id"] for each in await sessions.list_sessions("p")} == {'s"', "s"}

    asyncio.run(run())


def test_summaries_are_those_of_the_sdk(sessions: Any) -> None:
    async def run() -> None:
        await sessions.append(KEY, [*talk(2), {"type": "custom-title", "customTitle": "Lisbon"}])
        await sessions.append(SUB, talk(1, "s"))
        [first] = await sessions.list_session_summaries("-home-ana")
        assert first["data"]["custom_title"] == "Lisbon"
        await sessions.append(KEY, [{"type": "custom-title", "customTitle": "Porto"}])
        [second] = await sessions.list_session_summaries("-home-ana")
        assert second["data"] == first["data"] | {"custom_title": "Porto"}
        [listed] = await claude_agent_sdk.list_sessions_from_store(sessions, directory="/home/ana")
        assert listed.custom_title == "Porto"

    asyncio.run(run())


def test_a_deleted_session_may_come_again(sessions: Any) -> None:
    async def run() -> None:
        await sessions.append(KEY, talk(3))
        await sessions.append(SUB, talk(3, "s"))
        await sessions.delete(KEY)
        assert (await sessions.load(KEY), await sessions.load(SUB)) == (None, None)
        assert await sessions.list_sessions("-home-ana") == await sessions.list_session_summaries("-home-ana") == []
        await sessions.append(KEY, talk(2))
        assert await sessions.load(KEY) == talk(2)
        assert await sessions.list_subkeys(KEY) == []

    asyncio.run(run())


# ---- ours alone


def test_a_line_is_stored_once(store: Store) -> None:
    async def run() -> None:
        one, two = StoreSessions(store), StoreSessions(store)
        lines = talk(4)
        await one.append(KEY, lines[:2])
        await two.append(KEY, lines[:3])
        await one.append(KEY, [lines[1], lines[3], lines[3], {"type": "mode"}])
        await two.append(KEY, [*lines, {"type": "mode"}])
        assert await two.load(KEY) == [*lines, {"type": "mode"}, {"type": "mode"}]

    asyncio.run(run())


def test_many_writers_lose_and_double_nothing(store: Store) -> None:
    async def run() -> None:
        writers = [StoreSessions(store) for _ in range(4)]

        async def write(place: int) -> None:
            for turn in range(10):
                await writers[place].append(KEY, [*talk(2, f"{place}.{turn}."), *talk(1, f"all{turn}.")])

        await asyncio.gather(*map(write, range(4)))
        found = [line["uuid"] for line in await writers[0].load(KEY) or []]
        assert len(found) == len(set(found)) == 4 * 10 * 2 + 10

    asyncio.run(run())


def test_a_boundary_becomes_a_record_with_its_summary(store: Store) -> None:
    sessions = StoreSessions(store, actor="mirror")

    async def run() -> None:
        await sessions.append(KEY, [*talk(6), boundary("b1"), summary("They talked.", "s1"), *talk(2, "n")])

    asyncio.run(run())
    [record] = store.compactions(NAME)
    assert (record.kind, record.outcome, record.start_seq, record.end_seq) == ("adoption", "applied", 1, 6)
    assert (record.summary_text, record.actor) == ("They talked.", "mirror")
    assert record.body is not None
    assert record.body["provider"] == boundary("b1")
    assert texts(store.view(NAME)) == ["They talked.", "Text n0", "Text n1"]
    # Each is a view of the model's: what it saw before the boundary, and what came after it.
    assert texts(store.view(NAME, at=6)) == [f"Text m{n}" for n in range(6)]
    store.revoke(NAME, record.number, reason="test")
    assert len(texts(store.view(NAME))) == 9


def test_a_boundary_waits_for_its_summary_in_a_later_batch(store: Store) -> None:
    async def run() -> None:
        await StoreSessions(store).append(KEY, [*talk(4), boundary("b1")])
        assert list(store.compactions(NAME)) == []
        # Another process continues.
        sessions = StoreSessions(store)
        await sessions.append(KEY, [{"type": "mode"}])
        assert list(store.compactions(NAME)) == []
        await sessions.append(KEY, [summary("First.", "s1")])
        await sessions.append(KEY, [*talk(2, "n"), boundary("b2"), *talk(1, "o")])
        # Sent again, it changes nothing.
        await StoreSessions(store).append(KEY, [boundary("b1"), boundary("b2"), *talk(1, "o")])

    asyncio.run(run())
    assert [(each.summary_text, each.start_seq) for each in store.compactions(NAME)] == [("First.", 1), (None, 1)]
    assert texts(store.view(NAME)) == ["Text o0"]
    assert not store.audit.verify(NAME).findings


@pytest.mark.parametrize(
    "about", [{"preservedSegment": {"headUuid": "m4"}}, {"preservedMessages": {"uuids": ["m5", "m4", "unknown"]}}]
)
def test_what_a_boundary_preserves_stays_in_the_view(store: Store, about: Any) -> None:
    asyncio.run(StoreSessions(store).append(KEY, [*talk(6), boundary("b", **about), summary("Earlier.", "s")]))
    [record] = store.compactions(NAME)
    assert (record.start_seq, record.end_seq) == (1, 4)
    assert texts(store.view(NAME)) == ["Text m4", "Text m5", "Earlier."]


def test_what_is_deleted_is_hidden_or_erased(store: Store) -> None:
    async def run() -> None:
        await StoreSessions(store).append(KEY, talk(3))
        await StoreSessions(store, actor="ana").delete(KEY)
        assert len(list(store.replay(NAME))) == 3
        assert [record.actor for record in store.compactions(NAME, kind="clear")] == ["ana"]
        await StoreSessions(store).append(KEY, talk(2))
        assert len(list(store.replay(NAME))) == 5
        await StoreSessions(store, on_delete="erase").delete(KEY)
        assert await StoreSessions(store).load(KEY) is None
        assert [thread.thread_id for thread in store.threads(hidden=True) if not thread.erased_pos] == []

    asyncio.run(run())


def test_an_erased_message_is_in_no_summary(store: Store) -> None:
    async def run() -> None:
        sessions = StoreSessions(store)
        await sessions.append(KEY, talk(2))
        assert "Text m0" in str(await sessions.list_session_summaries("-home-ana"))
        store.custody.redact(NAME, 1, reason="asked")
        assert await sessions.load(KEY) == talk(2)[1:]
        assert "Text m0" not in str(await sessions.list_session_summaries("-home-ana"))

    asyncio.run(run())


def test_tenants_do_not_see_each_others_sessions(store: Store) -> None:
    async def run() -> None:
        ours, theirs = StoreSessions(store.of_tenant("a")), StoreSessions(store.of_tenant("b"))
        await ours.append(KEY, talk(1))
        assert await theirs.load(KEY) is None
        assert await theirs.list_sessions("-home-ana") == []
        await theirs.delete(KEY)
        assert await ours.load(KEY) == talk(1)

    asyncio.run(run())


def test_a_wrong_argument_is_refused(store: Store) -> None:
    wrong: Any = "nothing"
    with pytest.raises(InvalidInput, match="store must be a Store or an AsyncStore, not str"):
        StoreSessions(wrong)
    with pytest.raises(InvalidInput, match="on_delete must be"):
        StoreSessions(store, on_delete=wrong)
    with pytest.raises(InvalidInput, match="must be strings, not int"):
        asyncio.run(StoreSessions(store).load({"project_key": 1, "session_id": "s"}))


# ---- a process that ends

_RUN = """
import asyncio, os, sys
from compaction_store import Store
from compaction_store.adapters.claude_agent_sdk import StoreSessions
from test_claude_agent_sdk import KEY, boundary, summary, talk

async def main():
    sessions = StoreSessions(Store.open(sys.argv[1]))
    await sessions.append(KEY, talk(8))
    await sessions.append(KEY, [boundary("b1"), summary("They talked.", "s1")])
    os._exit(7)

asyncio.run(main())
"""


def test_what_was_compacted_is_there_when_the_process_has_ended(store: Store, url: str, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(_RUN, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(
        [sys.executable, str(script), url], capture_output=True, text=True, timeout=120, check=False,
        env=environment | {"HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 7, done.stderr[-2000:]
    [record] = store.compactions(NAME)
    originals = [f"Text m{n}" for n in range(8)]
    assert [message.payload["content"] for message in store.audit.originals(record) if message.payload] == originals
    assert texts(store.view(NAME, at=record.pos - 1)) == [*originals, "They talked."]
    assert texts(store.view(NAME, at=8)) == originals
    assert not store.audit.verify(NAME).findings
    sessions = StoreSessions(store)
    asyncio.run(sessions.append(KEY, talk(2, "n")))
    assert asyncio.run(sessions.load(KEY)) == [*talk(8), boundary("b1"), summary("They talked.", "s1"), *talk(2, "n")]
    # The SDK's own reader sees the session from the boundary on; the store has all of it.
    assert texts(store.view(NAME)) == ["They talked.", "Text n0", "Text n1"]


def test_a_thread_whose_view_a_newer_release_has_changed_is_not_shown(
    store: Store, superuser: psycopg.Connection[Any]
) -> None:
    async def run() -> None:
        sessions = StoreSessions(store)
        await sessions.append(KEY, talk(2))
        change_views(superuser, NAME)
        # The SDK is not told that lines are lost: they are appended, once.
        await sessions.append(KEY, talk(3))
        await StoreSessions(store).append(KEY, talk(3))
        assert [session["session_id"] for session in await sessions.list_sessions("-home-ana")] == [KEY["session_id"]]
        for reads in (sessions, StoreSessions(store)):
            for call in (reads.load(KEY), reads.list_session_summaries("-home-ana"), reads.delete(KEY)):
                with pytest.raises(UnknownEntry):
                    await call
        with pytest.raises(UnknownEntry):
            await sessions.append(KEY, [boundary("b"), summary("Short.", "s")])
        assert store.thread(NAME).last_seq == 5
        await StoreSessions(store, on_delete="erase").delete(KEY)
        assert await sessions.load(KEY) is None

    asyncio.run(run())


def test_a_session_that_a_newer_release_may_have_restored_is_not_called_absent(
    store: Store, superuser: psycopg.Connection[Any]
) -> None:
    async def run() -> None:
        sessions = StoreSessions(store)
        await sessions.append(KEY, talk(2))
        await sessions.delete(KEY)
        change_views(superuser, NAME)
        with pytest.raises(UnknownEntry):
            await sessions.load(KEY)

    asyncio.run(run())
