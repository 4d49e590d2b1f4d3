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

MESSAGE = {"role": "user", "content": "hello"}
BUDGET = cs.TokenBudget(1000, trigger=50, target=20)


def fold(ctx: cs.CompactionContext) -> None:
    ctx.compact(ctx.elements[0].seq, ctx.elements[1].end_seq, "Folded.")


def filled(store: Face, thread: str = "t", **who: Any) -> Face:
    store.append(thread, [{"role": "user", "content": f"message {i} " * 9} for i in range(8)], **who)
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


def recorded(store: Face, stub: str) -> list[cs.Compaction | cs.Event | cs.Message]:
    log, events = list(store.compactions(stub)), list(store.audit.events(stub))
    assert {record.kind for record in log} == {"summary", "revocation"}
    assert {event.kind for event in events} == {"redaction", "hold", "release", "retention"}
    return [*log, *events, *store.replay(stub)]


def actors(store: Face, stub: str) -> set[str | None]:
    return {entry.actor for entry in recorded(store, stub)}


def test_the_stores_actor_is_recorded_with_everything(faces: Faces, url: str) -> None:
    store = filled(faces.open(url, actor="agents"))
    stub = do_everything(store)
    assert actors(store, stub) == {"agents"}
    assert store.audit.verify(stub).findings == ()


def test_a_call_may_name_another(faces: Faces, url: str) -> None:
    store = filled(faces.open(url, actor="agents", require_actor=True), actor="anna")
    stub = do_everything(store, actor="anna")
    assert actors(store, stub) == {"anna"}


def test_a_store_that_requires_an_actor_writes_nothing_without_one(faces: Faces, url: str) -> None:
    store = filled(faces.open(url, require_actor=True), actor="anna")
    calls: list[Any] = [
        lambda: filled(store), lambda: filled(store, "new"), lambda: store.load.messages("t", [MESSAGE]),
        lambda: list(store.load.threads([("new", [MESSAGE])])),
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
        for role in ("application", "eraser", "custodian"):
            roles.grant(superuser_url, name, role)
        login = sa.make_url(superuser_url).set(username=name, password="pw").render_as_string(hide_password=False)
        store = filled(faces.open(login))
        stub = do_everything(store, actor="postgres")
        assert {entry.login for entry in recorded(store, stub)} == {name}
        assert store.audit.verify(stub).findings == ()
    finally:
        superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


# ---- messages


def written(store: Face, thread: str = "t") -> list[tuple[str | None, str | None]]:
    """Returns the actor and the login of each message, which reading from both ends must agree about."""
    found = [(message.actor, message.login) for message in store.replay(thread)]
    assert [(message.actor, message.login) for message in store.replay(thread, last=100)] == found
    assert [message.as_dict()["login"] for message in store.replay(thread)] == [login for _, login in found]
    return found


@pytest.mark.parametrize("share_commits", [True, False])
def test_each_message_has_the_actor_and_the_login_of_its_append(
    faces: Faces, url: str, superuser: psycopg.Connection[Any], share_commits: bool
) -> None:
    me = sa.make_url(url).username or superuser.info.user
    store = faces.open(url, actor="agents", share_commits=share_commits)
    answers = [
        store.append("t", MESSAGE), store.append("t", [MESSAGE, MESSAGE], actor="anna"),
        store.append("t", {"role": "assistant", "content": [{"type": "compaction", "content": "all"}]}, raw=True),
    ]  # fmt: skip
    expected: list[tuple[str | None, str | None]] = [("agents", me), ("anna", me), ("anna", me), ("agents", me)]
    assert [(message.actor, message.login) for answer in answers for message in answer] == expected
    store.load.messages("t", [MESSAGE], actor="loader")
    list(store.load.threads([("u", [MESSAGE, MESSAGE])]))
    assert written(store) == [*expected, ("loader", me)]
    assert written(store, "u") == [("agents", me)] * 2
    assert store.audit.verify("t").findings == store.audit.verify("u").findings == ()
    superuser.execute("SET compaction_store.tenant = 'default'")
    seen = superuser.execute(
        "SELECT actor, login FROM compaction_store.audit_messages WHERE thread_id = 't' ORDER BY seq"
    )
    assert seen.fetchall() == written(store)


def test_a_repeated_append_has_the_actor_of_the_first(store: Face) -> None:
    store.append("t", MESSAGE, key="k", actor="anna")
    assert [message.actor for message in store.append("t", MESSAGE, key="k", actor="bert")] == ["anna"]


def test_an_append_in_a_turn_has_the_actor_of_the_turn(store: Face) -> None:
    turn = store.turn("t", actor="anna")
    if store.runner is None:
        with turn:
            turn.append(MESSAGE)
            turn.append([MESSAGE, MESSAGE], actor="bert")
    else:

        async def take() -> None:
            async with turn:
                await turn.append(MESSAGE)
                await turn.append([MESSAGE, MESSAGE], actor="bert")

        store.runner.run(take())
    assert [message.actor for message in store.replay("t")] == ["anna", "bert", "bert"]


def test_appends_that_share_a_commit_keep_their_actors(superuser: psycopg.Connection[Any], store: Face) -> None:
    superuser.execute(
        "SELECT * FROM compaction_store.append_together(%s, %s, '{t,t}', '{1,2}', '{c,c}', '{k,l}', '{NULL,NULL}',"
        " '{NULL,NULL}', '{t,t}', '{NULL,NULL}', '{NULL,NULL}', %s, %s, '{NULL,NULL,NULL}', '{1,1,1}',"
        " '{NULL,NULL,NULL}', '{anna,bert}', '{NULL,NULL}')",
        ([None, None], ["default"] * 2, ["{}"] * 3, bytes(48)),
    )
    assert written(store) == [(who, superuser.info.user) for who in ("anna", "bert", "bert")]
    assert store.audit.verify("t").findings == ()


def test_copies_imports_and_erased_messages_keep_actor_and_login(faces: Faces, store: Face, other_url: str) -> None:
    filled(store, actor="anna")
    first = written(store)
    store.fork("t", "copy", actor="bert")
    assert written(store, "copy") == first
    lines = list(store.audit.export("t"))
    store.custody.redact("t", 3, reason="asked for")
    assert written(store) == first
    stub = store.custody.erase("copy", reason="asked for").thread_id
    assert written(store, stub) == first
    other = faces.open(other_url, actor="somebody")
    other.load.bundle(lines)
    assert written(other) == first


@pytest.mark.parametrize("wrong", ["", "x" * 256, 1, "a\0b"])
def test_an_actor_that_cannot_be_stored_is_refused_before_anything_is_sent(store: Face, wrong: Any) -> None:
    for call in (
        lambda: store.append("t", MESSAGE, actor=wrong), lambda: store.load.messages("t", [MESSAGE], actor=wrong),
        lambda: list(store.load.threads([("t", [MESSAGE])], actor=wrong)),
    ):  # fmt: skip
        with pytest.raises(cs.InvalidInput, match="actor"):
            call()
    with pytest.raises(cs.ThreadNotFound):
        store.thread("t")


@pytest.mark.parametrize("change", ["actor = 'bert'", "actor = NULL", "login = 'bert'"])
def test_a_changed_actor_or_login_is_found(store: Face, superuser: psycopg.Connection[Any], change: str) -> None:
    filled(store, actor="anna")
    superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER ALL")
    superuser.execute(f"UPDATE compaction_store.messages SET {change} WHERE seq = 3".encode())
    assert [finding.pos for finding in store.audit.verify("t").findings if finding.pos] == [3]
