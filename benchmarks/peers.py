"""Does the same work with other stores, the peers. Those that are not installed are left out.

The peers are the newest versions of langchain-postgres, openai-agents (SQLAlchemySession), google-adk
(DatabaseSessionService), langgraph with langgraph-checkpoint-postgres, and eventsourcing with psycopg-pool. Only the
benchmarks need them:

    pip install langchain-postgres openai-agents google-adk langgraph langgraph-checkpoint-postgres \
        eventsourcing psycopg-pool greenlet

Each peer is used as its documentation shows, on one connection. The objects to append are made before the timing.
"""

# ruff: noqa: PLC0415 — only installed peers are imported

from __future__ import annotations

import importlib.metadata
import json
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import psycopg
import sqlalchemy as sa

from benchmarks.contest import Bench
from compaction_store import AsyncStore, Store

RAW, OURS, OURS_ASYNC = "psycopg", "compaction-store", "compaction-store, async"
Item = dict[str, str]


class Peer(Protocol):
    """A store to compare with this one. Its methods may return awaitables."""

    def message(self, item: Item) -> Any:
        """Makes the object that the peer appends. This is not timed."""

    def open(self, thread: str) -> Any:
        """Makes the object that a program keeps for a thread during a conversation. This is not timed."""

    def append(self, thread: Any, messages: list[Any]) -> Any: ...

    def load(self, thread: Any) -> Any: ...

    # Reads the newest messages of a thread. None if the peer can only read the whole thread.
    newest: Callable[[Any, int], Any] | None


class Raw:
    def __init__(self, bench: Bench) -> None:
        self.connection = bench.raw
        self.connection.execute(
            "CREATE TABLE raw_peer (thread_id text, seq bigint GENERATED ALWAYS AS IDENTITY, role text, payload json,"
            " created_at timestamptz DEFAULT now(), PRIMARY KEY (thread_id, seq))"
        )

    def message(self, item: Item) -> Item:
        return item

    def open(self, thread: str) -> str:
        return thread

    def append(self, thread: str, messages: list[Item]) -> None:
        """Appends in the way that is fastest for that number of messages."""
        rows = [(thread, m["role"], json.dumps(m)) for m in messages]
        insert = "INSERT INTO raw_peer (thread_id, role, payload) VALUES (%s, %s, %s)"
        if len(rows) == 1:
            self.connection.execute(insert, rows[0])
        elif len(rows) <= 100:
            with self.connection.transaction(), self.connection.cursor() as cursor:
                cursor.executemany(insert, rows)
        else:
            with (
                self.connection.cursor() as cursor,
                cursor.copy("COPY raw_peer (thread_id, role, payload) FROM STDIN") as copy,
            ):
                for row in rows:
                    copy.write_row(row)

    def load(self, thread: str) -> list[Any]:
        query = "SELECT payload::text FROM raw_peer WHERE thread_id = %s ORDER BY seq"
        return [json.loads(found) for (found,) in self.connection.execute(query, (thread,))]

    def newest(self, thread: str, count: int) -> list[Any]:
        query = "SELECT payload::text FROM raw_peer WHERE thread_id = %s ORDER BY seq DESC LIMIT %s"
        return [json.loads(found) for (found,) in self.connection.execute(query, (thread, count))]


class Ours:
    def __init__(self, bench: Bench) -> None:
        self.store: Store = bench.store

    def message(self, item: Item) -> Item:
        return item

    def open(self, thread: str) -> str:
        return f"peer-{thread}"

    def append(self, thread: str, messages: list[Item]) -> None:
        if len(messages) > 1000:
            self.store.load.messages(thread, messages)
        else:
            self.store.append(thread, messages)

    def load(self, thread: str) -> list[Any]:
        return [m.payload for m in self.store.replay(thread)]

    def newest(self, thread: str, count: int) -> list[Any]:
        return [m.payload for m in self.store.replay(thread, last=count)]


class OursAsync:
    def __init__(self, bench: Bench) -> None:
        self.store: AsyncStore = bench.aio

    def message(self, item: Item) -> Item:
        return item

    def open(self, thread: str) -> str:
        return f"peer-async-{thread}"

    async def append(self, thread: str, messages: list[Item]) -> None:
        if len(messages) > 1000:
            await self.store.load.messages(thread, messages)
        else:
            await self.store.append(thread, messages)

    async def load(self, thread: str) -> list[Any]:
        return [m.payload async for m in self.store.replay(thread)]

    async def newest(self, thread: str, count: int) -> list[Any]:
        return [m.payload async for m in self.store.replay(thread, last=count)]


class LangChain:
    newest = None

    def __init__(self, bench: Bench) -> None:
        from langchain_postgres import PostgresChatMessageHistory

        self.kind = PostgresChatMessageHistory
        self.connection = bench.stack.enter_context(psycopg.connect(bench.url, autocommit=True))
        self.kind.create_tables(self.connection, "peers_langchain")

    def message(self, item: Item) -> Any:
        from langchain_core.messages import AIMessage, HumanMessage

        return (AIMessage if item["role"] == "assistant" else HumanMessage)(item["content"])

    def open(self, thread: str) -> Any:
        name = str(uuid.uuid5(uuid.NAMESPACE_OID, thread))
        return self.kind("peers_langchain", name, sync_connection=self.connection)

    def append(self, thread: Any, messages: list[Any]) -> None:
        thread.add_messages(messages)

    def load(self, thread: Any) -> list[Any]:
        return list(thread.get_messages())


def _engine(bench: Bench) -> Any:
    """Makes an async engine as these libraries do, with the driver that all other peers use."""
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(sa.make_url(bench.url).set(drivername="postgresql+psycopg"))
    bench.stack.callback(lambda: bench.runner.run(engine.dispose()))
    return engine


class Agents:
    def __init__(self, bench: Bench) -> None:
        from agents.extensions.memory import SQLAlchemySession

        self.kind = SQLAlchemySession
        self.engine = _engine(bench)
        bench.runner.run(self.kind("first", engine=self.engine, create_tables=True).get_items())

    def message(self, item: Item) -> Item:
        return item

    def open(self, thread: str) -> Any:
        return self.kind(thread, engine=self.engine, create_tables=False)

    async def append(self, thread: Any, messages: list[Item]) -> None:
        await thread.add_items(messages)

    async def load(self, thread: Any) -> Any:
        return await thread.get_items()

    async def newest(self, thread: Any, count: int) -> Any:
        return await thread.get_items(limit=count)


class Adk:
    """Keeps a session while events are appended, as ADK's runner does, because a stale session is refused."""

    def __init__(self, bench: Bench) -> None:
        from google.adk.sessions import DatabaseSessionService

        self.runner = bench.runner
        self.service = DatabaseSessionService(db_engine=_engine(bench))

    def message(self, item: Item) -> Any:
        from google.adk.events import Event
        from google.genai.types import Content, Part

        role = "model" if item["role"] == "assistant" else "user"
        return Event(author=role, content=Content(role=role, parts=[Part(text=item["content"])]))

    def open(self, thread: str) -> Any:
        return self.runner.run(self.service.create_session(app_name="app", user_id="user", session_id=thread))

    async def append(self, thread: Any, messages: list[Any]) -> None:
        for event in messages:
            await self.service.append_event(thread, event)

    def seed(self, thread: str, items: list[Item]) -> Any:
        """Makes a long session directly in the tables, because the API would take minutes. This is not timed."""
        made = self.open(thread)

        async def store() -> Any:
            kind = self.service._get_schema_classes().StorageEvent  # noqa: SLF001 — no public method returns it
            async with self.service.database_session_factory() as session:
                session.add_all([kind.from_event(made, self.message(item)) for item in items])
                await session.commit()
            return await self.service.get_session(app_name="app", user_id="user", session_id=thread)

        return self.runner.run(store())

    async def load(self, thread: Any) -> Any:
        found = await self.service.get_session(app_name="app", user_id="user", session_id=thread.id)
        return found.events

    async def newest(self, thread: Any, count: int) -> Any:
        from google.adk.sessions.base_session_service import GetSessionConfig

        found = await self.service.get_session(
            app_name="app", user_id="user", session_id=thread.id, config=GetSessionConfig(num_recent_events=count)
        )
        return found.events


class LangGraph:
    newest = None

    def __init__(self, bench: Bench) -> None:
        from langgraph.checkpoint.postgres import PostgresSaver
        from langgraph.graph import START, MessagesState, StateGraph
        from psycopg.rows import dict_row

        connection = psycopg.connect(bench.url, autocommit=True, prepare_threshold=0, row_factory=dict_row)
        saver = PostgresSaver(bench.stack.enter_context(connection))
        saver.setup()
        graph: Any = StateGraph(MessagesState)
        graph.add_node("model", lambda _state: {})
        graph.add_edge(START, "model")
        self.graph = graph.compile(checkpointer=saver)

    def message(self, item: Item) -> Item:
        return item

    def open(self, thread: str) -> Any:
        return {"configurable": {"thread_id": thread}}

    def append(self, thread: Any, messages: list[Item]) -> None:
        self.graph.update_state(thread, {"messages": messages}, as_node="model")

    def load(self, thread: Any) -> Any:
        return self.graph.get_state(thread).values["messages"]


class EventSourcing:
    """Keeps an aggregate while events are appended, and reads its events back."""

    def __init__(self, bench: Bench) -> None:
        from eventsourcing.application import Application
        from eventsourcing.domain import Aggregate, event

        class Conversation(Aggregate):
            @event("Said")
            def say(self, role: str, content: str) -> None:
                pass

        url = sa.make_url(bench.url)
        self.kind = Conversation
        self.application: Any = Application(
            env={
                "PERSISTENCE_MODULE": "eventsourcing.postgres",
                "POSTGRES_DBNAME": str(url.database),
                "POSTGRES_HOST": str(url.host or url.query.get("host")),
                "POSTGRES_PORT": str(url.port or url.query.get("port") or 5432),
                "POSTGRES_USER": url.username or "postgres",
                "POSTGRES_PASSWORD": str(url.password or ""),
            }
        )
        bench.stack.callback(self.application.close)

    def message(self, item: Item) -> Item:
        return item

    def open(self, thread: str) -> Any:  # noqa: ARG002 — an aggregate makes its own id
        made = self.kind()
        self.application.save(made)
        return made

    def append(self, thread: Any, messages: list[Item]) -> None:
        # Save in parts: a save is one pipeline of the driver, which blocks when the buffer of the socket is full.
        for start in range(0, len(messages), 100):
            for item in messages[start : start + 100]:
                thread.say(item["role"], item["content"])
            self.application.save(thread)

    def load(self, thread: Any) -> list[Any]:
        # Skip the first event, which created the aggregate.
        return list(self.application.events.get(thread.id))[1:]

    def newest(self, thread: Any, count: int) -> list[Any]:
        return list(self.application.events.get(thread.id, desc=True, limit=count))


class Entry(NamedTuple):
    name: str
    package: str
    make: Callable[[Bench], Any]
    # Whether to take fewer samples, because some calls take a second.
    slow: bool = False


ENTRIES = (
    Entry(RAW, "psycopg", Raw),
    Entry(OURS, "compaction-store", Ours),
    Entry(OURS_ASYNC, "compaction-store", OursAsync),
    Entry("langchain-postgres", "langchain-postgres", LangChain),
    Entry("openai-agents", "openai-agents", Agents),
    Entry("google-adk", "google-adk", Adk, slow=True),
    Entry("langgraph-checkpoint", "langgraph-checkpoint-postgres", LangGraph, slow=True),
    Entry("eventsourcing", "eventsourcing", EventSourcing),
)


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
