"""How many tokens a message is taken to have. The counter's name is stored beside every figure it gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from compaction_store.models import Payload

BY_CALLER = "caller"


class Counter(NamedTuple):
    """A counter is a name and a function; the name is what an auditor needs to count again."""

    name: str
    tokens: Callable[[Payload, int], int]


def bytes_over_four() -> Counter:
    """A quarter of the message's bytes as JSON, rounded up: no tokenizer, no tables, no surprises."""
    return Counter("bytes/4", lambda _payload, size: (size + 3) // 4)


def from_callable(count: Callable[[Payload], int]) -> Counter:
    """A counter from any callable that is given a message and returns its tokens."""
    name = getattr(count, "name", None) or getattr(count, "__qualname__", None) or type(count).__qualname__
    return Counter(str(name)[:100], lambda payload, _size: count(payload))
