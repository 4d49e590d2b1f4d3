"""Actors: that of a call, else the store's own; and a store that refuses to write without one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.deploy import roles
from compaction_store.errors import ActorRequired

BUDGET = cs.TokenBudget(1000, trigger=50, target=20)


def fold(ctx: cs.CompactionContext) -> None:
    ctx.compact(ctx.elements[0].seq, ctx.elements[1].end_seq, "Folded.")


def filled(store: Face, thread: str = "t") -> Face:
    store.append(thread, [{"role": "user", "content": f"message {i} " * 9} for i in range(8)])
    return store


def do_everything(store: Face, **who: Any) -> str:
    """Does everything that records an actor; returns the name of the stub."""
    store.compact("t", fold, **who)
    store.fit("t", BUDGET, fold, **who)
    store.revoke("t", 2, **who)
    store.custody.hold("t", reason="claim", **who)
    store.custody.release("t", reason="settled", **who)
    store.custody.retain("t", datetime.now(UTC) - timedelta(days=1), reason="law", **who)
    store.custody.redact("t", 1, reason="asked for", **who)
    stub: str = store.custody.erase("t", reason="asked for", **who).thread_id
    return stub


def recorded(store: Face, stub: str) -> list[cs.Compaction | cs.Event]:
    log, events = list(store.compactions(stub)), list(store.audit.events(stub))
    assert {record.kind for record in log} == {"summary", "revocation"}
    assert {event.kind for event in events} == {"redaction", "hold", "release", "retention"}
    return [*log, *events]


def actors(store: Face, stub: str) -> set[str | None]:
    return {entry.actor for entry in recorded(store, stub)}


def test_the_stores_actor_is_recorded_with_everything(faces: Faces, url: str) -> None:
    store = filled(faces.open(url, actor="agents"))
    stub = do_everything(store)
    assert actors(store, stub) == {"agents"}
    assert store.audit.verify(stub).findings == ()


def test_a_call_may_name_another(faces: Faces, url: str) -> None:
    store = filled(faces.open(url, actor="agents", require_actor=True))
    stub = do_everything(store, actor="anna")
    assert actors(store, stub) == {"anna"}


def test_a_store_that_requires_an_actor_writes_nothing_without_one(faces: Faces, url: str) -> None:
    store = filled(faces.open(url, require_actor=True))
    calls: list[Any] = [
        lambda: store.compact("t", fold), lambda: store.fit("t", BUDGET, fold), lambda: store.revoke("t", 1),
        lambda: store.custody.hold("t", reason="x"), lambda: store.custody.release("t", reason="x"),
        lambda: store.custody.retain("t", datetime.now(UTC), reason="x"),
        lambda: store.custody.redact("t", 1, reason="x"),
        lambda: store.custody.erase("t", reason="x"), lambda: store.fit("t", cs.TokenBudget(100_000), fold),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ActorRequired, match="actor must be given"):
            call()
    assert store.thread("t").last_pos == 8
    # A plan or a dry run records nobody.
    assert store.plan("t", fold).attempts
    stub = do_everything(store, actor="anna")
    assert actors(store, stub) == {"anna"}


def test_whether_one_is_required_is_true_or_false(faces: Faces, url: str) -> None:
    for wrong in (None, "no", 1):
        with pytest.raises(cs.InvalidInput, match="require_actor must be a bool, not"):
            faces.open(url, require_actor=wrong)


def test_without_either_nobody_is_recorded(store: Face) -> None:
    stub = do_everything(filled(store))
    assert actors(store, stub) == {None}


def test_the_login_is_recorded_with_everything_whoever_acts(
    faces: Faces, superuser_url: str, superuser: psycopg.Connection[Any]
) -> None:
    name = f"cs_login_{sa.make_url(superuser_url).database}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'".encode())
    try:
        roles.grant(superuser_url, name, "application")
        login = sa.make_url(superuser_url).set(username=name, password="pw").render_as_string(hide_password=False)
        store = filled(faces.open(login))
        stub = do_everything(store, actor="postgres")
        assert {entry.login for entry in recorded(store, stub)} == {name}
        assert store.audit.verify(stub).findings == ()
    finally:
        superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())
