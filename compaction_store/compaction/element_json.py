"""Converts elements to JSON for a model. Texts are strings in it, so none can look like a tag or a turn."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from compaction_store.compaction.summary_request import Request
from compaction_store.messages.framing import framed_text
from compaction_store.models import Element, Payload
from compaction_store.models.messages import is_erased
from compaction_store.tokens import media

_SEALED = frozenset({"signature", "encrypted_content", "encrypted_stdout"})
_BYTES = ("data", "file_data", "bytes", "blob")
_SHORT = 64
# The smallest room, in tokens, in which a message around the elements is shown.
_LEAST_ROOM = 16
# These characters are escaped, so that no text can look like a tag or end the line.
_AS_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_ESCAPED = re.compile("[<>\u2028\u2029]")


class ElementJson(NamedTuple):
    """The JSON of an element or, if that is too long, a part of it. `at` is the offset of the part in the whole."""

    start_seq: int
    end_seq: int
    text: str
    at: int | None = None

    @property
    def entry(self) -> str:
        if self.at is None:
            return self.text
        return dump({"seq": self.start_seq, "part_of_its_json": self.text, "from_character": self.at})


class SourceDocument(NamedTuple):
    """The JSON of each element, and the seqs of elements from which erased messages or media are left out."""

    pieces: tuple[ElementJson, ...]
    erased: tuple[int, ...]
    media: tuple[int, ...]


def source_document(elements: Iterable[Element], notes: Callable[[str], Any] = str) -> SourceDocument:
    """Returns the JSON of elements. `notes` makes the JSON of a summary's text."""
    pieces, erased, with_media = [], [], []
    for element in elements:
        messages = []
        left_out: list[int] = []
        for payload in element.messages:
            if is_erased(payload):
                erased.append(element.seq)
            messages.append({"erased": True} if is_erased(payload) else _plain(payload, left_out))
        if left_out:
            with_media.append(element.seq)
        pieces.append(ElementJson(element.seq, element.end_seq, dump(_entry(element, messages, notes))))
    return SourceDocument(tuple(pieces), tuple(erased), tuple(with_media))


def notes_json(start_seq: int, end_seq: int, text: str) -> ElementJson:
    """Returns notes on a range of messages as JSON, to be summarized instead of the messages."""
    return ElementJson(start_seq, end_seq, dump({"seq": start_seq, "end_seq": end_seq, "notes": text}))


def document(pieces: Sequence[ElementJson], stays: Sequence[ElementJson] = ()) -> str:
    """Returns the document of the pieces. `stays` are pieces that stay in view, and are shown only as context."""
    before = [piece for piece in stays if piece.start_seq < pieces[0].start_seq]
    after = [piece for piece in stays if piece.start_seq > pieces[0].start_seq]
    lists = {"stays_in_view_before": before, "stays_in_view_after": after, "messages": pieces}
    parts = [f'"{name}":[{",".join(piece.entry for piece in found)}]' for name, found in lists.items() if found]
    return "{" + ",".join(parts) + "}"


def surroundings(request: Request, most_tokens: int) -> tuple[ElementJson, ...]:
    """Returns what stays in view around the elements of a request, in order, in about `most_tokens`.

    The messages after the elements get at most half of the room, the nearest first. Before the elements, system
    messages and a user's first message come first, then the newest notes, then the nearest messages. One message gets
    at most a quarter of the room.
    """
    if most_tokens < _LEAST_ROOM or not ((before := request.before or ()) or request.after):
        return ()
    first = next((e for e in before if e.role == "user" and not e.is_summary), None)
    ranked = sorted(before, key=lambda e: (not (e is first or e.role == "system"), not e.is_summary, -e.seq))
    chosen: list[ElementJson] = []
    room = most_tokens
    for elements, kept in ((request.after or (), most_tokens // 2), (ranked, 0)):
        for element in elements:
            most = min(most_tokens // 4, room - kept)
            if most < _LEAST_ROOM:
                break
            [piece] = source_document([element]).pieces
            while (tokens := request.count(piece.text)) > most:
                size = min(len(piece.text) - 1, len(piece.text) * most // tokens)
                piece = piece._replace(text=piece.text[:size], at=0)
            chosen.append(piece)
            room -= tokens
    return tuple(sorted(chosen))


def halves(pieces: Sequence[ElementJson], least: int) -> tuple[Sequence[ElementJson], Sequence[ElementJson]] | None:
    """Splits pieces into two parts of about the same length. Returns None if a half of the only piece is too short."""
    if len(pieces) > 1:
        sums = list(accumulate(len(piece.text) for piece in pieces))
        place = min(bisect_left(sums, sums[-1] / 2) + 1, len(pieces) - 1)
        return pieces[:place], pieces[place:]
    [piece] = pieces
    if len(piece.text) < 2 * least:
        return None
    middle, start = len(piece.text) // 2, piece.at or 0
    first = piece._replace(text=piece.text[:middle], at=start)
    return [first], [piece._replace(text=piece.text[middle:], at=start + middle)]


def _entry(element: Element, messages: list[Any], notes: Callable[[str], Any]) -> Payload:
    place: Payload = {"seq": element.seq}
    if element.end_seq != element.seq:
        place = {"seq": element.seq, "end_seq": element.end_seq}
    if element.is_summary:
        said = [message if (text := framed_text(message)) is None else notes(text) for message in messages]
        return {**place, "notes": said[0] if len(said) == 1 else said}
    return {**place, "message": messages[0] if len(messages) == 1 else messages}


def _plain(value: Any, left_out: list[int]) -> Any:
    """Returns a payload without pictures, sounds, files and encrypted text, which no model can read as JSON."""
    if isinstance(value, str):
        if media.found_in(value) is None:
            return value
        left_out.append(len(value))
        return f"(left out: {len(value):,} characters of base64)"
    if isinstance(value, list):
        return [_plain(item, left_out) for item in value]
    if not isinstance(value, dict):
        return value
    copy = {}
    typed = any(name in value for name in ("media_type", "mime_type", "format", "filename"))
    for name, item in value.items():
        if name in _SEALED or (name == "data" and value.get("type") == "redacted_thinking"):
            continue
        if typed and name in _BYTES and isinstance(item, str) and len(item) > _SHORT and value.get("type") != "text":
            left_out.append(len(item))
            copy[name] = f"(left out: {len(item):,} characters of base64)"
        else:
            copy[name] = _plain(item, left_out)
    return copy


def dump(value: Any) -> str:
    """Returns a value as one line of JSON in which nothing looks like a tag."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        # Lone surrogates cannot be sent in a request.
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return _ESCAPED.sub(lambda found: _AS_ESCAPES[found[0]], text)
