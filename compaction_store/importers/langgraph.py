"""LangGraph's checkpointers: a thread is what was ever among its messages, in the order in which it came there.

A checkpoint holds the messages as they were then, so that every one is read, from the first that is left to the latest:
what a later one no longer has is not lost, and that it was taken away is on record, with the message that was put in
its place, or with the one it was rewritten to. A checkpoint that only goes on is read from where the one before ended.

Read is the chain that led to the thread's latest checkpoint, in the root graph. What was left by going back is not.

In Postgres each version of the messages is a row of its own; in SQLite every checkpoint has all of the state inside.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple

from compaction_store.errors import InvalidSource
from compaction_store.importers import checkpoint_values, langchain
from compaction_store.importers.checkpoint_values import Object, Undecodable
from compaction_store.importers.databases import Database, is_postgres
from compaction_store.importers.lines import parsed
from compaction_store.importers.sources import Item, Notes, SourceThread, moment, text, to_load
from compaction_store.models import Observed

FORMAT = "langgraph"
CHECKPOINTS, BLOBS = "checkpoints", "checkpoint_blobs"

_THREADS = "SELECT DISTINCT thread_id FROM {checkpoints} WHERE checkpoint_ns = '' ORDER BY thread_id"
_COUNT = "SELECT count(DISTINCT thread_id) FROM {checkpoints} WHERE checkpoint_ns = ''"
_STATES = """
    WITH RECURSIVE chain AS (
        (
            SELECT checkpoint_id, parent_checkpoint_id, checkpoint -> 'channel_versions' ->> %(channel)s AS version,
                checkpoint ->> 'ts' AS at
            FROM {checkpoints} WHERE thread_id = %(thread)s AND checkpoint_ns = ''
            ORDER BY checkpoint_id DESC LIMIT 1
        )
        UNION ALL
        SELECT p.checkpoint_id, p.parent_checkpoint_id, p.checkpoint -> 'channel_versions' ->> %(channel)s,
            p.checkpoint ->> 'ts'
        FROM chain AS c JOIN {checkpoints} AS p
            ON p.thread_id = %(thread)s AND p.checkpoint_ns = '' AND p.checkpoint_id = c.parent_checkpoint_id
    ), states AS (
        SELECT version, min(checkpoint_id) AS checkpoint_id, min(at) AS at FROM chain
        WHERE version IS NOT NULL GROUP BY version
    )
    SELECT s.checkpoint_id, s.at, b.type, b.blob
    FROM states AS s LEFT JOIN {blobs} AS b
        ON b.thread_id = %(thread)s AND b.checkpoint_ns = '' AND b.channel = %(channel)s AND b.version = s.version
    ORDER BY s.checkpoint_id
"""


_SQLITE_CHAIN = """
    WITH RECURSIVE chain AS (
        SELECT * FROM (
            SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = :thread AND checkpoint_ns = ''
            ORDER BY checkpoint_id DESC LIMIT 1
        )
        UNION ALL
        SELECT p.checkpoint_id, p.parent_checkpoint_id FROM chain AS c JOIN checkpoints AS p
            ON p.thread_id = :thread AND p.checkpoint_ns = '' AND p.checkpoint_id = c.parent_checkpoint_id
    )
    SELECT checkpoint_id FROM chain ORDER BY checkpoint_id
"""
_SQLITE_STATE = """
    SELECT type, checkpoint FROM checkpoints
    WHERE thread_id = :thread AND checkpoint_ns = '' AND checkpoint_id = :checkpoint
"""


def has_tables(database: Database) -> bool:
    """Whether a database has the tables of LangGraph's checkpointer."""
    wanted = {CHECKPOINTS, BLOBS} if is_postgres(database) else {CHECKPOINTS}
    return wanted <= database.tables()


def opened(database: Database, *, skip_bad: bool = False, channel: str = "messages") -> Checkpoints:
    """The checkpoints of a database, whichever it is."""
    kind = PostgresCheckpoints if is_postgres(database) else SqliteCheckpoints
    return kind(database, skip_bad=skip_bad, channel=channel)


class Checkpoints(ABC):
    """A database with LangGraph's checkpoints. `channel` is the key of the state that holds the messages."""

    format = FORMAT
    unit = "threads"

    def __init__(self, database: Database, *, skip_bad: bool = False, channel: str = "messages") -> None:
        checkpoint_values.check_installed()
        self._database = database
        self._skip_bad = skip_bad
        self._channel = channel
        self.done = 0
        [(self.total,)] = list(database.rows(self._statement(_COUNT)))

    def threads(self) -> Iterator[SourceThread]:
        for (thread,) in self._database.rows(self._statement(_THREADS), page=1000):
            notes = Notes(self._skip_bad)
            yield SourceThread(thread, self._items(thread, notes), notes)
            self.done += 1

    def _items(self, thread: str, notes: Notes) -> Iterator[Item]:
        reading = _Reading(notes)
        for checkpoint, at, kind, blob in self._states(thread, reading):
            if blob is None or kind == "empty":
                raise InvalidSource(
                    f"the {self._channel} of checkpoint {checkpoint} are not there; a DeltaChannel's are not read"
                )
            yield from reading.state(checkpoint, at, _elements(kind, bytes(blob), checkpoint, reading))

    def close(self) -> None:
        self._database.close()

    def _statement(self, template: str) -> Any:
        return self._database.statement(template, checkpoints=CHECKPOINTS, blobs=BLOBS)

    @abstractmethod
    def _states(self, thread: str, reading: _Reading) -> Iterator[_Stored]:
        """The versions of a thread's messages, in order."""


class _Stored(NamedTuple):
    """The messages of a checkpoint as they are stored; `blob` is None where they are not there."""

    checkpoint: str
    at: Any
    kind: str
    blob: bytes | None


class PostgresCheckpoints(Checkpoints):
    """The tables of `PostgresSaver`."""

    def _states(self, thread: str, reading: _Reading) -> Iterator[_Stored]:  # noqa: ARG002
        # A state may be large, so that each is fetched by itself.
        parameters: Any = {"thread": thread, "channel": self._channel}
        for row in self._database.rows(self._statement(_STATES), parameters, page=1):
            yield _Stored(*row)


class SqliteCheckpoints(Checkpoints):
    """The tables of `SqliteSaver`."""

    def _states(self, thread: str, reading: _Reading) -> Iterator[_Stored]:
        parameters: Any = {"thread": thread}
        for (checkpoint,) in list(self._database.rows(_SQLITE_CHAIN, parameters)):
            [(kind, blob)] = self._database.rows(_SQLITE_STATE, parameters | {"checkpoint": checkpoint})
            try:
                stored = self._stored(checkpoint, kind, blob, reading)
            except ValueError as error:
                failure = str(error)
            else:
                if stored is not None:
                    yield stored
                continue
            raise InvalidSource(f"checkpoint {checkpoint} cannot be read: {failure}")

    def _stored(self, checkpoint: str, kind: str, blob: bytes, reading: _Reading) -> _Stored | None:
        """The messages in a checkpoint; None where it has none."""
        if kind == "json":
            whole = parsed(blob)
            values, versions = (whole.get(name) or {} for name in ("channel_values", "channel_versions"))
            found = values.get(self._channel)
            data = None if found is None else json.dumps(found).encode()
            return None if self._channel not in versions else _Stored(checkpoint, whole.get("ts"), kind, data)
        if kind != "msgpack":
            raise Undecodable(f"it is stored as {kind}")
        messages = checkpoint_values.find(
            blob, "channel_values", self._channel, known=reading.body, known_count=reading.length
        )
        if messages is None and checkpoint_values.find(blob, "channel_versions", self._channel) is None:
            return None
        written = checkpoint_values.find(blob, "ts")
        return _Stored(checkpoint, None if written is None else checkpoint_values.decode(written), kind, messages)


class _Element(NamedTuple):
    """A message of a state: its own id, or what stands for one, a hash of its form, and the message."""

    name: str
    form: bytes
    value: Any


class _State(NamedTuple):
    """The messages of a checkpoint, or, where `goes_on`, those that it has besides those of the one before."""

    elements: list[_Element]
    goes_on: bool


def _elements(kind: str, blob: bytes, checkpoint: str, reading: _Reading) -> _State:
    try:
        if kind == "msgpack":
            before, reading.body, reading.length = reading.body, b"", 0
            header = checkpoint_values.array_header(blob)
            if header is None:
                return _State(
                    list(reading.named([(blob, checkpoint_values.decode(blob))], goes_on=False)), goes_on=False
                )
            reading.body = body = blob[header[1] :]
            goes_on = bool(before) and body.startswith(before)
            found = (
                (raw, checkpoint_values.decode(raw))
                for raw in checkpoint_values.split(body, len(before) if goes_on else 0)
            )
            state = _State(list(reading.named(found, goes_on=goes_on)), goes_on=goes_on)
            reading.length = header[0]
            return state
        if kind == "json":
            values = parsed(blob)
            values = values if isinstance(values, list) else [values]
            pairs = [(json.dumps(value).encode(), _constructed(value)) for value in values]
            return _State(list(reading.named(pairs, goes_on=False)), goes_on=False)
        failure = f"they are stored as {kind}"
    except ValueError as error:
        failure = str(error)
    raise InvalidSource(f"the messages of checkpoint {checkpoint} cannot be read: {failure}")


def _constructed(value: Any) -> Any:
    """An object in the form that LangChain gives it in JSON."""
    if isinstance(value, dict) and value.get("lc") and isinstance(value.get("id"), list):
        name = str(value["id"][-1])
        fields = value.get("kwargs")
        kind = name.removesuffix("Chunk").removesuffix("Message").lower()
        return Object(name, {"type": kind, **fields}) if isinstance(fields, dict) else None
    return value


class _Reading:
    """A thread's states, one after another, and what is new or gone in each."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        # Where each message stands among those that were given out, and its form when it was last seen.
        self._places: dict[str, int] = {}
        self._forms: dict[str, bytes] = {}
        self._shown: set[str] = set()
        self._alike: dict[bytes, int] = {}
        self._count = 0
        # The bytes of the last state's messages, and how many they are.
        self.body = b""
        self.length = 0

    def named(self, found: Any, *, goes_on: bool) -> Iterator[_Element]:
        """Messages without an id are known by their form, and by how many like it came before them in the state."""
        if not goes_on:
            self._alike = {}
        for raw, value in found:
            form = sha256(raw).digest()
            name = langchain.identity(value)
            if name is None:
                self._alike[form] = self._alike.get(form, 0) + 1
                name = f"{form.hex()} {self._alike[form]}"
            yield _Element(name, form, value)

    def state(self, checkpoint: str, at: Any, state: _State) -> Iterator[Item]:
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

    def _gone(self, about: dict[str, Any], elements: list[_Element], new: list[_Element]) -> Iterator[Item]:
        """Records, for each span, of messages that a state no longer has, with the message that came in their place."""
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

    def _rewritten(self, about: dict[str, Any], elements: list[_Element]) -> Iterator[Item]:
        for element in elements:
            form = self._forms.get(element.name)
            if form is not None and form != element.form and (place := self._places.get(element.name)):
                yield Observed(
                    "rewritten", kind="truncation", first=place, last=place, occurred_at=about["occurred_at"],
                    provider={
                        "checkpoint_id": about["checkpoint_id"], "message": langchain.chat_message(element.value),
                    },
                )  # fmt: skip

    def _message(self, about: dict[str, Any], element: _Element) -> Iterator[Item]:
        where = f"a message of checkpoint {about['checkpoint_id']}"
        message = langchain.chat_message(element.value)
        if message is None:
            self._notes.refuse(where, "it is no message")
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
