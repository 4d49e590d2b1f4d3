"""Converts messages of any format to Anthropic's blocks, which are the intermediate form of all conversions.

Anthropic's blocks stay unchanged, except that fields that the API would refuse are left out. A part that only the
assistant can write, such as a call, is left out of any other message, and a note says so. Text, images, PDF files,
refusals, calls of functions and of custom tools, and their results are converted. Blank text, reasoning of other
providers and unsigned thinking are left out, because the API would refuse them. Everything else raises `NotRenderable`,
which names the message and the part.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from compaction_store.errors import NotRenderable
from compaction_store.messages.encoding import decode
from compaction_store.messages.parts import CALL, PARTS, RESULT, PartType, body_of, row_of, walk
from compaction_store.models import Payload

OF_ERASED = "(The result of an erased call is left out.)"
OF_NO_CALL = "(A result is left out: the call that it answers is not there.)"
OF_ASSISTANT = "(A part of this message is left out: only the assistant can write it.)"
EMPTY = "(A message without content.)"
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[^;,]*)*;base64,", re.ASCII)
# The prefix of the id for a call that has only a name. The name of a function has no colon.
BY_NAME = "function:"
_ONLY_TEXT = {"role", "content"}
_SPEAKERS = ("user", "assistant")


class PlacedBlock(NamedTuple):
    """One block, the seq of its message, and its role: "system", "user" or "assistant"."""

    seq: int
    role: str
    block: Payload


def parts(seq: int, payload: Payload) -> list[PlacedBlock]:
    """Converts a message to blocks."""
    if payload.keys() == _ONLY_TEXT and payload["role"] in _SPEAKERS and _says(text := payload["content"]):
        # This is the same as below for nearly every message, in a third of the time.
        return [PlacedBlock(seq, payload["role"], _text(text))]
    return list(_parts(seq, payload))


def _parts(seq: int, payload: Payload) -> Iterator[PlacedBlock]:
    role = payload.get("role")
    if role is None:
        yield from _item(seq, payload)
    elif role in ("system", "developer"):
        yield from (PlacedBlock(seq, "system", block) for block in _content(seq, payload.get("content")))
    elif role == "tool":
        yield PlacedBlock(seq, "user", result(seq, payload.get("tool_call_id"), payload.get("content"), "tool_call_id"))
    elif role == "function":
        name = payload.get("name")
        call = BY_NAME + name if isinstance(name, str) else None
        yield PlacedBlock(seq, "user", result(seq, call, payload.get("content"), "name"))
    elif role == "user":
        for block in list(_content(seq, payload.get("content"), leaves_out=claims_reply(payload))) or [_text(EMPTY)]:
            yield PlacedBlock(seq, "user", block)
    elif role == "assistant":
        for block in _content(seq, payload.get("content"), is_reply=True):
            yield PlacedBlock(seq, role, block)
        yield from _chat_calls(seq, payload)
    else:
        refuse(seq, "role", "its role cannot be converted to the requested format")


def claims_reply(payload: Payload) -> bool:
    """Returns whether a message has fields that only a message of the assistant may have."""
    return any(payload.get(name) for name in ("tool_calls", "function_call", "refusal", "audio"))


def _text(text: str) -> Payload:
    return {"type": "text", "text": text}


def refuse(seq: int, part: int | str | None, why: str) -> NoReturn:
    where = "" if part is None else f", part {part}" if isinstance(part, int) else f", {part!r}"
    raise NotRenderable(f"message {seq}{where}: {why}", seq=seq, part=part)


def _content(seq: int, content: Any, *, is_reply: bool = False, leaves_out: bool = False) -> Iterator[Payload]:
    """Yields the blocks of a content, without blank text, which the API refuses.

    A note follows if a part that only the assistant can write is left out of another message, or if `leaves_out`.
    """
    if content is None:
        content = []
    elif isinstance(content, str):
        content = [_text(content)]
    elif not isinstance(content, list):
        refuse(seq, "content", "it is neither text nor a list of parts")
    for place, part in enumerate(content):
        given = part if is_reply else _given(seq, place, part)
        leaves_out = leaves_out or given is None
        block = None if given is None else _block(seq, place, given)
        if block is not None and not (block.get("type") == "text" and not _says(block.get("text"))):
            yield block
    if leaves_out:
        yield _text(OF_ASSISTANT)


def _given(seq: int, place: int, part: Any) -> Any:
    """Returns a part of a message that is no reply, with a compaction block as text; None if only replies have it."""
    row = row_of(part)
    if row.name == "compaction":
        text = part.get("content") or ""
        return _text(text) if isinstance(text, str) else refuse(seq, place, "a compaction block has no text")
    return None if row.role == "assistant" else part


def _says(text: Any) -> bool:
    return isinstance(text, str) and bool(text.strip())


def _block(seq: int, place: int, part: Any) -> Payload | None:
    if not isinstance(part, dict) or not isinstance(kind := part.get("type"), str):
        refuse(seq, place, "it is not an object with a type")
    if kind == "compaction":
        # The block may be signed, so it must be sent back unchanged, including unknown fields.
        return part
    row = row_of(part)
    if row.is_thinking and not (row.anthropic and part.get(str(row.sealed))):
        # Thinking without a signature comes from another provider, and the API would refuse it.
        return None
    if row.anthropic is not None:
        known = row.anthropic.known
        block = part if part.keys() <= known else {name: value for name, value in part.items() if name in known}
        if row.step == "result" and row.is_clients and isinstance(inner := block.get("content"), list):
            given = [_given(seq, place, one) for one in inner]
            if None in given:
                given = [*(one for one in given if one is not None), _text(OF_ASSISTANT)]
            block = block if given == inner else {**block, "content": given}
        # An object of the SDK without citations has citations=None, which the API refuses.
        return {n: v for n, v in block.items() if n != "citations"} if block.get("citations", ...) is None else block
    if row.text is not None:
        text = part.get(row.text)
        return _text(text) if isinstance(text, str) else refuse(seq, place, "it has no text")
    if kind in {"image_url", "input_image"}:
        return _image(seq, place, part)
    if kind in {"file", "input_file"}:
        return _file(seq, place, part)
    refuse(seq, place, "its type cannot be converted to the requested format")


def _image(seq: int, place: int, part: Payload) -> Payload:
    found = part.get("image_url")
    url = found.get("url") if isinstance(found, dict) else found
    if not isinstance(url, str):
        refuse(seq, place, "an image without a URL or its data cannot be converted to the requested format")
    if data := _DATA_URL.match(url):
        return {"type": "image", "source": {"type": "base64", "media_type": data[1], "data": url[data.end() :]}}
    return {"type": "image", "source": {"type": "url", "url": url}}


def _file(seq: int, place: int, part: Payload) -> Payload:
    inner = part.get("file")
    data = (inner if isinstance(inner, dict) else part).get("file_data")
    found = _DATA_URL.match(data) if isinstance(data, str) else None
    if not isinstance(data, str) or found is None or found[1] != "application/pdf":
        refuse(seq, place, "a file that is not a PDF with its data cannot be converted to the requested format")
    return {"type": "document", "source": {"type": "base64", "media_type": found[1], "data": data[found.end() :]}}


def result(seq: int, call: Any, content: Any, part: str) -> Payload:
    """Converts a message or an item that is the result of a tool to a result block."""
    if not isinstance(call, str):
        refuse(seq, part, "it names no call")
    block: Payload = {"type": RESULT, PARTS[RESULT].id[0]: call}
    if isinstance(content, str) and _says(content):
        block["content"] = content
    elif content is not None and not isinstance(content, str) and (blocks := list(_content(seq, content))):
        block["content"] = blocks
    return block


def _call(seq: int, name: Any, call: Any, given: Any) -> Payload:
    if not isinstance(call, str) or not isinstance(name, str):
        refuse(seq, "call", "it has no id or no name")
    return {"type": CALL, "id": call, "name": name, "input": given}


def arguments(text: Any) -> Payload:
    """Parses the arguments of a call. Text that is not a JSON object becomes the value of `INVALID_JSON`."""
    if isinstance(text, dict):
        return text
    try:
        found = decode(text) if isinstance(text, str) and text.strip() else {}
    except (ValueError, RecursionError):
        found = text
    return found if isinstance(found, dict) else {"INVALID_JSON": text}


def _chat_calls(seq: int, payload: Payload) -> Iterator[PlacedBlock]:
    if "tool_calls" not in payload and "function_call" not in payload:
        return
    calls = payload.get("tool_calls")
    if isinstance(calls, list) and not all(isinstance(call, dict) for call in calls):
        refuse(seq, "tool_calls", "a call is not an object")
    for path, row, call in walk(payload):
        if not path or path[0] == "content":
            continue
        body, name = body_of(call), call.get("id")
        if path[0] == "function_call":
            name = f"{BY_NAME}{body.get('name')}"
        elif body is call:
            refuse(seq, "tool_calls", "a call must be of a function or of a custom tool")
        yield PlacedBlock(seq, "assistant", _call(seq, body.get("name"), name, _input(row, call)))


def _input(row: PartType, call: Payload) -> Payload:
    field, given = row.input_of(call)
    return {"input": given} if field == "input" else arguments(given)


def _item(seq: int, item: Payload) -> Iterator[PlacedBlock]:
    """Yields the parts of an item of OpenAI's Responses API that is not a message."""
    row = row_of(item)
    if row.item is not None and row.answer is not None:
        yield PlacedBlock(seq, "assistant", _call(seq, item.get("name"), item.get(row.id[0]), _input(row, item)))
    elif row.item is not None and row.answers and PARTS[row.answers[0]].answer == row.name:
        yield PlacedBlock(seq, "user", result(seq, item.get(row.id[0]), item.get(row.returns), row.id[0]))
    elif row.anthropic is not None or not row.is_thinking:
        refuse(seq, "type", "this kind of item cannot be converted to the requested format")


# ---- consecutive messages of one role are joined for chat templates that demand turns


BEGINNING = "(The conversation begins here.)"
_ROLES = frozenset({"system", "developer", "user", "assistant"})
# A message with one of these fields is followed by results, or has content that cannot be joined.
_ENDS = ("tool_calls", "function_call", "audio")
_JOINABLE = frozenset({"role", "content", "name", "refusal", "tool_calls", "function_call"})


def joined(messages: Iterable[Payload], text_part: str) -> list[Payload]:
    """Joins consecutive messages of one role and name, and begins with the user if the assistant's message comes first.

    `text_part` is the type of a text in a list of parts. Items of Responses with other fields (an id) are not joined.
    """
    found: list[Payload] = []
    for message in messages:
        if found and _fit(found[-1], message):
            found[-1] = both(found[-1], message, text_part)
        else:
            found.append(message)
    for place, message in enumerate(found):
        if message.get("role") not in ("system", "developer"):
            if message.get("role") == "assistant":
                found.insert(place, {"role": "user", "content": BEGINNING})
            break
    return found


def _fit(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    role = one.get("role")
    if role not in _ROLES or other.get("role") != role or one.get("name") != other.get("name"):
        return False
    return _JOINABLE.issuperset(one.keys() | other.keys()) and not any(one.get(name) for name in _ENDS)


def both(one: Payload, other: Payload, text_part: str) -> Payload:
    """Joins two messages of one role."""
    # A refusal is text too.
    said = (message.get(name) for message in (one, other) for name in ("content", "refusal"))
    contents = [each for each in said if each]
    content: Any = None
    if contents and all(isinstance(each, str) for each in contents):
        content = "\n\n".join(contents)
    elif contents:
        lists = ([{"type": text_part, "text": each}] if isinstance(each, str) else each for each in contents)
        content = [part for parts in lists for part in parts]
    return {name: value for name, value in {**one, **other, "content": content}.items() if name != "refusal"}


# ---- pairs of calls and results, by the rule of `tool_pairs`: the nearest earlier unanswered call with the same id


NO_RESULT = "(There is no result: the call was not answered.)"


class Pairs(NamedTuple):
    """The places of results by those of their calls (`answers`), and those of results without one (`orphans`)."""

    answers: dict[int, int]
    orphans: list[int]


def paired(steps: Iterable[tuple[int, Hashable, bool]]) -> Pairs:
    """Pairs steps. Each step is a position, an id, and whether the step is a call. The steps must be in order."""
    waiting: dict[Hashable, list[int]] = defaultdict(list)
    pairs = Pairs({}, [])
    for place, name, is_call in steps:
        if is_call:
            waiting[name].append(place)
        elif calls := waiting[name]:
            pairs.answers[calls.pop()] = place
        else:
            pairs.orphans.append(place)
    return pairs
