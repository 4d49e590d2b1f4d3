"""The rules of Anthropic's Messages API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from compaction_store.api_rules.problems import Problem, Problems, type_of
from compaction_store.messages.parts import PartType, Shape, row_of
from compaction_store.models import Payload

IN_TOOL_RESULT = frozenset({"text", "image", "document", "search_result", "tool_reference", "browser_state"})
_ROLES = frozenset({"user", "assistant", "system"})
_FIELDS = frozenset({"role", "content"})
_SYSTEMS_FIELDS = _FIELDS | {"clear_at", "output_config"}
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_SERVER_ID = re.compile(r"srvtoolu_[a-zA-Z0-9_]+")
MOST_MESSAGES = 100_000
MOST_BREAKPOINTS = 4


class _Part(NamedTuple):
    message: int
    role: str
    kind: str
    row: PartType
    block: Payload

    @property
    def call(self) -> str:
        """The id of the call, if the block is a call or a result; an empty text if another rule reports the id."""
        return self.row.id_of(self.block) or ""

    @property
    def is_clients_result(self) -> bool:
        return self.row.step == "result" and self.row.is_clients


_Turn = list[_Part]


def refused_by_anthropic(
    messages: Sequence[Payload | None], *, system: Any = None, tools: Any = None, manual_thinking: bool = False
) -> list[Problem]:
    """Returns the problems for which Anthropic's Messages API would refuse these messages.

    Blocks of beta features are known too.

    The SDK's types define the roles, the blocks, their fields and the limit of 100,000 messages. Consecutive messages
    of one role are one turn. The documentation says where system messages and compaction blocks may be, and that tool
    results come first in the user's next turn. It also says that the result of a server's tool comes in the turn of its
    call, or later if the turn was paused. The API's errors show that ids must be unique, that no text may be blank and
    that no turn may end in thinking. With `manual_thinking` (a fixed thinking budget instead of adaptive thinking), a
    turn with thinking must begin with thinking. So must the last assistant turn, if nothing or only tool results follow
    it. The documentation says that a request has at most four cache breakpoints, those with longer lifetimes first.
    """
    problems = Problems(messages)
    if len(messages) > MOST_MESSAGES:
        problems.add(None, "too_many_messages", f"more than {MOST_MESSAGES:,} messages")
    _system_prompt(problems, system)
    _breakpoints(problems, [*(tools or ()), *(system if isinstance(system, list) else ()), *messages])
    parts: list[_Part] = []
    for index, message in enumerate(messages):
        parts.extend(_message(problems, index, message, last=index == len(messages) - 1))
    # The model would continue a last assistant message.
    if parts and parts[-1][:3] == (last := len(messages) - 1, "assistant", "text"):
        text = parts[-1].block.get("text")
        if isinstance(text, str) and text != text.rstrip():
            problems.add(last, "trailing_whitespace", "the reply to be continued ends in whitespace")
    _system_places(problems, parts)
    parts = _after_compaction(problems, [part for part in parts if part.role != "system"])
    turns = [list(turn) for _, turn in groupby(parts, lambda part: part.role)]
    if turns and turns[0][0].role != "user" and turns[0][0].kind != "compaction":
        problems.add(turns[0][0].message, "first_role", "the first message is neither a user's nor a compaction block")
    _ids(problems, parts)
    _client_tools(problems, turns)
    _server_tools(problems, turns)
    _thinking(problems, turns, manual_thinking)
    return problems.in_order()


def _breakpoints(problems: Problems, parts: Sequence[Any]) -> None:
    """Checks that there are at most four cache breakpoints, and that none has a shorter lifetime than a later one."""
    lifetimes = [mark.get("ttl") or "5m" for mark in marks_in(parts) if isinstance(mark, dict)]
    if len(lifetimes) > MOST_BREAKPOINTS:
        problems.add(None, "too_many_breakpoints", f"more than {MOST_BREAKPOINTS} cache breakpoints")
    if "1h" in lifetimes and "5m" in lifetimes[: len(lifetimes) - lifetimes[::-1].index("1h")]:
        problems.add(None, "breakpoint_lifetime", "a breakpoint with ttl 1h comes after one with ttl 5m")


def marks_in(parts: Any) -> list[Any]:
    """Returns the breakpoints in tools, in a system prompt or in the blocks of a message."""
    found = []
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict):
            found += [part["cache_control"]] if part.get("cache_control") else []
            found += marks_in(part.get("content"))
    return found


def _says(text: Any) -> bool:
    return isinstance(text, str) and bool(text.strip())


def _system_prompt(problems: Problems, system: Any) -> None:
    if isinstance(system, list):
        for block in system:
            if type_of(block) != "text":
                problems.add(None, "system", "the system prompt has a block that is not text")
            elif not _says(block.get("text")):
                problems.add(None, "empty_text", "the system prompt has a blank text block")
    elif system is not None and not isinstance(system, str):
        problems.add(None, "system", "the system prompt is neither text nor a list of text blocks")


def _message(problems: Problems, index: int, message: Payload | None, *, last: bool) -> Iterator[_Part]:
    """Checks a message, and yields its blocks of known types."""
    role = problems.role(index, message, _ROLES)
    if role is None or message is None:
        return
    if not message.keys() <= (_SYSTEMS_FIELDS if role == "system" else _FIELDS):
        problems.add(index, "extra_field", "the message has fields that it must not have")
    # Only two kinds of messages may be empty: a last assistant message, and a system message with options.
    may_be_empty = (role == "assistant" and last) or bool(role == "system" and message.get("output_config"))
    for block in _content(problems, index, message.get("content"), may_be_empty):
        row = row_of(block)
        if row.anthropic is None:
            problems.add(index, "block_type", "a block has no known type")
        else:
            _block(problems, index, role, row, row.anthropic, block)
            _values(problems, index, row, block)
            yield _Part(index, role, row.name, row, block)


def _content(problems: Problems, index: int, content: Any, may_be_empty: bool) -> list[Any]:
    if content in ("", []) or (content is None and may_be_empty):
        if not may_be_empty:
            problems.add(index, "empty_content", "the content is empty")
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        problems.add(index, "content", "the content is neither text nor a list of blocks")
        return []
    return content


def _block(problems: Problems, index: int, role: str, row: PartType, shape: Shape, block: Payload) -> None:
    problems.require(index, block, shape.needed)
    if not block.keys() <= shape.known:
        problems.add(index, "extra_field", f"a {row.name} block has fields that it must not have")
    of_system = role != "system" or row.role == "system" or row.name == "text"
    if row.role not in (None, role) or not of_system:
        rule = "compaction_misplaced" if row.name == "compaction" else "block_role"
        problems.add(index, rule, f"a {row.name} block must not be in a {role} message")


def _values(problems: Problems, index: int, row: PartType, block: Payload) -> None:
    kind = row.name
    if kind == "text" and block.get("text") is not None and not _says(block["text"]):
        problems.add(index, "empty_text", "a text block is blank")
    if kind == "compaction" and block.get("content") == "":
        problems.add(index, "empty_text", "a compaction block is empty")
    if row.is_thinking and row.sealed and block.get(row.sealed) == "":
        problems.add(index, "thinking_signature", f"the signature or the data of a {kind} block is empty")
    if row.step == "call" and not isinstance(block.get("input", {}), dict):
        problems.add(index, "tool_input", "the input of a call is not an object")
    name = block.get(row.id[0]) if row.id else None
    pattern = _SERVER_ID if kind == "server_tool_use" else _ID
    if name is not None and not (isinstance(name, str) and pattern.fullmatch(name)):
        problems.add(index, "tool_id", f"the id in a {kind} block does not match {pattern.pattern}")
    if row.step == "result" and row.is_clients and isinstance(inner := block.get("content"), list):
        for part in inner:
            if type_of(part) not in IN_TOOL_RESULT:
                problems.add(index, "block_type", f"a block in a {kind} has a type that it must not have")


def _system_places(problems: Problems, parts: list[_Part]) -> None:
    """Checks that a system message follows a user's turn, and is the last message or precedes an assistant's turn."""
    turns = [(role, next(turn).message) for role, turn in groupby(parts, lambda part: part.role)]
    for place, (role, index) in enumerate(turns):
        before = turns[place - 1][0] if place else None
        after = turns[place + 1][0] if place + 1 < len(turns) else "assistant"
        if role == "system" and (before, after) != ("user", "assistant"):
            problems.add(index, "system_place", "a system message is not between a user's turn and an assistant's")


def _after_compaction(problems: Problems, parts: list[_Part]) -> list[_Part]:
    """Returns the parts that the API does not ignore.

    A compaction block that the client requested is signed. It must be the only one and come first. A block that a
    threshold triggered is not signed and may be anywhere: the API ignores everything before the last such block. The
    API also ignores compaction blocks without content.
    """
    places = [place for place, part in enumerate(parts) if part.kind == "compaction" and part.block.get("content")]
    if not any(parts[place].block.get("signature") for place in places):
        return parts[places[-1] :] if places else parts
    if len(places) > 1:
        problems.add(parts[places[-1]].message, "compaction_ambiguous", "more than one compaction block has content")
    if places[0] > 0:
        problems.add(parts[places[0]].message, "compaction_misplaced", "a compaction block is not the first block")
    return parts


def _ids(problems: Problems, parts: list[_Part]) -> None:
    seen: set[str] = set()
    for part in parts:
        if part.row.step == "call":
            if part.call in seen:
                problems.add(part.message, "duplicate_id", "two calls have the same id")
            seen.add(part.call)


def _client_tools(problems: Problems, turns: list[_Turn]) -> None:
    """Checks that each tool_use has one tool_result in the next turn, before other content."""
    calls: dict[str, int] = {}
    for turn in turns:
        answered: set[str] = set()
        spoken = False
        for part in turn:
            if not part.is_clients_result:
                spoken = True
                continue
            name = part.call
            if spoken:
                problems.add(part.message, "results_first", "a tool_result comes after other content of its turn")
            if name in answered:
                problems.add(part.message, "duplicate_result", "a call has two results")
            elif calls.pop(name, None) is None:
                problems.add(part.message, "orphan_result", "a tool_result answers no tool_use of the turn before")
            answered.add(name)
        problems.unanswered(calls, "a tool_use has no tool_result in the next turn")
        calls = {part.call: part.message for part in turn if part.row.step == "call" and part.row.is_clients}
    problems.unanswered(calls, "a tool_use has no tool_result")


def _server_tools(problems: Problems, turns: list[_Turn]) -> None:
    """Checks that a call of a server's tool is answered in its turn, or later if the turn was paused."""
    calls: dict[str, int] = {}
    for turn in turns:
        if turn[0].role == "user" and not all(part.is_clients_result for part in turn):
            problems.unanswered(calls, "a call of a server's tool has no result")
            calls = {}
        for part in turn:
            if part.row.by_provider:
                calls[part.call] = part.message
            elif part.row.step == "result" and not part.row.is_clients and calls.pop(part.call, None) is None:
                problems.add(part.message, "orphan_result", f"a {part.kind} answers no call before it")


def _thinking(problems: Problems, turns: list[_Turn], manual: bool) -> None:
    """Checks that no turn ends in thinking, and with manual thinking, that turns with it and the last begin with it."""
    for place, turn in enumerate(turns):
        if turn[0].role != "assistant":
            continue
        if turn[-1].row.is_thinking:
            problems.add(turn[-1].message, "thinking_last", "the last block of a turn is thinking")
        # The current turn is the last turn or, if the last turn has only tool results, the turn before that.
        going_on = all(part.is_clients_result for later in turns[place + 1 : place + 3] for part in later)
        if manual and (going_on or any(part.row.is_thinking for part in turn)) and not turn[0].row.is_thinking:
            problems.add(turn[0].message, "thinking_first", "the turn does not begin with its thinking")
