"""How many tokens a message is taken to have. The counter's name is stored beside every figure it gave.

The default counts what `readable` finds in a message by o200k_base. Another encoder's figures for the same text differ
by some ten or twenty per cent, so keep a reserve in the budget, or count with a callable of your own. A rule that
changes takes another name.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from compaction_store.errors import CounterFailed, InvalidInput
from compaction_store.models import Payload
from compaction_store.tokenizing import o200k
from compaction_store.tokenizing.message_text import read

BY_CALLER = "caller"
MARK = "…"
Keep = Literal["head", "tail", "middle", "ends"]
_KEEPS = ("head", "tail", "middle", "ends")
_MOST_TOKENS = 2**31 - 1
_MOST_NAME = 100
# A count of this many bytes may hold an event loop for ten milliseconds.
_LONG = 64 * 1024
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


class Ruler(NamedTuple):
    """How a counter measures plain text, and finds the beginning or the end that a number of tokens reaches."""

    count: Callable[[str], int]
    head: Callable[[str, int], str]
    tail: Callable[[str, int], str]


@dataclass(frozen=True, slots=True)
class Counter:
    """A name and a function of a message and its bytes as JSON. The name is what an auditor needs to count again.

    Without a ruler of its own, a counter measures a text by what it adds to a message. `takes_long` says whether a
    message of so many bytes should be counted off the event loop; without one, every message is, since the function may
    block. `prepare` does what the first count would wait for.
    """

    name: str
    function: Callable[[Payload, int], int]
    ruler: Ruler | None = None
    takes_long: Callable[[int], bool] = lambda _size: True
    prepare: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= _MOST_NAME or not self.name.isprintable():
            raise InvalidInput(f"a counter's name is printable text of 1 to {_MOST_NAME} characters")

    def tokens(self, payload: Payload, size: int) -> int:
        """The tokens of a message of so many bytes; whatever goes wrong in the function is a CounterFailed."""
        try:
            count: Any = self.function(payload, size)
        except Exception as error:  # noqa: BLE001 — it is the user's own code
            why = f"raised {type(error).__name__}"
        else:
            if type(count) is int and 0 <= count <= _MOST_TOKENS:
                return count
            if inspect.iscoroutine(count):
                count.close()
            why = f"returned {'such a number' if type(count) is int else type(count).__name__}"
        # Raised out here, so that the error, which may quote the message, is not carried along.
        raise CounterFailed(
            f"the token counter {self.name!r} {why}: a whole number from 0 to {_MOST_TOKENS:,} is needed"
        )

    @property
    def is_ours(self) -> bool:
        """Whether counting runs no code of a caller's."""
        return self.function in _OURS

    def messages(self, payloads: Iterable[Payload | None]) -> int:
        """The tokens of several messages, each counted as if it were appended; a redacted one has none."""
        return sum(self.tokens(payload, _size(payload)) for payload in payloads if payload is not None)

    def text(self, text: str) -> int:
        """The tokens of a plain text, without any message around it."""
        return self._measure().count(text)

    def cut(self, text: str, tokens: int, keep: Keep = "head", mark: str = MARK) -> str:
        """The text itself if it has no more than so many tokens, else what is kept of it, with a mark at every cut.

        The result never has more tokens than asked for, the mark included, and never half a character. Where not even
        the mark fits, it is left out.
        """
        if type(tokens) is not int or tokens < 0:
            raise InvalidInput("tokens is a whole number from 0 on")
        if keep not in _KEEPS:
            raise InvalidInput(f"keep is one of {', '.join(_KEEPS)}")
        ruler = self._measure()
        if len(ruler.head(text, tokens)) == len(text):
            return text
        most = tokens
        while most > 0:
            kept = _kept(ruler, text, most, keep, mark)
            # Two texts side by side may have more tokens than each alone; the next try allows for it.
            excess = ruler.count(kept) - tokens
            if excess <= 0:
                return kept
            most -= excess
        return "" if not mark else self.cut(text, tokens, keep, "")

    def _measure(self) -> Ruler:
        return self.ruler or _told_by(self)


def _kept(ruler: Ruler, text: str, most: int, keep: Keep, mark: str) -> str:
    room = most - ruler.count(mark) * (2 if keep == "middle" else 1)
    if room <= 0:
        return mark
    if keep == "head":
        return ruler.head(text, room) + mark
    if keep == "tail":
        return mark + ruler.tail(text, room)
    if keep == "ends":
        return ruler.head(text, room - room // 2) + mark + ruler.tail(text, room // 2)
    half = len(text) // 2
    return mark + ruler.tail(text[:half], room - room // 2) + ruler.head(text[half:], room // 2) + mark


def o200k_base() -> Counter:
    """The default: OpenAI's o200k_base over all that a model reads of a message. See docs/tokens.md for the rule."""
    return Counter(
        o200k.NAME,
        _o200k_tokens,
        Ruler(o200k.count, o200k.head, o200k.tail),
        _is_long,
        o200k.load,
    )


def _is_long(size: int) -> bool:
    return size > _LONG or not o200k.is_loaded()


def _o200k_tokens(payload: Payload, _size: int) -> int:
    texts, tokens = read(payload)
    return tokens + sum(map(o200k.count, texts))


def count_text(text: str) -> int:
    """The tokens of a plain text by o200k_base."""
    return o200k.count(text)


def cut(text: str, tokens: int, keep: Keep = "head", mark: str = MARK) -> str:
    """A text cut to a number of tokens by o200k_base; see `Counter.cut`."""
    return o200k_base().cut(text, tokens, keep, mark)


def load() -> None:
    """Reads the ranks now. Without it, the first count in a process does, which takes it a quarter of a second."""
    o200k.load()


def bytes_over_four() -> Counter:
    """A quarter of the message's bytes as JSON, rounded up: no tokenizer, no tables, no surprises."""
    ruler = Ruler(_quarter, _first_bytes, _last_bytes)
    return Counter("bytes/4", _bytes_tokens, ruler, takes_long=lambda _size: False)


def _bytes_tokens(_payload: Payload, size: int) -> int:
    return (size + 3) // 4


_OURS = frozenset({_o200k_tokens, _bytes_tokens})


def _quarter(text: str) -> int:
    return (len(text.encode(errors="surrogatepass")) + 3) // 4


def _first_bytes(text: str, most: int) -> str:
    return text[: len(text.encode(errors="replace")[: most * 4].decode(errors="ignore"))]


def _last_bytes(text: str, most: int) -> str:
    data = text.encode(errors="replace")
    return text[len(text) - len(data[max(0, len(data) - most * 4) :].decode(errors="ignore")) :]


def from_callable(count: Callable[[Payload], int]) -> Counter:
    """A counter from any callable that is given a message and returns its tokens; its `name`, if any, is stored."""
    if not callable(count):
        raise InvalidInput("counter must be a Counter, or a callable that is given a message")
    given = getattr(count, "name", None)
    name = given if isinstance(given, str) and given else getattr(count, "__qualname__", type(count).__qualname__)
    return Counter(name[:_MOST_NAME], lambda payload, _size: count(payload))


def chosen(counter: Counter | Callable[[Payload], int] | None) -> Counter:
    """The counter that is meant: the default, a counter, or one from a callable."""
    if counter is None:
        return o200k_base()
    return counter if isinstance(counter, Counter) else from_callable(counter)


def _told_by(counter: Counter) -> Ruler:
    """Text measured by what it adds to a message. A beginning or end is a share of the characters, so few are tried."""

    def told(text: str) -> int:
        return counter.messages([{"role": "user", "content": text}])

    empty = told("")

    def count(text: str) -> int:
        return max(0, told(text) - empty) if text else 0

    def share(text: str, most: int) -> int:
        return len(text) if (whole := count(text)) <= most else len(text) * most // whole

    return Ruler(
        count, lambda text, most: text[: share(text, most)], lambda text, most: text[len(text) - share(text, most) :]
    )


def _size(payload: Payload) -> int:
    try:
        return len(_JSON.encode(payload).encode())
    except UnicodeEncodeError:
        # What is stored is then the ASCII form.
        return len(json.dumps(payload, separators=(",", ":")))
