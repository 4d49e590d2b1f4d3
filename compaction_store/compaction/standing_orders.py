"""Keeps the users' standing orders in force: frames them apart from the rest of a summary.

Only a sentence that a user wrote counts, word for word. A tool's result, a quotation, and the assistant's or the
summarizer's own words never count, so text of strangers cannot become an order. The orders in an earlier summary's
frame count again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from compaction_store.language.sentences import prose, sentences
from compaction_store.messages import framing
from compaction_store.models import Element, Payload
from compaction_store.models.state import PARTS, StateLine

# How a line of a summary may begin: with a list mark, the seq of a message and its speaker.
_HEAD = re.compile(r"\s*(?:[-*\u2022] )?(\[\d{1,19}\] user: )?")
# The heading of a state's orders, which is left out if all of them are binding.
_HEADING = f"## {PARTS['orders'].title}"
_QUOTES = "\"'`\u201c\u201d\u201e\u00ab\u00bb \u00a0"
_TEXTS = frozenset({"text", "input_text"})

Orders = frozenset[str]


def orders_in(elements: Iterable[Element], summary: str | None = None) -> Orders:
    """Returns the standing orders that the users wrote in some elements, or those of them that a summary may repeat."""
    flat = None if summary is None else " ".join(summary.split())
    return frozenset(
        order
        for element in elements
        for payload in element.messages
        for order in _of(payload, element.is_summary, flat)
    )


def _of(payload: Payload, is_summary: bool, flat: str | None) -> Iterator[str]:
    if is_summary:
        found = framing.parts_of(payload)
        for line in "" if found is None else found.orders.splitlines():
            text = StateLine.parse(line).text
            yield from map(_plain, _sentences(text[_head(text).end() :]))
    elif payload.get("role") == "user":
        # The patterns of languages are a large part of the package, and few stores summarize.
        from compaction_store.language import orders, words  # noqa: PLC0415

        content = payload.get("content")
        for text in [content] if isinstance(content, str) else _texts(content):
            # To compare sentences is much faster than to judge them.
            if flat is not None and not any(_plain(text[a:b]) in flat for a, b in sentences(prose(text))):
                continue
            quoted = list(words.quotations(text))
            for order in orders.orders(text):
                begin = text.rfind("\n", 0, order.start) + 1
                is_quoted = any(start <= order.start < end for start, end in quoted)
                if not is_quoted and not text[begin : order.end].lstrip().startswith(">"):
                    yield _plain(order.text)


def _texts(content: object) -> Iterator[str]:
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") in _TEXTS and isinstance(text := part.get("text"), str):
            yield text


def _head(line: str) -> re.Match[str]:
    found = _HEAD.match(line)
    assert found is not None  # noqa: S101 — the pattern matches an empty text too
    return found


def _sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


def _plain(sentence: str) -> str:
    from compaction_store.language.orders import without_mark  # noqa: PLC0415

    return without_mark(" ".join(sentence.split())).strip(_QUOTES)


def framed(text: str, span: tuple[int, int], role: framing.Role, standing: Orders) -> Payload:
    """Frames a summary. Its sentences that are among the standing orders come first, in a part of their own."""
    if not standing:
        return framing.frame(text, *span, role)
    bound: list[str] = []
    rest: list[str] = []
    for line in text.splitlines():
        if StateLine.parse(line).seqs and line.startswith("- "):
            # A line of a state keeps its seqs, so it is either binding as a whole or not.
            own = _sentences(StateLine.parse(line).text)
            (bound if own and all(_plain(one) in standing for one in own) else rest).append(line)
            continue
        head = _head(line)
        found = _sentences(line[head.end() :])
        own = [sentence for sentence in found if _plain(sentence) in standing]
        if own:
            bound.append((head[1] or "") + " ".join(own))
            others = [sentence for sentence in found if sentence not in own]
            rest += [head[0] + " ".join(others)] if others else []
        else:
            rest.append(line)
    if _HEADING in rest and (rest[rest.index(_HEADING) + 1 :] or ["#"])[0].startswith("#"):
        rest.remove(_HEADING)
    return framing.frame("\n".join(rest), *span, role, orders="\n".join(bound))
