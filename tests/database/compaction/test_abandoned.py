"""Attempts whose process died: recorded once, by the next run that takes the lease."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC
from typing import Any

import psycopg
import pytest
from support.contended_thread import BUDGET, chat, span
from support.faces import Face, Faces

import compaction_store as cs

_EXPIRE = "UPDATE compaction_store.heads SET lease_until = clock_timestamp() - interval '1 second'"


class Death(BaseException):
    """Ends a run as the end of its process does: nothing after it reaches the database."""


@pytest.fixture
def thread(store: Face) -> Face:
    store.append("t", chat(), tokens=100)
    return store


@pytest.fixture
def die(faces: Faces, url: str, superuser: psycopg.Connection[Any]) -> Callable[[], Any]:
    """Leaves what a run leaves whose process dies while its callback runs: a lease, which then runs out."""

    def run() -> Any:
        store = faces.open(url)

        def compact(_ctx: cs.CompactionContext) -> None:
            store.store._db.closed = True
            raise Death

        with pytest.raises(Death):
            store.compact("t", compact, budget=BUDGET, actor="worker-1")
        superuser.execute(_EXPIRE)
        return superuser.execute("SELECT lease_run, lease_since FROM compaction_store.heads").fetchall()[0]

    return run


@pytest.mark.one_server("Citus refuses the update that ends a lease")
def test_the_next_run_records_the_attempt_of_a_dead_one(thread: Face, die: Callable[[], Any]) -> None:
    dead, since = die()
    run = thread.compact("t", span(1, 8), budget=BUDGET, actor="worker-2")
    assert [(record.number, record.actor) for record in run] == [(2, "worker-2")]
    [abandoned] = thread.compactions("t", outcome="failed")
    assert (abandoned.number, abandoned.run_id, abandoned.actor) == (1, dead, "worker-1")
    assert (abandoned.kind, abandoned.trigger, abandoned.start_seq) == ("summary", "abandoned", None)
    assert abandoned.error is not None
    assert abandoned.error["type"] == "abandoned"
    assert abandoned.body is not None
    assert abandoned.body["started_at"] == since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert thread.audit.verify("t", level="content").findings == ()
    assert run.view.pos == thread.view("t").pos == 14
    assert run.view.elements == thread.view("t").elements


@pytest.mark.one_server("Citus refuses the update that ends a lease")
def test_of_many_that_find_it_one_records_it(
    thread: Face, die: Callable[[], Any], url: str, superuser: psycopg.Connection[Any]
) -> None:
    die()
    begin = threading.Barrier(8)

    def work(_index: int) -> None:
        with cs.Store.open(url, pool_size=1) as store:
            begin.wait()
            store.compact("t", span(1, 8), budget=BUDGET)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert [record.trigger for record in thread.compactions("t", outcome="failed")] == ["abandoned"]
    assert superuser.execute("SELECT lease_run, lease_actor FROM compaction_store.heads").fetchall() == [(None, None)]


@pytest.mark.one_server("Citus refuses the update that ends a lease")
def test_a_thread_whose_worker_dies_again_and_again_records_each_attempt(thread: Face, die: Callable[[], Any]) -> None:
    runs = [die()[0] for _ in range(3)]
    thread.compact("t", span(1, 8), budget=BUDGET)
    assert [record.run_id for record in thread.compactions("t", outcome="failed")] == runs


def test_a_live_run_and_one_that_gave_its_lease_back_are_not_recorded(thread: Face) -> None:
    def compact(ctx: cs.CompactionContext) -> None:
        ctx.compact(1, 8, "S")

    class Interrupt(BaseException):
        pass

    def interrupted(_ctx: cs.CompactionContext) -> None:
        raise Interrupt

    with pytest.raises(Interrupt):
        thread.compact("t", interrupted, budget=BUDGET)
    assert thread.compact("t", compact, budget=BUDGET).applied == 1
    assert [record.outcome for record in thread.compactions("t")] == ["applied"]


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.one_server("Citus refuses the update that ends a lease")
def test_the_late_commit_of_a_run_that_was_given_up_counts_by_itself(
    thread: Face, url: str, superuser: psycopg.Connection[Any], free: bool
) -> None:
    """Its spans are written if they are free, and the record that says it was abandoned is not taken for its own."""

    def slow(ctx: cs.CompactionContext) -> None:
        superuser.execute(_EXPIRE)
        with cs.Store.open(url) as other:
            other.compact("t", span(9, 11) if free else span(1, 11), budget=BUDGET)
            other.append("t", chat(1), tokens=100)
        ctx.compact(1, 8, "S")

    if free:
        run = thread.compact("t", slow, budget=BUDGET, actor="slow")
        assert [(record.number, record.trigger) for record in run] == [(3, "budget")]
        assert run.view.elements == thread.view("t").elements
        found = [(record.number, record.outcome) for record in thread.compactions(run_id=run[0].run_id)]
        assert found == [(1, "failed"), (3, "applied")]
    else:
        with pytest.raises(cs.SpanConflict):
            thread.compact("t", slow, budget=BUDGET, actor="slow")
        assert [(record.number, record.actor) for record in thread.compactions(outcome="failed")] == [(1, "slow")]
    assert thread.audit.verify("t").findings == ()


@pytest.mark.one_server("it calls a function without a key")
def test_the_application_s_login_records_it_under_row_level_security(
    thread: Face,
    die: Callable[[], Any],
    superuser_url: str,
    superuser: psycopg.Connection[Any],
    request: pytest.FixtureRequest,
) -> None:
    name = f"finder_{abs(hash(request.node.name)) % 10**9}"
    superuser.execute(f"CREATE ROLE {name} LOGIN IN ROLE compaction_store_app")
    try:
        die()
        with psycopg.connect(superuser_url, user=name, autocommit=True) as login:
            login.execute("SELECT compaction_store.lease(NULL, 'default', 't', gen_random_uuid(), 60, 'me')")
        [abandoned] = thread.compactions("t", outcome="failed")
        assert (abandoned.actor, abandoned.login) == ("worker-1", name)
    finally:
        superuser.execute(f"DROP ROLE {name}")


@pytest.mark.one_server("Citus refuses the update that ends a lease")
def test_an_erased_thread_keeps_no_actor_of_a_lease(
    thread: Face, die: Callable[[], Any], superuser: psycopg.Connection[Any]
) -> None:
    die()
    thread.custody.erase("t", reason="asked for")
    [row] = superuser.execute(
        "SELECT lease_run, lease_since, lease_until, lease_actor FROM compaction_store.heads"
    ).fetchall()
    assert row == (None, None, None, None)
