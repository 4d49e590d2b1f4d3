"""Forks by an application's login, by many at once, and with a lost reply."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from support.faces import Face, Faces
from support.lost_replies import Proxy

import compaction_store as cs
from compaction_store.errors import CompactionStoreError, PermissionDenied

from .conftest import fill, message, said


@pytest.fixture
def login(url: str, superuser: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a login that is a member of one of the roles."""
    name = f"cs_fork_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE {request.param}")
    yield sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
    superuser.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s AND datname = current_database()",
        [name],
    )
    superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.parametrize(
    "login", ["compaction_store_app, compaction_store_eraser, compaction_store_custodian"], indirect=True
)
def test_an_application_forks_redacts_and_looks_back(faces: Faces, login: str) -> None:
    store = faces.open(login, tenant="one")
    fill(store, erases=False)
    faces.open(login, tenant="two").append("f", message(1))
    store.fork("p", "f")
    assert store.seen_by("f", 9).view.thread_id == "p"
    assert store.audit.explain("f", 2).origin.thread_id == "p"
    assert [fork.thread_id for fork in store.custody.redact("p", 3, reason="case").forks] == ["f"]
    assert {event.login for event in store.audit.events("f")} == {sa.make_url(login).username}
    assert [report.findings for report in store.audit.verify()] == [(), ()]


@pytest.mark.parametrize("login", ["compaction_store_auditor"], indirect=True)
def test_an_auditor_looks_back_and_cannot_fork(faces: Faces, url: str, login: str) -> None:
    store = faces.open(url)
    fill(store, erases=False)
    store.fork("p", "f")
    auditor = faces.open(login)
    assert auditor.seen_by("f", 9).evidence == "proved"
    assert auditor.audit.explain("f", 2).origin.thread_id == "p"
    with pytest.raises(PermissionDenied):
        auditor.fork("p", "g")


def test_of_forks_with_one_name_at_once_one_is_made(url: str) -> None:
    with cs.Store.open(url) as store:
        for name in ("a", "b"):
            store.append(name, [message(i) for i in range(200)])
        outcomes: list[Any] = []

        def attempt(parent: str) -> None:
            try:
                outcomes.append(store.fork(parent, "f"))
            except CompactionStoreError as error:
                outcomes.append(error)

        threads = [threading.Thread(target=attempt, args=(name,)) for name in ("a", "b", "a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made = [done for done in outcomes if not isinstance(done, CompactionStoreError)]
        assert len(made) == 1
        assert {type(error) for error in outcomes if error is not made[0]} == {cs.ThreadExists}
        assert all(report.findings == () for report in store.audit.verify())


def test_writers_of_the_parent_are_in_the_copy_or_after_it(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("p", message(0))
        done = threading.Event()

        def write() -> None:
            for i in range(60):
                store.append("p", message(i))
                if i % 20 == 10:
                    store.custody.redact("p", i, reason="case")
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        names: list[str] = []
        while not done.is_set() or not names:
            names.append(f"f{len(names)}")
            store.fork("p", names[-1])
        writer.join()
        for name in names:
            last = store.thread(name).last_seq
            assert said(store.replay(name)) == said(store.replay("p", until=last))
        assert all(report.findings == () for report in store.audit.verify())


class _Proxy(Proxy):
    """Loses the reply to a fork instead of that to an append."""

    def _to_server(self, data: bytes, appending: threading.Event) -> bool:
        if b"compaction_store.fork" in data:
            appending.set()
        return True


def test_a_fork_whose_reply_is_lost_is_made_once(url: str) -> None:
    with cs.Store.open(url) as store:
        fill(Face(store, None))
    proxy = _Proxy(url)
    try:
        with cs.Store.open(proxy.url, deadline=10) as store:
            before = store.thread("p").last_pos
            proxy.cuts = 1
            done = store.fork("p", "f")
            assert proxy.lost_replies == 1
            assert store.thread("p").last_pos == before + 1
            assert store.thread("f").thread_uid == done.thread_uid
    finally:
        proxy.close()
