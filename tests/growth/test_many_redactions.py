"""A thousand redactions, and long lists of them."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
from support.redactable_thread import PLAIN, check, commit, dump, events, record, shape, span

import compaction_store as cs

CALL = 250


class Model:
    """A model, separate from the store, of the marks that each record repeats."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.alive = set(range(1, count + 1))
        self.erased: set[int] = set()
        self.spans: dict[int, tuple[int, int] | None] = {}
        self.inputs: dict[int, list[int]] = {}
        self.marks: dict[int, set[int]] = {}

    def add(self, number: int, where: tuple[int, int] | None, inputs: list[int], marks: set[int], outcome: str) -> None:
        if outcome == "observed":
            # Any message after its start may have reported it.
            where = None if where is None else (where[0], self.count)
        # Without a span it may repeat anything.
        where = where or (1, self.count)
        self.spans[number], self.inputs[number], self.marks[number] = where, inputs, marks

    def marks_of(self, where: tuple[int, int] | None, inputs: list[int]) -> set[int]:
        found = set() if where is None else self.alive & set(range(where[0], where[1] + 1))
        return found.union(*(self.marks.get(number, set()) for number in inputs))

    def redact(self, seqs: set[int]) -> set[int]:
        """Returns the records that are erased with the messages."""
        self.alive -= seqs
        reached: set[int] = set()
        while True:
            more = {
                number
                for number, where in self.spans.items()
                if number not in self.erased | reached
                and (
                    (where is not None and any(where[0] <= seq <= where[1] for seq in seqs))
                    or reached.intersection(self.inputs[number])
                )
            }
            if not more:
                break
            reached |= more
        self.erased |= reached
        for number in reached:
            del self.marks[number]
        return reached


def _cuts(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Returns whether a span overlaps another without containing it."""
    return one[0] <= other[1] and other[0] <= one[1] and not (one[0] <= other[0] and other[1] <= one[1])


class Campaign:
    """Random records over one thread, each of which repeats everything that it was made from, and random redactions."""

    def __init__(self, store: Any, connection: psycopg.Connection[Any], seed: int, count: int) -> None:
        self.store, self.connection = store, connection
        self.random = random.Random(seed)
        self.count = count
        self.model = Model(count)
        self.seen: list[tuple[int, list[tuple[int, int, int | None]]]] = []

    def write(self) -> None:
        chosen, model = self.random, self.model
        start = chosen.randint(1, self.count)
        where: tuple[int, int] | None = (start, min(self.count, start + chosen.choice([0, 1, 2, 3, 5, 9, 20])))
        outcome = chosen.choice(["applied", "applied", "rejected", "failed", "observed"])
        known = sorted(model.marks)
        inputs = chosen.sample(known, min(len(known), chosen.choice([0, 0, 1, 1, 2])))
        if outcome != "applied" and inputs and chosen.random() < 0.5:
            where = None
        marks = model.marks_of(where, inputs)
        text = " ".join(f"mark-{seq}-" for seq in sorted(marks)) or "nothing"
        start_seq, end_seq = where or (None, None)
        made = record(start_seq, end_seq, text, outcome=outcome, inputs=inputs, tokens_after=len(marks))
        active = [element for element in self.store.view("t").elements if element.number is not None]
        if outcome == "applied" and where is not None and any(_cuts(where, (e.seq, e.end_seq)) for e in active):
            return
        [number] = commit(self.connection, made)
        model.add(number, where, inputs, marks, outcome)

    def redact(self) -> int:
        seqs = set(self.random.sample(sorted(self.model.alive), 1))
        expected = self.model.redact(seqs)
        done = self.store.custody.redact("t", seqs, reason="asked for")
        assert (set(done.seqs), set(done.records)) == (seqs, expected)
        return seqs.pop()

    def check(self) -> None:
        everything = dump(self.connection)
        model = self.model
        there = {int(part.split("-", 1)[0]) for part in everything.split("mark-")[1:]}
        assert there == model.alive
        for c in self.store.compactions("t"):
            assert c.redacted == (c.number in model.erased)
        check(self.store)
        self.seen.append((self.store.thread("t").last_pos, shape(self.store)))
        for at, then in self.seen:
            assert shape(self.store, at) == then


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_a_thousand_redactions_leave_no_mark_and_a_thread_that_verifies(
    url: str, superuser: psycopg.Connection[Any], seed: int
) -> None:
    with cs.Store.open(url) as store:
        count = 1250
        for first in range(1, count + 1, CALL):
            payloads = [{"role": "user", "content": f"mark-{seq}- {PLAIN}"} for seq in range(first, first + CALL)]
            store.append("t", payloads, meta=[{"about": f"mark-{seq}-"} for seq in range(first, first + CALL)])
        campaign = Campaign(store, superuser, seed, count)
        for _ in range(200):
            campaign.write()
        campaign.check()
        for i in range(1000):
            seq = campaign.redact()
            assert store.message("t", seq).redacted
            if i % 10 == 0:
                assert store.view("t").tokens == store.thread("t").view_tokens
            if i % 3 == 0:
                campaign.write()
            if i % 250 == 249:
                campaign.check()
        report = store.audit.verify("t")
        assert (report.findings, report.redactions) == ((), 1000)
        assert report.redacted == 1000 + len(campaign.model.erased)
        assert len(campaign.model.erased) > 200
        text = str([m.text for m in store.replay("t")]) + str([c.body for c in store.compactions("t")])
        text += str(store.view("t").messages) + str([store.view("t", at=at).messages for at, _ in campaign.seen])
        text += str([store.audit.explain("t", seq) for seq in range(1, count, 100)]) + str(events(store))
        found = {int(part.split("-", 1)[0]) for part in text.split("mark-")[1:]}
        assert found == campaign.model.alive


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_long_list_is_one_call(url: str, count: int) -> None:
    with cs.Store.open(url) as store:
        store.load.messages("t", ({"role": "user", "content": f"message {i}"} for i in range(count)))
        store.compact("t", span(1, count // 2))
        odd = store.custody.redact("t", range(1, count + 1, 2), reason="r")
        assert (len(odd.seqs), odd.records) == (count // 2, (1,))
        assert store.audit.verify("t").findings == ()
        assert store.custody.redact("t", range(1, count + 1), reason="r").seqs == tuple(range(2, count + 1, 2))
        assert store.audit.verify("t").redacted == count + 1
        done = store.custody.erase("t", reason="r")
        assert done.seqs == ()
        assert store.audit.verify(done.thread_id).findings == ()
