"""From the ledger's rows to the values that callers get."""

from __future__ import annotations

from typing import Any

from compaction_store.models import Message, Thread
from compaction_store.payload import decode, decode_object


def message(row: tuple[Any, ...]) -> Message:
    seq, pos, role, text, count, created_at, meta, redacted_pos = row
    return Message(
        seq,
        pos,
        role,
        None if text is None else decode(text),
        count,
        created_at,
        None if meta is None else decode(meta),
        redacted_pos is not None,
        text,
    )


def thread(row: tuple[Any, ...]) -> Thread:
    thread_id, metadata, *rest = row
    return Thread(thread_id, decode_object(metadata), *rest)
