"""Who may erase, and who may forbid it: logins with the roles of an application, an eraser and a custodian."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support import aged_threads
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.arguments import LOG
from compaction_store.deploy import roles
from compaction_store.errors import PermissionDenied
from compaction_store.models.roles import Role

MESSAGES = [{"role": "user", "content": f"message {i}"} for i in range(5)]
ERASING: dict[str, Callable[[Face], Any]] = {
    "redact": lambda store: store.custody.redact("t", 2, reason="asked for"),
    "erase": lambda store: store.custody.erase("t", reason="asked for"),
}
KEEPING: dict[str, Callable[[Face], Any]] = {
    "hold": lambda store: store.custody.hold("t", reason="claim"),
    "release": lambda store: store.custody.release("t", reason="settled"),
    "retain": lambda store: store.custody.retain("t", datetime.now(UTC) + timedelta(days=9), reason="law"),
}
OVERRIDING: dict[str, Callable[[Face], Any]] = {
    "redact": lambda store: store.custody.redact("t", 2, reason="asked for", override="a judge said so"),
    "erase": lambda store: store.custody.erase("t", reason="asked for", override="a judge said so"),
}


@pytest.fixture
def logged_in(
    faces: Faces, store: Face, superuser_url: str, superuser: psycopg.Connection[Any]
) -> Iterator[Callable[..., Face]]:
    """Opens a store with a new login that has some roles, beside a thread of five messages."""
    made: list[str] = []

    def log_in(*granted: Role) -> Face:
        name = f"cs_officer_{os.getpid()}_{len(made)}"
        superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'".encode())
        made.append(name)
        for role in granted:
            roles.grant(superuser_url, name, role)
        login = sa.make_url(superuser_url).set(username=name, password="pw")
        return faces.open(login.render_as_string(hide_password=False))

    store.append("t", MESSAGES)
    yield log_in
    for name in made:
        superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


def untouched(store: Face, pos: int) -> bool:
    return bool(store.thread("t").last_pos == pos)


@pytest.mark.parametrize(("granted", "refused", "needed"), [
    (("application", "loader"), {**ERASING, **KEEPING}, "eraser|custodian"),
    (("auditor",), {**ERASING, **KEEPING}, "eraser|custodian"),
    (("eraser",), KEEPING, "custodian"),
    (("custodian",), ERASING, "eraser"),
])  # fmt: skip
def test_a_login_without_the_role_is_told_which_it_needs(
    store: Face, logged_in: Callable[..., Face], granted: tuple[Role, ...], refused: Any, needed: str
) -> None:
    officer = logged_in(*granted)
    for call in refused.values():
        with pytest.raises(PermissionDenied, match=f"grant LOGIN ({needed})"):
            call(officer)
    assert untouched(store, 5)


def test_an_eraser_erases_and_reads_no_content(store: Face, logged_in: Callable[..., Face]) -> None:
    eraser = logged_in("eraser")
    for read in (lambda: eraser.view("t"), lambda: list(eraser.replay("t")), lambda: list(eraser.threads())):
        with pytest.raises(PermissionDenied):
            read()
    assert ERASING["redact"](eraser).seqs == (2,)
    assert ERASING["erase"](eraser).pos == 7
    with pytest.raises(cs.ThreadNotFound):
        store.thread("t")


def test_a_retention_policy_needs_the_role_of_an_eraser(store: Face, logged_in: Callable[..., Face]) -> None:
    aged_threads.add(store, "old", 200)
    given = {"older_than": aged_threads.HALF_A_YEAR}
    others = {("application", "custodian"): "eraser", ("auditor",): "grant LOGIN", ("loader",): "grant LOGIN"}
    for granted, needed in others.items():
        officer = logged_in(*granted)
        with pytest.raises(PermissionDenied, match=needed):
            list(officer.custody.apply_retention(**given))
    assert aged_threads.names(store) == {"old", "t"}
    eraser = logged_in("eraser")
    next(eraser.custody.apply_retention(**given, dry_run=True))
    stopped = eraser.custody.apply_retention(**given)
    next(stopped)
    del stopped
    assert list(eraser.custody.apply_retention(**given)) == []
    found = store.audit.events(LOG, kind="policy")
    assert [event.body["state"] for event in found] == ["begun", "interrupted", "begun", "ended"]


@pytest.mark.parametrize("what", ["hold", "retain"])
def test_an_eraser_works_within_what_a_custodian_sets(store: Face, logged_in: Callable[..., Face], what: str) -> None:
    eraser, custodian = logged_in("eraser"), logged_in("custodian")
    KEEPING[what](custodian)
    for call in ERASING.values():
        with pytest.raises(cs.Held):
            call(eraser)
    before = store.thread("t").last_pos
    for call in OVERRIDING.values():
        with pytest.raises(PermissionDenied, match="only a custodian may override"):
            call(eraser)
        with pytest.raises(PermissionDenied, match="grant LOGIN eraser"):
            call(custodian)
    assert untouched(store, before)
    if what == "hold":
        KEEPING["release"](custodian)
        assert ERASING["redact"](eraser).seqs == (2,)


def test_a_login_that_is_both_may_override(store: Face, logged_in: Callable[..., Face]) -> None:
    officer = logged_in("application", "eraser", "custodian")
    KEEPING["hold"](officer)
    assert OVERRIDING["redact"](officer).seqs == (2,)
    assert OVERRIDING["erase"](officer).pos == 8
    assert [event.body["overrides"] for event in store.audit.events() if event.kind == "redaction"] == [[6], [6]]


def test_the_role_that_a_session_sets_decides(faces: Faces, store: Face, url: str) -> None:
    store.append("t", MESSAGES)
    store.custody.hold("t", reason="claim")
    eraser = faces.open(url, role="compaction_store_eraser")
    with pytest.raises(PermissionDenied, match="only a custodian may override"):
        OVERRIDING["redact"](eraser)
    assert OVERRIDING["redact"](store).seqs == (2,)
