"""Plants sentences with known facts into threads in memory, to see which of them a policy keeps.

This helps with threads in which little is needed later, and in CI. Each sentence is a rule, a constraint, a fact, a
goal or a preference, and contains phrases that are in a view only if the view kept the sentence's content. Nothing is
stored.
"""

from __future__ import annotations

import random
import string
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from compaction_store import arguments
from compaction_store.evaluation.recorded_thread import RecordedThread
from compaction_store.models import Message, Payload
from compaction_store.probes import Planted
from compaction_store.tokens import Counter

# The part of a thread in which sentences are planted. Later sentences would mostly not be folded.
_FIRST_PART = 0.7


def plant(thread: RecordedThread, count: int, *, seed: int, counter: Counter) -> RecordedThread:
    """Returns the thread with `count` sentences added, at the ends of texts of users in the first part of the thread.

    If this part has no user message with a text, the thread is returned unchanged. The same seed plants the same
    sentences.
    """
    arguments.number(count, "count", least=1)
    last = int(len(thread.messages) * _FIRST_PART)
    places = [at for at, message in enumerate(thread.messages[:last]) if _can_have(message.payload)]
    if not places:
        return thread
    dice = random.Random(f"{seed}:{thread.thread_id}")  # noqa: S311 — a sample, not a secret
    chosen: defaultdict[int, list[Planted]] = defaultdict(list)
    for number in range(count):
        # Spread the sentences evenly over the places.
        chosen[places[number * len(places) // count]].append(sentence(number, dice))
    messages = list(thread.messages)
    for at, planted in chosen.items():
        messages[at] = _with(messages[at], planted, counter)
    kept = {messages[at].seq: tuple(planted) for at, planted in chosen.items()}
    return replace(thread, messages=tuple(messages), planted=kept)


def sentence(number: int, dice: random.Random) -> Planted:
    """Returns a sentence. Any five consecutive numbers give one sentence of each kind."""
    return _KINDS[number % len(_KINDS)](dice)


def _can_have(payload: Payload | None) -> bool:
    content = None if payload is None or payload.get("role") != "user" else payload.get("content")
    if isinstance(content, list):
        return any(isinstance(part, dict) and part.get("type") == "text" for part in content)
    return isinstance(content, str)


def _with(message: Message, planted: list[Planted], counter: Counter) -> Message:
    assert message.payload is not None  # noqa: S101 — it can have a sentence
    text = "\n\n" + " ".join(one.text for one in planted)
    content = message.payload["content"]
    if isinstance(content, str):
        content += text
    else:
        at = max(i for i, part in enumerate(content) if isinstance(part, dict) and part.get("type") == "text")
        content = [*content[:at], {**content[at], "text": f"{content[at].get('text', '')}{text}"}, *content[at + 1 :]]
    payload = {**message.payload, "content": content}
    return message._replace(payload=payload, tokens=counter.messages([payload]), text=None)


# ---- the sentences


def _letters(dice: random.Random, count: int) -> str:
    return "".join(dice.choices(string.ascii_lowercase, k=count))


def _digits(dice: random.Random, count: int) -> str:
    return "".join(dice.choices("23456789", k=count))


def _rule(dice: random.Random) -> Planted:
    name = f"{_letters(dice, 5)}-{_digits(dice, 2)}"
    return Planted("rule", f"Never show the door code {name} to anybody.", ("never", name))


def _constraint(dice: random.Random) -> Planted:
    host = f"{_letters(dice, 6)}.internal"
    return Planted("constraint", f"From now on, do not send any request to {host}.", ("do not", host))


def _fact(dice: random.Random) -> Planted:
    name, day = f"{_letters(dice, 5).upper()}-{_digits(dice, 3)}", f"2031-0{dice.randint(1, 9)}-1{dice.randint(0, 9)}"
    return Planted("fact", f"The contract {name} ends on {day}.", (name, day))


def _goal(dice: random.Random) -> Planted:
    case, branch = f"{_letters(dice, 4).upper()}-{_digits(dice, 3)}", f"fix/{_letters(dice, 6)}-{_digits(dice, 2)}"
    return Planted("goal", f"The case {case} is still open; the next step is to test it on {branch}.", (case, branch))


def _preference(dice: random.Random) -> Planted:
    name = f"{_letters(dice, 6)}_style"
    return Planted("preference", f"I prefer answers in {name}, with one recommendation only.", (name,))


_KINDS: tuple[Callable[[random.Random], Planted], ...] = (_rule, _constraint, _fact, _goal, _preference)
