"""Tells what the package itself wrote into a view or a summary from what was said.

These are the seqs of a line of a state summary, the label of a line that a check appended, the line for a cleared tool
result or for messages that were left out, the frame of a summary, and the mark where a text was cut. The names and
figures in them are in no message, so whatever compares a summary with its sources must not take them for inventions.
"""

from __future__ import annotations

import re

from compaction_store.module_data import ModuleData
from compaction_store.tokens import MARK

_OWN = re.compile(ModuleData(__file__).pattern("own"), re.MULTILINE)
# Between a name and the mark there may be white space, and signs that end no name, as in "49.…" of "49.json".
_EDGE = r"[\s.,:@$~+=&?%/\\-]{0,8}"
_CUT_AFTER = re.compile(rf"{_EDGE}{MARK}")
_CUT_BEFORE = re.compile(rf"{MARK}{_EDGE}\Z")
_NEAR = 9
# The most pieces of one text that are looked for in its sources.
MOST_PIECES = 200


def blanked(text: str, start_seq: int, end_seq: int) -> str:
    """Returns a text with spaces for what the package itself wrote, unless its seqs are outside of the span."""
    if "[" not in text and "Notes on" not in text:
        return text

    def blank(found: re.Match[str]) -> str:
        seqs = [int(seq.replace(",", "") or 0) for seq in found.groupdict().values() if seq is not None]
        return " " * len(found[0]) if all(start_seq <= seq <= end_seq for seq in seqs) else found[0]

    return _OWN.sub(blank, text)


def piece_at_cut(text: str, start: int, end: int) -> re.Pattern[str] | None:
    """Returns a pattern for what a name was before the cut, as "ORD-7001" for "ORD-70…"; None without a mark."""
    piece = text[start:end].strip()
    if not piece or MARK not in text[max(0, start - _NEAR) : end + _NEAR]:
        return None
    if _CUT_AFTER.match(text, end) is not None:
        return re.compile(rf"(?<!\w){re.escape(piece)}")
    if _CUT_BEFORE.search(text[max(0, start - _NEAR) : start]) is not None:
        return re.compile(rf"{re.escape(piece)}(?!\w)")
    return None
