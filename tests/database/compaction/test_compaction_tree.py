"""The tree of a record's inputs is what the rule says, and reading it costs one read per record."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from support.faces import Face

from compaction_store.compaction import records
from compaction_store.models import Compaction, CompactionTree


def record(number: int, span: tuple[int, int], **more: Any) -> Compaction:
    base: dict[str, Any] = {
        "thread_id": "t", "number": number, "pos": number, "created_at": datetime(2024, 1, 2, tzinfo=UTC),
        "kind": "summary", "outcome": "applied", "start_seq": span[0], "end_seq": span[1], "tokens_before": None,
        "tokens_after": None, "source_count": None, "inputs": (), "run_id": UUID(int=1), "callback": None,
        "trigger": None, "actor": None, "login": "app", "model": None, "counter": None, "revokes": None,
        "redacted_pos": None, "superseded_by": None, "revoked_by": None, "body": None, "thread_uid": UUID(int=2),
    }  # fmt: skip
    return Compaction(**base | more)


def by_the_rule(top: Compaction, log: list[Compaction]) -> tuple[Any, ...]:
    """Returns the inputs by definition: the active records inside the span that no later one of them contains."""
    before = [
        entry
        for entry in log
        if entry.start_seq is not None
        and entry.number < top.number
        and _holds(top, entry)
        and not (entry.revoked_by is not None and entry.revoked_by < top.number)
        and not (entry.redacted_pos is not None and entry.redacted_pos < top.pos)
    ]
    active = [e for e in before if not any(other.number > e.number and _holds(other, e) for other in before)]
    active.sort(key=lambda entry: entry.start_seq or 0)
    return (top.number, tuple(by_the_rule(entry, log) for entry in active))


def shape(tree: CompactionTree) -> tuple[Any, ...]:
    return (tree.record.number, tuple(shape(inner) for inner in tree.inside))


def history(chance: random.Random) -> list[Compaction]:
    """Makes a random history of compactions, revocations and erasures."""
    log: list[Compaction] = []
    for number in range(1, chance.randrange(3, 30)):
        in_force = [r for r in log if r.start_seq is not None and r.revoked_by is None and r.redacted_pos is None]
        active = [r for r in in_force if not any(o.number > r.number and _holds(o, r) for o in in_force)]
        kind = chance.randrange(6)
        if kind == 0 and active:
            chosen = chance.choice(active)
            log[log.index(chosen)] = record(chosen.number, _span(chosen), revoked_by=number)
            log.append(record(number, (0, 0), kind="revocation", start_seq=None, end_seq=None, revokes=chosen.number))
            continue
        if kind == 1 and in_force:
            # Every record that may repeat the message is erased.
            seq = chance.choice(_span(chance.choice(in_force)))
            for r in in_force:
                if _span(r)[0] <= seq <= _span(r)[1]:
                    log[log.index(r)] = record(r.number, _span(r), redacted_pos=number)
            log.append(record(number, (0, 0), outcome="failed", start_seq=None, end_seq=None))
            continue
        start = chance.randrange(1, 40)
        end = min(40, start + chance.randrange(12))
        while any(_span(r)[0] < start <= _span(r)[1] or _span(r)[0] <= end < _span(r)[1] for r in active):
            start = min([start, *(_span(r)[0] for r in active if _span(r)[0] < start <= _span(r)[1])])
            end = max([end, *(_span(r)[1] for r in active if _span(r)[0] <= end < _span(r)[1])])
        log.append(record(number, (start, end)))
    return log


def _holds(outer: Compaction, inner: Compaction) -> bool:
    return _span(outer)[0] <= _span(inner)[0] and _span(inner)[1] <= _span(outer)[1]


def _span(r: Compaction) -> tuple[int, int]:
    return r.start_seq or 0, r.end_seq or 0


def test_the_tree_of_every_record_is_that_of_the_rule() -> None:
    chance = random.Random(5)
    depths = set()
    for _ in range(400):
        log = history(chance)
        for top in log:
            if top.start_seq is not None:
                expected = by_the_rule(top, log)
                assert shape(records.tree(top, chance.sample(log, len(log)))) == expected
                depths.add(str(expected).count("("))
    assert len(depths) > 10


def _walk(tree: CompactionTree) -> Iterator[CompactionTree]:
    stack = [tree]
    while stack:
        one = stack.pop()
        yield one
        stack += one.inside


@pytest.mark.parametrize("count", [600, 2495])
def test_records_inside_one_another_take_no_stack_and_are_each_looked_at_a_few_times(count: int) -> None:
    log = [record(number, (1, number + 1)) for number in range(1, count + 1)]
    tree = records.tree(log[-1], log[:-1])
    assert sum(1 for _ in _walk(tree)) == count
    assert repr(tree) == f"<CompactionTree of {log[-1]!r}: 1 inside>"
    calls = 0

    def counted(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(counted)
    try:
        records.tree(log[-1], log[:-1])
    finally:
        sys.setprofile(None)
    assert calls < 20 * count


def test_a_thread_whose_every_summary_takes_in_the_last_one_has_its_tree(store: Face) -> None:
    store.append("t", [{"role": "user", "content": f"some words to be made short, number {n}"} for n in range(62)])
    for end in range(2, 62):
        store.compact("t", lambda ctx, end=end: ctx.compact(1, end, "short", allow={"larger"}), force=True)
    top = store.compaction("t", 60)
    assert [one.record.number for one in _walk(store.audit.tree(top))] == list(range(60, 0, -1))
    assert isinstance(store.audit.tree(top), CompactionTree)


def test_deep_trees_are_compared_without_recursion() -> None:
    def chain(start: int) -> CompactionTree:
        tree = CompactionTree(record(1, (1, 1)), ())
        for number in range(start, 3_000):
            tree = CompactionTree(record(number, (1, number)), (tree,))
        return tree

    assert chain(2) == chain(2)
    assert chain(2) != chain(3)
    assert chain(2_999) != chain(2_999).record
    assert len({chain(2), chain(2)}) == 1
