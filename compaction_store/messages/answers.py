"""Takes an API's whole answer apart: the objects that the SDKs return, and the same as dicts.

An answer of OpenAI's chat API has its message in a choice, and one of the Responses API has a list of items. An answer
of Anthropic's API is a message already. Answers of other libraries are recognized by the same fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compaction_store.errors import InvalidMessage

_COUNTS = (
    "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens", "prompt_tokens",
    "completion_tokens",
)  # fmt: skip


def field(value: Any, name: str) -> Any:
    """Returns a field of an SDK's object or of a dict, or None."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def unwrapped(given: Any) -> list[Any] | None:
    """Returns the messages of an API's whole answer, or None if the argument is not a whole answer."""
    if (type(given) is dict and "role" in given) or isinstance(given, type) or field(given, "role") is not None:
        return None
    if isinstance(choices := field(given, "choices"), list):
        return [_only(choices)]
    if field(given, "object") == "response" and isinstance(items := field(given, "output"), list):
        if not items:
            raise InvalidMessage("a message must be an answer with at least one item in its output, not with none")
        return list(items)
    return None


def _only(choices: list[Any]) -> Any:
    if len(choices) != 1:
        raise InvalidMessage(
            f"a message must be an answer with one choice, not with {len(choices)}; append one of its messages, such as"
            " answer.choices[0].message"
        )
    message = field(choices[0], "message")
    if message is None:
        raise InvalidMessage("a message must be a whole answer, not a piece of a stream; append the accumulated answer")
    return message


def usage_of(reply: Any, *, is_whole: bool = False) -> dict[str, Any] | None:
    """Returns the usage of a reply as meta, unless the message that is stored has it itself."""
    if isinstance(reply, Mapping) and not is_whole:
        return None
    usage = field(reply, "usage")
    counts = {name: count for name in _COUNTS if type(count := field(usage, name)) is int}
    return {"usage": counts} if counts else None
