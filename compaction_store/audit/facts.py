"""The facts on each page of an audit, as values. The audit pages print them, and `as_dict()` is their JSON."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from math import comb
from typing import TYPE_CHECKING, Any, Literal

from compaction_store.jsonable import AsDict
from compaction_store.models import Verdict

if TYPE_CHECKING:
    from uuid import UUID

    from compaction_store.audit.charts import ChartMark
    from compaction_store.audit.costs import Cost, Costs
    from compaction_store.audit.marks import MarkedPiece
    from compaction_store.audit.words import Kept
    from compaction_store.models import (
        Compaction,
        Comparison,
        Element,
        Event,
        Explanation,
        Finding,
        Message,
        Payload,
        Thread,
    )


#: The most rows of a list, elements of a view, or originals of a record on one page.
ROWS = 50
#: The most characters of a message on one page.
MESSAGE_PAGE = 100_000


class OutOfTime(Exception):
    """Ends a search: raised by an iterator in place of its next row."""


@dataclass(frozen=True)
class ListPage(AsDict):
    """A page of a list. `more` is true if there are further pages, or if a search ran out of time."""

    rows: list[Any]
    more: bool


@dataclass(frozen=True)
class Copied(AsDict):
    """The thread that a fork was made from. The records up to `pos` are copies."""

    pos: int
    name: str | None
    uid: UUID | None


@dataclass(frozen=True)
class SummedCosts(AsDict):
    """The costs of records. `dearest` is the record whose calls took most tokens, and `newest` the last with a cost.

    If `is_cut`, not all records were read. If `more_copies`, copies in forks may be counted a second time.
    """

    sums: Costs
    newest: Compaction | None
    dearest: tuple[Compaction, Cost] | None
    is_cut: bool
    more_copies: bool


@dataclass(frozen=True)
class ThreadList(AsDict):
    """Threads by name. With a budget, `due` are those that are due. If `more_kept`, `kept` may lack threads."""

    threads: ListPage
    due: ListPage | None
    kept: dict[str, Kept]
    more_kept: bool


@dataclass(frozen=True)
class ThreadPage(AsDict):
    """A thread, and a page of its records and events, newest first.

    `names` are the names of the forks that the events name, by their pos. `costs` is None if they were not summed; if
    `more_costs`, there are more records than were summed. The view is known up to `known_pos`, from `first_pos` on.
    """

    thread: Thread
    records: ListPage
    events: ListPage
    marks: list[ChartMark]
    names: dict[int, str | None]
    copies: dict[str, Copied]
    kept: Kept
    first_pos: int
    known_pos: int
    costs: Costs | None
    more_costs: bool


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
    word "revoked" or "superseded". The page shows originals after the seq `after`, up to `last`; None without a span.
    If `cut`, the page does not show the whole replacement; without `compared`, new names are not marked.
    """

    record: Compaction
    inside: list[int]
    undone: list[tuple[str, Compaction]]
    copied: Copied | None
    verdicts: list[Verdict]
    more_verdicts: bool
    content: bool
    after: int = 0
    last: int = 0
    originals: ListPage | None = None
    replaced: list[list[MarkedPiece]] | tuple[()] = ()
    compared: bool = False
    cut: bool = False


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
class RecordList(AsDict):
    """A page of the records that match, newest first, and the costs of all that match, if they were summed."""

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
    """A random sample of records, each with the verdict that was given for this sample. `name` identifies it.

    If `more`, further records match than the population that it was drawn from.
    """

    seed: int
    count: int
    name: dict[str, Any]
    population: int
    more: bool
    drawn: list[tuple[Compaction, Verdict | None]]
    coverage: Coverage


# ---- samples: the verdicts, and bounds on the number of bad records among all records

#: The largest population that a sample is drawn from, and the largest sample.
MOST_POPULATION, MOST_DRAWN = 20_000, 200
# The true number is below the lower bound with a probability of at most 1 in 40. It is above the upper bound with a
# probability of at most 1 in 40 too. Together, that is 95 % confidence.
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
    counts = [sum(given == verdict for given in newest.values()) for verdict in ("good", "bad", "unsure")]
    return Coverage(population, drawn, *counts)


def _is_likely(population: int, drawn: int, bad: int, hits: range) -> bool:
    """Returns whether a sample has one of these numbers of bad records with a probability above 1 in 40."""
    samples = sum(comb(bad, hit) * comb(population - bad, drawn - hit) for hit in hits)
    return samples * _ONE_IN > comb(population, drawn)
