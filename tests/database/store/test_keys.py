"""Keys that the store makes, and when it regards a key as new."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest
from support.faces import Face
from support.keys import key_of

from compaction_store.errors import InvalidKey
from compaction_store.messages import keys

HI = {"role": "user", "content": "hi"}


def test_keys_are_in_the_order_of_time_byte_by_byte() -> None:
    made = []
    for _ in range(40):
        made.append(keys.new())
        time.sleep(0.002)
    assert made == sorted(made, key=str.encode)
    assert {len(key) for key in made} == {23}
    assert len({keys.new() for _ in range(10_000)}) == 10_000


def test_a_key_is_fresh_once_and_a_callers_never() -> None:
    own, given = keys.Key(None), keys.Key("mine")
    assert [own.is_fresh(), own.is_fresh(), given.is_fresh()] == [True, False, False]
    assert given.text == "mine"
    with pytest.raises(InvalidKey):
        keys.Key("")


def test_each_append_has_a_key_of_its_own(store: Face, superuser: psycopg.Connection[Any]) -> None:
    for messages in (HI, [HI, HI], HI):
        store.append("t", messages)
    stored = superuser.execute(
        "SELECT key FROM compaction_store.messages WHERE thread_uid = %s ORDER BY seq",
        (key_of(superuser, "t"),),
    ).fetchall()
    made = [key for (key,) in stored if key is not None]
    assert len(set(made)) == 3
    assert all(key.startswith("~") for key in made)


@pytest.mark.parametrize("messages", [HI, [HI, HI]], ids=["one", "many"])
def test_the_key_of_an_append_that_the_store_made_is_found_again(
    store: Face, superuser: psycopg.Connection[Any], messages: Any
) -> None:
    """A caller does this with the key of an OutcomeUnknown."""
    first = store.append("t", messages)
    [(key,)] = superuser.execute("SELECT key FROM compaction_store.messages WHERE key IS NOT NULL").fetchall()
    assert store.append("t", messages, key=key, expected_seq=0) == first
    assert store.thread("t").last_seq == len(first)


@pytest.mark.parametrize("many", [False, True])
def test_what_is_called_fresh_and_is_not_is_refused(
    store: Face, superuser: psycopg.Connection[Any], many: bool
) -> None:
    """Two attempts run at once and the first arrives second: the index refuses it."""
    store.append("t", HI, key="k")
    uid = key_of(superuser, "t")
    if many:
        call = "append_many(%s, 'default', 't', '{\"{}\"}', %s, '{NULL}', '{1}', 'c', 'k', NULL, NULL, NULL, true)"
    else:
        call = "append(%s, 'default', 't', '{}', %s, NULL, 1, 'c', 'k', NULL, NULL, NULL, true)"
    with pytest.raises(psycopg.errors.UniqueViolation):
        superuser.execute(f"SELECT compaction_store.{call}", (uid, bytes(16)))
    assert store.thread("t").last_seq == 1
    assert store.audit.verify("t").findings == ()
