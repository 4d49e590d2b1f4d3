"""A graph whose process is killed between a summary and its next node, with checkpoints and threads in Postgres."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from compaction_store import Store
from compaction_store.adapters.langgraph import StoreSaver

CONFIG: Any = {"configurable": {"thread_id": "trip"}}
QUESTIONS = [f"question {n}" for n in range(5)]
ORIGINALS = [text for each in QUESTIONS for text in (each, f"re {each}")]


def _graph(saver: Any, *, waits: bool) -> Any:
    """A graph that summarizes all but the last two of more than eight messages, and then answers."""

    def summarize(state: MessagesState) -> dict[str, Any]:
        if len(state["messages"]) <= 8:
            return {}
        summary = HumanMessage("They asked.", additional_kwargs={"lc_source": "summarization"})
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), summary, *state["messages"][-2:]]}

    def answer(state: MessagesState) -> dict[str, Any]:
        if waits and any(message.content == "They asked." for message in state["messages"]):
            print("in the middle", flush=True)  # noqa: T201
            signal.pause()
        return {"messages": [AIMessage(f"re {state['messages'][-1].content}")]}

    builder = StateGraph(MessagesState).add_node("summarize", summarize).add_node("answer", answer)
    return builder.add_edge(START, "summarize").add_edge("summarize", "answer").compile(checkpointer=saver)


def _shown(store: Store, at: int | None = None) -> list[str]:
    return [message["content"] for message in store.view("trip", at=at).messages]


def _replayed(store: Store) -> list[str]:
    return [message.payload["content"] for message in store.replay("trip") if message.payload is not None]


def run(url: str) -> None:
    """Asks until the process is killed."""
    with Store.open(url) as store, PostgresSaver.from_conn_string(url) as inner:
        inner.setup()
        app = _graph(StoreSaver(inner, store, actor="agent"), waits=True)
        for question in QUESTIONS:
            app.invoke({"messages": [HumanMessage(question)]}, CONFIG, durability="sync")


def test_a_killed_graph_goes_on_and_every_original_is_replayed_viewed_and_verified(url: str) -> None:
    program = f"import {__name__.rpartition('.')[2]} as module, sys; module.run(sys.argv[1])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program, url], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL

    with Store.open(url) as store, PostgresSaver.from_conn_string(url) as inner:
        assert _replayed(store) == ORIGINALS[:9]
        assert _shown(store) == ["They asked.", *ORIGINALS[7:9]]
        [record] = store.compactions("trip")
        assert (record.kind, record.start_seq, record.end_seq, record.actor) == ("adoption", 1, 7, "agent")
        assert _shown(store, at=record.pos - 1) == ORIGINALS[:9]
        assert not store.audit.verify("trip").findings

        # The graph goes on where it was killed.
        app = _graph(StoreSaver(inner, store, actor="agent"), waits=False)
        assert app.get_state(CONFIG).next == ("answer",)
        app.invoke(None, CONFIG)
        assert _replayed(store) == ORIGINALS
        assert _shown(store) == ["They asked.", *ORIGINALS[7:]]

        # Back to before the summary, and another question from there.
        past = next(each for each in app.get_state_history(CONFIG) if len(each.values["messages"]) == 8)
        app.invoke({"messages": [HumanMessage("Or by train?")]}, past.config)
        assert _replayed(store)[:10] == ORIGINALS
        kept = [message.content for message in app.get_state(CONFIG).values["messages"]]
        assert _shown(store) == kept
        assert kept[-1] == "re Or by train?"
        assert _shown(store, at=record.pos - 1) == ORIGINALS[:9]
        assert not store.audit.verify("trip").findings
