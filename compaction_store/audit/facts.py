"""The facts on each page of an audit, as values. The audit pages print them, and `as_dict()` is their JSON."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from compaction_store.arguments import LOG
from compaction_store.jsonable import AsDict
from compaction_store.models import Compaction, Comparison, Element, Event, Verdict
from compaction_store.models.vocabulary import JUDGEMENTS, NO_ATTEMPTS, OUTCOMES, Judgement
from compaction_store.module_data import ModuleData

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from compaction_store.audit.charts import ChartMark
    from compaction_store.audit.marks import MarkedPiece
    from compaction_store.audit.words import Kept
    from compaction_store.models import Explanation, Figures, Finding, Message, Payload, Report, Thread

_T = TypeVar("_T")

#: The most rows of a list, elements of a view, or originals of a record on one page.
ROWS = 50
#: The most records on a page of a list, whose rows are runs; inside and around one whose lineage is drawn; counted.
MOST_LISTED, MOST_INSIDE, MOST_AROUND, MOST_COUNTED = 200, 40, 8, 1000
#: The most characters of a message on one page.
MESSAGE_PAGE = 100_000


class OutOfTime(Exception):
    """Ends a search: raised by an iterator in place of its next row."""


@dataclass
class Tally(AsDict):
    """The threads that a verification of all threads has read, and the number of its findings."""

    threads: int = 0
    findings: int = 0

    def add(self, report: Report) -> None:
        # A log is no thread of the tenant: a tenant that has nothing else is empty.
        self.threads += report.thread_uid is not None and report.thread_id != LOG
        self.findings += len(report.findings)


@dataclass(frozen=True)
class ListPage(AsDict):
    """A page of a list. `more` is true if there are further pages, or if a search ran out of time."""

    rows: list[Any]
    more: bool


def run_of(entry: object) -> object:
    """Returns what the records of one run have in common, and no other entry has."""
    return (entry.thread_uid, entry.run_id) if isinstance(entry, Compaction) else id(entry)


def by_run(entries: Iterable[_T]) -> list[list[_T]]:
    """Returns the records of each run together, where the first of them is. Every other entry is alone."""
    found: dict[object, list[_T]] = {}
    for entry in entries:
        found.setdefault(run_of(entry), []).append(entry)
    return list(found.values())


@dataclass(frozen=True)
class Copied(AsDict):
    """The thread that a fork was made from. The records up to `pos` are copies."""

    pos: int
    name: str | None
    uid: UUID | None


@dataclass(frozen=True)
class SummedCosts(AsDict):
    """The costs of records. `dearest` is the record whose calls took most tokens, and `newest` the last with a cost.

    `actors` has the costs by actor, or by "" for attempts without one. If `is_cut`, not all records were read. If
    `more_copies`, copies in forks may be counted a second time.
    """

    sums: Costs
    newest: Compaction | None
    dearest: tuple[Compaction, Cost] | None
    actors: dict[str, ActorCost]
    is_cut: bool
    more_copies: bool


@dataclass
class Day(AsDict):
    """The compactions of a day in UTC, what those that were applied saved, and what the newest records cost."""

    at: datetime
    done: int = 0
    failed: int = 0
    saved: int = 0
    spent: float = 0.0


@dataclass(frozen=True)
class Overview(AsDict):
    """The first page: figures, each of the last days, and what is due, kept and erased.

    The `costs` are those of the newest `records`, without copies. `unpriced` of them have an unknown cost.
    """

    figures: Figures
    days: list[Day]
    due: ListPage | None
    kept: dict[str, Kept]
    more_kept: bool
    erasures: ListPage
    records: ListPage
    costs: Costs
    unpriced: int


@dataclass(frozen=True)
class ThreadList(AsDict):
    """Threads by name. With a budget, `due` are those that are due. If `more_kept`, `kept` may lack threads."""

    threads: ListPage
    due: ListPage | None
    kept: dict[str, Kept]
    more_kept: bool


@dataclass(frozen=True)
class ThreadPage(AsDict):
    """A thread, and a page of its entries after the pos `start`, in order; `missing` are entries that are not there.

    `names` are those of the forks in the events, by their pos. The view is known from `first_pos` to `known_pos`.
    """

    thread: Thread
    start: int
    entries: list[Message | Compaction | Event]
    missing: list[int]
    marks: list[ChartMark]
    names: dict[int, str | None]
    copies: dict[str, Copied]
    kept: Kept
    first_pos: int
    known_pos: int


@dataclass(frozen=True)
class ElementPair(AsDict):
    """An element of one view beside an element of another view. Both are the same object if they are equal."""

    left: Element | None
    right: Element | None


@dataclass(frozen=True)
class ViewPage(AsDict):
    """A page of the view at a pos, beside the view at another pos if `beside` is given.

    `sides` are the figures of both views, `positions` some moments of the thread, and `earlier` and `later` the pos
    before and after the records that are nearest.
    """

    thread: Thread
    at: int
    beside: int | None
    only_changes: bool
    tokens: int | None
    sides: list[Comparison]
    rows: list[ElementPair]
    start: int
    more: bool
    count: int
    changed: int
    positions: list[int]
    earlier: int | None
    later: int | None


@dataclass(frozen=True)
class RecordPage(AsDict):
    """A record, a page of the originals of its span, and what its summary kept, lost and invented.

    `inside` are the records that were active in its span, and `undone` the later ones that undid it, each after the
    word "revoked" or "superseded". `lineage` has it among the records around and inside it, the outermost first, each
    with its level; it is empty for a record alone. The page shows originals after the seq `after`, up to `last`; None
    without a span. If `cut`, the page does not show the whole replacement. Without `compared`, nothing is marked new.
    `replies` are the seqs of the first replies that were appended with it in the view, until the entry at `left_pos`
    took it out; they are None for a record that never was in a view.
    """

    record: Compaction
    inside: list[int]
    undone: list[tuple[str, Compaction]]
    lineage: list[tuple[int, Compaction]]
    copied: Copied | None
    verdicts: list[Verdict]
    more_verdicts: bool
    content: bool
    replies: ListPage | None
    left_pos: int | None
    after: int = 0
    last: int = 0
    originals: ListPage | None = None
    replaced: list[list[MarkedPiece]] | tuple[()] = ()
    compared: bool = False
    cut: bool = False


@dataclass(frozen=True)
class ComparedRecords(AsDict):
    """Two records of a thread, and the texts of each with marks on the sentences that the other one lacks."""

    records: tuple[Compaction, Compaction]
    texts: tuple[list[list[MarkedPiece]], list[list[MarkedPiece]]]


@dataclass(frozen=True)
class TextPage(AsDict):
    """A part of a long text, and the number of its parts."""

    part: int
    pages: int
    text: str


@dataclass(frozen=True)
class MessagePage(TextPage):
    """A part of a message, the records that covered it, its erasure, and its receipt if it is a reply."""

    message: Message
    explained: Explanation
    content: bool
    last_seq: int
    records: list[Compaction]
    more_records: bool
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class ReplyPage(AsDict):
    """A page of the view that a message was written from: the view of the thread `of` at a pos.

    If `is_request`, the rows are the messages that a coding agent sent, with their numbers in the request as seqs.
    """

    seq: int
    role: str | None
    evidence: Literal["proved", "reconstructed", "differs"]
    of: str
    at: int
    tokens: int | None
    rows: list[ElementPair]
    start: int
    more: bool
    count: int
    receipt: Payload | None = None
    has_erased: bool = False
    is_request: bool = False
    where: str | None = None


@dataclass(frozen=True)
class EventList(AsDict):
    """A page of events; on the first, counts of those that match, or of the first of them if `is_cut`."""

    events: ListPage
    matches: int = 0
    is_cut: bool = False
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    overrides: int = 0


@dataclass(frozen=True)
class RecordList(AsDict):
    """A page of the records that match, and the costs of all that match, if they were summed."""

    records: ListPage
    copies: dict[str, Copied]
    more_copies: bool
    costs: SummedCosts | None


@dataclass(frozen=True)
class EventPage(AsDict):
    """An event, and the first messages, records and forks that it names. `release` is the event that ended a hold."""

    event: Event
    thread: Thread
    release: Event | None
    seqs: list[int]
    numbers: list[int]
    forks: list[tuple[Any, str | None]]
    names: dict[int, str | None]


@dataclass(frozen=True)
class SamplePage(AsDict):
    """A random sample of records, each with the verdicts that reviewers gave for this sample. `name` identifies it.

    If `more`, further records match than the population that it was drawn from.
    """

    seed: int
    count: int
    name: dict[str, Any]
    population: int
    more: bool
    drawn: list[tuple[Compaction, dict[str, Verdict]]]
    coverage: Coverage
    reviewed: Reviews


# ---- samples: the verdicts, and bounds on the number of bad records among all records

#: The largest population that a sample is drawn from, and the largest sample.
MOST_POPULATION, MOST_DRAWN = 20_000, 200
# The true number is outside each bound with a probability of at most 1 in 40: together, that is 95 % confidence.
_ONE_IN = 40


@dataclass(frozen=True, slots=True)
class Coverage(AsDict):
    """The number of records with each verdict, in a sample of `drawn` records out of `population`."""

    population: int
    drawn: int
    good: int
    bad: int
    unsure: int

    @property
    def judged(self) -> int:
        return self.good + self.bad + self.unsure

    @property
    def bad_in_population(self) -> tuple[int, int] | None:
        """The lower and the upper bound on the number of bad records in the population, with 95 % confidence.

        None until the whole sample was judged, because the records that are judged first are not a random sample.
        Records that a reviewer is unsure of count as good for the lower bound, and as bad for the upper bound.
        """
        if not self.drawn or self.judged != self.drawn:
            return None
        likely = partial(_is_likely, self.population, self.drawn)
        least, most, others = self.bad, self.bad + self.unsure, self.population - self.drawn
        lower = bisect_left(
            range(least, least + others), True, key=lambda bad: likely(bad, range(least, self.drawn + 1))
        )
        upper = bisect_left(range(most + 1, most + others + 1), True, key=lambda bad: not likely(bad, range(most + 1)))
        return least + lower, most + upper


def coverage(population: int, drawn: int, verdicts: Iterable[Verdict]) -> Coverage:
    """Counts the verdicts on a sample. If a record has several verdicts, only the newest counts."""
    newest = {
        (each.thread_id, each.number): each.verdict for each in sorted(verdicts, key=lambda each: each.created_at)
    }
    counts = [sum(given == verdict for given in newest.values()) for verdict in JUDGEMENTS]
    return Coverage(population, drawn, *counts)


class Agreement(NamedTuple):
    """The agreement of two judges: the number of records that both judged, the number of equal verdicts, and kappa.

    Kappa is 1 for full agreement and 0 for agreement by chance. It is None if there are no such records, or if both
    gave all of them one and the same verdict.
    """

    labelled: int
    same: int
    kappa: float | None


def agreement(pairs: Iterable[tuple[Any, Any]]) -> Agreement:
    """Compares the verdicts of two judges on the same records."""
    listed = list(pairs)
    count, same = len(listed), sum(one == other for one, other in listed)
    sides = [Counter(side) for side in zip(*listed, strict=True)] or [Counter(), Counter()]
    # The number of equal verdicts by chance, times the number of records.
    chance = sum(its * sides[1][verdict] for verdict, its in sides[0].items())
    return Agreement(
        count, same, None if chance == count**2 else round((same * count - chance) / (count**2 - chance), 4)
    )


Judged = dict[str, dict[tuple[str, int], Verdict]]


def judged(verdicts: Iterable[Verdict]) -> Judged:
    """Returns the newest verdict of each reviewer on each record. A reviewer is named by actor, or else by login."""
    found: Judged = {}
    for each in sorted(verdicts, key=lambda each: each.created_at):
        found.setdefault(each.actor or each.login, {})[each.thread_id, each.number] = each
    return found


@dataclass(frozen=True)
class Reviews(AsDict):
    """The number of records, those with each verdict by reviewer, and the agreement of each two who judged the same."""

    records: int
    counts: dict[str, dict[Judgement, int]]
    agreements: list[tuple[str, str, Agreement]]

    @classmethod
    def of(cls, given: Judged) -> Reviews:
        counts = {
            who: {verdict: sum(each.verdict == verdict for each in its.values()) for verdict in JUDGEMENTS}
            for who, its in sorted(given.items())
        }
        pairs = [
            (one, other, agreement((given[one][at].verdict, given[other][at].verdict) for at in both))
            for one, other in combinations(sorted(given), 2)
            if (both := given[one].keys() & given[other].keys())
        ]
        return cls(len({at for its in given.values() for at in its}), counts, pairs)


def _is_likely(population: int, drawn: int, bad: int, hits: range) -> bool:
    """Returns whether a sample has one of these numbers of bad records with a probability above 1 in 40."""
    return sum(comb(bad, hit) * comb(population - bad, drawn - hit) for hit in hits) * _ONE_IN > comb(population, drawn)


# ---- what summaries cost: calls, tokens and time by model, actor and week. If a call failed and a fallback replaced
# it, its cost counts towards the model that failed, because the call was billed too.


# The names that APIs give to input tokens, cached tokens included, and to output tokens.
_IN = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "prompt_tokens")
_OUT = ("output_tokens", "completion_tokens")
_MOST = 2**53
_Key = tuple[str, str, str, str]


@dataclass
class Cost(AsDict):
    """The calls of one summarizer and model, for one actor, in one week."""

    calls: int = 0
    failed: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out

    def add(self, usage: Any, duration: Any, *, failed: bool) -> bool:
        """Adds a call. Returns whether its tokens are known."""
        counts: Mapping[str, Any] = usage if isinstance(usage, Mapping) else {}
        self.calls += _count(counts, "requests") if type(counts.get("requests")) is int else 1
        self.failed += failed
        self.tokens_in += sum(_count(counts, name) for name in _IN)
        self.tokens_out += sum(_count(counts, name) for name in _OUT)
        if type(duration) in (int, float) and 0 <= duration < _MOST:
            self.seconds += duration
        return any(name in counts for name in (*_IN, *_OUT))

    def include(self, other: Cost) -> None:
        """Adds the calls of another sum."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class ActorCost(Cost):
    """The cost of an actor's attempts, with the money that they cost. For `unpriced` of them, it is unknown."""

    attempts: int = 0
    spent: float = 0.0
    unpriced: int = 0

    def include_attempt(self, cost: Cost, spent: float | None) -> None:
        self.include(cost)
        self.attempts += 1
        self.spent += spent or 0.0
        self.unpriced += spent is None


_LEFT_OUT: dict[str, str] = ModuleData(__file__).values["left_out"]


class Costs:
    """The sums of the costs of records. `over` yields the records unchanged and adds the cost of each."""

    def __init__(self) -> None:
        self._found: dict[_Key, Cost] = {}
        self.attempts = dict.fromkeys(OUTCOMES, 0)
        #: The counts that the sums leave out: attempts erased or without a summarizer, and calls without tokens.
        self.not_counted = dict.fromkeys(_LEFT_OUT, 0)

    @classmethod
    def of(cls, record: Compaction) -> Cost:
        """Returns the cost of one record, with the calls that failed before."""
        found = cls()
        found.add(record)
        return found.total()

    def over(self, records: Iterable[Compaction]) -> Iterator[Compaction]:
        for record in records:
            self.add(record)
            yield record

    def add(self, record: Compaction) -> None:
        if record.kind in NO_ATTEMPTS:
            return
        self.attempts[record.outcome] = self.attempts.get(record.outcome, 0) + 1
        if record.body is None:
            self.not_counted["attempts_erased"] += 1
            return
        for failed in record.failed_before:
            names = (failed.get("summarizer"), failed.get("model"))
            cost = self._of(record, *(name if isinstance(name, str) else None for name in names))
            is_known = cost.add(failed.get("usage"), failed.get("duration"), failed=True)
            self.not_counted["calls_without_tokens"] += not is_known
        if record.summarizer is None:
            self.not_counted["attempts_without_summarizer"] += not record.failed_before
        # If all summarizers failed, `failed_before` already lists the last one.
        elif not (record.failed_before and record.outcome == "failed"):
            cost = self._of(record, record.summarizer, record.model)
            is_known = cost.add(record.usage, record.duration, failed=record.outcome != "applied")
            self.not_counted["calls_without_tokens"] += not is_known

    def as_dict(self) -> dict[str, Any]:
        """Returns the attempts by outcome, the sums, and the counts that these leave out."""
        return {"attempts": self.attempts, "costs": self.listed(), "not_counted": self.not_counted}

    def left_out(self) -> list[str]:
        """Says what the sums leave out, in words."""
        counts = [(name, count) for name, count in self.not_counted.items() if count]
        return [_LEFT_OUT[name].format(f"{count:,}", s="s" * (count != 1)) for name, count in counts]

    def listed(self) -> list[dict[str, Any]]:
        return [
            {name: part or None for name, part in zip(("week", "summarizer", "model", "actor"), key, strict=True)}
            | {name: getattr(cost, name) for name in ("calls", "failed", "tokens_in", "tokens_out")}
            for key, cost in sorted(self._found.items())
        ]

    def by_model(self) -> dict[str, Cost]:
        """Returns the sums by model. The last one, with an empty name, is of calls without a model's name."""
        found: dict[str, Cost] = {}
        for (_, _, model, _), cost in sorted(self._found.items(), key=lambda each: (not each[0][2], each[0][2])):
            found.setdefault(model, Cost()).include(cost)
        return found

    def total(self) -> Cost:
        """Returns the sum over all models."""
        found = Cost()
        for cost in self._found.values():
            found.include(cost)
        return found

    def _of(self, record: Compaction, summarizer: str | None, model: str | None) -> Cost:
        year, week, _ = record.created_at.astimezone().isocalendar()
        return self._found.setdefault((f"{year}-W{week:02}", summarizer or "", model or "", record.actor or ""), Cost())


def _count(counts: Mapping[str, Any], name: str) -> int:
    # The body of a record may contain any JSON, so the value may not be a count.
    value = counts.get(name)
    return value if type(value) is int and 0 <= value < _MOST else 0
