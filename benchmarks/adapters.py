"""Times each adapter against its framework's own Postgres backend. Frameworks that are not installed are left out.

Both sides make the same calls of the framework. `benchmarks/peers.py` lists the packages to install; the extras of the
adapters are needed too.
"""

# ruff: noqa: PLC0415 — only installed frameworks are imported

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from benchmarks.contest import Bench, Contest, Samples, Side, reading
from benchmarks.corpus import text
from benchmarks.peers import Adk, Agents, Item, LangGraph, version
from benchmarks.rows import Row

_LENGTH = 1_000
_SHORT = 100
APPEND, LOAD, RESUME = "append", f"load {_LENGTH:,}", "resume"


class OurAgents(Agents):
    def __init__(self, bench: Bench) -> None:
        self.store = bench.aio

    def open(self, thread: str) -> Any:
        from compaction_store.adapters.openai_agents import StoreSession

        return StoreSession(f"agents-{thread}", self.store)


class OurAdk(Adk):
    def __init__(self, bench: Bench) -> None:
        from compaction_store.adapters.google_adk import StoreSessionService

        self.runner = bench.runner
        self.service = StoreSessionService(bench.aio)

    def seed(self, thread: str, items: list[Item]) -> Any:
        made = self.open(thread)
        self.runner.run(self.append(made, [self.message(item) for item in items]))
        return made


class OurLangGraph(LangGraph):
    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.inner, self.store = self.graph.checkpointer, bench.store
        self.graph = self.compiled()

    def compiled(self) -> Any:
        from compaction_store.adapters.langgraph import StoreSaver

        return self.graph.copy(update={"checkpointer": StoreSaver(self.inner, self.store)})

    def open(self, thread: str) -> Any:
        return super().open(f"ours-{thread}")

    def anew(self) -> OurLangGraph:
        """Returns an adapter that has not seen any thread yet, as in a new process."""
        found = copy.copy(self)
        found.graph = self.compiled()
        return found


class Pair(NamedTuple):
    """A framework's own backend and the adapter for this store. `limit` names the bottleneck of the adapter."""

    name: str
    packages: tuple[str, ...]
    theirs: Callable[[Bench], Any]
    ours: Callable[[Bench], Any]
    limit: str


_OURS = "Appends: the hashes, the head's row and the count of tokens. Reads: the whole view."
PAIRS = (
    Pair(
        "OpenAI Agents SDK, beside SQLAlchemySession", ("openai-agents",), Agents, OurAgents,
        _OURS,
    ),
    Pair(
        "LangGraph, beside PostgresSaver", ("langgraph", "langgraph-checkpoint-postgres"), LangGraph, OurLangGraph,
        "It calls PostgresSaver too, so it cannot be faster: the store's append is added, and resuming, one view.",
    ),
    Pair(
        "Google ADK, beside DatabaseSessionService", ("google-adk",), Adk, OurAdk,
        f"{_OURS} The state is computed from the view.",
    ),
)  # fmt: skip
_INSTALLED = [pair for pair in PAIRS if all(map(version, pair.packages))]


def _resumed(thread: Any, given: tuple[Any, list[Any]]) -> Any:
    """Reads a thread and appends to it, like a process that did not make the thread."""
    peer, messages = given
    if isinstance(peer, Adk):
        return _resumed_session(peer, thread, messages)
    found = peer.load(thread)
    if inspect.iscoroutine(found):
        return _resumed_later(found, peer, thread, messages)
    return peer.append(thread, messages)


async def _resumed_later(found: Any, peer: Any, thread: Any, messages: list[Any]) -> None:
    await found
    await peer.append(thread, messages)


async def _resumed_session(peer: Adk, thread: Any, messages: list[Any]) -> None:
    # Read the session again, because it is stale after an append.
    session = await peer.service.get_session(app_name="app", user_id="user", session_id=thread.id)
    await peer.append(session, messages)


class Adapters(Contest):
    title = "Adapters, beside the backends of the frameworks"
    name = "adapters"
    rows: ClassVar[Sequence[Row]] = tuple(
        Row(f"{pair.name}: {job}", f"{pair.name}: {job}", pair.limit, over=f"{pair.name}: {job}, theirs")
        for pair in _INSTALLED
        for job in (APPEND, LOAD, RESUME)
    )

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._items: list[Item] = [
            {"role": "assistant" if i % 2 else "user", "content": text(450, 850)} for i in range(_LENGTH)
        ]
        self._pairs = [(pair, self._sides(pair)) for pair in _INSTALLED]
        for _, sides in self._pairs:
            for job in sides.values():
                for side in job.values():
                    bench.timed(side)

    def round(self) -> Mapping[str, Sequence[float]]:
        found: Samples = {}
        for _, jobs in random.sample(self._pairs, len(self._pairs)):
            for job, sides in jobs.items():
                found |= self.interleaved(sides, self.bench.repeats(10 if job == LOAD else 30))
        return found

    def _sides(self, pair: Pair) -> dict[str, dict[str, Side]]:
        jobs: dict[str, dict[str, Side]] = {APPEND: {}, LOAD: {}, RESUME: {}}
        for peer, suffix in ((pair.ours(self.bench), ""), (pair.theirs(self.bench), ", theirs")):
            short, resumed = (self._seeded(peer, name, self._items[:_SHORT]) for name in ("short", "resumed"))
            long = self._seeded(peer, "long", self._items)
            assert len(self._done(peer.load(long))) == _LENGTH, pair.name
            made = partial(self._made, peer)
            jobs[APPEND][f"{pair.name}: {APPEND}{suffix}"] = Side(partial(peer.append, short), made)
            jobs[LOAD][f"{pair.name}: {LOAD}{suffix}"] = reading(partial(peer.load, long))
            jobs[RESUME][f"{pair.name}: {RESUME}{suffix}"] = Side(partial(_resumed, resumed), partial(self._anew, peer))
        return jobs

    def _seeded(self, peer: Any, name: str, items: list[Item]) -> Any:
        if hasattr(peer, "seed"):
            return peer.seed(f"pair-{name}", items)
        thread = peer.open(f"pair-{name}")
        self._done(peer.append(thread, [peer.message(item) for item in items]))
        return thread

    def _anew(self, peer: Any) -> tuple[Any, list[Any]]:
        return (peer.anew() if hasattr(peer, "anew") else peer), self._made(peer)

    def _made(self, peer: Any) -> list[Any]:
        return [peer.message(item) for item in random.sample(self._items, 1)]

    def _done(self, given: Any) -> Any:
        return self.bench.runner.run(given) if inspect.iscoroutine(given) else given
