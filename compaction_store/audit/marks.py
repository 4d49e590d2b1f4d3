"""Marks the names and quotations that a summary kept, lost or added, for lists of originals beside their replacement.

Names are paths, identifiers and numbers, and are found as `probes` finds them. Amounts of money are marked too, however
round or short they are. A number with a minus sign differs from the same number without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

from compaction_store.audit.safe_text import CUT
from compaction_store.audit.words import said
from compaction_store.jsonable import AsDict, named
from compaction_store.language.amounts import amounts, figures, is_negative, with_hyphens
from compaction_store.language.names import Name, NameReader, is_claim, keys, names_in_run
from compaction_store.language.words import quotations, words
from compaction_store.models import Compaction, Element, Message, Payload
from compaction_store.models.messages import is_erased
from compaction_store.probes.own_text import MOST_PIECES, blanked, piece_at_cut
from compaction_store.tokens import MARK

Mark = Literal["", "kept", "lost", "new"]
# The maximum number of messages, and of characters, with which a summary is compared.
_MOST_COMPARED = 2000
_MOST_COMPARED_BYTES = 8_000_000
_SENTENCES = re.compile(r"(?<=[.!?])(?=\s)|(?<=\n)")
_NO_LETTERS = re.compile(r"[\W_]+")
_NEGATIVE = re.compile(r"-([$€£¥₹]?\d(?:[\d.,]*\d)?+%?+)(?![\w/-])")


class MarkedPiece(NamedTuple):
    """A piece of a text, with its mark."""

    text: str
    mark: Mark

    def as_dict(self) -> dict[str, Any]:
        return named(self)


class _Negative(NamedTuple):
    """A number with a minus sign, its place in a text, and its key, which begins with a hyphen."""

    start: int
    end: int
    key: str


def _negatives(text: str) -> Iterator[_Negative]:
    """Yields the numbers with a minus sign that are names. The text must have hyphens in place of minus signs."""
    for found in _NEGATIVE.finditer(text):
        if is_negative(text, found.start(1)):
            for name in names_in_run(found[1]):
                yield _Negative(*found.span(), f"-{name.key}")


def _without(text: str, negatives: Iterable[_Negative]) -> str:
    pieces, last = [], 0
    for each in negatives:
        pieces.append(text[last : each.start])
        last = each.end
    return " ".join([*pieces, text[last:]])


def _bare(text: str) -> str:
    """Returns the letters and digits of a text, among which are those of the key of each name in it."""
    return _NO_LETTERS.sub("", text.casefold())


def _all_keys(name: Name) -> Iterator[str]:
    """Yields all keys that match a name, including the folders of a path, and a number both with and without `#`."""
    for key in keys(name):
        yield key
        if key.isdecimal():
            yield f"#{key}"
        elif key.startswith("#"):
            yield key[1:]
    if name.kind == "path":
        segments = name.key.split("/")
        yield from ("/".join(segments[:cut]) for cut in range(2, len(segments)))


class KnownFacts:
    """The names and words of some texts, with which other texts are compared.

    If `only` is given, the facts can be compared with these texts alone. Names that these texts lack are not searched
    for, which saves most of the time. Names that were cut in these texts are searched for too. Facts for the same texts
    should share one reader `names`, which reads each name only once. What the package itself writes about the originals
    (`span` has their first and last seq) is never marked as new.
    """

    def __init__(
        self,
        texts: Iterable[str] = (),
        *,
        only: Iterable[str] | None = None,
        names: NameReader | None = None,
        span: tuple[int, int] = (1, 0),
    ) -> None:
        self._names = names or NameReader()
        self._span = span
        # The pieces of names beside the marks of cuts, which were not found in the texts so far.
        self._pieces: dict[re.Pattern[str], bool] = {}
        self._keys: set[str] = set()
        # For each key that is still searched for: the letters and digits that a text with this key must contain.
        self._sought: dict[str, str] | None = None
        self._has_quotations = True
        # The figures of amounts with their currencies, and figures without a currency.
        self._figures: set[tuple[str, str]] = set()
        # The figures of amounts that are still searched for.
        self._sought_figures: set[tuple[str, str]] | None = None
        if only is not None:
            compared = [with_hyphens(each) for each in only]
            self._sought = {key: _bare(key) for each in compared for key in self._keys_of(each)}
            self._sought_figures = {(each.currency, each.figure) for text in compared for each in amounts(text)}
            self._has_quotations = any(True for each in compared for _ in quotations(each))
        self._words: list[str] = []
        for each in only or ():
            self._pieces.update(dict.fromkeys(self._cut_pieces(each), False))
        for text in texts:
            self.add(text)

    def _keys_of(self, text: str, of: Callable[[Name], Iterable[str]] = lambda name: (name.key,)) -> Iterator[str]:
        negatives = list(_negatives(text))
        yield from (each.key for each in negatives)
        yield from (key for name in self._names.names(_without(text, negatives)) for key in of(name))

    def add(self, text: str) -> None:
        text = with_hyphens(text)
        if self._may_have_more(text):
            self._keys.update(self._keys_of(text, _all_keys))
            if self._sought is not None:
                self._sought = {key: bare for key, bare in self._sought.items() if key not in self._keys}
        if self._sought_figures is None or self._sought_figures:
            self._figures.update((each.currency, each.figure) for each in amounts(text))
            self._figures.update(("", figure) for figure in figures(text))
            if self._sought_figures is not None:
                self._sought_figures = {each for each in self._sought_figures if not self._has_amount(*each)}
        for piece, is_there in self._pieces.items():
            self._pieces[piece] = is_there or piece.search(text) is not None
        if self._has_quotations:
            # Quotations are searched for in a string of the text's words, with a space at both ends.
            self._words.append(f" {' '.join(words(text))} ")

    @property
    def is_complete(self) -> bool:
        """Whether further texts would change nothing in a comparison with the texts in `only`."""
        wanted = self._sought, self._sought_figures, self._has_quotations, not all(self._pieces.values())
        return self._sought is not None and not any(wanted)

    def _may_have_more(self, text: str) -> bool:
        if self._sought is None:
            return True
        bare = _bare(text) if self._sought else ""
        return any(each in bare for each in self._sought.values())

    def _has_amount(self, currency: str, figure: str) -> bool:
        """Returns whether the amount is there in this currency, or its figure without any."""
        return not self._figures.isdisjoint([(currency, figure), ("", figure)])

    def _has_words(self, text: str) -> bool:
        wanted = f" {' '.join(words(text))} "
        return any(wanted in each for each in self._words)

    def marked(self, text: str, *, missing: Mark) -> list[MarkedPiece]:
        """Splits a text into pieces: names and quotations in these facts are marked `kept`, others `missing`."""
        pieces: list[MarkedPiece] = []
        last = 0
        for start, end, mark in self._marks(with_hyphens(text), missing):
            if start > last:
                pieces.append(MarkedPiece(text[last:start], ""))
            pieces.append(MarkedPiece(text[start:end], mark))
            last = end
        if last < len(text):
            pieces.append(MarkedPiece(text[last:], ""))
        return pieces

    def _cut_pieces(self, text: str) -> list[re.Pattern[str]]:
        """Returns patterns for what stood where a text was cut beside a name or a quotation."""
        text = blanked(with_hyphens(text), *self._span)
        found = (piece_at_cut(text, start, end) for start, end, _ in self._found(text, "new")) if MARK in text else ()
        return list(islice((piece for piece in found if piece is not None), MOST_PIECES))

    def _marks(self, text: str, missing: Mark) -> Iterator[tuple[int, int, Mark]]:
        if missing == "new":
            text = blanked(text, *self._span)
        last = 0
        # If some overlap, the first counts. Of two that begin together, the longer counts, and an amount before a name.
        for start, end, is_there in sorted(self._found(text, missing), key=lambda each: (each[0], -each[1])):
            if start >= last:
                yield start, end, "kept" if is_there or self._is_piece(text, start, end) else missing
                last = end

    def _is_piece(self, text: str, start: int, end: int) -> bool:
        """Returns whether a text was cut here, and what stood here before is in these facts."""
        piece = piece_at_cut(text, start, end) if self._pieces else None
        return piece is not None and self._pieces.get(piece, False)

    def _found(self, text: str, missing: Mark) -> list[tuple[int, int, bool]]:
        """Returns the places of names, amounts and quotations, and whether these facts have them."""
        found = [(start, end, self._has_words(text[start:end])) for start, end in quotations(text)]
        found += [(each.start, each.end, self._has_amount(each.currency, each.figure)) for each in amounts(text)]
        negatives = {each.end: each for each in _negatives(text)}
        for name, start, end in self._names.at(text):
            # In a summary, the numbers are marked that the probes look for in its sources.
            if not (is_claim(name) if missing == "new" else name.is_strong):
                continue
            negative = negatives.get(end)
            begin, key = (start, name.key) if negative is None else (negative.start, negative.key)
            found.append((begin, end, key in self._keys))
        return found


@dataclass(frozen=True)
class ShownMessage(AsDict):
    """A message in a list. If its text was cut, `pieces` has its beginning, and `cut` is the length of all of it."""

    head: str
    seq: int | None
    pieces: list[MarkedPiece]
    cut: int
    erased: bool = False


def cut_text(text: str) -> tuple[str, int]:
    """Returns the beginning of a text, and the length of the whole text if it was cut, else 0."""
    return (text, 0) if len(text) <= CUT else (text[:CUT], len(text))


def replacements(record: Compaction) -> list[str]:
    """Returns the summary of a record, or the texts of the messages that replace its span."""
    if record.summary_text is not None:
        return [record.summary_text]
    return [said(payload) for payload in record.replacement or []]


def original(message: Message, kept: KnownFacts | None, *, content: bool, whole: bool = False) -> ShownMessage:
    """Returns a message for a list, cut unless `whole`. Names and quotations that `kept` lacks are marked as lost."""
    head = f"{message.seq:,} {message.role or '—'}, {message.tokens:,} tokens"
    if message.redacted or not content:
        return ShownMessage(head, message.seq, [], 0, erased=message.redacted)
    text, cut = (said(message.payload), 0) if whole else cut_text(said(message.payload))
    pieces = [MarkedPiece(text, "")] if kept is None else kept.marked(text, missing="lost")
    return ShownMessage(head, message.seq, pieces, cut)


def element_texts(element: Element, *, content: bool) -> Iterator[ShownMessage]:
    """Yields the messages of one element of a view, as they are shown in a list."""
    for payload in element.messages:
        if is_erased(payload):
            yield ShownMessage("", None, [], 0, erased=True)
            continue
        text, cut = cut_text(said(payload)) if content else ("", 0)
        yield ShownMessage(_role(payload), None, [MarkedPiece(text, "")] if text else [], cut)


def _role(payload: Payload) -> str:
    role = payload.get("role", payload.get("type"))
    return role if isinstance(role, str) else ""


class Sources:
    """The facts of a record's originals, to compare with its replacement; none if the originals are too large."""

    def __init__(self, record: Compaction, replaced: Iterable[str], names: NameReader) -> None:
        span = record.start_seq or 0, record.end_seq or 0
        self._is_too_long = span[1] - span[0] >= _MOST_COMPARED
        self._facts = KnownFacts(only=replaced, names=names, span=span)
        self._bytes = 0

    def add(self, message: Message) -> bool:
        """Adds an original. Returns False if no more need be added: all facts are found, or there is too much text."""
        text = "" if message.payload is None or self._is_too_long else said(message.payload)
        self._bytes += len(text)
        self._is_too_long |= self._bytes > _MOST_COMPARED_BYTES
        if not self._is_too_long:
            self._facts.add(text)
        return not self._is_too_long and not self._facts.is_complete

    def add_all(self, messages: Iterable[Message]) -> None:
        """Adds originals until no more need be added."""
        for message in messages:
            if not self.add(message):
                return

    @property
    def facts(self) -> KnownFacts | None:
        """The facts of the added originals; None if these are too large."""
        return None if self._is_too_long else self._facts


@dataclass(frozen=True)
class Compared:
    """Originals and their replacement, with marks. Without `compared`, what is new in the replacement is not marked."""

    originals: list[ShownMessage]
    replaced: list[list[MarkedPiece]]
    compared: bool


def compare(originals: Iterable[Message], replaced: list[str], sources: Sources | None, names: NameReader) -> Compared:
    """Marks what a replacement kept, lost and added. Without `sources`, no words of the originals are shown."""
    facts = None if sources is None else sources.facts
    kept = KnownFacts(replaced, names=names) if replaced else None
    return Compared(
        [original(message, kept, content=sources is not None) for message in originals],
        [facts.marked(text, missing="new") if facts is not None else [MarkedPiece(text, "")] for text in replaced],
        facts is not None and bool(replaced),
    )


def differing(texts: Iterable[str], others: Iterable[str], mark: Mark) -> list[list[MarkedPiece]]:
    """Splits texts into sentences and lines, and marks those that none of the other texts has."""
    known = {"", *(" ".join(piece.split()) for text in others for piece in _SENTENCES.split(text))}
    return [
        [MarkedPiece(each, "" if " ".join(each.split()) in known else mark) for each in _SENTENCES.split(text)]
        for text in texts
    ]


def lost(originals: Iterable[Message], replaced: list[str], names: NameReader) -> list[str]:
    """Returns the names and quotations of originals that are not in the replacement, each once and in order."""
    kept = KnownFacts(replaced, names=names)
    pieces = (piece for message in originals for piece in original(message, kept, content=True, whole=True).pieces)
    return list(dict.fromkeys(piece.text for piece in pieces if piece.mark == "lost"))
