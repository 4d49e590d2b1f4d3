"""What replies tell of compactions that a provider made by itself, as records to be written with the messages.

They are `observed`: never active, never folding, only there so that an audit shows them. A compaction block stands for
everything before its message; of an edit the provider tells what it saved, not where. Of what a load brings in, its
source may know more, and says it by an `Observed` among the messages. Only replies, and items that are no message, are
looked at: whatever a user or a tool writes is content.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from compaction_store import arguments
from compaction_store.errors import InvalidInput
from compaction_store.messages import documents, encoding
from compaction_store.models import Observed, Payload

_NO_SUMMARY = {"type": "NoSummary", "text": "the provider's compaction came to no summary"}
_LONGEST_NAME = 100


class Told(NamedTuple):
    """A record without its place. One that folds is about everything before the message that tells of it."""

    record: Payload
    folds: bool


def told_by(given: Sequence[Any], payloads: Iterable[Payload]) -> str | None:
    """The records to be written with these messages, as `append_observed` takes them; None where there are none.

    An SDK's reply tells more than what is stored of it, so that the objects themselves are looked at too.
    """
    found = [
        told.record | {"message": number, "folds": told.folds}
        for number, (reply, stored) in enumerate(zip(given, payloads, strict=True), 1)
        if not _is_plain(reply, stored)
        for told in told_by_one(reply, stored)
    ]
    return json.dumps(found) if found else None


def _is_plain(reply: Any, stored: Payload) -> bool:
    """Whether it is a text in a dict, as most messages are, and tells nothing."""
    is_text = type(reply) is dict and type(stored.get("content")) is str
    return is_text and stored.get("type") != "compaction" and "context_management" not in reply


def told_by_one(reply: Any, stored: Payload) -> Iterator[Told]:
    """What one message tells."""
    if stored.get("role", "assistant") != "assistant":
        # What users and tools write is content, whatever it looks like.
        return
    blocks = list(_compactions(stored))
    edits = list(_edits(reply))
    if blocks or edits:
        model, usage = name(_field(reply, "model")), _plain(_field(reply, "usage"))
        for place, block in enumerate(blocks):
            yield _compaction(model, block, _spent(usage, place))
        yield from (_edit(model, edit) for edit in edits)


def _field(reply: Any, field: str) -> Any:
    return reply.get(field) if isinstance(reply, Mapping) else getattr(reply, field, None)


def _plain(value: Any) -> Any:
    """The JSON of a part of a reply; None where it has none."""
    if value is None:
        return None
    try:
        return encoding.encode({"value": value}).payload["value"]
    except InvalidInput:
        return None


def name(value: Any) -> str | None:
    """A name that somebody else gave, as a column may hold it."""
    return value[:_LONGEST_NAME] if isinstance(value, str) and value.isprintable() and value else None


def _compactions(stored: Payload) -> Iterator[Payload]:
    if "role" not in stored:
        if stored.get("type") == "compaction":
            yield stored
        return
    content = stored.get("content")
    if stored["role"] == "assistant" and isinstance(content, list):
        yield from (part for part in content if isinstance(part, dict) and part.get("type") == "compaction")


def _edits(reply: Any) -> Iterator[Payload]:
    management = _field(reply, "context_management")
    edits = None if management is None else _plain(_field(management, "applied_edits"))
    if isinstance(edits, list):
        yield from (edit for edit in edits if isinstance(edit, dict))


def _spent(usage: Any, place: int) -> Payload | None:
    """What the block at a place among the reply's took, which the reply's own figures leave out."""
    iterations = usage.get("iterations") if isinstance(usage, dict) else None
    if not isinstance(iterations, list):
        return None
    spent = [entry for entry in iterations if isinstance(entry, dict) and entry.get("type") == "compaction"]
    return spent[place] if place < len(spent) else None


def _compaction(model: str | None, block: Payload, usage: Payload | None) -> Told:
    text = block.get("content")
    folds = bool(text) if "content" in block else "encrypted_content" in block
    body: Payload = {"provider": block}
    if isinstance(text, str) and text:
        body["summary_text"] = text
    elif not folds:
        body["error"] = _NO_SUMMARY
    if usage is not None:
        body["usage"] = usage
    return Told(_record("summary", "compaction", body, model=model), folds)


def _edit(model: str | None, edit: Payload) -> Told:
    what = name(edit.get("type")) or "edit"
    return Told(_record("truncation", what, {"provider": edit}, model=model), folds=False)


class Record(NamedTuple):
    """Asks for a compaction of others to be recorded; the answer is whether it was not on record before."""

    run_id: UUID
    records: str

    def __repr__(self) -> str:
        return f"Record(run_id={self.run_id!r}, …)"


class _Met(NamedTuple):
    """A compaction of others: after how many messages it is recorded, and from which to which it is about."""

    place: int
    number: int
    first: int
    last: int
    record: Payload


class Log:
    """The compactions of others that a load meets on its way, until each is recorded at its place."""

    def __init__(self, uid: UUID, key: str) -> None:
        self._uid = uid
        self._key = key
        self._met: deque[_Met] = deque()
        self._place = self._number = 0
        # From which message on, and by how much, seqs are ahead of the load's own count.
        self._froms: list[int] = []
        self._aheads: list[int] = []

    def tell(self, reply: Any, stored: Payload, place: int) -> None:
        """Takes up what the message at a place tells."""
        if _is_plain(reply, stored):
            return
        for told in told_by_one(reply, stored):
            self._meet(place, 1, place - 1 if told.folds else 0, told.record)

    def add(self, observed: Observed, place: int) -> None:
        """Takes up what is given after so many messages."""
        last = place if observed.last is None else observed.last
        if type(observed.first) is not int or type(last) is not int or not (observed.first >= 1 and last <= place):
            raise InvalidInput(f"an Observed is about messages before it, of which there are {place:,}")
        self._meet(place, observed.first, last if observed.spans else 0, _given(observed))

    def _meet(self, place: int, first: int, last: int, record: Payload) -> None:
        self._number = self._number + 1 if place == self._place else 1
        self._place = place
        self._met.append(_Met(place, self._number, first, last, record))

    def is_due(self, stored: int) -> bool:
        """Whether something is to be recorded once so many messages are stored. Without any there is no thread."""
        return bool(self._met) and 0 < stored >= self._met[0].place

    def due(self, stored: int) -> Iterator[Record]:
        while self.is_due(stored):
            met = self._met.popleft()
            span: Payload = {"start_seq": None, "end_seq": None}
            if met.first <= met.last:
                span = {"start_seq": self._seq(met.first), "end_seq": self._seq(met.last)}
            columns = met.record["columns"] | span | {"outcome": "observed"}
            run_id = uuid5(self._uid, f"{self._key}#{met.place}.{met.number}")
            yield Record(run_id, json.dumps([met.record | {"columns": columns, "from": self._seq(1)}]))

    def note(self, place: int, seq: int) -> None:
        """Keeps where the messages stand from a place in the load on: others' may have come between two chunks."""
        ahead = seq - place
        if not self._aheads or self._aheads[-1] != ahead:
            self._froms.append(place)
            self._aheads.append(ahead)

    def _seq(self, place: int) -> int:
        return place + self._aheads[bisect_right(self._froms, place) - 1]


def _given(observed: Observed) -> Payload:
    arguments.one_of(observed.kind, ("summary", "truncation", "removal"), "kind")
    arguments.name(observed.what, "what")
    for text, what in ((observed.summary_text, "summary_text"), (observed.occurred_at, "occurred_at")):
        arguments.text(text, what)
    body = {
        "summary_text": observed.summary_text, "occurred_at": observed.occurred_at, "provider": observed.provider,
    }  # fmt: skip
    columns: Payload = {"model": name(observed.model)}
    for tokens, what in ((observed.tokens_before, "tokens_before"), (observed.tokens_after, "tokens_after")):
        if tokens is not None:
            arguments.number(tokens, what, least=0)
            columns |= {what: tokens, "counter": "provider"}
    # As lossless as a message, or refused like one.
    plain = encoding.encode({part: value for part, value in body.items() if value is not None}).payload
    return _record(observed.kind, observed.what, plain, **columns)


def _record(kind: str, what: str, body: Payload, **columns: Any) -> Payload:
    """One record of what a provider did by itself."""
    return documents.record({"kind": kind, "callback": f"provider:{what}", "trigger": "provider", **columns}, body)
