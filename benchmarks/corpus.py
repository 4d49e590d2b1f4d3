"""Messages as people and models write them: sentences of this repository's own documentation, cut at random places.

Random letters would neither compress nor count as text does.
"""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
# The page that a run writes is no part of what the next one reads.
_WRITTEN = "performance.md"
_USUAL = (450, 850)


@cache
def _prose() -> str:
    pages = sorted(page for page in DOCS.rglob("*.md") if page.name != _WRITTEN)
    lines = "\n".join(page.read_text(encoding="utf-8") for page in pages).splitlines()
    # Tables, headings and code are left out.
    return " ".join(line for line in lines if re.match(r"[A-Za-z][a-z]+ ", line))


def text(least: int, most: int) -> str:
    """So many characters, from one word to another."""
    prose = _prose()
    start = prose.index(" ", random.randrange(len(prose) - most - 100)) + 1
    return prose[start : start + random.randint(least, most)]


def message(number: int = 0, least: int = _USUAL[0], most: int = _USUAL[1]) -> dict[str, Any]:
    """A user's message or an assistant's, in turn: as JSON, 500 to 900 bytes where nothing else is asked for."""
    return {"role": "assistant" if number % 2 else "user", "content": text(least, most), "id": number}


def messages(count: int, least: int = _USUAL[0], most: int = _USUAL[1]) -> list[dict[str, Any]]:
    return [message(number, least, most) for number in range(count)]
