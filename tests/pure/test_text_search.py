"""A search leaves out documents without parsing them. It never leaves out a document that has a match."""

from __future__ import annotations

import json
import random
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from compaction_store.models import Message
from compaction_store.store.text_search import TextSearch, folded

# Letters, escapes, characters that vanish, combining marks, ligatures, wide letters, fractions, and others.
PIECES = [
    *"abkß19 ", "elm", "ELM", "1000", "\n", "\t", '"', "\\", "\\n", "\\u0065lm", "/", "e\u0301", "\uff45\uff4c\uff4d",
    *map(chr, [
        0xAD, 0x200B, 0xFE0F, 0x301, 0x338, 0xFB01, 0x212A, 0x17F, 0x149, 0x1F0, 0x1E9B, 0xE9, 0xBD, 0x2460, 0x2026,
        0x2019, 0x4E2D, 0x1F642, 0xA0, 0x1160, 0x3164,
    ]),
]  # fmt: skip
VALUES: list[Any] = [1000, 1e3, 1.5, 1e22, -0.0, True, None, 10**20]
LETTERS = "abk"


def found(wanted: TextSearch, text: str) -> bool:
    message = Message(1, 1, "user", json.loads(text), 1, datetime.now(UTC), None, False, text)
    return wanted.in_message("t", message) is not None


def written(rng: random.Random) -> str:
    return "".join(rng.choices(PIECES, k=rng.randint(1, 7)))


def document(rng: random.Random) -> str:
    content: Any = rng.choice([
        written(rng),
        [{"type": "text", "text": written(rng)} for _ in range(3)],
        [{"type": "tool_use", "id": "x", "name": "n", "input": {written(rng): rng.choice(VALUES), "a": written(rng)}}],
        json.dumps({"b": json.dumps({"c": written(rng)})}),
    ])  # fmt: skip
    text = json.dumps({"role": "user", "content": content}, ensure_ascii=rng.random() < 0.2)
    return text.replace(": 1000.0", ": 1e3")


def test_no_document_with_a_match_is_left_out() -> None:
    rng, matches, left_out = random.Random(20261129), 0, 0
    for _ in range(6000):
        text = document(rng)
        words = [written(rng), "elm", "1000", "fi", "1000.0", rng.choice(LETTERS) + rng.choice(LETTERS)]
        for word in words:
            if not folded(word).strip():
                continue
            wanted = TextSearch(word)
            if found(wanted, text):
                matches += 1
                assert wanted.may_be_in(text), (word, text)
            elif not wanted.may_be_in(text):
                left_out += 1
    assert matches > 500
    assert left_out > 1000


def test_a_character_that_becomes_a_letter_or_vanishes_is_looked_at() -> None:
    wanted = TextSearch("elms")
    for number in range(128, sys.maxunicode + 1):
        if folded(chr(number)) == chr(number) or 0xD800 <= number <= 0xDFFF:
            continue
        for word in (f"el{chr(number)}ms", f"el{chr(number)}s", f"{chr(number)}ms", f"elm{chr(number)}"):
            if "elms" in folded(word):
                assert wanted.may_be_in(json.dumps(word, ensure_ascii=False)), hex(number)


@pytest.mark.parametrize(
    "text", ['{"role":"user","content":"An oak"}', '{"role":"user","content":"Eine Ülme, \\n “elf”"}']
)
def test_most_documents_without_the_text_are_left_out(text: str) -> None:
    assert not TextSearch("Elm Street").may_be_in(text, None)
    assert TextSearch("中").may_be_in(text)  # no word of ASCII to look for
