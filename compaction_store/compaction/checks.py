"""The base class of all checks of a summary, by rules that need no model.

A check asks questions about a summary, called probes, and says which of them failed. `checked_summary` then asks the
summarizer for one repair, if it can repair, and appends lines with the items that are still missing. The checks
themselves are in `compaction_store.checks`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import Counter as Tally
from collections.abc import Collection, Iterable
from typing import Any

from compaction_store.arguments import other
from compaction_store.errors import InvalidInput
from compaction_store.models.probe import Probe


class Check(ABC):
    """The base class of all checks. If a `strict` check fails, the summary is rejected and the span stays unchanged.

    To write your own check, subclass this class. Its method `probes` returns the questions with their answers. A
    question that failed has `kept=False`.

    `probes` must not be async. On an event loop it runs in a thread, so it may take long. If it raises an error, the
    record names the error's type, and the summary has not passed.
    """

    def __init__(self, *, strict: bool = False) -> None:
        if not isinstance(strict, bool):
            raise InvalidInput(f"strict must be True or False{other(strict)}")
        self.strict = strict

    @property
    def name(self) -> str:
        """The name of the check in records."""
        return type(self).__name__

    @abstractmethod
    def probes(self, span: Any, text: str) -> Iterable[Probe]:
        """Returns the questions, answered as if `text` were the summary of the span."""

    def passes(self, asked: int, lost: int) -> bool:
        """Returns whether a summary passes, given the numbers of questions and of failures."""
        return lost == 0 <= asked

    def __repr__(self) -> str:
        return f"{self.name}(strict=True)" if self.strict else f"{self.name}()"


def check_checks(checks: object) -> tuple[Check, ...]:
    """Checks the option `checks`, and returns it as a tuple."""
    given = tuple(checks) if isinstance(checks, Collection) and not isinstance(checks, str) else None
    if given is None or not all(isinstance(one, Check) for one in given):
        raise InvalidInput(f"checks must be a sequence of checks such as KeepsOrders(){other(checks)}")
    waiting = [one.name for one in given if _is_async(one.probes)]
    if waiting:
        raise InvalidInput(f"checks must be synchronous, and the probes of {', '.join(waiting)} are async")
    twice = [name for name, times in Tally(one.name for one in given).items() if times > 1]
    if twice:
        raise InvalidInput(f"checks must have each check only once, but {', '.join(twice)} is given several times")
    return given


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
