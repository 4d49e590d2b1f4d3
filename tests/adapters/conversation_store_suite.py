"""The contract of a ConversationStore of Pydantic AI, as tests that need nothing but Pydantic AI and pytest.

A backend makes a subclass whose `make` is an async context manager with a new, empty store:

    class TestMine(ConversationStoreSuite):
        @asynccontextmanager
        async def make(self): yield MyStore()
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    CompactionPart,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage

Check = Callable[[Any], Awaitable[None]]


def ask(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


def reply(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)])


def talk(*texts: str) -> list[Any]:
    return [reply(text) if place % 2 else ask(text) for place, text in enumerate(texts)]


def conversation(*texts: str, name: str = "c") -> Conversation:
    return Conversation(messages=talk(*texts), conversation_id=name)


async def loaded(store: ConversationStore, name: str = "c") -> Conversation:
    found = await store.load(name)
    assert found is not None
    return found


async def texts(store: ConversationStore, name: str = "c") -> list[str]:
    return [message.parts[0].content for message in (await loaded(store, name)).messages]


class ConversationStoreSuite:
    def make(self) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError

    def run(self, check: Check) -> None:
        async def checked() -> None:
            async with self.make() as store:
                await check(store)

        asyncio.run(checked())

    def test_an_unknown_conversation_is_none(self) -> None:
        async def check(store: Any) -> None:
            assert await store.load("c") is None
            assert await store.load_entries("c") is None
            assert await store.read_record("c") is None
            assert list(await store.read_records()) == []
            await store.delete("c")

        self.run(check)

    def test_a_saved_conversation_loads_as_it_was(self) -> None:
        given = Conversation(
            messages=[
                ModelRequest(
                    parts=[
                        SystemPromptPart("Be brief."),
                        UserPromptPart(["Look:", BinaryContent(data=b"\x00\xff", media_type="application/pdf")]),
                    ],
                    instructions="in French",
                ),
                ModelResponse(
                    parts=[
                        ThinkingPart("hm", signature="s"),
                        ToolCallPart("weather", {"city": "Chur", "days": [1, None]}, tool_call_id="t1"),
                        ToolCallPart("time", '{"zone": "CET"}', tool_call_id="t2"),
                    ],
                    model_name="m",
                ),
                ModelRequest(
                    parts=[
                        ToolReturnPart("weather", {"rain": True}, tool_call_id="t1"),
                        ToolReturnPart("time", "no such zone", tool_call_id="t2", outcome="retried"),
                    ]
                ),
                ModelResponse(parts=[CompactionPart(content="It rains.", provider_name="anthropic")]),
                ModelResponse(
                    parts=[CompactionPart(provider_name="openai", provider_details={"encrypted_content": "x"}, id="i")]
                ),
                ModelRequest(parts=[CompactionPart(content="They talked.")]),
                reply("nul \x00, \U0001f600, \ud800"),
            ],
            conversation_id="c",
            usage=RunUsage(requests=3, input_tokens=7, tool_calls=1),
        )

        async def check(store: Any) -> None:
            entries = await store.save(given)
            assert [entry.message for entry in entries] == given.messages
            found = await loaded(store)
            assert found.messages == given.messages
            assert (found.usage, found.conversation_id, found.revision) == (given.usage, "c", given.revision)

        self.run(check)

    def test_a_conversation_without_messages_is_stored(self) -> None:
        async def check(store: Any) -> None:
            assert await store.save(conversation(), scope="s") == []
            assert (await loaded(store)).messages == []
            first = await loaded(store)
            first.messages += talk("a", "b")
            assert len(await store.save(first)) == 2
            assert await texts(store) == ["a", "b"]

        self.run(check)

    def test_what_is_deferred_is_stored_and_changes_without_a_message(self) -> None:
        async def check(store: Any) -> None:
            given = conversation("a", "b")
            call = ToolCallPart("pay", {"note": "x" * 20_000}, tool_call_id="t")
            given.deferred_tool_requests = DeferredToolRequests(approvals=[call])
            await store.save(given)
            found = await loaded(store)
            assert found.deferred_tool_requests == given.deferred_tool_requests
            found.deferred_tool_requests = None
            assert await store.save(found) == []
            assert (await loaded(store)).deferred_tool_requests is None
            again = await loaded(store)
            again.messages.append(ask("c"))
            await store.save(again)
            assert await texts(store) == ["a", "b", "c"]

        self.run(check)

    def test_only_new_messages_are_stored_and_linked(self) -> None:
        async def check(store: Any) -> None:
            first = await store.save(conversation("a", "b"))
            again = await loaded(store)
            again.messages += talk("c", "d")
            second = await store.save(again)
            entries = await store.load_entries("c")
            assert [entry.id for entry in entries] == [entry.id for entry in (*first, *second)]
            assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])]
            assert len({entry.id for entry in entries}) == 4
            assert (await store.read_entry(first[1].id)).message == reply_of(first)

        def reply_of(entries: list[ConversationEntry]) -> Any:
            return entries[1].message

        self.run(check)

    def test_the_newest_messages_are_loaded_and_saving_them_extends_the_whole(self) -> None:
        async def check(store: Any) -> None:
            await store.save(conversation("a", "b", "c", "d"))
            for limit in range(6):
                found = await store.load("c", limit=limit)
                assert [m.parts[0].content for m in found.messages] == ["a", "b", "c", "d"][4 - min(limit, 4) :]
            window = await store.load("c", limit=1)
            window.messages += talk("e")
            await store.save(window)
            assert await texts(store) == ["a", "b", "c", "d", "e"]
            with pytest.raises(UserError):
                await store.load("c", limit=-1)

        self.run(check)

    def test_a_stale_revision_is_a_conflict_and_leaves_nothing(self) -> None:
        async def check(store: Any) -> None:
            await store.save(conversation("a", "b"))
            one, two = await loaded(store), await loaded(store)
            one.messages += talk("c")
            two.messages += talk("x")
            await store.save(one)
            with pytest.raises(ConversationConflict):
                await store.save(two)
            with pytest.raises(ConversationConflict):
                await store.save(conversation("z"))
            assert await texts(store) == ["a", "b", "c"]

        self.run(check)

    def test_of_concurrent_saves_one_wins(self) -> None:
        async def check(store: Any) -> None:
            await store.save(conversation("a", "b"))
            copies = [await loaded(store) for _ in range(8)]
            for place, copy in enumerate(copies):
                copy.messages.append(ask(f"c{place}"))
            done = await asyncio.gather(*(store.save(copy) for copy in copies), return_exceptions=True)
            assert sum(isinstance(each, list) for each in done) == 1
            assert sum(isinstance(each, ConversationConflict) for each in done) == 7
            winner = next(place for place, each in enumerate(done) if isinstance(each, list))
            assert await texts(store) == ["a", "b", f"c{winner}"]

        self.run(check)

    def test_a_rewritten_history_branches_off(self) -> None:
        async def check(store: Any) -> None:
            await store.save(conversation("a", "b", "c", "d"))
            old = await store.load_entries("c")
            sent = ConversationTypeAdapter.validate_json(ConversationTypeAdapter.dump_json(await loaded(store)))
            sent.messages[2:] = talk("x", "y")
            sent.new_message_index = None
            new = await store.save(sent)
            assert await texts(store) == ["a", "b", "x", "y"]
            assert new[0].parent_id == old[1].id
            assert (await store.read_record("c")).branches == [old[3].id]
            assert [entry.id for entry in await store.read_history(old[3].id)] == [entry.id for entry in old]

        self.run(check)

    def test_a_branch_leaves_a_history_and_goes_back(self) -> None:
        async def check(store: Any) -> None:
            await store.save(conversation("a", "b", "c", "d"))
            now = await loaded(store)
            edited = await store.branch("c", at=2, expected_revision=now.revision)
            assert await texts(store) == ["a", "b"]
            edited.messages += talk("x", "y")
            await store.save(edited)
            record = await store.read_record("c")
            back = await store.branch("c", from_entry=record.branches[0], expected_revision=record.revision)
            assert await texts(store) == ["a", "b", "c", "d"]
            back.messages += talk("e")
            await store.save(back)
            assert await texts(store) == ["a", "b", "c", "d", "e"]
            record = await store.read_record("c")
            [left] = record.branches
            assert [e.message.parts[0].content for e in await store.read_history(left)] == ["a", "b", "x", "y"]
            empty = await store.branch("c", at=0, expected_revision=record.revision)
            assert (empty.messages, (await loaded(store)).messages) == ([], [])
            empty.messages += talk("new")
            await store.save(empty)
            assert await texts(store) == ["new"]
            with pytest.raises(ConversationConflict):
                await store.branch("c", at=1, expected_revision=record.revision)
            with pytest.raises(UserError):
                await store.branch("c", at=9, expected_revision=(await store.read_record("c")).revision)

        self.run(check)

    def test_a_fork_keeps_its_history_when_the_source_goes_on_or_is_deleted(self) -> None:
        async def check(store: Any) -> None:
            entries = await store.save(conversation("a", "b", "c", "d"), scope="s")
            fork = await store.fork("c", at=3, new_conversation_id="f")
            record = await store.read_record("f")
            assert (record.forked_from, record.forked_at, record.scope) == ("c", entries[2].id, "s")
            assert [e.id for e in await store.load_entries("f")] == [e.id for e in entries[:3]]
            fork.messages += talk("x")
            await store.save(fork)
            source = await loaded(store)
            source.messages += talk("e")
            await store.save(source)
            again = await store.fork("f", new_conversation_id="g", scope="t")
            assert len(again.messages) == 4
            await store.delete("c")
            assert await texts(store, "f") == ["a", "b", "c", "x"]
            assert await texts(store, "g") == ["a", "b", "c", "x"]
            with pytest.raises(ConversationConflict):
                await store.fork("f", new_conversation_id="g")

        self.run(check)

    def test_a_deleted_conversation_may_be_made_again(self) -> None:
        async def check(store: Any) -> None:
            await store.save(conversation("a", "b"))
            old = await loaded(store)
            await store.delete("c")
            assert await store.load("c") is None
            assert list(await store.read_records()) == []
            with pytest.raises(ConversationConflict):
                await store.save(old)
            await store.save(conversation("x"))
            assert await texts(store) == ["x"]
            with pytest.raises(ConversationConflict):
                await store.save(old)
            with pytest.raises(ConversationConflict):
                await store.delete_record("c", expected_revision=old.revision)

        self.run(check)

    def test_scopes_keep_conversations_apart_and_list_them(self) -> None:
        async def check(store: Any) -> None:
            for name, scope in (("a", "s"), ("b", "t"), ("c", "s")):
                await store.save(conversation("hi", name=name), scope=scope)
            first = await loaded(store, "a")
            first.messages += talk("again")
            await store.save(first)
            assert [record.conversation_id for record in await store.list_conversations()] == ["a", "c", "b"]
            assert [r.conversation_id for r in await store.list_conversations(scope="s", limit=1)] == ["a"]
            assert await store.list_conversations(scope="u") == []
            assert await store.load("a", scope="t") is None
            await store.delete("a", scope="t")
            assert await store.load("a", scope="s") is not None
            with pytest.raises(ConversationConflict):
                await store.save(await loaded(store, "a"), scope="t")

        self.run(check)

    def test_what_is_given_and_returned_is_a_copy(self) -> None:
        async def check(store: Any) -> None:
            given = conversation("a", "b")
            await store.save(given)
            given.messages[0].parts[0].content = "changed"
            record = await store.read_record("c")
            record.branches.append("x")
            (await loaded(store)).messages[1].parts[0].content = "changed"
            assert await texts(store) == ["a", "b"]
            assert (await store.read_record("c")).branches == []

        self.run(check)

    def test_a_head_that_is_nowhere_is_a_conflict(self) -> None:
        async def check(store: Any) -> None:
            with pytest.raises(ConversationConflict):
                await store.write_record(
                    ConversationRecord(conversation_id="c", head_id="nowhere"), expected_revision=None
                )
            with pytest.raises(LookupError):
                await store.read_entry("nowhere")
            with pytest.raises(LookupError):
                await store.read_history("nowhere")
            assert await store.read_history(None) == []
            await store.save(conversation("a"))
            record = await store.read_record("c")
            with pytest.raises(ConversationConflict):
                await store.write_record(
                    dataclasses.replace(record, head_id="nowhere", revision="r"), expected_revision=record.revision
                )
            assert await texts(store) == ["a"]

        self.run(check)

    def test_a_long_conversation_comes_back_in_order(self) -> None:
        async def check(store: Any) -> None:
            names = [f"m{place}" for place in range(2_500)]
            await store.save(conversation(*names))
            assert await texts(store) == names
            fork = await store.fork("c", new_conversation_id="f")
            assert len(fork.messages) == 2_500

        self.run(check)

    def test_large_messages_are_saved_together(self) -> None:
        async def check(store: Any) -> None:
            given = conversation(*("x" * 10_000_000 for _ in range(8)))
            await store.save(given)
            assert [len(text) for text in await texts(store)] == [10_000_000] * 8

        self.run(check)
