"""The tokens of model calls, as reported by the APIs of Anthropic and OpenAI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Usage(NamedTuple):
    """The input tokens of a call, as the model's API reported them.

    `fresh` tokens were neither read from the API's cache nor written to it.
    """

    fresh: int
    cache_read: int
    cache_write: int


@dataclass
class SummarizerUse:
    """The tokens that summarizers read and wrote, as they reported them.

    `without_usage` counts the calls of models that reported no tokens, so their cost is unknown.
    """

    attempts: int = 0
    without_usage: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def add(self, usage: Mapping[str, Any] | None, *, by_model: bool = True) -> None:
        self.attempts += 1
        given = usage_of({"usage": usage})
        written = 0 if usage is None else sum(_figure(usage, name) for name in ("output_tokens", "completion_tokens"))
        if by_model and given is None and not written:
            self.without_usage += 1
        if given is not None:
            self.input_tokens += given.fresh
            self.cache_read += given.cache_read
            self.cache_write += given.cache_write
        self.output_tokens += written

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.cache_read + self.cache_write + self.output_tokens


def usage_of(message: Mapping[str, Any]) -> Usage | None:
    """Returns the input tokens that a reply, or the meta of a reply, reports. Reads Anthropic's and OpenAI's fields."""
    given = message.get("usage")
    if not isinstance(given, Mapping):
        return None
    if "prompt_tokens" in given or "input_tokens_details" in given:
        whole = _figure(given, "prompt_tokens") or _figure(given, "input_tokens")
        details = given.get("prompt_tokens_details", given.get("input_tokens_details"))
        read = min(whole, _figure(details, "cached_tokens")) if isinstance(details, Mapping) else 0
        found = Usage(whole - read, read, 0)
    else:
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        found = Usage(*(_figure(given, name) for name in names))
    return found if sum(found) else None


def _figure(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if type(value) is int and value > 0 else 0
