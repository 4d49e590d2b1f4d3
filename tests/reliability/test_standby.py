"""A synchronous standby that is gone: no write is reported as stored that it would lack when it takes over."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces

import compaction_store as cs
from reliability.rigs import standby
from reliability.rigs.ground import Postgres, superuser

HI = {"role": "assistant", "content": "hi"}
DEADLINE = 0.6
Pair = tuple[Postgres, Postgres]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    if not Postgres.possible():
        pytest.skip("needs the embedded Postgres, on Linux")
    with standby.pair() as made:
        yield made


@pytest.fixture(scope="module")
def address(pair: Pair) -> str:
    return pair[0].database()


@contextmanager
def standby_stopped(pair: Pair) -> Iterator[None]:
    standby.caught_up(*pair)
    pair[1].signal(signal.SIGSTOP)
    try:
        yield
    finally:
        pair[1].signal(signal.SIGCONT)


_names = iter(range(10_000))


@pytest.fixture
def name() -> str:
    """The name of a thread that no other test uses."""
    return f"t{next(_names)}"


WRITES: dict[str, Callable[[Face, str], Any]] = {
    "append": lambda s, t: s.append(t, HI),
    "append many": lambda s, t: s.append(t, [HI, HI]),
    "first append": lambda s, t: s.append(f"new {t}", HI),
    "load": lambda s, t: s.load.messages(t, [HI] * 5, key=f"load {t}", tokens=1),
    "compact": lambda s, t: s.compact(t, lambda ctx: ctx.compact(3, 4, "two")),
    "revoke": lambda s, t: s.revoke(t, 1),
    "redact": lambda s, t: s.custody.redact(t, 1, reason="asked"),
    "erase": lambda s, t: s.custody.erase(t, reason="asked"),
    "hold": lambda s, t: s.custody.hold(t, reason="asked"),
    "metadata": lambda s, t: s.set_metadata(t, {"a": 1}),
}


@pytest.fixture
def store(faces: Faces, address: str, name: str) -> Face:
    made = faces.open(address, deadline=30)
    made.append(name, [HI] * 5)
    made.compact(name, lambda ctx: ctx.compact(1, 2, "two"))
    return made


def impatient(faces: Faces, address: str) -> Face:
    return faces.open(address, deadline=DEADLINE)


@pytest.mark.parametrize("kind", WRITES)
def test_a_commit_that_the_deadline_cancelled_is_of_unknown_outcome(
    pair: Pair, address: str, store: Face, faces: Faces, name: str, kind: str
) -> None:
    other = impatient(faces, address)
    stub = f"erased:{store.thread(name).thread_uid}"
    with standby_stopped(pair), pytest.raises(cs.OutcomeUnknown) as caught:
        WRITES[kind](other, name)
    assert bool(caught.value.key) == (kind != "metadata")
    assert "hi" not in str(caught.value).split()
    # It is there, and is reported once the standby has it too.
    assert store.audit.verify(stub if kind == "erase" else name).findings == ()
    if kind == "append":
        [message] = store.append(name, HI, key=caught.value.key)
        assert message.seq == 6
        assert store.thread(name).last_seq == 6


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize("how", ["pg_terminate_backend", "pg_cancel_backend"])
def test_a_commit_that_was_ended_from_outside_is_not_reported_before_the_standby_has_it(
    pair: Pair, address: str, store: Face, faces: Faces, name: str, kind: str, how: str
) -> None:
    """The retry finds it stored, and waits for the standby too."""
    other = impatient(faces, address)
    stub = f"erased:{store.thread(name).thread_uid}"
    ended: list[int] = []

    def end() -> None:
        for _ in range(200):
            for pid in standby.waiting(pair[0]):
                with superuser(pair[0].url) as connection:
                    connection.execute(f"SELECT {how}(%s)".encode(), [pid])
                ended.append(pid)
                return
            time.sleep(0.005)

    with standby_stopped(pair):
        ending = threading.Thread(target=end)
        ending.start()
        with pytest.raises(cs.OutcomeUnknown):
            WRITES[kind](other, name)
        ending.join()
    assert ended
    assert store.audit.verify(stub if kind == "erase" else name).findings == ()


def test_a_write_that_was_stored_and_not_reported_is_not_reported_by_a_retry_either(
    pair: Pair, address: str, faces: Faces, name: str
) -> None:
    """A load looks for messages that it has stored. Finding them does not prove that the standby has them."""
    store = faces.open(address, deadline=30)
    other = impatient(faces, address)
    with standby_stopped(pair):
        for _ in range(2):
            with pytest.raises(cs.OutcomeUnknown):
                other.load.messages(f"{name} 2", [HI] * 3, key="k", tokens=1)
    assert store.load.messages(f"{name} 2", [HI] * 3, key="k", tokens=1).added == 0


@pytest.mark.parametrize("how", ["pg_terminate_backend", "pg_cancel_backend"])
def test_a_commit_that_was_ended_from_outside_is_reported_when_the_standby_is_back(
    pair: Pair, store: Face, name: str, how: str
) -> None:
    def end_and_wake() -> None:
        while not (pids := standby.waiting(pair[0])):
            time.sleep(0.005)
        with superuser(pair[0].url) as connection:
            connection.execute(f"SELECT {how}(%s)".encode(), [pids[0]])
        time.sleep(0.3)
        pair[1].signal(signal.SIGCONT)

    with standby_stopped(pair):
        ending = threading.Thread(target=end_and_wake)
        ending.start()
        [message] = store.append(name, HI)
        ending.join()
    assert message.seq == 6
    assert store.thread(name).last_seq == 6


@pytest.mark.usefixtures("store")
def test_a_read_waits_for_no_standby(pair: Pair, address: str, faces: Faces, name: str) -> None:
    other = impatient(faces, address)
    with standby_stopped(pair):
        assert [m.seq for m in other.replay(name)] == [1, 2, 3, 4, 5]
        assert other.audit.verify(name).findings == ()


def test_a_warning_of_the_users_own_leaves_nothing_in_doubt(
    faces: Faces, url: str, superuser: psycopg.Connection[Any]
) -> None:
    superuser.execute(
        "CREATE FUNCTION public.warn() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE WARNING 'a message was stored'; RETURN NEW; END $$"
    )
    superuser.execute(
        "CREATE TRIGGER warn BEFORE INSERT ON compaction_store.messages FOR EACH ROW EXECUTE FUNCTION public.warn()"
    )
    assert faces.open(url, deadline=1).append("t", HI)[0].seq == 1
