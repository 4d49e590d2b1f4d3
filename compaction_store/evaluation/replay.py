"""Replays a thread in memory under a policy, and collects the results of the probes and the token counts.

A policy compacts before the model is called: before an assistant message that follows a message of another role. The
reply is always the recorded one, so a replay shows what the view still had, not what the model would have replied.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final, NamedTuple

from compaction_store import arguments
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.callbacks import check_callback, run_callbacks
from compaction_store.compaction.planner import Planner
from compaction_store.errors import InvalidInput
from compaction_store.evaluation.asking import Examiner, Questions
from compaction_store.evaluation.judge import Judge, JudgeVerdict, SummarizerUse, Usage, labels_of, usage_of
from compaction_store.language.names import NameReader
from compaction_store.messages import framing
from compaction_store.models import Attempt, Compaction, Element, Event, Message, Payload
from compaction_store.models.messages import shown
from compaction_store.models.vocabulary import EVENT_KINDS, KINDS, NO_ATTEMPTS, SUMMARY_KINDS, WITHDRAWALS
from compaction_store.probes import Fold, Planted, Probe, ThreadFacts, ThreadMessage, ThreadProbe
from compaction_store.rendering.receipts import agents_receipt
from compaction_store.rendering.view import View
from compaction_store.strategies.outline import speaker
from compaction_store.tokens import Counter as TokenCounter
from compaction_store.waiting import drive


class ModelCall(NamedTuple):
    """A call of the model: the tokens of its view, those of the prefix shared with the previous call, and its usage."""

    seq: int
    tokens: int
    prefix: int
    usage: Usage | None = None


class ReplayedFold(NamedTuple):
    """A fold of the view: its record, its span, and the size of the span before and after."""

    record: int
    start_seq: int
    end_seq: int
    kind: str
    tokens_before: int
    tokens_after: int
    #: The index of the first call with the fold in its view.
    first_call: int
    #: The tokens of the view before the span: the prefix that the previous and the next call share.
    prefix: int
    #: The model or summarizer that wrote the replacement, and the tokens used.
    summarizer: str | None = None
    use: SummarizerUse | None = None
    #: Whether a provider or another program wrote the summary, and its cost is not on record.
    is_observed: bool = False


@dataclass
class Replayed:
    """The results of a thread under a policy. `rounds` maps a record to the number of its fold, from 1. `ends` maps a
    record to the index of the call at which it left the view.
    """

    thread_id: str
    policy: str
    probes: list[Probe] = field(default_factory=list, repr=False)
    calls: list[ModelCall] = field(default_factory=list, repr=False)
    folds: list[ReplayedFold] = field(default_factory=list, repr=False)
    ends: dict[int, int] = field(default_factory=dict, repr=False)
    rounds: dict[int, int] = field(default_factory=dict, repr=False)
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    summarizers: dict[str, SummarizerUse] = field(default_factory=dict)
    #: The number of calls whose view was over the limit of the policy's budget or, for the thread's own records, over
    #: the window.
    over_window: int = 0
    #: The tokens of summarizers whose text was not used.
    wasted: dict[str, SummarizerUse] = field(default_factory=dict)
    #: Records that only a provider can read, or whose summary was erased. They are not compared with their messages.
    unreadable: set[int] = field(default_factory=set)
    #: The verdict of a judge on each summary, by record.
    verdicts: dict[int, JudgeVerdict] = field(default_factory=dict)
    seconds: float = 0.0


def replay(
    thread: RecordedThread,
    policy: Policy | None,
    counter: TokenCounter,
    *,
    window: int | None = None,
    judge: Judge | None = None,
    ask: Examiner | None = None,
) -> Replayed:
    """Replays a thread under a policy, or for None under its own records with `window`, the model's context window."""
    started = time.perf_counter()
    walk: _Walk = _Recorded(thread, window, counter) if policy is None else _Simulated(thread, policy, counter)
    walk.judge, walk.examiner = judge, ask
    walk.run()
    walk.result.seconds = time.perf_counter() - started
    return walk.result


class _Walk:
    """A growing view, and the probes on it."""

    def __init__(self, thread: RecordedThread, policy: str, limit: int | None, counter: TokenCounter) -> None:
        self.thread = thread
        self.counter = counter
        self.judge: Judge | None = None
        self.examiner: Examiner | None = None
        # The answers to the examiner, the number of folds that it was asked about, and all messages so far.
        self._answers: list[Probe] = []
        self._examined = 0
        self._whole: list[Element] = []
        self.result = Replayed(thread.thread_id, policy)
        self.elements: list[Element] = []
        self.tokens = 0
        self._limit = limit
        # Made at the first fold, because there is nothing to probe before that.
        self._probe: ThreadProbe | None = None
        self._appended: list[int] = []
        self._before: str | None = None
        self._prefix = 0
        self._withdrawn: set[int] = set()
        self._under: dict[int, tuple[Element, ...]] = {}

    def run(self) -> None:
        raise NotImplementedError

    def append(self, message: Message) -> None:
        who = speaker(message.payload)
        if who == "assistant" and self._before not in ("assistant", None):
            self.before_call()
            self._examine()
            self.result.calls.append(ModelCall(message.seq, self.tokens, self._prefix, self.usage(message)))
            self.result.over_window += self._limit is not None and self.tokens > self._limit
            self._prefix = self.tokens
        self._before = who
        seq, payload = message.seq, shown(message.payload)
        self.elements.append(Element(seq, seq, message.pos, (payload,), message.tokens, None, message.created_at))
        self._whole += self.elements[-1:] if self.examiner is not None else ()
        self.tokens += message.tokens
        self._appended.append(seq)
        if self._probe is not None:
            self._probe.append(seq)

    def before_call(self) -> None:
        """Compacts the view if the policy requires it."""

    def _examine(self) -> None:
        """Asks questions about the view if it was compacted since the last call, and if it can be read."""
        folds, numbers = self.result.folds, {element.number for element in self.elements}
        if self.examiner is None or len(folds) == self._examined or not numbers.isdisjoint(self.result.unreadable):
            return
        self._examined = len(folds)
        shown = {element.seq for element in self.elements if element.number is None}
        folded = [one for one in self.elements if one.number is not None and one.number not in self._withdrawn]
        hidden = {seq for one in folded for seq in range(one.seq, one.end_seq + 1)}
        asked = Questions(self.thread.thread_id, self.thread.facts, hidden, shown, len(self._whole))
        self._answers += self.examiner.probes(asked, folds[-1].record, self.elements, self._whole)

    def usage(self, _message: Message) -> Usage | None:
        """Returns the usage of the call for a reply; None unless the model was sent this view."""
        return None

    def fold(
        self,
        record: int,
        by: Attempt | Compaction,
        start: int,
        end: int,
        replacement: tuple[Payload, ...],
        cost: tuple[str, SummarizerUse] | None = None,
    ) -> None:
        """Replaces a span of the view. `cost` is the name of the summarizer, with the tokens used."""
        also = self.thread.sent.get(record, ())
        inside = [i for i, element in enumerate(self.elements) if element.end_seq >= start and element.seq <= end]
        if not inside:
            return
        first, last = inside[0], inside[-1]
        # The span of a program's own summary may begin or end inside an earlier span: then it covers that span too.
        start, end = min(start, self.elements[first].seq), max(end, self.elements[last].end_seq)
        # A program that compacted by itself may not have reported the size of its summary, so its text is counted.
        kind, tokens = by.kind, self.counter.messages(replacement) if by.tokens_after is None else by.tokens_after
        removed = tuple(self.elements[first : last + 1])
        before = sum(element.tokens for element in removed)
        prefix = sum(element.tokens for element in self.elements[:first])
        self._under[record] = removed
        self.result.ends |= {old.number: len(self.result.calls) for old in removed if old.number is not None}
        self.elements[first : last + 1] = [
            Element(start, end, None, replacement, tokens, record, removed[0].created_at, kind, by.callback)
        ]
        self.tokens += tokens - before
        self._prefix = min(self._prefix, prefix)
        if kind in WITHDRAWALS:
            # Messages that a user withdrew do not count as lost.
            self._withdrawn.add(record)
        else:
            self.result.rounds[record] = len(self.result.rounds) + 1
            name, use = cost or (None, None)
            is_observed = cost is None and (kind == "adoption" or by.outcome == "observed")
            at = len(self.result.calls)
            fold = ReplayedFold(record, start, end, kind, before, tokens, at, prefix, name, use, is_observed)
            self.result.folds.append(fold)
            if self.judge is not None and kind in SUMMARY_KINDS and record not in self.result.unreadable:
                self.result.verdicts[record] = self.judge.of(removed, replacement)
        if self._probe is None:
            self._probe = ThreadProbe(self.thread.facts)
            for seq in self._appended:
                self._probe.append(seq)
        self._probe.fold(Fold(record, start, end, replacement, is_summary=kind in SUMMARY_KINDS, also=also))

    def revoke(self, record: int) -> None:
        """Takes a record out of the view, if it is there, and restores the elements that it replaced."""
        for place, element in enumerate(self.elements):
            if element.number == record:
                under = self._under[record]
                self._prefix = min(self._prefix, sum(each.tokens for each in self.elements[:place]))
                self.elements[place : place + 1] = under
                self.tokens += sum(each.tokens for each in under) - element.tokens
                self.result.ends[record] = len(self.result.calls)
                for each in under:
                    if each.number is not None:
                        self.result.ends.pop(each.number, None)
                break
        if self._probe is not None:
            self._probe.revoke(record)

    def finish(self) -> None:
        if self._probe is None:
            return
        # A repeated call is visible in the thread, so this type of probe is kept even if the summary is unreadable.
        sealed = self.result.unreadable
        self.result.probes = [
            probe
            for probe in self._probe.finish()
            if probe.record not in self._withdrawn and (probe.record not in sealed or probe.type == "re_derivation")
        ] + self._answers

    def count(self, attempt: Attempt | Compaction) -> tuple[str, SummarizerUse] | None:
        """Counts an attempt, whatever its outcome. Returns its summarizer and the tokens used."""
        self.result.outcomes[attempt.outcome] += 1
        if attempt.error is not None:
            self.result.errors[str(attempt.error.get("type", "unknown"))] += 1
        by = attempt if isinstance(attempt, Compaction) else attempt.summary
        name = None if by is None else by.model or by.summarizer
        if by is None or name is None:
            return None
        use, is_model = SummarizerUse(), by.model is not None
        use.add(by.usage, by_model=is_model)
        self.result.summarizers.setdefault(name, SummarizerUse()).add(by.usage, by_model=is_model)
        if attempt.outcome in ("rejected", "failed"):
            self.result.wasted.setdefault(name, SummarizerUse()).add(by.usage, by_model=is_model)
        return name, use


class _Recorded(_Walk):
    """A replay of the thread's own compactions."""

    def __init__(self, thread: RecordedThread, window: int | None, counter: TokenCounter) -> None:
        super().__init__(thread, RECORDED, window, counter)

    def run(self) -> None:
        costs = {record.number: self.count(record) for record in self.thread.records if record.kind not in NO_ATTEMPTS}
        for entry in self.thread.log():
            if isinstance(entry, Message):
                self.append(entry)
            elif entry.revokes is not None:
                self.revoke(entry.revokes)
            elif entry.start_seq is not None and entry.end_seq is not None:
                if entry.unreadable or entry.redacted:
                    self.result.unreadable.add(entry.number)
                cost = costs.get(entry.number)
                self.fold(entry.number, entry, entry.start_seq, entry.end_seq, _replacement(entry), cost)
        self.finish()

    def usage(self, message: Message) -> Usage | None:
        return usage_of(message.payload or {}) or usage_of(message.meta or {})


def _replacement(record: Compaction) -> tuple[Payload, ...]:
    """Returns the messages that replaced the span of a record. For an observed summary, only the text is known."""
    if record.outcome == "applied":
        return tuple(record.replacement or ())
    text = record.summary_text
    if text is None or record.start_seq is None or record.end_seq is None:
        return ()
    return (framing.frame(text, record.start_seq, record.end_seq),)


class _Simulated(_Walk):
    """A replay of the thread with the compactions that a policy would have made."""

    def __init__(self, thread: RecordedThread, policy: Policy, counter: TokenCounter) -> None:
        super().__init__(thread, policy.name, policy.budget.limit, counter)
        self._policy = policy
        self._last = 0

    def run(self) -> None:
        for message in self.thread.messages:
            self.append(message)
        self.finish()

    def before_call(self) -> None:
        if not self._policy.budget.is_over(self.tokens):
            return
        view = View(self.thread.thread_id, 0, tuple(self.elements))
        planner = Planner(view, counter=self.counter, budget=self._policy.budget, now=self.elements[-1].created_at)
        drive(run_callbacks(planner, self._policy.callbacks))
        for attempt in planner.attempts:
            self._last += 1
            cost = self.count(attempt)
            if attempt.outcome == "applied" and attempt.start_seq is not None and attempt.end_seq is not None:
                self.fold(self._last, attempt, attempt.start_seq, attempt.end_seq, attempt.replacement, cost)


# ---- what is replayed: a policy, which decides when and how a thread is compacted, and a stored thread


@dataclass(frozen=True, slots=True)
class Policy:
    """Callbacks or strategies. Before a call of the model, they compact a view that is over the budget."""

    name: str
    callbacks: tuple[Callable[..., Any], ...] = field(repr=False)
    budget: TokenBudget

    def __post_init__(self) -> None:
        arguments.name(self.name, "name")
        arguments.instance(self.budget, TokenBudget, "budget")
        if self.name == RECORDED:
            raise InvalidInput(f"name must not be {RECORDED!r}: that is the name of the thread's own compactions")
        if not self.callbacks:
            raise InvalidInput("callbacks must have at least one callback or strategy")
        for callback in self.callbacks:
            check_callback(callback, awaits=False)


#: The name of the policy that replays a thread's own records.
RECORDED: Final = "recorded"


@dataclass(frozen=True)
class RecordedThread:
    """The messages and the whole compaction log of a thread."""

    thread_id: str
    messages: tuple[Message, ...] = field(repr=False)
    records: tuple[Compaction, ...] = field(default=(), repr=False)
    #: Whether an entry of a kind that this release does not know may have changed what the model was sent.
    is_unknown: bool = False
    #: The sentences that were planted into messages, by seq.
    planted: Mapping[int, tuple[Planted, ...]] = field(default_factory=dict, repr=False)
    #: For a fold of a coding agent, by record, the messages of its next request that are not messages of the thread.
    sent: Mapping[int, Sequence[Payload]] = field(default_factory=dict, repr=False)
    #: The verdicts of people on records, by number.
    labels: Mapping[int, bool] = field(default_factory=dict, repr=False)
    #: A reader of the names in texts. Threads that share a reader are probed faster, because it remembers names.
    reader: NameReader | None = field(default=None, repr=False, compare=False)

    @cached_property
    def facts(self) -> ThreadFacts:
        """The facts of the messages that the probes need. They are computed once for all policies."""
        given = (
            ThreadMessage(
                one.seq, one.payload, one.tokens, _occurred(one), is_summary(one), self.planted.get(one.seq, ())
            )
            for one in self.messages
        )
        return ThreadFacts(given, self.reader)

    @cached_property
    def folds(self) -> list[Compaction]:
        """The records that changed what the model was sent, in order.

        These are the applied records. If there are none, as in most imported threads, these are the observed summaries,
        which were made by the program that the thread was imported from.
        """
        applied = [record for record in self.records if record.outcome == "applied"]
        observed = [
            record for record in self.records
            if record.outcome == "observed" and record.kind == "summary" and record.start_seq is not None
        ]  # fmt: skip
        return applied or observed

    @property
    def is_erased_in_part(self) -> bool:
        """Whether the content of a message was erased. An evaluation needs all messages."""
        return any(message.payload is None for message in self.messages)

    def log(self) -> Iterator[Message | Compaction]:
        """Yields messages and folds in the order of their pos."""
        entries: list[Message | Compaction] = [*self.messages, *self.folds]
        yield from sorted(entries, key=lambda entry: entry.pos)


def is_summary(message: Message) -> bool:
    """Returns whether a message of an imported thread is the summary with which its program continued."""
    return message.meta is not None and message.meta.get("is_compact_summary") is True


def _occurred(message: Message) -> datetime:
    """Returns the time of a message. An imported message was stored later, so the time is in its meta."""
    at = None if message.meta is None else message.meta.get("occurred_at")
    try:
        return datetime.fromisoformat(at) if isinstance(at, str) else message.created_at
    except ValueError:
        return message.created_at


def read_thread(
    reader: Any, thread_id: str, *, labels: bool = False, names: NameReader | None = None
) -> RecordedThread:
    """Reads a thread; with `labels`, also people's verdicts. Threads that share `names` are probed faster."""
    found = reader.replay(thread_id), reader.compactions(thread_id), reader.audit.events(thread_id)
    thread = recorded(thread_id, *found, labels=labels, names=names)
    sent = {
        record: besides(seen.messages, said)
        for record, (seq, said) in next_requests(thread).items()
        if (seen := reader.seen_by(thread_id, seq)).evidence == "proved" and seen.messages is not None
    }
    return replace(thread, sent=sent)


def next_requests(thread: RecordedThread) -> dict[int, tuple[int, list[Message]]]:
    """Returns, for each fold, the reply to the first request after it that has a receipt, and the messages between."""
    found = {}
    for record in thread.folds:
        said: list[Message] = []
        for message in thread.messages[bisect_right(thread.messages, record.pos, key=lambda each: each.pos) :]:
            if agents_receipt(message) is not None:
                found[record.number] = message.seq, said
                break
            said.append(message)
    return found


def besides(messages: Iterable[Payload], said: Iterable[Message]) -> list[Payload]:
    """Returns the messages of a request without the texts that are in the messages of a thread."""
    known = {text.strip() for message in said for text in _texts(message.payload or {})}
    parts = (text for message in messages if message.get("role") != "assistant" for text in _texts(message))
    return [{"role": "user", "content": text} for text in parts if text.strip() not in known]


def _texts(message: Payload) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    blocks = content if isinstance(content, list) else []
    return [block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)]


def recorded(
    thread_id: str,
    messages: Iterable[Message],
    records: Iterable[Compaction],
    events: Iterable[Event],
    *,
    labels: bool = False,
    names: NameReader | None = None,
) -> RecordedThread:
    """Makes the thread of what a reader returned, as `read_thread` does."""
    records, events = tuple(records), tuple(events)
    is_unknown = any(record.outcome == "applied" and record.kind not in KINDS for record in records) or any(
        event.critical and event.kind not in EVENT_KINDS for event in events
    )
    return RecordedThread(
        thread_id, tuple(messages), records, is_unknown, labels=labels_of(events) if labels else {}, reader=names
    )
