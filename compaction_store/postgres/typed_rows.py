"""Converts rows of the database to values of `models`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from compaction_store.arguments import about
from compaction_store.errors import NotConfigured, Unreadable
from compaction_store.messages import documents
from compaction_store.models import ComparedPart, Comparison, Element, FeedEntry, Message, Outline, Part, Thread
from compaction_store.models.messages import Erased, Payload, shown
from compaction_store.models.threads import outlined
from compaction_store.postgres.queries import functions as sql
from compaction_store.rendering.view import View
from compaction_store.sealing.seals import is_sealed, is_sealed_whole

# The functions that make thousands of values unpack their rows, because reading the fields by name takes longer.


def message(row: sql.ReplayRow | sql.NewestRow) -> Message:
    seq, pos, role, text, tokens, created_at, meta_text, redacted_pos, actor, login, *_ = row
    payload, fault = (None, None) if text is None else documents.parsed("payload", text)
    meta, meta_fault = (None, None) if meta_text is None else documents.parsed("meta", meta_text)
    # The class's own constructor does the same, but in Python.
    return tuple.__new__(Message, (
        seq, pos, role, payload, tokens, created_at, meta, redacted_pos is not None, text, fault or meta_fault, actor,
        login,
    ))  # fmt: skip


def thread(row: sql.ThreadRow) -> Thread:
    (
        thread_id, text, created_at, last_seq, last_number, last_pos, view_tokens, last_at, head, erased_pos, uid,
        hidden_seq, unknown_pos, last_message_at, subject,
    ) = row  # fmt: skip
    metadata, fault = (None, None) if text is None else documents.parsed("metadata", text)
    return Thread(
        thread_id, metadata or {}, created_at, last_seq, last_number, last_pos,
        view_tokens if unknown_pos is None else None, last_at, head, erased_pos, uid, hidden_seq, unknown_pos,
        last_message_at, subject, fault,
    )  # fmt: skip


def feed_entry(row: sql.FeedRow) -> FeedEntry:
    kind: documents.Kind = "payload" if row.type == "message" else "body"
    content, fault = (None, None) if row.content is None else documents.parsed(kind, row.content)
    meta, meta_fault = (None, None) if row.meta is None else documents.parsed("meta", row.meta)
    return FeedEntry(
        f"{row.xid}-{row.thread_uid}-{row.pos}-{row.entry.hex()}", cast("Any", row.type), row.thread_id, row.thread_uid,
        row.pos, row.created_at, row.actor, row.login, row.redacted, row.entry, json.loads(row.facts), content, meta,
        fault or meta_fault,
    )  # fmt: skip


def view(thread_id: str, rows: Sequence[sql.ElementRow]) -> View:
    """Makes a view from its rows, which are in the order of seq. Every thread's view has at least one row."""
    if not rows:
        raise Unreadable(f"the thread has no messages; run verify{about(thread_id)}")
    elements = []
    for _, seq, end_seq, number, pos, text, tokens, created_at, kind, callback, _, _ in rows:
        if text is None:
            messages: tuple[Payload, ...] = (Erased(),)
        elif number is None:
            messages = (_read("payload", text, f"seq {seq}", thread_id),)
        else:
            messages = _replacement(text, number, thread_id)
        made = seq or 0, end_seq or 0, pos, messages, tokens or 0, number, created_at, kind, callback
        elements.append(tuple.__new__(Element, made))
    return View(thread_id, rows[0].at_pos, tuple(elements), head=rows[0].head)


def _replacement(text: str, number: int, thread_id: str) -> tuple[Payload, ...]:
    found = _read("body", text, f"compaction {number}", thread_id).get("replacement")
    if type(found) is not list or any(type(message) is not dict for message in found):
        raise _unreadable("the body's replacement is not a list of JSON objects", f"compaction {number}", thread_id)
    return tuple(found)


def _read(kind: documents.Kind, text: str, what: str, thread_id: str) -> Payload:
    found, fault = documents.parsed(kind, text)
    if found is None:
        raise _unreadable(fault or "", what, thread_id)
    # Most messages are not sealed, and a look for the field is faster than a call.
    if "sealed" in found and (is_sealed_whole if kind == "payload" else is_sealed)(found):
        raise NotConfigured(f"{what} is sealed: open the store with seal=Keys(…){about(thread_id)}")
    return found


def _unreadable(fault: str, what: str, thread_id: str) -> Unreadable:
    return Unreadable(f"{what} cannot be read: {fault}; run verify{about(thread_id)}")


def outline(
    thread_id: str, rows: Sequence[sql.OutlineRow], span: tuple[int | None, int | None] = (None, None)
) -> Outline:
    """Makes an outline from the row about the view, or about a part of it, and the rows of the active records."""
    whole, *folds = rows
    start, end = span[0] or 1, min(span[1] or whole.last_seq, whole.last_seq)
    parts = outlined(end, [Part(fold.start_seq, fold.end_seq, fold.number) for fold in folds], start)
    return Outline(thread_id, whole.at_pos, whole.tokens, parts)


def comparison(thread_id: str, rows: Sequence[sql.CompareRow]) -> Comparison:
    """Makes a comparison from the row about two views, and the rows of their parts."""
    whole, *parts = rows
    compared = [ComparedPart(Part(row.seq, row.end_seq, row.number), row.is_left, row.is_right) for row in parts]
    return Comparison(thread_id, whole.at_pos, whole.tokens, whole.total, whole.changed, tuple(compared))


def element(row: sql.ElementsRow) -> Element:
    """Makes an element from its row. A stand-in is in place of a message that is erased or cannot be read."""
    is_message = row.number is None
    found = None if row.payload is None else documents.parsed("payload" if is_message else "body", row.payload)[0]
    messages: tuple[Payload, ...] = (shown(found),)
    if found is not None and not is_message:
        replacement = found.get("replacement")
        messages = tuple(each for each in replacement if type(each) is dict) if type(replacement) is list else ()
    return Element(
        row.seq or 0, row.end_seq or 0, row.pos, messages, row.tokens or 0, row.number, row.created_at, row.kind,
        row.callback,
    )  # fmt: skip
