"""Converts rows of the database to values of `models`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compaction_store.arguments import about
from compaction_store.errors import Unreadable
from compaction_store.messages import documents
from compaction_store.models import ComparedPart, Comparison, Element, Message, Outline, Part, Payload, Thread
from compaction_store.models.messages import Erased, shown
from compaction_store.models.outlines import outlined
from compaction_store.rendering.view import View


def message(row: tuple[Any, ...]) -> Message:
    seq, pos, role, text, count, created_at, meta_text, redacted_pos, actor, login, *_ = row
    payload, fault = (None, None) if text is None else documents.parsed("payload", text)
    meta, meta_fault = (None, None) if meta_text is None else documents.parsed("meta", meta_text)
    return Message(
        seq, pos, role, payload, count, created_at, meta, redacted_pos is not None, text, fault or meta_fault,
        actor, login,
    )  # fmt: skip


def thread(row: tuple[Any, ...]) -> Thread:
    (
        thread_id, text, created_at, last_seq, last_number, last_pos, view_tokens, last_at, head, erased_pos, uid,
        hidden_seq, unknown_pos, last_message_at,
    ) = row  # fmt: skip
    metadata, fault = documents.parsed("metadata", text)
    return Thread(
        thread_id, metadata or {}, created_at, last_seq, last_number, last_pos,
        view_tokens if unknown_pos is None else None, last_at, head, erased_pos, uid, hidden_seq, unknown_pos,
        last_message_at, fault,
    )  # fmt: skip


def view(thread_id: str, rows: Sequence[tuple[Any, ...]]) -> View:
    """Makes a view from its rows, which are in the order of seq. Every thread's view has at least one row."""
    if not rows:
        raise Unreadable(f"the thread has no messages; run verify{about(thread_id)}")
    elements = []
    for _, seq, end_seq, number, own_pos, text, tokens, created_at, kind, callback, _, _ in rows:
        if text is None:
            messages: tuple[Payload, ...] = (Erased(),)
        elif number is None:
            messages = (_read("payload", text, f"seq {seq}", thread_id),)
        else:
            messages = _replacement(text, number, thread_id)
        elements.append(Element(seq, end_seq, own_pos, messages, tokens, number, created_at, kind, callback))
    return View(thread_id, rows[0][0], tuple(elements), head=rows[0][10])


def _replacement(text: str, number: int, thread_id: str) -> tuple[Payload, ...]:
    found = _read("body", text, f"compaction {number}", thread_id).get("replacement")
    if type(found) is not list or any(type(message) is not dict for message in found):
        raise _unreadable("the body's replacement is not a list of JSON objects", f"compaction {number}", thread_id)
    return tuple(found)


def _read(kind: documents.Kind, text: str, what: str, thread_id: str) -> Payload:
    found, fault = documents.parsed(kind, text)
    if found is None:
        raise _unreadable(fault or "", what, thread_id)
    return found


def _unreadable(fault: str, what: str, thread_id: str) -> Unreadable:
    return Unreadable(f"{what} cannot be read: {fault}; run verify{about(thread_id)}")


def outline(
    thread_id: str, rows: Sequence[tuple[Any, ...]], span: tuple[int | None, int | None] = (None, None)
) -> Outline:
    """Makes an outline from the row about the view, or about a part of it, and the rows of the active records."""
    (at, last_seq, tokens, *_), *folds = rows
    start, end = span[0] or 1, min(span[1] or last_seq, last_seq)
    parts = outlined(end, [Part(start_seq, end_seq, number) for *_, number, start_seq, end_seq in folds], start)
    return Outline(thread_id, at, tokens, parts)


def comparison(thread_id: str, rows: Sequence[tuple[Any, ...]]) -> Comparison:
    """Makes a comparison from the row about two views, and the rows of their parts."""
    (at, tokens, count, changed, *_), *parts = rows
    return Comparison(
        thread_id, at, tokens, count, changed,
        tuple(
            ComparedPart(Part(seq, end_seq, number), is_left, is_right)
            for *_, seq, end_seq, number, is_left, is_right in parts
        ),
    )  # fmt: skip


def element(row: tuple[Any, ...]) -> Element:
    """Makes an element from its row. A stand-in is in place of a message that is erased or cannot be read."""
    seq, end_seq, number, pos, text, tokens, created_at, kind, callback, _ = row
    found = None if text is None else documents.parsed("payload" if number is None else "body", text)[0]
    messages: tuple[Payload, ...] = (shown(found),)
    if found is not None and number is not None:
        replacement = found.get("replacement")
        messages = tuple(each for each in replacement if type(each) is dict) if type(replacement) is list else ()
    return Element(seq or 0, end_seq or 0, pos, messages, tokens or 0, number, created_at, kind, callback)
