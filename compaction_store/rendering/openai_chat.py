"""Renders a view for OpenAI's Chat Completions API, in which results follow their calls.

Chat messages stay unchanged, except for empty texts, refused fields, and ids that are too long or not unique.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from typing import Any

from compaction_store.api_rules.openai import LONGEST_ID
from compaction_store.messages.parts import row_of
from compaction_store.messages.stand_ins import shown
from compaction_store.models import Element, Payload
from compaction_store.rendering import blocks
from compaction_store.rendering.anthropic import notes

_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal", "audio")
_GIVEN_FIELDS = ("role", "content", "name", "tool_call_id")
_SAYS = ("tool_calls", "function_call", "refusal", "audio")
_ANTHROPICS = frozenset({"cache_control", "citations"})


@dataclass
class _Said:
    """One chat message. `bare` says whether it was a Responses item, which can be joined with the next item."""

    seq: int
    message: Payload
    bare: bool = False
    calls: list[Payload] = field(default_factory=list)


def request(elements: Sequence[Element], *, join: bool) -> Payload:
    """Makes the arguments of a request to the Chat Completions API."""
    said = [one for element in elements for payload in shown(element) for one in _read(element, payload)]
    messages = [one.message for one in _ordered(_joined(said), erased=any(element.is_erased for element in elements))]
    return {"messages": blocks.joined(messages, "text") if join else messages}


def _read(element: Element, payload: Payload) -> Iterator[_Said]:
    if (message := as_it_is(payload)) is not None:
        calls = message.get("tool_calls", [])
        if not isinstance(calls, list):
            blocks.refuse(element.seq, "tool_calls", "it is not a list of calls")
        if message.get("content") or any(message.get(name) for name in _SAYS) or message["role"] == "tool":
            yield _Said(element.seq, message, calls=[*calls])
    else:
        for message in converted(element, payload, _image):
            yield _Said(element.seq, message, "role" not in payload, list(message.get("tool_calls", ())))


def as_it_is(payload: Payload) -> Payload | None:
    """Returns a chat message without blank texts and fields that the API refuses; None for another format's message."""
    role, content = payload.get("role"), payload.get("content")
    if role not in ("system", "developer", "user", "assistant", "tool", "function"):
        return None
    if isinstance(content, list):
        if any(row_of(part).chat is None for part in content):
            return None
        content = [
            {n: v for n, v in part.items() if n not in _ANTHROPICS}
            for part in content
            if part["type"] != "text" or part.get("text")
        ]
        if role != "assistant" and any(part["type"] == "refusal" for part in content):
            return None
    elif content is not None and not isinstance(content, str):
        return None
    known = _FIELDS if role == "assistant" else _GIVEN_FIELDS
    message = {name: payload[name] for name in known if payload.get(name) not in (None, [])}
    if role != "assistant" and blocks.claims_reply(payload):
        note = {"type": "text", "text": blocks.OF_ASSISTANT}
        content = [*content, note] if isinstance(content, list) else f"{content or ''}\n\n{blocks.OF_ASSISTANT}".strip()
    if role == "user" and not content:
        content = blocks.EMPTY
    if content is not None:
        message["content"] = content
    return message


def converted(element: Element, payload: Payload, image: Callable[[int, Payload], Payload]) -> Iterator[Payload]:
    """Converts a message of another format to chat messages."""
    kept = filter(None, [_summary(part, element) for part in blocks.parts(element.seq, payload)])
    for is_result, same in groupby(kept, lambda part: row_of(part.block).step == "result"):
        if is_result:
            for part in same:
                row = row_of(part.block)
                if not row.is_clients:
                    blocks.refuse(
                        element.seq, "content", f"a {row.name} block cannot be converted to the requested format"
                    )
                content = _text(part.seq, row.name, part.block.get(row.returns, ""))
                yield {"role": "tool", "tool_call_id": part.block[row.id[0]], "content": content}
            continue
        for role, of_role in groupby(same, lambda part: part.role):
            listed = [part.block for part in of_role]
            if role == "assistant":
                yield _reply(element.seq, listed)
            elif role == "system":
                yield {"role": "system", "content": _text(element.seq, "content", listed)}
            else:
                yield {"role": "user", "content": _content(element.seq, listed, image)}


def _summary(part: blocks.PlacedBlock, element: Element) -> blocks.PlacedBlock | None:
    """Converts a compaction block to framed notes. Returns None for thinking and for a failed compaction."""
    kind = part.block["type"]
    if row_of(part.block).is_thinking or (kind == "compaction" and not part.block.get("content")):
        return None
    if kind == "compaction":
        return blocks.PlacedBlock(part.seq, "user", {"type": "text", "text": notes(part.block, element)})
    return part


def _text(seq: int, part: int | str, listed: Any) -> str:
    if isinstance(listed, str):
        return listed
    texts = [block["text"] if isinstance(block, dict) and block.get("type") == "text" else None for block in listed]
    if None in texts:
        blocks.refuse(seq, part, "content that is not text cannot be converted to the requested format")
    return "\n\n".join(text for text in texts if text is not None)


def _content(seq: int, listed: list[Payload], image: Callable[[int, Payload], Payload]) -> Any:
    if all(block["type"] == "text" for block in listed) and len(listed) == 1:
        return listed[0]["text"]
    content = []
    for block in listed:
        if block["type"] == "text":
            content.append({"type": "text", "text": block["text"]})
        elif block["type"] == "image":
            content.append(image(seq, block))
        elif block["type"] == "document" and _source(block).get("type") == "text":
            content.append({"type": "text", "text": str(_source(block).get("data"))})
        else:
            blocks.refuse(seq, "content", f"a {block['type']} block cannot be converted to the requested format")
    return content


def _source(block: Payload) -> Payload:
    source = block.get("source")
    return source if isinstance(source, dict) else {}


def image_url(seq: int, block: Payload) -> str:
    """Returns the URL of an image. If the image has data and no URL, returns a data URL."""
    source = _source(block)
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    if not isinstance(url := source.get("url"), str):
        blocks.refuse(seq, "image", "an image without a URL or its data cannot be converted to the requested format")
    return url


def _image(seq: int, block: Payload) -> Payload:
    return {"type": "image_url", "image_url": {"url": image_url(seq, block)}}


def _reply(seq: int, listed: list[Payload]) -> Payload:
    texts: list[Payload] = []
    calls: list[Payload] = []
    for block in listed:
        row = row_of(block)
        if row.step == "call" and row.is_clients:
            text = json.dumps(block.get(row.input[0]), ensure_ascii=False, separators=(",", ":"))
            name = str(row.id_of(block)).removeprefix(blocks.BY_NAME)
            calls.append({"id": name, "type": "function", "function": {"name": block.get("name"), "arguments": text}})
        elif block["type"] == "text":
            texts.append(block)
        else:
            blocks.refuse(seq, "content", f"a {block['type']} block cannot be converted to the requested format")
    message: Payload = {"role": "assistant", "content": _text(seq, "content", texts) if texts else None}
    return message | ({"tool_calls": calls} if calls else {})


def _joined(said: Iterable[_Said]) -> list[_Said]:
    """Joins calls that were adjacent Responses items into one message, because they belong to the same reply."""
    kept: list[_Said] = []
    for one in said:
        if kept and kept[-1].bare and one.bare and kept[-1].calls and one.calls:
            kept[-1].calls.extend(one.calls)
        else:
            kept.append(one)
    return kept


def _ordered(said: list[_Said], *, erased: bool) -> Iterator[_Said]:
    """Puts one result for each call right after the message with the calls. The ids in a message are made unique."""
    calls: list[tuple[int, str, bool]] = []
    owners: list[tuple[int, int]] = []
    for index, one in enumerate(said):
        for place, call in enumerate(one.calls):
            if isinstance(call, dict) and isinstance(name := call.get("id"), str):
                calls.append((len(owners), name, True))
                owners.append((index, place))
            else:
                blocks.refuse(one.seq, "tool_calls", "a call has no id")
        if one.message["role"] == "tool":
            if not isinstance(name := one.message.get("tool_call_id"), str):
                blocks.refuse(one.seq, "tool_call_id", "it names no call")
            calls.append((len(owners), name, False))
            owners.append((index, -1))
    pairs = blocks.paired(calls)
    left_out = {owners[place][0] for place in pairs.orphans}
    answers = {owners[call]: owners[result][0] for call, result in pairs.answers.items()}
    for index, one in enumerate(said):
        if index in left_out:
            yield _Said(one.seq, {"role": "user", "content": blocks.OF_ERASED if erased else blocks.OF_NO_CALL})
        elif one.message["role"] != "tool":
            yield from _answered(said, index, answers)


def _answered(said: list[_Said], index: int, answers: dict[tuple[int, int], int]) -> Iterator[_Said]:
    one = said[index]
    if not one.calls:
        yield one
        return
    names: dict[str, None] = {}
    results = []
    for place, call in enumerate(one.calls):
        name = _unused(call["id"], names)
        one.calls[place] = call if name == call["id"] else {**call, "id": name}
        found = answers.get((index, place))
        content = blocks.NO_RESULT if found is None else said[found].message.get("content")
        result = {"role": "tool", "tool_call_id": name, "content": "" if content is None else content}
        results.append(_Said(one.seq, result))
    yield _Said(one.seq, {**one.message, "tool_calls": one.calls})
    yield from results


def _unused(name: str, taken: dict[str, None]) -> str:
    short = name if len(name) <= LONGEST_ID else f"{name[:24]}-{sha256(name.encode(errors='replace')).hexdigest()[:12]}"
    new, count = short, 1
    while new in taken:
        count += 1
        new = f"{short[: LONGEST_ID - 6]}-{count}"
    taken[new] = None
    return new
