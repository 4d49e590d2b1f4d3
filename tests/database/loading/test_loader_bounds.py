"""The loader's role adds whole threads and messages to a tenant it names, and nothing else, with any SQL."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.embedded_servers import wait_until
from support.faces import Face, Faces
from support.handmade_bundles import START, Thread, golden, new_key, said, sealed
from support.keys import key_of
from support.lock_waits import until_waiting

import compaction_store as cs
from compaction_store.errors import ThreadDamaged
from compaction_store.integrity import chain

TENANT = "default"
HI = {"role": "user", "content": "hi"}
_YEAR = 31_557_600 * 1_000_000
_DAY = 86_400 * 1_000_000


def count(superuser: psycopg.Connection[Any], table: str) -> int:
    [(found,)] = superuser.execute(f"SELECT count(*) FROM compaction_store.{table}".encode()).fetchall()
    return int(found)


# ---- what it cannot do


_DENIED = {
    "a message": "INSERT INTO compaction_store.messages (thread_uid, seq) VALUES (gen_random_uuid(), 1)",
    "a record": "INSERT INTO compaction_store.compactions (thread_uid, number) VALUES (gen_random_uuid(), 1)",
    "an event": "INSERT INTO compaction_store.events (thread_uid, pos) VALUES (gen_random_uuid(), 1)",
    "a head": "INSERT INTO compaction_store.heads (thread_uid) VALUES (gen_random_uuid())",
    "a name": "INSERT INTO compaction_store.threads (thread_uid) VALUES (gen_random_uuid())",
    "reading messages": "SELECT FROM compaction_store.messages",
    "reading heads": "SELECT FROM compaction_store.heads",
    "reading what is staged": "SELECT FROM compaction_store.staged",
    "removing what is staged": "DELETE FROM compaction_store.staged",
    "another's transaction": "INSERT INTO compaction_store.staged (staged_by, type, pos) VALUES (1, 'event', 1)",
    "its default by name": "INSERT INTO compaction_store.staged (staged_by) VALUES (DEFAULT)",
    "COPY into the log": "COPY compaction_store.messages (thread_uid, seq) FROM STDIN",
    "COPY of a transaction": "COPY compaction_store.staged (staged_by, type, pos) FROM STDIN",
    "the owner's role": "SET ROLE compaction_store_owner",
    "an append": "SELECT compaction_store.append(NULL, 'x', 'x', 'x', NULL, 'x', 1, 'x', 'x', 'x', 'x', 1)",
    "a release": "SELECT compaction_store.record_event(NULL, 'x', 'x', 'release', 'x', NULL, 'x')",
    "a record in force": "SELECT compaction_store.commit_compactions(NULL, 'x', 'x', NULL, 1, NULL, 'x')",
}  # fmt: skip


@pytest.mark.parametrize("what", _DENIED)
@pytest.mark.one_server("it calls functions without a key")
def test_what_the_loaders_role_may_not_do(loader: str, what: str) -> None:
    with psycopg.connect(loader, autocommit=True) as mine, pytest.raises(psycopg.errors.InsufficientPrivilege):
        mine.execute(_DENIED[what])


def test_a_load_of_another_tenants_thread_is_a_thread_of_its_own(
    faces: Faces, url: str, loader: str, superuser: psycopg.Connection[Any]
) -> None:
    """The key of another tenant's thread leads nowhere, and the answer is that of a key that nobody has."""
    theirs = faces.open(url, tenant="theirs")
    theirs.append("t", HI)
    mine = faces.open(loader, tenant="mine")
    assert mine.load.messages("t", [HI, HI]).added == 2
    assert theirs.thread("t").last_seq == 1
    call = (
        "SELECT compaction_store.load(%s, 'mine', 't', ARRAY['{\"role\":\"user\"}'], %s, '{user}', '{1}', '{c}', NULL,"
        " 'k', NULL)"
    )
    told = []
    for uid in (key_of(superuser, "t", "theirs"), uuid.uuid4()):
        with psycopg.connect(loader, autocommit=True) as sql, pytest.raises(psycopg.Error) as caught:
            sql.execute(call, (uid, bytes(16)))
        assert caught.value.sqlstate == "CS001"
        # On a cluster, the error's context names the node that a key belongs to.
        told.append([getattr(caught.value.diag, f"message_{part}") for part in ("primary", "detail", "hint")])
    assert told[0] == told[1]
    assert (theirs.thread("t").last_seq, mine.thread("t").last_seq) == (1, 2)


def test_a_record_of_a_loader_is_never_in_force(
    faces: Faces, url: str, loader: str, superuser: psycopg.Connection[Any]
) -> None:
    faces.open(url).append("t", [HI] * 3)
    records = (
        '[{"columns":{"kind":"removal","outcome":"applied","start_seq":1,"end_seq":2,"tokens_after":0},'
        '"salt":"00000000000000000000000000000000","body":"{\\"replacement\\":[]}"}]'
    )
    uid = key_of(superuser, "t")
    with psycopg.connect(loader, autocommit=True) as sql, pytest.raises(psycopg.Error) as caught:
        sql.execute("SELECT compaction_store.observe(%s, %s, 't', %s, %s)", (uid, TENANT, uid, records))
    assert caught.value.sqlstate == "CS008"


# ---- what an import accepts


@pytest.mark.one_server("a cluster stages rows with a function")
def test_what_an_import_left_staged_neither_shows_nor_blocks(
    faces: Faces, url: str, loader: str, superuser: psycopg.Connection[Any]
) -> None:
    lines = golden()["bundle-1.jsonl"]
    with psycopg.connect(loader, autocommit=True) as other:
        other.execute(
            "INSERT INTO compaction_store.staged (thread_uid, type, ordinal, pos, created_at, commitment, entry, body)"
            " SELECT gen_random_uuid(), 'message', g, g, now(), '', '', '{}' FROM generate_series(1, 50) AS g"
        )
        assert count(superuser, "staged") == 50
        # Rows go when no transaction of the server is older, in other tests' databases too.
        wait_until(lambda: _none_is_older(superuser))
        with psycopg.connect(loader) as open_yet:
            open_yet.execute(
                "INSERT INTO compaction_store.staged (thread_uid, type, pos, created_at, commitment, entry)"
                " VALUES (gen_random_uuid(), 'event', 1, now(), '', '')"
            )
            store = faces.open(loader)
            assert store.load.bundle(lines).added
            assert faces.open(url).audit.verify("t-1").findings == ()
            # That transaction may still commit, so its rows must stay.
            open_yet.commit()
        assert count(superuser, "staged") == 1
    assert not store.load.bundle(lines).added
    assert list(store.audit.export("t-1"))[1:-1] == lines[1:-1]


def _none_is_older(superuser: psycopg.Connection[Any]) -> bool:
    [row] = superuser.execute(
        "SELECT bool_and(s.staged_by < pg_snapshot_xmin(pg_current_snapshot())::text::bigint)"
        " FROM compaction_store.staged AS s"
    )
    return row[0] is True


def _finish(sql: psycopg.Connection[Any], thread: Thread, **changed: Any) -> Any:
    given = {
        "uid": thread.uid, "tenant": thread.tenant, "name": thread.thread_id, "salt": thread.name_salt,
        "commitment": thread.name_commitment, "metadata": "{}", "subject": None, "seq": 1, "number": 0,
        "pos": 1, "head": bytes.fromhex(thread.entries[-1]["entry"]),
    } | changed  # fmt: skip
    return sql.execute(
        "SELECT found_pos, found_head FROM compaction_store.finish_import(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [*given.values()],
    ).fetchall()


def _stage(sql: psycopg.Connection[Any], thread: Thread) -> None:
    for line in thread.entries:
        sql.execute(
            "INSERT INTO compaction_store.staged"
            " (thread_uid, type, ordinal, pos, created_at, salt, commitment, entry, body, tokens, role, counter, login)"
            " VALUES (%s, 'message', %s, %s, 'epoch'::timestamptz + %s * interval '1 microsecond', decode(%s, 'hex'),"
            " decode(%s, 'hex'), decode(%s, 'hex'), %s, %s, %s, %s, %s)",
            [thread.uid, *(line[n] for n in (
                "seq", "pos", "microseconds", "salt", "commitment", "entry", "payload", "tokens", "role", "counter",
                "login",
            ))],
        )  # fmt: skip


@pytest.mark.one_server("a cluster stages rows with a function")
@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({}, None),
        ({"tenant": "theirs"}, "CS010"),
        ({"name": "other"}, "CS010"),
        ({"uid": new_key("theirs", "t-1")}, "CS010"),
        ({"uid": UUID("6c84fb90-12c4-11e1-840d-7b25c5ee775a")}, "CS010"),
        ({"uid": new_key(TENANT, "t-1", START + 1_000)}, "CS010"),
        ({"uid": UUID(int=Thread().uid.int & ~(0xF << 76) | 8 << 76)}, "CS010"),
        ({"salt": None}, "CS010"),
        ({"salt": bytes(16)}, "CS010"),
        ({"salt": bytes(15), "commitment": chain.name_commitment(bytes(15), "t-1")}, "CS010"),
        ({"commitment": bytes(32)}, "CS010"),
        ({"salt": bytes(16), "commitment": chain.name_commitment(bytes(16), "t-1")}, "CS010"),
        ({"name": f"erased:{Thread().uid}"}, "CS010"),
        ({"name": f"erased:{new_key('theirs', 't-1')}"}, "CS018"),
        ({"head": bytes(32)}, "CS010"),
        ({"seq": 2, "pos": 2}, "CS010"),
        ({"metadata": "[]"}, "CS019"),
        ({"name": "", "commitment": chain.name_commitment(Thread().name_salt or b"", "")}, "CS018"),
    ],
    ids=str,
)
def test_an_import_in_sql_is_judged(
    url: str, loader: str, superuser: psycopg.Connection[Any], changed: dict[str, Any], state: str | None
) -> None:
    thread = Thread()
    thread.message('{"role":"user","content":"hi"}')
    with psycopg.connect(loader) as sql:
        _stage(sql, thread)
        if state is None:
            assert _finish(sql, thread) == [(None, None)]
        else:
            with pytest.raises(psycopg.Error) as caught:
                _finish(sql, thread, **changed)
            assert caught.value.sqlstate == state
            sql.rollback()
    with cs.Store.open(url) as store:
        assert [t.thread_id for t in store.threads()] == (["t-1"] if state is None else [])
    assert count(superuser, "staged") == 0


@pytest.mark.one_server("a cluster stages rows with a function")
def test_an_import_in_sql_adds_to_no_thread_that_is_there(url: str, loader: str) -> None:
    thread = Thread()
    thread.message('{"role":"user","content":"hi"}')
    with cs.Store.open(url) as store, psycopg.connect(loader) as sql:
        store.load.bundle(thread.lines())
        store.append("t-1", HI)
        before = store.thread("t-1")
        _stage(sql, thread)
        assert _finish(sql, thread) == [(2, before.head)]
        sql.commit()
        assert store.thread("t-1") == before
        # A thread that has the name and another key is in the way.
        other = Thread(uid=new_key(TENANT, "other"))
        other.message('{"role":"user","content":"hi"}')
        _stage(sql, other)
        with pytest.raises(psycopg.Error, match="the name is taken by another thread") as caught:
            _finish(sql, other)
        assert caught.value.sqlstate == "CS022"
        sql.rollback()
        assert list(store.threads()) == [before]


_SHADOWS = (
    *(f"CREATE TEMP TABLE {table} (thread_uid uuid, staged_by bigint, tenant text, body text)" for table in (
        "staged", "threads", "heads", "messages", "compactions", "events",
    )),
    "CREATE FUNCTION pg_temp.octet_length(bytea) RETURNS integer LANGUAGE sql AS 'SELECT 16'",
    "CREATE FUNCTION pg_temp.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''infinity''::timestamptz'",
    "CREATE DOMAIN pg_temp.uuid AS text",
    "SET search_path = pg_temp, public, pg_catalog",
    "SET check_function_bodies = off",
    "SET plan_cache_mode = force_generic_plan",
)  # fmt: skip


@pytest.mark.one_server("a cluster stages rows with a function")
def test_a_session_cannot_put_names_of_its_own_in_the_way(url: str, loader: str) -> None:
    thread, odd = Thread(), Thread(uid=new_key(TENANT, "odd"), thread_id="odd")
    thread.message('{"role":"user","content":"hi"}')
    odd.message('{"role":"user","content":"hi"}')
    odd.entries[0]["tokens"] += 1
    with psycopg.connect(loader, autocommit=True) as sql:
        for statement in _SHADOWS:
            sql.execute(statement.encode())
        with sql.transaction():
            _stage(sql, thread)
            assert _finish(sql, thread) == [(None, None)]
        sql.execute("BEGIN")
        _stage(sql, odd)
        with pytest.raises(psycopg.Error, match="do not form a chain"):
            _finish(sql, odd, name="odd")
        sql.execute("ROLLBACK")
        for table in ("staged", "threads", "messages"):
            assert sql.execute(f"SELECT FROM pg_temp.{table}".encode()).fetchall() == []
    with cs.Store.open(url) as store:
        assert [t.thread_id for t in store.threads()] == ["t-1"]
        assert store.audit.verify("t-1", level="schema").findings == ()


@pytest.mark.one_server("a cluster stages rows with a function")
def test_a_session_may_stage_again_and_what_it_rolled_back_is_gone(
    url: str, loader: str, superuser: psycopg.Connection[Any]
) -> None:
    one, two = Thread(), Thread(uid=new_key(TENANT, "t-2"), thread_id="t-2")
    for thread in (one, two):
        thread.message('{"role":"user","content":"hi"}')
    with psycopg.connect(loader) as sql:
        _stage(sql, one)
        sql.rollback()
        # What was rolled back is not there to be moved.
        with pytest.raises(psycopg.Error) as caught:
            _finish(sql, one)
        assert caught.value.sqlstate == "CS010"
        sql.rollback()
        _stage(sql, one)
        _stage(sql, two)
        # The rows of one thread do not come with the other's.
        assert _finish(sql, two, name="t-2") == [(None, None)]
        assert _finish(sql, one) == [(None, None)]
        _stage(sql, one)
        assert _finish(sql, one) == [(1, bytes.fromhex(one.entries[-1]["entry"]))]
        sql.commit()
        # Rows that are there twice are no chain.
        three = Thread(uid=new_key(TENANT, "t-3"), thread_id="t-3")
        three.message('{"role":"user","content":"hi"}')
        _stage(sql, three)
        _stage(sql, three)
        with pytest.raises(psycopg.Error):
            _finish(sql, three, name="t-3")
        sql.rollback()
    with cs.Store.open(url) as store:
        assert sorted(t.thread_id for t in store.threads()) == ["t-1", "t-2"]
        assert [f for report in store.audit.verify() for f in report.findings] == []
    assert count(superuser, "staged") == 0


@pytest.mark.one_server("a cluster stages rows with a function")
def test_of_two_imports_of_one_thread_the_second_waits_and_finds_it(
    url: str, loader: str, superuser: psycopg.Connection[Any]
) -> None:
    thread = Thread()
    thread.message('{"role":"user","content":"hi"}')
    head = bytes.fromhex(thread.entries[-1]["entry"])
    with (
        psycopg.connect(loader) as one,
        psycopg.connect(loader, application_name="compaction-store") as two,
        ThreadPoolExecutor(1) as pool,
    ):
        for sql in (one, two):
            _stage(sql, thread)
        assert _finish(one, thread) == [(None, None)]
        waiting = pool.submit(_finish, two, thread)
        until_waiting(superuser)
        one.commit()
        assert waiting.result(30) == [(1, head)]
        two.commit()
    with cs.Store.open(url) as store:
        assert store.thread("t-1").last_pos == 1
        assert store.audit.verify("t-1").findings == ()
    assert count(superuser, "staged") == 0


def _at(microseconds: int) -> Thread:
    thread = Thread(uid=new_key(TENANT, "t-1", microseconds))
    thread.message('{"role":"user","content":"hi"}', microseconds=microseconds)
    return thread


@pytest.mark.one_server("a cluster stages rows with a function")
@pytest.mark.parametrize(
    ("moment", "fits"),
    [
        (START, True),
        (-62_135_596_800_000_000, True),
        (-62_135_596_801_000_000, False),
        (317_280_164_640_000_000, False),
        (START + 100 * _YEAR, False),
    ],
)
def test_an_import_of_a_time_that_no_clock_showed_is_refused(loader: str, moment: int, fits: bool) -> None:
    """The server refuses it, even if a client does not."""
    thread = _at(moment)
    with psycopg.connect(loader) as sql:
        _stage(sql, thread)
        if fits:
            assert _finish(sql, thread) == [(None, None)]
            return
        with pytest.raises(psycopg.Error, match="before the year 1 or more than a day ahead"):
            _finish(sql, thread)


def test_a_clock_that_is_somewhat_ahead_is_no_reason(store: Face, superuser: psycopg.Connection[Any]) -> None:
    [(now,)] = superuser.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchall()
    with pytest.raises(cs.InvalidBundle, match="more than a day ahead"):
        store.load.bundle(_at(now + _DAY + _DAY // 24).lines())
    assert store.load.bundle(_at(now + _DAY - _DAY // 24).lines()).added
    assert store.append("t-1", HI)[0].seq == 2
    assert store.audit.verify("t-1").findings == ()


# ---- stubs, which prove their tenant and their key


def test_the_bundle_of_an_erased_thread_is_taken_for_what_it_is(
    faces: Faces, url: str, loader: str, superuser: psycopg.Connection[Any]
) -> None:
    store, theirs = faces.open(loader), faces.open(loader, tenant="theirs")
    thread = Thread()
    thread.message('{"role":"user","content":"hi"}')
    thread.erase()
    manifest, *entries = said(thread.lines())
    other = str(new_key(TENANT, "not there yet"))
    for change in (
        {"tenant": "theirs"}, {"thread_uid": other}, {"thread_uid": other, "thread_id": f"erased:{other}"},
        {"thread_id": f"erased:{other}"}, {"name_commitment": "00" * 32}, {"name_salt": "00" * 16},
        {"thread_id": "t-1"}, {"thread_id": "t-1", "name_salt": Thread().name_salt.hex()},  # type: ignore[union-attr]
    ):  # fmt: skip
        lines = sealed([manifest | change, *entries])
        assert cs.verify_bundle(lines).findings
        with pytest.raises(cs.InvalidBundle):
            (theirs if "tenant" in change else store).load.bundle(lines)
    # Granting the loader its role is an event of the log.
    assert count(superuser, "threads WHERE tenant <> 'compaction-store'") == 0
    assert store.load.bundle(thread.lines()).added
    assert [t.thread_id for t in faces.open(url).threads()] == [f"erased:{thread.uid}"]


def test_a_key_that_another_tenant_has_is_said_to_be_taken(faces: Faces, url: str) -> None:
    """No two threads are made with one key; whoever makes bundles by hand can make two."""
    mine, theirs = faces.open(url), faces.open(url, tenant="theirs")
    bundles = {tenant: Thread(tenant, "t", uid=new_key(TENANT, "t")) for tenant in (TENANT, "theirs")}
    for bundle in bundles.values():
        bundle.message('{"role":"user","content":"hi"}')
        assert cs.verify_bundle(bundle.lines()).findings == ()
    mine.load.bundle(bundles[TENANT].lines())
    with pytest.raises(ThreadDamaged, match="the thread_uid is taken: another tenant has it"):
        theirs.load.bundle(bundles["theirs"].lines())
    with pytest.raises(cs.ThreadNotFound):
        theirs.thread("t")
    assert theirs.append("t", HI)[0].seq == 1
    assert mine.audit.verify("t").findings == theirs.audit.verify("t").findings == ()
