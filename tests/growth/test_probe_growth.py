"""The probes take steps in proportion to the thread, and no text makes a pattern search it over and over."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import re._constants as op  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.probed_threads import assistant, call, probed, result, summary, user

from compaction_store import language, probes
from compaction_store.language.names import NameReader
from compaction_store.language.orders import orders
from compaction_store.language.secrets import has_secret
from compaction_store.language.words import Phrases, quotations, words
from compaction_store.probes import ThreadFacts, ThreadMessage
from compaction_store.probes.facts import statements
from compaction_store.probes.speech import MessageReading
from compaction_store.probes.thread_probe import Passages

Payload = dict[str, Any]
# Quadratic work on so many characters would take hours.
LONG = 200_000


def steps(work: Callable[[], object]) -> int:
    """Calls of functions, ours and the interpreter's."""
    count = 0

    def tick(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(tick)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def thread(count: int) -> list[Payload]:
    """Everything that is probed happens at a constant rate: the same names, calls, orders and files return."""
    made: list[Payload] = []
    for n in range(count // 5):
        made += [
            user(f"Never touch table_{n % 7}_{n}. The port is {9000 + n % 3}; see src/part_{n}.py, order_{n // 2}."),
            call("read", {"path": f"src/part_{n % 50}.py"}, id=f"r{n}"),
            result(json.dumps({"id": f"order_{n}", "state": f"state_{n % 4}"}), id=f"r{n}"),
            call("write", {"path": f"out/file_{n}.txt", "content": "x"}, id=f"w{n}"),
            assistant(f'It said "this is the value of {n} in the table" there.'),
        ]
    return made


def folded(count: int) -> object:
    """A thread that is folded in pieces: each message is folded once."""
    messages = thread(count)
    folds = [
        (end, summary(f"Read src/part_{end // 5}.py; never touch table_1_{end}.", end - 49, end, end))
        for end in range(50, count + 1, 50)
    ]
    return probed(messages, folds)


def test_four_times_the_thread_takes_four_times_the_steps() -> None:
    folded(100)
    assert steps(lambda: folded(2000)) < 4.6 * steps(lambda: folded(500))


def test_names_that_are_all_needed_later_are_looked_for_once() -> None:
    def needed(count: int) -> object:
        every = " ".join(f"name_{n}" for n in range(count))
        return probed([user(every), assistant("Ok."), user(every)], [(2, summary("Nothing.", 1, 2))])

    needed(10)
    assert steps(lambda: needed(4000)) < 4.6 * steps(lambda: needed(1000))


def test_orders_that_share_their_words_are_compared_with_few_passages() -> None:
    def compared(count: int) -> object:
        orders_ = "\n".join(f"Never touch the table {n} of the shared data." for n in range(count))
        text = "\n".join(f"They never touch the table {n} of the shared data." for n in range(count, 2 * count))
        return probed([user(orders_[:5000]), user("Go on.")], [(1, summary(text, 1, 1))])

    compared(10)
    assert steps(lambda: compared(2000)) < 4.6 * steps(lambda: compared(500))


WORDS = (
    "a",
    "aA1_",
    "a.",
    "a/",
    "../",
    "a:",
    "1,",
    "1,111,",
    "1.",
    "\\n",
    "\\",
    "@a.",
    "#",
    "x=",
    "'",
    '"',
    "`",
    "\u201c",
    '"a ',
    "(",
    "never ",
    "don't ",
    "do not ",
    ", ",
    "without my ",
    "non ",
    "n'a ",
    "不",
    "別",
    "ないで",
    "지 마",
    "is ",
    "from a to ",
    "the a is ",
    "from ",
    "eyJa.",
    "eyJaaaaaaaaaa",
    "sk-",
    "token=",
    "://a:",
    "-----BEGIN ",
    "```\n",
    ". ",
    ".)",
    "\n",
    "\x1b[",
    "{",
    "[",
    '{"a":',
    "*** Add File: ",
    "<<E ",
    "> ",
    "&& ",
    "İ",
    "\u0301",
)
READERS: dict[str, Callable[[str], object]] = {
    "words": words,
    "names": lambda text: NameReader().names(text),
    "quotations": lambda text: list(quotations(text)),
    "orders": lambda text: list(orders(text)),
    "statements": lambda text: list(statements(text)),
    "secrets": has_secret,
    "a user's message": lambda text: ThreadFacts([ThreadMessage(1, user(text))]),
    "a call": lambda text: ThreadFacts([ThreadMessage(1, call("bash", {"command": text}))]),
    "a raw call": lambda text: MessageReading(
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": text}
    ),
    "a result": lambda text: ThreadFacts([ThreadMessage(1, result(text))]),
    "a summary": lambda text: Passages([text]).says("Never push to main."),
}


@pytest.mark.parametrize("reader", READERS)
def test_no_repetition_makes_a_long_text_slow(reader: str) -> None:
    for word in WORDS:
        READERS[reader](word * (LONG // 20 // len(word)))
    for word in ("aA1_", "a/", "1,", "never ", '"', "from a to ", "eyJaaaaaaaaaa", "token="):
        READERS[reader](word * (LONG // len(word)))


def test_phrases_inside_of_each_other_are_found_in_one_pass() -> None:
    def found(count: int) -> object:
        phrases = Phrases((n, ["a"] * n) for n in range(1, 40))
        return list(phrases.found(["a"] * count))

    assert steps(lambda: found(40_000)) < 4.6 * steps(lambda: found(10_000))


# ---- the patterns themselves


def patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    modules = [(package, module) for package in (language, probes) for module in pkgutil.iter_modules(package.__path__)]
    for package, module in modules:
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        for name, value in vars(loaded).items():
            if isinstance(value, re.Pattern):
                yield f"{module.name}.{name}", value
            elif module.name == "force" and isinstance(value, str) and name.strip("_").isupper():
                # This module compiles its patterns when it first uses them.
                yield f"{module.name}.{name}", re.compile(value, re.IGNORECASE)


def nested(tree: Any, *, inside: bool = False) -> bool:
    """Whether an unbounded repetition has another one inside, which can take exponential time."""
    for kind, argument in tree:
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            unbounded = argument[1] is op.MAXREPEAT and len(argument[2]) > 0
            if (unbounded and inside) or nested(argument[2], inside=inside or unbounded):
                return True
        elif kind is op.SUBPATTERN:
            if nested(argument[3], inside=inside):
                return True
        elif kind is op.BRANCH:
            if any(nested(branch, inside=inside) for branch in argument[1]):
                return True
        elif kind in (op.ASSERT, op.ASSERT_NOT) and nested(argument[1], inside=inside):
            return True
    return False


def test_no_pattern_repeats_a_repetition() -> None:
    found = dict(patterns())
    assert len(found) > 30
    assert not [name for name, pattern in found.items() if nested(parser.parse(pattern.pattern, pattern.flags))]


def test_the_rule_finds_a_repetition_of_a_repetition() -> None:
    assert nested(parser.parse(r"(?:\w+ ?)+$"))
    assert not nested(parser.parse(r"\w+(?:,\d{3})+ (?:a|b){0,4}"))
