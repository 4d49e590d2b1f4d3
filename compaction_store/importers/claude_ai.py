"""Reads Claude.ai's account export, whose messages consist of blocks much like those of Anthropic's API.

In the export, the results of tools are in Claude's own messages. They become user messages, as in the API. Fields that
the API does not have are kept under "claude".
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from compaction_store.importers.exports import Conversation
from compaction_store.importers.sources import EMPTY, NOT_SHOWN, Item, Notes, moment, text, to_load
from compaction_store.messages.parts import CALL, RESULT

FORMAT = "claude-ai"
IDS = ("uuid",)
TITLE = "name"
_ROLES = {"human": "user", "assistant": "assistant"}
# For each type of block: the fields that stay in the block. All others are moved to "claude".
_FIELDS = {
    "text": ("text",),
    "thinking": ("thinking", "signature"),
    CALL: ("id", "name", "input"),
    RESULT: ("tool_use_id", "content", "is_error"),
}
_IN_THE_MESSAGE = frozenset({"uuid", "sender", "text", "content", "created_at", "parent_message_uuid", "attachments"})
_Block = dict[str, Any]


def is_conversation(found: Conversation) -> bool:
    return isinstance(found.get("chat_messages"), list) and "uuid" in found


def messages(conversation: Conversation, notes: Notes, where: str) -> Iterator[Item]:
    """Yields the messages of the branch that was last shown."""
    given = conversation.get("chat_messages")
    if not isinstance(given, list):
        notes.refuse(where, "it must have a list `chat_messages`")
        return
    shown = _shown([message for message in given if isinstance(message, dict)], conversation)
    notes.leave_out("branch", NOT_SHOWN, len(given) - len(shown))
    for message in shown:
        role = _ROLES.get(str(message.get("sender")))
        if role is None:
            notes.refuse(f"a message of {where}", f"its sender must be {' or '.join(_ROLES)}")
            continue
        meta = {
            "source": FORMAT, "occurred_at": moment(message.get("created_at")),
            "external_id": text(message.get("uuid")), "parent_id": text(message.get("parent_message_uuid")),
        }  # fmt: skip
        said = list(_said(role, message))
        notes.leave_out("empty message", EMPTY, not said)
        for part in said:
            yield from to_load(part, meta, notes, f"a message of {where}")


def _shown(given: list[dict[str, Any]], conversation: Conversation) -> list[dict[str, Any]]:
    """Returns the branch up to the message that was last shown; all messages if none of them names its parent."""
    by_id = {message.get("uuid"): message for message in given}
    if not any(message.get("parent_message_uuid") in by_id for message in given):
        return given
    current: dict[str, Any] | None = by_id.get(conversation.get("current_leaf_message_uuid"), given[-1])
    path: dict[Any, dict[str, Any]] = {}
    while current is not None and current.get("uuid") not in path:
        path[current.get("uuid")] = current
        current = by_id.get(current.get("parent_message_uuid"))
    return list(reversed(path.values()))


def _said(role: str, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Converts a message to the API's format. It becomes several messages if it contains results of tools."""
    beside = {
        name: value for name, value in message.items() if name not in _IN_THE_MESSAGE and value not in (None, [], {})
    }
    blocks, rest = _blocks(message)
    if rest:
        beside["blocks"] = rest
    attached, files = _attached(message)
    if files:
        beside["attachments"] = files
    for part_role, part in _parts(role, [*blocks, *attached]):
        plain = len(part) == 1 and part[0]["type"] == "text"
        said = {"role": part_role, "content": part[0]["text"] if plain else part}
        yield said | ({"claude": beside} if beside else {})
        beside = {}


def _blocks(message: dict[str, Any]) -> tuple[list[_Block], list[Any]]:
    """Returns the blocks in the API's format, and the fields of each block that are kept under "claude"."""
    given = message.get("content")
    if not isinstance(given, list) or not given:
        words = message.get("text")
        return ([{"type": "text", "text": words}] if isinstance(words, str) and words else []), []
    blocks: list[_Block] = []
    rest: list[Any] = []
    calls: list[str] = []
    for number, block in enumerate(given):
        kind = block.get("type") if isinstance(block, dict) else None
        fields = _FIELDS.get(str(kind))
        if not isinstance(block, dict) or fields is None:
            rest.append(block)
            continue
        known = {name: block[name] for name in fields if block.get(name) is not None}
        if kind == CALL:
            calls.append(known.setdefault("id", f"{message.get('uuid')}:{number}"))
            known.setdefault("input", {})
        elif kind == RESULT:
            known.setdefault("tool_use_id", calls.pop(0) if calls else f"{message.get('uuid')}:{number}")
        if kind != "text" or known.get("text"):
            blocks.append({"type": kind, **known})
        rest.append({name: value for name, value in block.items() if name not in ("type", *fields) and value})
    return blocks, rest if any(rest) else []


def _attached(message: dict[str, Any]) -> tuple[list[_Block], list[Any]]:
    """Returns the text of attached files as blocks, and their other fields."""
    blocks: list[_Block] = []
    files: list[Any] = []
    given = message.get("attachments")
    for file in given if isinstance(given, list) else ():
        if isinstance(file, dict):
            words = file.get("extracted_content")
            if isinstance(words, str) and words:
                blocks.append({"type": "text", "text": f"{file.get('file_name') or 'attachment'}:\n{words}"})
            files.append({name: value for name, value in file.items() if name != "extracted_content"})
        else:
            files.append(file)
    return blocks, files


def _parts(role: str, blocks: list[_Block]) -> Iterator[tuple[str, list[_Block]]]:
    """Splits blocks into messages, so that results of tools are in user messages."""
    for is_result, part in groupby(blocks, lambda block: block["type"] == RESULT):
        yield ("user" if is_result else role), list(part)
