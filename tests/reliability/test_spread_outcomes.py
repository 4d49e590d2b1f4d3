"""On a cluster, a cancel or an internal error may reach the coordinator when a worker has committed."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest
from support.faces import Faces

import compaction_store as cs

pytestmark = pytest.mark.one_server("it makes one server look like a cluster")
HI = {"role": "user", "content": "hi"}
_TABLE = "CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass)"


@pytest.fixture
def spread(superuser: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """A database that looks like a cluster."""
    superuser.execute("SET allow_system_table_mods = on")
    superuser.execute(_TABLE)
    return superuser


def fail(connection: psycopg.Connection[Any], state: str) -> None:
    """Makes every append fail with this SQLSTATE from now on, as on a node."""
    connection.execute(
        "CREATE OR REPLACE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql"
        f" AS $$ BEGIN RAISE EXCEPTION 'a node says so' USING ERRCODE = '{state}'; END $$".encode()
    )
    connection.execute(
        "CREATE OR REPLACE TRIGGER fail BEFORE INSERT ON compaction_store.messages"
        " FOR EACH ROW EXECUTE FUNCTION public.fail()"
    )


@pytest.mark.parametrize("state", ["XX000", "CS009", "57014"])
def test_a_write_that_a_cluster_failed_is_of_unknown_outcome(
    faces: Faces, url: str, spread: psycopg.Connection[Any], state: str
) -> None:
    store = faces.open(url, deadline=0.5)
    store.append("t", HI)
    fail(spread, state)
    with pytest.raises(cs.OutcomeUnknown) as caught:
        store.append("t", HI)
    assert caught.value.key
    assert caught.value.sqlstate == state
    spread.execute("DROP TRIGGER fail ON compaction_store.messages")
    assert store.append("t", HI, key=caught.value.key)[0].seq == 2


@pytest.mark.parametrize("state", ["XX000", "CS009", "57014"])
def test_it_is_settled_by_another_try_while_there_is_time(
    faces: Faces, url: str, spread: psycopg.Connection[Any], state: str
) -> None:
    store = faces.open(url)
    store.append("t", HI)
    fail(spread, state)

    def mend() -> None:
        time.sleep(0.4)
        spread.execute("DROP TRIGGER fail ON compaction_store.messages")

    mending = threading.Thread(target=mend)
    mending.start()
    assert store.append("t", HI)[0].seq == 2
    mending.join()


def fail_replay(connection: psycopg.Connection[Any], state: str) -> str:
    """Makes the function that reads messages fail; returns the statement that undoes it."""
    [(text,)] = connection.execute(
        "SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p"
        " WHERE p.pronamespace = 'compaction_store'::regnamespace AND p.proname = 'replay'"
    ).fetchall()
    head = str(text)[: str(text).index("\nAS ")].replace("LANGUAGE sql", "LANGUAGE plpgsql")
    body = f"BEGIN RAISE EXCEPTION 'a node says so' USING ERRCODE = '{state}'; END"
    connection.execute(f"{head} AS $fails${body}$fails$".encode())
    return str(text)


@pytest.mark.parametrize("state", ["XX000", "CS009"])
def test_a_read_that_a_cluster_failed_is_tried_again(
    faces: Faces, url: str, spread: psycopg.Connection[Any], state: str
) -> None:
    store = faces.open(url, deadline=1)
    store.append("t", HI)
    undo = fail_replay(spread, state)
    with pytest.raises(cs.DatabaseUnavailable) as caught:
        list(store.replay("t"))
    assert caught.value.sqlstate == state
    mending = threading.Timer(0.3, lambda: spread.execute(undo.encode()))
    mending.start()
    assert [message.seq for message in store.replay("t")] == [1]
    mending.join()


def test_an_append_that_was_stored_before_and_cannot_be_read_back_is_of_unknown_outcome(
    faces: Faces, url: str, spread: psycopg.Connection[Any]
) -> None:
    store = faces.open(url, deadline=0.5)
    store.append("t", HI, key="k")
    fail_replay(spread, "XX000")
    with pytest.raises(cs.OutcomeUnknown) as caught:
        store.append("t", HI, key="k")
    assert caught.value.key == "k"


@pytest.mark.parametrize(("state", "kind"), [("XX000", cs.DatabaseError), ("57014", cs.DatabaseUnavailable)])
def test_one_server_that_fails_has_stored_nothing(
    faces: Faces, url: str, superuser: psycopg.Connection[Any], state: str, kind: type[cs.DatabaseError]
) -> None:
    store = faces.open(url, deadline=0.5)
    store.append("t", HI)
    fail(superuser, state)
    with pytest.raises(kind) as caught:
        store.append("t", HI)
    assert type(caught.value) is kind


def test_a_cancel_at_the_deadline_is_followed_by_a_last_try(
    faces: Faces, url: str, spread: psycopg.Connection[Any]
) -> None:
    store = faces.open(url, deadline=0.5)
    store.append("t", HI)
    with psycopg.connect(url) as holder:
        holder.execute("SELECT FROM compaction_store.heads FOR UPDATE")
        with pytest.raises(cs.OutcomeUnknown):
            store.append("t", HI)
        holder.rollback()
    assert store.thread("t").last_seq == 1
    assert spread.info.dbname in url
