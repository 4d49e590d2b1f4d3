"""Sessions of the OpenAI Agents SDK: what the SDK pops, clears or compacts stays in the thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import psycopg
import pytest
from agents import Agent, Runner
from agents.memory import OpenAIResponsesCompactionSession
from agents.testing import ScriptedModel
from openai.types.responses import ResponseOutputMessage, ResponseOutputText
from support.later_releases import change_views

from compaction_store import AsyncStore, InvalidInput, Store, ThreadNotFound, TokenBudget
from compaction_store.adapters.openai_agents import StoreSession
from compaction_store.errors import NotConfigured, UnknownEntry
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import StateSummary

ITEMS: list[Any] = [{"role": "assistant" if i % 2 else "user", "content": f"item {i}"} for i in range(12)]
SEALED = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAsealed"}


def said(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=[])
    return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[part])


def client(*output: Any) -> Any:
    """Returns a client whose compact endpoint answers with these items."""
    made = MagicMock()
    made.responses.compact = AsyncMock(return_value=SimpleNamespace(output=list(output), usage=None))
    return made


@pytest.fixture(params=["sync", "async"])
def on_each_store(request: pytest.FixtureRequest, url: str) -> Callable[[Callable[[Any], Awaitable[None]]], None]:
    """Runs a test on a session over a Store, and on one over an AsyncStore."""

    def run(test: Callable[[Any], Awaitable[None]]) -> None:
        async def with_async() -> None:
            async with AsyncStore.open(url) as store:
                await test(store)

        if request.param == "async":
            asyncio.run(with_async())
            return
        with Store.open(url) as store:
            asyncio.run(test(store))  # type: ignore[arg-type]

    return run


def test_items_come_back_as_they_were_added(on_each_store: Any) -> None:
    async def check(store: Any) -> None:
        session = StoreSession("s", store)
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.clear_session()
        await session.add_items([])
        await session.add_items(ITEMS)
        await session.add_items([{"type": "reasoning", "id": "rs", "summary": []}])
        assert await session.get_items() == [*ITEMS, {"type": "reasoning", "id": "rs", "summary": []}]
        assert [i.get("content") for i in await session.get_items(limit=2)] == ["item 11", None]
        assert await session.get_items(limit=0) == []
        assert await StoreSession("s", store, session_settings={"limit": 3}).get_items() == (
            await session.get_items(limit=3)
        )

    on_each_store(check)


def test_popped_items_leave_the_view_and_stay_in_the_thread(on_each_store: Any, url: str) -> None:
    async def check(store: Any) -> None:
        session = StoreSession("s", store, actor="agent")
        await session.add_items(ITEMS)
        popped = [await session.pop_item() for _ in range(5)]
        assert popped == ITEMS[:-6:-1]
        assert await session.get_items() == ITEMS[:7]
        await session.add_items([{"role": "user", "content": "again"}])
        assert [i["content"] for i in await session.get_items(limit=2)] == ["item 6", "again"]

    on_each_store(check)
    with Store.open(url) as store:
        assert [m.payload for m in store.replay("s", until=12)] == ITEMS
        records = list(store.compactions("s", kind="rewind"))
        assert {(r.body["reason"], r.actor) for r in records if r.body} == {("pop_item", "agent")}
        assert not store.audit.verify("s").findings


def test_concurrent_pops_return_each_item_once(on_each_store: Any) -> None:
    async def check(store: Any) -> None:
        sessions = [StoreSession("s", store) for _ in range(4)]
        await sessions[0].add_items(ITEMS)
        popped = await asyncio.gather(*(session.pop_item() for session in sessions * 3))
        assert sorted(i["content"] for i in popped) == sorted(i["content"] for i in ITEMS)
        assert await sessions[0].get_items() == []

    on_each_store(check)


def test_a_cleared_session_is_empty_and_its_items_stay(on_each_store: Any, url: str) -> None:
    async def check(store: Any) -> None:
        session = StoreSession("s", store)
        await session.add_items(ITEMS)
        await session.clear_session()
        assert await session.get_items() == []
        await session.add_items(ITEMS[:1])
        assert await session.get_items() == ITEMS[:1]

    on_each_store(check)
    with Store.open(url) as store:
        assert [m.payload for m in store.replay("s")] == [*ITEMS, ITEMS[0]]


def test_a_session_may_erase_instead(on_each_store: Any, url: str) -> None:
    async def check(store: Any) -> None:
        session = StoreSession("s", store, on_clear="erase")
        await session.add_items(ITEMS)
        await session.clear_session()
        await session.clear_session()

    on_each_store(check)
    with Store.open(url) as store, pytest.raises(ThreadNotFound):
        store.thread("s")


@pytest.mark.parametrize("mode", ["input", "previous_response_id"])
def test_openais_compaction_is_adopted_and_undone(on_each_store: Any, url: str, mode: Any) -> None:
    async def check(store: Any) -> None:
        inner = StoreSession("s", store)
        await inner.add_items(ITEMS)
        session = OpenAIResponsesCompactionSession("s", inner, client=client(ITEMS[10], SEALED), compaction_mode=mode)
        await session.run_compaction({"response_id": "resp_1", "force": True})
        assert await session.get_items() == [ITEMS[10], SEALED]
        assert await inner.pop_item() == SEALED
        assert await inner.get_items() == [ITEMS[10]]

    on_each_store(check)
    # The process has ended: every original is still replayed, viewed at the moment before, and verified.
    with Store.open(url) as store:
        assert [m.payload for m in store.replay("s")] == ITEMS
        adopted = next(iter(store.compactions("s", kind="adoption")))
        assert (adopted.start_seq, adopted.end_seq, adopted.unreadable) == (1, 12, True)
        assert store.view("s", at=adopted.pos - 1).messages == ITEMS
        assert not store.audit.verify("s").findings
        for record in store.compactions("s", newest_first=True):
            if record.status == "active":
                store.revoke("s", record.number)
        assert len(store.view("s").messages) in {2, 12}


def test_the_runner_compacts_by_itself_and_only_what_the_model_saw(on_each_store: Any, url: str) -> None:
    async def check(store: Any) -> None:
        inner = StoreSession("s", store, session_settings={"limit": 8})
        await inner.add_items([{"role": "user", "content": "an old question"}, *ITEMS])
        openai = client(SEALED)
        session = OpenAIResponsesCompactionSession(
            "s", inner, client=openai, compaction_mode="input", should_trigger_compaction=lambda _context: True
        )
        agent = Agent(name="worker", model=ScriptedModel(steps=[[said("done")]]))
        assert (await Runner.run(agent, "go on", session=session)).final_output == "done"
        openai.responses.compact.assert_awaited_once()
        assert "old question" not in str(openai.responses.compact.call_args)
        items = await inner.get_items(limit=99)
        assert items[0] == {"role": "user", "content": "an old question"}
        assert items[-1] == SEALED

    on_each_store(check)
    with Store.open(url) as store:
        assert len(list(store.replay("s"))) == 15
        assert not store.audit.verify("s").findings


_RUN = """
import asyncio, os, sys
from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock
from agents import Agent, Runner
from agents.memory import OpenAIResponsesCompactionSession
from agents.testing import ScriptedModel, assistant_message
from compaction_store import Store
from compaction_store.adapters.openai_agents import StoreSession

SEALED = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAsealed"}
client = MagicMock()
client.responses.compact = AsyncMock(return_value=SimpleNamespace(output=[SEALED], usage=None))


async def main():
    session = OpenAIResponsesCompactionSession(
        "s", StoreSession("s", Store.open(sys.argv[1])), client=client, compaction_mode="input",
        should_trigger_compaction=lambda context: len(context["session_items"]) >= 6,
    )
    agent = Agent(name="a", model=ScriptedModel(steps=[[assistant_message(f"Answer {n}.")] for n in range(4)]))
    for n in range(4):
        await Runner.run(agent, f"Question {n}?", session=session)
    os._exit(7)


asyncio.run(main())
"""


def test_what_openai_compacted_is_there_when_the_process_has_ended(url: str, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(_RUN, encoding="utf-8")
    command = [sys.executable, str(script), url]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 7, done.stderr[-2000:]
    with Store.open(url) as store:
        texts = [str(message.payload) for message in store.replay("s")]
        wanted = [text for n in range(4) for text in (f"Question {n}?", f"Answer {n}.")]
        assert len(texts) == len(wanted)
        assert all(text in stored for text, stored in zip(wanted, texts, strict=True))
        [record] = store.compactions("s")
        assert (record.kind, record.start_seq, record.end_seq, record.unreadable) == ("adoption", 1, 6, True)
        originals = [message.payload for message in store.audit.originals(record)]
        assert store.view("s", at=record.pos - 1).messages == originals
        assert len(store.view("s").messages) == 3
        assert not store.audit.verify("s").findings


def test_a_writer_that_comes_first_keeps_its_items(on_each_store: Any) -> None:
    async def check(store: Any) -> None:
        session = StoreSession("s", store)
        await session.add_items(ITEMS)
        snapshot = await session._get_compaction_snapshot(4)
        assert snapshot is not None
        assert (snapshot.items, snapshot.complete) == (ITEMS[8:], False)
        await session.add_items(ITEMS[:1])
        assert not await snapshot.replace_suffix(0, [SEALED])
        assert await session.get_items() == [*ITEMS, ITEMS[0]]

    on_each_store(check)


@pytest.mark.parametrize("outcome", ["cancelled", "failed"])
@pytest.mark.parametrize("operation", ["append", "rewind", "clear"])
def test_a_change_that_was_committed_counts_although_its_caller_does_not_learn_it(
    url: str, monkeypatch: pytest.MonkeyPatch, operation: str, outcome: str
) -> None:
    committed, may_return = threading.Event(), threading.Event()

    async def check(store: Store) -> None:
        openai, inner = client(), StoreSession("s", store)
        await inner.add_items(ITEMS[:2])
        session = OpenAIResponsesCompactionSession(
            "s", inner, client=openai, compaction_mode="previous_response_id",
            should_trigger_compaction=lambda _context: False,
        )  # fmt: skip
        await session.run_compaction({"response_id": "resp_1", "store": False})
        committing = getattr(store, operation)

        def paused(*given: Any, **options: Any) -> Any:
            done = committing(*given, **options)
            committed.set()
            assert may_return.wait(10)
            if outcome == "failed":
                raise RuntimeError("the reply was lost")
            return done

        monkeypatch.setattr(store, operation, paused)
        method, given = {
            "append": (session.add_items, [ITEMS[2:3]]), "rewind": (session.pop_item, []),
            "clear": (session.clear_session, []),
        }[operation]  # fmt: skip
        change = asyncio.create_task(method(*given))
        assert await asyncio.to_thread(committed.wait, 10)
        for _ in range(2 * (outcome == "cancelled")):
            change.cancel()
            await asyncio.sleep(0)
            assert not change.done()
        may_return.set()
        with pytest.raises(asyncio.CancelledError if outcome == "cancelled" else RuntimeError):
            await change
        monkeypatch.undo()
        left = {"append": ITEMS[:3], "rewind": ITEMS[:1], "clear": []}[operation]
        assert await session.get_items() == left == await inner.get_items()
        if operation != "append":
            # The SDK forgets the response, because the items that it answered have changed.
            with pytest.raises(ValueError, match="requires a response_id"):
                await session.run_compaction({"force": True})
            openai.responses.compact.assert_not_awaited()
        await session.add_items(ITEMS[3:4])
        assert await session.get_items() == [*left, ITEMS[3]]

    with Store.open(url) as store:
        asyncio.run(check(store))
        assert [m.payload for m in store.replay("s")][:2] == ITEMS[:2]
        assert not store.audit.verify("s").findings


def test_a_session_is_used_on_many_event_loops(url: str) -> None:
    with Store.open(url) as store:
        session = StoreSession("s", store)
        for text in ("one", "two", "three"):
            agent = Agent(name="worker", model=ScriptedModel(steps=[[said(text)]]))
            # The SDK leaves its loop open.
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            assert Runner.run_sync(agent, "go on", session=session).final_output == text
            loop.close()
        asyncio.set_event_loop(None)
        assert len(asyncio.run(session.get_items())) == 6


def test_a_session_with_a_budget_gives_the_model_what_fits(on_each_store: Any, url: str) -> None:
    long: list[Any] = [{**item, "content": f"{item['content']}: " + "the parcel is late. " * 20} for item in ITEMS]

    async def check(store: Any) -> None:
        session = StoreSession("s", store, budget=TokenBudget(context_window=700), actor="agent")
        assert await session.get_items() == []
        await session.add_items(long)
        with pytest.raises(NotConfigured, match="no callback to compact it"):
            await session.get_items()
        store.on_compact(SlidingWindow(StateSummary(), retain=2))
        items = await session.get_items()
        assert items[-2:] == long[-2:]
        assert len(items) < len(long)
        assert (await session.get_items(limit=1)) == long[-1:]
        # The SDK takes back a message that failed, and clears: both change the view, not the thread.
        assert await session.pop_item() == long[-1]
        assert (await session.get_items())[-1] == long[-2]
        await session.clear_session()
        assert await session.get_items() == []

    on_each_store(check)
    with Store.open(url) as store:
        assert [m.payload for m in store.replay("s")] == long
        assert {(r.kind, r.actor) for r in store.compactions("s", outcome="applied")} == {
            ("summary", "agent"), ("rewind", "agent"), ("clear", "agent"),
        }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "options", "text"),
    [
        ("", {}, "thread_id"),
        ("s", {"budget": 1000}, "budget must be a TokenBudget, not int"),
        ("s", {"store": 3}, "store must be a Store or an AsyncStore, not int"),
        ("s", {"on_clear": "hide"}, "on_clear must be one of"),
    ],
)
def test_bad_arguments_are_refused(url: str, given: str, options: dict[str, Any], text: str) -> None:
    with Store.open(url) as store, pytest.raises(InvalidInput, match=text):
        StoreSession(given, **{"store": store, **options})


def test_nothing_is_stored_of_a_list_that_is_refused(on_each_store: Any) -> None:
    async def check(store: Any) -> None:
        session = StoreSession("s", store)
        unserializable: Any = {"role": "user", "content": object()}
        with pytest.raises(InvalidInput):
            await session.add_items([ITEMS[0], unserializable])
        assert await session.get_items() == []
        await session.add_items(ITEMS[:1])
        assert await session.get_items() == ITEMS[:1]

    on_each_store(check)


def test_items_too_large_for_one_append_are_all_added(url: str) -> None:
    async def check() -> None:
        async with AsyncStore.open(url, counter=lambda _: 1) as store:
            session = StoreSession("s", store)
            items: list[Any] = [{"role": "user", "content": str(n) * 14_000_000} for n in range(6)]
            await session.add_items(items)
            assert [item["content"][0] for item in await session.get_items()] == list("012345")
            assert (await store.thread("s")).last_seq == 6

    asyncio.run(check())


def test_a_thread_whose_view_a_newer_release_has_changed_is_not_shown(
    on_each_store: Any, superuser: psycopg.Connection[Any]
) -> None:
    async def check(store: Any) -> None:
        session = StoreSession("s", store)
        await session.add_items(ITEMS)
        change_views(superuser, "s")
        await session.add_items([{"role": "user", "content": "later"}])
        compacted = session._get_compaction_snapshot(9), session._atomic_replace_items(ITEMS[:1])
        for call in (session.get_items(), session.pop_item(), session.clear_session(), *compacted):
            with pytest.raises(UnknownEntry, match="pos 13 is of kind later_kind"):
                await call

    on_each_store(check)
