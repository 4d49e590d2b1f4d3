"""Sets the cache breakpoints of a request to Anthropic's Messages API, which allows four.

Two are at the end of the tools and of the system prompt. Two are in the messages: after the last summary and at the
end. A caller's own breakpoints in the tools or the system prompt take the place of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compaction_store.api_rules.anthropic import marks_in
from compaction_store.errors import InvalidInput
from compaction_store.messages.parts import row_of
from compaction_store.models import Payload

_MARK = "cache_control"
_IN_MESSAGES = 2


def marked(parts: Sequence[Payload], cache: str) -> list[Payload]:
    """Returns the parts with a breakpoint at the last part that can have one."""
    found = list(parts)
    for place in range(len(found) - 1, -1, -1):
        if _can_be_marked(found[place]):
            found[place] = with_mark(found[place], cache)
            break
    return found


def with_mark(part: Payload, cache: str) -> Payload:
    return {**part, _MARK: {"type": "ephemeral"} if cache == "5m" else {"type": "ephemeral", "ttl": cache}}


def without_mark(block: Payload) -> Payload:
    """Returns a block without its own breakpoint and those of the blocks in it."""
    if not marks_in([block]):
        return block
    block = {name: value for name, value in block.items() if name != _MARK}
    if isinstance(inner := block.get("content"), list):
        block["content"] = [without_mark(part) if isinstance(part, dict) else part for part in inner]
    return block


def _can_be_marked(part: Payload) -> bool:
    shape = row_of(part).anthropic
    # A tool has no type of a block. A tool that is loaded later cannot have a breakpoint.
    return not part.get("defer_loading") and (shape is None or _MARK in shape.known)


def set_in_messages(
    contents: Sequence[list[Payload]], after_summary: tuple[int, int] | None, cache: str | None
) -> None:
    """Sets the breakpoints in the blocks of the messages.

    `after_summary` has the indexes of the message and of the block. Without `cache`, keeps the last two breakpoints
    that the messages have.
    """
    places = [(m, b) for m, blocks in enumerate(contents) for b in range(len(blocks))]
    if cache is None:
        kept = 0
        for message, block in reversed(places):
            kept += len(marks_in([contents[message][block]]))
            if kept > _IN_MESSAGES:
                contents[message][block] = without_mark(contents[message][block])
        return
    for message, number in places:
        contents[message][number] = without_mark(contents[message][number])
    last = next((place for place in reversed(places) if _can_be_marked(contents[place[0]][place[1]])), None)
    for place in {after_summary, last} - {None}:
        if place is not None and _can_be_marked(contents[place[0]][place[1]]):
            contents[place[0]][place[1]] = with_mark(contents[place[0]][place[1]], cache)


def check(tools: Any, system: Any, cache: str) -> None:
    """Checks that a caller's own breakpoints can be sent together with those that are set."""
    own = [*marks_in(tools), *marks_in(system)]
    if len(own) > _IN_MESSAGES:
        raise InvalidInput(f"with cache, tools and system must have at most 2 cache breakpoints, not {len(own)}")
    if cache == "1h" and any(not isinstance(mark, dict) or mark.get("ttl") != "1h" for mark in own):
        raise InvalidInput("a breakpoint in tools or system must have the ttl '1h' with cache='1h', not a shorter one")
