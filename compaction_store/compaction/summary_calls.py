"""Records a summarizer's call: which summarizer and model, with which settings, at what cost.

A failed call is recorded in the same way: a refusal is billed, and an auditor asks which model refused.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from compaction_store.compaction.naming import name_of
from compaction_store.compaction.summary_request import TrackedView
from compaction_store.errors import SummarizerError, own_text
from compaction_store.models import Payload, Summary

# A longer value, such as the definitions of an agent's tools, is recorded as its hash.
_LONGEST = 2000
_DEEPEST = 20
# Arguments of an SDK's call that are not settings of the model, or may hold credentials.
_NOT_SETTINGS = frozenset({"model", "messages", "input", "timeout", "extra_headers", "extra_query"})
_SECRET = re.compile(
    r"(?:api|access|secret|private|auth)[_-]?key|(?:^|[_-])token$|secret|passw|authorization|credential|bearer",
    re.IGNORECASE,
)
_WITHHELD = "(withheld)"


class CallRecord:
    """One call of a summarizer. The clock starts when this is made."""

    def __init__(self, summarizer: object, view: TrackedView | None = None) -> None:
        #: The whole view, as far as the summarizer asks for it.
        self.view = view
        self._name = name_of(summarizer, "summarizer")
        model = getattr(summarizer, "model", None)
        self._model = model if isinstance(model, str) else None
        self._start = time.monotonic()

    def summary(self, result: str | Summary) -> Summary:
        """Returns the summarizer's result, with the name and duration filled in if it has none."""
        found = Summary(result) if isinstance(result, str) else result
        return replace(
            found,
            summarizer=found.summarizer or self._name,
            duration=self._seconds if found.duration is None else found.duration,
        )

    def failed(self, error: Exception) -> Summary:
        """Returns what is known of a failed call."""
        known = error.attempted if isinstance(error, SummarizerError) else None
        found = self.summary(known or Summary(""))
        return replace(found, model=found.model or self._model)

    def failure(self, error: Exception) -> Payload:
        """Returns a failed call as it is recorded with the call that succeeded after it."""
        # An error of other code may quote the messages.
        text = own_text(error)
        known = self.failed(error)
        parts = {
            "summarizer": known.summarizer, "model": known.model, "usage": known.usage, "settings": known.settings,
            "duration": known.duration,
        }  # fmt: skip
        present = {name: value for name, value in parts.items() if value is not None}
        return {"type": type(error).__name__, "text": text} | present

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._start


def without_text(summary: Summary) -> Summary:
    """Returns what a record keeps of a summary that was not applied."""
    return replace(summary, text="", replacement=None)


def settings(parameters: Mapping[str, Any]) -> Payload:
    """Returns the settings of a model request as JSON without credentials."""
    found = {name: _plain(value, 0) for name, value in parameters.items() if name not in _NOT_SETTINGS}
    return {name: _WITHHELD if _SECRET.search(name) else _short(value) for name, value in found.items()}


def _short(value: Any) -> Any:
    text = json.dumps(value)
    return value if len(text) <= _LONGEST else f"sha256:{sha256(text.encode()).hexdigest()}"


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {
            str(name): _WITHHELD if _SECRET.search(str(name)) else _plain(item, depth + 1)
            for name, item in value.items()
        }
    if depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    return f"({type(value).__name__})"
