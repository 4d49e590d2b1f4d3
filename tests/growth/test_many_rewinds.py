"""Any number of rewinds costs the same: one call each, and a view that does not read those inside another.

A few hundred random threads are compared with the model in plain Python; $COMPACTION_STORE_SEQUENCES asks for more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from itertools import count
from typing import Any

import psycopg
import pytest
from reliability.thread_model import Appended, Model, Record, tokens_of
from support.rewinding import many, said, shown

import compaction_store as cs
from compaction_store.messages.framing import frame

_SEQUENCES = int(os.environ.get("COMPACTION_STORE_SEQUENCES", "150"))
_POPS = int(os.environ.get("COMPACTION_STORE_POPS", "250"))
_threads = count(1)


@pytest.fixture
def store(url: str) -> Any:
    with cs.Store.open(url, counter=tokens_of, pool_size=1) as opened:
        yield opened


# ---- growth


def entries(connection: psycopg.Connection[Any], statement: str) -> int:
    """Returns how many entries of the index on records in force a statement reads."""
    read = (
        "SELECT pg_stat_get_tuples_returned('compaction_store.compactions_in_force_idx'::regclass),"
        " pg_stat_force_next_flush()"
    )
    connection.execute("SELECT pg_stat_force_next_flush()")
    [(before, _)] = connection.execute(read).fetchall()
    with connection.transaction(force_rollback=True):
        connection.execute(statement.encode())
    connection.execute("SELECT pg_stat_force_next_flush()")
    [(after, _)] = connection.execute(read).fetchall()
    found: int = after - before
    return found


def cost(connection: psycopg.Connection[Any], last: int) -> tuple[int, int]:
    """Returns the records that a view reads, and those that one more pop reads."""
    view = entries(connection, "SELECT * FROM compaction_store.view(NULL, 'default', 't', NULL)")
    rewind = (
        f"SELECT * FROM compaction_store.rewind(NULL, 'default', 't', gen_random_uuid(), {last - 1}, 'rewind', false,"
        " NULL, NULL, '{}', '{\"replacement\":[]}')"
    )
    return view, entries(connection, rewind)


def pop(store: cs.Store) -> int:
    """Takes the last message off the view; returns the last seq that is left."""
    last = next(element for element in reversed(store.view("t").elements) if element.messages)
    [record] = store.rewind("t", last.seq - 1)
    assert record.end_seq == store.thread("t").last_seq
    return last.seq - 1


def test_the_next_pop_costs_what_the_first_did(store: cs.Store, superuser: psycopg.Connection[Any]) -> None:
    for first in range(1, _POPS + 101, 500):
        store.append("t", many(first, min(first + 499, _POPS + 100)))
    for _ in range(80):
        last = pop(store)
    superuser.execute("VACUUM ANALYZE")
    early = cost(superuser, last)
    for _ in range(_POPS - 80):
        last = pop(store)
    superuser.execute("VACUUM ANALYZE")
    late = cost(superuser, last)
    # The rewinds, each inside the next, must not be read one by one.
    assert 0 < late[0] <= early[0], (early, late)
    assert 0 < late[1] <= early[1], (early, late)
    view = store.view("t")
    assert shown(view) == [*range(1, 101), (101, _POPS + 100, "rewind")]
    assert store.verify("t").findings == ()


def test_pops_and_appends_in_turn_leave_one_active_record(
    store: cs.Store, superuser: psycopg.Connection[Any]
) -> None:  # fmt: skip
    store.append("t", many(1, 20))
    costs = []
    for number in range(1, _POPS + 1):
        store.append("t", said("a failed turn"))
        pop(store)
        if number in {80, _POPS}:
            superuser.execute("VACUUM ANALYZE")
            store.append("t", said("a failed turn"))
            costs.append(cost(superuser, store.thread("t").last_seq))
            pop(store)
    early, late = costs
    assert shown(store.view("t")) == [*range(1, 21), (21, _POPS + 22, "rewind")]
    assert all(0 < after <= before for before, after in zip(early, late, strict=True)), (early, late)


def test_a_rewind_is_one_statement(store: cs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append("t", many(1, 10))
    store.compact("t", lambda ctx: ctx.compact(3, 8, "six"))
    sent: list[str] = []
    execute: Callable[..., Any] = psycopg.Cursor.execute

    def counted(cursor: Any, statement: object, *arguments: Any, **keywords: Any) -> Any:
        sent.append(str(statement))
        return execute(cursor, statement, *arguments, **keywords)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    assert len(store.rewind("t", 5)) == 2
    assert len(store.rewind("t", 5)) == 0
    assert len(store.clear("t", hide=True)) == 1
    assert len(sent) == 3, sent


# ---- any sequence of them


class Play:
    """One thread in the store and in the model, side by side."""

    def __init__(self, store: cs.Store, chance: random.Random) -> None:
        self.store = store
        self.chance = chance
        self.name = f"t-{next(_threads)}"
        self.model = Model()
        self.hidden_seq: dict[int, int] = {}
        self.append()

    @property
    def last_seq(self) -> int:
        return len(self.model.appended(len(self.model.log)))

    @property
    def is_hidden(self) -> bool:
        in_force = {record.number for record in self.model.in_force(len(self.model.log))}
        return any(n in in_force and seq == self.last_seq for n, seq in self.hidden_seq.items())

    def append(self) -> None:
        new = [said("x" * self.chance.randrange(400)) for _ in range(self.chance.randrange(1, 5))]
        self.store.append(self.name, new)
        self.model.log += [Appended(message, tokens_of(message)) for message in new]

    def fold(self) -> None:
        if self.is_hidden:
            return
        pieces = self.model.view(len(self.model.log))
        first = self.chance.randrange(len(pieces))
        last = min(len(pieces) - 1, first + self.chance.randrange(4))
        start, end = pieces[first].seq, pieces[last].end_seq
        folded = pieces[first : last + 1]
        framed = frame("s", start, end)
        before = sum(piece.tokens for piece in folded)
        run = self.store.compact(
            self.name, lambda ctx: ctx.compact(start, end, "s", allow={"larger", "last_user"})
        )  # fmt: skip
        inputs = tuple(piece.number for piece in folded if piece.number is not None)
        self.model.write([
            Record("summary", "applied", start, end, run[0].callback, before, tokens_of(framed), (framed,), inputs)
        ])  # fmt: skip

    def rewind(self) -> None:
        seq = max(0, self.last_seq - self.chance.randrange(8))
        written = self.store.rewind(self.name, seq)
        assert [record.number for record in written] == [record.number for record in self.model.rewind("rewind", seq)]

    def clear(self) -> None:
        hide = self.chance.random() < 0.5
        was_hidden = self.is_hidden
        written = self.store.clear(self.name, hide=hide)
        if hide and not was_hidden:
            tokens = sum(piece.tokens for piece in self.model.view(len(self.model.log)))
            [made] = self.model.write([Record("clear", "applied", 1, self.last_seq, None, tokens, 0)])
            self.hidden_seq[made.number] = self.last_seq
            expected = [made]
        else:
            expected = self.model.rewind("clear", 0)
        assert [record.number for record in written] == [record.number for record in expected]

    def revoke(self) -> None:
        active = sorted(self.model.active(len(self.model.log)))
        if not active:
            return
        number = self.chance.choice(active)
        record = next(r for r in self.model.records(len(self.model.log)) if r.number == number)
        self.store.revoke(self.name, number)
        self.model.write([
            Record("revocation", "applied", record.start, record.end, None, record.after, record.before, revokes=number)
        ])  # fmt: skip

    def check(self) -> None:
        now = len(self.model.log)
        expected = [tuple(piece) for piece in self.model.view(now)]
        if self.is_hidden:
            with pytest.raises(cs.ThreadNotFound):
                self.store.view(self.name)
        view = self.store.view(self.name, at=now if self.is_hidden else None)
        assert [(e.seq, e.end_seq, e.number, e.kind, e.tokens, e.messages) for e in view.elements] == expected
        thread = self.store.thread(self.name, hidden=True)
        assert (thread.last_pos, thread.view_tokens, thread.hidden) == (now, view.tokens, self.is_hidden)

    def check_at_the_end(self) -> None:
        statuses = [record.status for record in self.store.compactions(self.name)]
        assert statuses == [self.model.status(record) for record in self.model.records(len(self.model.log))]
        assert self.store.verify(self.name).findings == ()
        for pos in self.chance.sample(range(1, len(self.model.log) + 1), 2):
            view = self.store.view(self.name, at=pos)
            assert [(e.seq, e.end_seq, e.number) for e in view.elements] == [p[:3] for p in self.model.view(pos)]


def test_any_sequence_shows_what_the_model_says(store: cs.Store, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute(f'ALTER DATABASE "{superuser.info.dbname}" SET synchronous_commit = off'.encode())
    for number in range(_SEQUENCES):
        chance = random.Random(number)
        play = Play(store, chance)
        steps = (play.append, play.append, play.fold, play.fold, play.rewind, play.rewind, play.clear, play.revoke)
        try:
            for _ in range(12):
                chance.choice(steps)()
                play.check()
            play.check_at_the_end()
        except BaseException as error:
            error.add_note(f"with chance {number}: {play.model.log}")
            raise
