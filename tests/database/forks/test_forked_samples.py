"""A sample has each record once, however often it was forked, and none that nobody can judge."""

from __future__ import annotations

from typing import Any

from support.faces import Face, Faces

from .conftest import message


def filled(store: Face) -> None:
    for name in ("good", "bad"):
        store.append(name, [message(n) for n in range(1, 9)])
        store.compact(name, lambda ctx: ctx.compact(1, 3, "a summary"), force=True)


def population(store: Face, **filters: Any) -> set[tuple[str, int]]:
    found = store.audit.sample(7, 1000, **filters)
    assert found.population == len(found.records)
    return {(record.thread_id, record.number) for record in found.records}


def test_forks_do_not_dilute_a_sample(store: Face) -> None:
    filled(store)
    for n in range(12):
        store.fork("good", f"fork {n}")
        store.fork(f"fork {n}", f"fork of fork {n}")
    assert population(store) == {("good", 1), ("bad", 1)}
    found = store.audit.sample(7, 1)
    assert (len(found.records), found.population) == (1, 2)
    assert store.audit.sample(7, 1, among=1).population == 1
    # What a fork did itself is its own.
    store.compact("fork 3", lambda ctx: ctx.compact(4, 6, "another summary"), force=True)
    store.fork("fork 3", "later")
    assert population(store) == {("good", 1), ("bad", 1), ("fork 3", 2)}
    assert population(store, kind="truncation") == set()


def test_a_copy_counts_if_its_original_is_gone(store: Face, faces: Faces, other_url: str) -> None:
    filled(store)
    store.fork("bad", "copy")
    store.fork("copy", "copy of copy")
    bundles = [list(store.audit.export(name)) for name in ("good", "copy", "copy of copy")]
    store.custody.erase("bad", reason="asked", forks=False)
    assert population(store) == {("good", 1), ("copy", 1)}
    other = faces.open(other_url)
    for bundle in bundles:
        other.load.bundle(bundle)
    assert population(other) == {("good", 1), ("copy", 1)}


def test_erased_records_are_not_drawn(store: Face) -> None:
    filled(store)
    store.compact("good", lambda ctx: ctx.compact(5, 6, "a second summary"), force=True)
    store.fork("good", "fork")
    store.custody.redact("good", 2, reason="asked", forks=False)
    # The copy of record 1 is now the only one with a text.
    assert population(store) == {("bad", 1), ("good", 2), ("fork", 1)}
    store.custody.redact("fork", 2, reason="asked")
    store.custody.erase("bad", reason="asked")
    assert population(store) == {("good", 2)}
