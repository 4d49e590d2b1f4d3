"""Writers of one thread take turns in the database itself, and a call leaves nothing on the connection it used.

Both are tested without retries and poolers, which could hide an error. A write that waits for another one is not a
failed attempt, and it continues from the other's result.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest
from support.faces import Face, Faces
from support.keys import key_of
from support.paths import ROOT

import compaction_store as cs
from compaction_store.postgres import queries

HI = {"role": "assistant", "content": "hi"}
# The functions look up the key by the name.
UID = None
RUN = UUID(int=1)
OTHER_RUN = UUID(int=2)


def record(start: int, end: int) -> str:
    columns = {"kind": "removal", "outcome": "applied", "start_seq": start, "end_seq": end, "tokens_after": 0}
    return json.dumps([{"columns": columns, "salt": os.urandom(16).hex(), "body": '{"replacement":[]}'}])


# The statement of each write; the thread has four messages.
WRITES: dict[str, tuple[LiteralString, tuple[Any, ...]]] = {
    "append": (
        "append(%s, 'default', 't', '{}', %s, NULL, 1, 'c', NULL, NULL, NULL, NULL)", (UID, bytes(16)),
    ),
    "append, a key of the caller's": (
        "append(%s, 'default', 't', '{}', %s, NULL, 1, 'c', 'k', NULL, NULL, NULL)", (UID, bytes(16)),
    ),
    "append, a key of its own": (
        "append(%s, 'default', 't', '{}', %s, NULL, 1, 'c', '~k', NULL, NULL, NULL, true)", (UID, bytes(16)),
    ),
    "append_many": (
        "append_many(%s, 'default', 't', '{\"{}\",\"{}\"}', %s, '{NULL,NULL}', '{1,1}', 'c', NULL, NULL, NULL, NULL)",
        (UID, bytes(32)),
    ),
    "append_observed": (
        "append_observed(%s, 'default', 't', '{\"{}\"}', %s, '{NULL}', '{1}', 'c', NULL, NULL, NULL, NULL, %s, '[]')",
        (UID, bytes(16), OTHER_RUN),
    ),
    "commit": (
        (
            "commit_compactions(%s, 'default', 't', %s, 4,"
            " compaction_store.entry_at(compaction_store.find_thread('default', 't'), 4), %s)"
        ),
        (UID, RUN, record(1, 2)),
    ),
    "record_event": ("record_event(%s, 'default', 't', 'hold', NULL, %s, '{}')", (UID, bytes(16))),
    "redact": ("redact(%s, 'default', 't', '{4}', '{4}', NULL, %s, '{\"reason\":\"r\"}', true)", (UID, bytes(16))),
    "lease": ("lease(%s, 'default', 't', %s, 60)", (UID, OTHER_RUN)),
}  # fmt: skip

_ENTRIES = {"lease": 0, "append_many": 2}
_APPENDS = [name for name in WRITES if name.startswith("append")]


def write(connection: psycopg.Connection[Any], name: str) -> None:
    call, parameters = WRITES[name]
    connection.execute(b"SELECT compaction_store." + call.encode(), parameters)


def until_waiting(superuser: psycopg.Connection[Any], writing: Future[None]) -> None:
    query = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND backend_type = 'client backend'"
    )
    end = time.monotonic() + 20
    while not superuser.execute(query).fetchall():
        assert not writing.done(), "it did not wait for the other one"
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("second", WRITES)
@pytest.mark.parametrize("first", ["append", "commit", "lease"])
def test_a_write_that_waited_for_another_goes_on_from_it(
    url: str, superuser: psycopg.Connection[Any], first: str, second: str
) -> None:
    with (
        cs.Store.open(url) as store, psycopg.connect(url) as one, psycopg.connect(url, autocommit=True) as two,
        ThreadPoolExecutor(1) as pool,
    ):  # fmt: skip
        store.append("t", [HI] * 4, tokens=1)
        before = store.thread("t")
        write(one, first)
        writing = pool.submit(write, two, second)
        until_waiting(superuser, writing)
        [(moment,)] = superuser.execute("SELECT clock_timestamp()").fetchall()
        one.commit()
        writing.result(20)
        after = store.thread("t")
        # A second commit of the same run finds it stored already.
        written = 0 if first == second == "commit" else _ENTRIES.get(second, 1)
        assert after.last_pos - before.last_pos == _ENTRIES.get(first, 1) + written
        [(last_at,)] = superuser.execute("SELECT last_at FROM compaction_store.heads").fetchall()
        # A write that waited has a later time, because a view at an earlier time must not change.
        assert last_at > moment or not written
        assert store.audit.verify("t").findings == ()
        view = store.view("t")
        assert (view.pos, view.tokens) == (after.last_pos, after.view_tokens)


@pytest.mark.parametrize("key", [None, "k"])
def test_the_first_appends_of_a_thread_take_turns(
    url: str, superuser: psycopg.Connection[Any], key: str | None
) -> None:
    """The second append does not see the first until that has committed. Both have the same key, or none."""
    call = "SELECT compaction_store.append(%s, 'default', 't', %s, %s, 'assistant', 1, 'caller', %s, NULL, NULL, NULL)"
    with (
        cs.Store.open(url) as store, psycopg.connect(url) as one, ThreadPoolExecutor(1) as pool,
    ):  # fmt: skip
        one.execute(call, (UID, json.dumps(HI, separators=(",", ":")), bytes(16), key))
        writing = pool.submit(store.append, "t", HI, key=key, expected_seq=0 if key else None)
        until_waiting(superuser, writing)  # type: ignore[arg-type]
        one.commit()
        assert writing.result(20)[0].seq == (1 if key else 2)
        assert store.audit.verify("t").findings == ()


@pytest.mark.parametrize("second", _APPENDS)
def test_nobody_is_kept_out_by_the_queues_lock(url: str, superuser: psycopg.Connection[Any], second: str) -> None:
    """Any login can take that lock, without a grant."""
    with cs.Store.open(url) as store, psycopg.connect(url, autocommit=True) as two:
        store.append("t", [HI] * 4, tokens=1)
        superuser.execute("SELECT pg_advisory_lock(uuid_hash_extended(%s, 0))", (key_of(superuser, "t"),))
        write(two, second)
        assert store.thread("t").last_seq > 4
        assert store.audit.verify("t").findings == ()


_TOGETHER: LiteralString = (
    "append_together(%s, array_fill('default'::text, '{8}'), array_fill('t'::text, '{8}'), array_fill(1, '{8}'),"
    " array_fill('c'::text, '{8}'), array_fill(NULL::text, '{8}'), array_fill(NULL::text, '{8}'),"
    " array_fill(NULL::bigint, '{8}'), array_fill(%s::boolean, '{8}'), array_fill(NULL::bytea, '{8}'),"
    " array_fill(NULL::bytea, '{8}'), array_fill('{}'::text, '{8}'), %s, array_fill(NULL::text, '{8}'),"
    " array_fill(1, '{8}'), array_fill(NULL::text, '{8}'), array_fill(NULL::text, '{8}'),"
    " array_fill(NULL::text, '{8}'))"
)


def waits_for(superuser: psycopg.Connection[Any], pid: int, event: str, writing: Future[Any]) -> bool:
    """Returns whether a backend waits for such a lock before it is done."""
    query = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = %s"
    end = time.monotonic() + 20
    while not writing.done():
        if superuser.execute(query, (pid, event)).fetchall():
            return True
        assert time.monotonic() < end
        time.sleep(0.005)
    return False


@pytest.mark.parametrize("second", ["append_observed", "append_together", "append_together, fresh"])
def test_a_write_that_has_the_row_does_not_wait_for_the_queues_lock(
    url: str, superuser: psycopg.Connection[Any], second: str
) -> None:
    """The writer that owns the queue's lock may be waiting for the row."""
    calls: dict[str, tuple[LiteralString, tuple[Any, ...]]] = {
        "append_observed": WRITES["append_observed"],
        "append_together": (_TOGETHER, ([None] * 8, False, bytes(128))),
        "append_together, fresh": (_TOGETHER, ([None] * 8, True, bytes(128))),
    }
    call, parameters = calls[second]
    with (
        cs.Store.open(url) as store, psycopg.connect(url) as holder, psycopg.connect(url) as queued,
        psycopg.connect(url, autocommit=True) as passing, ThreadPoolExecutor(2) as pool,
    ):  # fmt: skip
        store.append("t", [HI] * 4, tokens=1)
        holder.execute("SELECT FROM compaction_store.heads FOR UPDATE")
        queued.execute("SELECT pg_advisory_xact_lock(uuid_hash_extended(%s, 0))", (key_of(superuser, "t"),))
        written = pool.submit(passing.execute, b"SELECT compaction_store." + call.encode(), parameters)
        # It waits in the queue for a second, then for the row.
        assert waits_for(superuser, passing.info.backend_pid, "transactionid", written)
        holder.rollback()
        assert not waits_for(superuser, passing.info.backend_pid, "advisory", written)
        write(queued, "append")
        queued.commit()
        stored = written.result(20).rowcount
        assert stored == (1 if second == "append_observed" else 8)
        assert store.thread("t").last_seq == 4 + 1 + stored
        assert store.audit.verify("t").findings == ()


_LOCKS = re.compile(r"FROM compaction_store\.heads[^;]*FOR UPDATE")
_QUEUES = re.compile(
    r"PERFORM compaction_store\.queue_up\(\w+\);|pg_try_advisory_xact_lock\(uuid_hash_extended\(v_thread_uid, 0\)\)"
)


def test_all_that_lock_a_head_stand_in_the_queue_first() -> None:
    """A writer that finds the queue empty takes the row for free."""
    files = sorted((ROOT / "migrations" / "sql").rglob("*.sql"))
    texts = {path.name: path.read_text(encoding="utf-8") for path in files}
    locks = {name: found for name, text in texts.items() if (found := _LOCKS.search(text)) is not None}
    assert len(locks) >= 10
    for name, found in locks.items():
        if name != "record_once.sql":
            assert _QUEUES.search(texts[name][: found.start()]), name
    callers = {name: at for name, text in texts.items() if (at := text.find("FROM compaction_store.record_once(")) > 0}
    callers_of = {"event", "evaluation", "in_log", "verdict"}
    assert callers.keys() == {f"record_{name}.sql" for name in callers_of} | {"set_subject.sql"}
    for name, at in callers.items():
        assert _QUEUES.search(texts[name][:at]), name


# ---- state that a call leaves on a connection


def ask(face: Face, statement: str) -> tuple[Any, ...]:
    """Runs a query on the store's only connection."""
    rows = face.store._db.call(queries.fetch, statement)
    if inspect.isawaitable(rows):
        rows = face._run(rows)
    return tuple(rows[0])


LEFT = """
    SELECT (SELECT count(*) FROM pg_prepared_statements WHERE NOT starts_with(name, 'compaction_store_')),
        (SELECT count(*) FROM pg_cursors WHERE is_holdable),
        (SELECT count(*) FROM pg_listening_channels()), (SELECT count(*) FROM pg_class WHERE relpersistence = 't'),
        (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'),
        (SELECT array_agg(name ORDER BY name) FROM pg_settings WHERE source = 'session'),
        coalesce(current_setting('compaction_store.tenant', true), ''), pg_backend_pid()
"""


def test_a_call_leaves_nothing_on_its_connection(faces: Faces, url: str) -> None:
    """Behind a transaction pooler the next caller on it is somebody else: a tenant or a statement would be theirs."""
    store = faces.open(url, pool_size=1)
    backend = ask(store, "SELECT pg_backend_pid()")
    calls: list[Callable[[], object]] = [
        lambda: store.append("t", HI),
        lambda: store.append("t", [HI, HI], key="k"),
        lambda: store.load.messages("t", [HI] * 3),
        lambda: store.set_metadata("t", {"a": 1}),
        lambda: store.compact("t", lambda ctx: ctx.remove(ctx.elements[0].seq, ctx.elements[1].end_seq)),
        lambda: store.compact("t", lambda _: None, budget=cs.TokenBudget(100), force=True),
        lambda: store.view("t"),
        lambda: list(store.replay("t", last=2)),
        lambda: list(store.threads()),
        lambda: list(store.compactions()),
        lambda: store.custody.redact("t", 1, reason="r"),
        lambda: list(store.audit.events("t")),
        lambda: store.audit.verify("t"),
    ]
    for call in calls:
        # A driver that prepares statements does so after five or six uses.
        for _ in range(7):
            call()
        assert ask(store, LEFT) == (0, 0, 0, 0, 0, None, "", *backend)
