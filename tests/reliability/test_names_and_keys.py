"""Names, keys, marks and logins: plain SQL cannot change them, and an audit finds a change made without the guards.

Level structure is enough for each, because the chain or the thread's row in `threads` shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.keys import key_of
from support.superuser_edits import TABLES, as_role, unlock

import compaction_store as cs
from compaction_store.integrity import chain

OWNER, AUDITOR = "compaction_store_owner", "compaction_store_auditor"
NOT_ITS_NAME = "the name is not the one that the thread was made with"
NAMESAKES = "other threads of the tenant have the same name"
INVALID = "the thread is stored under an invalid name"
OTHER_STUB = "the thread has the name of another thread's stub"
CALLED_ERASED = "the thread is called erased, but its head does not say so"
NO_NAME = "the thread has a head and no row in threads under this tenant: its name is gone"
NO_HEAD = "the thread has no head under this tenant"
KEY = "the thread's key is not a UUID of version 7 with the time of its first entry"
ENTRY = "the entry does not follow from its columns and the entry before"
MARKED = "the hold is marked as critical"
LONG = "n" * 300
STUB = "erased:{alpha}"
SALT = "'\\x000102030405060708090a0b0c0d0e0f'::bytea"
Found = list[tuple[str, str]]


def _keys(key: str) -> list[str]:
    return [f"UPDATE {table} SET thread_uid = '{{{key}}}' WHERE {{beta_row}}" for table in TABLES]


# Statements about thread beta, and what is found of which thread afterwards.
EDITS: dict[str, tuple[list[str], Found]] = {
    "renamed": (["UPDATE threads SET thread_id = 'nobody' WHERE {beta_row}"], [("nobody", NOT_ITS_NAME)]),
    "renamed, with another salt": (
        [f"UPDATE threads SET thread_id = 'nobody', salt = {SALT} WHERE {{beta_row}}"],
        [("nobody", NOT_ITS_NAME)],
    ),
    "renamed, with a salt and a commitment that fit": (
        [
            (
                "UPDATE threads SET (thread_id, salt, commitment)"
                f" = ('nobody', {SALT}, name_commitment({SALT}, 'nobody')) WHERE {{beta_row}}"
            ),
        ],
        [("nobody", ENTRY)],
    ),
    "given the name of another": (
        ["UPDATE threads SET thread_id = 'alpha' WHERE {beta_row}"],
        [("alpha", NAMESAKES), ("alpha", NAMESAKES), ("alpha", NOT_ITS_NAME)],
    ),
    "without a name": (
        ["UPDATE threads SET thread_id = '' WHERE {beta_row}"],
        [("", NOT_ITS_NAME), ("", INVALID)],
    ),
    "with a name of 300 bytes": (
        [f"UPDATE threads SET thread_id = '{LONG}' WHERE {{beta_row}}"],
        [(LONG, NOT_ITS_NAME), (LONG, INVALID)],
    ),
    "given another stub's name": (
        [f"UPDATE threads SET thread_id = '{STUB}', salt = NULL WHERE {{beta_row}}"],
        [(STUB, OTHER_STUB), (STUB, CALLED_ERASED)],
    ),
    "given another stub's name, with its salt": (
        [f"UPDATE threads SET thread_id = '{STUB}' WHERE {{beta_row}}"],
        [(STUB, OTHER_STUB), (STUB, CALLED_ERASED)],
    ),
    "without the salt of the name": (
        ["UPDATE threads SET salt = NULL WHERE {beta_row}"],
        [("beta", NOT_ITS_NAME)],
    ),
    "moved to another tenant": (
        ["UPDATE threads SET tenant = 'globex' WHERE {beta_row}"],
        [("", NO_NAME), ("beta in globex", NO_HEAD)],
    ),
    "with a key of version 4": (_keys("version_4"), [("beta", ENTRY), ("beta", KEY)]),
    "with a key of no variant": (_keys("no_variant"), [("beta", ENTRY), ("beta", KEY)]),
    "with a key of another time": (_keys("other_time"), [("beta", ENTRY), ("beta", KEY)]),
    "with another key of the same time": (_keys("same_time"), [("beta", ENTRY)]),
    "with an event marked as critical": (
        ["UPDATE events SET critical = NOT critical WHERE {beta_row}"],
        [("beta", ENTRY), ("beta", MARKED)],
    ),
    "with another login of an event": (
        ["UPDATE events SET login = 'somebody' WHERE {beta_row}"],
        [("beta", ENTRY)],
    ),
    "with another login of a record": (
        ["UPDATE compactions SET login = 'somebody' WHERE {beta_row}"],
        [("beta", ENTRY)],
    ),
}


class Threads:
    """Threads alpha and beta of a tenant, alpha of another, and a superuser behind the store's back."""

    def __init__(self, url: str, connection: psycopg.Connection[Any]) -> None:
        self.url = url
        self.connection = connection
        with cs.Store.open(url, tenant="acme") as store, cs.Store.open(url, tenant="globex") as other:
            for name in ("alpha", "beta"):
                store.append(name, [{"role": "user", "content": f"{name} says {n}"} for n in range(5)])
                store.compact(name, lambda ctx: ctx.compact(2, 3, "short"), force=True)
                store.custody.hold(name, reason="audit")
            other.append("alpha", {"role": "user", "content": "hi"})
        self.alpha, self.beta = (key_of(connection, name, "acme") for name in ("alpha", "beta"))

    def fill(self, text: str) -> str:
        """Fills in a statement, or the name in a finding."""
        key = self.beta.int
        return text.format(
            alpha=self.alpha, beta=self.beta, beta_row=f"thread_uid = '{self.beta}'", same_time=UUID(int=key ^ 1),
            version_4=UUID(int=key ^ (3 << 76)), no_variant=UUID(int=key & ~(3 << 62)),
            other_time=UUID(int=key ^ (1 << 80)),
        )  # fmt: skip

    def run(self, statement: str) -> None:
        with self.connection.transaction():
            self.connection.execute("SET LOCAL search_path = compaction_store")
            assert self.connection.execute(self.fill(statement).encode()).rowcount > 0

    def refusal(self, statement: str) -> str | None:
        try:
            self.run(statement)
        except psycopg.Error as error:
            return error.sqlstate
        return None

    def found(self) -> Found:
        """All findings in both tenants, as an auditor gets them, each with the name of its thread."""
        found = []
        for tenant, suffix in (("acme", ""), ("globex", " in globex")):
            with cs.Reader.open(as_role(self.url, AUDITOR), tenant=tenant) as reader:
                for report in reader.audit.verify(level="structure"):
                    found += [(report.thread_id + suffix, finding.what) for finding in report.findings]
        return sorted(found)

    def recompute(self, uid: UUID) -> None:
        """Computes the chain of a thread anew over its rows, as somebody can who writes all of them."""
        entries = self.connection.execute(
            "SELECT 'messages', m.pos, m.seq, m.created_at, m.commitment, compaction_store.message_header("
            " m.role, m.tokens, m.counter, m.key, m.call_size, m.receipt, m.actor, m.login, m.meta_commitment)"
            " FROM compaction_store.messages AS m WHERE m.thread_uid = %(uid)s"
            " UNION ALL SELECT 'compactions', c.pos, c.number, c.created_at, c.commitment,"
            " compaction_store.compaction_header(c) FROM compaction_store.compactions AS c WHERE c.thread_uid = %(uid)s"
            " UNION ALL SELECT 'events', e.pos, 0, e.created_at, e.commitment,"
            " compaction_store.event_header(e.kind, e.critical, e.actor, e.login)"
            " FROM compaction_store.events AS e WHERE e.thread_uid = %(uid)s ORDER BY 2",
            {"uid": uid},
        ).fetchall()
        [[commitment]] = self.connection.execute(
            "SELECT commitment FROM compaction_store.threads WHERE thread_uid = %s", [uid]
        ).fetchall()
        head = chain.genesis(uid, "acme", commitment)
        for table, pos, ordinal, at, commitment, header in entries:
            head = chain.entry(head, pos, ordinal, chain.microseconds(at), commitment, header)
            self.connection.execute(
                f"UPDATE compaction_store.{table} SET entry = %s WHERE thread_uid = %s AND pos = %s".encode(),
                [head, uid, pos],
            )
        self.connection.execute("UPDATE compaction_store.heads SET head = %s WHERE thread_uid = %s", [head, uid])


@pytest.fixture
def threads(url: str, superuser: psycopg.Connection[Any]) -> Threads:
    return Threads(url, superuser)


@pytest.fixture(params=[OWNER, None], ids=["owner", "superuser"])
def guarded(threads: Threads, request: pytest.FixtureRequest) -> Iterator[Threads]:
    """With plain SQL as the owner of the tables, and as a superuser; every guard is in place."""
    if request.param is not None:
        threads.connection.execute(f"SET ROLE {request.param}".encode())
        # Row-level security binds the owner too.
        threads.connection.execute("SELECT set_config('compaction_store.tenant', 'acme', false)")
    yield threads
    threads.connection.execute("RESET ROLE")


@pytest.fixture
def unguarded(threads: Threads) -> Threads:
    unlock(threads.connection)
    return threads


def test_no_plain_update_changes_a_name_a_key_a_mark_or_a_login(guarded: Threads) -> None:
    for edit, (statements, _) in EDITS.items():
        for statement in statements:
            # A row in heads is changed by every write, so no trigger refuses an update of it.
            if not statement.startswith("UPDATE heads"):
                assert guarded.refusal(statement) == "CS011", (edit, statement)
    assert guarded.found() == []


_INSERT = (
    "INSERT INTO threads (thread_uid, tenant, thread_id, salt, commitment, created_at)"
    " SELECT '{key}', 'acme', '{name}', {salt}, sha256(''), created_at FROM threads WHERE {{beta_row}}"
)


@pytest.mark.parametrize(
    ("name", "salt", "sqlstate"),
    [
        ("alpha", SALT, "23505"),
        ("", SALT, "23514"),
        (LONG, SALT, "23514"),
        ("nobody", "NULL", "23514"),
        (STUB, SALT, "23514"),
        (STUB, "NULL", "23514"),
        ("erased:", "NULL", "23514"),
        ("erased:{same_time}", SALT, "23514"),
    ],
)
def test_no_plain_insert_makes_a_thread_of_such_a_name(guarded: Threads, name: str, salt: str, sqlstate: str) -> None:
    assert guarded.refusal(_INSERT.format(key="{same_time}", name=name, salt=salt)) == sqlstate
    assert guarded.found() == []


@pytest.mark.parametrize("key", ["{version_4}", "{no_variant}", "{other_time}"])
def test_no_plain_insert_makes_a_thread_of_such_a_key(guarded: Threads, key: str) -> None:
    """Only a key of the time of the thread's birth is taken."""
    assert guarded.refusal(_INSERT.format(key=key, name="nobody", salt=SALT)) == "23514"
    assert guarded.found() == []
    if key == "{other_time}":
        guarded.run(_INSERT.format(key="{same_time}", name="nobody", salt=SALT))


def test_without_the_triggers_the_constraints_still_refuse_bad_names(threads: Threads) -> None:
    threads.connection.execute("ALTER TABLE compaction_store.threads DISABLE TRIGGER ALL")
    for edit, (statements, _) in EDITS.items():
        if any(word in edit for word in ("the name of another", "without", "300 bytes", "another stub's name")):
            assert threads.refusal(statements[0]) == ("23505" if "of another" in edit else "23514"), edit
    assert threads.found() == []


@pytest.mark.parametrize("edit", EDITS)
def test_such_a_change_without_the_guards_is_found(unguarded: Threads, edit: str) -> None:
    statements, found = EDITS[edit]
    assert unguarded.found() == []
    for statement in statements:
        unguarded.run(statement)
    assert unguarded.found() == sorted((unguarded.fill(name), what) for name, what in found)


@pytest.mark.parametrize(
    ("edit", "key", "found"),
    [
        ("with a key of version 4", "{version_4}", [("beta", KEY)]),
        ("with a key of no variant", "{no_variant}", [("beta", KEY)]),
        ("with a key of another time", "{other_time}", [("beta", KEY)]),
        ("with an event marked as critical", "{beta}", [("beta", MARKED)]),
        ("given the name of another", "{beta}", [*[("alpha", NAMESAKES)] * 2, ("alpha", NOT_ITS_NAME)]),
        # A chain that was computed anew shows no more than this: it takes a checkpoint.
        ("with another key of the same time", "{same_time}", []),
        ("with another login of an event", "{beta}", []),
    ],
)
def test_what_is_found_where_the_whole_chain_was_computed_anew(
    unguarded: Threads, edit: str, key: str, found: Found
) -> None:
    for statement in EDITS[edit][0]:
        unguarded.run(statement)
    unguarded.recompute(UUID(unguarded.fill(key)))
    assert unguarded.found() == found


def test_two_sound_threads_of_one_name_are_both_found(unguarded: Threads, url: str) -> None:
    """Two first appends at the same time can make them if the unique index is gone."""
    unguarded.run("UPDATE threads SET thread_id = 'aside' WHERE {beta_row}")
    with cs.Store.open(url, tenant="acme") as store:
        store.append("beta", {"role": "user", "content": "of the second thread"})
    unguarded.run("UPDATE threads SET thread_id = 'beta' WHERE {beta_row}")
    assert unguarded.found() == [("beta", NAMESAKES)] * 2


def test_a_name_erased_by_plain_sql_is_found(guarded: Threads) -> None:
    """The trigger lets through what an erasure does; the head and the content show that none was made."""
    guarded.run("UPDATE threads SET thread_id = 'erased:{beta}', salt = NULL, metadata = '{{}}' WHERE {beta_row}")
    assert guarded.found() == [(guarded.fill("erased:{beta}"), CALLED_ERASED)]


def test_a_redaction_marked_as_not_critical_is_found(unguarded: Threads, url: str) -> None:
    with cs.Store.open(url, tenant="acme") as store:
        store.custody.release("beta", reason="audit")
        store.custody.redact("beta", 5, reason="asked")
    assert unguarded.found() == []
    unguarded.run("UPDATE events SET critical = false WHERE {beta_row} AND kind = 'redaction'")
    assert ("beta", "the redaction is marked as not critical") in unguarded.found()
    unguarded.recompute(unguarded.beta)
    assert unguarded.found() == [("beta", "the redaction is marked as not critical")]
