"""Joins consecutive messages of one role, for chat templates that demand that users and the assistant take turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from compaction_store.models import Payload

BEGINNING = "(The conversation begins here.)"
_ROLES = frozenset({"system", "developer", "user", "assistant"})
# A message with one of these fields is followed by results, or has content that cannot be joined.
_ENDS = ("tool_calls", "function_call", "audio")
_JOINABLE = frozenset({"role", "content", "name", "refusal", "tool_calls", "function_call"})


def joined(messages: Iterable[Payload], text_part: str) -> list[Payload]:
    """Joins consecutive messages of one role and name, and begins with the user if the assistant's message comes first.

    `text_part` is the type of a text in a list of parts. Items of Responses with other fields, such as an id, stay as
    they are.
    """
    found: list[Payload] = []
    for message in messages:
        if found and _fit(found[-1], message):
            found[-1] = both(found[-1], message, text_part)
        else:
            found.append(message)
    for place, message in enumerate(found):
        if message.get("role") not in ("system", "developer"):
            if message.get("role") == "assistant":
                found.insert(place, {"role": "user", "content": BEGINNING})
            break
    return found


def _fit(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    role = one.get("role")
    if role not in _ROLES or other.get("role") != role or one.get("name") != other.get("name"):
        return False
    return _JOINABLE.issuperset(one.keys() | other.keys()) and not any(one.get(name) for name in _ENDS)


def both(one: Payload, other: Payload, text_part: str) -> Payload:
    """Joins two messages of one role."""
    contents = [content for message in (one, other) for content in _contents(message)]
    content: Any = None
    if contents and all(isinstance(each, str) for each in contents):
        content = "\n\n".join(contents)
    elif contents:
        lists = ([{"type": text_part, "text": each}] if isinstance(each, str) else each for each in contents)
        content = [part for parts in lists for part in parts]
    found = {**one, **other, "content": content}
    found.pop("refusal", None)
    return found


def _contents(message: Mapping[str, Any]) -> Iterable[Any]:
    """Yields the content of a message, and its refusal, which is text too."""
    return [each for each in (message.get("content"), message.get("refusal")) if each]


# ---- pairs of calls and results, by the rule of `tool_pairs`: the nearest earlier unanswered call with the same id


NO_RESULT = "(There is no result: the call was not answered.)"


class Pairs(NamedTuple):
    """The result of pairing. `answers` maps the position of a call to the position of its result.

    `orphans` has the positions of results without a call.
    """

    answers: dict[int, int]
    orphans: list[int]


def paired(steps: Iterable[tuple[int, Hashable, bool]]) -> Pairs:
    """Pairs steps. Each step is a position, an id, and whether the step is a call. The steps must be in order."""
    waiting: dict[Hashable, list[int]] = defaultdict(list)
    pairs = Pairs({}, [])
    for place, name, is_call in steps:
        if is_call:
            waiting[name].append(place)
        elif calls := waiting[name]:
            pairs.answers[calls.pop()] = place
        else:
            pairs.orphans.append(place)
    return pairs
