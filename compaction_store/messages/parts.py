"""The table of message parts: a row for each type of block, part or item of every supported API, and a walk over them.

Everything that reads messages asks this table: pairing, counting, cutting, clearing, the probes, the renderers, the
rules of the APIs and the texts for people. The rows are in parts.toml. To support a new type of part, add a row there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import KW_ONLY, dataclass
from dataclasses import field as dataclass_field
from typing import Any, Literal, NamedTuple

from compaction_store.models import Payload
from compaction_store.module_data import ModuleData

# Anthropic's blocks are the intermediate form of all conversions. These are the types of a call and of its result.
CALL, RESULT = "tool_use", "tool_result"
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


class Shape(NamedTuple):
    """The fields that a block must have, and all fields that it may have."""

    needed: tuple[str, ...]
    known: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class PartType:
    """A row of the table.

    In Anthropic's API a part is a block of a content, in Chat Completions a part of a content, and in Responses an item
    or a part of a message. `anthropic`, `chat`, `item`, `in_message` and `in_reply` have the fields that it must have
    there. They are None where the API would refuse the part.
    """

    name: str
    _: KW_ONLY
    # Whether the part is a call, a result, or an item that has both. No span can separate the two in such an item.
    step: Literal["call", "result", "both"] | None = None
    # The fields that may have the id of the call. The first with a text counts.
    id: tuple[str, ...] = ()
    # The fields that may have the input of a call.
    input: tuple[str, ...] = ()
    # Whether the provider itself answers the call, in its next reply.
    by_provider: bool = False
    # The type of the result that can answer this call with a text.
    answer: str | None = None
    # The types of the calls that this result may answer.
    answers: tuple[str, ...] = ()
    # The only role whose messages may have the part.
    role: Literal["assistant", "user", "system"] | None = None
    # The field of a part that is nothing but text.
    text: str | None = None
    # The fields that a model reads, in order. If None, the part is counted as JSON or as `media`.
    reads: tuple[str, ...] | None = None
    # The fields with text or parts that may be cut. The first one of a result has what the tool returned.
    cuts: tuple[str, ...] = ()
    media: Literal["image", "sound", "file"] | None = None
    # Returns the result with one line in place of its content, or None if there is no place for a line.
    cleared: Callable[[Payload, str], Payload | None] | None = None
    is_thinking: bool = False
    # The field with a signature or with encrypted content. A sealed part must not be changed, only left out.
    sealed: str | None = None
    anthropic: Shape | None = None
    chat: tuple[str, ...] | None = None
    item: tuple[str, ...] | None = None
    in_message: tuple[str, ...] | None = None
    in_reply: tuple[str, ...] | None = None
    # Whether the part is a call that the application answers, or its answer.
    is_clients: bool = dataclass_field(init=False)

    def __post_init__(self) -> None:
        is_clients = self.role != "assistant" if self.step == "result" else self.step == "call" and not self.by_provider
        object.__setattr__(self, "is_clients", is_clients)

    @property
    def only_api(self) -> Literal["anthropic", "chat", "responses"] | None:
        """The API whose contents have this part, or None if several have it, or none."""
        if self.anthropic is not None:
            return "anthropic" if self.chat is None else None
        if self.chat is not None:
            return "chat" if self.in_reply is None else None
        return None if self.in_message is None and self.in_reply is None else "responses"

    @property
    def returns(self) -> str:
        """The field of a result with what the tool returned."""
        return self.cuts[0] if self.cuts else (self.reads or ("content",))[-1]

    def id_of(self, part: Payload) -> str | None:
        """Returns the id of the call in a part of this type."""
        for field in self.id:
            if type(name := part.get(field)) is str:
                return name
        return None

    def input_of(self, call: Payload, default: Any = None) -> tuple[str | None, Any]:
        """Returns the field with the input of a call, and the input. Without an input, the field is None."""
        body = body_of(call)
        return next(((field, body[field]) for field in self.input if body.get(field) is not None), (None, default))


def body_of(call: Payload) -> Payload:
    """Returns the object with the name and the input of a call. In an entry of `tool_calls`, this is an inner one."""
    return next((call[field] for field in ("function", "custom") if isinstance(call.get(field), dict)), call)


# ---- the results of tools with one line in place of their content


def _nothing(part: Payload, _line: str) -> Payload | None:
    """Removes the results of a web search, because they are encrypted and cannot be replaced by text."""
    return {**part, "content": []} if isinstance(part.get("content"), list) else None


def _page(part: Payload, line: str) -> Payload:
    source = {"type": "text", "media_type": "text/plain", "data": line}
    return {**part, "content": {"type": "document", "source": source}}


def _shell(part: Payload, line: str) -> Payload | None:
    output = part.get("output")
    first = output[0] if isinstance(output, list) and output else None
    return {**part, "output": [{**first, "stdout": line, "stderr": ""}]} if isinstance(first, dict) else None


def _inner(part: Payload, line: str) -> Payload | None:
    """Clears the object in `content`. Its type decides which field has the text."""
    content: Any = part.get("content")
    clear = row_of(content).cleared
    new = None if clear is None else clear(content, line)
    return None if new is None else {**part, "content": new}


# The functions that the rows name.
_CLEARED: dict[str, Callable[[Payload, str], Payload | None]] = {
    "content": lambda part, line: {**part, "content": line},
    "output": lambda part, line: {**part, "output": line},
    "text": lambda part, line: {**part, "text": line},
    "result": lambda part, line: {**part, "result": line},
    "lines": lambda part, line: {**part, "lines": [line]},
    "results": lambda part, line: {**part, "results": [{"text": line}]},
    "outputs": lambda part, line: {**part, "outputs": [{"type": "logs", "logs": line}]},
    "output as JSON": lambda part, line: {**part, "output": _JSON.encode(line)},
    "stdout": lambda part, line: {**part, "stdout": line, "stderr": "", "content": []},
    "nothing": _nothing,
    "page": _page,
    "shell": _shell,
    "inner": _inner,
}


def _row(name: str, *, anthropic: Any = None, cleared: str | None = None, **given: Any) -> PartType:
    """Makes the row of a table of parts.toml."""
    given["anthropic"] = anthropic and Shape(
        tuple(anthropic["needed"]), frozenset({"type", *anthropic["needed"], *anthropic.get("optional", ())})
    )
    given["cleared"] = None if cleared is None else _CLEARED[cleared]
    fields: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in given.items()}
    return PartType(name, **fields)


PARTS = {name: _row(name, **given) for name, given in ModuleData(__file__).values.items()}

# The calls and results in the fields of a chat message. The deprecated `function_call` has no id, only a name.
_IN_FIELD = PartType("tool_calls", step="call", id=("id",), input=("arguments", "input"), role="assistant")
_FUNCTION = PartType("function", step="call", id=("name",), input=("arguments",), role="assistant")
_OF_ROLE = {
    "tool": PartType("tool", step="result", id=("tool_call_id",), cuts=("content",), cleared=_CLEARED["content"]),
    "function": PartType("function", step="result", id=("name",), cuts=("content",), cleared=_CLEARED["content"]),
}
# The row of parts without a type, and those of types that end like this: each server tool has a type of result.
UNKNOWN = PartType("")
_BY_ENDING = (
    PartType("_tool_result", step="result", id=("tool_use_id",), reads=("tool_use_id", "content"), role="assistant"),
    PartType("_call_output", reads=("call_id", "output")),
    PartType("_call", role="assistant"),
)


def _unlisted(name: str) -> PartType:
    return next((row for row in _BY_ENDING if name.endswith(row.name)), UNKNOWN)


def row(name: str) -> PartType:
    """Returns the row of a type. A type that is not listed may have the row of its ending."""
    return PARTS.get(name) or _unlisted(name)


def row_of(part: Any) -> PartType:
    """Returns the row of a part. Any other value has a row without any fields."""
    if isinstance(part, dict) and type(name := part.get("type")) is str:
        return PARTS.get(name) or _unlisted(name)
    return UNKNOWN


Path = tuple[str | int, ...]


def walk(payload: Any) -> Iterator[tuple[Path, PartType, Any]]:
    """Yields the parts of a message in order, each with its path and its row.

    The first is the message itself if it has a type or is the result of a tool in Chat Completions. Then come the parts
    of its content, and the calls in its fields that are not in its content. An erased message has no parts.
    """
    if not isinstance(payload, dict):
        return
    kind, content, role = payload.get("type"), payload.get("content"), payload.get("role")
    if kind is not None and type(kind) is str:
        yield (), row(kind), payload
    if type(role) is str and role in _OF_ROLE:
        yield (), _OF_ROLE[role], payload
    known: set[str | None] = set()
    if isinstance(content, list) and kind != "reasoning":
        for place, part in enumerate(content):
            # This is `row_of` without a function call, because long threads have many parts.
            if isinstance(part, dict) and type(name := part.get("type")) is str:
                found = PARTS.get(name) or _unlisted(name)
                if found.step == "call":
                    known.add(found.id_of(part))
                yield ("content", place), found, part
            else:
                yield ("content", place), UNKNOWN, part
    if "tool_calls" in payload or "function_call" in payload:
        yield from _in_fields(payload, known)


def _in_fields(payload: Payload, known: Collection[str | None]) -> Iterator[tuple[Path, PartType, Any]]:
    calls = payload.get("tool_calls")
    for place, call in enumerate(calls if isinstance(calls, list) else ()):
        # Some frameworks keep a call both in `tool_calls` and as a block of the content.
        if isinstance(call, dict) and ((name := _IN_FIELD.id_of(call)) is None or name not in known):
            yield ("tool_calls", place), _IN_FIELD, call
    if isinstance(call := payload.get("function_call"), dict):
        yield ("function_call",), _FUNCTION, call


def answered(result: PartType, name: str, called: Collection[tuple[str, str]]) -> tuple[str, str]:
    """Returns the type and the id of the call that a result answers. `called` has those of all calls before it."""
    return next((call for kind in result.answers if (call := (kind, name)) in called), (result.answers[0], name))


def answer_to(call: Payload, text: str) -> Payload:
    """Returns the result that answers a call with a text."""
    asked = row_of(call)
    result = PARTS[str(asked.answer)]
    return {"type": result.name, result.id[0]: call[asked.id[0]], result.returns: text}
