"""Rules, triggers, tenants and rights: what the database itself refuses."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
import pytest
import sqlalchemy as sa
from support.lock_waits import HI, LATER, contents

import compaction_store as cs


def test_the_apps_rights_are_enough(faces: Any, narrow: str) -> None:
    store = faces.open(narrow, pool_size=1)
    store.append("t", [HI, LATER])
    store.append("t", HI, view=store.view("t"))
    store.set_metadata("t", {"a": 1})
    assert contents(store) == ["hi", "later", "hi"]
    assert store.message("t", 1).payload == HI
    assert store.view("t", at=store.message("t", 3).created_at).pos == 3
    assert [t.metadata for t in store.threads()] == [{"a": 1}]
    assert not store.audit.verify("t").findings


@pytest.mark.parametrize("messages", [LATER, [LATER, LATER]], ids=["one", "many"])
def test_a_rule_that_discards_inserts_makes_append_raise(
    store: Any, faces: Any, url: str, superuser: psycopg.Connection[Any], messages: Any
) -> None:
    store.append("t", HI)
    superuser.execute("CREATE RULE lose AS ON INSERT TO compaction_store.messages DO INSTEAD NOTHING")
    for thread_id in ("t", "new"):
        with pytest.raises(cs.DatabaseError, match="not stored"):
            store.append(thread_id, messages)
    superuser.execute("DROP RULE lose ON compaction_store.messages")
    assert contents(store) == ["hi"]
    assert [t.thread_id for t in store.threads()] == ["t"]
    # A connection that planned the insert under the rule keeps failing, because Postgres keeps that plan.
    assert faces.open(url).append("t", messages)[0].seq == 2


@pytest.mark.parametrize("level", ["one", "many"])
def test_a_trigger_that_discards_inserts_makes_append_raise(
    store: Any, superuser: psycopg.Connection[Any], level: str
) -> None:
    superuser.execute("CREATE FUNCTION public.lose() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    superuser.execute(
        "CREATE TRIGGER lose BEFORE INSERT ON compaction_store.messages FOR EACH ROW EXECUTE FUNCTION public.lose()"
    )
    with pytest.raises(cs.DatabaseError, match="not stored"):
        store.append("t", HI if level == "one" else [HI, LATER])
    assert list(store.threads()) == []


TABLES = ("threads", "heads", "messages", "compactions", "events")


def test_without_a_tenant_a_select_is_an_error_never_rows(store: Any, superuser: psycopg.Connection[Any]) -> None:
    store.append("t", HI)
    superuser.execute("SET ROLE compaction_store_app")
    for tenant in (None, ""):
        if tenant is not None:
            superuser.execute("SELECT set_config('compaction_store.tenant', %s, false)", [tenant])
        for table in ("threads", "heads", "messages"):
            with pytest.raises(psycopg.Error, match="tenant is not set") as caught:
                superuser.execute(f"SELECT * FROM compaction_store.{table}")
            assert caught.value.sqlstate == "CS009"
    superuser.execute("SELECT set_config('compaction_store.tenant', 'other', false)")
    for table in TABLES:
        assert superuser.execute(f"SELECT * FROM compaction_store.{table}").fetchall() == []
    superuser.execute("SELECT set_config('compaction_store.tenant', 'default', false)")
    assert len(superuser.execute("SELECT * FROM compaction_store.messages").fetchall()) == 1


def test_a_tenant_set_in_a_transaction_is_gone_with_it(store: Any, superuser: psycopg.Connection[Any]) -> None:
    store.append("t", HI)
    superuser.execute("SET ROLE compaction_store_app")
    with superuser.transaction():
        superuser.execute("SELECT set_config('compaction_store.tenant', 'default', true)")
        assert len(superuser.execute("SELECT * FROM compaction_store.messages").fetchall()) == 1
    with pytest.raises(psycopg.Error, match="tenant is not set"):
        superuser.execute("SELECT * FROM compaction_store.messages")


CHANGES: tuple[LiteralString, ...] = (
    "INSERT INTO compaction_store.messages SELECT * FROM compaction_store.messages",
    "INSERT INTO compaction_store.heads (thread_uid, tenant, head) VALUES (gen_random_uuid(), 'default', '')",
    "INSERT INTO compaction_store.threads SELECT * FROM compaction_store.threads",
    "UPDATE compaction_store.messages SET payload = '{}'",
    "UPDATE compaction_store.heads SET last_seq = 0",
    "UPDATE compaction_store.threads SET metadata = '{}'",
    "DELETE FROM compaction_store.messages",
    "DELETE FROM compaction_store.heads",
    "DELETE FROM compaction_store.threads",
    "TRUNCATE compaction_store.messages",
    "TRUNCATE compaction_store.compactions",
    "DROP TABLE compaction_store.messages",
    "ALTER TABLE compaction_store.messages DISABLE ROW LEVEL SECURITY",
    "SELECT compaction_store.open_thread(tenant, 't') FROM compaction_store.threads",
)


def test_the_app_role_changes_nothing_by_itself(store: Any, superuser: psycopg.Connection[Any]) -> None:
    store.append("t", HI)
    before = store.thread("t")
    superuser.execute("SET ROLE compaction_store_app")
    superuser.execute("SELECT set_config('compaction_store.tenant', 'default', false)")
    for change in CHANGES:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            superuser.execute(change)
    assert store.thread("t") == before
    assert contents(store) == ["hi"]


def test_a_login_without_rights_learns_which_to_get(
    faces: Any, url: str, narrow: str, superuser: psycopg.Connection[Any]
) -> None:
    faces.open(url).append("t", HI)
    name = sa.make_url(narrow).username
    superuser.execute(f"REVOKE compaction_store_app FROM {name}")
    with pytest.raises(cs.DatabaseError, match="grant LOGIN application"):
        faces.open(narrow)


@pytest.mark.parametrize("role", ["origin", "replica"])
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE compaction_store.messages SET payload = '{}'",
        "UPDATE compaction_store.messages SET payload = NULL",
        "UPDATE compaction_store.messages SET payload = payload",
        "UPDATE compaction_store.messages SET redacted_pos = 1, salt = NULL, payload = NULL, meta = NULL, tokens = 9",
        "UPDATE compaction_store.messages SET redacted_pos = 1, salt = NULL, meta = NULL",
        "UPDATE compaction_store.messages SET created_at = now()",
        "UPDATE compaction_store.threads SET thread_id = 'other'",
        "DELETE FROM compaction_store.messages",
        "DELETE FROM compaction_store.threads",
        "DELETE FROM compaction_store.heads",
        "TRUNCATE compaction_store.messages",
        "TRUNCATE compaction_store.threads, compaction_store.heads CASCADE",
        "TRUNCATE compaction_store.compactions",
        "TRUNCATE compaction_store.events",
    ],
)
def test_even_a_superuser_changes_nothing_in_passing(
    store: Any, superuser: psycopg.Connection[Any], change: LiteralString, role: str
) -> None:
    store.append("t", [HI, {"content": "\0\ud800"}], raw=True)
    stored = list(store.replay("t"))
    superuser.execute("SELECT set_config('session_replication_role', %s, false)", [role])
    with pytest.raises(psycopg.Error, match="append-only") as caught:
        superuser.execute(change)
    assert caught.value.sqlstate == "CS011"
    assert list(store.replay("t")) == stored
    assert not store.audit.verify("t").findings
