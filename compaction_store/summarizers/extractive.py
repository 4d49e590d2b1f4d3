"""A summary without a model: the sentences that carry most, word for word, in their order.

What carries is told by structure and not by words, so that any language will do: who speaks, whether it is a request,
the last thing said before the user spoke again, a call or what came of it; and how many figures, names, paths and other
rare words are in it. The same elements always give the same text, and it is always shorter than they are.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from compaction_store.errors import InvalidInput, SummaryTooLong
from compaction_store.framing import framed_text
from compaction_store.models import Element, Payload, Summary
from compaction_store.readable import read
from compaction_store.spans import CALLS, RESULTS
from compaction_store.summarizers.request import Request
from compaction_store.tokens import count_text

# What a frame around a summary takes; and of the source's tokens, at most so many for the summary with its frame.
_FRAME_TOKENS = 60
_MOST_OF_SOURCE = 0.8
_LEAST = 12
# Of so short a text a share would be no sentence.
_SHORT = 80
_LONGEST_SENTENCE = 240
_LONGEST_CALL = 160
_MARK = "…"

_SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？｡．؟।॥։።])|[\n\r\u2028\u2029]+")  # noqa: RUF001
_WORD = re.compile(r"\w+")
# Scripts that are written without spaces: their words are pairs of characters here.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_FIGURE = re.compile(r"\d[\d.,:%/-]*")
_PLACE = re.compile(r"\w+://\S+|(?:[\w.~-]*[/\\])+[\w.-]+|\b\w[\w-]*\.[a-z]\w{0,7}\b|\b[\w.+-]+@[\w-]+\.\w+")
_IDENTIFIER = re.compile(r"\b(?:\w+_\w+|[a-z]+[A-Z]\w*|[A-Z]{2,}\w*)\b|`[^`]+`|[\"“«][^\"”»]{2,60}[\"”»]")


class _Said(NamedTuple):
    """Something said in one piece."""

    seq: int
    label: str
    text: str
    weight: float


class _Fact(NamedTuple):
    place: int
    seq: int
    label: str
    text: str
    weight: float


class ExtractiveSummarizer:
    """Keeps at most `share` of its source's characters, and `max_tokens` by o200k_base."""

    name = "ExtractiveSummarizer"
    needs_async = False

    def __init__(self, *, share: float = 0.3, max_tokens: int = 2048) -> None:
        if not 0 < share < 1:
            raise InvalidInput("share must lie between 0 and 1")
        if type(max_tokens) is not int or max_tokens < _LEAST:
            raise InvalidInput(f"max_tokens must be an integer >= {_LEAST}")
        self._share = share
        self._max_tokens = max_tokens

    def __repr__(self) -> str:
        return f"ExtractiveSummarizer(share={self._share}, max_tokens={self._max_tokens})"

    def __call__(self, elements: Sequence[Element], /) -> Summary:
        start = time.monotonic()
        request = Request.of(elements)
        facts = _facts(_sayings(request))
        ranked = _ranked(facts)
        room = min(request.size - 1, max(_SHORT, int(request.size * self._share_of(request))))
        most = self._max_tokens if request.budget is None else min(self._max_tokens, request.budget)
        text, kept = _best(ranked, room)
        while text and (took := count_text(text)) > most:
            room = min(room - 1, room * most // took)
            text, kept = _best(ranked, room)
        if not text:
            raise SummaryTooLong(f"nothing shorter can be said of {request.size:,} characters")
        coverage = {"messages": request.end_seq - request.start_seq + 1, "sentences": kept, "of_sentences": len(facts)}
        return Summary(text, coverage=coverage, duration=time.monotonic() - start)

    def _share_of(self, request: Request) -> float:
        """Less than `share` where the frame would make up for what is saved."""
        room = _MOST_OF_SOURCE - _FRAME_TOKENS / max(1, request.tokens)
        return min(self._share, room) if room > 0 else self._share


# ---- what was said


def _sayings(elements: Iterable[Element]) -> list[_Said]:
    found: list[_Said] = []
    for element in elements:
        for payload in element.messages:
            if payload is None:
                continue
            inside = framed_text(payload) if element.is_summary else None
            if inside is not None:
                # Notes of an earlier summary: they say themselves who said what.
                found.extend(_Said(element.seq, "", line, 2.5) for line in inside.splitlines() if line.strip())
            else:
                found.extend(_Said(element.seq, *said) for said in _of(payload))
    following = (said.label for said in chain(found[1:], [_Said(0, "user", "", 0)]))
    return [_concluding(said, label) for said, label in zip(found, following, strict=False)]


def _concluding(said: _Said, following: str) -> _Said:
    """What an assistant says last before the user speaks again is what it came to."""
    return said._replace(weight=2.0) if (said.label, following) == ("assistant", "user") else said


def _of(payload: Payload) -> Iterator[tuple[str, str, float]]:
    role, content = payload.get("role"), payload.get("content")
    label = role if isinstance(role, str) else "assistant"
    weight = 3.0 if label == "user" else 1.0
    if label in ("tool", "function") or payload.get("type") in RESULTS:
        yield _result(payload)
    elif isinstance(content, str):
        yield label, content, weight
    elif isinstance(content, list):
        for part in content:
            yield from _of_part(part, label, weight)
    calls = payload.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            inner = call.get("function") or call.get("custom")
            yield _call(inner if isinstance(inner, dict) else call)
    if payload.get("type") in CALLS:
        yield _call(payload)


def _of_part(part: Any, label: str, weight: float) -> Iterator[tuple[str, str, float]]:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind in ("thinking", "redacted_thinking", "reasoning"):
        return
    if kind in CALLS:
        yield _call(part)
    elif kind in RESULTS or kind.endswith("_tool_result"):
        yield _result(part)
    elif kind == "compaction" and isinstance(part.get("content"), str):
        yield "", part["content"], 2.5
    else:
        for text in read({"content": [part]})[0]:
            yield label, text, weight


def _call(call: Payload) -> tuple[str, str, float]:
    given = call.get("input", call.get("arguments", call.get("action", "")))
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, separators=(",", ":"))
    text = " ".join(text.split())
    if len(text) > _LONGEST_CALL:
        text = text[:_LONGEST_CALL] + _MARK
    return "call", f"{call.get('name') or call.get('type')}({text})", 1.5


def _result(result: Payload) -> tuple[str, str, float]:
    inside = result.get("content", result.get("output"))
    text = "\n".join(read({"content": inside})[0])
    failed = result.get("is_error") is True or result.get("status") in ("failed", "incomplete")
    return ("error" if failed else "result"), text, 2.5 if failed else 1.2


# ---- which of it carries most


def _facts(sayings: Iterable[_Said]) -> list[_Fact]:
    facts: list[_Fact] = []
    seen: set[str] = set()
    for said in sayings:
        sentences = [said.text] if said.label == "call" else list(_sentences(said.text))
        for place, text in enumerate(sentences):
            if text not in seen:
                seen.add(text)
                # A request begins with what it is about; output says at its ends what came of it.
                at_an_end = place == 0 or (place == len(sentences) - 1 and said.label in ("result", "error"))
                weight = said.weight * (1.5 if at_an_end else 1.0) * (any(c.isalnum() for c in text) or 0.01)
                facts.append(_Fact(len(facts), said.seq, said.label, text, weight))
    return facts


def _sentences(text: str) -> Iterator[str]:
    for sentence in _SENTENCE.split(text):
        rest = sentence.strip()
        while len(rest) > _LONGEST_SENTENCE:
            cut = rest.rfind(" ", _LONGEST_SENTENCE // 2, _LONGEST_SENTENCE)
            cut = cut if cut > 0 else _LONGEST_SENTENCE
            yield rest[:cut]
            rest = rest[cut:].lstrip()
        if rest:
            yield rest


def _words(text: str) -> set[str]:
    words: set[str] = set()
    for word in _WORD.findall(text.lower()):
        if _UNSPACED.search(word):
            words.update(word[i : i + 2] for i in range(max(1, len(word) - 1)))
        else:
            words.add(word)
    return words


def _value(fact: _Fact, spread: Counter[str], count: int) -> float:
    """How much a sentence carries: its weight, by how rare its words are and how much of it are plain facts."""
    words = _words(fact.text)
    rarity = sum(math.log(1 + count / spread[word]) for word in words) / (len(words) or 1)
    names = sum(word[:1].isupper() for word in fact.text.split()[1:])
    facts = 2 * len(_FIGURE.findall(fact.text)) + 3 * len(_PLACE.findall(fact.text))
    facts += 2 * len(_IDENTIFIER.findall(fact.text)) + names
    return fact.weight * (rarity + min(8, facts)) / math.sqrt(20 + len(fact.text))


def _ranked(facts: Sequence[_Fact]) -> list[_Fact]:
    """Those that carry most first; of equals the earlier."""
    spread = Counter(word for fact in facts for word in _words(fact.text))
    return sorted(facts, key=lambda fact: (-_value(fact, spread, len(facts)), fact.place))


def _best(ranked: Sequence[_Fact], room: int) -> tuple[str, int]:
    """The sentences that carry most in so many characters, one line a message; and how many they are."""
    chosen: list[_Fact] = []
    begun: set[tuple[int, str]] = set()
    for fact in ranked:
        begins = (fact.seq, fact.label) not in begun
        cost = len(fact.text) + (len(_head(fact)) if begins else 0) + 1
        if cost <= room:
            room -= cost
            chosen.append(fact)
            begun.add((fact.seq, fact.label))
    if not chosen and ranked and room > len(_MARK):
        return ranked[0].text[: room - len(_MARK)].rstrip() + _MARK, 1
    return _written(sorted(chosen)), len(chosen)


def _head(fact: _Fact) -> str:
    return f"[{fact.seq}] {fact.label}: " if fact.label else ""


def _written(facts: Iterable[_Fact]) -> str:
    lines: list[str] = []
    last: tuple[int, str] | None = None
    for fact in facts:
        if fact.label and (fact.seq, fact.label) == last:
            lines[-1] += f" {fact.text}"
        else:
            lines.append(_head(fact) + fact.text)
        last = fact.seq, fact.label
    return "\n".join(lines)
