"""Any sequence of appends, turns, compactions, repairs, rewinds, forks and sends, compared with a model in Python.

The machine's callbacks plan in the store's context and in the model, side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from support.keys import key_of

import compaction_store as cs
from compaction_store.errors import SequenceConflict, TurnLost, TurnTimeout
from compaction_store.messages.encoding import encode
from compaction_store.models import Payload
from compaction_store.models.compactions import status_in_words
from reliability import machine_scripts as drawn
from reliability.machine_scripts import Death, Differs, RefusedAsTooLong, Script, Step, same
from reliability.thread_model import HIDES, Appended, Model, Piece, Planning, Record, Refused, ids_of, tokens_of

_threads = count(1)
_BUDGET = cs.TokenBudget(10**9)


class Machine(RuleBasedStateMachine):
    store: cs.Store
    superuser: psycopg.Connection[Any]

    def __init__(self) -> None:
        super().__init__()
        self.thread_id = f"thread {next(_threads)}"
        self.model = Model()
        self.seen: list[cs.View] = []
        self.calls = count(1)
        self.open_calls: list[str] = []
        self.parents: list[tuple[str, Model]] = []
        self.sound = True

    # Appending.

    def message(self, role: str, content: str) -> Payload:
        if role == "call":
            name = f"call {next(self.calls)}"
            self.open_calls.append(name)
            function = {"name": "look", "arguments": "{}"}
            return {
                "role": "assistant", "content": content,
                "tool_calls": [{"id": name, "type": "function", "function": function}],
            }  # fmt: skip
        if role == "result":
            if not self.open_calls:
                return {"content": content, "role": "assistant", "n": 1e-7, "big": 10**30}
            return {"role": "tool", "tool_call_id": self.open_calls.pop(0), "content": content}
        return {"role": role, "content": content}

    def append_these(self, new: list[tuple[Payload, int]]) -> None:
        messages = [message for message, _ in new]
        tokens = [n for _, n in new]
        written = self.store.append(self.thread_id, messages, tokens=tokens, raw=True)
        self.model.log += [Appended(message, n) for message, n in new]
        same([m.pos for m in written], list(range(len(self.model.log) - len(new) + 1, len(self.model.log) + 1)))

    @initialize(new=st.lists(drawn.NEW, min_size=3, max_size=9))
    def begin(self, new: list[tuple[str, str, int]]) -> None:
        self.append(new)

    @rule(new=st.lists(drawn.NEW, min_size=1, max_size=4))
    def append(self, new: list[tuple[str, str, int]]) -> None:
        self.append_these([(self.message(role, content), n) for role, content, n in new])

    # Compacting.

    @rule(script=drawn.SCRIPTS, leased=st.booleans())
    def compact(self, script: Script, leased: bool) -> None:
        with self.compared():
            self.run([script], leased=leased)

    @rule(script=drawn.SCRIPTS)
    def abandon(self, script: Script) -> None:
        """Begins a run whose process dies after its callback. The next run with a lease finds it, if one comes."""
        with self.compared():
            self.run([script], leased=True, dies=True)

    @rule(script=drawn.SENDABLE, step=drawn.LATE)
    def commit_late(self, script: Script, step: Step) -> None:
        """Plans something, and commits it after the lease has run out."""
        with self.compared():
            self.run([script._replace(steps=[*script.steps, step])], leased=True)

    @rule(number=st.integers(1, 8), active=st.integers(0, 3).map(bool), first=drawn.SENDABLE, step=drawn.REPAIRS)
    def repair(self, number: int, active: bool, first: Script, step: Step) -> None:
        with self.compared():
            if active and not self.model.active(len(self.model.log)):
                self.run([first])
            self.repair_one(self.one_of_the_active(number) if active else number, step)

    @rule(scripts=st.lists(drawn.SCRIPTS, min_size=2, max_size=2))
    def compact_with_two_callbacks(self, scripts: list[Script]) -> None:
        with self.compared():
            self.run(scripts)

    @rule(number=st.integers(1, 8), active=st.booleans())
    def revoke(self, number: int, active: bool) -> None:
        with self.compared():
            self.revoke_one(self.one_of_the_active(number) if active else number)

    @rule(part=st.floats(0, 1), goes_on=st.booleans())
    def fork(self, part: float, goes_on: bool) -> None:
        """Forks the thread. The machine then goes on in the fork, or in the parent."""
        at = 1 + round(part * (len(self.model.log) - 1))
        if not self.model.appended(at):
            return
        name = f"thread {next(_threads)}"
        made = self.store.fork(self.thread_id, name, at=at)
        other = self.model.fork(at)
        assert (made.pos, made.last_seq) == (len(other.log), len(other.appended(len(other.log))))
        if goes_on:
            self.parents.append((self.thread_id, self.model))
            self.thread_id, self.model, self.seen = name, other, []
            messages = [appended.message for appended in other.appended(len(other.log))]
            ids = ids_of(messages)
            results = {name for kind, name in ids if kind == "result"}
            self.open_calls = [name for kind, name in ids if kind == "call" and name not in results]
        else:
            self.parents.append((name, other))

    @rule(kind=st.sampled_from(HIDES), back=st.integers(0, 9))
    def rewind(self, kind: str, back: int) -> None:
        seq = max(0, len(self.model.appended(len(self.model.log))) - back)
        with self.compared():
            expected = self.model.rewind(kind, 0 if kind == "clear" else seq)
            written = self.store.clear(self.thread_id) if kind == "clear" else self.store.rewind(self.thread_id, seq)
            same([r.number for r in written], [r.number for r in expected])

    @rule(first=st.integers(0, 9), size=st.integers(0, 5), given=drawn.STAND_INS, repeats_system=st.booleans())
    def adopt(self, first: int, size: int, given: list[tuple[str, str]], repeats_system: bool) -> None:
        pieces = self.model.view(len(self.model.log))
        inside = pieces[first % len(pieces) :][: size + 1]
        start, end = inside[0].seq, inside[-1].end_seq
        stand_ins = [{"role": role, "content": content} for role, content in given]
        if repeats_system:
            stand_ins += [m for p in inside for m in p.messages if m["role"] == "system"]
        view = self.store.view(self.thread_id)
        try:
            expected = self.model.adopt(start, end, tuple(stand_ins))
        except Refused as refused:
            with pytest.raises(getattr(cs, refused.name)):
                self.store.adopt(self.thread_id, stand_ins, view=view, start_seq=start, end_seq=end)
            return
        written = self.store.adopt(self.thread_id, stand_ins, view=view, start_seq=start, end_seq=end)
        assert [r.number for r in written] == [r.number for r in expected]
        assert pieces_of(self.store.view(self.thread_id)) == self.model.view(len(self.model.log))

    @rule(script=drawn.SENDABLE, refusals=st.integers(0, 3), attempts=st.integers(1, 3))
    def send(self, script: Script, refusals: int, attempts: int) -> None:
        """Sends the view to a model that refuses it some times, and appends the reply."""
        callback = EachTime(self, script)
        sent: list[cs.View] = []

        def call(view: cs.View) -> Payload:
            self.model.write(callback.take())
            same(pieces_of(view), self.model.view(len(self.model.log)))
            sent.append(view)
            if len(sent) <= refusals:
                raise RefusedAsTooLong("prompt is too long: 9 tokens > 8 maximum")
            return {"role": "assistant", "content": "the reply"}

        with self.compared():
            try:
                done = self.store.send(self.thread_id, call, _BUDGET, callback, attempts=attempts)
            except RefusedAsTooLong:
                last = callback.take()
                # It gives up after the last attempt, or after a run that made the view no smaller.
                same(len(sent) <= refusals, True)
                same(callback.runs, len(sent) - (len(sent) == attempts))
                same([a for a in last if a.outcome == "applied"], [])
                self.model.write(last)
                return
            same((len(sent), len(done.runs)), (refusals + 1, refusals))
            [reply] = self.store.append(self.thread_id, done.reply, view=done.request, tokens=7)
            self.model.log.append(Appended(done.reply, 7))
            seen = self.store.seen_by(self.thread_id, reply.seq)
            same((seen.evidence, pieces_of(seen.view)), ("proved", pieces_of(sent[-1])))

    @rule(steps=drawn.IN_TURN)
    def turn(self, steps: list[tuple[str, tuple[str, str, int]]]) -> None:
        began = len(self.model.appended(len(self.model.log)))
        beside: list[int] = []
        with self.store.turn(self.thread_id, wait=30, lease=60) as turn:
            assert turn.last_seq == began
            with pytest.raises(TurnTimeout), self.store.turn(self.thread_id, wait=0):
                pass
            for how, (role, content, n) in steps:
                last = len(self.model.appended(len(self.model.log)))
                message = self.message(role, content)
                if how == "beside":
                    beside.append(last + 1)
                    self.append_these([(message, n)])
                    continue
                expected_seq = turn.last_seq if how == "strictly" else None
                if expected_seq is not None and expected_seq != last:
                    with pytest.raises(SequenceConflict):
                        turn.append(message, tokens=n, expected_seq=expected_seq, raw=True)
                    self.forget(message)
                    continue
                assert turn.append(message, tokens=n, expected_seq=expected_seq, raw=True)[-1].seq == last + 1
                self.model.log.append(Appended(message, n))
                assert turn.last_seq == last + 1
            assert [seq for span in turn.others() for seq in range(span.start_seq, span.end_seq + 1)] == beside
        with pytest.raises(TurnLost):
            turn.append({"role": "user", "content": "too late"})

    def forget(self, message: Payload) -> None:
        """Takes back a message that was not stored: its call needs no result, or its result is still missing."""
        for kind, name in ids_of([message]):
            if kind == "call":
                self.open_calls.remove(name)
            else:
                self.open_calls.insert(0, name)

    @contextmanager
    def compared(self) -> Iterator[None]:
        try:
            yield
        except Differs as difference:
            self.sound = False
            raise AssertionError(str(difference)) from None

    def run(self, scripts: list[Script], *, leased: bool = False, dies: bool = False) -> None:
        me = object()
        before = self.store.view(self.thread_id)
        options: Any = {"budget": _BUDGET, "force": True} if leased else {}
        if leased and not self.model.take_lease(me):
            run = self.store.compact(self.thread_id, self.die, **options)
            same((len(run), run.reason.split(":")[0]), (0, "another run is compacting the thread"))
            return
        planning = Planning(self.model)
        refused: list[str] = []
        callbacks = [Callback(self, planning, script, refused) for script in scripts]
        try:
            run = self.store.compact(self.thread_id, *callbacks, *[self.die] * dies, **options)
        except Death:
            self.store._db.closed = False
            self.expire()
            return
        except cs.SpanConflict:
            self.model.give_back(me)
            same(planning.conflicts() if planning.attempts else "SpanConflict" in refused, True)
            return
        self.model.give_back(me)
        same([type(error).__name__ for error in run.errors], refused)
        if not planning.attempts:
            same((len(run), pieces_of(run.view), "SpanConflict" in refused), (0, pieces_of(before), False))
            return
        same(planning.conflicts(), False)
        written = self.model.write(planning.attempts)
        same([r.outcome for r in run], [r.outcome for r in written])
        if run.applied:
            self.seen.append(run.view)
            same(pieces_of(run.view), self.model.view(len(self.model.log)))
        else:
            same(pieces_of(run.view), pieces_of(before))
        if not leased and not run.applied:
            same(run.view, before)

    def die(self, _ctx: cs.CompactionContext) -> None:
        self.store._db.closed = True
        raise Death

    def expire(self) -> None:
        """Lets the lease of the thread run out, if a run has one."""
        self.superuser.execute(
            "UPDATE compaction_store.heads SET lease_until = clock_timestamp() - interval '1 second'"
            " WHERE thread_uid = %s AND lease_run IS NOT NULL",
            (key_of(self.superuser, self.thread_id),),
        )
        self.model.expired = True

    def meanwhile(self, step: Step) -> None:
        """What happens while a callback runs or a summarizer is asked."""
        plans = [] if step.what == "found" else [step._replace(what="summary")]
        rival = Script("rival", plans, careful=True, raises=False)
        if step.what in ("found", "late", "dying", "slow"):
            self.expire()
        if step.what == "append":
            self.append_these([(self.message(step.message[0], "meanwhile"), step.message[1])])
        elif step.what == "revoke":
            self.revoke_one(self.one_of_the_active(step.first + 1))
        elif step.what == "rival":
            self.run([rival])
        elif step.what in ("worker", "found", "late", "dying"):
            self.run([rival], leased=True, dies=step.what == "dying")

    def repair_one(self, number: int, step: Step) -> None:
        active = self.model.active(len(self.model.log))
        target = next((r for r in self.model.records(len(self.model.log)) if r.number == number), None)
        if target is None or number not in active or target.kind in HIDES:
            try:
                self.store.repair(self.thread_id, number, "s")
            except (cs.Conflict, cs.CompactionNotFound) as refusal:
                same(type(refusal), cs.CompactionNotFound if target is None else cs.Conflict)
                return
            raise Differs(f"{number} was repaired and cannot be")
        before = self.store.view(self.thread_id)
        planning = Planning(self.model, repairs=number)
        planning.begin("repair")
        inside = [p for p in planning.base if target.holds(p.seq)]
        expected: str | None = None
        try:
            planning.summarize(
                inside[0].seq, inside[-1].end_seq, step.text, step.allow | target.allow, as_callable=True
            )
        except Refused as refused:
            expected = refused.name

        def summarize(elements: Any) -> str:
            same(as_pieces(elements), inside)
            self.meanwhile(step)
            if step.text is None:
                raise ValueError("the summarizer's own")
            return step.text

        how = summarize if step.text is None or step.as_callable else step.text
        try:
            run = self.store.repair(self.thread_id, number, how, allow=step.allow)
        except cs.Conflict:
            same((expected, number in self.model.active(len(self.model.log))), (None, False))
            return
        same([type(error).__name__ for error in run.errors], [] if expected is None else [expected])
        written = planning.attempts
        if expected is None:
            same(number in self.model.active(len(self.model.log)), True)
            written = [target.undone(), *written]
        written = self.model.write(written)
        same([(r.number, r.kind, r.outcome) for r in run], [(r.number, r.kind, r.outcome) for r in written])
        same(pieces_of(run.view), self.model.view(len(self.model.log)) if expected is None else pieces_of(before))

    def one_of_the_active(self, number: int) -> int:
        found = sorted(self.model.active(len(self.model.log)))
        return found[number % len(found)] if found else number

    def revoke_one(self, number: int) -> None:
        if number not in self.model.active(len(self.model.log)):
            try:
                self.store.revoke(self.thread_id, number)
            except (cs.Conflict, cs.CompactionNotFound) as refusal:
                there = number <= len(self.model.records(len(self.model.log)))
                same(type(refusal) is cs.CompactionNotFound, not there)
                return
            raise Differs(f"{number} was revoked and is not active")
        target = next(r for r in self.model.records(len(self.model.log)) if r.number == number)
        revocation = self.store.revoke(self.thread_id, number, reason="it was wrong")
        [written] = self.model.write([target.undone()])
        same((revocation.number, revocation.revokes), (written.number, number))

    # Checks at the end.

    def teardown(self) -> None:
        if self.model.log and self.sound:
            self.check_all()
            for name, model in self.parents:
                self.thread_id, self.model, self.seen = name, model, []
                self.check_all()

    def check_all(self) -> None:
        self.check_messages()
        self.check_records()
        self.check_views()
        thread = self.store.thread(self.thread_id)
        assert (thread.last_pos, thread.view_tokens) == (
            len(self.model.log),
            self.store.view(self.thread_id).tokens,
        )
        assert self.store.audit.verify(self.thread_id, level="content").findings == ()

    def check_messages(self) -> None:
        expected = [entry.message for entry in self.model.log if isinstance(entry, Appended)]
        found = list(self.store.replay(self.thread_id))
        assert [m.text for m in found] == [encode(message).text for message in expected]
        assert [m.payload for m in found] == expected

    def check_records(self) -> None:
        expected = self.model.records(len(self.model.log))
        found = list(self.store.compactions(self.thread_id))
        told = [
            Record(
                r.kind, r.outcome, r.start_seq, r.end_seq, r.callback, r.tokens_before, r.tokens_after,
                tuple(r.replacement or ()), r.inputs, None if r.error is None else r.error["type"], r.revokes, r.number,
                frozenset((r.body or {}).get("allow", ()) if r.outcome == "applied" else ()),
            )
            for r in found
        ]  # fmt: skip
        assert told == expected
        assert [status_in_words(r) for r in found] == [self.model.status(r) for r in expected]
        for seq in [len(expected)] if found and len(expected) <= len(self.model.appended(len(self.model.log))) else []:
            explanation = self.store.audit.explain(self.thread_id, seq)
            assert [r.number for r in explanation.records] == [r.number for r in expected if r.holds(seq)]
            [piece] = [p for p in self.model.view(len(self.model.log)) if p.seq <= seq <= p.end_seq]
            assert (explanation.element.seq, explanation.element.end_seq) == (piece.seq, piece.end_seq)
            assert (explanation.element.number, explanation.element.messages) == (piece.number, piece.messages)

    def check_views(self) -> None:
        """Compares the views before and after every record, and the newest."""
        now = len(self.model.log)
        after = {pos for pos, entry in enumerate(self.model.log, 1) if isinstance(entry, Record)}
        rebuilt = {}
        for pos in sorted({now, *after, *(pos - 1 for pos in after)}):
            view = rebuilt[pos] = self.store.view(self.thread_id, at=pos)
            expected = self.model.view(pos)
            assert pieces_of(view) == expected
            assert [s for p in expected for s in range(p.seq, p.end_seq + 1)] == list(
                range(1, len(self.model.appended(pos)) + 1)
            )
            assert (view.pos, view.tokens) == (pos, sum(p.tokens for p in expected))
        for view in self.seen:
            if view.pos not in rebuilt:
                rebuilt[view.pos] = self.store.view(self.thread_id, at=view.pos)
            assert rebuilt[view.pos] == view


class EachTime:
    """A script as the callback of several runs, each planned on the view that the run before it left."""

    def __init__(self, machine: Machine, script: Script) -> None:
        self.name = script.name
        self.machine = machine
        self.script = script
        self.runs = 0
        self.attempts: list[Record] = []

    def __call__(self, ctx: cs.CompactionContext) -> None:
        self.machine.model.take_lease(self)
        planning = Planning(self.machine.model)
        self.runs += 1
        Callback(self.machine, planning, self.script, [])(ctx)
        self.attempts = planning.attempts
        self.machine.model.give_back(self)

    def take(self) -> list[Record]:
        """Returns what the last run attempted, once."""
        attempts, self.attempts = self.attempts, []
        return attempts


class Callback:
    """A script as an `on_compact` callback: every step is taken in the context and in the model."""

    def __init__(self, machine: Machine, planning: Planning, script: Script, refused: list[str]) -> None:
        self.name = script.name
        self.machine = machine
        self.planning = planning
        self.script = script
        self.refused = refused

    def __call__(self, ctx: cs.CompactionContext) -> None:
        mark = self.planning.begin(self.name)
        for step in self.script.steps:
            expected = self.take(ctx, step)
            same(as_pieces(ctx.elements), self.planning.folded())
            same(ctx.total_tokens, sum(p.tokens for p in self.planning.folded()))
            if expected is not None and not self.script.careful:
                self.refused.append(expected[0])
                # Other refusals have made their record already, or make none.
                self.planning.void(mark, error=expected[0] if expected[0] == "InvalidSpan" else None)
                raise expected[1]
        if self.script.raises:
            self.refused.append("ValueError")
            self.planning.void(mark, error="ValueError")
            raise ValueError("the callback's own")

    def take(self, ctx: cs.CompactionContext, step: Step) -> tuple[str, Exception] | None:
        """Takes a step in both. Returns its error, which must be the one that the model expects."""
        if step.what in drawn.MEANWHILE:
            self.machine.meanwhile(step)
            return None
        start, end = self.span(step)
        expected = self.expected(step, start, end)
        try:
            self.act(ctx, step, start, end)
        except Exception as error:  # noqa: BLE001 — whichever it is, the model says which it must be
            same(type(error).__name__, None if expected is None else expected.name)
            return type(error).__name__, error
        same(None, None if expected is None else expected.name)
        return None

    def span(self, step: Step) -> tuple[int, int]:
        if step.raw:
            return step.first, step.first + step.size
        pieces = self.planning.folded()
        first = step.first % len(pieces)
        return pieces[first].seq, pieces[min(first + step.size, len(pieces) - 1)].end_seq

    def expected(self, step: Step, start: int, end: int) -> Refused | None:
        try:
            if step.what == "summary":
                as_callable = step.as_callable or step.text is None
                self.planning.summarize(start, end, step.text, step.allow, as_callable=as_callable)
            elif step.what == "removal":
                self.planning.remove(start, end, step.allow)
            else:
                self.planning.replace(start, end, self.stand_ins(step, start, end), step.allow)
        except Refused as refused:
            return refused
        return None

    def stand_ins(self, step: Step, start: int, end: int) -> tuple[Payload, ...]:
        """Returns everything that has an id, with its content cut; or, wrongly, nothing of it."""
        inside = [m for p in self.planning.base if start <= p.seq <= end for m in p.messages]
        kept = tuple({**m, "content": "…"} for m in inside if ids_of([m]))
        if step.what == "wrong stand-ins" or not kept:
            return ({"role": "assistant", "content": "…"},)
        return kept

    def act(self, ctx: cs.CompactionContext, step: Step, start: int, end: int) -> None:
        if step.what == "removal":
            ctx.remove(start, end, allow=step.allow)
        elif step.what == "summary":
            text = step.text
            if text is None or step.as_callable:
                ctx.compact(start, end, self.summarizer(step, start, end), allow=step.allow)
            else:
                ctx.compact(start, end, text, allow=step.allow)
        else:
            ctx.replace(start, end, self.stand_ins(step, start, end), allow=step.allow)

    def summarizer(self, step: Step, start: int, end: int) -> Callable[[Any], str]:
        def summarize(elements: Any) -> str:
            same((elements[0].seq, elements[-1].end_seq), (start, end))
            if step.text is None:
                raise ValueError("the summarizer's own")
            return step.text

        return summarize


def pieces_of(view: cs.View) -> list[Piece]:
    return as_pieces(view.elements)


def as_pieces(elements: Iterable[cs.Element]) -> list[Piece]:
    return [Piece(e.seq, e.end_seq, e.number, e.kind, e.tokens, e.messages) for e in elements]


@pytest.fixture
def store(url: str) -> Iterator[cs.Store]:
    """A store that does not wait for the disk: nothing here is about power cuts."""
    with psycopg.connect(url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    with cs.Store.open(url, counter=tokens_of, pool_size=1) as opened:
        yield opened


def play(store: cs.Store, superuser: psycopg.Connection[Any], chance: int | None, examples: int) -> None:
    class Bound(Machine):
        pass

    Bound.store = store
    Bound.superuser = superuser
    run_state_machine_as_test(
        Bound if chance is None else seed(chance)(Bound),
        settings=settings(
            max_examples=examples, stateful_step_count=6, deadline=None, database=None,
            suppress_health_check=list(HealthCheck), print_blob=True,
        ),
    )  # fmt: skip


@pytest.mark.parametrize("chance", range(4))
def test_two_thousand_threads_are_what_the_model_says(
    store: cs.Store, superuser: psycopg.Connection[Any], chance: int
) -> None:
    """In four parts, for as many cores; the same threads every time."""
    play(store, superuser, chance, 500)


@pytest.mark.slow
@pytest.mark.parametrize("_half", range(2))
def test_fifty_thousand_threads_are_what_the_model_says(
    store: cs.Store, superuser: psycopg.Connection[Any], _half: int
) -> None:
    """In two halves, for as many cores; other threads every time."""
    play(store, superuser, None, 25_000)
