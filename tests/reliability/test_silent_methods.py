"""Every public method that asks the server ends within its deadline and a second when nothing comes back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.faces import Face, Faces, methods

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
    "audit.checkpoint": lambda s, g: s.audit.checkpoint(KEY, g.log),
    "clear": lambda s, _: s.clear("t"),
    "compact": lambda s, _: s.compact("t", _fold),
    "audit.compare": lambda s, _: s.audit.compare("t"),
    "compaction": lambda s, _: s.compaction("t", 1),
    "compactions": lambda s, _: list(s.compactions()),
    "due": lambda s, _: list(s.due(BUDGET)),
    "audit.counts": lambda s, _: s.audit.counts(),
    "audit.elements": lambda s, g: s.audit.elements("t", g.outline.parts[:1]),
    "custody.apply_retention": lambda s, _: list(s.custody.apply_retention(older_than=timedelta(days=9))),
    "custody.erase": lambda s, _: s.custody.erase("t", reason="asked"),
    "custody.erase_subject": lambda s, _: list(s.custody.erase_subject("person", reason="asked")),
    "audit.events": lambda s, _: list(s.audit.events()),
    "audit.explain": lambda s, _: s.audit.explain("t", 1),
    "audit.export": lambda s, _: list(s.audit.export("t")),
    "audit.feed": lambda s, _: list(s.audit.feed()),
    "audit.figures": lambda s, _: s.audit.figures(since=datetime(2026, 1, 1, tzinfo=UTC)),
    "fit": lambda s, _: s.fit("t", BUDGET, _fold),
    "fork": lambda s, _: s.fork("t", "u"),
    "custody.hold": lambda s, _: s.custody.hold("t", reason="asked"),
    "load.bundle": lambda s, g: s.load.bundle(g.bundle),
    "load.messages": lambda s, _: s.load.messages("t", [HI] * 3, key="k", tokens=1),
    "load.threads": lambda s, _: list(s.load.threads([("u", [HI])], key="k", tokens=1)),
    "leases": lambda s, _: s.leases(BUDGET),
    "message": lambda s, _: s.message("t", 1),
    "audit.names_of": lambda s, g: s.audit.names_of([g.record.thread_uid]),
    "audit.entries": lambda s, _: s.audit.entries("t"),
    "audit.neighbours": lambda s, _: s.audit.neighbours("t", 1),
    "audit.originals": lambda s, g: list(s.audit.originals(g.record)),
    "audit.outline": lambda s, _: s.audit.outline("t"),
    "plan": lambda s, _: s.plan("t", _fold),
    "audit.record_evaluation": lambda s, _: s.audit.record_evaluation("t", {"x": 1}, reason="asked"),
    "audit.record_verification": lambda s, _: s.audit.record_verification(level="content", threads=1, findings=0),
    "custody.redact": lambda s, _: s.custody.redact("t", 1, reason="asked"),
    "custody.release": lambda s, _: s.custody.release("t", reason="asked"),
    "custody.remove_tenant": lambda s, _: s.custody.remove_tenant(KEY, reason="asked"),
    "repair": lambda s, _: s.repair("t", 1, "shorter"),
    "replay": lambda s, _: list(s.replay("t")),
    "custody.retention_rule": lambda s, _: s.custody.retention_rule(),
    "custody.retain": lambda s, _: s.custody.retain("t", datetime(2040, 1, 1, tzinfo=UTC), reason="asked"),
    "audit.review": lambda s, _: s.audit.review("t", 1, "good"),
    "revoke": lambda s, _: s.revoke("t", 1),
    "rewind": lambda s, _: s.rewind("t", 4),
    "audit.sample": lambda s, _: s.audit.sample(1),
    "audit.search": lambda s, _: list(s.audit.search("hi")),
    "seen_by": lambda s, _: s.seen_by("t", 5),
    "send": lambda s, _: s.send("t", lambda _view: HI, BUDGET, _fold),
    "custody.set_retention": lambda s, _: s.custody.set_retention(older_than=timedelta(days=9), reason="asked"),
    "custody.set_subject": lambda s, _: s.custody.set_subject("t", "person"),
    "set_metadata": lambda s, _: s.set_metadata("t", {"a": 1}),
    "audit.tenants": lambda s, _: list(s.audit.tenants()),
    "thread": lambda s, _: s.thread("t"),
    "threads": lambda s, _: list(s.threads()),
    "audit.token_steps": lambda s, _: s.audit.token_steps("t"),
    "audit.tree": lambda s, g: s.audit.tree(g.record),
    "turn": lambda s, _: _turn(s),
    "audit.verify": lambda s, _: s.audit.verify("t"),
    "audit.verify of all": lambda s, _: list(s.audit.verify()),
    "audit.verify_entry": lambda s, _: s.audit.verify_entry("t", seq=1),
    "audit.verify_schema": lambda s, _: s.audit.verify_schema(),
    "view": lambda s, _: s.view("t"),
}
# They ask the server nothing, and nor does `shred` without keys.
_QUIET = {"close", "counter", "of_tenant", "on_compact", "on_recorded", "open", "tenant", "custody.shred"}


def test_every_public_method_is_tried() -> None:
    assert set(methods(cs.Store)) - _QUIET == set(CALLS) - {"audit.verify of all"}


@pytest.fixture
def given(url: str, tmp_path: Path) -> Given:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": "word " * 30}] * 5)
        store.compact("t", lambda ctx: ctx.compact(1, 3, "three"))
        store.append("v", HI)
        bundle = list(store.audit.export("v"))
        log = cs.CheckpointLog(tmp_path / "log", KEY.key)
        return Given(store.compaction("t", 1), store.view("t"), store.audit.outline("t"), bundle, log)


@pytest.mark.one_server("the silent way leads to one server")
@pytest.mark.parametrize("name", CALLS)
def test_a_method_ends_with_its_deadline(faces: Faces, way: Proxy, given: Given, name: str) -> None:
    store = faces.open(way.url, deadline=DEADLINE)
    way.hush()
    with in_time(), pytest.raises((cs.DatabaseUnavailable, cs.OutcomeUnknown)):
        CALLS[name](store, given)
