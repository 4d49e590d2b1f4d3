"""Makes up long talks of users and assistants, some with tools. The same seed gives the same talks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from compaction_store.models import Payload

# The smallest and the largest number of words in a message. Each pair is for a third of the talks.
_WORDS = ((20, 60), (50, 120), (5, 180))
# The share of turns with a tool call, for the same thirds.
_TOOLS = (0.0, 0.0, 0.3)
_TURNS = 200
_NOUNS = [
    "order",
    "invoice",
    "ledger",
    "gateway",
    "refund",
    "parcel",
    "customer",
    "shelf",
    "batch",
    "warehouse",
    "report",
    "budget",
]
_VERBS = [
    "checks",
    "sends",
    "repeats",
    "misses",
    "books",
    "returns",
    "reserves",
    "closes",
    "counts",
    "moves",
    "names",
    "drops",
]
_RULES = ("Never call the customer on a Sunday.", "From now on, always name the parcel in your answer.")


def talks(count: int, seed: int = 0, turns: int = _TURNS) -> Iterator[tuple[str, list[Payload]]]:
    """Yields the name and the messages of each talk. Each turn has one message of each side."""
    for number in range(count):
        dice = random.Random(f"{seed}:{number}")
        kind = number % len(_WORDS)
        yield f"talk {number}", list(_talk(dice, turns, _WORDS[kind], _TOOLS[kind]))


def _talk(dice: random.Random, turns: int, size: tuple[int, int], tools: float) -> Iterator[Payload]:
    yield {"role": "system", "content": "You help in a warehouse. " + _prose(dice, 30)}
    for turn in range(turns):
        rule = f" {dice.choice(_RULES)}" if turn % 40 == 7 else ""
        yield {"role": "user", "content": _prose(dice, dice.randint(*size)) + rule}
        if dice.random() < tools:
            yield from _call(dice, turn, size)
        yield {"role": "assistant", "content": _prose(dice, dice.randint(*size))}


def _call(dice: random.Random, turn: int, size: tuple[int, int]) -> Iterator[Payload]:
    given = json.dumps({"parcel": _name(dice)})
    function = {"name": "find_parcel", "arguments": given}
    call: dict[str, Any] = {"id": f"call_{turn}", "type": "function", "function": function}
    yield {"role": "assistant", "content": "", "tool_calls": [call]}
    yield {"role": "tool", "tool_call_id": call["id"], "content": _prose(dice, 3 * dice.randint(*size))}


def _prose(dice: random.Random, count: int) -> str:
    """Returns sentences of about `count` words. Some have a name that occurs again in the talk."""
    said: list[str] = []
    while count > 0:
        name = f" {_name(dice)}" if dice.random() < 0.3 else ""
        said.append(f"The {dice.choice(_NOUNS)}{name} {dice.choice(_VERBS)} the {dice.choice(_NOUNS)} again today.")
        count -= 8
    return " ".join(said)


def _name(dice: random.Random) -> str:
    return f"PRC-{dice.randint(1000, 1300)}"
