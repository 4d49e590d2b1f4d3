"""A thread as Markdown, for people: the messages, with each compaction and event where it was written.

A text of a message is in a fence that is longer than any run of backticks in it, with unsafe characters escaped. All
other words from the thread are in one line, after words of ours, with a backslash before each mark of Markdown. So no
text can end its fence, or be read as Markdown or HTML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape

from compaction_store.audit import words
from compaction_store.audit.safe_text import lines, named, shown
from compaction_store.jsonable import time_text
from compaction_store.models import Compaction, Element, Event, Message, Payload, Thread
from compaction_store.models.compactions import status_in_words
from compaction_store.models.messages import is_erased

# The marks that begin something inside a line, and those with which dialects recognize addresses and emoji.
_MARKS = re.compile(r"[\\`*_{}\[\]<>&#|~!$@]|:(?![ \d]|$)|(?<=www)\.", re.IGNORECASE)
_BACKTICKS = re.compile("`+")


def markdown(thread: Thread, entries: Iterable[Message | Compaction | Event]) -> Iterator[str]:
    """Yields the parts of the document. The entries must be in the order of their pos."""
    yield beginning(thread)
    for each in entries:
        yield from entry(each)


def beginning(thread: Thread) -> str:
    counts = f"{thread.last_seq:,} messages, {thread.last_number:,} compaction records, {thread.last_pos:,} entries.\n"
    return f"# Thread {_inline(named(thread.thread_id))}\n\n{counts}"


def entry(found: Message | Compaction | Event | Element) -> Iterator[str]:
    """Yields the parts for an entry of a thread, or for an element of a view."""
    yield "\n"
    if isinstance(found, Message):
        yield from _message(found)
    elif isinstance(found, Compaction):
        yield from _compaction(found)
    elif isinstance(found, Element):
        span = f"{found.kind} {found.number} of seqs {found.seq} to {found.end_seq}"
        yield f"## {found.seq}: {_inline(found.role or 'item') if found.kind is None else span}\n"
        for payload in found.messages:
            yield from _texts(payload)
    else:
        facts = {"Reason": found.reason, "Authority": found.authority}
        yield _block(f"Event at pos {found.pos}", f"{found.kind} {words.described(found)}", found, facts)


def _message(message: Message) -> Iterator[str]:
    by = "" if message.actor is None else f", by {message.actor}"
    yield f"## {message.seq}: {_inline(message.role or 'item')}\n\n{_inline(time_text(message.created_at) + by)}\n"
    payload = message.payload
    if payload is None or is_erased(payload):
        yield "\n*erased*\n" if message.redacted else f"\n*unreadable*: {_inline(message.fault or '')}\n"
    else:
        yield from _texts(payload)


def _texts(payload: Payload) -> Iterator[str]:
    for step, head, text in words.parts(payload)[0]:
        yield _fence(text) if step is None else _folded(head, text)


def _compaction(record: Compaction) -> Iterator[str]:
    span = "" if record.start_seq is None else f" of seqs {record.start_seq} to {record.end_seq}"
    sizes = "" if record.tokens_after is None else f", {record.tokens_before} to {record.tokens_after} tokens"
    facts = {
        "Reason": record.reason, "Authority": record.authority, "Callback": record.callback, "Model": record.model,
        "Revokes": record.revokes, "Error": (record.error or {}).get("type"),
    }  # fmt: skip
    yield _block(f"Compaction {record.number}", f"{record.kind}{span}, {status_in_words(record)}{sizes}", record, facts)
    for payload in record.replacement or ():
        yield _folded("what the view shows instead", words.said(payload))


def _block(head: str, what: str, entry: Compaction | Event, facts: Mapping[str, object]) -> str:
    """Returns a quoted block: who wrote the entry, and why."""
    by = f"{time_text(entry.created_at)}, actor {entry.actor or 'none'}, login {entry.login}"
    said = {name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items() if value}
    rows = [by, *(f"{name}: {value}" for name, value in said.items())]
    return f"> **{head}**: {_inline(what)}\n" + "".join(f">\n> {_inline(row)}\n" for row in rows)


def _folded(head: str, text: str) -> str:
    # Inside of the element, a blank line ends the HTML, so the fence is read as Markdown again.
    return f"\n<details><summary>{escape(shown(head))}</summary>\n{_fence(text)}\n</details>\n"


def _fence(text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    return "\n".join(["", fence, *lines(text), fence, ""])


def _inline(text: str) -> str:
    return _MARKS.sub(r"\\\g<0>", shown(" ".join(text.split())))
