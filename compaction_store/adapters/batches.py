"""Splits messages into appends of a size that the store accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from compaction_store.messages.encoding import MAX_BATCH, MAX_BATCH_BYTES, encode


def batches(payloads: Sequence[Any]) -> Iterator[slice]:
    """Yields slices of the messages, each small enough for one append."""
    start = size = 0
    for place, payload in enumerate(payloads):
        own = encode(payload).size
        if place > start and (place - start == MAX_BATCH or size + own > MAX_BATCH_BYTES):
            yield slice(start, place)
            start, size = place, 0
        size += own
    if start < len(payloads):
        yield slice(start, len(payloads))
