"""Converts Pydantic AI's messages for the store.

The parts of a message become blocks whose text and tool calls the store can read. The store needs them to count tokens,
to search text and to keep a call with its result. Nothing is left out, so every message can be restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, Self

from pydantic_core import PydanticSerializationError, to_json

from compaction_store.errors import InvalidInput, MissingExtra
from compaction_store.messages.parts import CALL, RESULT
from compaction_store.models import Message, Payload

try:
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, UserPromptPart
except ImportError as error:
    raise MissingExtra("the conversation store of Pydantic AI", "pydantic-ai") from error

OURS = "pydantic_ai"
_ROLES = {"request": "user", "response": "assistant"}
_BLOCKS: dict[str, tuple[str, dict[str, str]]] = {
    "text": ("text", {"content": "text"}),
    "user-prompt": ("text", {"content": "text"}),
    "system-prompt": ("text", {"content": "text"}),
    "thinking": ("thinking", {"content": "thinking"}),
    "tool-call": (CALL, {"id": "part_id", "tool_call_id": "id", "tool_name": "name", "args": "input"}),
    "tool-return": (RESULT, {"tool_call_id": "tool_use_id"}),
    "compaction": ("compaction", {}),
}


class EntryId(str):  # noqa: SLOT000 — it has an attribute
    """The id of an entry, with the name of the entry's thread, so that no search for the thread is needed."""

    thread_id: str

    def __new__(cls, text: str, thread_id: str = "") -> Self:
        made = super().__new__(cls, text)
        made.thread_id = thread_id
        return made


class Stored(NamedTuple):
    """An entry in its stored form. `payload` is the message, and `seq` is 0 if the entry is not stored yet."""

    entry_id: str
    parent_id: str | None
    payload: Payload
    seq: int = 0

    def __repr__(self) -> str:
        return f"Stored({self.entry_id!r}, seq={self.seq})"


def _ours(message: Message) -> Payload:
    found = (message.meta or {}).get(OURS)
    return found if isinstance(found, dict) else {}


def entry_id(message: Message) -> str | None:
    return _ours(message).get("id")


def record_of(message: Message) -> tuple[bool, Payload | None]:
    """Returns whether a message carries a conversation's record, and the record: None for a deleted one."""
    if message.payload is not None and OURS in message.payload:
        return True, message.payload[OURS]
    found = _ours(message)
    return "record" in found, found.get("record")


def walk(head_id: str, messages: Sequence[Message]) -> list[Stored] | None:
    """Returns the history that ends at an entry, as far back as `messages` go; None if they lack the entry."""
    places = {entry_id(message): place for place, message in enumerate(messages)}
    path: list[Stored] = []
    current: str | None = head_id
    while current is not None and (place := places.pop(current, None)) is not None:
        message = messages[place]
        parent = _ours(message).get("parent")
        path.append(Stored(current, parent, message.payload or {}, message.seq))
        if parent is not None and parent not in places:
            # The parent may be an erased message, which has lost its id: continue with the message before it.
            before = place - 1
            while before >= 0 and messages[before].redacted:
                before -= 1
            parent = entry_id(messages[before]) if 0 <= before < place - 1 else None
        current = parent
    return path[::-1] or None


def dumped(adapter: Any, value: Any) -> Any:
    try:
        return adapter.dump_python(value, mode="json")
    except PydanticSerializationError:
        # Hide the original error, because it quotes the value.
        raise InvalidInput("a conversation must have a JSON form: a value in it has none") from None


def to_payload(message: Any) -> Payload:
    """Converts a message for the store. Its parts become blocks whose text and tool calls the store can read."""
    [found] = dumped(ModelMessagesTypeAdapter, [message])
    blocks = [_block(part) for part in found.pop("parts")]
    return {"role": _ROLES[found["kind"]], "content": blocks, **found}


def from_payload(payload: Payload, created_at: datetime | None = None) -> Any:
    """Converts a stored message back. A message of another form, such as a summary, becomes a user prompt."""
    if payload.get("kind") not in _ROLES or not isinstance(payload.get("content"), list):
        text = payload.get("content")
        at = {} if created_at is None else {"timestamp": created_at}
        return ModelRequest(parts=[UserPromptPart(text if isinstance(text, str) else to_json(payload).decode(), **at)])
    rest = {name: value for name, value in payload.items() if name not in {"role", "content"}}
    [message] = ModelMessagesTypeAdapter.validate_python([{"parts": [_part(b) for b in payload["content"]], **rest}])
    return message


def _block(part: Payload) -> Payload:
    kind = part["part_kind"]
    if kind not in _BLOCKS or (_BLOCKS[kind][0] == "text" and not isinstance(part["content"], str)):
        return part
    block_type, names = _BLOCKS[kind]
    return {"type": block_type, **{names.get(name, name): value for name, value in part.items()}}


def _part(block: Payload) -> Payload:
    if "type" not in block:
        return block
    names = {new: old for old, new in _BLOCKS[block["part_kind"]][1].items()}
    return {names.get(name, name): value for name, value in block.items() if name != "type"}
