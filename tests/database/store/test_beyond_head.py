"""A row beyond a thread's head is no part of it, no matter who wrote it: never read, in force, or built on."""

from __future__ import annotations

from itertools import product
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from support import cluster
from support.faces import Face
from support.keys import key_of

import compaction_store as cs
from compaction_store.errors import ThreadDamaged, TurnLost

TENANT = "default"
FORGED = "FORGED"
HI = {"role": "user", "content": "hi"}
_ZERO = bytes(32)


@pytest.fixture
def busy(store: Face, superuser: psycopg.Connection[Any]) -> Face:
    """A thread with all three kinds of entries: 9 messages, records 1 to 3, and a hold."""
    store.append("t", [{"role": "user", "content": f"message {i} " * 9} for i in range(8)], key="first")
    store.append("t", {"role": "assistant", "content": "so"}, view=store.view("t"))
    store.compact("t", lambda ctx: ctx.compact(2, 4, "short"))
    store.compact("t", lambda ctx: ctx.compact(6, 7, "brief"))
    store.revoke("t", 2, reason="too much")
    store.custody.hold("t", reason="audit")
    superuser.execute("SELECT set_config('compaction_store.tenant', %s, false)", (TENANT,))
    return store


def _insert(superuser: psycopg.Connection[Any], table: str, **columns: Any) -> None:
    given = {
        "thread_uid": key_of(superuser, "t", TENANT), "tenant": TENANT, "salt": bytes(16), "commitment": _ZERO,
        "entry": _ZERO, "created_at": "2020-01-01T00:00:00Z",
    } | columns  # fmt: skip
    names, places = ", ".join(given), ", ".join(["%s"] * len(given))
    superuser.execute(f"INSERT INTO compaction_store.{table} ({names}) VALUES ({places})".encode(), [*given.values()])


def forge_message(superuser: psycopg.Connection[Any], seq: int, **columns: Any) -> None:
    given = {"pos": 3, "tokens": 1, "counter": "caller", "role": "system", "login": "alice"}
    _insert(superuser, "messages", seq=seq, payload=f'{{"role":"system","content":"{FORGED}"}}', **given | columns)


def forge_record(superuser: psycopg.Connection[Any], number: int, **columns: Any) -> None:
    given = {
        "pos": 1, "start_seq": 1, "end_seq": 9, "tokens_before": 9, "tokens_after": 1, "kind": "summary",
        "outcome": "applied", "actor": "alice", "login": "alice", "run_id": UUID(int=1), "source_count": 9,
    }  # fmt: skip
    body = f'{{"replacement":[{{"role":"system","content":"{FORGED}"}}]}}'
    _insert(superuser, "compactions", number=number, **{"body": body} | given | columns)


def forge_event(
    superuser: psycopg.Connection[Any], pos: int, kind: str, body: str = '{"reason":"r"}', *, critical: bool = False
) -> None:
    _insert(superuser, "events", pos=pos, kind=kind, critical=critical, actor="counsel", login="counsel", body=body)


def everything(store: Face) -> dict[str, Any]:
    """Returns everything that a reader of the thread gets, now and at every pos."""
    last = store.thread("t").last_pos
    return {
        "thread": store.thread("t"),
        "threads": list(store.threads()),
        "replay": list(store.replay("t")),
        "after": list(store.replay("t", after=4)),
        "newest": list(store.replay("t", last=4)),
        "view": store.view("t"),
        "views": [store.view("t", at=pos) for pos in range(1, last + 1)],
        "log": list(store.compactions("t")),
        "audit": list(store.compactions()),
        "covering": list(store.compactions("t", covering=3)),
        "events": list(store.audit.events("t")),
        "explained": [store.audit.explain("t", seq) for seq in range(1, 10)],
        "tree": [store.audit.tree(record) for record in store.compactions("t", outcome="applied")],
        "seen": store.seen_by("t", 9),
        "moment": store.view("t", at=store.thread("t").last_at).pos,
    }


def test_what_is_beyond_the_head_is_never_read(busy: Face, superuser: psycopg.Connection[Any]) -> None:
    before = everything(busy)
    forge_message(superuser, 10, key="forged", receipt='{"pos":1}')
    forge_message(superuser, 9999)
    forge_record(superuser, 4)
    forge_record(superuser, 9998, run_id=UUID(int=2), outcome="rejected", kind="removal")
    forge_record(superuser, 9999, kind="revocation", revokes=1, start_seq=2, end_seq=4)
    forge_record(superuser, 9997, kind="unheard_of")
    forge_event(superuser, 1000, "release")
    forge_event(superuser, 1001, "unheard_of", critical=True)
    assert everything(busy) == before
    assert FORGED not in repr(before)
    with pytest.raises(cs.MessageNotFound):
        busy.message("t", 10)
    with pytest.raises(cs.MessageNotFound):
        busy.seen_by("t", 10)
    with pytest.raises(cs.CompactionNotFound):
        busy.compaction("t", 4)
    found = {finding.what for finding in busy.audit.verify("t").findings}
    assert len(found) > 3


def test_an_event_beyond_the_head_lifts_no_hold_and_makes_none(busy: Face, superuser: psycopg.Connection[Any]) -> None:
    forge_event(superuser, 1000, "release")
    with pytest.raises(cs.Held):
        busy.custody.redact("t", 1, reason="r")
    with pytest.raises(cs.Held):
        busy.custody.erase("t", reason="r")
    busy.custody.release("t", reason="done")
    forge_event(superuser, 1001, "hold")
    forge_event(superuser, 1002, "retention", '{"until":"2099-01-01T00:00:00.000000Z","reason":"law"}')
    assert busy.custody.redact("t", 1, reason="r").seqs == (1,)


def test_what_is_erased_is_what_is_in_the_thread(busy: Face, superuser: psycopg.Connection[Any]) -> None:
    forge_message(superuser, 11)
    forge_record(superuser, 11)
    busy.custody.release("t", reason="done")
    assert busy.custody.redact("t", 3, reason="r").records == (1,)
    done = busy.custody.erase("t", reason="r")
    assert (max(done.seqs), max(done.records)) == (9, 3)


def test_a_key_beyond_the_head_is_no_answer(busy: Face, superuser: psycopg.Connection[Any]) -> None:
    """If it were, a retry would be told that a message is stored that was never acknowledged."""
    forge_message(superuser, 50, key="k")
    with pytest.raises(ThreadDamaged, match=r"beyond its head.*verify.*'t'") as caught:
        busy.append("t", {"role": "system", "content": FORGED}, key="k")
    assert caught.value.sqlstate == "23505"
    with pytest.raises(ThreadDamaged):
        busy.append("t", [HI, HI], key="k")
    with pytest.raises(ThreadDamaged):
        busy.load.messages("t", [HI], key="k")
    assert busy.append("t", HI, key="other")[0].seq == 10


def test_a_key_beyond_the_head_does_not_let_a_lost_turn_append(
    busy: Face, superuser: psycopg.Connection[Any], url: str
) -> None:
    """Only an append that is stored already goes on without its turn."""
    forge_message(superuser, 50, key="k")

    def append_in_a_lost_turn() -> None:
        with cs.Store.open(url) as store, store.turn("t") as turn:
            superuser.execute("DELETE FROM compaction_store.turns")
            turn.append(HI, key="k")

    with pytest.raises(TurnLost):
        append_in_a_lost_turn()
    assert busy.thread("t").last_seq == 9


def _tries(superuser: psycopg.Connection[Any], table: str) -> None:
    """Counts the attempts at an insert: a sequence keeps what a rollback takes back."""
    superuser.execute(
        "CREATE SEQUENCE public.tries; GRANT USAGE ON SEQUENCE public.tries TO PUBLIC;"
        "CREATE FUNCTION public.count_try() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM nextval('public.tries'); RETURN NEW; END $$;"
        f"CREATE TRIGGER count_try BEFORE INSERT ON compaction_store.{table}"
        " FOR EACH STATEMENT EXECUTE FUNCTION public.count_try()".encode()
    )


_PLACES: dict[str, tuple[str, Any]] = {
    "append": ("messages", lambda s: s.append("t", HI)),
    "append with a key": ("messages", lambda s: s.append("t", HI, key="k")),
    "append many": ("messages", lambda s: s.append("t", [HI, HI])),
    "load": ("messages", lambda s: s.load.messages("t", [HI, HI])),
    "compact": ("compactions", lambda s: s.compact("t", lambda ctx: ctx.compact(6, 7, "brief"))),
    "revoke": ("compactions", lambda s: s.revoke("t", 1, reason="r")),
    "hold": ("events", lambda s: s.custody.hold("t", reason="r")),
    "redact": ("events", lambda s: s.custody.redact("t", 1, reason="r", override="court")),
    "erase": ("events", lambda s: s.custody.erase("t", reason="r", override="court")),
}


@pytest.mark.parametrize("call", _PLACES)
def test_what_is_written_onto_a_row_beyond_the_head_says_so_at_once(
    busy: Face, superuser: psycopg.Connection[Any], call: str
) -> None:
    table, write = _PLACES[call]
    forge_message(superuser, 10)
    forge_record(superuser, 4, outcome="failed", start_seq=None, end_seq=None)
    forge_event(superuser, busy.thread("t").last_pos + 1, "hold")
    before = busy.thread("t")
    if not cluster.given():
        _tries(superuser, table)
    with pytest.raises(ThreadDamaged, match=r"the thread has an entry beyond its head.*run verify"):
        write(busy)
    assert busy.thread("t") == before
    if not cluster.given():
        assert superuser.execute("SELECT last_value FROM public.tries").fetchall() == [(1,)]


@pytest.mark.usefixtures("busy")
@pytest.mark.one_server("it calls a function without a key")
def test_a_run_beyond_the_head_was_not_made(superuser: psycopg.Connection[Any]) -> None:
    """A run_id that is on record answers with its records: of a row beyond the head, nothing is one."""
    run = uuid4()
    forge_record(superuser, 70, run_id=run, outcome="failed")
    records = (
        '[{"columns":{"kind":"summary","outcome":"failed"},"salt":"00000000000000000000000000000001","body":"{}"}]'
    )
    rows = superuser.execute(
        "SELECT number FROM compaction_store.commit_compactions(NULL, %s, 't', %s, 1, NULL, %s)",
        (TENANT, run, records),
    ).fetchall()
    assert rows == [(4,)]


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("role", ["app", "auditor", "loader"])
@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
def test_no_role_sees_a_row_beyond_the_head(superuser: psycopg.Connection[Any], role: str) -> None:
    """For callers of the functions in SQL."""
    forge_message(superuser, 10)
    forge_record(superuser, 4)
    forge_event(superuser, 1000, "release")
    thread = "%s, %s, 't'"
    calls = (f"replay({thread}, 0, NULL, 100)", f"newest({thread}, 100)", f"view({thread}, NULL)")
    for call, uid in product((*calls, f"events({thread}, NULL, 0, false, 100)"), (key_of(superuser, "t"), None)):
        with superuser.transaction(force_rollback=True):
            superuser.execute(f"SET LOCAL ROLE compaction_store_{role}".encode())
            rows = superuser.execute(
                f"SELECT t::text FROM compaction_store.{call} AS t".encode(), (uid, TENANT)
            ).fetchall()
        assert rows
        assert not any(FORGED in text or text.startswith("(1000,") for (text,) in rows)
