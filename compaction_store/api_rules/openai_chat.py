"""The rules of OpenAI's Chat Completions API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compaction_store.api_rules.problems import Problem, Problems, text_of, type_of
from compaction_store.messages.parts import row_of
from compaction_store.models import Payload

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_INSTEAD_OF_CONTENT = ("tool_calls", "function_call", "audio", "refusal")
LONGEST_ID = 40
_UNANSWERED = "a call is not answered by the messages that follow directly"


def refused_by_openai(messages: Sequence[Payload | None]) -> list[Problem]:
    """Returns the problems for which OpenAI's Chat Completions API would refuse these messages.

    The SDK's types define the roles, the parts of the content and the fields of calls; an assistant message must have
    content, calls, audio or a refusal. The API's errors show three more rules. The results of a message's calls must
    follow the message directly, one for each call and no others. A list of calls must not be empty. The ids of calls
    have at most 40 characters.
    """
    problems = Problems(messages)
    waiting: dict[str, int] = {}
    answered: set[str] = set()
    for index, message in enumerate(messages):
        role = problems.role(index, message, _ROLES)
        if role is None or message is None:
            continue
        _content(problems, index, role, message)
        if role == "tool":
            problems.require(index, message, ["tool_call_id"])
            name = text_of(message.get("tool_call_id"))
            if name in answered:
                problems.add(index, "duplicate_result", "a call has two results")
            elif waiting.pop(name, None) is None:
                problems.add(index, "orphan_result", "a tool message answers no call of the message before")
            answered.add(name)
            continue
        problems.unanswered(waiting, _UNANSWERED)
        waiting = dict.fromkeys(_calls(problems, index, message), index) if role == "assistant" else {}
        answered = set()
    problems.unanswered(waiting, _UNANSWERED)
    return problems.in_order()


def _content(problems: Problems, index: int, role: str, message: Payload) -> None:
    content = message.get("content")
    if role == "function":
        problems.require(index, message, ["name"])
        if content is not None and not isinstance(content, str):
            problems.add(index, "content", "the content of a function message is not text")
    elif content is None:
        if role != "assistant" or not any(message.get(other) for other in _INSTEAD_OF_CONTENT):
            problems.add(index, "empty_content", "there is no content")
    elif isinstance(content, list):
        if not content:
            problems.add(index, "empty_content", "the list of parts is empty")
        for part in content:
            row = row_of(part)
            # All messages may have text, the user's also media, and the assistant's refusals.
            may_have = row.name == "text" or role == ("user" if row.text is None else "assistant")
            if row.chat is None or not may_have:
                problems.add(index, "block_type", f"a part of a {role} message has a type that it must not have")
            else:
                problems.require(index, part, row.chat)
    elif not isinstance(content, str):
        problems.add(index, "content", "the content is neither text nor a list of parts")


def _calls(problems: Problems, index: int, message: Payload) -> Iterator[str]:
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list) or not calls:
        problems.add(index, "tool_calls", "tool_calls is not a list, or is empty")
        return
    for call in calls:
        kind = type_of(call)
        body = call.get(kind) if kind in {"function", "custom"} else None
        if not isinstance(body, dict):
            problems.add(index, "tool_calls", "a call is neither of a function nor of a custom tool")
            continue
        problems.require(index, body, ["name", "arguments" if kind == "function" else "input"])
        problems.require(index, call, ["id"])
        if isinstance(name := call.get("id"), str):
            if len(name) > LONGEST_ID:
                problems.add(index, "long_id", f"the id of a call has more than {LONGEST_ID} characters")
            yield name
