"""Keeps the replies to writers outside of the store, and checks the store against them.

Every message contains its writer's name and a counter. A writer gets one of three replies: the message is stored, at a
seq; it is not stored (`DatabaseUnavailable`); or that is unknown, and then a retry with the key settles it. The check:
an acknowledged message is there once, at its seq; a denied one is absent; an unknown one is there once after it was
settled; and nothing else is there.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from typing import IO, Any
from uuid import UUID

import compaction_store as cs
from compaction_store.errors import InvalidSpan

TOKENS = 10
_FILLER = "word " * 20


def marked(mark: str) -> dict[str, Any]:
    return {"role": "assistant", "content": f"{mark} {_FILLER}"}


def mark_of(payload: dict[str, Any] | None) -> str:
    assert payload is not None
    return str(payload["content"]).partition(" ")[0]


def key_of(unknown: cs.OutcomeUnknown) -> str:
    assert unknown.key is not None
    return unknown.key


class Book:
    """The replies to all writers and compactors of a rig. With a file, it keeps there what would fill the memory."""

    def __init__(self, file: IO[str] | None = None) -> None:
        self._file = file
        self.acknowledged: dict[str, dict[int, str]] = defaultdict(dict)
        self.denied: dict[str, set[str]] = defaultdict(set)
        self.runs: dict[str, set[UUID]] = defaultdict(set)
        self.denied_runs: dict[str, set[str]] = defaultdict(set)
        self.seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self.seen[what] += by

    def stored(self, thread_id: str, written: list[cs.Message], marks: list[str]) -> None:
        assert [mark_of(m.payload) for m in written] == marks
        assert [m.seq for m in written] == list(range(written[0].seq, written[0].seq + len(marks)))
        with self._lock:
            for message, mark in zip(written, marks, strict=True):
                if self._file is None:
                    self._note(thread_id, message.seq, mark)
                else:
                    self._file.write(f"{thread_id} {message.seq} {mark}\n")
            self.seen["appends acknowledged"] += 1
            self.seen["messages acknowledged"] += len(marks)

    def _note(self, thread_id: str, seq: int, mark: str) -> None:
        told = self.acknowledged[thread_id]
        assert seq not in told, f"lost in {thread_id}: seq {seq}, which was acknowledged twice"
        told[seq] = mark

    def recall(self) -> None:
        """Reads the file back."""
        if self._file is not None:
            self._file.seek(0)
            for line in self._file:
                thread_id, seq, mark = line.split()
                self._note(thread_id, int(seq), mark)

    def was_denied(self, thread_id: str, marks: list[str]) -> None:
        with self._lock:
            self.denied[thread_id].update(marks)
            self.seen["appends denied"] += 1


class Writer:
    """Appends messages with marks, and writes the replies into the book."""

    def __init__(self, name: str, book: Book, chance: random.Random) -> None:
        self.name = name
        self.book = book
        self.chance = chance
        self.next = 0

    def make(self) -> tuple[list[str], list[dict[str, Any]]]:
        size = self.chance.choice((1, 1, 1, 1, 2, 5))
        marks = [f"{self.name}-{self.next + i}" for i in range(size)]
        self.next += size
        return marks, [marked(mark) for mark in marks]

    def append(self, store: cs.Store, thread_id: str) -> None:
        marks, messages = self.make()
        try:
            written = store.append(thread_id, messages, tokens=TOKENS)
        except cs.OutcomeUnknown as unknown:
            written = self.settle(store, thread_id, messages, key_of(unknown))
        except cs.DatabaseUnavailable:
            self.book.was_denied(thread_id, marks)
            return
        self.book.stored(thread_id, written, marks)

    def settle(self, store: cs.Store, thread_id: str, messages: list[dict[str, Any]], key: str) -> cs.Appended:
        asked = time.time()
        while True:
            try:
                written = store.append(thread_id, messages, tokens=TOKENS, key=key)
            except (cs.DatabaseUnavailable, cs.OutcomeUnknown):
                continue
            self.settled(written, asked)
            return written

    def settled(self, written: list[cs.Message], asked: float) -> None:
        self.book.count("appends of unknown outcome")
        # The server's clock is that of this machine.
        if written[0].created_at.timestamp() < asked:
            self.book.count("of these stored before their key settled it")

    async def append_async(self, store: cs.AsyncStore, thread_id: str) -> None:
        marks, messages = self.make()
        try:
            written = await store.append(thread_id, messages, tokens=TOKENS)
        except cs.OutcomeUnknown as unknown:
            written = await self.settle_async(store, thread_id, messages, key_of(unknown))
        except cs.DatabaseUnavailable:
            self.book.was_denied(thread_id, marks)
            return
        self.book.stored(thread_id, written, marks)

    async def settle_async(
        self, store: cs.AsyncStore, thread_id: str, messages: list[dict[str, Any]], key: str
    ) -> cs.Appended:
        asked = time.time()
        while True:
            try:
                written = await store.append(thread_id, messages, tokens=TOKENS, key=key)
            except (cs.DatabaseUnavailable, cs.OutcomeUnknown):
                continue
            self.settled(written, asked)
            return written


class Compactor:
    """Folds a few of the newest elements, and now and then undoes what it folded last."""

    def __init__(self, name: str, book: Book, chance: random.Random) -> None:
        self.name = name
        self.book = book
        self.chance = chance
        self.next = 0

    def compact(self, store: cs.Store, thread_id: str) -> bool:
        """Returns whether there was anything to fold."""
        try:
            elements = store.view(thread_id).elements
        except (cs.DatabaseUnavailable, cs.ThreadNotFound):
            return True
        if len(elements) < 12:
            return False
        size = self.chance.choice((2, 3, 10, len(elements) - 4))
        low = self.chance.randrange(len(elements) - size)
        start, end = elements[low].seq, elements[low + size - 1].end_seq
        self.next += 1
        actor = f"{self.name}-{self.next}"

        def fold(ctx: cs.CompactionContext) -> None:
            ctx.compact(start, end, f"by {actor}")

        def act() -> None:
            run = store.compact(thread_id, fold, actor=actor)
            self.book.count("compactions", len(run))
            if run.applied and self.chance.random() < 0.2:
                actor_of_revocation = f"{actor}-undone"
                self.try_to(
                    thread_id, actor_of_revocation,
                    lambda: store.revoke(thread_id, run[0].number, actor=actor_of_revocation),
                )  # fmt: skip

        self.try_to(thread_id, actor, act)
        return True

    def try_to(self, thread_id: str, actor: str, act: Any) -> None:
        try:
            act()
        except (cs.Conflict, InvalidSpan):
            self.book.count("conflicts")
        except cs.OutcomeUnknown as unknown:
            self.book.count("runs of unknown outcome")
            self.book.runs[thread_id].add(UUID(key_of(unknown)))
        except cs.DatabaseUnavailable:
            self.book.count("runs denied")
            self.book.denied_runs[thread_id].add(actor)


def prove(store: cs.Store, book: Book) -> dict[str, Any]:
    """Compares the store with the book. Returns figures."""
    book.recall()
    figures: Counter[str] = Counter()
    for thread_id in sorted({*book.acknowledged, *book.denied}):
        found: dict[int, str] = {}
        try:
            found = {m.seq: mark_of(m.payload) for m in store.replay(thread_id)}
        except cs.ThreadNotFound:
            assert not book.acknowledged[thread_id]
            continue
        told = book.acknowledged[thread_id]
        lost = sorted(set(told.items()) - set(found.items()))
        unasked = sorted(set(found.items()) - set(told.items()))
        assert not lost, f"lost in {thread_id}: {lost[:5]}"
        assert not unasked, f"there and never acknowledged in {thread_id}: {unasked[:5]}"
        assert sorted(found) == list(range(1, len(found) + 1)), "the seqs have gaps"
        twice = [mark for mark, n in Counter(found.values()).items() if n > 1]
        assert not twice, f"stored twice in {thread_id}: {twice[:5]}"
        records = list(store.compactions(thread_id))
        assert [r.number for r in records] == list(range(1, len(records) + 1))
        denied = {r.actor for r in records} & book.denied_runs[thread_id]
        assert not denied, f"denied and written in {thread_id}: {sorted(map(str, denied))[:5]}"
        whole_view(store, thread_id, len(found))
        report = store.audit.verify(thread_id)
        assert report.findings == ()
        figures["messages"] += len(found)
        figures["records"] += len(records)
        figures["of these written"] += len({r.run_id for r in records} & book.runs[thread_id])
    assert figures["messages"] == book.seen["messages acknowledged"]
    return {**book.seen, **figures, "lost": 0, "duplicated": 0, "gaps": 0, "findings": 0}


def whole_view(store: cs.Store, thread_id: str, last_seq: int) -> None:
    """Checks that the view shows every seq once."""
    view = store.view(thread_id)
    shown = [seq for e in view.elements for seq in range(e.seq, e.end_seq + 1)]
    assert shown == list(range(1, last_seq + 1))
    thread = store.thread(thread_id)
    assert (thread.last_seq, thread.view_tokens) == (last_seq, view.tokens)
