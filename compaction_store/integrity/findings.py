"""Collects the findings of a walk. A finding about a message names the compactions that cover it. Pure."""

from __future__ import annotations

from dataclasses import replace

from compaction_store.models import Finding

MOST_FINDINGS = 1000
_MOST_RECORDS = 100
_RECORDS_NAMED = 3


class Findings(list[Finding]):
    """The findings in the order of the walk: at most `MOST_FINDINGS`, and then one that says that there are more."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: list[tuple[int, int]] = []
        self._spans: dict[int, list[tuple[int, int, int]]] = {}

    def add(self, pos: int | None, what: str, line: int | None = None) -> None:
        if len(self) < MOST_FINDINGS:
            self.append(Finding(pos, what, line))
        elif len(self) == MOST_FINDINGS:
            self.append(Finding(None, f"more than {MOST_FINDINGS} findings; the rest is not listed"))

    def in_message(self, first: int, seq: int) -> None:
        """Notes that the findings from the index `first` on concern the message with this seq."""
        self._messages += [(index, seq) for index in range(first, min(len(self), MOST_FINDINGS))]

    def folded_by(self, number: int, start: object, end: object) -> None:
        """Adds a compaction to the findings about messages in its span. The walk must have passed the span."""
        if type(start) is not int or type(end) is not int:
            return
        for index, seq in self._messages:
            if start <= seq <= end and len(spans := self._spans.setdefault(index, [])) < _MOST_RECORDS:
                spans.append((number, start, end))

    def listed(self) -> tuple[Finding, ...]:
        """Returns the findings. A finding about a message names the compactions that cover the message."""
        seqs = dict(self._messages)
        for index, spans in self._spans.items():
            names = [
                f"compaction {number} covers seqs {start} to {end}, of which seq {seqs[index]} is not as it was written"
                for number, start, end in spans[:_RECORDS_NAMED]
            ]
            if len(spans) > _RECORDS_NAMED:
                names.append(f"so do {len(spans) - _RECORDS_NAMED} more")
            found = self[index]
            numbers = tuple(number for number, _, _ in spans)
            self[index] = replace(found, what="; ".join((found.what, *names)), records=numbers)
        return tuple(self)
