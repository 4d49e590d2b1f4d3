"""A model of a thread in plain Python that follows the definitions word by word.

It keeps what happened at each pos. A view is computed message by message: a seq is shown as the newest active record
whose span contains it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple, NoReturn

from compaction_store.messages.framing import frame
from compaction_store.messages.stand_ins import left_out
from compaction_store.models import Payload
from compaction_store.models.messages import Erased

NO_PROGRESS = {"EmptySummary", "NotSmaller"}
HIDES = ("rewind", "clear")


def tokens_of(message: Payload) -> int:
    content = message.get("content")
    return 1 + (len(content) // 8 if isinstance(content, str) else 0)


class Appended(NamedTuple):
    message: Payload
    tokens: int


class Record(NamedTuple):
    """A record; `number` is filled in when it is written."""

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
    allow: frozenset[str] = frozenset()

    def holds(self, seq: int) -> bool:
        return self.start is not None and self.end is not None and self.start <= seq <= self.end

    def undone(self) -> Record:
        """Returns the revocation of the record."""
        return Record("revocation", "applied", self.start, self.end, None, self.after, self.before, revokes=self.number)


class Event(NamedTuple):
    """An event. One of the kind redaction took content away: see `Model.redact`."""

    kind: str


class Piece(NamedTuple):
    """One element of a view."""

    seq: int
    end_seq: int
    number: int | None
    kind: str | None
    tokens: int
    messages: tuple[Any, ...]


class Refused(Exception):
    """The name of the error that a call must raise."""

    def __init__(self, name: str, start: int | None = None, end: int | None = None) -> None:
        super().__init__(name)
        self.name = name
        self.span = (start, end)


class Model:
    """A thread. `lost` has the pos of the redaction of each erased seq, `gone` that of each erased record.

    `holder` is the run that has the lease, `expired` whether the lease has run out.
    """

    def __init__(self) -> None:
        self.log: list[Appended | Record | Event] = []
        self.lost: dict[int, int] = {}
        self.gone: dict[int, int] = {}
        self.holder: object = None
        self.expired = False

    def appended(self, at: int) -> list[Appended]:
        return [entry for entry in self.log[:at] if isinstance(entry, Appended)]

    def records(self, at: int) -> list[Record]:
        return [entry for entry in self.log[:at] if isinstance(entry, Record)]

    def in_force(self, at: int) -> list[Record]:
        applied = [record for record in self.records(at) if record.outcome == "applied"]
        revoked = {record.revokes for record in applied}
        revoked |= {number for number, pos in self.gone.items() if pos <= at}
        return [record for record in applied if record.kind != "revocation" and record.number not in revoked]

    def view(self, at: int, without: int | None = None) -> list[Piece]:
        """Returns the view at a pos, or what it would be without one record."""
        in_force = [record for record in self.in_force(at) if record.number != without]
        owners: list[tuple[int, Record | Appended]] = []
        for seq, appended in enumerate(self.appended(at), 1):
            newest = max((r for r in in_force if r.holds(seq)), key=lambda r: r.number, default=None)
            owners.append((seq, newest or appended))
        pieces = []
        for _, group in groupby(owners, key=lambda o: o[1].number if isinstance(o[1], Record) else -o[0]):
            (seq, owner), *rest = group
            end = rest[-1][0] if rest else seq
            if isinstance(owner, Record):
                messages = (Erased(),) if owner.number in self.gone else owner.messages
                pieces.append(Piece(seq, end, owner.number, owner.kind, owner.after or 0, messages))
            else:
                message = Erased() if seq in self.lost else owner.message
                pieces.append(Piece(seq, end, None, None, owner.tokens, (message,)))
        return pieces

    def active(self, at: int) -> set[int]:
        return {piece.number for piece in self.view(at) if piece.number is not None}

    def status(self, record: Record) -> str:
        if record.outcome != "applied" or record.kind == "revocation":
            return record.outcome
        if record.number in self.gone:
            return "redacted"
        assert record.start is not None
        assert record.end is not None
        for other in self.records(len(self.log)):
            if other.revokes == record.number and other.outcome == "applied":
                return f"revoked by {other.number}"
        for other in self.in_force(len(self.log)):
            if other.number > record.number and other.holds(record.start) and other.holds(record.end):
                return f"superseded by {other.number}"
        return "active"

    def take_lease(self, run: object) -> bool:
        """Gives a run the lease, unless another run has it. A run that lost it is recorded as abandoned first."""
        if self.holder is not None:
            if not self.expired:
                return False
            self.write([Record("summary", "failed", None, None, error="abandoned")])
        self.holder, self.expired = run, False
        return True

    def give_back(self, run: object) -> None:
        if self.holder is run:
            self.holder = None

    def rewind(self, kind: str, seq: int) -> list[Record]:
        """Lets the view end at a seq: writes and returns the revocations and the record, nothing if it ends there."""
        now, last = len(self.log), len(self.appended(len(self.log)))
        revoked: list[Record] = []
        while around := [r for r in self.in_force(now) if r.holds(seq) and r not in revoked]:
            outermost = max(around, key=lambda record: record.number)
            if outermost.kind in HIDES:
                seq = (outermost.start or 0) - 1
            elif (outermost.end or 0) > seq:
                revoked.append(outermost)
            else:
                break
        if all(piece.kind in HIDES for piece in self.view(now) if piece.end_seq > seq):
            return []
        written = self.write([r.undone() for r in revoked])
        before = sum(piece.tokens for piece in self.view(len(self.log)) if piece.seq > seq)
        return written + self.write([Record(kind, "applied", seq + 1, last, None, before, 0)])

    def adopt(self, start: int, end: int, given: tuple[Payload, ...]) -> list[Record]:
        """Puts messages in place of a range of the view; returns what this writes, nothing if they are there already.

        System messages stay, and are not doubled by those that are given.
        """
        inside = [piece for piece in self.view(len(self.log)) if start <= piece.seq <= end]
        kept = [message for piece in inside for message in piece.messages if message["role"] == "system"]
        given = tuple(message for message in given if message not in kept)
        runs = [
            list(group)
            for has_system, group in groupby(inside, key=lambda p: any(m["role"] == "system" for m in p.messages))
            if not has_system
        ]
        if not runs:
            raise Refused("InvalidInput")
        replaced = [piece for run in runs for piece in run]
        if all(p.kind == "adoption" for p in replaced) and given == tuple(m for p in replaced for m in p.messages):
            return []
        return self.write([
            Record(
                "adoption", "applied", run[0].seq, run[-1].end_seq, "provider:given", sum(p.tokens for p in run),
                sum(map(tokens_of, given)) if run is runs[-1] else 0, given if run is runs[-1] else (),
                # The stand-ins may repeat anything that the provider was sent.
                (0, *_numbers(run)) if run is runs[-1] and given else _numbers(run),
            )
            for run in runs
        ])  # fmt: skip

    def stalled(self) -> set[tuple[str | None, int | None, int | None]]:
        """Returns the attempts that made no progress, if only attempts came after them."""
        found = set()
        for entry in reversed(self.log):
            if not isinstance(entry, Record) or entry.outcome == "applied":
                break
            if entry.error in NO_PROGRESS:
                found.add((entry.callback, entry.start, entry.end))
        return found

    def fork(self, at: int) -> Model:
        """Returns the model of a fork, which begins with its origin event, and adds the fork's event to this one."""
        made = Model()
        made.log = [Event("origin"), *self.log[:at]]
        made.lost = {seq: min(pos, at + 1) + 1 for seq, pos in self.lost.items() if seq <= len(self.appended(at))}
        made.gone = {n: min(pos, at + 1) + 1 for n, pos in self.gone.items() if n <= len(self.records(at))}
        if any(pos == at + 2 for pos in (*made.lost.values(), *made.gone.values())):
            made.log.append(Event("redaction"))
        self.log.append(Event("fork"))
        return made

    def redact(self, seqs: Iterable[int]) -> None:
        """Erases messages, and every record that may repeat them. A rewind or a clear repeats none."""
        wanted = [seq for seq in seqs if seq not in self.lost]
        if not wanted:
            return
        records = [r for r in self.records(len(self.log)) if r.number not in self.gone]
        found = {r.number for r in records if r.kind not in HIDES and any(map(r.holds, wanted))}
        for record in records:
            if found.intersection(record.inputs):
                found.add(record.number)
        self.log.append(Event("redaction"))
        self.lost |= dict.fromkeys(wanted, len(self.log))
        self.gone |= dict.fromkeys(found, len(self.log))

    def write(self, records: list[Record]) -> list[Record]:
        first = len(self.records(len(self.log))) + 1
        written = []
        for i, record in enumerate(records):
            inputs = tuple(n if n >= 0 else first - 1 - n for n in record.inputs)
            written.append(record._replace(number=first + i, inputs=inputs))
        self.log += written
        return written


class Planning:
    """A run in the model: what its callbacks plan on the view they began with.

    A repair plans on the view without the record that it replaces, and may try again what made no progress.
    """

    def __init__(self, model: Model, repairs: int | None = None) -> None:
        self.model = model
        self.base_pos = len(model.log)
        self.base = model.view(self.base_pos, without=repairs)
        self.stalled = model.stalled() if repairs is None else set()
        self.attempts: list[Record] = []
        self.in_plan: list[int] = []
        self.callback = ""
        self.began = 0
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
        """The machine's calls have unique ids, so that pairs can be found by id alone. A summary has none."""
        calls: dict[str, int] = {}
        results: dict[str, int] = {}
        for piece in self.base:
            for what, name in ids_of(piece.messages if piece.kind != "summary" else ()):
                (calls if what == "call" else results)[name] = piece.seq
        if any(start <= seq <= end and name not in results for name, seq in calls.items()):
            self._reject("PendingCall", kind, start, end)
        if any(
            (start <= calls[name] <= end) != (start <= seq <= end) for name, seq in results.items() if name in calls
        ):
            self._reject("SplitPair", kind, start, end)

    def summarize(
        self, start: int, end: int, text: str | None, allow: frozenset[str], *, as_callable: bool
    ) -> None:  # fmt: skip
        """A text of None is a summarizer that fails."""
        made = (self.attempts[index] for index in self.in_plan if index >= self.began)
        if any((a.kind, a.start, a.end) == ("summary", start, end) for a in made):
            raise Refused("InvalidSpan")
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
        self._place("summary", start, end, before, (framed,), _numbers(pieces), allow)

    def replace(self, start: int, end: int, messages: tuple[Payload, ...], allow: frozenset[str]) -> None:
        pieces = self.check("truncation", start, end, allow)
        self.offer(start, end, allow)
        before = sum(p.tokens for p in pieces)
        if ids_of(messages) != ids_of(m for p in pieces for m in p.messages):
            self._reject("IdsChanged", "truncation", start, end)
        if sum(map(tokens_of, messages)) >= before and "larger" not in allow:
            self._reject("NotSmaller", "truncation", start, end)
        self._place("truncation", start, end, before, messages, _numbers(pieces), allow)

    def remove(self, start: int, end: int, allow: frozenset[str]) -> None:
        pieces = self.check("removal", start, end, allow)
        self._place(
            "removal", start, end, sum(p.tokens for p in pieces), (), (), allow, tokens_of(left_out(start, end))
        )

    def _place(
        self, kind: str, start: int, end: int, before: int, messages: tuple[Payload, ...], inputs: tuple[int, ...],
        allow: frozenset[str], line: int = 0,
    ) -> None:  # fmt: skip
        after = line + sum(map(tokens_of, messages))
        # Records inside the span are folded with it from now on.
        self.in_plan = [i for i in self.in_plan if not start <= (self.attempts[i].start or 0) <= end]
        self.in_plan.append(len(self.attempts))
        self.attempts.append(
            Record(kind, "applied", start, end, self.callback, before, after, messages, inputs, allow=allow)
        )

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
        self.began = len(self.attempts)
        return len(self.attempts), list(self.in_plan)

    def void(self, mark: tuple[int, list[int]], error: str | None) -> None:
        """A callback raised: what it planned is void; the reason is recorded unless it is already."""
        tried = self.attempts[mark[0] :]
        self.attempts[mark[0] :] = [a for a in tried if a.outcome != "applied"]
        self.in_plan = mark[1]
        if error is not None:
            self.attempts.append(Record("summary", "failed", None, None, self.callback, error=error))

    def conflicts(self) -> bool:
        """Returns whether a record applied since the run began overlaps one of the plan."""
        since = [e for e in self.model.log[self.base_pos :] if isinstance(e, Record) and e.outcome == "applied"]
        planned = [a for a in self.attempts if a.outcome == "applied"]
        return any(
            s.start is not None and a.end is not None and s.start <= a.end and (s.end or 0) >= (a.start or 0)
            for s in since
            for a in planned
        )


def _numbers(pieces: list[Piece]) -> tuple[int, ...]:
    return tuple(p.number for p in pieces if p.number is not None)


def ids_of(messages: Any) -> list[tuple[str, str]]:
    found = []
    for message in messages:
        found += [("call", call["id"]) for call in message.get("tool_calls", ())]
        if message["role"] == "tool":
            found.append(("result", message["tool_call_id"]))
    return found
