"""Renders a view for OpenAI's Responses API. Messages of other formats become items.

Items stay unchanged, except for fields that only the SDK adds. A result without a call becomes a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from compaction_store.messages.parts import answer_to, answered, row_of
from compaction_store.messages.stand_ins import shown
from compaction_store.models import Element, Payload
from compaction_store.rendering import blocks
from compaction_store.rendering.acceptance import has_content
from compaction_store.rendering.blocks import NO_RESULT, OF_ERASED, OF_NO_CALL, paired, refuse
from compaction_store.rendering.openai_chat import as_it_is, converted, image_url

# Fields that only the SDK's objects have.
_NAMES = frozenset({"parsed", "parsed_arguments", "async_"})


def request(elements: Sequence[Element], *, join: bool) -> Payload:
    """Makes the arguments of a request to the Responses API."""
    items = [(one.seq, item) for one in elements for payload in shown(one) for item in _items(one, payload)]
    whole = list(_whole(items, erased=any(element.is_erased for element in elements)))
    return {"input": blocks.joined(whole, "input_text") if join else whole}


def _items(element: Element, payload: Payload) -> Iterator[Payload]:
    if _is_item(payload):
        item = {**_without_names(payload)}
        if isinstance(content := item.get("content"), list):
            item["content"] = [_without_names(part) if isinstance(part, dict) else part for part in content]
        yield item
        return
    plain = as_it_is(payload)
    for message in [plain] if plain is not None else converted(element, payload, _image):
        yield from _from_chat(element.seq, message)


def _without_names(part: Payload) -> Payload:
    return part if _NAMES.isdisjoint(part) else {name: value for name, value in part.items() if name not in _NAMES}


def _is_item(payload: Payload) -> bool:
    """Returns whether a payload is already an item of the Responses API, with valid parts."""
    kind, row = payload.get("type"), row_of(payload)
    is_other = row.item is not None and kind != "message" and payload.get("role", "assistant") == "assistant"
    if "role" not in payload or is_other:
        return row.item is not None
    if any(payload.get(name) for name in ("tool_calls", "function_call", "tool_call_id")):
        return False
    if not payload.keys() <= {"role", "content", "type", "id", "status", "phase"} or kind not in (None, "message"):
        return False
    content, role = payload.get("content"), payload["role"]
    field = "in_reply" if role == "assistant" else "in_message"
    if role == "user" and not has_content(payload):
        return False
    if isinstance(content, list):
        return all(getattr(row_of(part), field) is not None for part in content)
    return isinstance(content, str) and bool(content) and role in ("user", "assistant", "system", "developer")


def _from_chat(seq: int, message: Payload) -> Iterator[Payload]:
    role, content = message["role"], message.get("content")
    if role == "tool":
        output = content if isinstance(content, str) else _said(seq, "user", content or [])
        yield {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output}
        return
    if role == "function" or message.get("function_call"):
        refuse(seq, "function_call", "a call without an id cannot be converted to the Responses format")
    if content is None and isinstance(message.get("refusal"), str):
        content = message["refusal"]
    if content:
        if role == "assistant" and not isinstance(content, str):
            # Send plain text, because the parts of a reply need ids, which these parts do not have.
            content = "\n\n".join(str(part.get("text") or part.get("refusal") or "") for part in content)
        yield {"role": role, "content": content if isinstance(content, str) else _said(seq, role, content)}
    yield from (_call(seq, call) for call in message.get("tool_calls", ()))


def _call(seq: int, call: Any) -> Payload:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(function, dict):
        arguments = function.get("arguments")
        return {
            "type": "function_call", "call_id": call.get("id"), "name": function.get("name"), "arguments": arguments,
        }  # fmt: skip
    custom = call.get("custom") if isinstance(call, dict) else None
    if not isinstance(custom, dict):
        refuse(seq, "tool_calls", "a call must be of a function or of a custom tool")
    return {"type": "custom_tool_call", "call_id": call.get("id"), **custom}


def _said(seq: int, role: str, content: list[Any]) -> list[Payload]:
    """Converts the parts of a chat message to parts of an item."""
    said: list[Payload] = []
    for place, part in enumerate(content):
        kind = part.get("type")
        if kind == "text":
            said.append({"type": "input_text", "text": part.get("text")})
        elif kind == "image_url" and role == "user" and isinstance(found := part.get("image_url"), dict):
            said.append({"type": "input_image", "image_url": found.get("url"), "detail": found.get("detail") or "auto"})
        elif kind == "input_image":
            said.append(part)
        elif kind == "file" and role == "user" and isinstance(part.get("file"), dict):
            said.append({"type": "input_file", **part["file"]})
        else:
            refuse(seq, place, "its type cannot be converted to the Responses format")
    return said


def _image(seq: int, block: Payload) -> Payload:
    return {"type": "input_image", "image_url": image_url(seq, block), "detail": "auto"}


def _whole(items: list[tuple[int, Payload]], *, erased: bool) -> Iterator[Payload]:
    """Adds an output to each unanswered call, after its group of calls, and makes a text of a result without a call."""
    steps = []
    called: set[tuple[str, str]] = set()
    rows = [row_of(item) for _, item in items]
    for place, (row, (_, item)) in enumerate(zip(rows, items, strict=True)):
        if row.step == "call" and (name := row.id_of(item)) is not None:
            called.add((row.name, name))
            steps.append((place, (row.name, name), True))
        elif row.step == "result" and (name := row.id_of(item)) is not None:
            steps.append((place, answered(row, name, called), False))
    pairs = paired(steps)
    # An item reference may refer to the call of any result. So if there is one, no result is replaced.
    orphans = frozenset[int]() if any(row.name == "item_reference" for row in rows) else frozenset(pairs.orphans)
    unanswered: list[Payload] = []
    for place, (row, (seq, item)) in enumerate(zip(rows, items, strict=True)):
        if unanswered and row.answer is None:
            yield from unanswered
            unanswered = []
        yield {"role": "user", "content": OF_ERASED if erased else OF_NO_CALL} if place in orphans else item
        if row.answer is not None and place not in pairs.answers:
            if row.id_of(item) is None:
                refuse(seq, row.id[0], "the call has no id")
            unanswered.append(answer_to(item, NO_RESULT))
    yield from unanswered
