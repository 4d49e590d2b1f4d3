"""From the ledger's rows to the values that callers get."""

from __future__ import annotations

from typing import Any

from compaction_store import documents
from compaction_store.models import Message, Thread


def message(row: tuple[Any, ...]) -> Message:
    seq, pos, role, text, count, created_at, meta_text, redacted_pos = row
    payload, fault = (None, None) if text is None else documents.parsed("payload", text)
    meta, meta_fault = (None, None) if meta_text is None else documents.parsed("meta", meta_text)
    return Message(
        seq, pos, role, payload, count, created_at, meta, redacted_pos is not None, text, fault or meta_fault
    )


def thread(row: tuple[Any, ...]) -> Thread:
    (
        thread_id, text, created_at, last_seq, last_number, last_pos, view_tokens, last_at, head, erased_pos,
    ) = row  # fmt: skip
    metadata, fault = documents.parsed("metadata", text)
    return Thread(
        thread_id, metadata or {}, created_at, last_seq, last_number, last_pos, view_tokens, last_at, head, erased_pos,
        fault,
    )  # fmt: skip
