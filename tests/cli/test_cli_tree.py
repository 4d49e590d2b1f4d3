"""The verb tree: a record with the records it was made from, however deep."""

from __future__ import annotations

import pytest
from support.compactable_thread import span
from support.handmade_bundles import Thread

import compaction_store as cs
from cli.program import SECRET, Run

_DEPTH = 600


@pytest.fixture
def nested(store: cs.Store) -> cs.Store:
    """A thread in which every record but the first was made from the one before it and one more message."""
    thread = Thread(thread_id="deep")
    for seq in range(1, _DEPTH + 2):
        thread.message(f'{{"role":"user","content":"message {seq}"}}')
    for number in range(1, _DEPTH + 1):
        body = f'{{"summary_text":"{SECRET}","replacement":[{{"role":"user","content":"{SECRET}"}}]}}'
        thread.compaction(body, start=1, end=number + 1, inputs=[number - 1] if number > 1 else [])
    store.load.bundle(thread.lines())
    return store


def test_a_record_is_shown_with_those_inside_it(run: Run, store: cs.Store) -> None:
    store.append("t", [{"role": "user", "content": f"message {n} " * 40} for n in range(9)])
    for start, end in ((1, 2), (4, 5), (1, 5), (7, 8)):
        store.compact("t", span(start, end, SECRET))
    told = run("tree", "t", "3", "--table").stdout.splitlines()
    assert [line.partition(",")[0] for line in told] == [
        "compaction 3 of thread t", "3  summary", "  1  summary", "  2  summary",
    ]  # fmt: skip
    assert "seqs 1-5" in told[1]
    assert "active" in told[1]
    assert "superseded by 3" in told[2]
    assert SECRET not in "".join(told)
    [found] = run.json("tree", "t", "3")
    assert [(r["number"], r["inside"], r["status"], r["superseded_by"]) for r in found["records"]] == [
        (3, [1, 2], "active", None), (1, [], "superseded", 3), (2, [], "superseded", 3),
    ]  # fmt: skip
    assert SECRET not in str(found)
    [found] = run.json("tree", "t", "3", "--text")
    assert [r["body"]["summary_text"] for r in found["records"]] == [SECRET] * 3
    assert "no compaction 9" in run("tree", "t", "9", code=1).stderr


@pytest.mark.usefixtures("nested")
def test_six_hundred_nested_records_are_shown(run: Run) -> None:
    told = run("tree", "deep", str(_DEPTH), "--table").stdout.splitlines()
    assert len(told) == 1 + _DEPTH
    assert told[-1].startswith(f"{'':32}level {_DEPTH - 1}, 1  summary, seqs 1-2,")
    [found] = run.json("tree", "deep", str(_DEPTH))
    assert [record["number"] for record in found["records"]] == list(range(_DEPTH, 0, -1))
    assert [record["inside"] for record in found["records"]] == [[n] for n in range(_DEPTH - 1, 0, -1)] + [[]]
    assert SECRET not in str(found)
