"""Finds compactions that a provider made on its own, and makes the records that are written with the messages.

The records have the outcome `observed`. They fold nothing by themselves. A compaction block with content covers all
messages before its own message. A context edit of Anthropic's API says how many tokens it saved, but not which messages
it changed. An importer may know more, and can yield an `Observed` among the messages. Only replies and items without a
role are searched, because other messages are content.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from compaction_store import arguments
from compaction_store.errors import InvalidInput
from compaction_store.messages import documents, encoding
from compaction_store.messages.answers import field
from compaction_store.models import Observed, Payload
from compaction_store.models.vocabulary import REPLACING_KINDS

_NO_SUMMARY = {"type": "NoSummary", "text": "the provider's compaction has no summary"}
_LONGEST_NAME = 100


class FoundRecord(NamedTuple):
    """A record without its span. If `folds` is true, the span will be all messages before it."""

    record: Payload
    folds: bool


def records_for(given: Sequence[Any], payloads: Iterable[Payload]) -> str | None:
    """Returns the records for some messages as an argument of `append_observed`, or None if there are no records.

    `given` has the objects that the caller passed, because an SDK's reply has fields that are not stored.
    """
    found = [
        each.record | {"message": number, "folds": each.folds}
        for number, (reply, stored) in enumerate(zip(given, payloads, strict=True), 1)
        if not _is_plain(reply, stored)
        for each in compactions_of(reply, stored)
    ]
    return json.dumps(found) if found else None


def _is_plain(reply: Any, stored: Payload) -> bool:
    """Returns whether a message needs no search, because it has only text. This is so for most messages."""
    is_text = type(reply) is dict and type(stored.get("content")) is str
    return is_text and stored.get("type") != "compaction" and "context_management" not in reply


def compactions_of(reply: Any, stored: Payload) -> Iterator[FoundRecord]:
    """Yields the compactions in one message."""
    if stored.get("role", "assistant") != "assistant":
        # A message of a user or a tool is content, even if it looks like a compaction.
        return
    blocks = list(_compactions(stored))
    edits = list(_edits(reply))
    if blocks or edits:
        model, usage = name(field(reply, "model")), _plain(field(reply, "usage"))
        for place, block in enumerate(blocks):
            yield _compaction(model, block, _spent(usage, place))
        for edit in edits:
            what = name(edit.get("type")) or "edit"
            yield FoundRecord(_record("truncation", what, {"provider": edit}, model=model), folds=False)


def _plain(value: Any) -> Any:
    """Returns a part of a reply as JSON, or None if it has no JSON form."""
    if value is None:
        return None
    try:
        return encoding.encode({"value": value}).payload["value"]
    except InvalidInput:
        return None


def name(value: Any) -> str | None:
    """Returns a name from a provider, cut to the maximum length of a column, or None if it is not printable text."""
    return value[:_LONGEST_NAME] if isinstance(value, str) and value.isprintable() and value else None


def _compactions(stored: Payload) -> Iterator[Payload]:
    if "role" not in stored:
        if stored.get("type") == "compaction":
            yield stored
        return
    content = stored.get("content")
    if stored["role"] == "assistant" and isinstance(content, list):
        yield from (part for part in content if isinstance(part, dict) and part.get("type") == "compaction")


def is_empty(stored: Payload) -> bool:
    """Returns whether a message consists only of compactions that have neither content nor encrypted content."""
    blocks = list(_compactions(stored))
    size = 1 if "role" not in stored else len(stored.get("content") or ())
    return 0 < len(blocks) == size and not any(map(_folds, blocks))


def _folds(block: Payload) -> bool:
    return bool(block["content"] if "content" in block else block.get("encrypted_content"))


def _edits(reply: Any) -> Iterator[Payload]:
    management = field(reply, "context_management")
    edits = None if management is None else _plain(field(management, "applied_edits"))
    if isinstance(edits, list):
        yield from (edit for edit in edits if isinstance(edit, dict))


def _spent(usage: Any, place: int) -> Payload | None:
    """Returns the usage of a compaction block. The totals of the reply do not include it."""
    iterations = usage.get("iterations") if isinstance(usage, dict) else None
    if not isinstance(iterations, list):
        return None
    spent = [entry for entry in iterations if isinstance(entry, dict) and entry.get("type") == "compaction"]
    return spent[place] if place < len(spent) else None


def _compaction(model: str | None, block: Payload, usage: Payload | None) -> FoundRecord:
    text = block.get("content")
    folds = _folds(block)
    body: Payload = {"provider": block}
    if isinstance(text, str) and text:
        body["summary_text"] = text
    elif not folds:
        body["error"] = _NO_SUMMARY
    if usage is not None:
        body["usage"] = usage
    return FoundRecord(_record("summary", "compaction", body, model=model), folds)


class Record(NamedTuple):
    """A request to record a provider's compaction. The response says whether the record is new."""

    run_id: UUID
    records: str

    def __repr__(self) -> str:
        return f"Record(run_id={self.run_id!r}, …)"


class _Due(NamedTuple):
    """A compaction to record after the first `place` messages of a load. It covers messages `first` to `last`."""

    place: int
    number: int
    first: int
    last: int
    record: Payload


class Log:
    """The providers' compactions that were found during a load and are not recorded yet."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._met: deque[_Due] = deque()
        self._place = self._number = 0
        # The message at a place of the load has the seq `place + _aheads[i]`, with the last i of `_froms[i] <= place`.
        self._froms: list[int] = []
        self._aheads: list[int] = []

    def add_message(self, reply: Any, stored: Payload, place: int) -> None:
        """Adds the compactions in the message at a place of the load."""
        if _is_plain(reply, stored):
            return
        for each in compactions_of(reply, stored):
            self._meet(place, 1, place - 1 if each.folds else 0, each.record)

    def add(self, observed: Observed, place: int) -> None:
        """Adds a compaction that the importer yielded after `place` messages."""
        last = place if observed.last is None else observed.last
        if type(observed.first) is not int or type(last) is not int or not (observed.first >= 1 and last <= place):
            given = f"{observed.first!r:.20} to {last!r:.20}"
            raise InvalidInput(
                f"first and last of an Observed must be places of messages before it, from 1 to {place:,}, not {given}"
            )
        self._meet(place, observed.first, last if observed.spans else 0, _given(observed))

    def _meet(self, place: int, first: int, last: int, record: Payload) -> None:
        self._number = self._number + 1 if place == self._place else 1
        self._place = place
        self._met.append(_Due(place, self._number, first, last, record))

    def is_empty(self) -> bool:
        """Returns whether all records were yielded by `due`."""
        return not self._met

    def is_due(self, stored: int) -> bool:
        """Returns whether a record can be written once `stored` messages are: without one, there is no thread."""
        return bool(self._met) and 0 < stored >= self._met[0].place

    def due(self, stored: int, thread_uid: UUID) -> Iterator[Record]:
        """Yields the records that can be written. A retry of the load with the same key yields the same run ids."""
        while self.is_due(stored):
            met = self._met.popleft()
            span: Payload = {"start_seq": None, "end_seq": None}
            if met.first <= met.last:
                span = {"start_seq": self._seq(met.first), "end_seq": self._seq(met.last)}
            columns = met.record["columns"] | span | {"outcome": "observed"}
            run_id = uuid5(thread_uid, f"{self._key}#{met.place}.{met.number}")
            yield Record(run_id, json.dumps([met.record | {"columns": columns, "from": self._seq(1)}]))

    def note(self, place: int, seq: int) -> None:
        """Notes the seq of the message at a place of the load. Other writers may append messages between two chunks."""
        ahead = seq - place
        if not self._aheads or self._aheads[-1] != ahead:
            self._froms.append(place)
            self._aheads.append(ahead)

    def _seq(self, place: int) -> int:
        return place + self._aheads[bisect_right(self._froms, place) - 1]


def _given(observed: Observed) -> Payload:
    arguments.one_of(observed.kind, REPLACING_KINDS, "kind")
    arguments.name(observed.what, "what")
    for text, what in ((observed.summary_text, "summary_text"), (observed.occurred_at, "occurred_at")):
        arguments.text(text, what)
    body = {"summary_text": observed.summary_text, "occurred_at": observed.occurred_at, "provider": observed.provider}
    columns: Payload = {"model": name(observed.model)}
    for tokens, what in ((observed.tokens_before, "tokens_before"), (observed.tokens_after, "tokens_after")):
        if tokens is not None:
            arguments.number(tokens, what, least=0)
            columns |= {what: tokens, "counter": "provider"}
    # Encode the body like a message, so that it is either stored without loss or refused.
    plain = encoding.encode({part: value for part, value in body.items() if value is not None}).payload
    return _record(observed.kind, observed.what, plain, **columns)


def _record(kind: str, what: str, body: Payload, **columns: Any) -> Payload:
    """Makes the record of a provider's compaction."""
    return documents.record({"kind": kind, "callback": f"provider:{what}", "trigger": "provider", **columns}, body)
