"""The cost of summarizers: calls and tokens by model, actor and week, from the usage in the records.

If a call failed and a fallback replaced it, its cost counts towards the model that failed, because the call was billed
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compaction_store.cli.output import Column, figures, number

if TYPE_CHECKING:
    from compaction_store import Compaction

# The names that APIs give to input tokens, cached tokens included, and to output tokens.
_IN = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "prompt_tokens")
_OUT = ("output_tokens", "completion_tokens")
_MOST = 2**53
_Key = tuple[str, str, str, str]

COLUMNS: list[str | Column] = [
    "week", Column("summarizer", fold=True), Column("model", fold=True, optional=True),
    Column("actor", fold=True, optional=True), *figures("calls", "failed", "tokens in", "tokens out"),
]  # fmt: skip


@dataclass
class Cost:
    """The calls of one summarizer and model, for one actor, in one week."""

    calls: int = 0
    failed: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def add(self, usage: Any, *, failed: bool) -> None:
        counts: Mapping[str, Any] = usage if isinstance(usage, Mapping) else {}
        self.calls += _count(counts, "requests") if type(counts.get("requests")) is int else 1
        self.failed += failed
        self.tokens_in += sum(_count(counts, name) for name in _IN)
        self.tokens_out += sum(_count(counts, name) for name in _OUT)


class Costs:
    """The sums of the costs of records. `over` yields the records unchanged and adds the cost of each."""

    def __init__(self) -> None:
        self._found: dict[_Key, Cost] = {}

    def over(self, records: Iterable[Compaction]) -> Iterator[Compaction]:
        for record in records:
            self.add(record)
            yield record

    def add(self, record: Compaction) -> None:
        for failed in record.failed_before:
            names = (failed.get("summarizer"), failed.get("model"))
            self._of(record, *(name if isinstance(name, str) else None for name in names)).add(
                failed.get("usage"), failed=True
            )
        # If all summarizers failed, `failed_before` already lists the last one.
        if record.summarizer is not None and not (record.failed_before and record.outcome == "failed"):
            self._of(record, record.summarizer, record.model).add(record.usage, failed=record.outcome != "applied")

    def listed(self) -> list[dict[str, Any]]:
        names = ("week", "summarizer", "model", "actor")
        return [
            {name: part or None for name, part in zip(names, key, strict=True)} | vars(cost)
            for key, cost in sorted(self._found.items())
        ]

    def rows(self) -> list[tuple[str, ...]]:
        return [
            (
                one["week"], one["summarizer"] or "", one["model"] or "", one["actor"] or "", number(one["calls"]),
                number(one["failed"]), number(one["tokens_in"]), number(one["tokens_out"]),
            )
            for one in self.listed()
        ]  # fmt: skip

    def _of(self, record: Compaction, summarizer: str | None, model: str | None) -> Cost:
        year, week, _ = record.created_at.astimezone().isocalendar()
        key = (f"{year}-W{week:02}", summarizer or "", model or "", record.actor or "")
        return self._found.setdefault(key, Cost())


def _count(counts: Mapping[str, Any], name: str) -> int:
    # The body of a record may contain any JSON, so the value may not be a count.
    value = counts.get(name)
    return value if type(value) is int and 0 <= value < _MOST else 0
