"""Writes and recognizes the line that replaces a cleared tool result."""

from __future__ import annotations

import re

_LINE = re.compile(r'"?\[Result of .* cleared: [\d,]+ tokens, seqs? [\d,]')
_LONGEST_TOOL = 100


def cleared(tool: str, tokens: int, place: str) -> str:
    """Returns the line for a result with a number of tokens. `place` names the seqs of the original."""
    return f"[Result of {tool[:_LONGEST_TOOL]} cleared: {tokens:,} tokens, {place}]"


def is_cleared(text: str) -> bool:
    """Returns whether a text is the line that replaces a cleared tool result, possibly as a JSON string."""
    return _LINE.match(text) is not None
