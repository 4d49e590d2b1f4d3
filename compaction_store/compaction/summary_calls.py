"""Records the call of a summarizer: its name, model, settings and cost.

A failed call is recorded in the same way, because a refusal is billed too and an auditor must see which model refused.
The values come from the summarizer's result or error, or from its attributes `name`, `model`, `prompt` and `settings`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from compaction_store.arguments import name_of, storable_name
from compaction_store.compaction.summary_request import TrackedView
from compaction_store.errors import own_text
from compaction_store.language.secrets import FIELD, MASK
from compaction_store.messages import documents, encoding
from compaction_store.models import Payload, Summary
from compaction_store.models.vocabulary import MOST_BYTES

# A longer value, such as the definitions of an agent's tools, is recorded as its hash.
_LONGEST = 2000
_DEEPEST = 20
# Arguments of an SDK's call that are not settings of the model, or may hold credentials.
_NOT_SETTINGS = frozenset({"model", "messages", "input", "timeout", "extra_headers", "extra_query"})


class CallRecord:
    """The record of one call of a summarizer. Its clock starts when the object is created."""

    def __init__(self, summarizer: object, view: TrackedView | None = None) -> None:
        #: The whole view, for a summarizer that reads it.
        self.view = view
        self._name = name_of(summarizer, "summarizer")
        self._summarizer = summarizer
        self._start = time.monotonic()

    def summary(self, result: str | Summary) -> Summary:
        """Returns the result as a Summary, with the summarizer's name, model, prompt and settings, and the duration."""
        found = Summary(result) if isinstance(result, str) else result
        named = replace(
            found,
            summarizer=found.summarizer or self._name,
            model=found.model or self._attribute("model", str),
            prompt=self._attribute("prompt", str) if found.prompt is None else found.prompt,
            settings=self._attribute("settings", Mapping) if found.settings is None else found.settings,
            duration=time.monotonic() - self._start if found.duration is None else found.duration,
        )
        return recordable(named)

    def failed(self, error: Exception) -> Summary:
        """Describes a failed call. An exception's attribute `attempted` may hold a Summary with the cost."""
        known = getattr(error, "attempted", None)
        return self.summary(without_text(known) if isinstance(known, Summary) else Summary(""))

    def failure(self, error: Exception) -> Payload:
        """Describes a failed call for the record of the call that succeeded after it."""
        known = self.failed(error)
        parts = {
            "summarizer": known.summarizer, "model": known.model, "usage": known.usage, "settings": known.settings,
            "duration": known.duration,
        }  # fmt: skip
        present = {name: value for name, value in parts.items() if value is not None}
        # Keep the text only if it is this package's own, because errors of other code may quote messages.
        return {"type": type(error).__name__, "text": own_text(error)} | present

    def _attribute(self, name: str, kind: type) -> Any:
        value = getattr(self._summarizer, name, None)
        return value if isinstance(value, kind) else None


def recordable(summary: Summary) -> Summary:
    """Returns a summary whose fields can be stored. Values that cannot be stored are converted or left out."""
    return replace(
        summary,
        model=(storable_name(summary.model) or None) if isinstance(summary.model, str) else None,
        prompt=_short(_storable(summary.prompt), MOST_BYTES["prompt"]),
        settings=settings(summary.settings) if isinstance(summary.settings, Mapping) else None,
        usage=_storable(summary.usage),
        provider=_storable(summary.provider),
        coverage=_storable(summary.coverage),
        duration=_storable(summary.duration),
        summarizer=storable_name(summary.summarizer) if isinstance(summary.summarizer, str) else None,
    )


def without_text(summary: Summary) -> Summary:
    """Returns the part of a summary that a record keeps if the summary was not applied."""
    return replace(summary, text="", replacement=None)


def settings(parameters: Mapping[str, Any]) -> Payload:
    """Returns the settings of a model request as JSON without credentials."""
    found = {name: _plain(value, 0) for name, value in parameters.items() if name not in _NOT_SETTINGS}
    return {name: MASK if FIELD.search(name) else _short(value) for name, value in found.items()}


def _storable(value: Any) -> Any:
    """Returns the value if a body may contain it, or else a copy in plain JSON."""
    try:
        is_valid = documents.fault("body", json.dumps({"": value})) is None
    except (TypeError, ValueError, RecursionError):
        is_valid = False
    return value if is_valid else _plain(value, 0)


def _short(value: Any, longest: int = _LONGEST) -> Any:
    """Returns the value, or the hash of its JSON if this is longer than `longest`."""
    text = json.dumps(value)
    return value if len(text) <= longest else f"sha256:{sha256(text.encode()).hexdigest()}"


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {str(name): MASK if FIELD.search(str(name)) else _plain(item, depth + 1) for name, item in value.items()}
    if depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    if depth < _DEEPEST and (found := encoding.of_sdk(value)) is not None:
        return _plain(found, depth + 1)
    return f"({type(value).__name__})"
