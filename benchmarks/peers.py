"""The same work by the stores that people use now, in one interleaved run on one server. Those not installed are left
out.

Each appends single messages to a short thread and to one of ten thousand, loads that one whole, and reads its newest
twenty where it has a way to do so. Ratios are to plain psycopg.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import psycopg
import sqlalchemy as sa

from benchmarks.__main__ import database
from compaction_store import AsyncStore, Store, migrate

ROUNDS = 4
LENGTH = 10_000
APPENDS = 40
Item = dict[str, str]


class Peer(Protocol):
    name: str

    def fill(self, thread: str, items: list[Item]) -> None: ...

    def append(self, thread: str, item: Item) -> None: ...

    def load(self, thread: str) -> int: ...

    def newest(self, thread: str, count: int) -> int | None:
        """How many were read; None where there is no way but reading everything."""


class Raw:
    name = "psycopg"

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(
            "CREATE TABLE peers_raw (thread_id text, seq bigint GENERATED ALWAYS AS IDENTITY, role text, payload json,"
            " created_at timestamptz DEFAULT now(), PRIMARY KEY (thread_id, seq))"
        )

    def fill(self, thread: str, items: list[Item]) -> None:
        with (
            self.connection.cursor() as cursor,
            cursor.copy("COPY peers_raw (thread_id, role, payload) FROM STDIN") as copy,
        ):
            for item in items:
                copy.write_row((thread, item["role"], json.dumps(item)))

    def append(self, thread: str, item: Item) -> None:
        self.connection.execute(
            "INSERT INTO peers_raw (thread_id, role, payload) VALUES (%s, %s, %s)",
            (thread, item["role"], json.dumps(item)),
        )

    def load(self, thread: str) -> int:
        query = "SELECT payload::text FROM peers_raw WHERE thread_id = %s ORDER BY seq"
        return len([json.loads(text) for (text,) in self.connection.execute(query, (thread,))])

    def newest(self, thread: str, count: int) -> int:
        query = "SELECT payload::text FROM peers_raw WHERE thread_id = %s ORDER BY seq DESC LIMIT %s"
        return len([json.loads(text) for (text,) in self.connection.execute(query, (thread, count))])


class Ours:
    name = "compaction-store"

    def __init__(self, url: str) -> None:
        self.store = Store.open(url)

    def fill(self, thread: str, items: list[Item]) -> None:
        self.store.load(thread, items)

    def append(self, thread: str, item: Item) -> None:
        self.store.append(thread, item)

    def load(self, thread: str) -> int:
        return len([m.payload for m in self.store.replay(thread)])

    def newest(self, thread: str, count: int) -> int:
        return len(list(self.store.replay(thread, last=count)))


class OursAsync:
    name = "compaction-store, async"

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.store = self.runner.run(AsyncStore.open(url))

    def fill(self, thread: str, items: list[Item]) -> None:
        self.runner.run(self._fill(thread, items))

    async def _fill(self, thread: str, items: list[Item]) -> None:
        await self.store.load(thread, items)

    def append(self, thread: str, item: Item) -> None:
        self.runner.run(self._append(thread, item))

    async def _append(self, thread: str, item: Item) -> None:
        await self.store.append(thread, item)

    def load(self, thread: str) -> int:
        return self.runner.run(self._count(thread, None))

    def newest(self, thread: str, count: int) -> int:
        return self.runner.run(self._count(thread, count))

    async def _count(self, thread: str, last: int | None) -> int:
        return len([m.payload async for m in self.store.replay(thread, last=last)])


class LangChain:
    name = "langchain-postgres"

    def __init__(self, url: str) -> None:
        from langchain_postgres import PostgresChatMessageHistory  # noqa: PLC0415

        self.connection = psycopg.connect(url, autocommit=True)
        PostgresChatMessageHistory.create_tables(self.connection, "peers_langchain")

    def _of(self, thread: str) -> Any:
        from langchain_postgres import PostgresChatMessageHistory  # noqa: PLC0415

        session = str(uuid.uuid5(uuid.NAMESPACE_OID, thread))
        return PostgresChatMessageHistory("peers_langchain", session, sync_connection=self.connection)

    def _message(self, item: Item) -> Any:
        from langchain_core.messages import AIMessage, HumanMessage  # noqa: PLC0415

        return (AIMessage if item["role"] == "assistant" else HumanMessage)(item["content"])

    def fill(self, thread: str, items: list[Item]) -> None:
        self._of(thread).add_messages([self._message(item) for item in items])

    def append(self, thread: str, item: Item) -> None:
        self._of(thread).add_messages([self._message(item)])

    def load(self, thread: str) -> int:
        return len(self._of(thread).get_messages())

    def newest(self, thread: str, count: int) -> None:  # noqa: ARG002 — there is none
        return None


class Agents:
    name = "openai-agents"

    def __init__(self, url: str) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

        self.runner = asyncio.Runner()
        self.engine = create_async_engine(sa.make_url(url).set(drivername="postgresql+psycopg"))
        self.made = False

    def _of(self, thread: str) -> Any:
        from agents.extensions.memory import SQLAlchemySession  # noqa: PLC0415

        made, self.made = self.made, True
        return SQLAlchemySession(thread, engine=self.engine, create_tables=not made)

    def fill(self, thread: str, items: list[Item]) -> None:
        self.runner.run(self._of(thread).add_items(items))

    def append(self, thread: str, item: Item) -> None:
        self.runner.run(self._of(thread).add_items([item]))

    def load(self, thread: str) -> int:
        return len(self.runner.run(self._of(thread).get_items()))

    def newest(self, thread: str, count: int) -> int:
        return len(self.runner.run(self._of(thread).get_items(limit=count)))


class LangGraph:
    name = "langgraph-checkpoint"

    def __init__(self, url: str) -> None:
        from langgraph.checkpoint.postgres import PostgresSaver  # noqa: PLC0415
        from langgraph.graph import START, MessagesState, StateGraph  # noqa: PLC0415
        from psycopg.rows import dict_row  # noqa: PLC0415

        connection = psycopg.connect(url, autocommit=True, prepare_threshold=0, row_factory=dict_row)
        saver = PostgresSaver(connection)
        saver.setup()
        graph: Any = StateGraph(MessagesState)
        graph.add_node("model", lambda _state: {})
        graph.add_edge(START, "model")
        self.graph = graph.compile(checkpointer=saver)

    def _config(self, thread: str) -> Any:
        return {"configurable": {"thread_id": thread}}

    def fill(self, thread: str, items: list[Item]) -> None:
        self.graph.update_state(self._config(thread), {"messages": items}, as_node="model")

    def append(self, thread: str, item: Item) -> None:
        self.graph.update_state(self._config(thread), {"messages": [item]}, as_node="model")

    def load(self, thread: str) -> int:
        return len(self.graph.get_state(self._config(thread)).values["messages"])

    def newest(self, thread: str, count: int) -> None:  # noqa: ARG002 — there is none
        return None


PEERS: tuple[tuple[str, Callable[[str], Peer]], ...] = (
    ("psycopg", Raw),
    ("compaction_store", Ours),
    ("compaction_store", OursAsync),
    ("langchain_postgres", LangChain),
    ("agents", Agents),
    ("langgraph.checkpoint.postgres", LangGraph),
)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def table(url: str) -> None:
    """Prints one line a store: medians in milliseconds, and in brackets how many times plain psycopg's."""
    peers = [make(url) for module, make in PEERS if _installed(module)]
    items = [
        {"role": "assistant" if i % 2 else "user", "content": "".join(random.choices("abcdefgh ijklmnop ", k=700))}
        for i in range(LENGTH)
    ]
    for peer in peers:
        peer.fill("long", items)
        peer.append("short", items[0])
    jobs: dict[str, Callable[[Peer, Item], object]] = {
        "append": lambda peer, item: peer.append("short", item),
        f"append at {LENGTH:,}": lambda peer, item: peer.append("long", item),
        f"load {LENGTH:,}": lambda peer, _item: peer.load("long"),
        "newest 20": lambda peer, _item: peer.newest("long", 20),
    }
    samples: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for job, run in jobs.items():
            times = APPENDS if job.startswith(("append", "newest")) else 2
            for peer in random.sample(peers, len(peers)):
                slow = isinstance(peer, LangGraph) and job.startswith("append at")
                for i in range(4 if slow else times):
                    start = time.perf_counter()
                    done = run(peer, items[i])
                    if done is not None or not job.startswith("newest"):
                        samples.setdefault((peer.name, job), []).append(time.perf_counter() - start)
    print(f"\n{'':<26}" + "".join(f"{job + ', ms':>24}" for job in jobs))
    for peer in peers:
        cells = []
        for job in jobs:
            if mine := samples.get((peer.name, job)):
                ms = statistics.median(mine) * 1e3
                floor = statistics.median(samples[Raw.name, job]) * 1e3
                cells.append(f"{ms:.2f} ({ms / floor:.1f})")
            else:
                cells.append("-")
        print(f"{peer.name:<26}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


def main() -> None:
    with database(sys.argv[1] if len(sys.argv) > 1 else None) as url:
        migrate.upgrade(url)
        table(url)


if __name__ == "__main__":
    main()
