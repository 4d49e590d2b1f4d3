"""Histories of the Microsoft Agent Framework: sessions resume in another process, and writers lose nothing."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    Content,
    FileHistoryProvider,
    FunctionInvocationLayer,
    InMemoryHistoryProvider,
    Message,
)
from support.later_releases import change_views

from compaction_store import AsyncStore, InvalidInput, Store, TokenBudget
from compaction_store.adapters.agent_framework import StoreHistoryProvider, from_payload
from compaction_store.errors import UnknownEntry
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import StateSummary

GIVEN = [
    Message("system", ["Be brief."]),
    Message(
        "user", ["Look: \x00 \U0001f600", Content.from_data(b"\x00\xff", media_type="application/pdf")],
        author_name="ann", message_id="m1", additional_properties={"tags": [1, {"a": None}]},
    ),
    Message(
        "assistant",
        [
            Content.from_text_reasoning(text="hm", protected_data="sealed"),
            Content.from_function_call("c1", "weather", arguments={"city": "Chur"}),
            Content.from_function_call("c2", "time", arguments='{"zone": "CET"}'),
        ],
    ),
    Message(
        "tool", [Content.from_function_result("c1", result="rain"), Content.from_function_result("c2", result="9")]
    ),
    Message("assistant", []),
]  # fmt: skip


class Client(FunctionInvocationLayer, BaseChatClient):  # type: ignore[misc]  # the framework is an extra
    """A client that answers with the next of its messages, and keeps what it was sent."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = list(answers)
        self.seen: list[list[Any]] = []

    def _inner_get_response(self, *, messages: Sequence[Any], stream: bool, options: Any, **kwargs: Any) -> Any:
        del stream, options, kwargs
        self.seen.append(list(messages))
        answer = self.answers.pop(0) if self.answers else f"answer {len(self.seen)}"

        async def respond() -> Any:
            return ChatResponse(messages=[Message("assistant", [answer])])

        return respond()


def dicts(messages: Sequence[Any]) -> list[Any]:
    return [message.to_dict() for message in messages]


def texts(messages: Sequence[Any]) -> list[str]:
    return [message.text for message in messages]


@pytest.fixture(params=["sync", "async"])
def on_each_store(request: pytest.FixtureRequest, url: str) -> Callable[[Callable[[Any], Awaitable[None]]], None]:
    """Runs a test on a provider over a Store, and on one over an AsyncStore."""

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


def test_messages_come_back_as_they_were_saved(on_each_store: Any) -> None:
    async def check(store: Any) -> None:
        history = StoreHistoryProvider(store)
        assert await history.get_messages("s") == []
        await history.save_messages("s", [])
        for message in GIVEN:
            await history.save_messages("s", [message])
        assert dicts(await history.get_messages("s")) == dicts(GIVEN)
        assert await history.get_messages("t") == []

    on_each_store(check)


def test_an_agent_goes_on_in_another_process(on_each_store: Any, url: str) -> None:
    def weather(city: str) -> str:
        return f"rain in {city}"

    call = Content.from_function_call("c1", "weather", arguments='{"city": "Chur"}')

    async def check(store: Any) -> None:
        agent = Agent(Client(call, "It rains."), context_providers=[StoreHistoryProvider(store)], tools=[weather])
        session = agent.create_session(session_id="s")
        assert (await agent.run("How is it in Chur?", session=session)).text == "It rains."

    on_each_store(check)

    async def resumed() -> None:
        async with AsyncStore.open(url) as store:
            client = Client()
            agent = Agent(client, context_providers=[StoreHistoryProvider(store)])
            await agent.run("And now?", session=agent.create_session(session_id="s"))
            [sent] = client.seen
            assert texts(sent)[0] == "How is it in Chur?"
            assert texts(sent)[-1] == "And now?"
            assert [content.type for message in sent for content in message.contents] == [
                "text", "function_call", "function_result", "text", "text",
            ]  # fmt: skip
            assert len([message async for message in store.replay("s")]) == 6
            assert not (await store.audit.verify("s")).findings

    asyncio.run(resumed())


def test_concurrent_writers_lose_nothing(on_each_store: Any) -> None:
    async def check(store: Any) -> None:
        providers = [StoreHistoryProvider(store) for _ in range(4)]
        turns = [[Message("user", [f"q {i}"]), Message("assistant", [f"a {i}"])] for i in range(20)]
        await asyncio.gather(*(providers[i % 4].save_messages("s", turn) for i, turn in enumerate(turns)))
        found = texts(await providers[0].get_messages("s"))
        assert len(found) == 40
        for i in range(20):
            assert found[found.index(f"q {i}") + 1] == f"a {i}"

    on_each_store(check)


@pytest.mark.filterwarnings("ignore:.*is experimental")
@pytest.mark.parametrize("kind", ["in memory", "file", "ours"])
def test_messages_that_are_saved_again_are_stored_once(kind: str, url: str, tmp_path: Any) -> None:
    """The same on the framework's providers: a workflow saves its whole transcript again."""

    async def check(history: Any) -> None:
        state: dict[str, Any] = {}
        said = [Message("user" if i % 2 == 0 else "assistant", [f"m{i}"]) for i in range(6)]
        await history.save_messages("s", said[:3], state=state)
        await history.save_messages("s", said[:5], state=state)
        await history.save_messages("s", [*said[3:], Message("user", ["m5"])], state=state)
        await history.save_messages("s", [Message("user", ["m5"])], state=state)
        assert texts(await history.get_messages("s", state=state)) == [*(f"m{i}" for i in range(6)), "m5", "m5"]

    if kind == "in memory":
        asyncio.run(check(InMemoryHistoryProvider()))
    elif kind == "file":
        asyncio.run(check(FileHistoryProvider(tmp_path)))
    else:
        with Store.open(url) as store:
            asyncio.run(check(StoreHistoryProvider(store)))


def test_a_history_over_its_budget_is_compacted_first(url: str) -> None:
    with Store.open(url) as store:
        store.on_compact(SlidingWindow(StateSummary(), retain=2))
        history = StoreHistoryProvider(store, budget=TokenBudget(context_window=400), actor="agent")
        client = Client(*(f"A long answer, number {i}. " * 12 for i in range(6)))
        agent = Agent(client, context_providers=[history])
        for number in range(6):
            session = agent.create_session(session_id="s")
            asyncio.run(agent.run(f"question {number}", session=session))
        records = [record for record in store.compactions("s") if record.status == "active"]
        assert {record.actor for record in records} == {"agent"}
        assert records
        assert len(client.seen[-1]) < 11
        assert len(list(store.replay("s"))) == 12
        assert "question 0" in str(next(store.replay("s")).payload)


def test_a_call_is_not_parted_from_its_result(url: str) -> None:
    with Store.open(url) as store:
        history = StoreHistoryProvider(store)
        asyncio.run(history.save_messages("s", GIVEN[1:]))
        run = store.compact("s", lambda ctx: ctx.compact(1, 2, "s"))
        assert [record.outcome for record in run] == ["rejected"]


def test_a_rewound_history_is_loaded_without_its_end(url: str) -> None:
    with Store.open(url) as store:
        history = StoreHistoryProvider(store)
        said = [
            Message("user", ["a"]),
            Message("assistant", ["b"]),
            Message("user", ["c"]),
            Message("assistant", ["d"]),
        ]
        asyncio.run(history.save_messages("s", said))
        store.rewind("s", 2)
        assert texts(asyncio.run(history.get_messages("s"))) == ["a", "b"]
        asyncio.run(history.save_messages("s", said[2:]))
        assert texts(asyncio.run(history.get_messages("s"))) == ["a", "b", "c", "d"]
        store.custody.redact("s", 1, reason="case 1")
        assert texts(asyncio.run(history.get_messages("s"))) == ["b", "c", "d"]


def test_a_long_history_is_saved(url: str) -> None:
    with Store.open(url) as store:
        history = StoreHistoryProvider(store)
        given = [Message("user", [f"m{i}"], message_id=str(i)) for i in range(2_500)]
        asyncio.run(history.save_messages("s", given))
        assert dicts(asyncio.run(history.get_messages("s"))) == dicts(given)


def test_the_options_of_every_provider_are_taken(url: str) -> None:
    with Store.open(url) as store:
        history = StoreHistoryProvider(store, source_id="audit", load_messages=False, store_inputs=False)
        client = Client()
        agent = Agent(client, context_providers=[InMemoryHistoryProvider(), history])
        asyncio.run(agent.run("hi", session=agent.create_session(session_id="s")))
        assert texts(asyncio.run(history.get_messages("s"))) == ["answer 1"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"store": 3}, "store must be a Store or an AsyncStore, not int"),
        ({"budget": 3}, "budget must be a TokenBudget"),
        ({"actor": ""}, "actor"),
    ],
)
def test_bad_arguments_are_refused(url: str, options: dict[str, Any], text: str) -> None:
    with Store.open(url) as store:
        with pytest.raises(InvalidInput, match=text):
            StoreHistoryProvider(**{"store": store, **options})
        history = StoreHistoryProvider(store)
        with pytest.raises(InvalidInput, match="session_id must be given"):
            asyncio.run(history.get_messages(None))
        with pytest.raises(InvalidInput, match="a message must be a Message, not str"):
            asyncio.run(history.save_messages("s", ["hi"]))


def test_the_private_function_is_there() -> None:
    try:
        from agent_framework._sessions import filter_new_messages  # noqa: PLC0415
    except ImportError:
        version = importlib.metadata.version("agent-framework-core")
        pytest.fail(f"agent-framework-core {version} has no agent_framework._sessions.filter_new_messages")
    assert filter_new_messages([], GIVEN) == GIVEN


def test_large_messages_are_saved_together(url: str) -> None:
    with Store.open(url) as store:
        history = StoreHistoryProvider(store)
        given = [Message("user", ["x" * 10_000_000], message_id=str(i)) for i in range(8)]
        asyncio.run(history.save_messages("s", given))
        assert [len(text) for text in texts(asyncio.run(history.get_messages("s")))] == [10_000_000] * 8


def test_a_thread_whose_view_a_newer_release_has_changed_is_not_shown(
    on_each_store: Any, superuser: psycopg.Connection[Any]
) -> None:
    async def check(store: Any) -> None:
        history = StoreHistoryProvider(store)
        await history.save_messages("s", GIVEN[:2])
        change_views(superuser, "s")
        for each in (history, StoreHistoryProvider(store, budget=TokenBudget(10_000))):
            with pytest.raises(UnknownEntry):
                await each.get_messages("s")
            with pytest.raises(UnknownEntry):
                await each.save_messages("s", GIVEN[2:])

    on_each_store(check)


@pytest.mark.parametrize(
    ("content", "text"), [(None, ""), ("", ""), ("hi", "hi"), ({"a": "ü"}, '{"a": "ü"}'), (3, "3"), (False, "false")]
)
def test_content_of_another_program_is_kept_as_text(content: object, text: str) -> None:
    assert (from_payload({"role": "user", "content": content}).text or "") == text
