"""Makes messages from this repository's documentation, cut at random places.

Random letters would be compressed and tokenized differently from real text.
"""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
# This page is not used, because a run writes it.
_WRITTEN = "results.md"
_USUAL = (450, 850)


@cache
def _prose() -> str:
    pages = sorted(page for page in DOCS.rglob("*.md") if page.name != _WRITTEN)
    lines = "\n".join(page.read_text(encoding="utf-8") for page in pages).splitlines()
    # Leave out tables, headings and code.
    return " ".join(line for line in lines if re.match(r"[A-Za-z][a-z]+ ", line))


def text(least: int, most: int) -> str:
    """Returns a text with a random number of characters between two limits, cut at words."""
    prose = _prose()
    start = prose.index(" ", random.randrange(len(prose) - most - 100)) + 1
    return prose[start : start + random.randint(least, most)]


def message(number: int = 0, least: int = _USUAL[0], most: int = _USUAL[1]) -> dict[str, Any]:
    """Returns a message of the user or the assistant, in turn. By default, it has 500 to 900 bytes as JSON."""
    return {"role": "assistant" if number % 2 else "user", "content": text(least, most), "id": number}


def messages(count: int, least: int = _USUAL[0], most: int = _USUAL[1]) -> list[dict[str, Any]]:
    return [message(number, least, most) for number in range(count)]
