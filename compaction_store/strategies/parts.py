"""Summarizes a long span in parts that fit a model's window, and joins the summaries.

If a part fails, the whole summary fails. The earlier parts can still be used as a summary of the span's beginning.
"""

from __future__ import annotations

from collections import Counter as Sums
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from compaction_store.arguments import name_of
from compaction_store.compaction.asks import Summarize
from compaction_store.compaction.summary_request import Request, SummaryResult
from compaction_store.errors import InvalidCallback, InvalidInput
from compaction_store.models import Element, Payload, Summary
from compaction_store.waiting import Call, Work, begin

# The number of tokens of an empty line between two summaries.
_BETWEEN = 1


class InParts:
    """A summarizer that calls another summarizer for each part, with a share of the room.

    `ends` are the last seqs of the parts.
    """

    def __init__(self, summarize: Summarize, ends: Sequence[int]) -> None:
        self.name = name_of(summarize, "summarizer")
        self.model = getattr(summarize, "model", None)
        self._summarize = summarize
        self._ends = ends
        self._done: list[Summary] = []

    @property
    def done_to(self) -> int | None:
        """The last seq that has been summarized so far, or None if no part has."""
        return self._ends[len(self._done) - 1] if self._done else None

    def __call__(self, elements: Sequence[Element]) -> SummaryResult | Awaitable[SummaryResult]:
        return begin(self._work(elements))

    def _work(self, elements: Sequence[Element]) -> Work[Summary]:
        for part in self._parts(elements):
            self._take((yield Call(self._summarize, part)))
        return self.joined()

    def _parts(self, elements: Sequence[Element]) -> Iterator[Request]:
        whole = Request.of(elements)
        start = 0
        for end_seq in self._ends:
            end = next(i for i in range(start, len(whole)) if whole[i].end_seq == end_seq) + 1
            part = replace(whole, elements=whole.elements[start:end])
            yield part if whole.budget is None else replace(part, budget=_share(whole.budget, part, whole))
            start = end

    def _take(self, result: SummaryResult) -> None:
        summary = Summary(result) if isinstance(result, str) else result
        if not isinstance(summary, Summary):
            raise InvalidCallback(f"a summarizer must return text or a Summary, not {type(result).__name__}")
        if not isinstance(summary.text, str):
            raise InvalidCallback(f"the text of a Summary must be text, not {type(summary.text).__name__}")
        if summary.replacement is not None:
            raise InvalidInput("part_chars must be None for a summarizer that returns a Summary with a replacement")
        if not summary.text.strip():
            raise ValueError("the summary of a part is empty")
        self._done.append(summary)

    def joined(self) -> Summary:
        """Returns the joined summaries of all parts that have been summarized so far."""
        done = self._done
        durations = [summary.duration for summary in done if summary.duration is not None]
        return Summary(
            "\n\n".join(summary.text.strip() for summary in done),
            model=next((summary.model for summary in done if summary.model is not None), None),
            prompt=next((summary.prompt for summary in done if summary.prompt is not None), None),
            usage=_sum(summary.usage for summary in done),
            provider=_all([summary.provider for summary in done]),
            coverage=_all([summary.coverage for summary in done]) or {"parts": [{} for _ in done]},
            duration=sum(durations) if durations else None,
            settings=next((summary.settings for summary in done if summary.settings is not None), None),
            summarizer=next((summary.summarizer for summary in done if summary.summarizer is not None), self.name),
        )


def _share(budget: int, part: Request, whole: Request) -> int:
    return max(1, budget * part.tokens // max(1, whole.tokens) - _BETWEEN)


def _sum(usages: Iterator[Payload | None]) -> Payload | None:
    """Sums the integers by name. Leaves out all other values, which cannot be added."""
    given = [usage for usage in usages if usage]
    sums = Sums[str]()
    for name, value in chain.from_iterable(usage.items() for usage in given):
        if type(value) is int:
            sums[name] += value
    return dict(sums) if given else None


def _all(values: Sequence[Payload | None]) -> Payload | None:
    return {"parts": [value or {} for value in values]} if any(values) else None
