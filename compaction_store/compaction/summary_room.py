"""Computes the maximum number of tokens of a summary, and shortens longer summaries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from compaction_store.compaction import standing_orders
from compaction_store.compaction.asks import Ask
from compaction_store.compaction.standing_orders import Orders
from compaction_store.messages import framing
from compaction_store.messages.encoding import encode
from compaction_store.messages.framing import Role
from compaction_store.models import Payload, Summary
from compaction_store.tokens import MARK, Counter

# A frame's delimiter is made from the summary's hash, so two frames differ by a few tokens.
FRAMES_DIFFER_BY = 8
_MARK = f"\n{MARK} [shortened] {MARK}\n"
# A text that is cut to fewer tokens is not worth reading.
LEAST_TEXT = 8
_EMPTY: Payload = {"role": "user", "content": ""}


def most_tokens(ask: Ask, before: int) -> int | None:
    """Returns the maximum size of the summary of a span with `before` tokens; None if there is no limit."""
    most = None if "larger" in ask.allow else before - max(1, least_saving(ask.min_saving, before))
    return most if ask.room is None else min(ask.room, ask.room if most is None else most)


def text_tokens(ask: Ask, before: int, counter: Counter, standing: Orders) -> int | None:
    """Returns the maximum number of tokens to request from the summarizer; None if there is no limit."""
    most = most_tokens(ask, before)
    if most is None:
        return None
    frame = frame_tokens(counter, ask.span, standing) if ask.framed else counter.messages([_EMPTY])
    return max(1, min(most, most if ask.stated_room is None else ask.stated_room) - frame)


def count_encoded(counter: Counter, messages: Iterable[Payload]) -> int:
    """Counts messages as they would be stored. Raises InvalidMessage if a message cannot be stored."""
    return sum(counter.tokens(encoded.payload, encoded.size) for encoded in map(encode, messages))


def frame_tokens(counter: Counter, span: Sequence[int], standing: Orders = frozenset()) -> int:
    """Returns the largest number of tokens that a frame for a summary of the span can take."""
    start_seq, end_seq = span
    frame = framing.frame("-", start_seq, end_seq, orders="-" if standing else "")
    return counter.messages([frame]) + FRAMES_DIFFER_BY * (2 if standing else 1)


def least_saving(saving: float, before: int) -> int:
    """Returns `saving` in tokens. A float is a share of `before`."""
    return saving if isinstance(saving, int) else int(saving * before)


def cut(
    summary: Summary, span: tuple[int, int], role: Role, most: int, counter: Counter, standing: Orders = frozenset()
) -> tuple[Summary, tuple[Payload, ...]] | None:
    """Leaves out the middle of a summary, so that its framed message has at most `most` tokens.

    Returns the new summary and its message. Returns None if too little text would be left, or if the summary is a
    provider's own block, which cannot be altered.
    """
    if summary.replacement is not None:
        return None
    tokens = most - counter.messages([framing.frame("-", *span)])
    while tokens >= LEAST_TEXT:
        text = counter.cut(summary.text, tokens, "ends", _MARK)
        framed = standing_orders.framed(text, span, role, standing)
        excess = counter.messages([framed]) - most
        if excess <= 0:
            coverage = {**(summary.coverage or {}), "cut_to_tokens": counter.text(text)}
            return replace(summary, text=text, coverage=coverage), (framed,)
        tokens -= excess
    return None


def joined(
    texts: Sequence[str], span: tuple[int, int], role: Role, most: int, counter: Counter, standing: Orders = frozenset()
) -> tuple[Summary, tuple[Payload, ...]] | None:
    """Joins summaries. If they are too long together, cuts each to its share; None if too little would be left."""
    sizes = [counter.text(text) for text in texts]
    tokens = most - counter.messages([framing.frame("-", *span)])
    while tokens >= LEAST_TEXT:
        shares = [size * tokens // max(tokens, sum(sizes)) for size in sizes]
        parts = [counter.cut(text, share, "ends", _MARK) for text, share in zip(texts, shares, strict=True)]
        text = "\n\n".join(part for part in parts if part.strip())
        framed = standing_orders.framed(text, span, role, standing)
        excess = counter.messages([framed]) - most
        if text and excess <= 0:
            return Summary(text), (framed,)
        tokens -= max(1, excess)
    return None
