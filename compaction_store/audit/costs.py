"""Sums what summaries cost: calls, tokens and time by model, actor and week, from the usage in the records.

If a call failed and a fallback replaced it, its cost counts towards the model that failed, because the call was billed
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from compaction_store.jsonable import AsDict
from compaction_store.models import Compaction
from compaction_store.models.vocabulary import NO_ATTEMPTS, OUTCOMES

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


class Costs:
    """The sums of the costs of records. `over` yields the records unchanged and adds the cost of each."""

    def __init__(self) -> None:
        self._found: dict[_Key, Cost] = {}
        self.attempts = dict.fromkeys(OUTCOMES, 0)
        self._erased = self._without_summarizer = self._without_tokens = 0

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
            self._erased += 1
            return
        for failed in record.failed_before:
            names = (failed.get("summarizer"), failed.get("model"))
            cost = self._of(record, *(name if isinstance(name, str) else None for name in names))
            self._without_tokens += not cost.add(failed.get("usage"), failed.get("duration"), failed=True)
        if record.summarizer is None:
            self._without_summarizer += not record.failed_before
        # If all summarizers failed, `failed_before` already lists the last one.
        elif not (record.failed_before and record.outcome == "failed"):
            cost = self._of(record, record.summarizer, record.model)
            is_failed = record.outcome != "applied"
            self._without_tokens += not cost.add(record.usage, record.duration, failed=is_failed)

    @property
    def not_counted(self) -> dict[str, int]:
        """The counts that the sums leave out: attempts erased or without a summarizer, and calls without tokens."""
        return {
            "attempts_erased": self._erased, "attempts_without_summarizer": self._without_summarizer,
            "calls_without_tokens": self._without_tokens,
        }  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Returns the attempts by outcome, the sums, and the counts that these leave out."""
        return {"attempts": self.attempts, "costs": self.listed(), "not_counted": self.not_counted}

    def left_out(self) -> list[str]:
        """Says what the sums leave out, in words."""
        erased, without, tokens = self.not_counted.values()
        return [
            *([f"the cost of {_counted(erased, 'attempt')}, which was erased with the record"] if erased else []),
            *([f"{_counted(without, 'attempt')} without a summarizer on record"] if without else []),
            *([f"the tokens of {_counted(tokens, 'call')} whose usage is not on record"] if tokens else []),
        ]

    def listed(self) -> list[dict[str, Any]]:
        names = ("week", "summarizer", "model", "actor")
        return [
            {name: part or None for name, part in zip(names, key, strict=True)}
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
        key = (f"{year}-W{week:02}", summarizer or "", model or "", record.actor or "")
        return self._found.setdefault(key, Cost())


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _count(counts: Mapping[str, Any], name: str) -> int:
    # The body of a record may contain any JSON, so the value may not be a count.
    value = counts.get(name)
    return value if type(value) is int and 0 <= value < _MOST else 0
