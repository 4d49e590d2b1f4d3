"""The loader's role, and the refusals of the SQL function."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.load_sources import message, messages, sound

import compaction_store as cs
from compaction_store.errors import (
    PermissionDenied,
)
from compaction_store.models import ToLoad
from compaction_store.postgres import queries

KEY = queries.ThreadKey(None, "default", "t")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "login", ["compaction_store_loader", "compaction_store_app, compaction_store_loader"], indirect=True
)
def test_a_member_of_the_loaders_role_loads_in_its_tenant(faces: Any, url: str, login: str) -> None:
    store = faces.open(login, tenant="mine")
    assert store.load.messages("t", messages(250), key="k").added == 250
    assert store.load.messages("t", messages(250), key="k").added == 0
    sound(store, 250)
    assert list(faces.open(url, tenant="other").threads()) == []


@pytest.mark.parametrize("login", ["compaction_store_app"], indirect=True)
def test_a_login_without_the_loaders_role_learns_which_to_get(faces: Any, login: str) -> None:
    store = faces.open(login)
    with pytest.raises(PermissionDenied, match="compaction_store_loader") as caught:
        store.load.messages("t", messages(3))
    assert caught.value.sqlstate == "42501"
    assert store.append("t", message(0))[0].seq == 1


_LISTS: dict[str, Any] = {
    "payloads": ['{"role":"user"}', "{}"], "salts": bytes(32), "roles": ["user", None], "tokens": [1, 2],
    "counters": ["c", "c"], "metas": None, "key": "k", "expected_seq": None,
}  # fmt: skip


@pytest.mark.one_server("it calls a function without a key")
@pytest.mark.parametrize(
    "wrong",
    [
        {"payloads": []}, {"payloads": None}, {"salts": bytes(31)}, {"salts": None}, {"roles": ["user"]},
        {"tokens": [1, 2, 3]}, {"counters": None}, {"metas": ["{}"]}, {"key": None},
    ],
    ids=str,
)  # fmt: skip
def test_lists_that_do_not_fit_each_other_are_refused(
    store: Any, superuser: psycopg.Connection[Any], wrong: dict[str, Any]
) -> None:
    call = (
        "SELECT first_seq FROM compaction_store.load(%s, %s, %s, %s::text[], %s, %s::text[], %s::int[], %s::text[],"
        " %s::text[], %s, %s)"
    )
    with pytest.raises(psycopg.Error) as caught:
        superuser.execute(call, (*KEY, *(_LISTS | wrong).values()))
    assert caught.value.sqlstate == "CS008"
    assert superuser.execute(call, (*KEY, *_LISTS.values())).fetchall() == [(1,)]
    assert store.thread("t").last_seq == 2


@pytest.mark.one_server("Citus has no rules, and copies no triggers to shards")
@pytest.mark.parametrize("rule", ["DO INSTEAD NOTHING", "trigger"])
def test_a_chunk_that_is_not_stored_whole_is_no_chunk(
    store: Any, superuser: psycopg.Connection[Any], rule: str
) -> None:
    """Even if a rule or a trigger discards rows."""
    if rule == "trigger":
        superuser.execute(
            "CREATE FUNCTION public.some() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN IF NEW.seq = 3 THEN RETURN NULL; END IF; RETURN NEW; END $$;"
            "CREATE TRIGGER part BEFORE INSERT ON compaction_store.messages"
            " FOR EACH ROW EXECUTE FUNCTION public.some()"
        )
    else:
        superuser.execute("CREATE RULE none AS ON INSERT TO compaction_store.messages DO INSTEAD NOTHING")
    with pytest.raises(cs.DatabaseError) as caught:
        store.load.messages("t", messages(5))
    assert caught.value.sqlstate == "CS010"
    with pytest.raises(cs.ThreadNotFound):
        store.thread("t")


@pytest.mark.parametrize(
    "encoding", [pytest.param("latin1", marks=pytest.mark.one_server("a cluster refuses it")), "utf8"]
)
def test_a_connection_in_another_encoding_stores_the_same(url: str, encoding: str) -> None:
    engine = sa.create_engine(
        sa.make_url(url).set(drivername="postgresql+psycopg"), connect_args={"client_encoding": encoding}
    )
    given = [ToLoad({"role": "größe", "content": "größe"}, meta={"id": "größe"})]
    with cs.Store.open(engine=engine) as store:
        store.load.messages("t", given, raw=True)
        assert [(m.payload, m.meta) for m in store.replay("t")] == [(given[0].message, given[0].meta)]
        sound(store, 1)
    engine.dispose()
