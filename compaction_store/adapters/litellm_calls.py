"""Reads a LiteLLM call: the messages as the client sent them, and the reply in the same form.

If a provider cannot compact a long request to `/v1/messages`, LiteLLM compacts it. LiteLLM asks a model for a summary
in a separate call, and then sends the summary in the system prompt in place of the messages. A logger sees this only in
the request that was sent, not in the client's messages or in the reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from compaction_store import arguments
from compaction_store.errors import InvalidInput
from compaction_store.messages import encoding
from compaction_store.messages.answers import field
from compaction_store.messages.parts import CALL, row_of
from compaction_store.messages.tool_pairs import is_system
from compaction_store.models import Payload

_TYPES = {"completion", "acompletion", "anthropic_messages", "responses", "aresponses"}
_REDACTED = "redacted-by-litellm"
# Texts from LiteLLM's source. A test compares them with the installed release.
SUMMARY_PREFIX = "Previous conversation summary: "
SUMMARY_WANTED = "You must wrap your summary in a <summary></summary> block."
_SUMMARY = re.compile(r"<summary>(.*?)</summary>", re.IGNORECASE | re.DOTALL)
_TEXTS = {"text", "input_text", "output_text"}


class Call(NamedTuple):
    """A call that waits to be stored. `sent` holds the messages that the provider got, if LiteLLM compacted them."""

    session: str | None
    scope: str
    at: datetime
    meta: Payload
    usage: Payload | None
    messages: list[str]
    replies: list[str]
    sent: list[str]
    #: The summary, if this call only asked the model for one.
    summary: str | None
    size: int

    def __repr__(self) -> str:
        return f"Call(session={self.session!r}, at={self.at!r}, …)"


def call_of(
    kwargs: Mapping[str, Any], response: Any, at: datetime, session_of: Callable[[dict[str, Any]], str | None] | None
) -> Call | None:
    """Returns a call from the arguments that LiteLLM passes to a logger; None if the call is not a chat."""
    if kwargs.get("call_type") not in _TYPES:
        return None
    about = kwargs.get("litellm_params") or {}
    given = kwargs.get("messages") or kwargs.get("input") or []
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    if any(field(each, "content") == _REDACTED for each in messages):
        raise InvalidInput("messages must not be redacted: LiteLLM's message logging is off")
    is_anthropic = kwargs["call_type"] == "anthropic_messages"
    sent = _sent(kwargs) if is_anthropic else []
    prompt = _system(about, kwargs, sent) if is_anthropic else (kwargs.get("optional_params") or {}).get("instructions")
    if isinstance(prompt, str | list) and prompt and (is_anthropic or isinstance(prompt, str)):
        messages = [{"role": "system", "content": prompt}, *messages]
    replies = _replies(response, is_anthropic)
    meta: Payload = {"call_id": kwargs.get("litellm_call_id"), "model": kwargs.get("model"), "at": at.isoformat()}
    if response is None:
        meta["failed"] = type(kwargs.get("exception")).__name__
    choices = field(response, "choices")
    if isinstance(choices, list) and len(choices) > 1:
        # The conversation continues with the first choice. The meta of the reply keeps the others.
        meta["choices"] = [_plain(message) for each in choices[1:] if (message := field(each, "message")) is not None]
    session = _session(about) if session_of is None else session_of(dict(kwargs))
    if session is not None:
        arguments.check_thread_id(session)
    texts = [encoding.encode(_plain(each)).text for part in (messages, replies, sent) for each in part]
    first, second = len(messages), len(messages) + len(replies)
    metadata = about.get("metadata") or {}
    size = sum(map(len, texts)) + len(encoding.encode(meta).text)
    return Call(
        session, f"{metadata.get('user_api_key_hash')} {kwargs.get('user')}", at, meta, _usage(response),
        texts[:first], texts[first:second], texts[second:], _written_summary(messages, replies), size,
    )  # fmt: skip


def _session(about: Mapping[str, Any]) -> str | None:
    metadata = [about.get(name) or {} for name in ("metadata", "litellm_metadata")]
    found = about.get("litellm_session_id") or next((m["session_id"] for m in metadata if m.get("session_id")), None)
    return None if found is None else str(found)


def _sent(kwargs: Mapping[str, Any]) -> list[Any]:
    found = kwargs.get("input")
    first = field(found[0], "content") if isinstance(found, list) and found else None
    return list(found) if isinstance(first, str) and first.startswith(SUMMARY_PREFIX) else []  # type: ignore[arg-type]


def _system(about: Mapping[str, Any], kwargs: Mapping[str, Any], sent: Sequence[Any]) -> Any:
    """Returns the system prompt of a request to `/v1/messages`, where it is in a field beside the messages."""
    request = about.get("proxy_server_request") or {}
    found = (request.get("body") or {}).get("system") or (kwargs.get("optional_params") or {}).get("system")
    first = (kwargs.get("input") or [None])[0]
    if found is None and not sent and field(first, "role") == "system":
        found = field(first, "content")
    return found


def _replies(response: Any, is_anthropic: bool) -> list[Any]:
    if response is None:
        return []
    output = field(response, "output")
    if isinstance(output, list):
        return output
    if field(response, "type") == "message" and isinstance(field(response, "content"), list):
        return [{"role": "assistant", "content": field(response, "content")}]
    choices = field(response, "choices") or []
    found = [message for each in choices[:1] if (message := field(each, "message")) is not None]
    return [_as_blocks(message) for message in found] if is_anthropic else found


def _as_blocks(message: Any) -> Payload:
    """Converts a reply to the form that `/v1/messages` returns to the client."""
    plain = _plain(message)
    blocks: list[Any] = list(plain.get("thinking_blocks") or [])
    if plain.get("content"):
        blocks.append({"type": "text", "text": plain["content"]})
    for call in plain.get("tool_calls") or []:
        given = call["function"].get("arguments") or "{}"
        blocks.append({"type": CALL, "id": call["id"], "name": call["function"]["name"], "input": _loaded(given)})
    return {"role": "assistant", "content": blocks}


def _usage(response: Any) -> Payload | None:
    found = field(response, "usage")
    read = [field(found, name) for name in ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")]
    given, written = read[0] if isinstance(read[0], int) else read[2], read[1] if isinstance(read[1], int) else read[3]
    if not isinstance(given, int) or not isinstance(written, int):
        return None
    return {"input_tokens": given, "output_tokens": written}


def _written_summary(messages: Sequence[Any], replies: Sequence[Any]) -> str | None:
    if not messages or not replies or SUMMARY_WANTED not in _text_of(field(messages[-1], "content")):
        return None
    found = _SUMMARY.search(_text_of(field(replies[0], "content")))
    return found.group(1).strip() if found else None


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(text for part in parts if isinstance(text := field(part, "text"), str))


def _plain(message: Any) -> Payload:
    """Returns a message as a dict without null fields. Drops `provider_specific_fields` of an SDK's object too."""
    if callable(dump := getattr(message, "model_dump", None)):
        found = dump(exclude_none=True, warnings=False)
        found.pop("provider_specific_fields", None)
        return found  # type: ignore[no-any-return]
    if not isinstance(message, Mapping):
        raise InvalidInput(f"a message must be a dict, not {type(message).__name__}")
    return {name: value for name, value in message.items() if value is not None}


def _loaded(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {"arguments": text}


def compared(payload: Payload) -> Payload:
    """Returns a message without ids of replies, cache hints and thinking, which a client may leave out."""
    found: Payload = {"role": payload.get("role"), "content": _content(payload.get("content"))}
    if calls := payload.get("tool_calls"):
        found["calls"] = [[c.get("id"), c.get("function", {}).get("name"), c.get("function", {}).get("arguments")]
                          for c in calls if isinstance(c, dict)]  # fmt: skip
    if "role" not in payload or "tool_call_id" in payload:
        left_out = {"id", "status", "content", "role", "tool_calls", "name"}
        found |= {name: value for name, value in payload.items() if name not in left_out and value is not None}
    return found


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content or ""
    blocks = [each for each in map(_block, content) if each is not None]
    if len(blocks) == 1 and isinstance(blocks[0], str):
        return blocks[0]
    return blocks or ""


def _block(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    if row_of(block).is_thinking:
        return None
    if block.get("type") in _TEXTS and isinstance(block.get("text"), str):
        return block["text"]
    found = {name: value for name, value in block.items() if name != "cache_control" and value is not None}
    if "content" in found:
        found["content"] = _content(found["content"])
    return found


def has_compaction(payload: Payload) -> bool:
    content = payload.get("content")
    return isinstance(content, list) and any(isinstance(b, dict) and b.get("type") == "compaction" for b in content)


def after_compaction(messages: list[Payload]) -> list[Payload]:
    """Returns the system prompt, the last compaction block as a message, and all after it: what a provider reads."""
    place = max((place for place, each in enumerate(messages) if has_compaction(each)), default=None)
    if place is None:
        return messages
    content = messages[place]["content"]
    at = max(n for n, block in enumerate(content) if isinstance(block, dict) and block.get("type") == "compaction")
    rest = [{**messages[place], "content": content[at + 1 :]}] if content[at + 1 :] else []
    system = [each for each in messages[:place] if is_system(each)]
    return [*system, {"role": "assistant", "content": [content[at]]}, *rest, *messages[place + 1 :]]
