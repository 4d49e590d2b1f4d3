"""Events of all threads, and readers of all tenants for logins that may see them."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces
from support.superuser_edits import as_role

import compaction_store as cs
from compaction_store.errors import PermissionDenied


@pytest.fixture
def held(store: Face) -> Face:
    for name in ("a", "b", "c"):
        store.append(name, {"role": "user", "content": "hi"})
        store.custody.hold(name, reason="r", actor="counsel")
    store.custody.release("b", reason="r", actor="ben")
    with pytest.raises(cs.Held):
        store.custody.redact("c", 1, reason="r", actor="ben")
    return store


def names(found: Any) -> list[tuple[str, str]]:
    return [(event.thread_id, event.kind) for event in found]


def test_events_of_all_threads_come_in_the_order_of_their_times(held: Face) -> None:
    everything = [("a", "hold"), ("b", "hold"), ("c", "hold"), ("b", "release"), ("c", "refusal")]
    assert names(held.audit.events()) == everything
    assert list(held.audit.events("b")) == [event for event in held.audit.events() if event.thread_id == "b"]
    assert names(held.audit.events(kind="refusal")) == everything[-1:]
    assert names(held.audit.events(actor="ben")) == everything[3:]
    assert names(held.audit.events("b", actor="counsel")) == [("b", "hold")]
    third = list(held.audit.events())[2]
    assert names(held.audit.events(since=third.created_at)) == everything[2:]
    assert names(held.audit.events(until=third.created_at)) == everything[:3]
    assert names(held.audit.events("b", kind="release", since=third.created_at)) == [("b", "release")]
    assert names(held.audit.events("b", after=2)) == [("b", "release")]


@pytest.mark.parametrize("wrong", [{"kind": "other"}, {"actor": 7}, {"since": "today"}, {"after": 1}, {"after": -1}])
def test_arguments_that_match_no_event_are_refused(held: Face, wrong: dict[str, Any]) -> None:
    with pytest.raises(cs.InvalidInput):
        list(held.audit.events(**wrong))


def test_events_are_read_in_pages(store: Face) -> None:
    for name in ("a", "b"):
        store.append(name, {"role": "user", "content": "hi"})
        for _ in range(105):
            store.custody.hold(name, reason="r")
    assert len(names(store.audit.events())) == len(set(map(repr, store.audit.events()))) == 210
    assert list(store.audit.events("a")) == [event for event in store.audit.events() if event.thread_id == "a"]


@pytest.mark.superuser_store("a login under row-level security sees one tenant")
def test_the_tenants_are_listed(faces: Faces, url: str) -> None:
    store = faces.open(url)
    for tenant in ("b", "a", "default"):
        faces.open(url, tenant=tenant).append("t", {"role": "user", "content": "hi"})
    assert list(store.audit.tenants()) == ["a", "b", "default"]
    assert list(store.audit.tenants(after="a")) == ["b", "default"]
    with pytest.raises(cs.InvalidInput):
        store.of_tenant("")


def test_a_store_of_another_tenant_shares_the_connections_and_the_actor(url: str) -> None:
    with cs.Store.open(url, actor="nightly") as store:
        store.append("t", {"role": "user", "content": "mine"})
        other = store.of_tenant("other")
        other.append("t", {"role": "user", "content": "theirs"})
        assert other.custody.hold("t", reason="r").actor == "nightly"
        other.close()
        assert [message.payload for message in store.replay("t")] == [{"role": "user", "content": "mine"}]
        assert [message.payload for message in other.replay("t")] == [{"role": "user", "content": "theirs"}]


def test_an_async_store_has_one_too(url: str) -> None:
    async def main() -> tuple[int, int]:
        async with cs.AsyncStore.open(url) as store:
            async with store.of_tenant("other") as other:
                await other.append("t", [{"role": "user", "content": "theirs"}] * 2)
            await store.append("t", {"role": "user", "content": "mine"})
            return (await store.thread("t")).last_seq, (await other.thread("t")).last_seq

    assert asyncio.run(main()) == (1, 2)


@pytest.mark.parametrize("role", ["compaction_store_app", "compaction_store_auditor"])
def test_a_login_under_row_level_security_is_refused_and_not_shown_a_part(url: str, role: str) -> None:
    for tenant in ("default", "other"):
        with cs.Store.open(url, tenant=tenant) as store:
            store.append("t", {"role": "user", "content": "hi"})
            store.custody.hold("t", reason="r")
    with cs.Reader.open(as_role(url, role)) as reader:
        with pytest.raises(PermissionDenied, match="must have BYPASSRLS to see all tenants"):
            list(reader.audit.tenants())
        assert names(reader.audit.events()) == [("t", "hold")]


def test_events_by_time_are_read_by_an_index(url: str, superuser: psycopg.Connection[Any]) -> None:
    with cs.Store.open(url) as store:
        store.append("t", {"role": "user", "content": "hi"})
        for _ in range(300):
            store.custody.hold("t", reason="r")
    superuser.execute("VACUUM ANALYZE compaction_store.events")
    superuser.execute("SET ROLE compaction_store_auditor; SET compaction_store.tenant = 'default'")
    plan: Any = superuser.execute(
        "EXPLAIN SELECT * FROM compaction_store.events WHERE tenant = 'default' AND created_at >= now()"
        " ORDER BY created_at, thread_uid, pos LIMIT 100"
    ).fetchall()
    assert "events_audit_idx" in str(plan), plan
