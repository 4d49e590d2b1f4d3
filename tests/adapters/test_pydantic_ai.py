"""Conversations of Pydantic AI: what a branch leaves, a delete drops or a compaction replaces stays in the thread."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from conversation_store_suite import ConversationStoreSuite, ask, conversation, loaded, talk, texts
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, InMemoryConversationStore
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import CompactionPart, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel
from support.later_releases import change_views

from compaction_store import AsyncStore, InvalidInput, Store, TokenBudget
from compaction_store.adapters.pydantic_ai import StoreConversations
from compaction_store.adapters.pydantic_ai_compaction import StoredCompaction
from compaction_store.errors import UnknownEntry
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import StateSummary


class TestInMemory(ConversationStoreSuite):
    @asynccontextmanager
    async def make(self) -> AsyncIterator[Any]:
        yield InMemoryConversationStore()


class TestOverAnAsyncStore(ConversationStoreSuite):
    @pytest.fixture(autouse=True)
    def _database(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def make(self) -> AsyncIterator[Any]:
        async with AsyncStore.open(self.url) as store:
            yield StoreConversations(store)
            async for thread in store.threads():
                assert not (await store.audit.verify(thread.thread_id)).findings


class TestOverAStore(ConversationStoreSuite):
    @pytest.fixture(autouse=True)
    def _database(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def make(self) -> AsyncIterator[Any]:
        with Store.open(self.url) as store:
            yield StoreConversations(store)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


def said(store: Store, name: str = "c") -> list[Any]:
    """The texts in the view of a thread."""
    return [m["content"][0]["text"] for m in store.view(name).messages]


def test_the_view_is_the_history_and_the_thread_has_all(store: Store) -> None:
    conversations = StoreConversations(store, actor="agent")

    async def check() -> None:
        await conversations.save(conversation("a", "b", "c", "d"))
        now = await loaded(conversations)
        edited = await conversations.branch("c", at=2, expected_revision=str(now.revision))
        assert said(store) == ["a", "b"]
        edited.messages += talk("x", "y")
        await conversations.save(edited)
        assert said(store) == ["a", "b", "x", "y"]
        record = await conversations.read_record("c")
        await conversations.branch("c", from_entry=record.branches[0], expected_revision=record.revision)
        assert said(store) == ["a", "b", "c", "d"]
        await conversations.delete("c")
        assert store.view("c").messages == []

    asyncio.run(check())
    stored = [m.payload["content"][0]["text"] for m in store.replay("c") if m.payload and "content" in m.payload]
    assert stored[:4] == ["a", "b", "c", "d"]
    assert {"x", "y"} < set(stored)
    assert {record.actor for record in store.compactions("c", kind="rewind")} == {"agent"}


def test_a_delete_may_erase_and_leaves_forks(store: Store) -> None:
    conversations = StoreConversations(store, on_delete="erase")

    async def check() -> None:
        await conversations.save(conversation("secret", "b"))
        await conversations.fork("c", new_conversation_id="f")
        await conversations.delete("c")
        assert await conversations.load("c") is None
        assert await texts(conversations, "f") == ["secret", "b"]
        assert [r.conversation_id for r in await conversations.list_conversations()] == ["f"]

    asyncio.run(check())
    stub = next(thread.thread_id for thread in store.threads() if thread.thread_id.startswith("erased:"))
    assert all(message.redacted for message in store.replay(stub))


def test_a_write_that_was_cut_off_after_its_rewind_is_mended(store: Store) -> None:
    conversations = StoreConversations(store)

    async def check() -> None:
        await conversations.save(conversation("a", "b", "c", "d"))
        store.rewind("c", 2)
        found = await loaded(conversations)
        found.messages += talk("e")
        await conversations.save(found)
        assert said(store) == ["a", "b", "c", "d", "e"] == await texts(conversations)

    asyncio.run(check())


def test_an_erased_message_is_left_out(store: Store) -> None:
    conversations = StoreConversations(store)

    async def check() -> None:
        await conversations.save(conversation("a", "secret", "c", "d"))
        store.custody.redact("c", 2, reason="case 1")
        assert await texts(conversations) == ["a", "c", "d"]
        found = await loaded(conversations)
        found.messages += talk("e")
        await conversations.save(found)
        assert await texts(conversations) == ["a", "c", "d", "e"]

    asyncio.run(check())


def test_a_history_is_one_query(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    conversations = StoreConversations(store)
    asyncio.run(conversations.save(conversation(*(f"m{i}" for i in range(1_500)))))
    head = asyncio.run(conversations.read_record("c")).head_id
    calls = []
    call = store._db.call

    def counted(*given: Any, **options: Any) -> Any:
        calls.append(given[0])
        return call(*given, **options)

    monkeypatch.setattr(store._db, "call", counted)
    for each in (head, copy.deepcopy(head)):
        assert len(asyncio.run(conversations.read_history(each))) == 1_500
    assert len(asyncio.run(conversations.read_history(head, limit=3))) == 3
    assert len(calls) == 3


def test_a_thread_of_other_messages_is_refused_unchanged(store: Store) -> None:
    store.append("c", {"role": "user", "content": "mine"})
    conversations = StoreConversations(store)
    assert asyncio.run(conversations.load("c")) is None
    with pytest.raises(InvalidInput, match="must have messages of Pydantic AI only"):
        asyncio.run(conversations.save(conversation("a")))
    assert store.view("c").messages == [{"role": "user", "content": "mine"}]


def test_what_has_no_json_form_is_refused(store: Store) -> None:
    given = Conversation(
        messages=[ModelRequest(parts=[UserPromptPart("a")], metadata={"lock": object()})], conversation_id="c"
    )
    with pytest.raises(InvalidInput, match="must have a JSON form"):
        asyncio.run(StoreConversations(store).save(given))
    assert not list(store.threads())


def test_two_processes_take_turns(url: str) -> None:
    async def check() -> None:
        async with AsyncStore.open(url) as one, AsyncStore.open(url) as two:
            saved = 0

            async def writer(conversations: StoreConversations) -> None:
                nonlocal saved
                for _ in range(10):
                    while True:
                        found = await conversations.load("c") or Conversation(conversation_id="c")
                        found.messages.append(ask("x"))
                        try:
                            await conversations.save(found)
                        except ConversationConflict:
                            continue
                        saved += 1
                        break

            await asyncio.gather(*(writer(StoreConversations(store)) for store in (one, two)))
            assert saved == 20 == len((await loaded(StoreConversations(one))).messages)
            assert len((await one.view("c")).messages) == 20

    asyncio.run(check())


# ---- the capability


def agent(seen: list[list[Any]], *capabilities: Any) -> Agent[None, str]:
    def answer(messages: list[Any], _info: Any) -> ModelResponse:
        seen.append(list(messages))
        return ModelResponse(parts=[TextPart(f"answer {len(seen)}")])

    return Agent(FunctionModel(answer), capabilities=list(capabilities))


class Summarizer:
    """A processor that replaces all but the last two messages, if there are more than four."""

    calls = 0

    async def __call__(self, messages: list[Any]) -> list[Any]:
        if len(messages) <= 4:
            return messages
        self.calls += 1
        return [ModelRequest(parts=[CompactionPart(content=f"summary {self.calls}")]), *messages[-2:]]


def test_a_compaction_is_paid_for_once_and_kept_as_a_record(url: str) -> None:
    summarizer = Summarizer()
    seen: list[list[Any]] = []
    with Store.open(url) as store:
        conversations = StoreConversations(store, actor="agent")
        worker = agent(seen, StoredCompaction(summarizer, conversations=conversations))

        async def turn(number: int) -> None:
            now = await conversations.load("c") or Conversation(conversation_id="c")
            await conversations.save(await worker.run(f"question {number}", conversation=now))

        for number in range(1, 4):
            asyncio.run(turn(number))
    assert summarizer.calls == 1
    assert [len(each) for each in seen] == [1, 3, 3]
    # Another process goes on: the history loads whole, the model is sent the view.
    with Store.open(url) as store:
        conversations = StoreConversations(store)
        worker = agent(seen, StoredCompaction(summarizer, conversations=conversations))
        asyncio.run(turn(4))
        assert summarizer.calls == 2
        [first, second] = store.compactions("c", kind="adoption")
        assert (first.start_seq, first.end_seq, first.actor, first.reason) == (1, 3, "agent", "ProcessHistory")
        assert (second.start_seq, second.end_seq) == (1, 5)
        assert seen[-1][0].parts[0].content == "summary 2"
        assert len(asyncio.run(loaded(conversations)).messages) == 8 == len(list(store.replay("c")))
        assert not store.audit.verify("c").findings
        store.revoke("c", second.number)
        store.revoke("c", first.number)
        assert len(store.view("c").messages) == 8


def test_a_conversation_that_is_not_loaded_again_is_recorded_too(store: Store) -> None:
    """The framework joins the summary with a request beside it, in the result's messages."""

    def processor(messages: list[Any]) -> list[Any]:
        if len(messages) <= 4:
            return messages
        summary = CompactionPart(content=f"summary of {messages[-1].parts[-1].content}")
        return [ModelRequest(parts=messages[0].parts[:1]), ModelRequest(parts=[summary]), *messages[-2:]]

    conversations = StoreConversations(store)
    worker = agent([], StoredCompaction(processor, conversations=conversations))
    now = Conversation(conversation_id="c")
    for number in range(6):
        result = asyncio.run(worker.run(f"question {number}", conversation=now))
        asyncio.run(conversations.save(result))
        now = result.conversation
    assert len(list(store.compactions("c", kind="adoption"))) > 1
    assert len(store.view("c").messages) < 7
    assert [m.payload["content"][0]["text"] for m in store.replay("c") if m.payload][::2] == [
        f"question {number}" for number in range(6)
    ]


def test_a_run_of_another_name_is_left_alone(store: Store) -> None:
    store.append("c", {"role": "user", "content": "not of this framework"})
    seen: list[list[Any]] = []
    worker = agent(seen, StoredCompaction(Summarizer(), conversations=StoreConversations(store)))
    asyncio.run(worker.run("hi", conversation_id="c"))
    assert len(seen[0]) == 1


def test_a_compaction_of_the_store_itself_is_sent(store: Store) -> None:
    seen: list[list[Any]] = []
    conversations = StoreConversations(store)
    asyncio.run(conversations.save(conversation("a " * 99, "b", "c", "d")))
    store.compact("c", lambda ctx: ctx.compact(1, 2, "They said a and b."))
    worker = agent(seen, StoredCompaction(lambda messages: messages, conversations=conversations))
    now = asyncio.run(loaded(conversations))
    asyncio.run(conversations.save(asyncio.run(worker.run("e", conversation=now))))
    assert "They said a and b." in seen[0][0].parts[0].content
    # The framework joins requests that follow each other.
    assert len(seen[0]) == 3
    assert len(store.view("c").messages) == 5
    assert asyncio.run(texts(conversations))[1:] == ["b", "c", "d", "e", "answer 1"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_with_a_budget_a_loaded_conversation_is_the_view_that_fits(url: str, is_async: bool) -> None:
    seen: list[list[Any]] = []

    async def turns(store: Any) -> None:
        store.on_compact(SlidingWindow(StateSummary(), retain=2))
        conversations = StoreConversations(store, budget=TokenBudget(context_window=700), actor="agent")
        assert await conversations.load("c") is None
        for number in range(12):
            now = await conversations.load("c", scope="ana") or Conversation(conversation_id="c")
            run = await agent(seen).run(f"question {number}: " + "where is my parcel? " * 20, conversation=now)
            await conversations.save(run, scope="ana")
        fitted = await conversations.load("c")
        assert len(fitted.messages) < 12
        assert [m.parts[-1].content for m in (await conversations.load("c", limit=1)).messages] == ["answer 12"]
        assert (await conversations.load("c", limit=0)).messages == []
        assert await conversations.load("c", scope="ben") is None
        with pytest.raises(UserError, match="negative"):
            await conversations.load("c", limit=-1)
        # The history itself is whole.
        assert [e.message.parts[-1].content for e in await conversations.load_entries("c")][1::2] == [
            f"answer {number + 1}" for number in range(12)
        ]
        assert (await conversations.read_record("c")).branches == []

    async def over_async() -> None:
        async with AsyncStore.open(url) as store:
            await turns(store)

    if is_async:
        asyncio.run(over_async())
    else:
        with Store.open(url) as store:
            asyncio.run(turns(store))
    assert max(map(len, seen)) < 12
    with Store.open(url) as store:
        assert len(list(store.replay("c"))) == 24
        records = list(store.compactions("c", outcome="applied"))
        assert {(record.kind, record.actor) for record in records} == {("summary", "agent")}
        assert not store.audit.verify("c").findings


def test_a_compaction_that_the_provider_made_is_observed(store: Store) -> None:
    given = Conversation(
        messages=[*talk("a"), ModelResponse(parts=[CompactionPart(content="a was said", provider_name="anthropic")])],
        conversation_id="c",
    )
    asyncio.run(StoreConversations(store).save(given))
    [record] = store.compactions("c")
    assert (record.outcome, record.summary_text) == ("observed", "a was said")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"store": 3}, "store must be a Store or an AsyncStore, not int"),
        ({"on_delete": "drop"}, "on_delete must be"),
        ({"budget": 1000}, "budget must be a TokenBudget, not int"),
    ],
)
def test_bad_arguments_are_refused(store: Store, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        StoreConversations(**{"store": store, **options})
    with pytest.raises(InvalidInput, match="conversations must be a StoreConversations"):
        StoredCompaction(Summarizer(), conversations=InMemoryConversationStore())
    with pytest.raises(InvalidInput, match="wrapped must be a capability or a callable"):
        StoredCompaction(3, conversations=StoreConversations(store))


def test_a_thread_whose_view_a_newer_release_has_changed_is_not_shown(
    store: Store, superuser: psycopg.Connection[Any]
) -> None:
    conversations = StoreConversations(store)

    async def check() -> None:
        await conversations.save(conversation("a", "b"))
        found = await loaded(conversations)
        change_views(superuser, "c")
        found.messages += talk("x", "y")
        for call in (
            lambda: conversations.load("c"), lambda: conversations.read_record("c"), conversations.list_conversations,
            lambda: conversations.save(found), lambda: conversations.delete("c"), lambda: conversations.view("c"),
            lambda: conversations.branch("c", at=1, expected_revision=str(found.revision)),
            lambda: conversations.fork("c", new_conversation_id="f"),
        ):  # fmt: skip
            with pytest.raises(UnknownEntry):
                await call()

    asyncio.run(check())
    assert store.thread("c").last_seq == 2
    assert [thread.thread_id for thread in store.threads()] == ["c"]


def test_a_model_is_sent_nothing_of_a_thread_whose_view_a_newer_release_has_changed(
    store: Store, superuser: psycopg.Connection[Any]
) -> None:
    conversations = StoreConversations(store)
    seen: list[list[Any]] = []
    runs = agent(seen, StoredCompaction(lambda messages: messages, conversations=conversations))

    async def check() -> None:
        await conversations.save(conversation("a", "b"))
        found = await loaded(conversations)
        change_views(superuser, "c")
        with pytest.raises(UnknownEntry):
            await runs.run("c", conversation=found)

    asyncio.run(check())
    assert seen == []
