"""Makes a view fit without a model: cuts contents, then removes messages, then cuts the first and the last message.

Savings are estimated before anything is cut. A message that will be removed is therefore seldom tokenized. No message
is cut twice to the same cap. What a cut removes from a user's message keeps its standing orders, unless the view cannot
fit with them. The time is linear in the thread.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, NamedTuple

from compaction_store.compaction.standing_orders import orders_in
from compaction_store.compaction.summary_room import LEAST_TEXT, frame_tokens, joined
from compaction_store.jsonable import named
from compaction_store.language.orders import orders as standing
from compaction_store.messages.framing import Role, framed_text
from compaction_store.messages.parts import row_of
from compaction_store.models import Payload
from compaction_store.models.messages import is_erased
from compaction_store.models.state import rows_of
from compaction_store.models.vocabulary import ReplacingKind
from compaction_store.strategies.contents import Content, compact, contents_of, exchanged
from compaction_store.strategies.outline import Layout, speakers
from compaction_store.tokens import MARK, Counter
from compaction_store.tokens.message_text import MESSAGE

# A cut must save more than the cap divided by this number. Smaller savings are not worth a record.
_LEAST_GAIN = 8
# If messages must be removed anyway, a cut must save more than the tokens over the limit, divided by this number.
_LEAST_PART = 4
# The orders that a cut leaves in a message take at most the limit divided by this number.
_ORDERS_PART = 4


@dataclass(frozen=True, slots=True)
class Caps:
    """The largest and the smallest cap for contents, and whether the inputs of calls may be cut."""

    start: int = 8192
    floor: int = 128
    inputs: bool = True

    def steps(self) -> Iterator[int]:
        cap = self.start
        while cap > self.floor:
            yield cap
            cap //= 2
        yield self.floor


class Means(IntEnum):
    """The changes that may be made to a view. Each member also permits everything that the members before it permit."""

    #: Contents are cut.
    CUTS = 1
    #: Old elements are removed.
    OLD = 2
    #: Recent elements are removed, the first and the last message are cut, and summaries are cut or removed.
    REMOVALS = 3
    #: System messages are cut.
    SYSTEMS = 4


@dataclass(eq=False)
class Draft:
    """A view that is being made to fit: the tokens of its elements, and what was cut, joined and removed.

    The recent elements begin at the index `recent` and are removed after all others. The elements in `kept` are never
    changed. Where elements are removed, a line of `line` tokens is left. Summaries of this run are kept too, unless
    `cut_summaries` is set: then summaries are cut, and removed if nothing else can be changed. A cut must save more
    than `least_cut` tokens, because each cut is recorded. Smaller cuts are made only before a summary is removed.
    """

    layout: Layout
    limit: int
    counter: Counter
    caps: Caps
    recent: int
    _: KW_ONLY
    means: Means = Means.SYSTEMS
    kept: AbstractSet[int] = frozenset()
    cut_summaries: bool = False
    least_cut: int = 0
    line: int = 0

    def __post_init__(self) -> None:
        elements, layout = self.layout.elements, self.layout
        self.tokens = [element.tokens for element in elements]
        self.total = sum(self.tokens)
        self.forms: dict[int, tuple[Payload, ...]] = {}
        self.cap_of: dict[int, int] = {}
        # For each run of cut or joined summaries: the new text, its tokens, and the tokens of the run before.
        self.joined: dict[tuple[int, int], tuple[str, int, int]] = {}
        self.removed: list[tuple[int, int]] = []
        self.lost = 0
        # The most tokens for the orders that a cut leaves in a message, and those that they take in each message.
        self.orders = self.limit // _ORDERS_PART
        self._orders_of: dict[int, int] = {}
        # Unless all summaries are cut, those of this run are kept, and older ones are removed after everything else.
        self.summaries = frozenset(i for i, e in enumerate(elements) if e.is_summary)
        fresh = frozenset(i for i in self.summaries if (elements[i].number or 0) < 0)
        self.fresh = frozenset[int]() if self.cut_summaries else fresh
        whole = self.summaries | layout.pinned | self.kept
        own = {0, layout.last, layout.last_user} - layout.systems - whole
        systems = layout.systems - whole if self.means >= Means.SYSTEMS else frozenset[int]()
        self.ends = [sorted(i for i in own if i is not None), sorted(systems)]
        self.middle = [i for i in range(len(elements)) if i not in own | layout.systems | whole]

    @property
    def left(self) -> int:
        """The number of tokens that the view has now."""
        return self.total - self.lost

    @property
    def over(self) -> int:
        return self.left - self.limit

    def fit(self, *, verbatim: bool = False) -> Draft:
        """Changes the view until it fits the limit. With `verbatim`, recent elements are cut last."""
        self._fit(verbatim=verbatim)
        if self.over > 0 and self.means >= Means.REMOVALS and any(self._orders_of.values()):
            # Nothing else can be cut any more.
            self.orders = 0
            for index in [index for index, tokens in self._orders_of.items() if tokens]:
                self.cap_of.pop(index, None)
            self._orders_of.clear()
            self._cut_until([*self.remaining(self.middle), *self.ends[0]])
        return self

    def _fit(self, *, verbatim: bool) -> None:
        old = [i for i in self.middle if i < self.recent]
        if self.means == Means.CUTS:
            self._cut_until(old if verbatim else [*self._large_ends(), *self.middle])
            return
        if verbatim:
            self._stage(old, only_old=True)
        if self.means == Means.OLD:
            if not verbatim:
                self._stage([*self._large_ends(), *self.middle], only_old=False)
            return
        if self.over > 0:
            self._stage([*self._ends_to_cut(), *self.middle], only_old=False)
        for ends in self.ends:
            self._cut_until(ends)
        if self.cut_summaries and self.over > 0:
            self._shorten_summaries(LEAST_TEXT)
            self._drop_summaries()
            if self.over > 0:
                self._unjoin()
                self._remove_until([*self.middle, *self.ends[0]], list(self._outwards()), and_summaries=True)

    def _ends_to_cut(self) -> list[int]:
        """Returns the indexes in `ends` whose elements are cut together with the middle.

        The first or the last message is cut if it takes more than half of the limit and is not the last message of the
        user. If removing everything else is not enough, the first, the last and the user's last message are all cut. If
        that is still not enough, system messages are cut too.
        """
        floor = self.caps.floor
        gains = self._gains(self.middle)
        most = self._removable(0, len(self.tokens) - 1, self.summaries)
        left = self.total - sum(gains.values()) - self._worth(most, gains)
        chosen = large = self._large_ends()
        left -= sum(self._gain(index, floor) for index in large)
        for ends in self.ends:
            if left > self.limit:
                more = [index for index in ends if index not in large]
                chosen = chosen + more
                left -= sum(self._gain(index, floor) for index in more)
        return chosen

    def _large_ends(self) -> list[int]:
        return [i for i in self.ends[0] if i != self.layout.last_user and 2 * self.tokens[i] > self.limit]

    def _stage(self, indexes: Sequence[int], *, only_old: bool) -> None:
        """Cuts contents. If that is not enough, removes elements from the middle outwards and cuts only the others.

        Old elements are removed first. Then summaries are cut, then recent elements are removed, and finally summaries.
        """
        if self.over <= sum(self._gains(indexes).values()):
            self._cut_until(indexes)
        if self.over <= 0:
            return
        order = list(self._outwards())
        if self.least_cut:
            self.least_cut = max(self.least_cut, self.over // _LEAST_PART)
        if only_old:
            order = [index for index in order if index < self.recent]
            gains = self._gains(indexes)
            most = self._removable(self.layout.first, self.recent - 1, self.summaries)
            if self.over <= sum(gains.values()) + self._worth(most, gains):
                self._remove_until(indexes, order, and_summaries=False)
            return
        self._remove_until(indexes, [index for index in order if index < self.recent], and_summaries=False)
        self._cut(self.remaining(indexes), self.caps.floor)
        if self.means == Means.OLD:
            return
        if self.over > 0:
            self._shorten_summaries(self.caps.floor)
        if self.over > 0:
            self._remove_until(indexes, order, and_summaries=False)
        # From here on, make even small cuts, because only summaries could be removed instead.
        self.least_cut = 0
        self._cut(self.remaining(indexes), self.caps.floor)
        if self.over > 0 and not self.cut_summaries and self.summaries > self.fresh:
            self._unjoin()
            self._remove_until(indexes, order, and_summaries=True)

    def _gain(self, index: int, cap: int) -> int:
        """Estimates the tokens that cutting an element to a cap saves. Returns 0 if the saving is not worth a cut."""
        tokens = self.tokens[index]
        if tokens <= cap or self.cap_of.get(index, cap + 1) <= cap:
            return 0
        gain = tokens - (cap + MESSAGE) * len(self.layout.elements[index].messages) - self._taken_by_orders(index)
        return gain if gain > max(self.least_cut, cap // _LEAST_GAIN) else 0

    def _is_users(self, index: int) -> bool:
        return speakers(self.layout.elements[index]) == {"user"}

    def _taken_by_orders(self, index: int) -> int:
        """Returns the tokens of the orders that a cut leaves in a user's message."""
        if not self.orders or not self._is_users(index):
            return 0
        if index not in self._orders_of:
            messages = self.layout.elements[index].messages
            texts = [piece.value for one in messages for piece in contents_of(one) if piece.kind == "text"]
            found = (_orders(text, "", self.orders, self.counter) for text in texts)
            self._orders_of[index] = sum(self.counter.text(one) for one in found if one)
        return self._orders_of[index]

    def _gains(self, indexes: Iterable[int]) -> dict[int, int]:
        return {index: self._gain(index, self.caps.floor) for index in indexes}

    def _cut_until(self, indexes: Sequence[int]) -> None:
        """Cuts elements in the given order to the largest cap that is enough, and stops as soon as the view fits."""
        for cap in self.caps.steps():
            if self.over <= 0:
                return
            if cap == self.caps.floor or self.over <= sum(self._gain(index, cap) for index in indexes):
                self._cut(indexes, cap)

    def _cut(self, indexes: Iterable[int], cap: int) -> None:
        for index in indexes:
            if self.over <= 0:
                return
            if self._gain(index, cap) > 0:
                self._cut_one(index, cap)

    def _cut_one(self, index: int, cap: int) -> None:
        self.cap_of[index] = cap
        last_user = self.layout.last_user
        thinking = last_user is not None and index < last_user
        rule = Rule(self.caps.inputs, thinking, self.orders if self._is_users(index) else 0)
        old = self.forms.get(index, self.layout.elements[index].messages)
        new = [message if is_erased(message) else shorten(message, cap, self.counter, rule) for message in old]
        kept = tuple(message for message in new if not is_erased(message))
        if len(kept) < len(new) or all(a is b for a, b in zip(old, new, strict=True)):
            return
        tokens = self.counter.messages(kept)
        if tokens < self.tokens[index]:
            self.total += tokens - self.tokens[index]
            self.tokens[index] = tokens
            self.forms[index] = kept

    def _shorten_summaries(self, least: int) -> None:
        """Joins adjacent summaries and cuts their texts, the largest summaries first, until the view fits."""
        self._unjoin()
        least += frame_tokens(self.counter, (1, 1))
        for low, high in sorted(self._neighbours(), key=lambda run: -self._taken(*run)):
            if self.over <= 0:
                return
            taken = self._taken(low, high)
            first, last = self.layout.elements[low], self.layout.elements[high]
            found = [framed_text(element.message) for element in self.layout.elements[low : high + 1]]
            texts = [text for text in found if text is not None]
            role: Role = "assistant" if first.role == "assistant" else "user"
            most = max(least, taken - self.over)
            standing = orders_in(self.layout.elements[low : high + 1])
            shorter = joined(texts, (first.seq, last.end_seq), role, most, self.counter, standing)
            if shorter is None or (tokens := self.counter.messages(shorter[1])) >= taken:
                continue
            self.joined[low, high] = shorter[0].text, tokens, taken
            self.total += tokens - taken

    def _neighbours(self) -> Iterator[tuple[int, int]]:
        """Yields the runs of adjacent summaries that may be cut. A run may include elements without messages."""
        gone = {i for low, high in self.removed for i in range(low, high + 1)}
        run: tuple[int, int] | None = None
        for index, element in enumerate(self.layout.elements):
            spared = index in self.fresh or index in self.layout.pinned or index in gone
            if element.is_summary and not spared and framed_text(element.message) is not None:
                run = (index if run is None else run[0]), index
            elif run is not None and (element.messages or spared):
                yield run
                run = None
        if run is not None:
            yield run

    def _taken(self, low: int, high: int) -> int:
        return sum(self.tokens[low : high + 1])

    def _drop_summaries(self) -> None:
        """Removes summaries that were cut, the oldest first, until the view fits."""
        for low, high in sorted(self.joined):
            if self.over <= 0:
                return
            if self._removable(low, high, frozenset()) == [(low, high)]:
                _, tokens, taken = self.joined.pop((low, high))
                self.total += taken - tokens
                spans = len(self.removed)
                self.removed = _merged([*self.removed, (low, high)])
                self.lost += taken - self.line * (len(self.removed) - spans)

    def _unjoin(self) -> None:
        for _, tokens, taken in self.joined.values():
            self.total += taken - tokens
        self.joined = {}

    def _outwards(self) -> Iterator[int]:
        """Yields all indexes from the middle outwards. The indexes of recent elements come after all others."""
        count = len(self.tokens)
        end = self.recent if self.recent > self.layout.first + 1 else count
        low = min(count // 2, end - 1)
        high = low + 1
        while low >= 0 or high < end:
            if low >= 0:
                yield low
            if high < end:
                yield high
            low, high = low - 1, high + 1
        yield from range(end, count)

    def _removable(self, low: int, high: int, spared: AbstractSet[int]) -> list[tuple[int, int]]:
        if low > high:
            return []
        found = self.layout.for_removal(low, high, spared | self._calls_kept | self.kept)
        return [span for span in found if self._taken(*span) > self.line]

    @cached_property
    def _calls_kept(self) -> AbstractSet[int]:
        """The recent calls with long inputs. They are not removed if the inputs of calls must not be cut."""
        if self.caps.inputs:
            return frozenset()
        recent = range(self.recent, len(self.tokens))
        return frozenset(i for i in recent if self.tokens[i] > self.caps.floor and self._has_long_input(i))

    def _has_long_input(self, index: int) -> bool:
        pieces = chain.from_iterable(map(contents_of, self.layout.elements[index].messages))
        inputs = (piece for piece in pieces if piece.kind in {"input", "arguments"})
        return any(size_of(piece, self.counter) > self.caps.floor for piece in inputs)

    def _worth(self, found: Iterable[tuple[int, int]], gains: Mapping[int, int]) -> int:
        """Returns how many more tokens are saved by removing the spans than by cutting them to the floor."""
        return sum(
            sum(self.tokens[i] - gains.get(i, 0) for i in range(low, high + 1)) - self.line for low, high in found
        )

    def _remove_until(self, indexes: Sequence[int], order: Sequence[int], *, and_summaries: bool) -> None:
        """Removes more and more elements, in the given order, until the remaining elements fit after they are cut.

        A call is only removed together with its result, so the first choice may save too little. The choice then grows
        by the missing tokens, and by at least twice its last growth. So few choices are tried even in a long thread.
        """
        self.removed, self.lost = [], 0
        lows, highs = list(accumulate(order, min)), list(accumulate(order, max))
        size = more = 0
        while size < len(order):
            gains = self._gains(indexes)
            missing = self.total - sum(gains.values()) - self.limit - self._worth(self.removed, gains)
            sums = list(accumulate((self.tokens[i] - gains.get(i, 0) for i in order), initial=0))
            more = max(missing, 2 * more) if size else 0
            size = min(len(order), max(size + 1, bisect_left(sums, sums[size] + max(missing, more))))
            low, high = lows[size - 1], highs[size - 1]
            if and_summaries:
                spared = self.fresh | {i for i in self.summaries if not low <= i <= high}
                self.removed = self._removable(0, len(self.tokens) - 1, spared)
            else:
                self.removed = self._removable(low, high, self.summaries)
            self.lost = self._worth(self.removed, {})
            if self.over <= sum(gains[i] for i in self.remaining(indexes)) or size == len(order):
                self._cut(self.remaining(indexes), self.caps.floor)
                more = 0
            if self.over <= 0:
                return

    def remaining(self, indexes: Iterable[int]) -> list[int]:
        gone = {i for low, high in self.removed for i in range(low, high + 1)}
        return [index for index in indexes if index not in gone]


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the spans in order, with adjacent spans merged."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if found and found[-1][1] + 1 == low:
            found[-1] = found[-1][0], high
        else:
            found.append((low, high))
    return found


# ---- one message
# Its contents share the cap: small contents are kept, and large ones lose their middle. The result is as well-formed as
# the message. The inputs of calls stay JSON. A picture or a file is replaced by a note. Thinking is never altered, but
# left out if the API allows that. The time is linear in the size of the message.


LONG_MARK = f" {MARK} [shortened] {MARK} "
# With a smaller cap, most of the text would be the long mark.
_LONG = 32
_DEEPEST = 40


class Rule(NamedTuple):
    """Whether the inputs of calls may be cut, and whether thinking may be left out. Text may always be cut.

    `orders` is the most tokens for the standing orders in a text, which it keeps above its cap.
    """

    inputs: bool = True
    thinking: bool = False
    orders: int = 0


def shorten(message: Payload, cap: int, counter: Counter, rule: Rule) -> Payload:
    """Returns the message with its contents cut to `cap` tokens together, or the same object if nothing is cut."""
    # The most common message has one string as its content.
    content = message.get("content")
    if isinstance(content, str) and "tool_calls" not in message and "function_call" not in message:
        new = cut(content, cap, counter, rule.orders)
        return message if new == content else {**message, "content": new}
    found = contents_of(message)
    sizes = [size_of(piece, counter) if _may(piece, rule) else 0 for piece in found]
    if sum(sizes) <= cap:
        return message
    level = max(1, _level(sizes, cap))
    at: Iterator[int] = iter(sizes)
    # Drop either all thinking of a message or none, because a turn that has thinking must begin with it.
    thoughtless = any(p.kind == "thinking" and size > level for p, size in zip(found, sizes, strict=True))

    def exchange(piece: Content) -> Any:
        size = next(at)
        if piece.kind == "thinking":
            return None if thoughtless else piece.value
        return piece.value if size <= level else _shorter(piece, level, counter, rule)

    return exchanged(message, exchange)


def cut(text: str, cap: int, counter: Counter, orders: int = 0) -> str:
    """Cuts the middle out of a text. Returns the text unchanged if nothing would be left of it.

    Up to `orders` tokens of the standing orders in the middle are kept, above the cap.
    """
    mark = LONG_MARK if cap >= _LONG else MARK
    kept = counter.cut(text, cap, "ends", mark)
    if orders and len(kept) < len(text) and (middle := _orders(text, kept, orders, counter)):
        kept = counter.cut(text, cap + counter.text(middle), "ends", f"{mark}\n{middle}\n{mark}")
    return kept if kept.strip() else text


def _orders(text: str, kept: str, most: int, counter: Counter) -> str:
    """Returns the standing orders of a text that `kept` lacks, one a line, as many as fit."""
    found: list[str] = []
    for order in standing(text):
        if order.text in kept or order.text in found:
            continue
        most -= counter.text(order.text) + 1
        if most < 0:
            break
        found.append(order.text)
    return "\n".join(found)


def _may(piece: Content, rule: Rule) -> bool:
    if piece.kind in {"input", "arguments"}:
        return rule.inputs
    return rule.thinking or piece.kind != "thinking"


def size_of(piece: Content, counter: Counter) -> int:
    if piece.kind in {"text", "arguments"}:
        return counter.text(piece.value)
    if piece.kind == "input":
        return counter.text(compact(piece.value))
    empty: Payload = {"role": "user", "content": []}
    return max(0, counter.messages([{**empty, "content": [piece.value]}]) - counter.messages([empty]))


def _level(sizes: Sequence[int], cap: int) -> int:
    """Returns the largest size to which all contents can be cut so that they take at most `cap` together."""
    left, count = cap, len(sizes)
    for size in sorted(sizes):
        if size * count > left:
            return left // count
        left -= size
        count -= 1
    return left


def _shorter(piece: Content, level: int, counter: Counter, rule: Rule) -> Any:
    if piece.kind == "text":
        return cut(piece.value, level, counter, rule.orders)
    if piece.kind == "input":
        return shorter_json(piece.value, level, counter)
    if piece.kind == "arguments":
        return _shorter_arguments(piece.value, level, counter)
    return f"[{row_of(piece.value).media} left out]"


def _shorter_arguments(text: str, level: int, counter: Counter) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        # The text is not JSON, so the cut text need not be JSON either.
        return cut(text, level, counter)
    is_object = isinstance(value, dict)
    return compact(shorter_json(value, level, counter) if is_object else cut(compact(value), level, counter))


def shorter_json(value: Payload, cap: int, counter: Counter) -> Payload:
    """Cuts the long texts in a JSON object. If that is not enough, returns a note with both ends of its JSON."""
    texts = list(_texts(value))
    sizes = [counter.text(text) for text in texts]
    frame = max(0, counter.text(compact(value)) - sum(sizes))
    level = _level(sizes, max(0, cap - frame))
    if texts and level > 0:
        at = iter(sizes)
        new: Payload = _with_texts(value, lambda text: text if next(at) <= level else cut(text, level, counter))
        if counter.text(compact(new)) <= cap:
            return new
    return _note(compact(value), cap, counter)


def _note(text: str, cap: int, counter: Counter) -> Payload:
    """Returns a note of at most `cap` tokens, including the tokens for JSON escapes."""
    most = cap
    while most > 0:
        note = {"shortened": cut(text, most, counter)}
        excess = counter.text(compact(note)) - cap
        if excess <= 0:
            return note
        most -= excess
    return {"shortened": MARK}


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < _DEEPEST and isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item, depth + 1)


def _with_texts(value: Any, change: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return change(value)
    if depth < _DEEPEST and isinstance(value, dict):
        return {key: _with_texts(item, change, depth + 1) for key, item in value.items()}
    if depth < _DEEPEST and isinstance(value, list):
        return [_with_texts(item, change, depth + 1) for item in value]
    return value


class Change(NamedTuple):
    """The replacement of a span of messages.

    The seqs `start_seq` and `end_seq` are both inclusive. The kind `truncation` has `messages` as the replacement, the
    kind `summary` has `text`, and the kind `removal` has neither.
    """

    start_seq: int
    end_seq: int
    kind: ReplacingKind
    messages: tuple[Payload, ...] = ()
    allow: frozenset[str] = frozenset()
    reason: str = ""
    text: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return named(self)


def changes_of(draft: Draft) -> list[Change]:
    """Returns a change for each removed span, each contiguous run of cut elements and each cut or joined summary."""
    summaries = [_summary(draft, *run) for run in draft.joined]
    return sorted([*summaries, *_runs(draft)], key=lambda change: change.start_seq)


def _summary(draft: Draft, low: int, high: int) -> Change:
    text, tokens, _ = draft.joined[low, high]
    elements = draft.layout.elements
    many = sum(element.is_summary for element in elements[low : high + 1])
    reason = f"{f'{many} summaries joined in' if many > 1 else 'a summary cut to'} {tokens} tokens"
    return Change(elements[low].seq, elements[high].end_seq, "summary", reason=reason, text=text)


def _runs(draft: Draft) -> Iterator[Change]:
    elements = draft.layout.elements
    for low, high in draft.removed:
        yield Change(elements[low].seq, elements[high].end_seq, "removal", reason="removed from the middle outwards")
    for indexes in rows_of(draft.remaining(sorted(draft.forms))):
        yield _truncation(draft, elements[indexes[0]].seq, elements[indexes[-1]].end_seq, indexes)


def _truncation(draft: Draft, start: int, end: int, indexes: Sequence[int]) -> Change:
    caps = sorted({draft.cap_of[index] for index in indexes})
    messages = tuple(message for index in indexes for message in draft.forms[index])
    allow = {"system"} if draft.layout.systems.intersection(indexes) else set()
    if draft.layout.last_user in indexes:
        allow.add("last_user")
    reason = f"contents cut to {' and '.join(map(str, caps))} tokens"
    return Change(start, end, "truncation", messages, frozenset(allow), reason)
