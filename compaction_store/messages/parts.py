"""The table of message parts: a row for each type of block, part or item of every supported API, and a walk over them.

Everything that reads messages asks this table: pairing, counting, cutting, clearing, the probes, the renderers, the
rules of the APIs and the texts for people. To support a new type of part, add a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import KW_ONLY, dataclass
from dataclasses import field as dataclass_field
from typing import Any, Literal, NamedTuple

from compaction_store.models import Payload

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


def _content(part: Payload, line: str) -> Payload:
    return {**part, "content": line}


def _output(part: Payload, line: str) -> Payload:
    return {**part, "output": line}


def _nothing(part: Payload, _line: str) -> Payload | None:
    """Removes the results of a web search, because they are encrypted and cannot be replaced by text."""
    return {**part, "content": []} if isinstance(part.get("content"), list) else None


def _code(part: Payload, line: str) -> Payload:
    return {**part, "stdout": line, "stderr": "", "content": []}


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


# ---- the rows


def _words(fields: str) -> tuple[str, ...]:
    return tuple(fields.split())


def _block(needed: str, optional: str = "") -> Shape:
    """Returns the shape of one of Anthropic's blocks."""
    return Shape(_words(needed), frozenset({"type", *needed.split(), *optional.split()}))


def _text(name: str, field: str = "text", **more: Any) -> PartType:
    return PartType(name, text=field, reads=(field,), cuts=(field,), **more)


def _call(name: str, id_: str, input_: str, reads: str | None, **more: Any) -> PartType:
    return PartType(
        name, step="call", id=(id_,), input=_words(input_), reads=None if reads is None else _words(reads), **more
    )


def _server_result(name: str, optional: str = "cache_control", **more: Any) -> PartType:
    """Makes the row of a result of a tool that Anthropic's servers run."""
    return PartType(
        name, step="result", id=("tool_use_id",), reads=("tool_use_id", "content"), role="assistant",
        **{"anthropic": _block("content tool_use_id", optional)} | more,
    )  # fmt: skip


def _call_output(name: str, needed: str, **more: Any) -> PartType:
    """Makes the row of an item that answers the call after which it is named."""
    return PartType(
        name, step="result", reads=("call_id", "output"), item=_words(needed),
        **{"id": ("call_id",), "answers": (name.removesuffix("_output"),)} | more,
    )  # fmt: skip


_READ: dict[str, Any] = {"cuts": ("content",), "cleared": _inner}
_RAN: dict[str, Any] = {"reads": ("stdout", "stderr", "content"), "cuts": ("stdout", "stderr"), "cleared": _code}
_ROWS = (
    # Texts, pictures, sounds and files
    _text("text", anthropic=_block("text", "cache_control citations"), chat=("text",)),
    _text("refusal", "refusal", chat=("refusal",), in_reply=("refusal",)),
    _text("input_text", in_message=("text",)),
    _text("output_text", in_reply=("text",)),
    _text("summary_text"),
    PartType("reasoning_text", reads=("text",), cuts=("text",)),
    PartType("logs", reads=("logs",), cuts=("logs",)),
    PartType("message", reads=("content",), cuts=("content",), item=("content", "role")),
    PartType("image", media="image", anthropic=_block("source", "cache_control transformations")),
    PartType("document", media="file", anthropic=_block("source", "cache_control citations context title")),
    PartType("container_upload", reads=("file_id",), media="file", anthropic=_block("file_id", "cache_control")),
    PartType("image_url", media="image", chat=("image_url",)),
    PartType("input_audio", media="sound", chat=("input_audio",)),
    PartType("file", media="file", chat=("file",)),
    PartType("input_image", media="image", in_message=()),
    PartType("input_file", media="file", in_message=()),
    *(PartType(name, media="image") for name in ("output_image", "computer_screenshot")),
    *(PartType(name, media="sound") for name in ("audio", "output_audio")),
    *(PartType(name, media="file") for name in ("video", "video_url", "input_video")),
    # Thinking and compactions
    PartType(
        "thinking", is_thinking=True, sealed="signature", role="assistant", reads=("thinking",),
        anthropic=_block("signature thinking"),
    ),
    PartType("redacted_thinking", is_thinking=True, sealed="data", role="assistant", anthropic=_block("data")),
    PartType(
        "reasoning", is_thinking=True, sealed="encrypted_content", role="assistant", reads=("summary", "content"),
        item=("summary",),
    ),
    PartType(
        "compaction", sealed="signature", reads=("content",), item=("encrypted_content",),
        anthropic=_block("", "cache_control content encrypted_content signature tool_changes"),
    ),
    # Anthropic's calls
    _call(
        CALL, "id", "input", "id name input", role="assistant", cuts=("input",), answer=RESULT,
        anthropic=_block("id input name", "cache_control caller toolset_name"),
    ),
    _call(
        "server_tool_use", "id", "input", "id name input", role="assistant", cuts=("input",), by_provider=True,
        anthropic=_block("id input name", "cache_control caller"),
    ),
    _call(
        "mcp_tool_use", "id", "input", "id server_name name input", role="assistant", cuts=("input",), by_provider=True,
        anthropic=_block("id input name server_name", "cache_control"),
    ),
    # Anthropic's results, and the objects in them
    PartType(
        RESULT, step="result", id=("tool_use_id",), answers=(CALL,), role="user", reads=("tool_use_id", "content"),
        cuts=("content",), cleared=_content,
        anthropic=_block("tool_use_id", "cache_control content is_error toolset_name"),
    ),
    _server_result(
        "mcp_tool_result", cuts=("content",), cleared=_content,
        anthropic=_block("tool_use_id", "cache_control content is_error"),
    ),
    _server_result("web_search_tool_result", "cache_control caller", sealed="content", cleared=_nothing),
    _server_result("web_fetch_tool_result", "cache_control caller", **_READ),
    _server_result("code_execution_tool_result", **_READ),
    _server_result("bash_code_execution_tool_result", **_READ),
    _server_result("text_editor_code_execution_tool_result", **_READ),
    _server_result("advisor_tool_result", **_READ),
    _server_result("tool_search_tool_result"),
    PartType(
        "search_result", reads=("source", "title", "content"), cuts=("content",),
        anthropic=_block("content source title", "cache_control citations"),
    ),
    PartType("web_search_result", reads=("title", "url", "page_age")),
    PartType("web_fetch_result", reads=("url", "retrieved_at", "content"), cuts=("content",), cleared=_page),
    PartType("code_execution_result", **_RAN),
    PartType("bash_code_execution_result", **_RAN),
    PartType("encrypted_code_execution_result", sealed="encrypted_stdout", reads=("stderr", "content")),
    PartType("code_execution_output", reads=("file_id",)),
    PartType("bash_code_execution_output", reads=("file_id",)),
    PartType("text_editor_code_execution_view_result", cuts=("content",), cleared=_content),
    PartType(
        "text_editor_code_execution_str_replace_result", cleared=lambda part, line: {**part, "lines": [line]}
    ),
    PartType("advisor_result", cuts=("text",), cleared=lambda part, line: {**part, "text": line}),
    PartType("tool_reference", reads=("tool_name",)),
    PartType("tool_addition", role="system", anthropic=_block("tool", "cache_control")),
    PartType("tool_removal", role="system", anthropic=_block("tool", "cache_control")),
    PartType("mcp_tool_listing", role="assistant", anthropic=_block("mcp_server_name tools")),
    PartType("fallback", role="assistant", anthropic=_block("from to", "trigger")),
    # Calls among the items of Responses
    _call(
        "function_call", "call_id", "arguments", "call_id name arguments", cuts=("arguments",),
        answer="function_call_output", item=("arguments", "call_id", "name"),
    ),
    _call(
        "custom_tool_call", "call_id", "input", "call_id name input", cuts=("input",),
        answer="custom_tool_call_output", item=("call_id", "input", "name"),
    ),
    _call(
        "computer_call", "call_id", "action actions", "call_id action actions",
        item=("call_id", "pending_safety_checks"),
    ),
    _call("local_shell_call", "call_id", "action", "call_id action", item=("action", "call_id")),
    _call("shell_call", "call_id", "action", "call_id action", item=("action", "call_id")),
    _call("apply_patch_call", "call_id", "operation", "call_id operation", item=("call_id", "operation")),
    _call("tool_search_call", "call_id", "arguments", None, item=("arguments",)),
    _call("program", "call_id", "code", None, by_provider=True, item=("call_id", "code", "fingerprint")),
    _call(
        "mcp_approval_request", "id", "arguments", "server_label name arguments",
        item=("arguments", "name", "server_label"),
    ),
    # Results among the items of Responses. In OpenAI's SDK the result of a local shell has no call_id. Its id is the id
    # of the call.
    _call_output(
        "function_call_output", "output", answers=("function_call", "tool_search_call"), cuts=("output",),
        cleared=_output,
    ),
    _call_output("custom_tool_call_output", "call_id output", cuts=("output",), cleared=_output),
    _call_output("computer_call_output", "call_id output"),
    _call_output(
        "local_shell_call_output", "output", id=("call_id", "id"), cuts=("output",),
        cleared=lambda part, line: {**part, "output": _JSON.encode(line)},
    ),
    _call_output("shell_call_output", "call_id output", cuts=("output",), cleared=_shell),
    _call_output("apply_patch_call_output", "call_id", cuts=("output",), cleared=_output),
    PartType("tool_search_output", step="result", id=("call_id",), answers=("tool_search_call",), item=("tools",)),
    PartType(
        "program_output", step="result", id=("call_id",), answers=("program",), cuts=("result",),
        cleared=lambda part, line: {**part, "result": line}, item=("call_id", "result"),
    ),
    PartType(
        "mcp_approval_response", step="result", id=("approval_request_id",), answers=("mcp_approval_request",),
        reads=("reason",), item=("approval_request_id", "approve"),
    ),
    # Items that have both a call and its result
    PartType(
        "mcp_call", step="both", id=("id",), input=("arguments",), cuts=("arguments", "output"), cleared=_output,
        reads=("server_label", "name", "arguments", "output", "error"), item=("arguments", "name", "server_label"),
    ),
    PartType("web_search_call", step="both", id=("id",), input=("action",), reads=("action",), item=("action",)),
    PartType(
        "file_search_call", step="both", id=("id",), input=("queries",), reads=("queries", "results"),
        cuts=("results",), cleared=lambda part, line: {**part, "results": [{"text": line}]}, item=("queries",),
    ),
    PartType(
        "code_interpreter_call", step="both", id=("id",), input=("code",), reads=("code", "outputs"),
        cuts=("code", "outputs"), item=("code", "container_id", "outputs"),
        cleared=lambda part, line: {**part, "outputs": [{"type": "logs", "logs": line}]},
    ),
    PartType("image_generation_call", role="assistant", item=("result",)),
    # Other items of Responses
    PartType("mcp_list_tools", reads=("server_label", "tools"), item=("server_label", "tools")),
    PartType("item_reference", reads=("id",), item=("id",)),
    PartType("additional_tools", item=("role", "tools")),
    PartType("configuration_update", item=()),
    PartType("compaction_trigger", item=()),
)  # fmt: skip
PARTS = {row.name: row for row in _ROWS}

# The calls and results in the fields of a chat message. The deprecated field `function_call` has no id, only the
# function's name.
_IN_FIELD = PartType("tool_calls", step="call", id=("id",), input=("arguments", "input"), role="assistant")
_FUNCTION = PartType("function", step="call", id=("name",), input=("arguments",), role="assistant")
_OF_ROLE = {
    "tool": PartType("tool", step="result", id=("tool_call_id",), cuts=("content",), cleared=_content),
    "function": PartType("function", step="result", id=("name",), cuts=("content",), cleared=_content),
}
# The row of parts without a type, and the rows of types that are not listed but end like this. Each of Anthropic's
# server tools has its own type of result.
UNKNOWN = PartType("")
_BY_ENDING = (
    _server_result("_tool_result", anthropic=None),
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
    of its content, and the calls in its fields except those that are also in its content. An erased message has no
    parts.
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
