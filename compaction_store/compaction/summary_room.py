"""How much a summary may take, and how one that takes more is shortened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compaction_store.messages import framing
from compaction_store.messages.framing import Role
from compaction_store.models import Payload, Summary
from compaction_store.tokens import MARK, Counter

# A frame's letters come from the summary's hash, so that two frames differ by a few tokens.
FRAMES_DIFFER_BY = 8
_MARK = f"\n{MARK} [shortened] {MARK}\n"
# Of a text that is cut to less than this, nothing is left that is worth reading.
LEAST_TEXT = 8


def frame_tokens(counter: Counter, span: Sequence[int]) -> int:
    """The most that a frame around a summary of the span may take."""
    start_seq, end_seq = span
    return counter.messages([framing.frame("-", start_seq, end_seq)]) + FRAMES_DIFFER_BY


def least_saving(saving: float, before: int) -> int:
    """What a share or a number of tokens comes to, of a span of so many tokens."""
    return saving if isinstance(saving, int) else int(saving * before)


def too_large(takes: int, before: int, most: int) -> str:
    """Why a summary is refused, in figures."""
    told = f"the summary takes {takes} tokens, what it stands for {before}"
    return told if takes >= before else f"{told}; {most} is the most it may take"


def cut(
    summary: Summary, span: Sequence[int], role: Role, most: int, counter: Counter
) -> tuple[Summary, tuple[Payload, ...]] | None:
    """The summary with its middle left out, and its framed message, in at most so many tokens.

    None where that leaves nothing to read, and for a provider's own block, which cannot be altered.
    """
    if summary.replacement is not None:
        return None
    start_seq, end_seq = span
    tokens = most - counter.messages([framing.frame("-", start_seq, end_seq)])
    while tokens >= LEAST_TEXT:
        text = counter.cut(summary.text, tokens, "ends", _MARK)
        framed = framing.frame(text, start_seq, end_seq, role)
        excess = counter.messages([framed]) - most
        if excess <= 0:
            coverage = {**(summary.coverage or {}), "cut_to_tokens": counter.text(text)}
            return replace(summary, text=text, coverage=coverage), (framed,)
        tokens -= excess
    return None


def joined(
    texts: Sequence[str], span: Sequence[int], role: Role, most: int, counter: Counter
) -> tuple[Summary, tuple[Payload, ...]] | None:
    """Several summaries as one, each cut to its share where they are too long together; None if nothing is left."""
    start_seq, end_seq = span
    sizes = [counter.text(text) for text in texts]
    tokens = most - counter.messages([framing.frame("-", start_seq, end_seq)])
    while tokens >= LEAST_TEXT:
        shares = [size * tokens // max(tokens, sum(sizes)) for size in sizes]
        parts = [counter.cut(text, share, "ends", _MARK) for text, share in zip(texts, shares, strict=True)]
        text = "\n\n".join(part for part in parts if part.strip())
        framed = framing.frame(text, start_seq, end_seq, role)
        excess = counter.messages([framed]) - most
        if text and excess <= 0:
            return Summary(text), (framed,)
        tokens -= max(1, excess)
    return None
