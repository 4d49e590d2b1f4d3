"""The checkpointer for LangGraph: the graph works as before, and what its state loses stays in the thread."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from support.later_releases import change_views

from compaction_store import AsyncStore, InvalidInput, Store
from compaction_store.adapters.langchain_messages import from_payload
from compaction_store.adapters.langgraph import StoreSaver
from compaction_store.errors import UnknownEntry
from compaction_store.models.messages import ERASED

K: Any = {"configurable": {"thread_id": "k"}}


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


def graph(saver: Any, node: Callable[[State], Any] | None = None) -> Any:
    """A graph whose node replies with the number of messages it sees."""
    builder = StateGraph(State)
    builder.add_node("n", node or (lambda state: {"messages": AIMessage(f"re {state['messages'][-1].content}")}))
    builder.add_edge(START, "n")
    builder.add_edge("n", END)
    return builder.compile(checkpointer=saver)


def say(app: Any, *texts: str, config: Any = K) -> Any:
    for text in texts:
        app.invoke({"messages": [HumanMessage(text)]}, config)
    return app.get_state(K).values["messages"]


def view(store: Store, thread: str = "k") -> list[Any]:
    return [from_payload(payload) for payload in store.view(thread).messages]


def texts(messages: list[Any]) -> list[Any]:
    return [message.content for message in messages]


def stored(store: Store, thread: str = "k") -> list[Any]:
    return [m.payload["content"] for m in store.replay(thread) if m.payload]


def kinds(store: Store) -> list[str]:
    return [record.kind for record in store.compactions("k")]


# ---- the state, message by message


def test_the_messages_of_a_graph_are_stored(store: Store) -> None:
    state = say(graph(StoreSaver(InMemorySaver(), store)), "a", "b")
    assert view(store) == state
    assert stored(store) == ["a", "re a", "b", "re b"]
    assert kinds(store) == []
    assert not store.audit.verify("k").findings


def test_a_graph_that_awaits_stores_the_same(url: str) -> None:
    async def run() -> list[Any]:
        async with AsyncStore.open(url) as store:
            saver = StoreSaver(InMemorySaver(), store)
            app = graph(saver)
            for text in ("a", "b"):
                await app.ainvoke({"messages": [HumanMessage(text)]}, K)
            with pytest.raises(InvalidInput, match="store must be a Store for the methods without await"):
                app.invoke({"messages": []}, K)
            await app.aupdate_state(K, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]})
            return [(await app.aget_state(K)).values["messages"], (await store.view("k")).messages]

    assert asyncio.run(run()) == [[], []]
    with Store.open(url) as store:
        assert stored(store) == ["a", "re a", "b", "re b"]
        assert kinds(store) == ["rewind"]


@pytest.mark.parametrize(
    ("gone", "kind"),
    [([0], "adoption"), ([1, 2], "adoption"), ([0, 2], "adoption"), ([3], "rewind"), ([2, 3], "rewind")],
)
def test_removed_messages_leave_the_view_and_stay(store: Store, gone: list[int], kind: str) -> None:
    app = graph(StoreSaver(InMemorySaver(), store, actor="agent"))
    state = say(app, "a", "b")
    app.update_state(K, {"messages": [RemoveMessage(id=state[place].id) for place in gone]})
    left = app.get_state(K).values["messages"]
    assert left == [message for place, message in enumerate(state) if place not in gone]
    assert view(store) == left
    assert stored(store) == ["a", "re a", "b", "re b"]
    assert set(kinds(store)) == {kind}
    record = next(iter(store.compactions("k")))
    assert record.actor == "agent"
    assert record.reason == f"checkpoint {app.get_state(K).config['configurable']['checkpoint_id']}"
    say(app, "c")
    assert view(store) == app.get_state(K).values["messages"]
    assert not store.audit.verify("k").findings


def test_all_messages_are_removed_and_the_thread_goes_on(store: Store) -> None:
    app = graph(StoreSaver(InMemorySaver(), store))
    state = say(app, "a", "b")
    app.update_state(K, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("s"), *state[2:]]})
    assert texts(view(store)) == ["s", "b", "re b"]
    assert kinds(store) == ["adoption"]
    app.update_state(K, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]})
    assert view(store) == []
    assert texts(say(app, "c")) == ["c", "re c"] == texts(view(store))
    assert stored(store) == ["a", "re a", "b", "re b", "c", "re c"]


def test_an_edited_message_keeps_its_original(store: Store) -> None:
    app = graph(StoreSaver(InMemorySaver(), store))
    state = say(app, "a", "b")
    app.update_state(K, {"messages": [HumanMessage("A", id=state[0].id)]})
    assert texts(view(store)) == ["A", "re a", "b", "re b"]
    app.update_state(K, {"messages": [AIMessage("RE B", id=state[3].id)]})
    assert texts(view(store)) == ["A", "re a", "b", "RE B"] == texts(app.get_state(K).values["messages"])
    assert stored(store) == ["a", "re a", "b", "re b", "RE B"]


def test_calls_and_results_and_system_messages_are_kept_in_order(store: Store) -> None:
    app = graph(StoreSaver(InMemorySaver(), store), lambda _state: {"messages": []})
    call = {"name": "f", "args": {"x": 1}, "id": "t", "type": "tool_call"}
    given: list[BaseMessage] = [
        SystemMessage("be brief", id="1"), HumanMessage("a", id="2"), AIMessage("", tool_calls=[call], id="3"),
        ToolMessage("r", tool_call_id="t", artifact={1, 2}, id="4"), AIMessage("done", id="5"),
    ]  # fmt: skip
    app.invoke({"messages": given}, K)
    assert texts(view(store)) == texts(given)
    app.update_state(K, {"messages": [RemoveMessage(id="3"), RemoveMessage(id="4")]})
    assert texts(view(store)) == ["be brief", "a", "done"]
    app.update_state(K, {"messages": [SystemMessage("be long", id="1")]})
    assert texts(view(store)) == ["be long", "a", "done"]
    assert [type(message) for message in view(store)] == [SystemMessage, HumanMessage, AIMessage]
    assert not store.audit.verify("k").findings


# ---- time travel


def test_an_older_checkpoint_is_a_rewind_and_going_back_appends_again(store: Store) -> None:
    app = graph(StoreSaver(InMemorySaver(), store))
    say(app, "a", "b")
    first = app.get_state(K).config
    older = next(s.config for s in app.get_state_history(K) if texts(s.values.get("messages", [])) == ["a", "re a"])
    branch = say(app, "c", config=older)
    assert texts(branch) == ["a", "re a", "c", "re c"]
    assert view(store) == branch
    assert kinds(store) == ["rewind"]
    before = store.compaction("k", 1).pos - 1
    assert texts([from_payload(p) for p in store.view("k", at=before).messages if p]) == ["a", "re a", "b", "re b"]
    back = say(app, "d", config=first)
    assert texts(back) == ["a", "re a", "b", "re b", "d", "re d"]
    assert view(store) == back
    assert stored(store) == ["a", "re a", "b", "re b", "c", "re c", "b", "re b", "d", "re d"]
    assert not store.audit.verify("k").findings


def test_going_back_to_before_a_summary_shows_the_messages_again(store: Store) -> None:
    app = graph(StoreSaver(InMemorySaver(), store))
    state = say(app, "a", "b")
    older = app.get_state(K).config
    summary = HumanMessage("They said a.", additional_kwargs={"lc_source": "summarization"})
    app.update_state(K, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), summary, *state[2:]]})
    assert texts(view(store)) == ["They said a.", "b", "re b"]
    assert texts(say(app, "c", config=older)) == ["a", "re a", "b", "re b", "c", "re c"] == texts(view(store))
    assert stored(store) == ["a", "re a", "b", "re b", "c", "re c"]
    assert not store.audit.verify("k").findings


# ---- beside the store's own verbs


def test_a_compaction_of_the_store_stands_for_the_messages_that_the_state_still_has(store: Store) -> None:
    app = graph(StoreSaver(InMemorySaver(), store))
    say(app, "a", "b", "c")
    store.compact("k", lambda ctx: ctx.compact(1, 4, "They said a and b."))
    state = say(app, "d")
    assert len(state) == 8
    assert len(view(store)) == 5
    again = graph(StoreSaver(app.checkpointer.inner, store))
    say(again, "e")
    assert len(view(store)) == 7
    assert stored(store) == [text for each in "abcde" for text in (each, f"re {each}")]
    again.update_state(K, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("s"), *state[6:]]})
    assert texts(view(store)) == ["s", "d", "re d"]
    assert not store.audit.verify("k").findings


def test_an_erased_message_does_not_come_back(store: Store) -> None:
    saver = InMemorySaver()
    say(graph(StoreSaver(saver, store)), "secret", "b")
    store.custody.redact("k", 1, reason="asked for")
    say(graph(StoreSaver(saver, store)), "c")
    assert stored(store) == ["re secret", "b", "re b", "c", "re c"]
    assert texts(view(store)) == [ERASED, "re secret", "b", "re b", "c", "re c"]


def test_another_writers_message_is_not_in_the_state(store: Store) -> None:
    app = graph(StoreSaver(InMemorySaver(), store))
    say(app, "a")
    store.append("k", {"role": "user", "content": "by hand"})
    say(app, "b")
    assert texts(view(store)) == ["a", "re a", "b", "re b"]
    assert stored(store) == ["a", "re a", "by hand", "b", "re b"]


# ---- threads


def test_a_deleted_thread_is_hidden_or_erased(store: Store) -> None:
    saver = StoreSaver(InMemorySaver(), store)
    app = graph(saver)
    say(app, "a")
    saver.delete_thread("k")
    assert app.get_state(K).values == {}
    assert list(store.threads()) == []
    assert stored(store) == ["a", "re a"]
    assert texts(say(app, "b")) == ["b", "re b"] == texts(view(store))
    erasing = StoreSaver(InMemorySaver(), store, on_delete="erase")
    erasing.delete_thread("k")
    erasing.delete_thread("unknown")
    assert texts(say(graph(erasing), "c")) == ["c", "re c"] == texts(view(store))
    assert stored(store) == ["c", "re c"]


class Copying(InMemorySaver):  # type: ignore[misc]  # the framework is an extra
    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        found = self.get_tuple({"configurable": {"thread_id": source_thread_id}})
        about: Any = {"configurable": {"thread_id": target_thread_id, "checkpoint_ns": ""}}
        self.put(about, found.checkpoint, found.metadata, found.checkpoint["channel_versions"])


def test_a_copied_thread_is_a_fork(store: Store) -> None:
    saver = StoreSaver(Copying(), store)
    app = graph(saver)
    say(app, "a")
    saver.copy_thread("k", "l")
    app.invoke({"messages": [HumanMessage("b")]}, {"configurable": {"thread_id": "l"}})
    assert (stored(store), stored(store, "l")) == (["a", "re a"], ["a", "re a", "b", "re b"])
    assert not store.audit.verify("l").findings


def test_optional_methods_are_those_of_the_inner_checkpointer(store: Store) -> None:
    plain, copying = StoreSaver(InMemorySaver(), store), StoreSaver(Copying(), store)
    assert type(plain).copy_thread is BaseCheckpointSaver.copy_thread
    assert type(plain).prune is BaseCheckpointSaver.prune
    assert type(copying).copy_thread is StoreSaver.copy_thread
    assert isinstance(plain, StoreSaver)
    assert type(StoreSaver(InMemorySaver(), store)) is type(plain)
    clone = plain.with_allowlist([("a", "B")])
    assert type(clone) is type(plain)
    assert clone.store is store


def test_other_values_and_subgraphs_are_left_alone(store: Store) -> None:
    saver = StoreSaver(InMemorySaver(), store)
    for namespace, value in (("", "text"), ("", ["a"]), ("sub", [HumanMessage("x")])):
        checkpoint = empty_checkpoint() | {"channel_values": {"messages": value}, "channel_versions": {"messages": 1}}
        about: Any = {"configurable": {"thread_id": "k", "checkpoint_ns": namespace}}
        saver.put(about, checkpoint, {}, {"messages": 1})
    assert list(store.threads()) == []


def test_a_message_that_the_store_refuses_is_not_put(store: Store) -> None:
    app = graph(StoreSaver(InMemorySaver(), store))
    long: Any = {"configurable": {"thread_id": "k" * 5_000}}
    with pytest.raises(InvalidInput, match="thread_id"):
        app.invoke({"messages": [HumanMessage("a")]}, long)
    assert "messages" not in app.checkpointer.inner.get_tuple(long).checkpoint["channel_values"]


# ---- any sequence of changes


@pytest.mark.parametrize("seed", range(12))
def test_the_view_is_the_state_after_any_changes(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    saver = InMemorySaver()
    app = graph(StoreSaver(saver, store))
    originals: list[Any] = []
    for step in range(12):
        if chance.random() < 0.3:
            app = graph(StoreSaver(saver, store))
        state = app.get_state(K).values.get("messages", [])
        kind = chance.choice(["say", "say", "remove", "edit", "summarize", "keep some", "travel"])
        config = K
        if kind == "travel" and (past := [s.config for s in app.get_state_history(K)]):
            config = chance.choice(past)
        if kind in {"say", "travel"} or not state:
            say(app, f"{step}", config=config)
        elif kind == "remove":
            gone = chance.sample(state, chance.randint(1, len(state)))
            app.update_state(K, {"messages": [RemoveMessage(id=message.id) for message in gone]})
        elif kind == "edit":
            app.update_state(K, {"messages": [HumanMessage(f"edit {step}", id=chance.choice(state).id)]})
        else:
            kept = (
                state[chance.randint(1, len(state)) :] if kind == "summarize" else chance.sample(state, len(state) // 2)
            )
            summary = HumanMessage(f"summary {step}", additional_kwargs={"lc_source": "summarization"})
            app.update_state(K, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), summary, *kept]})
        state = app.get_state(K).values["messages"]
        assert view(store) == state, (step, kind)
        assert stored(store)[: len(originals)] == originals
        originals = stored(store)
    assert not store.audit.verify("k").findings


# ---- another process

_FIRST = """
import os, sys
from test_langgraph import *
from langgraph.checkpoint.base import BaseCheckpointSaver

store = Store.open(sys.argv[1])
app = graph(StoreSaver(InMemorySaver(), store, actor="agent"))
state = say(app, *(f"question {n}" for n in range(6)))
summary = HumanMessage("They asked.", additional_kwargs={"lc_source": "summarization"})
app.update_state(K, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), summary, *state[8:]]})
os._exit(7)
"""


def test_every_original_is_there_after_a_compaction_and_the_end_of_the_process(url: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", _FIRST, url], env=environment, check=False)
    assert run.returncode == 7
    with Store.open(url) as store:
        wanted = [text for n in range(6) for text in (f"question {n}", f"re question {n}")]
        assert stored(store) == wanted
        assert texts(view(store)) == ["They asked.", *wanted[8:]]
        [record] = store.compactions("k")
        assert (record.kind, record.start_seq, record.end_seq, record.actor) == ("adoption", 1, 8, "agent")
        before = store.view("k", at=record.pos - 1)
        assert [payload and payload["content"] for payload in before.messages] == wanted
        assert not store.audit.verify("k").findings
        store.revoke("k", record.number)
        assert texts(view(store)) == wanted


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"inner": 3}, "inner must be a BaseCheckpointSaver, not int"),
        ({"store": 3}, "store must be a Store or an AsyncStore, not int"),
        ({"on_delete": "drop"}, "on_delete must be one of"),
        ({"actor": ""}, "actor"),
    ],
)
def test_bad_arguments_are_refused(store: Store, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        StoreSaver(**{"inner": InMemorySaver(), "store": store, **options})


def test_a_thread_whose_view_a_newer_release_has_changed_is_not_shown(
    store: Store, superuser: psycopg.Connection[Any]
) -> None:
    app = graph(StoreSaver(InMemorySaver(), store))
    say(app, "a")
    change_views(superuser, "k")
    for saver in (app.checkpointer, StoreSaver(InMemorySaver(), store)):
        with pytest.raises(UnknownEntry):
            say(graph(saver), "b")
        with pytest.raises(UnknownEntry):
            saver.delete_thread("k")
        with pytest.raises(UnknownEntry):
            saver._drive(saver._copied("k", "copy"))
    assert stored(store) == ["a", "re a"]
