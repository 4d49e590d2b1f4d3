"""A change of a thread's metadata is an event, which names the fields and says no values."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces

import compaction_store as cs

HI = {"role": "user", "content": "hi"}


def events(store: Face) -> list[tuple[int, str, str | None, dict[str, Any]]]:
    return [(event.pos, event.kind, event.actor, event.body) for event in store.audit.events("t")]


def test_the_event_names_the_fields_that_were_set_and_removed(store: Face) -> None:
    store.append("t", HI)
    store.set_metadata("t", {"title": "tides", "n": 1.0, "kept": {"a": [1]}}, actor="me")
    store.set_metadata("t", {"kept": {"a": [1]}, "n": 1, "new": None})
    assert events(store) == [
        (2, "metadata", "me", {"set": ["kept", "n", "title"], "removed": []}),
        (3, "metadata", None, {"set": ["n", "new"], "removed": ["title"]}),
    ]
    assert not store.audit.verify("t").findings
    assert "tides" not in repr(events(store))


def test_metadata_that_stay_as_they_are_make_no_event(store: Face) -> None:
    store.append("t", HI)
    store.set_metadata("t", {})
    for _ in range(2):
        store.set_metadata("t", {"title": "x"})
    # The order of the fields is no change of one of them.
    store.set_metadata("t", {"title": "x", "a": 1})
    store.set_metadata("t", {"a": 1, "title": "x"})
    assert [body["set"] for *_, body in events(store)] == [["title"], ["a"]]
    assert list(store.thread("t").metadata) == ["a", "title"]


@pytest.mark.parametrize("name", ["", "é", 'a"b\\', "a\0b", "\ud800", "\U0001f600", "\0", "x" * 4000, "\\u0000"])
def test_a_field_may_have_any_name(store: Face, name: str) -> None:
    store.append("t", HI)
    store.set_metadata("t", {name: 1})
    store.set_metadata("t", {name: 2, "b": 1})
    store.set_metadata("t", {"b": 1})
    found = [(sorted(body["set"]), body["removed"]) for *_, body in events(store)]
    assert found == [([name], []), (sorted([name, "b"]), []), ([], [name])]
    assert not store.audit.verify("t").findings


def test_the_store_asks_for_an_actor_and_names_its_own(faces: Faces, url: str) -> None:
    store = faces.open(url, actor="app")
    store.append("t", HI)
    store.set_metadata("t", {"a": 1})
    assert events(store)[0][2] == "app"
    with pytest.raises(cs.errors.ActorRequired):
        faces.open(url, require_actor=True).set_metadata("t", {"a": 2})
    assert store.thread("t").metadata == {"a": 1}


def test_erasing_the_thread_leaves_no_value(store: Face, superuser: psycopg.Connection[Any]) -> None:
    store.append("t", HI)
    store.set_metadata("t", {"title": "marker-4711"})
    store.custody.erase("t", reason="asked")
    for table in ("threads", "events", "heads"):
        found = superuser.execute(f"SELECT t::text FROM compaction_store.{table} AS t".encode()).fetchall()
        assert found
        assert "marker-4711" not in repr(found)


def test_a_fork_has_the_metadata_of_its_parent_and_the_events_of_it(store: Face) -> None:
    store.append("t", HI)
    store.set_metadata("t", {"a": 1})
    store.fork("t", "u")
    assert store.thread("u").metadata == {"a": 1}
    assert [event.kind for event in store.audit.events("u")] == ["origin", "metadata"]
    assert not store.audit.verify("u").findings
