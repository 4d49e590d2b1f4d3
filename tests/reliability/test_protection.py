"""Checks the tables of docs/threats.md: which changes go through, and which attacks are found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from support.keys import key_of
from support.paths import ROOT

import compaction_store as cs
from compaction_store.integrity import chain
from compaction_store.models import LEVELS

_TEXT = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")
KEY = cs.SigningKey.from_bytes("example.org/audit", bytes(range(32)))
TABLES = ("threads", "heads", "messages", "compactions", "events")


def rows_below(heading: str) -> list[list[str]]:
    section = _TEXT.partition(heading)[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


class Action(NamedTuple):
    """Statements, with the thread's uid as %(uid)s, and a query that returns whether they took effect."""

    statements: tuple[str, ...]
    is_done: str = "SELECT true"
    appends: bool = False


_UPDATE = "UPDATE compaction_store.messages SET tokens = 77 WHERE seq = 2"
_UPDATED = "SELECT count(*) = 1 FROM compaction_store.messages WHERE tokens = 77 AND seq = 2"
_QUIET = "RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
_FORGED = (
    "INSERT INTO compaction_store.messages (thread_uid, seq, pos, created_at, tokens, tenant, counter, login,"
    " commitment, entry) VALUES (%(uid)s, 6, 7, now(), 1, 'default', 'c', 'app', '\\x00', '\\x00')"
)
_THREAD = (
    "INSERT INTO compaction_store.threads (thread_uid, tenant, thread_id, salt, commitment, created_at)"
    " SELECT compaction_store.new_thread_uid('2026-01-01'), 'default', 'forged', s.salt,"
    " compaction_store.name_commitment(s.salt, 'forged'), '2026-01-01'"
    " FROM (SELECT substring(sha256('') FOR 16) AS salt) AS s"
)
_HEAD = (
    "INSERT INTO compaction_store.heads (thread_uid, tenant, head)"
    " SELECT t.thread_uid, t.tenant, compaction_store.genesis(t.thread_uid, t.tenant, t.commitment)"
    " FROM compaction_store.threads AS t WHERE t.thread_id = 'forged'"
)
ACTIONS = {
    "UPDATE": Action((_UPDATE,), _UPDATED),
    "DELETE": Action(
        ("DELETE FROM compaction_store.messages WHERE seq = 2",),
        "SELECT count(*) = 0 FROM compaction_store.messages WHERE seq = 2",
    ),
    "TRUNCATE": Action(("TRUNCATE compaction_store.messages",), "SELECT count(*) = 0 FROM compaction_store.messages"),
    "INSERT … ON CONFLICT DO UPDATE": Action(
        (
            (
                "INSERT INTO compaction_store.messages SELECT * FROM compaction_store.messages WHERE seq = 2"
                " ON CONFLICT (thread_uid, seq) DO UPDATE SET tokens = 77"
            ),
        ),
        _UPDATED,
    ),
    "MERGE": Action(
        (
            (
                "MERGE INTO compaction_store.messages AS m USING (SELECT 2 AS seq) AS s ON m.seq = s.seq"
                " WHEN MATCHED THEN UPDATE SET tokens = 77"
            ),
        ),
        _UPDATED,
    ),
    "GRANT to oneself, then UPDATE": Action(
        ("GRANT ALL ON compaction_store.messages TO CURRENT_USER", _UPDATE), _UPDATED
    ),
    "session_replication_role = replica, then UPDATE": Action(
        ("SET session_replication_role = replica", _UPDATE), _UPDATED
    ),
    "a rule that discards inserts, then append": Action(
        ("CREATE RULE mine AS ON INSERT TO compaction_store.messages DO INSTEAD NOTHING",), appends=True
    ),
    "DISABLE TRIGGER USER, then UPDATE": Action(
        ("ALTER TABLE compaction_store.messages DISABLE TRIGGER USER", _UPDATE), _UPDATED
    ),
    "DISABLE TRIGGER ALL, then UPDATE": Action(
        ("ALTER TABLE compaction_store.messages DISABLE TRIGGER ALL", _UPDATE), _UPDATED
    ),
    "DROP TRIGGER, then UPDATE": Action(("DROP TRIGGER refuse_change ON compaction_store.messages", _UPDATE), _UPDATED),
    "replace the trigger's function, then UPDATE": Action(
        (f"CREATE OR REPLACE FUNCTION compaction_store.refuse_change() {_QUIET}", _UPDATE), _UPDATED
    ),
    "switch the trigger off in the catalogue, then UPDATE": Action(
        (
            (
                "UPDATE pg_catalog.pg_trigger SET tgenabled = 'D'"
                " WHERE tgrelid = 'compaction_store.messages'::regclass AND NOT tgisinternal"
            ),
            # Makes the session read the table's triggers again.
            "SELECT pg_catalog.pg_stat_reset()",
            _UPDATE,
        ),
        _UPDATED,
    ),
    "DROP TABLE": Action(("DROP TABLE compaction_store.events CASCADE",)),
    "rename the table and put a copy in its place": Action(
        (
            "ALTER TABLE compaction_store.messages RENAME TO other",
            "CREATE TABLE compaction_store.messages (LIKE compaction_store.other INCLUDING ALL)",
            "INSERT INTO compaction_store.messages SELECT * FROM compaction_store.other",
            "GRANT SELECT ON compaction_store.messages TO compaction_store_owner",
        )
    ),
    "ALTER COLUMN … TYPE … USING": Action(
        (
            "DROP VIEW compaction_store.audit_messages",
            (
                "ALTER TABLE compaction_store.messages ALTER COLUMN tokens TYPE integer"
                " USING CASE seq WHEN 2 THEN 77 ELSE tokens END"
            ),
        ),
        _UPDATED,
    ),
    "DROP COLUMN": Action(("ALTER TABLE compaction_store.messages DROP COLUMN receipt CASCADE",)),
    "ADD COLUMN": Action(("ALTER TABLE compaction_store.messages ADD COLUMN mine integer",)),
    "add a trigger that changes inserted rows, then append": Action(
        (
            (
                "CREATE FUNCTION compaction_store.mine() RETURNS trigger LANGUAGE plpgsql AS"
                " $$BEGIN NEW.payload := '{\"forged\":1}'; RETURN NEW; END$$"
            ),
            (
                "CREATE TRIGGER mine BEFORE INSERT ON compaction_store.messages FOR EACH ROW"
                " EXECUTE FUNCTION compaction_store.mine()"
            ),
        ),
        appends=True,
    ),
    "add a child table with a row in it": Action(
        (
            "CREATE TABLE compaction_store.child () INHERITS (compaction_store.messages)",
            _FORGED.replace(".messages", ".child"),
        )
    ),
    "INSERT of a forged message": Action((_FORGED,)),
    "INSERT of a forged thread": Action((_THREAD, _HEAD)),
}


def test_the_table_lists_every_action_once() -> None:
    assert [row[0] for row in rows_below("## 3.")] == list(ACTIONS)
    assert len(ACTIONS) == 22


def fill(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": f"some words to be made shorter {n}"} for n in range(5)])
        store.compact("t", lambda ctx: ctx.compact(1, 3, "short"), force=True)


def outcome(url: str, action: Action, application: str) -> str:
    """Returns whether a login gets through with an action. If something is appended after it, the application does."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT set_config('compaction_store.tenant', 'default', false)")
        uid = key_of(connection, "t")
        try:
            for statement in action.statements:
                connection.execute(statement.encode(), {"uid": uid} if "%(uid)s" in statement else None)
            is_done = connection.execute(action.is_done.encode()).fetchall()[0][0]
        except psycopg.Error:
            return "blocked"
    if is_done and action.appends:
        try:
            with cs.Store.open(application) as store:
                store.append("t", {"role": "user", "content": "more"})
        except cs.CompactionStoreError:
            return "blocked"
    return "through" if is_done else "blocked"


def first_level(url: str) -> str:
    """Returns the first level of `verify` with a finding, if any."""
    with cs.Reader.open(url) as reader:
        for level in LEVELS[:2]:
            try:
                if any(report.findings for report in reader.audit.verify(level=level)):
                    return level
            except cs.DatabaseError:
                # A table that was dropped cannot be read; the report on the schema says why.
                continue
        return "schema" if next(reader.audit.verify(level="schema")).findings else ""


@pytest.mark.parametrize("row", rows_below("## 3."), ids=lambda row: row[0])
def test_who_gets_through_is_as_documented(url: str, logins: dict[str, str], row: list[str]) -> None:
    name, *documented, shows = row
    fill(url)
    observed = []
    for who in ("application", "owner", "superuser"):
        observed.append(outcome(logins[who], ACTIONS[name], logins["application"]))
        if observed[-1] == "through":
            # An action that went through would disturb a second try, so the superuser's is on a new copy, in the next
            # test.
            assert first_level(url) == shows
            break
    assert observed == documented[: len(observed)]
    assert observed[0] == "blocked"


@pytest.mark.parametrize("row", [row for row in rows_below("## 3.") if row[2] == "through"], ids=lambda row: row[0])
def test_what_the_owner_gets_through_with_a_superuser_does_too(url: str, row: list[str]) -> None:
    fill(url)
    assert outcome(url, ACTIONS[row[0]], url) == row[3]
    assert first_level(url) == row[4]


_MESSAGE = ("role", "tokens", "counter", "key", "call_size", "receipt", "actor", "login", "meta_commitment")
_RECORD = (
    "kind", "outcome", "start_seq", "end_seq", "tokens_before", "tokens_after", "source_count", "inputs", "run_id",
    "callback", "trigger", "actor", "login", "model", "counter", "revokes",
)  # fmt: skip


class Attack:
    """An attacker who may do everything, with the triggers disabled."""

    def __init__(self, connection: psycopg.Connection[Any], store: cs.Store) -> None:
        self.connection = connection
        self.store = store
        self.uid = key_of(connection, "t")

    def run(self, statement: str, *parameters: Any) -> None:
        assert self.connection.execute(statement.encode(), parameters or None).rowcount

    def message(self, seq: int, change: str) -> None:
        self.run(f"UPDATE compaction_store.messages SET {change} WHERE thread_uid = %s AND seq = {seq}", self.uid)

    def record(self, change: str) -> None:
        self.run(f"UPDATE compaction_store.compactions SET {change} WHERE thread_uid = %s AND number = 1", self.uid)

    def payload(self, seq: int) -> None:
        self.message(
            seq,
            'payload = \'{"role":"user","content":"forged"}\', commitment ='
            ' compaction_store.commitment(salt, \'{"role":"user","content":"forged"}\')',
        )

    def cut(self, last: int) -> None:
        self.run("DELETE FROM compaction_store.messages WHERE thread_uid = %s AND seq > %s", self.uid, last)

    def swap(self, one: int, other: int) -> None:
        for old, new in ((one, 1000), (other, one), (1000, other)):
            self.message(old, f"seq = {new}")
        for old, new in ((one, other), (other, one)):
            self.message(old, f"pos = (SELECT pos FROM compaction_store.messages WHERE seq = {new} LIMIT 1) + 0")

    def drop(self) -> None:
        for table in TABLES:
            self.connection.execute(f"DELETE FROM compaction_store.{table} WHERE thread_uid = %s".encode(), [self.uid])

    def rechain(self) -> None:
        """Recomputes every entry, including the bindings of records to messages, and sets the head to match."""
        fetch = self.connection.execute
        messages, records = (
            fetch(
                f"SELECT pos, {ordinal}, created_at, commitment, {', '.join(columns)} FROM compaction_store.{table}"
                " WHERE thread_uid = %s".encode(),
                [self.uid],
            ).fetchall()
            for table, ordinal, columns in (("messages", "seq", _MESSAGE), ("compactions", "number", _RECORD))
        )
        [(tenant, name)] = fetch(
            "SELECT tenant, commitment FROM compaction_store.threads WHERE thread_uid = %s", [self.uid]
        ).fetchall()
        entry = chain.genesis(self.uid, tenant, name)
        entries: dict[int, bytes] = {}
        last: tuple[Any, ...] = ()
        for row in sorted([("m", *m) for m in messages] + [("c", *c) for c in records], key=lambda row: row[1]):
            kind, pos, ordinal, at, commitment, *columns = row
            given: dict[str, Any]
            if kind == "m":
                given = dict(zip(_MESSAGE, columns, strict=True))
                header = chain.message_header(**given)
            else:
                given = dict(zip(_RECORD, columns, strict=True))
                given["source_before"] = entries.get(given["start_seq"] - 1)
                given["source_end"] = entries[given["end_seq"]]
                header = chain.compaction_header(**given)
                fetch(
                    "UPDATE compaction_store.compactions SET source_before = %s, source_end = %s"
                    " WHERE thread_uid = %s AND number = %s",
                    [given["source_before"], given["source_end"], self.uid, ordinal],
                )
            entry = chain.entry(entry, pos, ordinal, chain.microseconds(at), commitment, header)
            table, name = ("messages", "seq") if kind == "m" else ("compactions", "number")
            if kind == "m":
                entries[ordinal] = entry
            fetch(
                f"UPDATE compaction_store.{table} SET entry = %s WHERE thread_uid = %s AND {name} = %s".encode(),
                [entry, self.uid, ordinal],
            )
            last = (pos, at)
        self.run(
            "UPDATE compaction_store.heads AS h SET head = %s, last_pos = %s, last_at = %s, last_seq = %s,"
            " last_number = %s, active_at = (SELECT max(m.created_at) FROM compaction_store.messages AS m"
            " WHERE m.thread_uid = h.thread_uid) WHERE thread_uid = %s",
            entry, *last, len(messages), len(records), self.uid,
        )  # fmt: skip


def _splice(attack: Attack) -> None:
    attack.message(9, "seq = 10, pos = 11")
    attack.run(
        "UPDATE compaction_store.messages SET thread_uid = %s, seq = 9, pos = 10 WHERE thread_uid = %s AND seq = 2",
        attack.uid, key_of(attack.connection, "u"),
    )  # fmt: skip


def _forge(attack: Attack) -> None:
    attack.run(
        "INSERT INTO compaction_store.messages (thread_uid, seq, pos, created_at, tokens, tenant, counter, login,"
        " salt, commitment, entry, payload)"
        " VALUES (%s, 10, 11, now(), 1, 'default', 'c', 'app', %s, sha256(''), sha256(''), '{}')",
        attack.uid, bytes(16),
    )  # fmt: skip


def _erase(attack: Attack) -> None:
    attack.message(5, "payload = NULL, meta = NULL, salt = NULL, redacted_pos = 9")


def _rename(attack: Attack) -> None:
    _named(attack, "thread_id = 'other'")


def _named(attack: Attack, change: str) -> None:
    attack.run(f"UPDATE compaction_store.threads SET {change} WHERE thread_uid = %s", attack.uid)


def _rename_past_the_keys(attack: Attack, name: str) -> None:
    """Level schema finds that the check of names is gone. The walk must find the thread without that."""
    attack.connection.execute("ALTER TABLE compaction_store.threads DROP CONSTRAINT threads_thread_id_check")
    attack.connection.execute("DROP INDEX compaction_store.threads_tenant_thread_id_idx")
    _named(attack, f"thread_id = '{name}'")


def _orphan(attack: Attack) -> None:
    for table in ("threads", "heads"):
        attack.run(f"DELETE FROM compaction_store.{table} WHERE thread_uid = %s", attack.uid)


def _summary(attack: Attack) -> None:
    body = json.dumps({"summary_text": "forged", "replacement": [{"role": "user", "content": "forged"}]})
    attack.run(
        "UPDATE compaction_store.compactions SET body = %s, commitment = compaction_store.commitment(salt, %s)"
        " WHERE thread_uid = %s AND number = 1",
        body, body, attack.uid,
    )  # fmt: skip


def _all(*steps: Callable[[Attack], None]) -> Callable[[Attack], None]:
    def run(attack: Attack) -> None:
        for step in steps:
            step(attack)

    return run


def _fail_over(attack: Attack) -> None:
    attack.cut(5)
    attack.rechain()
    # The new primary continues after the last entry that it has, but this store had received later seqs.
    with pytest.raises(cs.ThreadWentBack):
        attack.store.append("t", [{"role": "user", "content": f"other {n}"} for n in range(6)])


# A thread of eight messages with a record of the first three, a checkpoint, and one message more.
ATTACKS: dict[int, Callable[[Attack], None]] = {
    1: lambda a: a.message(5, 'payload = \'{"role":"user","content":"forged"}\''),
    2: lambda a: a.payload(5),
    3: lambda a: a.message(5, "tokens = tokens + 1"),
    4: lambda a: a.message(5, "created_at = created_at + interval '1 microsecond'"),
    5: lambda a: a.record('body = \'{"summary_text":"forged","replacement":[]}\''),
    6: lambda a: a.record("end_seq = 4"),
    7: lambda a: a.run("DELETE FROM compaction_store.messages WHERE thread_uid = %s AND seq = 5", a.uid),
    8: lambda a: a.run("DELETE FROM compaction_store.compactions WHERE thread_uid = %s", a.uid),
    9: lambda a: a.swap(5, 6),
    10: _forge,
    11: _splice,
    12: _erase,
    13: lambda a: a.cut(6),
    14: _rename,
    15: Attack.drop,
    16: _all(lambda a: a.payload(5), Attack.rechain),
    17: _all(_summary, Attack.rechain),
    18: _all(lambda a: a.cut(6), Attack.rechain),
    19: _fail_over,
    20: _all(lambda a: a.payload(9), Attack.rechain),
    21: _all(lambda a: a.cut(8), Attack.rechain),
    22: _all(lambda a: a.payload(5), lambda a: _rename_past_the_keys(a, "u")),
    23: _all(lambda a: a.payload(5), lambda a: _rename_past_the_keys(a, "")),
    24: lambda a: _named(a, "tenant = 'other'"),
    25: lambda a: a.run("DELETE FROM compaction_store.threads WHERE thread_uid = %s", a.uid),
    26: _orphan,
}
PAST_THE_KEYS = frozenset({"22", "23"})


def found(store: cs.Store, **options: Any) -> str:
    return "found" if any(report.findings for report in store.audit.verify(**options)) else "missed"


def test_the_matrix_lists_every_attack_once() -> None:
    assert [int(row[0]) for row in rows_below("## 4.")] == list(ATTACKS) == list(range(1, 27))


@pytest.mark.parametrize("row", rows_below("## 4."), ids=lambda row: row[0])
def test_what_shows_is_as_documented(url: str, superuser: Any, tmp_path: Path, row: list[str]) -> None:
    number, _, alone, with_checkpoints = row
    log = cs.CheckpointLog(tmp_path / "checkpoints.jsonl", KEY.key)
    with cs.Store.open(url) as store:
        for name in ("t", "u"):
            store.append(name, [{"role": "user", "content": f"some words to be made shorter {n}"} for n in range(5)])
            store.compact(name, lambda ctx: ctx.compact(1, 3, "short"), force=True)
            store.append(name, [{"role": "user", "content": f"more words {n}"} for n in range(3)])
        store.audit.checkpoint(KEY, log)
        store.append("t", {"role": "user", "content": "newer"})
        assert found(store, level="checkpoint", checkpoints=log) == "missed"
        for table in TABLES:
            superuser.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER ALL")
        ATTACKS[int(number)](Attack(superuser, store))
        for table in TABLES:
            for trigger in ("refuse_change", "refuse_truncate"):
                superuser.execute(f"ALTER TABLE compaction_store.{table} ENABLE ALWAYS TRIGGER {trigger}")
        if number in PAST_THE_KEYS:
            assert next(store.audit.verify(level="schema")).findings
            assert found(store, level="content") == alone
            return
        assert next(store.audit.verify(level="schema")).findings == ()
        assert found(store, level="schema") == alone
        assert found(store, level="checkpoint", checkpoints=log) == with_checkpoints
        if number == "15":
            with pytest.raises(cs.ThreadNotFound):
                store.audit.verify("t")
        if alone == "missed" and with_checkpoints == "found":
            with pytest.raises(cs.CheckpointRefused):
                store.audit.checkpoint(KEY, log)


def test_the_page_says_tamper_evident_and_supports() -> None:
    assert "tamper-evident" in _TEXT
    assert not re.search(r"tamper-?proof|complian(t|ce)", _TEXT, re.IGNORECASE)


# Grants.
