"""Chat message histories of LangChain: theirs and ours do the same, and what is cleared stays in the thread."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Literal

import psycopg
import pytest
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables.history import RunnableWithMessageHistory
from support.later_releases import change_views

from compaction_store import InvalidInput, Store, TokenBudget
from compaction_store.adapters.langchain import StoreChatMessageHistory
from compaction_store.adapters.langchain_messages import from_payload, message_types, to_payload
from compaction_store.errors import UnknownEntry
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import ExtractiveSummarizer


class NoteMessage(BaseMessage):  # type: ignore[misc]  # the framework is an extra
    """A class that an application made."""

    type: Literal["note"] = "note"
    colour: str = "yellow"


CALL = {"name": "weather", "args": {"city": "Chur", "days": [1, 2.5, None]}, "id": "t1", "type": "tool_call"}
GIVEN: list[BaseMessage] = [
    SystemMessage("Be brief.", id="s"),
    HumanMessage("Look: \x00 \U0001f600", name="ana", id="h", additional_kwargs={"lang": "pt"}),
    HumanMessage([{"type": "text", "text": "Here"}, {"type": "image", "url": "https://a.example/x.png"}, "and this"]),
    AIMessage(
        [{"type": "thinking", "thinking": "hm", "signature": "abc"}, {"type": "text", "text": "I look."}],
        id="run-1", tool_calls=[CALL], additional_kwargs={"refusal": None}, response_metadata={"model_name": "m"},
        invalid_tool_calls=[
            {"name": "f", "args": "{", "id": "t2", "error": "not JSON", "type": "invalid_tool_call"}
        ],
        usage_metadata={
            "input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "input_token_details": {"cache_read": 1},
        },
    ),
    ToolMessage("rain", tool_call_id="t1", name="weather", artifact={"raw": [1, {"mm": 2.5}]}, status="error", id="r"),
    ToolMessage([{"type": "text", "text": "x"}], tool_call_id="t2"),
    AIMessage(""),
    AIMessage("", tool_calls=[{"name": "g", "args": {}, "id": None, "type": "tool_call"}]),
    ChatMessage("Not so.", role="critic"),
    ChatMessage("From a user.", role="user"),
    FunctionMessage("4", name="add"),
    HumanMessage("with a field of its own", custom_field={"a": 1}),
    HumanMessageChunk("chunk"),
    AIMessageChunk("chunk", tool_call_chunks=[{"name": "f", "args": "{}", "id": "c", "index": 0}]),
    RemoveMessage(id="x"),
]  # fmt: skip


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


@pytest.fixture(params=["theirs", "ours"])
def history(request: pytest.FixtureRequest, store: Store) -> Any:
    """The framework's own history in memory, and ours: they must do the same."""
    if request.param == "ours":
        return StoreChatMessageHistory("k", store)
    with warnings.catch_warnings():
        # It advises to use LangGraph instead.
        warnings.simplefilter("ignore")
        return InMemoryChatMessageHistory()


def texts(history: Any) -> list[Any]:
    return [message.content for message in history.messages]


# ---- the contract, of theirs and ours


def test_messages_come_back_as_they_were_added(history: Any) -> None:
    assert history.messages == []
    history.add_messages(GIVEN)
    assert history.messages == GIVEN
    assert [type(message) for message in history.messages] == [type(message) for message in GIVEN]


def test_messages_are_added_one_by_one(history: Any) -> None:
    history.add_user_message("hi")
    history.add_ai_message("hello")
    history.add_message(HumanMessage("how are you?"))
    history.add_messages([])
    assert history.messages == [HumanMessage("hi"), AIMessage("hello"), HumanMessage("how are you?")]
    assert str(history) == "Human: hi\nAI: hello\nHuman: how are you?"


def test_a_cleared_history_is_empty_and_used_again(history: Any) -> None:
    history.clear()
    history.add_messages([HumanMessage("a"), AIMessage("b")])
    history.clear()
    history.clear()
    assert history.messages == []
    history.add_messages([HumanMessage("c")])
    assert texts(history) == ["c"]


def test_the_methods_with_await_do_the_same(history: Any) -> None:
    async def check() -> None:
        await history.aadd_messages([HumanMessage("a"), AIMessage("b")])
        assert [message.content for message in await history.aget_messages()] == ["a", "b"]
        await history.aclear()
        assert await history.aget_messages() == []

    asyncio.run(check())


def test_a_runnable_with_history_goes_on_with_it(history: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chain = RunnableWithMessageHistory(FakeListChatModel(responses=["one", "two"]), lambda _session: history)
        config: Any = {"configurable": {"session_id": "k"}}
        assert chain.invoke([HumanMessage("first")], config).content == "one"
        assert asyncio.run(chain.ainvoke([HumanMessage("second")], config)).content == "two"
    assert texts(history) == ["first", "one", "second", "two"]


# ---- what only ours does


def test_what_is_cleared_stays_and_is_undone(store: Store) -> None:
    history = StoreChatMessageHistory("k", store, actor="agent")
    history.add_messages([HumanMessage("a"), AIMessage("b")])
    history.clear()
    assert [m.payload["content"] for m in store.replay("k") if m.payload] == ["a", "b"]
    [record] = store.compactions("k")
    assert (record.kind, record.reason, record.actor) == ("clear", "clear", "agent")
    assert list(store.threads()) == []
    store.revoke("k", record.number)
    assert texts(history) == ["a", "b"]
    assert not store.verify("k").findings


def test_clearing_may_erase(store: Store) -> None:
    history = StoreChatMessageHistory("k", store, on_clear="erase")
    history.add_messages([HumanMessage("secret")])
    history.clear()
    assert history.messages == []
    history.add_messages([HumanMessage("new")])
    assert texts(history) == ["new"]


def test_another_process_goes_on(url: str) -> None:
    with Store.open(url) as store:
        StoreChatMessageHistory("k", store).add_messages(GIVEN)
    with Store.open(url) as store:
        assert StoreChatMessageHistory("k", store).messages == GIVEN


def test_a_history_over_its_budget_is_compacted(store: Store) -> None:
    store.on_compact(SlidingWindow(ExtractiveSummarizer(), retain=2))
    history = StoreChatMessageHistory("k", store, budget=TokenBudget(context_window=800), actor="agent")
    for number in range(6):
        history.add_messages([HumanMessage(f"{number}: where is my parcel?"), AIMessage("In hall seven. " * 30)])
    shown = history.messages
    assert isinstance(shown[0], HumanMessage)
    assert len(shown) < 6
    assert len(list(store.replay("k"))) == 12
    assert next(iter(store.compactions("k"))).actor == "agent"


def test_calls_are_not_parted_from_their_results(store: Store) -> None:
    history = StoreChatMessageHistory("k", store)
    history.add_messages([HumanMessage("a"), AIMessage("", tool_calls=[CALL]), ToolMessage("r", tool_call_id="t1")])
    store.compact("k", lambda ctx: ctx.compact(1, 2, "They look."))
    assert [record.outcome for record in store.compactions("k")] == ["rejected"]


def test_an_applications_own_message_needs_its_class(store: Store) -> None:
    given = NoteMessage(content="n", colour="blue", id="1")
    with pytest.raises(InvalidInput, match="message_types must include NoteMessage, the class"):
        StoreChatMessageHistory("k", store).add_messages([given])
    history = StoreChatMessageHistory("k", store, message_types=[NoteMessage])
    history.add_messages([given])
    assert history.messages == [given]
    assert texts(StoreChatMessageHistory("k", store)) == ["n"]


def test_concurrent_writers_lose_nothing(store: Store) -> None:
    def work(number: int) -> None:
        turn = [HumanMessage(str(number)), AIMessage(f"re {number}")]
        StoreChatMessageHistory("k", store).add_messages(turn)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    found = texts(StoreChatMessageHistory("k", store))
    assert sorted(found[::2], key=int) == [str(n) for n in range(16)]
    assert all(reply == f"re {question}" for question, reply in zip(found[::2], found[1::2], strict=True))


def test_a_long_history(store: Store) -> None:
    history = StoreChatMessageHistory("k", store)
    given = [HumanMessage(f"m{i}") for i in range(2_500)]
    history.add_messages(given)
    assert history.messages == given


def test_an_imported_message_is_read(store: Store) -> None:
    store.append("k", [{"role": "developer", "content": "Be brief."}, {"role": "assistant", "content": None}])
    assert StoreChatMessageHistory("k", store).messages == [SystemMessage("Be brief."), AIMessage("")]


# ---- conversion


@pytest.mark.parametrize("value", [datetime(2026, 5, 1, tzinfo=UTC), (1, 2), {1: 2}, float("nan"), {"a": {1, 2}}])
def test_a_value_that_is_not_json_is_refused_or_described(value: Any) -> None:
    message = ToolMessage("secret", tool_call_id="t", artifact=value)
    with pytest.raises(InvalidInput, match="a message must have a JSON form") as caught:
        to_payload(message, {})
    assert "secret" not in str(caught.value)
    described = to_payload(message)
    assert "python" in str(described["langchain"]["artifact"])
    assert from_payload(described).content == "secret"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"store": 3}, "store must be a Store, not int"),
        ({"on_clear": "drop"}, "on_clear must be one of"),
        ({"session_id": ""}, "thread_id"),
        ({"budget": 5}, "budget must be a TokenBudget"),
        ({"message_types": [int]}, "message_types must be subclasses of BaseMessage"),
    ],
)
def test_bad_arguments_are_refused(store: Store, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        StoreChatMessageHistory(**{"session_id": "k", "store": store, **options})
    with pytest.raises(InvalidInput, match="a message must be a LangChain message, not dict"):
        StoreChatMessageHistory("k", store).add_messages([{"role": "user", "content": "hi"}])


def test_types_are_found_by_name() -> None:
    assert message_types([NoteMessage]) == {"NoteMessage": NoteMessage}


def test_a_thread_whose_view_a_newer_release_has_changed_is_not_shown(
    store: Store, superuser: psycopg.Connection[Any]
) -> None:
    history = StoreChatMessageHistory("k", store)
    history.add_user_message("a")
    change_views(superuser, "k")
    history.add_ai_message("b")
    for each in (history, StoreChatMessageHistory("k", store, budget=TokenBudget(10_000))):
        with pytest.raises(UnknownEntry):
            _ = each.messages
        with pytest.raises(UnknownEntry):
            each.clear()
    assert len(list(store.replay("k"))) == 2
