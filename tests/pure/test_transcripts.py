"""A transcript in Markdown has every text in its own fence, whatever the text is."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from compaction_store.audit import transcript
from compaction_store.audit.safe_text import lines, shown
from compaction_store.models import Compaction, Event, Message, Thread

_AT = datetime(2026, 5, 1, tzinfo=UTC)
_UID = UUID(int=7)
_PIECES = (
    "`", "``", "```", "`````", "~~~", "~~~~~~", "\n", "\n\n", "\r", "\r\n", "\t", "    ", "   ```", "> ", "# ", "- ",
    "1. ",
    "---", "===", "***", "| a | b |\n|---|---|", "<!--", "-->", "<script>alert(1)</script>", "</details>", "<details>",
    "</summary>", "<b>", "<![CDATA[", "<?php", "&amp;", "&#10;", "[a](javascript:alert(1))", "![x](http://a.b/c.png)",
    "<http://a.b>", "http://a.b", "a@b.example", "[a]: http://x", "[^1]", "$x$", ":smile:", "\\", "\\`", "*a*", "__b__",
    "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x00", "\x1b[2J", "\x7f", "\u202e", "\u2066", "\u200b", "\ufeff",
    "é", "中文", "😀", "pelican", "{{ 1 }}", "---\ntitle: x\n---\n", "```json\n", "\n```\n", "\n~~~\n", "\n````\n",
)  # fmt: skip


def hostile(chance: random.Random, most: int = 12) -> str:
    pieces = [chance.choice(_PIECES) * chance.choice((1, 1, 1, 2, 9)) for _ in range(chance.randrange(1, most))]
    return "".join(pieces)


def thread(chance: random.Random) -> tuple[Thread, list[Message | Compaction | Event], list[str]]:
    """Returns a thread, its entries, and the texts that must be found."""
    entries: list[Message | Compaction | Event] = []
    texts: list[str] = []
    seq = 0
    for pos in range(1, chance.randrange(2, 12)):
        kind = chance.randrange(5)
        if kind < 3:
            seq += 1
            text = hostile(chance)
            payload: dict[str, Any] = {"role": chance.choice(("user", "`<b>", "# x")), "content": text}
            if kind == 1:
                call = {"type": "tool_use", "id": "c", "name": text, "input": {"path": hostile(chance)}}
                payload = {"role": "assistant", "content": [{"type": "text", "text": text}, call]}
            elif kind == 2:
                result = {"type": "tool_result", "tool_use_id": "c", "content": text}
                payload = {"role": "user", "content": [result]}
            texts.append(text)
            role = payload["role"]
            entries.append(Message(seq, pos, role, payload, 1, _AT, None, False, "", None, hostile(chance), "app"))
        elif kind == 3:
            text, reason = hostile(chance), hostile(chance)
            body: dict[str, Any] = {
                "summary_text": text,
                "replacement": [{"role": "user", "content": text}],
                "reason": reason,
            }
            texts.append(text)
            entries.append(
                Compaction(
                    "t",
                    1,
                    pos,
                    _AT,
                    "summary",
                    "applied",
                    1,
                    2,
                    9,
                    3,
                    2,
                    (),
                    _UID,
                    hostile(chance),
                    "manual",
                    hostile(chance),
                    "app",
                    hostile(chance),
                    "c",
                    None,
                    None,
                    None,
                    None,
                    body,
                    _UID,
                )
            )
        else:
            body = {"reason": hostile(chance), "authority": {"policy": hostile(chance)}}
            entries.append(Event("t", pos, "hold", False, hostile(chance), "app", _AT, body))
    name = hostile(chance, 4)
    made = Thread(name, {}, _AT, seq, 1, len(entries), 1, _AT, b"", None, _UID)
    return made, entries, texts


def tokens(found: list[Token]) -> Iterator[Token]:
    for token in found:
        yield token
        yield from tokens(token.children or [])


@pytest.mark.parametrize("dialect", ["commonmark", "gfm-like"])
@pytest.mark.parametrize("seed", range(100))
def test_a_hostile_thread_breaks_no_fence(seed: int, dialect: str) -> None:
    made, entries, texts = thread(random.Random(seed))
    document = "".join(transcript.markdown(made, entries))
    parsed = list(tokens(MarkdownIt(dialect, {"html": True, "linkify": False}).parse(document)))
    fences = [token.content.removesuffix("\n") for token in parsed if token.type == "fence"]
    for text in texts:
        safe = "\n".join(lines(text))
        assert any(fence == safe or fence.endswith(safe) for fence in fences), ascii(text)
    # Only the elements of the transcript itself are there.
    html = [token.content.strip() for token in parsed if token.type.startswith("html")]
    assert all(re.fullmatch(r"</details>|<details><summary>[^<>]*</summary>", each) for each in html), html
    assert html.count("</details>") == len(html) / 2
    kinds = {token.type for token in parsed}
    assert kinds <= {
        "heading_open", "heading_close", "inline", "text", "text_special", "paragraph_open", "paragraph_close", "fence",
        "html_block", "blockquote_open", "blockquote_close", "strong_open", "strong_close",
    }  # fmt: skip
    heads = sum(token.type == "heading_open" for token in parsed)
    assert heads == 1 + sum(isinstance(entry, Message) for entry in entries)
    quotes = sum(token.type == "blockquote_open" for token in parsed)
    assert quotes == sum(not isinstance(entry, Message) for entry in entries)
    said = ["".join(child.content for child in token.children or []) for token in parsed if token.type == "inline"]
    for entry in entries:
        if not isinstance(entry, Message) and entry.reason and entry.reason.strip():
            assert f"Reason: {shown(' '.join(entry.reason.split()))}" in said


def test_no_character_of_a_document_is_hidden() -> None:
    for seed in range(100):
        made, entries, _ = thread(random.Random(seed))
        for part in transcript.markdown(made, entries):
            assert all("\n".join(lines(line)) == line for line in part.split("\n")), ascii(part)


def test_erased_and_unreadable_messages_are_said() -> None:
    erased = Message(1, 1, "user", None, 1, _AT, None, True, None, None, None, "app")
    unreadable = Message(2, 2, "user", None, 1, _AT, None, False, "{", "the payload is no JSON", None, "app")
    made = Thread("t", {}, _AT, 2, 0, 2, 1, _AT, b"", None, _UID)
    text = "".join(transcript.markdown(made, [erased, unreadable]))
    assert "\n*erased*\n" in text
    assert "\n*unreadable*: the payload is no JSON\n" in text
