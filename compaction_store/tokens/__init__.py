"""Counts the tokens of messages. The counter's name is stored with every count.

The default counter uses o200k_base, and counts only the texts that a model reads. The tokenizer of another model may
count ten or twenty percent more or fewer tokens. So keep a reserve in the budget, or use your own counter. If you
change the rule of a counter, give the counter a new name.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from compaction_store.arguments import other, other_choice, storable_name
from compaction_store.errors import CounterFailed, InvalidInput
from compaction_store.models import Payload
from compaction_store.models.messages import is_erased
from compaction_store.models.vocabulary import NAME_BYTES
from compaction_store.tokens import o200k
from compaction_store.tokens.message_text import read

BY_CALLER = "caller"
MARK = "…"
Keep = Literal["head", "tail", "middle", "ends"]
_KEEPS = ("head", "tail", "middle", "ends")
_MOST_TOKENS = 2**31 - 1
# Bytes. Counting a longer message would block an event loop for more than about ten milliseconds.
_LONG = 64 * 1024
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


class Ruler(NamedTuple):
    """Functions that count the tokens of a text, and that cut a text at its end or at its beginning."""

    count: Callable[[str], int]
    head: Callable[[str, int], str]
    tail: Callable[[str, int], str]


@dataclass(frozen=True, slots=True)
class Counter:
    """A function that counts the tokens of a message, and its name, which tells an auditor how to repeat the count.

    `function` is called with the message and the size of its JSON in bytes. `ruler` counts plain text. Without a ruler,
    a text counts as many tokens as it adds to a message. `takes_long` is called with the size of a message, and returns
    whether the message must be counted outside the event loop. By default this is always so, because the function may
    block. `prepare` does work in advance that would delay the first count.
    """

    name: str
    function: Callable[[Payload, int], int]
    ruler: Ruler | None = None
    takes_long: Callable[[int], bool] = lambda _size: True
    prepare: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        is_text = isinstance(self.name, str) and self.name.isprintable()
        if not is_text or not 1 <= len(self.name.encode()) <= NAME_BYTES:
            raise InvalidInput(f"a counter's name must be printable text of 1 to {NAME_BYTES} bytes{other(self.name)}")

    def tokens(self, payload: Payload, size: int) -> int:
        """Counts the tokens of a message of `size` bytes of JSON. Raises `CounterFailed` if the function fails."""
        try:
            count: Any = self.function(payload, size)
        except Exception as error:  # noqa: BLE001 — it is the user's own code
            why = f"raised {type(error).__name__}"
        else:
            if type(count) is int and 0 <= count <= _MOST_TOKENS:
                return count
            if inspect.iscoroutine(count):
                count.close()
            why = f"returned {count if type(count) is int else type(count).__name__}"
        # This is outside the except block, so that the counter's error, which may quote the message, is not chained.
        raise CounterFailed(
            f"the token counter {self.name!r} {why}: it must return an integer from 0 to {_MOST_TOKENS:,}"
        )

    @property
    def is_ours(self) -> bool:
        """Whether the counting function is one of this package's own."""
        return self.function in _OURS

    def messages(self, payloads: Iterable[Payload | None]) -> int:
        """Returns the sum of the tokens of several messages. An erased message counts 0."""
        kept = (payload for payload in payloads if payload is not None and not is_erased(payload))
        return sum(self.tokens(payload, _size(payload)) for payload in kept)

    def text(self, text: str) -> int:
        """Counts the tokens of a plain text, without a message around it."""
        return self._measure().count(text)

    def cut(self, text: str, tokens: int, keep: Keep = "head", mark: str = MARK) -> str:
        """Cuts a text to at most `tokens` tokens, with a mark at every cut. Returns a short text unchanged.

        The tokens of the marks are included in the limit. The marks are left out if they do not fit. No character is
        cut in two.
        """
        if type(tokens) is not int or tokens < 0:
            raise InvalidInput(f"tokens must be an integer >= 0{other(tokens)}")
        if keep not in _KEEPS:
            raise InvalidInput(f"keep must be one of {', '.join(_KEEPS)}{other_choice(keep)}")
        ruler = self._measure()
        if len(ruler.head(text, tokens)) == len(text):
            return text
        most = tokens
        while most > 0:
            kept = _kept(ruler, text, most, keep, mark)
            # Joined parts may have more tokens than the sum of their tokens. The next attempt is shorter by the excess.
            excess = ruler.count(kept) - tokens
            if excess <= 0:
                return kept
            most -= excess
        return "" if not mark else self.cut(text, tokens, keep, "")

    def _measure(self) -> Ruler:
        return self.ruler or _ruler_of(self)


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
    """Returns the default counter, which applies OpenAI's o200k_base to everything in a message that a model reads.

    See docs/tokens.md for the rule.
    """
    ruler = Ruler(o200k.count, o200k.head, o200k.tail)
    return Counter(o200k.NAME, _o200k_tokens, ruler, _takes_long, o200k.load)


def _takes_long(size: int) -> bool:
    return size > _LONG or not o200k.is_loaded()


def _o200k_tokens(payload: Payload, _size: int) -> int:
    texts, tokens = read(payload)
    return tokens + sum(map(o200k.count, texts))


def count_text(text: str) -> int:
    """Counts the tokens of a plain text with o200k_base."""
    return o200k.count(text)


def cut(text: str, tokens: int, keep: Keep = "head", mark: str = MARK) -> str:
    """Cuts a text to at most `tokens` tokens of o200k_base. See `Counter.cut`."""
    return o200k_base().cut(text, tokens, keep, mark)


def load() -> None:
    """Loads the ranks of o200k_base, so that the first count need not. This takes a quarter of a second."""
    o200k.load()


def bytes_over_four() -> Counter:
    """Returns a counter that needs no tokenizer: it divides the size of a message's JSON by four and rounds up."""
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
    """Makes a counter from a callable that takes a message and returns the number of its tokens.

    The counter's name is the callable's `name` attribute, or else its `__qualname__`.
    """
    if not callable(count):
        raise InvalidInput(f"counter must be a Counter or a callable that takes a message, not {type(count).__name__}")
    given = getattr(count, "name", None)
    name = given if isinstance(given, str) and given else getattr(count, "__qualname__", type(count).__qualname__)
    return Counter(storable_name(name) or "counter", lambda payload, _size: count(payload))


def chosen(counter: Counter | Callable[[Payload], int] | None) -> Counter:
    """Returns the counter for the argument `counter`, or the default counter if it is None."""
    if counter is None:
        return o200k_base()
    return counter if isinstance(counter, Counter) else from_callable(counter)


def _ruler_of(counter: Counter) -> Ruler:
    """Makes a ruler from a counter of messages, which cuts in proportion to characters, because counts are costly."""

    def in_message(text: str) -> int:
        return counter.messages([{"role": "user", "content": text}])

    empty = in_message("")

    def count(text: str) -> int:
        return max(0, in_message(text) - empty) if text else 0

    def share(text: str, most: int) -> int:
        return len(text) if (whole := count(text)) <= most else len(text) * most // whole

    return Ruler(
        count, lambda text, most: text[: share(text, most)], lambda text, most: text[len(text) - share(text, most) :]
    )


def _size(payload: Payload) -> int:
    try:
        return len(_JSON.encode(payload).encode())
    except UnicodeEncodeError:
        # The text has a lone surrogate, which UTF-8 cannot encode. Such a message is stored as ASCII JSON.
        return len(json.dumps(payload, separators=(",", ":")))
