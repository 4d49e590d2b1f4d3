"""Any sequence of appends and compactions, against a model in plain Python that follows the definitions word by word.

The model keeps what happened at each pos. A view is worked out message by message: what stands for a seq is the newest
record in force whose span holds it. The machine's callbacks plan in the store's context and in the model, side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, groupby
from typing import Any, NamedTuple, NoReturn

import psycopg
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import compaction_store as cs
from compaction_store.messages.encoding import encode
from compaction_store.messages.framing import frame
from compaction_store.models import Payload

NO_PROGRESS = {"EmptySummary", "NotSmaller"}
_threads = count(1)


def tokens_of(message: Payload) -> int:
    content = message.get("content")
    return 1 + (len(content) // 8 if isinstance(content, str) else 0)


# ---- The model


class Appended(NamedTuple):
    message: Payload
    tokens: int


class Record(NamedTuple):
    """What a record says; `number` is filled in when it is written."""

    kind: str
    outcome: str
    start: int | None
    end: int | None
    callback: str | None = None
    before: int | None = None
    after: int | None = None
    messages: tuple[Payload, ...] = ()
    inputs: tuple[int, ...] = ()
    error: str | None = None
    revokes: int | None = None
    number: int = 0

    def holds(self, seq: int) -> bool:
        return self.start is not None and self.end is not None and self.start <= seq <= self.end


class Piece(NamedTuple):
    """One element of a view."""

    seq: int
    end_seq: int
    number: int | None
    kind: str | None
    tokens: int
    messages: tuple[Any, ...]


class Refused(Exception):
    """What the model says a call must raise: the name of the error."""

    def __init__(self, name: str, start: int | None = None, end: int | None = None) -> None:
        super().__init__(name)
        self.name = name
        self.span = (start, end)


class Model:
    def __init__(self) -> None:
        self.log: list[Appended | Record] = []

    def appended(self, at: int) -> list[Appended]:
        return [entry for entry in self.log[:at] if isinstance(entry, Appended)]

    def records(self, at: int) -> list[Record]:
        return [entry for entry in self.log[:at] if isinstance(entry, Record)]

    def in_force(self, at: int) -> list[Record]:
        applied = [record for record in self.records(at) if record.outcome == "applied"]
        revoked = {record.revokes for record in applied}
        return [record for record in applied if record.kind != "revocation" and record.number not in revoked]

    def view(self, at: int) -> list[Piece]:
        in_force = self.in_force(at)
        owners: list[tuple[int, Record | Appended]] = []
        for seq, appended in enumerate(self.appended(at), 1):
            newest = max((r for r in in_force if r.holds(seq)), key=lambda r: r.number, default=None)
            owners.append((seq, newest or appended))
        pieces = []
        for _, group in groupby(owners, key=lambda o: o[1].number if isinstance(o[1], Record) else -o[0]):
            (seq, owner), *rest = group
            end = rest[-1][0] if rest else seq
            if isinstance(owner, Record):
                pieces.append(Piece(seq, end, owner.number, owner.kind, owner.after or 0, owner.messages))
            else:
                pieces.append(Piece(seq, end, None, None, owner.tokens, (owner.message,)))
        return pieces

    def active(self, at: int) -> set[int]:
        return {piece.number for piece in self.view(at) if piece.number is not None}

    def status(self, record: Record) -> str | None:
        if record.outcome != "applied" or record.kind == "revocation":
            return None
        assert record.start is not None
        assert record.end is not None
        for other in self.records(len(self.log)):
            if other.revokes == record.number and other.outcome == "applied":
                return f"revoked by {other.number}"
        for other in self.in_force(len(self.log)):
            if other.number > record.number and other.holds(record.start) and other.holds(record.end):
                return f"superseded by {other.number}"
        return "active"

    def stalled(self) -> set[tuple[str | None, int | None, int | None]]:
        """The attempts that made no progress and after which nothing came but attempts."""
        found = set()
        for entry in reversed(self.log):
            if isinstance(entry, Appended) or entry.outcome == "applied":
                break
            if entry.error in NO_PROGRESS:
                found.add((entry.callback, entry.start, entry.end))
        return found

    def write(self, records: list[Record]) -> list[Record]:
        first = len(self.records(len(self.log))) + 1
        written = []
        for i, record in enumerate(records):
            inputs = tuple(n if n >= 0 else first - 1 - n for n in record.inputs)
            written.append(record._replace(number=first + i, inputs=inputs))
        self.log += written
        return written


class Planning:
    """A run in the model: what its callbacks plan on the view they began with."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.base_pos = len(model.log)
        self.base = model.view(self.base_pos)
        self.stalled = model.stalled()
        self.attempts: list[Record] = []
        self.in_plan: list[int] = []
        self.callback = ""
        self.failure: Refused | None = None

    def folded(self) -> list[Piece]:
        pieces = list(self.base)
        for index in self.in_plan:
            planned = self.attempts[index]
            assert planned.start is not None
            assert planned.end is not None
            piece = Piece(planned.start, planned.end, -1 - index, planned.kind, planned.after or 0, planned.messages)
            inside = [i for i, p in enumerate(pieces) if planned.holds(p.seq)]
            pieces[inside[0] : inside[-1] + 1] = [piece]
        return pieces

    def inside(self, start: int, end: int) -> list[Piece]:
        last = self.base[-1].end_seq
        if not 1 <= start <= end <= last:
            raise Refused("InvalidSpan")
        touched = [p for p in self.folded() if p.seq <= end and p.end_seq >= start]
        if touched[0].seq < start or touched[-1].end_seq > end:
            raise Refused("SpanConflict")
        return touched

    def check(self, kind: str, start: int, end: int, allow: frozenset[str]) -> list[Piece]:
        pieces = self.inside(start, end)
        if kind != "truncation":
            self._check_pairs(kind, start, end)
        base = [p for p in self.base if start <= p.seq <= end]
        if "system" not in allow and any(m["role"] == "system" for p in base for m in p.messages):
            self._reject("SystemInside", kind, start, end)
        users = [
            p.seq
            for p in self.base
            if p.kind != "summary" and any(m["role"] == "user" and m["content"] for m in p.messages)
        ]
        if "last_user" not in allow and users and start <= users[-1] <= end:
            self._reject("LastUserInside", kind, start, end)
        return pieces

    def offer(self, start: int, end: int, allow: frozenset[str]) -> None:
        if (self.callback, start, end) in self.stalled and "larger" not in allow:
            raise Refused("NoProgress")

    def _check_pairs(self, kind: str, start: int, end: int) -> None:
        """The machine's calls have ids of their own, so that pairs can be told by id alone."""
        calls: dict[str, int] = {}
        results: dict[str, int] = {}
        for seq, appended in enumerate(self.model.appended(self.base_pos), 1):
            for call in appended.message.get("tool_calls", ()):
                calls[call["id"]] = seq
            if appended.message["role"] == "tool":
                results[appended.message["tool_call_id"]] = seq
        if any(start <= seq <= end and name not in results for name, seq in calls.items()):
            self._reject("PendingCall", kind, start, end)
        if any((start <= calls[name] <= end) != (start <= seq <= end) for name, seq in results.items()):
            self._reject("SplitPair", kind, start, end)

    def summarize(
        self, start: int, end: int, text: str | None, allow: frozenset[str], *, as_callable: bool
    ) -> None:  # fmt: skip
        """A text of None is a summarizer that fails."""
        pieces = self.check("summary", start, end, allow)
        if as_callable:
            self.offer(start, end, allow)
        before = sum(p.tokens for p in pieces)
        if text is None:
            self._try("summary", "failed", start, end, "ValueError")
        if not text.strip():
            self._reject("EmptySummary", "summary", start, end)
        if tokens_of({"content": text}) >= before and "larger" not in allow:
            self._reject("NotSmaller", "summary", start, end)
        framed = frame(text, start, end)
        self._place("summary", start, end, before, (framed,), _numbers(pieces))

    def replace(self, start: int, end: int, messages: tuple[Payload, ...], allow: frozenset[str]) -> None:
        pieces = self.check("truncation", start, end, allow)
        self.offer(start, end, allow)
        before = sum(p.tokens for p in pieces)
        if _ids(messages) != _ids(m for p in pieces for m in p.messages):
            self._reject("IdsChanged", "truncation", start, end)
        if sum(map(tokens_of, messages)) >= before and "larger" not in allow:
            self._reject("NotSmaller", "truncation", start, end)
        self._place("truncation", start, end, before, messages, _numbers(pieces))

    def remove(self, start: int, end: int, allow: frozenset[str]) -> None:
        pieces = self.check("removal", start, end, allow)
        self._place("removal", start, end, sum(p.tokens for p in pieces), (), ())

    def _place(
        self, kind: str, start: int, end: int, before: int, messages: tuple[Payload, ...], inputs: tuple[int, ...]
    ) -> None:
        after = sum(map(tokens_of, messages))
        # What lies inside is folded with it from now on.
        self.in_plan = [i for i in self.in_plan if not start <= (self.attempts[i].start or 0) <= end]
        self.in_plan.append(len(self.attempts))
        self.attempts.append(Record(kind, "applied", start, end, self.callback, before, after, messages, inputs))

    def _reject(self, error: str, kind: str, start: int, end: int) -> NoReturn:
        self._try(kind, "rejected", start, end, error)

    def _try(self, kind: str, outcome: str, start: int, end: int, error: str) -> NoReturn:
        """An attempt that changes nothing: it may repeat what it was made from; 0 is for what is only planned."""
        pieces = self.inside(start, end)
        inputs = tuple(dict.fromkeys(max(number, 0) for number in _numbers(pieces)))
        before = sum(p.tokens for p in pieces)
        self.attempts.append(Record(kind, outcome, start, end, self.callback, before, inputs=inputs, error=error))
        raise Refused(error, start, end)

    def begin(self, callback: str) -> tuple[int, list[int]]:
        self.callback = callback
        return len(self.attempts), list(self.in_plan)

    def void(self, mark: tuple[int, list[int]], error: str | None) -> None:
        """A callback raised: what it planned is void; the reason is recorded unless it is already."""
        tried = self.attempts[mark[0] :]
        self.attempts[mark[0] :] = [a for a in tried if a.outcome != "applied"]
        self.in_plan = mark[1]
        if error is not None:
            self.attempts.append(Record("summary", "failed", None, None, self.callback, error=error))

    def conflicts(self) -> bool:
        """Whether something that was applied since the run began touches what it would apply."""
        since = [e for e in self.model.log[self.base_pos :] if isinstance(e, Record) and e.outcome == "applied"]
        planned = [a for a in self.attempts if a.outcome == "applied"]
        return any(
            s.start is not None and a.end is not None and s.start <= a.end and (s.end or 0) >= (a.start or 0)
            for s in since
            for a in planned
        )


def _numbers(pieces: list[Piece]) -> tuple[int, ...]:
    return tuple(p.number for p in pieces if p.number is not None)


def _ids(messages: Any) -> list[tuple[str, str]]:
    found = []
    for message in messages:
        found += [("call", call["id"]) for call in message.get("tool_calls", ())]
        if message["role"] == "tool":
            found.append(("result", message["tool_call_id"]))
    return found


# ---- What the machine does


class Step(NamedTuple):
    """One thing a callback does: a call on the context, or something behind its back."""

    what: str
    first: int
    size: int
    raw: bool
    text: str | None
    as_callable: bool
    allow: frozenset[str]
    message: tuple[str, int]


class Script(NamedTuple):
    """A callback: what it does, whether it minds what is refused, and whether it raises in the end."""

    name: str
    steps: list[Step]
    careful: bool
    raises: bool


CONTENTS = ("hi", "x" * 20, "größe \0 \U0001f512", "\ud800", "")
ROLES = (*["assistant"] * 6, *["user"] * 2, *["call"] * 2, *["result"] * 3, "system")
NEW = st.tuples(st.sampled_from(ROLES), st.sampled_from(CONTENTS), st.sampled_from((30, 30, 5, 0)))
TEXTS = (*["s"] * 4, "short", "a longer summary of it all", "", None)
ALLOWS = tuple(map(frozenset, ((), (), ("last_user",), ("last_user", "system"), ("last_user", "system", "larger"))))
KINDS = ("summary", "summary", "summary", "truncation", "removal")


def steps(*what: str) -> st.SearchStrategy[Step]:
    return st.builds(
        Step, st.sampled_from(what), st.integers(0, 9), st.integers(0, 5), st.sampled_from((False, False, False, True)),
        st.sampled_from(TEXTS), st.booleans(), st.sampled_from(ALLOWS),
        st.tuples(st.sampled_from(("user", "assistant", "call")), st.sampled_from((1, 30))),
    )  # fmt: skip


SCRIPTS = st.builds(
    Script,
    st.sampled_from("ab"),
    st.lists(steps(*KINDS, *KINDS, "wrong stand-ins", "append", "rival", "revoke"), min_size=1, max_size=4),
    st.sampled_from((True, True, True, False)),
    st.sampled_from((False, False, False, False, True)),
)


class Differs(BaseException):
    """The store and the model disagree inside a callback: not an Exception, which the store would take as its own."""


def same(found: object, expected: object) -> None:
    if found != expected:
        raise Differs(f"{found!r} is not {expected!r}")


class Machine(RuleBasedStateMachine):
    store: cs.Store

    def __init__(self) -> None:
        super().__init__()
        self.thread_id = f"thread {next(_threads)}"
        self.model = Model()
        self.seen: list[cs.View] = []
        self.calls = count(1)
        self.open_calls: list[str] = []
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
        written = self.store.append(self.thread_id, messages, tokens=tokens)
        self.model.log += [Appended(message, n) for message, n in new]
        same([m.pos for m in written], list(range(len(self.model.log) - len(new) + 1, len(self.model.log) + 1)))

    @initialize(new=st.lists(NEW, min_size=3, max_size=9))
    def begin(self, new: list[tuple[str, str, int]]) -> None:
        self.append(new)

    @rule(new=st.lists(NEW, min_size=1, max_size=4))
    def append(self, new: list[tuple[str, str, int]]) -> None:
        self.append_these([(self.message(role, content), n) for role, content, n in new])

    # Compacting.

    @rule(script=SCRIPTS)
    def compact(self, script: Script) -> None:
        with self.compared():
            self.run([script])

    @rule(scripts=st.lists(SCRIPTS, min_size=2, max_size=2))
    def compact_with_two_callbacks(self, scripts: list[Script]) -> None:
        with self.compared():
            self.run(scripts)

    @rule(number=st.integers(1, 8), active=st.booleans())
    def revoke(self, number: int, active: bool) -> None:
        with self.compared():
            self.revoke_one(number, active=active)

    @contextmanager
    def compared(self) -> Iterator[None]:
        try:
            yield
        except Differs as difference:
            self.sound = False
            raise AssertionError(str(difference)) from None

    def run(self, scripts: list[Script]) -> None:
        planning = Planning(self.model)
        before = self.store.view(self.thread_id)
        refused: list[str] = []
        callbacks = [Callback(self, planning, script, refused) for script in scripts]
        try:
            run = self.store.compact(self.thread_id, *callbacks)
        except cs.SpanConflict:
            same(planning.conflicts() if planning.attempts else "SpanConflict" in refused, True)
            return
        same([type(error).__name__ for error in run.errors], refused)
        if not planning.attempts:
            same((len(run), run.view, "SpanConflict" in refused), (0, before, False))
            return
        same(planning.conflicts(), False)
        written = self.model.write(planning.attempts)
        same([r.outcome for r in run], [r.outcome for r in written])
        if run.applied:
            self.seen.append(run.view)
            same(pieces_of(run.view), self.model.view(len(self.model.log)))
        else:
            same(run.view, before)

    def revoke_one(self, number: int, *, active: bool) -> None:
        found = sorted(self.model.active(len(self.model.log)))
        if active and found:
            number = found[number % len(found)]
        if number not in found:
            try:
                self.store.revoke(self.thread_id, number)
            except (cs.Conflict, cs.CompactionNotFound) as refusal:
                there = number <= len(self.model.records(len(self.model.log)))
                same(type(refusal) is cs.CompactionNotFound, not there)
                return
            raise Differs(f"{number} was revoked and is not active")
        target = next(r for r in self.model.records(len(self.model.log)) if r.number == number)
        revocation = self.store.revoke(self.thread_id, number, reason="it was wrong")
        undone = Record(
            "revocation", "applied", target.start, target.end, None, target.after, target.before, revokes=number
        )  # fmt: skip
        [written] = self.model.write([undone])
        same((revocation.number, revocation.revokes), (written.number, number))

    # What holds in the end.

    def teardown(self) -> None:
        if self.model.log and self.sound:
            self.check_messages()
            self.check_records()
            self.check_views()
            thread = self.store.thread(self.thread_id)
            assert (thread.last_pos, thread.view_tokens) == (
                len(self.model.log),
                self.store.view(self.thread_id).tokens,
            )
            assert self.store.verify(self.thread_id, level="content").findings == ()

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
            )
            for r in found
        ]  # fmt: skip
        assert told == expected
        assert [r.status for r in found] == [self.model.status(r) for r in expected]
        for seq in [len(expected)] if found and len(expected) <= len(self.model.appended(len(self.model.log))) else []:
            explanation = self.store.explain(self.thread_id, seq)
            assert [r.number for r in explanation.records] == [r.number for r in expected if r.holds(seq)]

    def check_views(self) -> None:
        """Before and after every record, and now."""
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
            same(
                [(e.seq, e.end_seq, e.number, e.kind, e.tokens, e.messages) for e in ctx.elements],
                [tuple(piece) for piece in self.planning.folded()],
            )
            same(ctx.total_tokens, sum(p.tokens for p in self.planning.folded()))
            if expected is not None and not self.script.careful:
                self.refused.append(expected[0])
                # Whatever else is refused has left its record, or leaves none.
                self.planning.void(mark, error=expected[0] if expected[0] == "InvalidSpan" else None)
                raise expected[1]
        if self.script.raises:
            self.refused.append("ValueError")
            self.planning.void(mark, error="ValueError")
            raise ValueError("the callback's own")

    def take(self, ctx: cs.CompactionContext, step: Step) -> tuple[str, Exception] | None:
        """What a step raised, which is what the model says it must raise."""
        machine = self.machine
        if step.what == "append":
            machine.append_these([(machine.message(step.message[0], "meanwhile"), step.message[1])])
            return None
        if step.what == "revoke":
            machine.revoke_one(step.first + 1, active=True)
            return None
        if step.what == "rival":
            machine.run([Script("rival", [step._replace(what="summary")], careful=True, raises=False)])
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
        """Everything that has an id, with its content cut off; or, wrongly, nothing of it."""
        inside = [m for p in self.planning.base if start <= p.seq <= end for m in p.messages]
        kept = tuple({**m, "content": "…"} for m in inside if _ids([m]))
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
    return [Piece(e.seq, e.end_seq, e.number, e.kind, e.tokens, e.messages) for e in view.elements]


# ---- Running it


@pytest.fixture
def store(url: str) -> Iterator[cs.Store]:
    """A store that does not wait for the disk: nothing here is about power cuts."""
    with psycopg.connect(url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    with cs.Store.open(url, counter=tokens_of, pool_size=1) as opened:
        yield opened


def play(store: cs.Store, chance: int | None, examples: int) -> None:
    class Bound(Machine):
        pass

    Bound.store = store
    run_state_machine_as_test(
        Bound if chance is None else seed(chance)(Bound),
        settings=settings(
            max_examples=examples, stateful_step_count=6, deadline=None, database=None,
            suppress_health_check=list(HealthCheck), print_blob=True,
        ),
    )  # fmt: skip


@pytest.mark.parametrize("chance", range(4))
def test_two_thousand_threads_are_what_the_model_says(store: cs.Store, chance: int) -> None:
    """In four parts, for as many cores; the same threads every time."""
    play(store, chance, 500)


@pytest.mark.slow
@pytest.mark.parametrize("_half", range(2))
def test_fifty_thousand_threads_are_what_the_model_says(store: cs.Store, _half: int) -> None:
    """In two halves, for as many cores; other threads every time."""
    play(store, None, 25_000)
