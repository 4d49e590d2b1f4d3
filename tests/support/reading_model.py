"""A model on a local server that answers a question by reading: it takes the option that a passage of the view has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from support import chat_server, messages_server
from support.messages_server import Behaviour, Handler, Payload


def reads(handler: Handler, body: Payload) -> None:
    """Answers a request of the Messages API or of the Chat Completions API."""
    asked = json.loads(body["messages"][-1]["content"])
    text = _answer(asked["view"], asked["question"], asked["options"])
    answer: Behaviour = (messages_server if handler.path.endswith("/messages") else chat_server).says(text)
    answer(handler, body)


def _answer(view: Any, question: str, options: dict[str, str]) -> str:
    """Returns the option whose words are all in a passage that has the most words of the question."""
    passages = [_words(passage) for text in _texts(view) for passage in re.split(r"(?<=[.!?])\s|\n", text)]
    found = {
        number: max((len(there & _words(question)) for there in passages if _words(option) <= there), default=-1)
        for number, option in options.items()
    }
    best = [number for number, score in found.items() if score == max(found.values()) >= 0]
    return f"{best[0]}." if len(best) == 1 else "0"


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.lower()) if word.strip("_")}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)
