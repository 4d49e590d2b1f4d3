"""The middleware for LangChain's agents: the model gets the store's view, and each reply has its receipt."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware, SummarizationMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from support.later_releases import change_views

from compaction_store import AsyncStore, InvalidInput, Store, TokenBudget
from compaction_store.adapters.langchain import StoreMiddleware
from compaction_store.adapters.langchain_messages import from_payload
from compaction_store.adapters.langgraph import StoreSaver
from compaction_store.errors import UnknownEntry
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import StateSummary

K: Any = {"configurable": {"thread_id": "k"}}


class Model(GenericFakeChatModel):  # type: ignore[misc]  # the framework is an extra
    """Replies as it was given, and keeps each request."""

    seen: list[Any]

    def _generate(self, messages: Any, *given: Any, **options: Any) -> ChatResult:
        self.seen.append(list(messages))
        return super()._generate(messages, *given, **options)

    def bind_tools(self, *_given: Any, **_options: Any) -> Any:
        return self


def model(*replies: Any) -> Model:
    return Model(messages=iter([AIMessage(r) if isinstance(r, str) else r for r in replies]), seen=[])


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


def texts(messages: Any) -> list[Any]:
    return [message.content for message in messages]


def stored(store: Store) -> list[Any]:
    return [m.payload["content"] for m in store.replay("k") if m.payload]


def view(store: Store) -> list[Any]:
    return [from_payload(payload) for payload in store.view("k").messages]


def say(agent: Any, *given: str) -> Any:
    for text in given:
        # Beside a StoreSaver, a checkpoint that is put late would bring back an older state.
        agent.invoke({"messages": [HumanMessage(text)]}, K, durability="sync")
    return agent.get_state(K).values["messages"]


def weather(city: str) -> str:
    """Returns the weather."""
    return f"rain in {city}"


def test_a_turn_with_a_tool_is_stored_and_each_reply_has_its_receipt(store: Store) -> None:
    call = {"name": "weather", "args": {"city": "Chur"}, "id": "t", "type": "tool_call"}
    usage = {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11}
    fake = model(AIMessage("", tool_calls=[call], usage_metadata=usage), "Rain.", "Bye.")
    agent = create_agent(
        fake, tools=[weather], middleware=[StoreMiddleware(store)], checkpointer=InMemorySaver(),
        system_prompt="Short.", name="forecaster",
    )  # fmt: skip
    state = say(agent, "Weather in Chur?", "Thanks.")
    assert texts(state) == ["Weather in Chur?", "", "rain in Chur", "Rain.", "Thanks.", "Bye."]
    assert view(store) == state
    assert stored(store) == texts(state)
    assert list(store.compactions("k")) == []
    assert store.message("k", 2).meta == {"usage": {"input_tokens": 9, "output_tokens": 2}}
    for seq, request in zip((2, 4, 6), fake.seen, strict=True):
        seen = store.seen_by("k", seq)
        assert seen.evidence == "proved"
        assert [from_payload(p) for p in seen.view.messages if p] == request[1:]
    assert not store.audit.verify("k").findings


def test_an_agent_that_awaits_does_the_same(url: str) -> None:
    async def run() -> None:
        async with AsyncStore.open(url) as store:
            agent = create_agent(
                model("one", "two"), middleware=[StoreMiddleware(store, thread_id="k")], checkpointer=InMemorySaver()
            )
            for text in ("a", "b"):
                await agent.ainvoke({"messages": [HumanMessage(text)]}, K)
            assert [p and p["content"] for p in (await store.view("k")).messages] == ["a", "one", "b", "two"]
            assert (await store.seen_by("k", 4)).evidence == "proved"
            with pytest.raises(InvalidInput, match="store must be a Store for an agent"):
                agent.invoke({"messages": [HumanMessage("c")]}, K)

    asyncio.run(run())


def test_a_view_over_its_budget_is_compacted_once_and_the_state_keeps_all(store: Store) -> None:
    store.on_compact(SlidingWindow(StateSummary(), retain=2))
    fake = model(*("In hall seven. " * 30 for _ in range(8)))
    budget = TokenBudget(context_window=900)
    agent = create_agent(
        fake, middleware=[StoreMiddleware(store, budget=budget, actor="agent")], checkpointer=InMemorySaver()
    )
    state = say(agent, *(f"{n}: where is my parcel?" for n in range(8)))
    assert len(state) == 16 == len(stored(store))
    assert max(len(request) for request in fake.seen) < 12
    records = [record for record in store.compactions("k") if record.kind == "summary"]
    assert records
    assert len(records) < 8
    assert {record.actor for record in records} == {"agent"}
    assert store.seen_by("k", 16).evidence == "proved"
    assert len(store.seen_by("k", 16).view.messages) == len(fake.seen[-1])


@pytest.mark.parametrize("recording", [False, True], ids=["alone", "beside a StoreSaver"])
def test_their_summarization_is_a_record_and_the_messages_stay(store: Store, recording: bool) -> None:
    summarizer = SummarizationMiddleware(model("They talked."), trigger=("messages", 5), keep=("messages", 2))
    agent = create_agent(
        model("one", "two", "three"), middleware=[summarizer, StoreMiddleware(store, actor="agent")],
        checkpointer=StoreSaver(InMemorySaver(), store, actor="saver") if recording else InMemorySaver(),
    )  # fmt: skip
    state = say(agent, "a", "b", "c")
    assert len(state) == 4
    assert "They talked." in state[0].content
    assert view(store) == state
    assert stored(store) == ["a", "one", "b", "two", "c", "three"]
    [record] = store.compactions("k")
    assert (record.kind, record.start_seq, record.end_seq) == ("adoption", 1, 3)
    assert store.seen_by("k", 6).evidence == "proved"
    assert not store.audit.verify("k").findings


class Broken(Model):
    """Fails once, after it was sent a request."""

    def _generate(self, messages: Any, *given: Any, **options: Any) -> ChatResult:
        if len(self.seen) == 0:
            self.seen.append(None)
            raise ConnectionError
        return super()._generate(messages, *given, **options)


def test_a_call_that_is_tried_again_stores_nothing_twice(store: Store) -> None:
    fake = Broken(messages=iter([AIMessage("one")]), seen=[])
    retry = ModelRetryMiddleware(max_retries=2, initial_delay=0.0)
    agent = create_agent(fake, middleware=[retry, StoreMiddleware(store)], checkpointer=InMemorySaver())
    say(agent, "a")
    assert stored(store) == ["a", "one"]


def test_a_reply_that_the_state_never_got_is_rewound(store: Store) -> None:
    saver = InMemorySaver()
    agent = create_agent(model("one", "two"), middleware=[StoreMiddleware(store)], checkpointer=saver)
    state = say(agent, "a")
    store.append("k", {"role": "assistant", "content": "lost", "id": "x"})
    assert texts(say(agent, "b")) == ["a", "one", "b", "two"] == texts(view(store))
    assert stored(store) == ["a", "one", "lost", "b", "two"]
    assert texts(state) == ["a", "one"]


_FIRST = """
import os, sys
from test_langchain_middleware import *

store = Store.open(sys.argv[1])
summarizer = SummarizationMiddleware(model("They talked."), trigger=("messages", 8), keep=("messages", 4))
saver = StoreSaver(InMemorySaver(), store, actor="agent")
agent = create_agent(model(*(f"re {n}" for n in range(5))), middleware=[summarizer], checkpointer=saver)
say(agent, *(f"{n}" for n in range(5)))
os._exit(7)
"""


def test_every_original_is_there_after_a_summarization_and_the_end_of_the_process(url: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", _FIRST, url], env=environment, check=False)
    assert run.returncode == 7
    with Store.open(url) as store:
        wanted = [text for n in range(5) for text in (f"{n}", f"re {n}")]
        assert stored(store) == wanted
        [record] = store.compactions("k")
        assert (record.kind, record.start_seq, record.actor) == ("adoption", 1, "agent")
        before = store.view("k", at=record.pos - 1)
        assert [payload and payload["content"] for payload in before.messages] == wanted[:9]
        assert "They talked." in view(store)[0].content
        assert not store.audit.verify("k").findings
        store.revoke("k", record.number)
        assert texts(view(store)) == wanted


def test_an_agent_without_a_thread_is_refused(store: Store) -> None:
    agent = create_agent(model("one"), middleware=[StoreMiddleware(store)])
    with pytest.raises(InvalidInput, match="thread_id must be given"):
        agent.invoke({"messages": [HumanMessage("a")]})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"store": 3}, "store must be a Store or an AsyncStore, not int"),
        ({"thread_id": ""}, "thread_id"),
        ({"budget": 5}, "budget must be a TokenBudget"),
        ({"actor": ""}, "actor"),
    ],
)
def test_bad_arguments_are_refused(store: Store, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        StoreMiddleware(**{"store": store, **options})


@pytest.mark.parametrize("budget", [None, TokenBudget(10_000)])
def test_a_thread_whose_view_a_newer_release_has_changed_is_not_shown(
    store: Store, superuser: psycopg.Connection[Any], budget: TokenBudget | None
) -> None:
    replying = model("re a", "re b")
    agent = create_agent(replying, middleware=[StoreMiddleware(store, budget=budget)], checkpointer=InMemorySaver())
    say(agent, "a")
    change_views(superuser, "k")
    with pytest.raises(UnknownEntry):
        say(agent, "b")
    assert len(replying.seen) == 1
    assert stored(store) == ["a", "re a"]
