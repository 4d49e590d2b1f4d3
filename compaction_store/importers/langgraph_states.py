"""Compares the states of a LangGraph thread, one checkpoint after another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple

from compaction_store.errors import InvalidSource
from compaction_store.importers import checkpoint_values, langchain
from compaction_store.importers.checkpoint_values import Object
from compaction_store.importers.line_files import parsed
from compaction_store.importers.sources import Item, Notes, moment, text, to_load
from compaction_store.models import Observed

FORMAT = "langgraph"


class Element(NamedTuple):
    """A message of a state: its id, or a name if it has no id; the hash of its bytes; and the message itself."""

    name: str
    form: bytes
    value: Any


class State(NamedTuple):
    """The messages of a checkpoint.

    If `goes_on` is true, `elements` contains only the messages that the checkpoint adds to the previous one.
    """

    elements: list[Element]
    goes_on: bool


def read_state(kind: str, blob: bytes, checkpoint: str, comparison: StateComparison) -> State:
    try:
        if kind == "msgpack":
            before, comparison.body, comparison.length = comparison.body, b"", 0
            header = checkpoint_values.array_header(blob)
            if header is None:
                return State(
                    list(comparison.named([(blob, checkpoint_values.decode(blob))], goes_on=False)), goes_on=False
                )
            comparison.body = body = blob[header[1] :]
            goes_on = bool(before) and body.startswith(before)
            found = (
                (raw, checkpoint_values.decode(raw))
                for raw in checkpoint_values.split(body, len(before) if goes_on else 0)
            )
            state = State(list(comparison.named(found, goes_on=goes_on)), goes_on=goes_on)
            comparison.length = header[0]
            return state
        if kind == "json":
            values = parsed(blob)
            values = values if isinstance(values, list) else [values]
            pairs = [(json.dumps(value).encode(), _constructed(value)) for value in values]
            return State(list(comparison.named(pairs, goes_on=False)), goes_on=False)
        failure = f"they are stored as {kind}"
    except ValueError as error:
        failure = str(error)
    raise InvalidSource(f"the messages of checkpoint {checkpoint} cannot be read: {failure}")


def _constructed(value: Any) -> Any:
    """Reads an object from LangChain's JSON."""
    if isinstance(value, dict) and value.get("lc") and isinstance(value.get("id"), list):
        name = str(value["id"][-1])
        fields = value.get("kwargs")
        kind = name.removesuffix("Chunk").removesuffix("Message").lower()
        return Object(name, {"type": kind, **fields}) if isinstance(fields, dict) else None
    return value


class StateComparison:
    """A comparison of a thread's states, one after another: which messages are new, gone or rewritten."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        # The seq of each imported message, and its hash in the last state that contained it.
        self._places: dict[str, int] = {}
        self._forms: dict[str, bytes] = {}
        self._shown: set[str] = set()
        self._alike: dict[bytes, int] = {}
        self._count = 0
        # The bytes of the last state's messages, and their number.
        self.body = b""
        self.length = 0

    def named(self, found: Any, *, goes_on: bool) -> Iterator[Element]:
        """Names the messages. A message without an id is named by its hash and its number among equal messages."""
        if not goes_on:
            self._alike = {}
        for raw, value in found:
            form = sha256(raw).digest()
            name = langchain.identity(value)
            if name is None:
                self._alike[form] = self._alike.get(form, 0) + 1
                name = f"{form.hex()} {self._alike[form]}"
            yield Element(name, form, value)

    def items(self, checkpoint: str, at: Any, state: State) -> Iterator[Item]:
        about = {"checkpoint_id": checkpoint, "occurred_at": moment(at)}
        new = [element for element in state.elements if element.name not in self._places]
        if not state.goes_on:
            yield from self._gone(about, state.elements, new)
        yield from self._rewritten(about, state.elements)
        for element in new:
            yield from self._message(about, element)
        if not state.goes_on:
            self._shown = set()
        self._shown.update(element.name for element in state.elements)
        self._forms.update((element.name, element.form) for element in state.elements)

    def _gone(self, about: dict[str, Any], elements: list[Element], new: list[Element]) -> Iterator[Item]:
        """Yields a record for each span of messages that are no longer in the state, with their summary, if any."""
        there = {element.name for element in elements}
        places = sorted(self._places[name] for name in self._shown if name not in there and name in self._places)
        if not places:
            return
        fresh = {element.name for element in new}
        first_kept = next((i for i, element in enumerate(elements) if element.name not in fresh), 0)
        ahead = [e for i, e in enumerate(elements) if i < first_kept or langchain.is_summary(e.value)]
        summary = next((e for e in ahead if e.name in fresh), None)
        message = None if summary is None else langchain.chat_message(summary.value)
        content = message.get("content") if isinstance(message, dict) else None
        for first, last in _spans(places):
            yield Observed(
                "removed" if summary is None else "summarized", kind="removal" if summary is None else "summary",
                summary_text=text(content), first=first, last=last, occurred_at=about["occurred_at"],
                provider={"checkpoint_id": about["checkpoint_id"]} | ({} if message is None else {"message": message}),
            )  # fmt: skip

    def _rewritten(self, about: dict[str, Any], elements: list[Element]) -> Iterator[Item]:
        for element in elements:
            form = self._forms.get(element.name)
            if form is not None and form != element.form and (place := self._places.get(element.name)):
                yield Observed(
                    "rewritten", kind="truncation", first=place, last=place, occurred_at=about["occurred_at"],
                    provider={
                        "checkpoint_id": about["checkpoint_id"], "message": langchain.chat_message(element.value),
                    },
                )  # fmt: skip

    def _message(self, about: dict[str, Any], element: Element) -> Iterator[Item]:
        where = f"a message of checkpoint {about['checkpoint_id']}"
        message = langchain.chat_message(element.value)
        if message is None:
            self._notes.refuse(where, "it is not a message")
            return
        meta = {"source": FORMAT, **about, "external_id": langchain.identity(element.value)}
        item = to_load(message, meta, self._notes, where)
        if item is not None:
            self._count += 1
            self._places[element.name] = self._count
            yield item


def _spans(places: list[int]) -> Iterator[tuple[int, int]]:
    first = last = places[0]
    for place in places[1:]:
        if place > last + 1:
            yield first, last
            first = place
        last = place
    yield first, last
