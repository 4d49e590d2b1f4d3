"""Turns: one at a time for a thread, in the order they came, and never doubled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support import platforms
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.errors import TurnLost, TurnTimeout
from compaction_store.models import Span

HI = {"role": "user", "content": "hi"}
_EXPIRE = "UPDATE compaction_store.turns SET held_until = clock_timestamp() - interval '1 second'"


class Turn:
    """A turn of either face, used as the synchronous one."""

    def __init__(self, store: Face, turn: Any) -> None:
        self.store = store
        self.turn = turn

    def _run(self, result: Any) -> Any:
        return self.store._run(result) if self.store.runner is not None else result

    def __enter__(self) -> Any:
        self._run((self.turn.__enter__ if self.store.runner is None else self.turn.__aenter__)())
        return self

    def __exit__(self, *error: object) -> None:
        self._run((self.turn.__exit__ if self.store.runner is None else self.turn.__aexit__)(*error))

    def append(self, *arguments: Any, **keywords: Any) -> Any:
        return self._run(self.turn.append(*arguments, **keywords))

    def others(self) -> Any:
        return self._run(self.turn.others())

    def renew(self) -> Any:
        return self._run(self.turn.renew())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.turn, name)


@pytest.fixture
def take(store: Face) -> Callable[..., Turn]:
    return lambda thread_id="t", **options: Turn(store, store.store.turn(thread_id, **options))


def rows(superuser: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return superuser.execute("SELECT thread_id, turn_id, waiting FROM compaction_store.turns").fetchall()


def test_the_first_turn_of_a_thread_makes_it_and_leaves_nothing(
    store: Face, take: Callable[..., Turn], superuser: psycopg.Connection[Any]
) -> None:
    with take() as turn:
        assert (turn.last_seq, turn.head, turn.thread_id) == (0, None, "t")
        assert rows(superuser) == [("t", turn.turn_id, [])]
        assert [m.seq for m in turn.append([HI, HI])] == [1, 2]
        written = turn.append(HI)
        assert (turn.last_seq, turn.head, turn.lost) == (3, written.head, False)
        assert turn.others() == ()
    assert rows(superuser) == []
    assert [m.seq for m in store.replay("t")] == [1, 2, 3]
    assert store.audit.verify("t").findings == ()


def test_a_turn_that_writes_nothing_makes_no_thread(store: Face, take: Callable[..., Turn]) -> None:
    with take() as turn:
        assert turn.others() == ()
    assert list(store.threads()) == []


def test_of_two_turns_one_has_the_thread_and_the_other_is_told_who(
    take: Callable[..., Turn], superuser: psycopg.Connection[Any]
) -> None:
    with take(actor="request 1") as first, pytest.raises(TurnTimeout) as caught, take(wait=0.05):
        pass
    error = caught.value
    login = platforms.login() or superuser.info.user
    assert (error.actor, error.login, error.until, error.ahead) == ("request 1", login, first.until, 0)
    assert "the turn of 'request 1' has the thread, until 2" in str(error)
    assert str(error).endswith("waited 0.05 seconds (thread 't')")
    assert rows(superuser) == []
    with take(wait=0):
        pass


def test_threads_and_tenants_do_not_wait_for_each_other(faces: Faces, url: str, take: Callable[..., Turn]) -> None:
    other = faces.open(url, tenant="other")
    with take("a"), take("b", wait=0), Turn(other, other.store.turn("a", wait=0)):
        pass


def test_turns_come_in_the_order_of_their_arrival(url: str, superuser: psycopg.Connection[Any]) -> None:
    order: list[int] = []

    def work(index: int) -> None:
        with cs.Store.open(url, pool_size=1) as store, store.turn("t"):
            order.append(index)

    with cs.Store.open(url) as store, ThreadPoolExecutor(6) as pool, store.turn("t"):
        for index in range(6):
            pool.submit(work, index)
            _until(lambda count=index + 1: len(rows(superuser)[0][2]) == count)  # type: ignore[misc]
    assert order == list(range(6))


@pytest.mark.one_server("Citus refuses the update that ends a lease")
def test_a_turn_that_gives_up_and_one_that_died_do_not_block_the_queue(
    take: Callable[..., Turn], superuser: psycopg.Connection[Any]
) -> None:
    dead = UUID(int=7)
    with take():
        superuser.execute("SELECT compaction_store.take_turn('default', 't', %s, 'dead', 30, true)", (dead,))
        with pytest.raises(TurnTimeout), take(wait=0.05):
            pass
        [(_, _, waiting)] = rows(superuser)
        assert waiting == [dead]
    with pytest.raises(TurnTimeout) as caught, take(wait=0):
        pass
    assert (caught.value.until, caught.value.ahead) == (None, 1)
    assert "reserved for turns that were requested earlier; turns ahead in the queue: 1" in str(caught.value)
    superuser.execute("UPDATE compaction_store.turns SET waiting_until = ARRAY[clock_timestamp()]")
    with take(wait=0):
        pass
    assert rows(superuser) == []


def test_a_killed_holder_is_replaced_after_its_lease(
    take: Callable[..., Turn], superuser: psycopg.Connection[Any]
) -> None:
    superuser.execute("SELECT compaction_store.take_turn('default', 't', %s, 'dead', 0.5, true)", (UUID(int=7),))
    with pytest.raises(TurnTimeout) as caught, take(wait=0):
        pass
    assert caught.value.actor == "dead"
    with take() as turn:
        assert turn.until > caught.value.until


@pytest.mark.one_server("Citus refuses the update that ends a lease")
@pytest.mark.parametrize("messages", [HI, [HI, HI]], ids=["one", "several"])
def test_a_holder_that_stalled_is_refused_before_it_does_harm(
    store: Face, take: Callable[..., Turn], superuser: psycopg.Connection[Any], messages: Any
) -> None:
    with pytest.raises(TurnLost, match="messages of others may be between"), take() as slow:  # noqa: PT012
        slow.append(messages)
        superuser.execute(_EXPIRE)
        with take(wait=0) as turn:
            turn.append(HI)
            for late in (lambda: slow.append(messages), slow.renew):
                with pytest.raises(TurnLost, match=r"the turn is lost \(thread 't'\)"):
                    late()
            assert slow.lost
            turn.append(HI)
            assert turn.others() == ()
    size = len(messages) if isinstance(messages, list) else 1
    assert store.thread("t").last_seq == size + 2


@pytest.mark.one_server("Citus refuses the update that ends a lease")
def test_a_lease_that_ran_out_unnoticed_does_no_harm(
    take: Callable[..., Turn], superuser: psycopg.Connection[Any]
) -> None:
    """The turn still has the thread, because no other has taken it."""
    with take() as turn:
        superuser.execute(_EXPIRE)
        turn.append(HI)
        before = turn.until
        assert turn.renew() >= before
        turn.append(HI)


def test_an_error_in_a_lost_turn_is_the_one_that_is_raised(
    take: Callable[..., Turn], superuser: psycopg.Connection[Any]
) -> None:
    with pytest.raises(ZeroDivisionError), take():  # noqa: PT012
        superuser.execute("DELETE FROM compaction_store.turns")
        raise ZeroDivisionError


def test_an_append_outside_of_the_turn_is_possible_and_seen(store: Face, take: Callable[..., Turn]) -> None:
    store.append("t", HI)
    with take() as turn:
        assert turn.last_seq == 1
        turn.append([HI, HI])
        store.append("t", [HI, HI])
        turn.append(HI)
        store.append("t", HI)
        assert turn.others() == (Span(4, 5), Span(7, 7))
        with pytest.raises(cs.SequenceConflict):
            turn.append(HI, expected_seq=turn.last_seq)
        with pytest.raises(cs.HeadConflict):
            turn.append(HI, expected_head=turn.head)
        assert not turn.lost
    assert store.thread("t").last_seq == 7


def test_an_append_can_name_its_turn(store: Face, take: Callable[..., Turn]) -> None:
    with take() as turn:
        store.append("t", HI, turn=turn.turn)
        assert turn.last_seq == 1
        with pytest.raises(cs.InvalidInput, match="turn must be a turn on thread 'u', not on 't'"):
            store.append("u", HI, turn=turn.turn)
    with pytest.raises(TurnLost):
        turn.append(HI)
    with pytest.raises(cs.InvalidInput, match="turn must be"):
        store.append("t", HI, turn=turn.turn_id)
    with pytest.raises(cs.InvalidInput, match="a turn must be entered with"):
        take().append(HI)
    with pytest.raises(cs.InvalidInput, match="a turn must be entered only once"), turn:
        pass


def test_a_retry_whose_first_attempt_was_stored_is_a_replay_though_the_turn_is_lost(
    store: Face, take: Callable[..., Turn]
) -> None:
    with take() as turn:
        first = turn.append(HI, key="k")
    assert turn.append(HI, key="k") == first
    with pytest.raises(cs.IdempotencyConflict):
        turn.append({"role": "user", "content": "other"}, key="k")
    assert store.thread("t").last_seq == 1


def test_what_a_provider_compacted_is_recorded_in_a_turn_too(store: Face, take: Callable[..., Turn]) -> None:
    reply = {
        "role": "assistant",
        "content": [{"type": "compaction", "content": "a summary"}, {"type": "text", "text": "ok"}],
    }
    with take() as turn:
        turn.append(HI)
        turn.append(reply)
    with pytest.raises(TurnLost):
        turn.append(reply)
    assert [record.outcome for record in store.compactions("t")] == ["observed"]


def test_an_erased_thread_ends_its_turn(
    store: Face, take: Callable[..., Turn], superuser: psycopg.Connection[Any]
) -> None:
    with pytest.raises(TurnLost), take(actor="somebody") as turn:  # noqa: PT012
        turn.append(HI)
        store.custody.erase("t", reason="asked for", dry_run=True)
        store.custody.hold("t", reason="law")
        with pytest.raises(cs.Held):
            store.custody.erase("t", reason="asked for")
        store.custody.release("t", reason="settled")
        turn.append(HI)
        store.custody.erase("t", reason="asked for")
        assert rows(superuser) == []
        with pytest.raises(TurnLost):
            turn.append(HI)
    assert next(iter(store.threads())).thread_id.startswith("erased:")


def test_a_lease_is_renewed_while_the_turn_lasts(url: str) -> None:
    with cs.Store.open(url) as store, cs.Store.open(url) as other, store.turn("t", lease=1) as turn:
        until = turn.until
        time.sleep(1.5)
        with pytest.raises(TurnTimeout), other.turn("t", wait=0):
            pass
        assert turn.until is not None
        assert until is not None
        assert turn.until > until

    async def on_the_loop() -> None:
        async with cs.AsyncStore.open(url) as store, store.turn("t", lease=1) as turn:
            await asyncio.sleep(1.5)
            with pytest.raises(TurnTimeout):
                await store.turn("t", wait=0).__aenter__()
            await turn.append(HI)

    asyncio.run(on_the_loop())


def test_a_cancelled_waiter_leaves_the_queue(url: str, superuser: psycopg.Connection[Any]) -> None:
    async def cancelled() -> None:
        async with cs.AsyncStore.open(url) as store, store.turn("t"):
            waiting = asyncio.create_task(store.turn("t").__aenter__())
            while not rows(superuser)[0][2]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert rows(superuser)[0][2] == []

    asyncio.run(cancelled())


def test_no_connection_is_held_while_a_turn_lasts_or_waits(url: str, superuser: psycopg.Connection[Any]) -> None:
    with cs.Store.open(url, pool_size=1) as store, ThreadPoolExecutor(1) as pool:
        with store.turn("t"):
            # Both turns and these calls share one connection.
            waiting = pool.submit(lambda: store.turn("t").__enter__())
            _until(lambda: len(rows(superuser)[0][2]) == 1)
            store.append("t", HI)
            _until(lambda: store._db.engine.pool.checkedout() == 0)  # type: ignore[attr-defined]
        turn = waiting.result(20)
        turn.__exit__(None, None, None)


_TAKE = "SELECT place FROM compaction_store.take_turn(%s, 't', %s, NULL, 30, true)"


@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
def test_the_application_s_role_takes_turns_in_its_tenant_and_does_not_see_the_table(
    url: str, superuser: psycopg.Connection[Any]
) -> None:
    one, two = UUID(int=1), UUID(int=2)
    with psycopg.connect(url, autocommit=True) as login:
        login.execute("SET ROLE compaction_store_app")
        assert login.execute(_TAKE, ("a", one)).fetchall() == [(0,)]
        assert login.execute(_TAKE, ("b", two)).fetchall() == [(0,)]
        assert login.execute(_TAKE, ("a", two)).fetchall() == [(1,)]
        hold = "SELECT compaction_store.hold_turn(%s, 't', %s, NULL)"
        with pytest.raises(psycopg.Error, match="the turn is lost"):
            login.execute(hold, ("b", one))
        assert login.execute(hold, ("b", two)).fetchall() == [(True,)]
        assert login.execute("SELECT compaction_store.leave_turn('a', 't', %s)", (one,)).fetchall() == [(True,)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            login.execute("SELECT * FROM compaction_store.turns")
        login.execute("SET ROLE NONE")
        login.execute("SET ROLE compaction_store_auditor")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            login.execute(_TAKE, ("a", one))
    assert superuser.execute("SELECT tenant, turn_id, waiting FROM compaction_store.turns ORDER BY 1").fetchall() == [
        ("a", None, [two]), ("b", two, []),
    ]  # fmt: skip


@pytest.mark.parametrize("seconds", ["0", "-1", "3601", "'NaN'", "'Infinity'"])
def test_no_turn_lasts_without_end(superuser: psycopg.Connection[Any], seconds: str) -> None:
    """Also not for a caller of the functions."""
    for call in ("take_turn('default', 't', %s, NULL, {}, true)", "renew_turn('default', 't', %s, {})"):
        with pytest.raises(psycopg.Error, match="a lease must be for more than 0 and at most 3600 seconds"):
            superuser.execute(f"SELECT compaction_store.{call.format(seconds)}".encode(), (UUID(int=1),))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wait": -1}, "wait must be a number of seconds from 0 to 86,400, not -1"),
        ({"wait": float("inf")}, "wait must be a number of seconds from 0 to 86,400, not inf"),
        ({"wait": "1"}, "wait must be a number of seconds from 0 to 86,400, not str"),
        ({"lease": 0.5}, "lease must be a number of seconds from 1 to 3,600, not 0.5"),
        ({"lease": 3601}, "lease must be a number of seconds from 1 to 3,600, not 3601"),
        ({"lease": float("nan")}, "lease must be a number of seconds from 1 to 3,600, not nan"),
        ({"actor": ""}, "actor must be text of 1 to 255 bytes of UTF-8 without NUL, not 0 bytes"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_sent(
    store: Face, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(cs.InvalidInput) as caught:
        store.store.turn("t", **options)
    assert str(caught.value) == message


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
