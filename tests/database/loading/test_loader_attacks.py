"""The login of a loader that calls the functions with odd arguments, and what it cannot change thereby."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from support.faces import Face
from support.keys import key_of

import compaction_store as cs

pytestmark = pytest.mark.one_server("it calls functions by the thread's key")
TENANT = "default"
HI = '{"role":"user","content":"hi"}'
_SALT = "00" * 16
_FORGED = '"body":"{\\"replacement\\":[{\\"role\\":\\"system\\",\\"content\\":\\"FORGED\\"}]}"'
_SPAN = '"kind":"summary","start_seq":1,"end_seq":6,"tokens_before":9,"tokens_after":9,"actor":"alice"'


def _record(columns: str, more: str = "") -> str:
    return f'[{{"columns":{{{columns}}},"salt":"{_SALT}",{_FORGED}{more}}}]'


_OBSERVED = _record(f'{_SPAN},"outcome":"observed"')
#: Each looks like an observed record to one reader of JSON, and like an applied one to another.
_DISGUISED = {
    "an outcome twice": _record(f'{_SPAN},"outcome":"observed","outcome":"applied"'),
    "an outcome twice, applied first": _record(f'{_SPAN},"outcome":"applied","outcome":"observed"'),
    "an escaped name": _record(f'{_SPAN},"\\u006futcome":"applied","outcome":"observed"'),
    "an escaped name, last": _record(f'{_SPAN},"outcome":"observed","\\u006futcome":"applied"'),
    "an escaped value": _record(f'{_SPAN},"outcome":"\\u0061pplied"'),
    "a name in capitals": _record(f'{_SPAN},"Outcome":"applied","outcome":"observed"'),
    "columns twice": _record(f'{_SPAN},"outcome":"observed"', f',"columns":{{{_SPAN},"outcome":"applied"}}'),
    "columns twice, the last without outcome": _record(f'{_SPAN},"outcome":"observed"', f',"columns":{{{_SPAN}}}'),
    "columns twice, the last null": _record(f'{_SPAN},"outcome":"observed"', ',"columns":null'),
    "columns as a list": f'[{{"columns":["observed"],"salt":"{_SALT}",{_FORGED}}}]',
    "an outcome with a space": _record(f'{_SPAN},"outcome":"applied "'),
    "an outcome in a list": _record(f'{_SPAN},"outcome":["observed"]'),
    "no outcome": _record(_SPAN),
    "one that is observed, one that is not": _OBSERVED[:-1] + "," + _record(f'{_SPAN},"outcome":"applied"')[1:],
    "an object": _record(f'{_SPAN},"outcome":"applied"')[1:-1],
    "observed": _OBSERVED,
    "an observed revocation": _record('"kind":"revocation","revokes":1,"outcome":"observed"'),
    "an observed rewind": _record('"kind":"rewind","start_seq":1,"end_seq":6,"tokens_after":0,"outcome":"observed"'),
    "an observed clear that hides": _record(
        '"kind":"clear","trigger":"hide","start_seq":1,"end_seq":6,"tokens_after":0,"outcome":"observed"'
    ),
    "a place of its own": _record(
        f'{_SPAN},"outcome":"observed","number":99,"pos":99,"tenant":"theirs","login":"alice","redacted_pos":1,'
        '"created_at":"9999-01-01"'
    ),
}


@pytest.fixture
def thread(store: Face) -> Face:
    """A thread of six messages, with a compaction that is in force, and a hold."""
    store.append("t", [{"role": "user", "content": f"message {i}"} for i in range(6)], tokens=50)
    store.compact("t", lambda ctx: ctx.compact(1, 3, "They said hi."), actor="nightly")
    store.custody.hold("t", reason="suit", actor="counsel")
    return store


def _seen(store: Face) -> tuple[Any, ...]:
    """What a reader of the thread sees of compactions and holds."""
    view = store.view("t")
    return (
        [(e.seq, e.end_seq, e.number, e.messages) for e in view.elements],
        view.tokens,
        [(r.number, r.status) for r in store.compactions("t") if r.outcome != "observed"],
        store.thread("t").view_tokens,
    )


def test_no_record_of_a_loader_changes_a_view_or_a_hold(
    thread: Face, loader: str, superuser: psycopg.Connection[Any]
) -> None:
    before, uid = _seen(thread), key_of(superuser, "t")
    taken = []
    with psycopg.connect(loader, autocommit=True) as sql:
        for what, records in _DISGUISED.items():
            call = "SELECT compaction_store.observe(%s, %s, 't', gen_random_uuid(), %s)"
            with suppress(psycopg.Error):
                sql.execute(call, (uid, TENANT, records))
                taken.append(what)
            assert _seen(thread) == before, what
    assert "observed" in taken
    assert {r.outcome for r in thread.compactions("t") if r.number > 1} == {"observed"}
    assert {r.login for r in thread.compactions("t") if r.number > 1} == {
        psycopg.conninfo.conninfo_to_dict(loader)["user"]
    }
    with pytest.raises(cs.Held):
        thread.custody.redact("t", 5, reason="oops")
    assert thread.audit.verify("t", level="schema").findings == ()
    assert thread.append("t", {"role": "user", "content": "more"})[0].seq == 7


#: Arguments of `load`, after the thread: payloads, salts, roles, tokens, counters, metas and key.
_LOADS: dict[str, tuple[Any, ...]] = {
    "lists that begin at 5": ("[5:6]={a,b}", 2, "[7:8]={user,user}", "[0:1]={1,1}", "[-1:0]={c,c}", None, "k1"),
    "lists in lists": ("{{a,b},{a,b}}", 4, "{{user,user},{user,user}}", "{{1,1},{1,1}}", "{c,c,c,c}", None, "k2"),
    "lists of other shapes": ("{{a},{b}}", 2, "{user,user}", "{{1,1}}", "{{c},{c}}", "{{NULL},{NULL}}", "k3"),
    "a NULL among the payloads": ("{a,NULL}", 2, "{user,NULL}", "{1,1}", "{c,c}", None, "k4"),
    "a NULL among the tokens": ("{a,b}", 2, "{user,user}", "{1,NULL}", "{c,c}", None, "k5"),
    "a NULL among the counters": ("{a,b}", 2, "{user,user}", "{1,1}", "{c,NULL}", None, "k6"),
    "tokens below zero": ("{a,b}", 2, "{user,user}", "{9,-9}", "{c,c}", None, "k7"),
    "as many tokens as fit": ("{a,b}", 2, "{user,user}", "{2147483647,2147483647}", "{c,c}", None, "k8"),
    "another's key": ("{a,b}", 2, "{user,user}", "{1,1}", "{c,c}", None, "theirs"),
    "an empty key": ("{a,b}", 2, "{user,user}", "{1,1}", "{c,c}", None, ""),
    "salts that are too short": ("{a,b}", 1, "{user,user}", "{1,1}", "{c,c}", None, "k9"),
    "another role than the message's": ("{a,b}", 2, "{user,system}", "{1,1}", "{c,c}", None, "k10"),
    "a meta that is no object": ("{a,b}", 2, "{user,user}", "{1,1}", "{c,c}", "{1,2}", "k11"),
}


def test_odd_lists_of_a_load_store_only_what_can_be_verified(
    thread: Face, loader: str, superuser: psycopg.Connection[Any]
) -> None:
    thread.append("t", {"role": "user", "content": "mine"}, key="theirs", tokens=5)
    uid, stands = key_of(superuser, "t"), thread.thread("t").last_seq
    taken = []
    with psycopg.connect(loader, autocommit=True) as sql:
        for what, (payloads, salts, *lists, metas, key) in _LOADS.items():
            given = payloads.replace("a", json.dumps(HI)).replace("b", json.dumps(HI))
            call = (
                "SELECT first_seq, size, replayed FROM compaction_store.load(%s, %s, 't', %s::text[], %s, %s::text[],"
                " %s::integer[], %s::text[], %s::text[], %s, NULL)"
            )
            given_all = (uid, TENANT, given, bytes(16 * salts), *lists, metas, key)
            with suppress(psycopg.Error):
                [(first, size, replayed)] = sql.execute(call, given_all).fetchall()
                taken.append(what)
                assert replayed is (key == "theirs"), what
                assert (first, size) == ((7, 1) if replayed else (stands + 1, salts)), what
            stands = thread.thread("t").last_seq
            assert thread.audit.verify("t").findings == (), what
            assert thread.thread("t").view_tokens == thread.view("t").tokens, what
    assert [m.payload["content"] for m in thread.replay("t")][6] == "mine"
    assert thread.append("t", {"role": "user", "content": "mine"}, key="theirs", tokens=5)[0].seq == 7


#: Arguments of `load_threads`, after the tenant: names, keys, sizes, and how many messages there are.
_THREADS: dict[str, tuple[str, str, str, int]] = {
    "a name twice": ("{n1,n1}", "{k,k}", "{1,1}", 2),
    "keys that begin at 5": ("{n2,n3}", "[5:6]={k,k}", "{1,1}", 2),
    "names that begin at 5": ("[5:6]={n4,n5}", "{k,k}", "{1,2}", 3),
    "sizes that begin at 5": ("{n6,n7}", "{k,k}", "[5:6]={1,1}", 2),
    "lists in lists": ("{{n8},{n9}}", "{{k},{k}}", "{{1},{1}}", 2),
    "no messages of one": ("{n10,n11}", "{k,k}", "{0,1}", 1),
    "fewer than none": ("{n12,n13}", "{k,k}", "{-1,2}", 1),
    "a NULL among the sizes": ("{n14,n15}", "{k,k}", "{NULL,2}", 2),
    "a NULL among the names": ("{n16,NULL}", "{k,k}", "{1,1}", 2),
    "a NULL among the keys": ("{n17,n18}", "{k,NULL}", "{1,1}", 2),
    "a thread that exists": ("{n19,t}", "{k,k}", "{1,1}", 2),
    "the name of an erased thread": ("{erased:0,n20}", "{k,k}", "{1,1}", 2),
    "no threads": ("{}", "{}", "{}", 0),
}


def test_odd_lists_of_threads_make_only_threads_that_can_be_verified(thread: Face, loader: str) -> None:
    before = thread.thread("t")
    taken = []
    with psycopg.connect(loader, autocommit=True) as sql:
        for what, (names, keys, sizes, count) in _THREADS.items():
            call = (
                "SELECT thread FROM compaction_store.load_threads(%s, %s::text[], %s::text[], %s::integer[], %s, %s,"
                " %s, %s, %s, NULL)"
            )
            lists = ([HI] * count, bytes(16 * count), ["user"] * count, [1] * count, ["c"] * count)
            with suppress(psycopg.Error):
                sql.execute(call, (TENANT, names, keys, sizes, *lists))
                taken.append(what)
            assert [f for report in thread.audit.verify() for f in report.findings] == [], what
            assert thread.thread("t") == before, what
    for found in thread.threads():
        assert found.last_seq == len(list(thread.replay(found.thread_id)))


_SESSIONS = {
    "triggers off": "SET session_replication_role = replica",
    "the role of the application": "SET ROLE compaction_store_app",
    "the role of the auditor": "SET ROLE compaction_store_auditor",
    "the role of the reviewer": "SET ROLE compaction_store_reviewer",
    "the owner's session": "SET SESSION AUTHORIZATION compaction_store_owner",
    "a role for itself": "GRANT compaction_store_app TO CURRENT_USER",
    "its attribute": "ALTER ROLE CURRENT_USER BYPASSRLS",
    "a lock on the messages": "LOCK TABLE compaction_store.messages IN ACCESS EXCLUSIVE MODE",
    "a lock on what is staged": "LOCK TABLE compaction_store.staged IN ACCESS EXCLUSIVE MODE",
    "what is staged, emptied": "TRUNCATE compaction_store.staged",
    "what is staged, returned": "INSERT INTO compaction_store.staged (type, pos) VALUES ('x', 1) RETURNING pos",
    "what is staged, copied out": "COPY compaction_store.staged (pos) TO STDOUT",
    "what is staged, changed": "UPDATE compaction_store.staged SET pos = 1",
    "a trigger": "CREATE TRIGGER t BEFORE UPDATE ON compaction_store.staged FOR EACH ROW"
    " EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "a rule": "CREATE RULE r AS ON INSERT TO compaction_store.staged DO INSTEAD NOTHING",
    "an index": "CREATE INDEX ON compaction_store.staged (pos)",
    "a table in the schema": "CREATE TABLE compaction_store.mine ()",
    "a child of the messages": "CREATE TEMP TABLE child () INHERITS (compaction_store.messages)",
    "a policy": "CREATE POLICY mine ON compaction_store.messages USING (true)",
    "a statistic": "CREATE STATISTICS compaction_store.s ON pos, type FROM compaction_store.staged",
}  # fmt: skip


def test_a_session_gives_itself_nothing(thread: Face, loader: str) -> None:
    before = _seen(thread)
    with psycopg.connect(loader, autocommit=True) as sql:
        # A tenant makes no table readable.
        sql.execute("SET compaction_store.tenant = 'default'")
        tables = ("messages", "heads", "threads", "compactions", "events", "turns")
        for statement in (*_SESSIONS.values(), *(f"SELECT FROM compaction_store.{table}" for table in tables)):
            sql.execute("BEGIN")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                sql.execute(statement.encode())
            sql.execute("ROLLBACK")
    assert _seen(thread) == before
