"""Lists of threads by subject, prefix, metadata and recency, in pages that neither lose nor repeat a thread."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces

import compaction_store as cs

MESSAGE = {"role": "user", "content": "hello"}
NAMES = ["a/1", "a/2", "b/1", "a", "\U0010ffff/1", "b/2", "a\U0010ffff"]


@pytest.fixture
def threads(store: Face) -> Face:
    """Threads of two subjects and of none, written in the order of their list."""
    for i, name in enumerate(NAMES):
        store.append(name, MESSAGE, subject=("alice", "bob", None)[i % 3])
        store.set_metadata(name, {"n": i % 2, "deep": {"is": True}})
    return store


def names(found: Any) -> list[str]:
    return [thread.thread_id for thread in found]


def test_the_newest_message_comes_first(threads: Face) -> None:
    assert names(threads.threads(order="recent")) == NAMES[::-1]
    threads.append("a/2", MESSAGE)
    threads.custody.hold("b/1", reason="no activity")
    threads.compact("a", lambda _ctx: None)
    assert names(threads.threads(order="recent", limit=3)) == ["a/2", NAMES[6], NAMES[5]]
    assert names(threads.threads(order="recent", subject="bob")) == ["a/2", NAMES[4]]


def test_hours_do_not_disturb_the_order(threads: Face, superuser: psycopg.Connection[Any]) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for minutes, name in enumerate(NAMES):
        superuser.execute(
            "UPDATE compaction_store.heads AS h SET active_at = %s FROM compaction_store.threads AS t"
            " WHERE t.thread_uid = h.thread_uid AND t.thread_id = %s",
            (start + timedelta(minutes=25 * minutes), name),
        )
    assert names(threads.threads(order="recent")) == NAMES[::-1]
    assert names(paged(threads, 2)) == NAMES[::-1]


def paged(store: Face, limit: int, *, by_text: bool = False, **wanted: Any) -> list[cs.Thread]:
    found: list[cs.Thread] = []
    after: Any = ""
    while page := list(store.threads(order="recent", limit=limit, after=after, **wanted)):
        assert len(page) <= limit
        found += page
        after = page[-1].cursor if by_text else page[-1]
    return found


@pytest.mark.parametrize("by_text", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 50])
def test_pages_are_the_whole_list(threads: Face, limit: int, by_text: bool) -> None:
    for wanted in ({}, {"subject": "alice"}, {"prefix": "a"}, {"metadata": {"n": 0}}):
        whole = names(threads.threads(order="recent", **wanted))
        assert names(paged(threads, limit, by_text=by_text, **wanted)) == whole


def test_threads_that_do_not_change_are_neither_lost_nor_doubled(threads: Face) -> None:
    first = list(threads.threads(order="recent", limit=3))
    threads.append("a/1", MESSAGE)
    threads.append("new", MESSAGE)
    threads.custody.erase(NAMES[5], reason="asked for")
    rest = list(threads.threads(order="recent", after=first[-1]))
    assert names(first) + names(rest) == [name for name in NAMES[::-1] if name != "a/1"]


def test_threads_of_one_time_have_one_order(threads: Face, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute("UPDATE compaction_store.heads SET active_at = '2026-01-01T00:00:00Z'")
    assert sorted(names(paged(threads, 1))) == sorted(NAMES)


@pytest.mark.parametrize("order", ["name", "recent"])
def test_filters_hold_in_any_order(threads: Face, order: str) -> None:
    def found(**wanted: Any) -> set[str]:
        return {thread.thread_id for thread in threads.threads(order=order, **wanted)}

    assert found(subject="alice") == {"a/1", "a", "a\U0010ffff"}
    assert found(subject="nobody") == set()
    assert found(prefix="a/") == {"a/1", "a/2"}
    assert found(prefix="\U0010ffff") == {"\U0010ffff/1"}
    assert found(prefix="a") == {"a/1", "a/2", "a", "a\U0010ffff"}
    assert found(metadata={"n": 1, "deep": {"is": True}}) == {"a/2", "a", "b/2"}
    assert found(metadata={"n": True}) == set()
    assert found(metadata={}) == set(NAMES)
    assert found(subject="bob", prefix="a/", metadata={"n": 1}) == {"a/2"}
    assert len(found(limit=2)) == 2
    assert len(found(limit=2, metadata={"n": 0})) == 2


def test_hidden_and_erased_threads(threads: Face) -> None:
    threads.clear("a/1", hide=True)
    stub = threads.custody.erase("a/2", reason="asked for").thread_id
    assert "a/1" not in names(threads.threads(subject="alice"))
    assert "a/1" in names(threads.threads(subject="alice", hidden=True))
    assert stub in names(threads.threads())
    assert stub not in names(threads.threads(order="recent"))
    assert names(threads.threads(prefix="erased:")) == [stub]
    assert names(threads.threads(subject="bob")) == [NAMES[4]]


@pytest.mark.usefixtures("threads")
def test_other_tenants_have_their_own(faces: Faces, url: str) -> None:
    other = faces.open(url, tenant="other")
    assert list(other.threads(order="recent", subject="alice")) == list(other.threads()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"order": "newest"}, {"order": None}, {"limit": 0}, {"limit": "5"}, {"prefix": 5}, {"prefix": "a\0"},
        {"subject": ""}, {"metadata": [1]}, {"metadata": "x"}, {"order": "recent", "after": "a/1"},
        {"order": "recent", "after": "2026/x"}, {"order": "recent", "after": 7}, {"after": 7}, {"hidden": 1},
    ],
)  # fmt: skip
def test_a_bad_argument_is_refused_at_once(store: Face, wrong: dict[str, Any]) -> None:
    with pytest.raises(cs.InvalidInput) as caught:
        store.store.threads(**wrong)
    place = "after" if wrong.get("order") == "recent" else "thread_id"
    assert (place if "after" in wrong else next(iter(wrong))) in str(caught.value)
