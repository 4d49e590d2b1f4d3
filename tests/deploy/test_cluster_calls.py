"""Calls that need more than one thread, on a cluster. A stand-in plays Citus here.

A fork is in the shard of its parent, so that an erasure reaches it. `scripts/test-cluster` runs the tests of forks and
the others on a real cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from support.checkpoints import KEY
from support.faces import Face, Faces
from support.paths import SUPPORT

import compaction_store as cs
from compaction_store import grants
from compaction_store.arguments import DATABASE, LOG
from compaction_store.deploy import citus
from compaction_store.errors import ThreadExists, UnsupportedDatabase
from compaction_store.sealing import Keys

_STAND_IN = (SUPPORT / "stand_in.sql").read_text(encoding="utf-8")
_SHARD = "SELECT get_shard_id_for_distribution_column('compaction_store.heads', %s)"


@pytest.fixture
def cluster(superuser: psycopg.Connection[Any], url: str) -> str:
    superuser.execute(_STAND_IN)
    citus.distribute(url)
    return url


def shard(superuser: psycopg.Connection[Any], thread_uid: UUID) -> Any:
    return superuser.execute(_SHARD, (thread_uid,)).fetchone()


def test_a_fork_is_beside_its_parent_and_has_its_name(cluster: str, superuser: psycopg.Connection[Any]) -> None:
    with cs.Store.open(cluster) as store:
        store.append("p", [{"n": i} for i in range(5)], raw=True)
        home = shard(superuser, store.thread("p").thread_uid)
        names = [f"f{i}" for i in range(8)]
        for name in names:
            assert shard(superuser, store.fork("p", name, key=name).thread_uid) == home
        again = store.fork("p", "f0", key="f0")
        assert (again.added, again.thread_uid) == (False, store.thread("f0").thread_uid)
        assert shard(superuser, store.fork("f7", "g").thread_uid) == home
        assert [m.payload for m in store.replay("g")] == [{"n": i} for i in range(5)]
        before = store.thread("p").last_pos
        with pytest.raises(ThreadExists):
            store.fork("p", "f1")
        with pytest.raises(cs.ThreadNotFound):
            store.fork("nobody", "h")
        assert store.thread("p").last_pos == before
        assert [thread.thread_id for thread in store.threads()] == [*names, "g", "p"]
        assert [found for report in store.audit.verify() for found in report.findings] == []


def test_erasures_reach_forks_and_their_forks(cluster: str) -> None:
    with cs.Store.open(cluster) as store:
        store.append("p", [{"n": i} for i in range(5)], raw=True)
        store.fork("p", "f")
        store.fork("f", "g")
        assert [(fork.thread_id, fork.seqs) for fork in store.custody.redact("p", 2, reason="r").forks] == [
            ("f", (2,)), ("g", (2,))
        ]  # fmt: skip
        store.custody.hold("g", reason="r")
        with pytest.raises(cs.Held):
            store.custody.erase("p", reason="r")
        store.custody.release("g", reason="r")
        assert [fork.seqs for fork in store.custody.erase("p", reason="r", dry_run=True).forks] == [(1, 3, 4, 5)] * 2
        assert [fork.thread_id for fork in store.custody.erase("p", reason="r").forks] == ["f", "g"]
        assert [m.payload for m in store.replay("g")] == [None] * 5
        assert store.append("p", {"n": 1}, raw=True)[0].seq == 1
        assert [found for report in store.audit.verify() for found in report.findings] == []


def test_a_fork_in_another_shard_is_not_left_out_of_an_erasure_silently(
    cluster: str, empty_url: str, superuser: psycopg.Connection[Any]
) -> None:
    cs.migrate.upgrade(empty_url)
    with cs.Store.open(cluster) as store, cs.Store.open(empty_url) as other:
        other.append("p", {"n": 1}, raw=True)
        home = shard(superuser, other.thread("p").thread_uid)
        name = next(n for n in map(str, range(200)) if shard(superuser, other.fork("p", n).thread_uid) != home)
        for thread in ("p", name):
            store.load.bundle(other.audit.export(thread))
        for call in (partial(store.custody.redact, "p", 1), partial(store.custody.erase, "p")):
            for dry_run in (True, False):
                with pytest.raises(UnsupportedDatabase, match="not in the shard of this thread: redact it by itself"):
                    call(reason="r", dry_run=dry_run)
        assert [m.payload for m in store.replay("p")] == [{"n": 1}]
        store.custody.redact(name, 1, reason="r")
        assert store.custody.redact("p", 1, reason="r", forks=False).seqs == (1,)


def test_the_threads_over_a_budget_are_found_by_what_their_replies_report(cluster: str) -> None:
    text = "A few words that take some tokens. " * 20
    with cs.Store.open(cluster) as store:
        for name, factor in (("less", 0.5), ("as much", 1.0), ("unknown", None)):
            store.append(name, {"role": "user", "content": text})
            view = store.view(name)
            usage = {} if factor is None else {"usage": {"input_tokens": round(view.tokens * factor)}}
            store.append(name, {"role": "assistant", "content": "Yes.", **usage}, view=view)
        budget = cs.TokenBudget(context_window=round(store.view("less").tokens * 1.1))
        assert {thread.thread_id for thread in store.due(budget)} == {"as much", "unknown"}


def test_nothing_is_written_to_a_shard_that_was_moved_during_the_call(
    cluster: str, empty_url: str, superuser: psycopg.Connection[Any]
) -> None:
    """Citus would not include the other node in the commit."""
    cs.migrate.upgrade(empty_url)
    move = "UPDATE pg_catalog.pg_dist_placement SET groupid = %s"
    with cs.Store.open(cluster, deadline=0.5) as store, cs.Store.open(empty_url) as other:
        store.append("p", {"n": 1}, raw=True)
        other.append("q", {"n": 1}, raw=True)
        bundle = list(other.audit.export("q"))
        calls = (
            lambda: store.fork("p", "f"),
            lambda: store.custody.erase("p", reason="r"),
            lambda: store.load.bundle(bundle),
        )
        superuser.execute(move, (7,))
        for call in calls:
            with pytest.raises(cs.DatabaseUnavailable) as caught:
                call()
            assert caught.value.sqlstate == "40001"
        assert [thread.thread_id for thread in store.threads()] == ["p"]
        superuser.execute(move, (0,))
        for call in calls:
            call()


@pytest.mark.alters_roles
def test_a_move_that_was_in_a_deadlock_with_a_writer_is_repeated(
    cluster: str, superuser: psycopg.Connection[Any]
) -> None:
    superuser.execute(
        "CREATE SEQUENCE public.moves;"
        "CREATE OR REPLACE FUNCTION"
        " pg_catalog.rebalance_table_shards(shard_transfer_mode text, rebalance_strategy name)"
        " RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
        " IF nextval('public.moves') < 3 THEN RAISE EXCEPTION 'a deadlock' USING ERRCODE = '40P01'; END IF; END $$"
    )
    assert citus.rebalance(cluster) == 3
    assert superuser.execute("SELECT last_value FROM public.moves").fetchone() == (3,)


_VERIFIED: dict[str, Any] = {"level": "content", "threads": 1, "findings": 0}
_LOGGED: dict[str, tuple[str, Callable[[Face], Any]]] = {
    "application": ("verification", lambda store: store.audit.record_verification(**_VERIFIED)),
    "custodian": ("rule", lambda store: store.custody.set_retention(older_than=timedelta(days=9), reason="r")),
    "eraser": ("policy", lambda store: list(store.custody.apply_retention(older_than=timedelta(days=9)))),
}


@pytest.mark.superuser_store("it makes logins")
@pytest.mark.parametrize("role", _LOGGED)
def test_the_first_event_of_each_role_makes_the_log(
    cluster: str, faces: Faces, superuser: psycopg.Connection[Any], role: Any
) -> None:
    name, (kind, record) = f"cs_logger_{os.getpid()}", _LOGGED[role]
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'".encode())
    try:
        faces.open(cluster).append("t", {"n": 1}, raw=True)
        grants.grant(cluster, name, role)
        login = sa.make_url(cluster).set(username=name, password="pw").render_as_string(hide_password=False)
        for again in range(1, 3):
            record(faces.open(login))
            log = faces.open(cluster)
            assert {event.kind for event in log.audit.events(LOG)} == {kind}
            assert len(list(log.audit.events(LOG))) >= again
        grants.revoke(cluster, name, role)
    finally:
        superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())
    of_database = faces.open(cluster, tenant=DATABASE)
    assert [(event.kind, event.body["role"]) for event in of_database.audit.events(LOG)] == [
        ("grant", role), ("ungrant", role)
    ]  # fmt: skip
    assert not of_database.audit.verify(LOG).findings


@pytest.mark.parametrize("is_sealed", [False, True])
def test_subjects_terms_and_a_shred_work_on_a_cluster(
    cluster: str, faces: Faces, tmp_path: Path, is_sealed: bool
) -> None:
    store = faces.open(cluster, seal=Keys.make(tmp_path / "keys") if is_sealed else None)
    store.append("t", {"n": 1}, raw=True, subject="ann")
    store.load.messages("loaded", [{"n": 1}], raw=True, subject="ann")
    store.set_metadata("t", {"a": 1})
    store.custody.retain("t", datetime.now(UTC) - timedelta(days=9), reason="r")
    if not is_sealed:
        store.append("later", {"n": 1}, raw=True)
        store.custody.set_subject("later", "ben", reason="r")
        assert [thread.thread_id for thread in store.threads(subject="ben")] == ["later"]
    assert [event.kind for event in store.audit.events("t")] == ["metadata", "retention"]
    assert {thread.thread_id for thread in store.threads(subject="ann")} == {"t", "loaded"}
    if is_sealed:
        assert store.custody.shred("ann", reason="r").body["threads"] == 2
    else:
        assert {erased.kept for erased in store.custody.erase_subject("ann", reason="r")} == {None}
    assert list(store.threads(subject="ann")) == []
    assert [found for report in store.audit.verify() for found in report.findings] == []


def test_an_erasure_that_is_not_confirmed_erases_no_name_and_ends_no_turn(cluster: str, faces: Faces) -> None:
    store = faces.open(cluster)
    store.append("t", {"n": 1}, raw=True)
    assert store.custody.erase("t", reason="r", confirmed=False).seqs == (1,)
    assert store.thread("t").last_seq == 1
    assert [found for report in store.audit.verify() for found in report.findings] == []
    assert store.custody.erase("t", reason="r").seqs == (1,)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_tenant_is_removed_from_a_cluster(cluster: str, faces: Faces, tmp_path: Path, is_sealed: bool) -> None:
    store = faces.open(cluster, tenant="acme", seal=Keys.make(tmp_path / "keys") if is_sealed else None)
    store.append("t", {"n": 1}, raw=True, subject="ann")
    store.append("u", {"n": 2}, raw=True)
    store.fork("u", "v")
    store.custody.hold("v", reason="claim")
    with pytest.raises(cs.Conflict, match=r"1 of the 3 threads must be kept \(1 held\)"):
        store.custody.remove_tenant(KEY, reason="r")
    store.custody.release("v", reason="settled")
    removal = store.custody.remove_tenant(KEY, reason="r")
    assert (removal.threads, removal.messages, removal.keys) == (3, 3, 3 * is_sealed)
    assert all(thread.erased_pos for thread in store.threads())
    assert [found for report in store.audit.verify() for found in report.findings] == []
    assert "removal" in {event.kind for event in faces.open(cluster, tenant=DATABASE).audit.events(LOG)}


def test_what_a_cluster_lacks_is_refused_by_name(cluster: str, faces: Faces) -> None:
    store = faces.open(cluster)
    store.append("t", {"n": 1}, raw=True)
    with pytest.raises(UnsupportedDatabase, match="new_threads needs one server"):
        store.custody.set_retention(new_threads=timedelta(days=1), reason="r")
    with pytest.raises(UnsupportedDatabase, match="a feed needs one server"):
        list(store.audit.feed())
    assert store.custody.set_retention(older_than=timedelta(days=1), reason="r").kind == "rule"
