"""Reads ChatGPT's account export. A conversation is a tree of messages; the branch that was last shown is imported.

A message becomes a chat message with its text, and its other fields are kept under "chatgpt". A message to a tool
becomes a call, and the tool's message becomes the result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from compaction_store.importers.exports import Conversation
from compaction_store.importers.line_files import json_object
from compaction_store.importers.sources import EMPTY, NOT_SHOWN, Item, Notes, moment, text, to_load

FORMAT = "chatgpt"
IDS = ("conversation_id", "id")
TITLE = "title"
_ROLES = frozenset({"system", "user", "assistant", "tool"})
_EVERYBODY = ("all", "", None)
# The fields that hold text in the different kinds of content; `parts` is a list.
_WORDS = ("parts", "text", "result", "content", "user_profile", "user_instructions", "thoughts", "summary")
_IN_THE_MESSAGE = frozenset({"id", "author", "content", "create_time"})


def is_conversation(found: Conversation) -> bool:
    return isinstance(found.get("mapping"), dict) and any(name in found for name in ("current_node", *IDS))


def messages(conversation: Conversation, notes: Notes, where: str) -> Iterator[Item]:
    """Yields the messages of the branch that was last shown."""
    if not isinstance(mapping := conversation.get("mapping"), dict):
        notes.refuse(where, "it must have a `mapping` of messages")
        return
    path = _path(mapping, conversation.get("current_node"))
    left = sum(1 for name, node in mapping.items() if name not in path and _message(node) is not None)
    notes.leave_out("branch", NOT_SHOWN, left)
    # The last call of each tool, and of all tools under None, to find the call that a tool's message answers.
    calls: dict[Any, str] = {}
    for node in path.values():
        if (message := _message(node)) is None:
            continue
        if (said := _chat(message, calls)) is None:
            notes.leave_out("empty message", EMPTY)
        elif said["role"] not in _ROLES:
            notes.refuse(f"a message of {where}", f"its author must be one of {', '.join(sorted(_ROLES))}")
        else:
            yield from to_load(said, _meta(message, node), notes, f"a message of {where}")


def _path(mapping: dict[str, Any], current: Any) -> dict[str, Any]:
    """Returns the nodes from the root to the node that was last shown, by name."""
    if not isinstance(current, str) or current not in mapping:
        leaves = [name for name, node in mapping.items() if not (isinstance(node, dict) and node.get("children"))]
        current = max(leaves, key=lambda name: _time(mapping[name]), default=None)
    path: dict[str, Any] = {}
    while isinstance(current, str) and current not in path and isinstance(node := mapping.get(current), dict):
        path[current] = node
        current = node.get("parent")
    return dict(reversed(path.items()))


def _time(node: Any) -> float:
    at = (_message(node) or {}).get("create_time")
    return float(at) if isinstance(at, int | float) else 0.0


def _message(node: Any) -> dict[str, Any] | None:
    return message if isinstance(node, dict) and isinstance(message := node.get("message"), dict) else None


def _meta(message: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    known = message.get("metadata")
    return {
        "source": FORMAT, "occurred_at": moment(message.get("create_time")), "external_id": text(message.get("id")),
        "parent_id": text(node.get("parent")),
        "model": text(known.get("model_slug")) if isinstance(known, dict) else None,
    }  # fmt: skip


def _chat(message: dict[str, Any], calls: dict[Any, str]) -> dict[str, Any] | None:
    """Converts a message of the export: a text, a tool call or a tool result. Returns None if the message is empty."""
    author = found if isinstance(found := message.get("author"), dict) else {}
    content = message.get("content")
    role, name, recipient = author.get("role"), author.get("name"), message.get("recipient")
    words, whole = _words(content)
    said: dict[str, Any] = {"role": role, "content": words}
    if role == "assistant" and recipient not in _EVERYBODY:
        call_id = text(message.get("id")) or str(recipient)
        calls[recipient] = calls[None] = call_id
        arguments = words if isinstance(json_object(words), dict) else json.dumps({"input": words}, ensure_ascii=False)
        function = {"name": str(recipient), "arguments": arguments}
        said |= {"content": "", "tool_calls": [{"id": call_id, "type": "function", "function": function}]}
    elif role == "tool":
        said["tool_call_id"] = calls.get(name, calls.get(None)) or text(message.get("id"))
    if name is not None:
        said["name"] = name
    if not words and whole and "tool_calls" not in said and role != "tool":
        return None
    kept = {key: value for key, value in message.items() if key not in _IN_THE_MESSAGE and value not in (None, {}, [])}
    if not whole:
        kept["content"] = content
    if author.get("metadata"):
        kept["author"] = author["metadata"]
    return said | ({"chatgpt": kept} if kept else {})


def _words(content: Any) -> tuple[str, bool]:
    """Returns the text of a message's content, and whether the content is only text."""
    if isinstance(content, str):
        return content, True
    if not isinstance(content, dict):
        return "", content is None
    found = list(_texts([content.get(name) for name in _WORDS]))
    plain = content.keys() <= {"content_type", "parts"} and content.get("content_type") == "text"
    parts = content.get("parts")
    is_short = isinstance(parts, list) and len(parts) <= 1 and all(isinstance(part, str) for part in parts)
    return "\n".join(found), plain and is_short


def _texts(values: list[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield from filter(None, [value])
        elif isinstance(value, list):
            yield from _texts(value)
        elif isinstance(value, dict):
            inside = list(_texts([value.get(name) for name in _WORDS]))
            kind = value.get("content_type")
            # Pictures and sounds are in separate files of the export, so only their type is known.
            yield from inside or ([f"[{kind}]"] if isinstance(kind, str) else [])
