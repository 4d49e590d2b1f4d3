"""Formats the JSON that the commands print."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID

from compaction_store.jsonable import time_text


def encoded(value: Any) -> str:
    """Returns a value as compact JSON. If a text contains a lone surrogate, everything outside ASCII is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    return text if text.isascii() or _encodes(text) else json.dumps(value, separators=(",", ":"), default=_plain)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
