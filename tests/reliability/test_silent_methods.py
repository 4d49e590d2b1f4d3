"""Every public method that asks the server ends within its deadline and a second when nothing comes back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.models import Outline
from reliability.rigs.proxy import Proxy
from reliability.test_silence import DEADLINE, HI, in_time

KEY = cs.SigningKey.from_bytes("example.org/audit", bytes(range(32)))
BUDGET = cs.TokenBudget(10)


class Given(NamedTuple):
    """What the methods need, read before the silence."""

    record: cs.Compaction
    view: cs.View
    outline: Outline
    bundle: list[bytes]
    log: cs.CheckpointLog


def _fold(ctx: cs.CompactionContext) -> None:
    ctx.compact(4, 5, "x")


def _turn(store: Face) -> None:
    """Asks for a turn and gives it back."""
    turn = store.store.turn("t", wait=0)
    if store.runner is None:
        with turn:
            pass
    else:

        async def take() -> None:
            async with turn:
                pass

        store.runner.run(take())


CALLS: dict[str, Callable[[Face, Given], Any]] = {
    "adopt": lambda s, g: s.adopt("t", [HI], view=g.view),
    "append": lambda s, _: s.append("t", HI),
    "checkpoint": lambda s, g: s.checkpoint(KEY, g.log),
    "clear": lambda s, _: s.clear("t"),
    "compact": lambda s, _: s.compact("t", _fold),
    "compare": lambda s, _: s.compare("t"),
    "compaction": lambda s, _: s.compaction("t", 1),
    "compactions": lambda s, _: list(s.compactions()),
    "due": lambda s, _: list(s.due(BUDGET)),
    "elements": lambda s, g: s.elements("t", g.outline.parts[:1]),
    "erase": lambda s, _: s.erase("t", reason="asked"),
    "events": lambda s, _: list(s.events()),
    "explain": lambda s, _: s.explain("t", 1),
    "export": lambda s, _: list(s.export("t")),
    "fit": lambda s, _: s.fit("t", BUDGET, _fold),
    "fork": lambda s, _: s.fork("t", "u"),
    "hold": lambda s, _: s.hold("t", reason="asked"),
    "import_bundle": lambda s, g: s.import_bundle(g.bundle),
    "load": lambda s, _: s.load("t", [HI] * 3, key="k", tokens=1),
    "load_threads": lambda s, _: list(s.load_threads([("u", [HI])], key="k", tokens=1)),
    "message": lambda s, _: s.message("t", 1),
    "names_of": lambda s, g: s.names_of([g.record.thread_uid]),
    "neighbours": lambda s, _: s.neighbours("t", 1),
    "originals": lambda s, g: list(s.originals(g.record)),
    "outline": lambda s, _: s.outline("t"),
    "plan": lambda s, _: s.plan("t", _fold),
    "record_evaluation": lambda s, _: s.record_evaluation("t", {"x": 1}, reason="asked"),
    "redact": lambda s, _: s.redact("t", 1, reason="asked"),
    "release": lambda s, _: s.release("t", reason="asked"),
    "repair": lambda s, _: s.repair("t", 1, "shorter"),
    "replay": lambda s, _: list(s.replay("t")),
    "retain": lambda s, _: s.retain("t", datetime(2040, 1, 1, tzinfo=UTC), reason="asked"),
    "review": lambda s, _: s.review("t", 1, "good"),
    "revoke": lambda s, _: s.revoke("t", 1),
    "rewind": lambda s, _: s.rewind("t", 4),
    "sample": lambda s, _: s.sample(1),
    "search": lambda s, _: list(s.search("hi")),
    "seen_by": lambda s, _: s.seen_by("t", 5),
    "send": lambda s, _: s.send("t", lambda _view: HI, BUDGET, _fold),
    "set_metadata": lambda s, _: s.set_metadata("t", {"a": 1}),
    "tenants": lambda s, _: list(s.tenants()),
    "thread": lambda s, _: s.thread("t"),
    "threads": lambda s, _: list(s.threads()),
    "token_steps": lambda s, _: s.token_steps("t"),
    "tree": lambda s, g: s.tree(g.record),
    "turn": lambda s, _: _turn(s),
    "verify": lambda s, _: s.verify("t"),
    "verify_all": lambda s, _: list(s.verify_all()),
    "view": lambda s, _: s.view("t"),
}
# They ask the server nothing.
_QUIET = {"close", "counter", "of_tenant", "on_compact", "open", "tenant"}


def test_every_public_method_is_tried() -> None:
    assert {name for name in dir(cs.Store) if not name.startswith("_")} - _QUIET == set(CALLS)


@pytest.fixture
def given(url: str, tmp_path: Path) -> Given:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": "word " * 30}] * 5)
        store.compact("t", lambda ctx: ctx.compact(1, 3, "three"))
        store.append("v", HI)
        bundle = list(store.export("v"))
        log = cs.CheckpointLog(tmp_path / "log", KEY.key)
        return Given(store.compaction("t", 1), store.view("t"), store.outline("t"), bundle, log)


@pytest.mark.one_server("the silent way leads to one server")
@pytest.mark.parametrize("name", CALLS)
def test_a_method_ends_with_its_deadline(faces: Faces, way: Proxy, given: Given, name: str) -> None:
    store = faces.open(way.url, deadline=DEADLINE)
    way.hush()
    with in_time(), pytest.raises((cs.DatabaseUnavailable, cs.OutcomeUnknown)):
        CALLS[name](store, given)
