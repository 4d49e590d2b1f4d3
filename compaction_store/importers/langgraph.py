"""Reads LangGraph's checkpoints. A thread gets every message that was ever in its state, in the order of appearance.

A checkpoint contains the messages of one moment, so all kept checkpoints are read, from the oldest to the latest.
Messages that a later checkpoint no longer contains are still imported. A record says that they were removed or
rewritten, and contains the message that replaced them, if one did. If a checkpoint only adds messages, only the new
messages are decoded.

Only the checkpoints that led to the latest one in the root graph are read, not those of abandoned branches. UNION ends
the search even if checkpoints name each other as parents.

In Postgres, each version of the messages is in a separate row; in SQLite, every checkpoint contains the whole state.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any, NamedTuple

from compaction_store.errors import InvalidSource, MissingExtra
from compaction_store.importers.databases import Database, is_postgres
from compaction_store.importers.line_files import parsed
from compaction_store.importers.sources import Item, Notes, SourceThread, moment, text, to_load
from compaction_store.models import Observed
from compaction_store.models.state import rows_of
from compaction_store.module_data import ModuleData

try:
    import msgpack
except ImportError:
    msgpack = None

_MAX_DEPTH = 200
# The extension types of LangGraph. Those of objects hold a module, a name, and the value from which the object is made.
_OBJECTS = range(6)
_WITH_FIELDS = frozenset({2, 4, 5})
_ARRAY = 6
_MADE_OF = 2


class Undecodable(ValueError):
    """The bytes cannot be decoded. The text of the error gives the reason, and quotes none of the bytes."""


class Object(NamedTuple):
    """An object: the name of its class, which is never imported, and its fields."""

    name: str
    fields: dict[str, Any]


class _Pairs(list[tuple[Any, Any]]):
    """A map as a list of pairs, because its keys may be of any type, even unhashable."""


def decode(data: bytes, depth: int = 0) -> Any:
    """Decodes exactly one value, checked first, as msgpack allocates memory for all elements that a header claims."""
    unpacker = _unpacker(data)
    with _translated():
        unpacker.skip()
    if unpacker.tell() != len(data):
        raise Undecodable("there is more than one value")
    with _translated():
        value = _unpacker(data).unpack()
    return _plain(value, depth)


def array_header(data: bytes, at: int = 0) -> tuple[int, int] | None:
    """Returns the number of elements of an array and the offset of the first; None if there is no array."""
    unpacker = _unpacker(data, at)
    with suppress(ValueError, msgpack.UnpackException):
        return unpacker.read_array_header(), at + unpacker.tell()
    return None


def split(data: bytes, at: int) -> Iterator[bytes]:
    """Yields the bytes of each value, from an offset on."""
    unpacker = _unpacker(data, at)
    begin = end = at
    while end < len(data):
        with _translated():
            unpacker.skip()
        begin, end = end, at + unpacker.tell()
        yield data[begin:end]


def find(data: bytes, *path: str, known: bytes = b"", known_count: int = 0) -> bytes | None:
    """Returns the bytes of the value at a path of names in nested maps; None if there is none.

    `known` are the bytes of the `known_count` elements of an earlier array. If the value is an array that begins with
    them, they are not scanned again. The states of a thread mostly grow at their end, so scanning each state in full
    would take quadratic time.
    """
    at = 0
    for wanted in path:
        found = _value_of(data, at, wanted)
        if found is None:
            return None
        at = found
    header = array_header(data, at)
    start, count = at, 1
    if header is not None and known_count <= header[0] and data.startswith(known, header[1]):
        start, count = header[1] + len(known), header[0] - known_count
    unpacker = _unpacker(data, start)
    with _translated():
        for _ in range(count):
            unpacker.skip()
    return data[at : start + unpacker.tell()]


def _value_of(data: bytes, at: int, wanted: str) -> int | None:
    """Returns the offset of a name's value in the map that begins at `at`."""
    unpacker = _unpacker(data, at)
    with _translated("there is no map"):
        count: int = unpacker.read_map_header()
    with _translated():
        for _ in range(count):
            start = at + unpacker.tell()
            unpacker.skip()
            value: int = at + unpacker.tell()
            if decode(data[start:value]) == wanted:
                return value
            unpacker.skip()
    return None


def _unpacker(data: bytes, at: int = 0) -> Any:
    unpacker = msgpack.Unpacker(
        max_buffer_size=max(1, len(data)), strict_map_key=False, object_pairs_hook=_Pairs, ext_hook=msgpack.ExtType
    )
    unpacker.feed(memoryview(data)[at:])
    return unpacker


def _plain(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise Undecodable("the value is nested too deeply")
    if isinstance(value, _Pairs):
        return {str(_plain(name, depth + 1)): _plain(found, depth + 1) for name, found in value}
    if isinstance(value, list):
        return [_plain(found, depth + 1) for found in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, msgpack.ExtType):
        return _extension(value.code, decode(value.data, depth + 1))
    if isinstance(value, msgpack.Timestamp):
        raise Undecodable("an object is of an unknown kind")
    return value


def _extension(code: int, value: Any) -> Any:
    if not isinstance(value, list):
        raise Undecodable("an object has an unknown form")
    if code == _ARRAY:
        return value
    if code not in _OBJECTS or len(value) <= _MADE_OF:
        raise Undecodable("an object is of an unknown kind")
    name, made_of = value[1], value[_MADE_OF]
    if code in _WITH_FIELDS and isinstance(name, str) and isinstance(made_of, dict):
        return Object(name, made_of)
    return made_of


@contextmanager
def _translated(failure: str = "the bytes are damaged") -> Iterator[None]:
    """Replaces the errors of msgpack, some of which quote data, with `Undecodable`, which quotes none."""
    try:
        yield
    except msgpack.OutOfData:
        failure = "the bytes are cut off"
    except msgpack.StackError:
        failure = "the value is nested too deeply"
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        pass
    else:
        return
    raise Undecodable(failure)


FORMAT = "langgraph"
# The messages of a checkpoint as they are stored: its id, its time, their form, and their bytes if they are there.
_Stored = tuple[str, Any, str, bytes | None]


class StateMessage(NamedTuple):
    """A message of a state: its id, or a name if it has no id; the hash of its bytes; and the message itself."""

    name: str
    form: bytes
    value: Any


# The messages of a checkpoint. If the second value is true, they are only those that it adds to the previous one.
State = tuple[list[StateMessage], bool]


def read_state(kind: str, blob: bytes, checkpoint: str, comparison: StateComparison) -> State:
    try:
        if kind == "msgpack":
            before, comparison.body, comparison.length = comparison.body, b"", 0
            header = array_header(blob)
            if header is None:
                return comparison.state([(blob, decode(blob))])
            comparison.body = body = blob[header[1] :]
            goes_on = bool(before) and body.startswith(before)
            new = split(body, len(before) if goes_on else 0)
            state = comparison.state(((raw, decode(raw)) for raw in new), goes_on=goes_on)
            comparison.length = header[0]
            return state
        if kind == "json":
            values = parsed(blob)
            values = values if isinstance(values, list) else [values]
            return comparison.state([(json.dumps(value).encode(), _constructed(value)) for value in values])
        failure = f"they are stored as {kind}"
    except ValueError as error:
        failure = str(error)
    raise InvalidSource(f"the messages of checkpoint {checkpoint} cannot be read: {failure}")


def _constructed(value: Any) -> Any:
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

    def state(self, found: Any, *, goes_on: bool = False) -> State:
        """Names the messages. A message without an id is named by its hash and its number among equal messages."""
        if not goes_on:
            self._alike = {}
        elements: list[StateMessage] = []
        for raw, value in found:
            form = sha256(raw).digest()
            name = identity(value)
            if name is None:
                self._alike[form] = self._alike.get(form, 0) + 1
                name = f"{form.hex()} {self._alike[form]}"
            elements.append(StateMessage(name, form, value))
        return elements, goes_on

    def items(self, checkpoint: str, at: Any, state: State) -> Iterator[Item]:
        about = {"checkpoint_id": checkpoint, "occurred_at": moment(at)}
        elements, goes_on = state
        new = [element for element in elements if element.name not in self._places]
        if not goes_on:
            yield from self._gone(about, elements, new)
        yield from self._rewritten(about, elements)
        for element in new:
            yield from self._message(about, element)
        self._shown = {element.name for element in elements} | (self._shown if goes_on else set())
        self._forms.update((element.name, element.form) for element in elements)

    def _gone(self, about: dict[str, Any], elements: list[StateMessage], new: list[StateMessage]) -> Iterator[Item]:
        """Yields a record for each span of messages that are no longer in the state, with their summary, if any."""
        there = {element.name for element in elements}
        places = sorted(self._places[name] for name in self._shown if name not in there and name in self._places)
        if not places:
            return
        fresh = {element.name for element in new}
        first_kept = next((i for i, element in enumerate(elements) if element.name not in fresh), 0)
        ahead = [e for i, e in enumerate(elements) if i < first_kept or is_summary(e.value)]
        summary = next((e for e in ahead if e.name in fresh), None)
        message = None if summary is None else chat_message(summary.value)
        content = message.get("content") if isinstance(message, dict) else None
        for row in rows_of(places):
            yield Observed(
                "removed" if summary is None else "summarized", kind="removal" if summary is None else "summary",
                summary_text=text(content), first=row[0], last=row[-1], occurred_at=about["occurred_at"],
                provider={"checkpoint_id": about["checkpoint_id"]} | ({} if message is None else {"message": message}),
            )  # fmt: skip

    def _rewritten(self, about: dict[str, Any], elements: list[StateMessage]) -> Iterator[Item]:
        for element in elements:
            form = self._forms.get(element.name)
            if form is not None and form != element.form and (place := self._places.get(element.name)):
                yield Observed(
                    "rewritten", kind="truncation", first=place, last=place, occurred_at=about["occurred_at"],
                    provider={"checkpoint_id": about["checkpoint_id"], "message": chat_message(element.value)},
                )  # fmt: skip

    def _message(self, about: dict[str, Any], element: StateMessage) -> Iterator[Item]:
        where = f"a message of checkpoint {about['checkpoint_id']}"
        message = chat_message(element.value)
        if message is None:
            self._notes.refuse(where, "it is not a message")
            return
        meta = {"source": FORMAT, **about, "external_id": identity(element.value)}
        for item in to_load(message, meta, self._notes, where):
            self._count += 1
            self._places[element.name] = self._count
            yield item


# ---- messages of LangChain as chat messages, with their other fields under "langchain"


_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "function"}
# Values of fields that carry no information.
_NOTHING: tuple[Any, ...] = (None, "", [], {}, False)


def identity(value: Any) -> str | None:
    """Returns the message's own id, if it has one."""
    fields = value.fields if isinstance(value, Object) else value if isinstance(value, dict) else {}
    return text(fields.get("id"))


def is_summary(value: Any) -> bool:
    """Returns whether the message is a summary by LangChain's summarization middleware."""
    more = value.fields.get("additional_kwargs") if isinstance(value, Object) else None
    return isinstance(more, dict) and more.get("lc_source") == "summarization"


def chat_message(value: Any) -> Any:
    """Converts a LangChain message, or a value that LangGraph accepts as one; returns None for other values."""
    if isinstance(value, Object):
        return _of_object(value)
    if isinstance(value, str):
        return {"role": "user", "content": value}
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value):  # noqa: PLR2004
        return {"role": _ROLES.get(value[0], value[0]), "content": value[1]}
    return _as_dicts(value) if isinstance(value, dict) and "content" in value else None


def _of_object(value: Object) -> Any:
    rest = dict(value.fields)
    kind = rest.pop("type", None)
    kind = kind.removesuffix("MessageChunk").lower() if isinstance(kind, str) else ""
    role = rest.pop("role", None) if kind == "chat" else _ROLES.get(kind)
    if "content" not in rest or not isinstance(role, str):
        return None
    message: dict[str, Any] = {"role": role, "content": _as_dicts(rest.pop("content"))}
    for name in ("name", "id", "tool_call_id"):
        if (found := rest.pop(name, None)) is not None:
            message[name] = _as_dicts(found)
    calls = rest.pop("tool_calls", None)
    if isinstance(calls, list) and calls:
        message["tool_calls"] = [_call(_as_dicts(call)) for call in calls]
    if kept := {name: _as_dicts(found) for name, found in rest.items() if found not in _NOTHING}:
        message["langchain"] = kept
    return message


def _call(call: Any) -> Any:
    if not isinstance(call, dict) or "name" not in call:
        return call
    arguments = json.dumps(call.get("args"), ensure_ascii=False, separators=(",", ":"))
    return {"id": call.get("id"), "type": "function", "function": {"name": call["name"], "arguments": arguments}}


def _as_dicts(value: Any) -> Any:
    """Replaces each object inside a value with a dict of its fields."""
    if isinstance(value, Object):
        return {name: _as_dicts(found) for name, found in value.fields.items()}
    if isinstance(value, dict):
        return {name: _as_dicts(found) for name, found in value.items()}
    return [_as_dicts(found) for found in value] if isinstance(value, list) else value


CHECKPOINTS, BLOBS = "checkpoints", "checkpoint_blobs"

_SQL = ModuleData(__file__)


class Checkpoints:
    """A database with the tables of `PostgresSaver` or `SqliteSaver`. `channel` is the key of the state's messages."""

    format = FORMAT
    unit = "threads"

    def __init__(self, database: Database, *, skip_bad: bool = False, channel: str = "messages") -> None:
        if msgpack is None:
            raise MissingExtra("an import of LangGraph's checkpoints", "importers")
        self._database = database
        self._skip_bad = skip_bad
        self._channel = channel
        self.done = 0
        [(self.total,)] = list(database.rows(self._statement("count")))

    def threads(self) -> Iterator[SourceThread]:
        for (thread,) in self._database.rows(self._statement("threads"), page=1000):
            notes = Notes(self._skip_bad)
            yield SourceThread(thread, self._items(thread, notes), notes)
            self.done += 1

    def _items(self, thread: str, notes: Notes) -> Iterator[Item]:
        comparison = StateComparison(notes)
        states = self._of_postgres if is_postgres(self._database) else self._of_sqlite
        for checkpoint, at, kind, blob in states(thread, comparison):
            if blob is None or kind == "empty":
                why = f"checkpoint {checkpoint} has no {self._channel}; a DeltaChannel cannot be imported"
                raise InvalidSource(why)
            yield from comparison.items(checkpoint, at, read_state(kind, bytes(blob), checkpoint, comparison))

    def close(self) -> None:
        self._database.close()

    def _statement(self, name: str) -> Any:
        return self._database.statement(_SQL.text(name), checkpoints=CHECKPOINTS, blobs=BLOBS)

    def _of_postgres(self, thread: str, _comparison: StateComparison) -> Iterator[_Stored]:
        # A state may be large: fetch one at a time.
        parameters: Any = {"thread": thread, "channel": self._channel}
        found: Iterator[Any] = self._database.rows(self._statement("postgres_states"), parameters, page=1)
        yield from found

    def _of_sqlite(self, thread: str, comparison: StateComparison) -> Iterator[_Stored]:
        parameters: Any = {"thread": thread}
        for (checkpoint,) in list(self._database.rows(_SQL.text("sqlite_chain"), parameters)):
            [(kind, blob)] = self._database.rows(_SQL.text("sqlite_state"), parameters | {"checkpoint": checkpoint})
            try:
                stored = self._stored(checkpoint, kind, blob, comparison)
            except ValueError as error:
                failure = str(error)
            else:
                if stored is not None:
                    yield stored
                continue
            raise InvalidSource(f"checkpoint {checkpoint} cannot be read: {failure}")

    def _stored(self, checkpoint: str, kind: str, blob: bytes, comparison: StateComparison) -> _Stored | None:
        """Returns the messages in a checkpoint; None if the thread had no messages yet."""
        if kind == "json":
            whole = parsed(blob)
            values, versions = (whole.get(name) or {} for name in ("channel_values", "channel_versions"))
            found = values.get(self._channel)
            data = None if found is None else json.dumps(found).encode()
            return None if self._channel not in versions else (checkpoint, whole.get("ts"), kind, data)
        if kind != "msgpack":
            raise Undecodable(f"the checkpoint is stored as {kind}")
        messages = find(blob, "channel_values", self._channel, known=comparison.body, known_count=comparison.length)
        if messages is None and find(blob, "channel_versions", self._channel) is None:
            return None
        written = find(blob, "ts")
        return checkpoint, None if written is None else decode(written), kind, messages
