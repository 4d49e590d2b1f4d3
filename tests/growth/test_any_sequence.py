"""Appends, folds, rewinds, clears, revocations, forks, redactions and erasures in any order, and the model in Python.

A few hundred random families of threads are compared; $COMPACTION_STORE_SEQUENCES asks for more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from itertools import count
from typing import Any

import psycopg
import pytest
from reliability.thread_model import Appended, Model, Record, tokens_of
from support.rewinding import said

import compaction_store as cs
from compaction_store.messages.framing import frame
from compaction_store.models.compactions import status_in_words

_FIRST = int(os.environ.get("COMPACTION_STORE_FIRST_SEQUENCE", "0"))
_SEQUENCES = int(os.environ.get("COMPACTION_STORE_SEQUENCES", "60"))
_threads = count(1)


@pytest.fixture
def store(url: str) -> Any:
    with cs.Store.open(url, counter=tokens_of, pool_size=1) as opened:
        yield opened


class Thread:
    """One thread in the store and in the model, side by side; `parent` is the one that it was forked from."""

    def __init__(self, name: str, model: Model, parent: Thread | None = None) -> None:
        self.name = name
        self.model = model
        self.parent = parent
        self.copied = len(model.appended(len(model.log)))
        self.hidden_seq: dict[int, int] = {}

    @property
    def last_seq(self) -> int:
        return len(self.model.appended(len(self.model.log)))

    @property
    def last_pos(self) -> int:
        return len(self.model.log)

    def is_hidden(self, at: int | None = None) -> bool:
        at = self.last_pos if at is None else at
        numbers = {record.number for record in self.model.in_force(at)}
        return any(n in numbers and seq == len(self.model.appended(at)) for n, seq in self.hidden_seq.items())

    def copies_of(self, other: Thread) -> int:
        """Returns the last seq of which this thread has a copy of the other's message, through any forks between."""
        if self.parent is None:
            return 0
        return self.copied if self.parent is other else min(self.copied, self.parent.copies_of(other))


class Play:
    """A thread, its forks, and what is left of those that were erased. Every step is taken in one of them."""

    def __init__(self, store: cs.Store, chance: random.Random) -> None:
        self.store = store
        self.chance = chance
        self.now = Thread(f"t-{next(_threads)}", Model())
        self.threads = [self.now]
        self.stubs: list[tuple[str, int]] = []
        self.append()

    def append(self) -> None:
        new = [said("x" * self.chance.randrange(400)) for _ in range(self.chance.randrange(1, 5))]
        self.store.append(self.now.name, new, raw=True)
        self.now.model.log += [Appended(message, tokens_of(message)) for message in new]

    def fold(self) -> None:
        if self.now.is_hidden():
            return
        model = self.now.model
        pieces = model.view(self.now.last_pos)
        first = self.chance.randrange(len(pieces))
        last = min(len(pieces) - 1, first + self.chance.randrange(4))
        start, end = pieces[first].seq, pieces[last].end_seq
        folded = pieces[first : last + 1]
        framed = frame("s", start, end)
        before = sum(piece.tokens for piece in folded)
        run = self.store.compact(
            self.now.name, lambda ctx: ctx.compact(start, end, "s", allow={"larger", "last_user"})
        )  # fmt: skip
        inputs = tuple(piece.number for piece in folded if piece.number is not None)
        model.write([
            Record("summary", "applied", start, end, run[0].callback, before, tokens_of(framed), (framed,), inputs)
        ])  # fmt: skip

    def rewind(self) -> None:
        seq = max(0, self.now.last_seq - self.chance.randrange(8))
        written = self.store.rewind(self.now.name, seq)
        expected = self.now.model.rewind("rewind", seq)
        assert [record.number for record in written] == [record.number for record in expected]

    def clear(self) -> None:
        hide, model, last_seq = self.chance.random() < 0.5, self.now.model, self.now.last_seq
        was_hidden = self.now.is_hidden()
        written = self.store.clear(self.now.name, hide=hide)
        if hide and not was_hidden:
            tokens = sum(piece.tokens for piece in model.view(self.now.last_pos))
            [made] = model.write([Record("clear", "applied", 1, last_seq, None, tokens, 0)])
            self.now.hidden_seq[made.number] = last_seq
            expected = [made]
        else:
            expected = model.rewind("clear", 0)
        assert [record.number for record in written] == [record.number for record in expected]

    def revoke(self) -> None:
        model = self.now.model
        active = sorted(model.active(self.now.last_pos))
        if not active:
            return
        number = self.chance.choice(active)
        record = next(r for r in model.records(self.now.last_pos) if r.number == number)
        self.store.revoke(self.now.name, number)
        model.write([
            Record("revocation", "applied", record.start, record.end, None, record.after, record.before, revokes=number)
        ])  # fmt: skip

    def fork(self) -> None:
        parent, at = self.now, self.chance.randrange(1, self.now.last_pos + 1)
        if not parent.model.appended(at):
            return
        name = f"t-{next(_threads)}"
        if parent.is_hidden(at):
            with pytest.raises(cs.Conflict):
                self.store.fork(parent.name, name, at=at)
            return
        made = self.store.fork(parent.name, name, at=at)
        child = Thread(name, parent.model.fork(at), parent)
        numbers = {record.number for record in child.model.records(child.last_pos)}
        child.hidden_seq = {n: seq for n, seq in parent.hidden_seq.items() if n in numbers}
        assert (made.at, made.last_seq, made.pos) == (at, child.last_seq, at + 1)
        self.threads.append(child)
        self.now = self.chance.choice(self.threads)

    def redact(self) -> None:
        """Erases a few messages, and perhaps their copies in the thread's forks."""
        thread, reaches = self.now, self.chance.random() < 0.7
        seqs = self.chance.sample(range(1, thread.last_seq + 1), min(thread.last_seq, self.chance.randrange(1, 4)))
        changes = any(seq not in thread.model.lost for seq in seqs)
        reached = self.forks_with(seqs)
        done = self.store.custody.redact(thread.name, seqs, reason="asked", forks=reaches)
        assert sorted(fork.thread_id for fork in done.forks) == sorted(fork.name for fork in reached)
        thread.model.redact(seqs)
        assert done.pos == (thread.last_pos if changes else None)
        if reaches:
            for fork in reached:
                fork.model.redact(seq for seq in seqs if seq <= fork.copies_of(thread))

    def forks_with(self, seqs: Iterable[int]) -> list[Thread]:
        """Returns the forks of the thread in which a copy of one of these messages still has its content."""
        return [
            fork
            for fork in self.threads
            if any(seq <= fork.copies_of(self.now) and seq not in fork.model.lost for seq in seqs)
        ]

    def erase(self) -> None:
        """Erases the thread, and perhaps the copies in its forks; the next append makes a new thread of that name."""
        old, reaches = self.now, self.chance.random() < 0.7
        reached = self.forks_with(range(1, old.last_seq + 1))
        done = self.store.custody.erase(old.name, reason="asked", forks=reaches)
        told = [fork.thread_id for fork in done.forks if not fork.thread_id.startswith("erased:")]
        assert sorted(told) == sorted(fork.name for fork in reached)
        if reaches:
            for fork in reached:
                fork.model.redact(range(1, fork.copies_of(old) + 1))
        self.stubs.append((done.thread_id, old.last_pos + 1))
        with pytest.raises(cs.ThreadNotFound):
            self.store.thread(old.name, hidden=True)
        self.now = Thread(old.name, Model())
        self.threads[self.threads.index(old)] = self.now
        self.append()

    def check(self) -> None:
        thread, model = self.now, self.now.model
        expected = [tuple(piece) for piece in model.view(thread.last_pos)]
        is_hidden = thread.is_hidden()
        if is_hidden:
            with pytest.raises(cs.ThreadNotFound):
                self.store.view(thread.name)
        view = self.store.view(thread.name, at=thread.last_pos if is_hidden else None)
        assert [(e.seq, e.end_seq, e.number, e.kind, e.tokens, e.messages) for e in view.elements] == expected
        found = self.store.thread(thread.name, hidden=True)
        assert (found.last_pos, found.view_tokens, found.hidden) == (thread.last_pos, view.tokens, is_hidden)

    def check_at_the_end(self) -> None:
        for thread in self.threads:
            self.now = thread
            self.check()
            model, last_pos = self.now.model, self.now.last_pos
            statuses = [status_in_words(record) for record in self.store.compactions(self.now.name)]
            assert statuses == [model.status(record) for record in model.records(last_pos)]
            said = [entry.message for entry in model.appended(last_pos)]
            told = [message.payload for message in self.store.replay(self.now.name)]
            assert told == [None if seq in model.lost else message for seq, message in enumerate(said, 1)]
            assert self.store.audit.verify(self.now.name).findings == ()
            for pos in self.chance.sample(range(1, last_pos + 1), min(2, last_pos)):
                if model.appended(pos):
                    view = self.store.view(self.now.name, at=pos)
                    shown = [(e.seq, e.end_seq, e.number, e.messages) for e in view.elements]
                    assert shown == [(p.seq, p.end_seq, p.number, p.messages) for p in model.view(pos)]
        for name, last_pos in self.stubs:
            assert self.store.thread(name).last_pos == self.store.thread(name).erased_pos == last_pos
            assert all(message.redacted for message in self.store.replay(name))
            assert self.store.audit.verify(name).findings == ()


def test_any_sequence_shows_what_the_model_says(store: cs.Store, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute(f'ALTER DATABASE "{superuser.info.dbname}" SET synchronous_commit = off'.encode())
    for number in range(_FIRST, _FIRST + _SEQUENCES):
        chance = random.Random(number)
        play = Play(store, chance)
        steps = (
            play.append, play.append, play.fold, play.fold, play.rewind, play.rewind, play.clear, play.revoke,
            play.revoke, play.fork, play.fork, play.redact, play.erase,
        )  # fmt: skip
        taken: list[str] = []
        try:
            for _ in range(14):
                step = chance.choice(steps)
                taken.append(f"{step.__name__} {play.now.name}")
                step()
                play.check()
            play.check_at_the_end()
        except BaseException as error:
            error.add_note(f"with chance {number}, {taken}: {play.now.name} {play.now.model.log}")
            raise
