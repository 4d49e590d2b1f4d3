"""The rules of OpenAI's Chat Completions API and Responses API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compaction_store.api_rules.problems import Problem, Problems, text_of, type_of
from compaction_store.messages.parts import PartType, answered, row, row_of
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
            if row.chat is None or not (row.name == "text" or role == ("user" if row.text is None else "assistant")):
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


MAY_BE_NULL = frozenset({"code", "outputs", "result"})
_ITEM_ROLES = frozenset({"user", "assistant", "system", "developer"})
IN_OUTPUTS: dict[str | None, str] = {"logs": "logs", "image": "url"}
_LONGEST_CALL_ID = 64


def refused_by_openai_responses(items: Sequence[Payload | None]) -> list[Problem]:
    """Returns the problems for which OpenAI's Responses API would refuse these items as a request's whole input.

    The SDK's types define the items, their fields and the roles, and allow a compaction trigger only at the end. The
    API's errors show the other rules. Every call that the API does not answer itself needs an output, and every output
    must follow its call; the same holds for approvals. Reasoning must be followed by the item that it led to. The
    content of a reply consists of output parts, and that of any other message of input parts. No two items may have the
    same id. Ids of calls have at most 64 characters. If the input contains an item reference, outputs without a call
    are not reported, because the reference may refer to the call.
    """
    problems = Problems(items)
    rows = [_row(item) for item in items]
    waiting: dict[tuple[str, str], int] = {}
    called: set[tuple[str, str]] = set()
    seen: set[str] = set()
    for index, (found, item) in enumerate(zip(rows, items, strict=True)):
        if found is None or item is None:
            problems.add(
                index, "no_object" if not isinstance(item, dict) else "item_type", "the item has no known type"
            )
            continue
        _item(problems, index, found, item, seen)
        if found.step == "call" and (name := found.id_of(item)) is not None:
            called.add((found.name, name))
            if not found.by_provider and (found.name != "tool_search_call" or item.get("execution") == "client"):
                waiting[found.name, name] = index
        elif found.step == "result" and (name := found.id_of(item)) is not None:
            waiting.pop(answers := answered(found, name, called), None)
            if answers not in called and row("item_reference") not in rows:
                problems.add(index, "orphan_result", f"a {found.name} answers no call before it")
        elif found.is_thinking and not _leads_on(rows, items, index):
            problems.add(index, "reasoning_last", "reasoning is not followed by the item that it led to")
        elif found.name == "compaction_trigger" and index + 1 < len(items):
            problems.add(index, "trigger_place", "a compaction trigger is not the last item")
    for (kind, _), index in waiting.items():
        problems.add(index, "unanswered_call", f"a {kind} has no output")
    return problems.in_order()


def _row(item: Payload | None) -> PartType | None:
    """Returns the row of an item; None if its type is unknown. Messages and references need not state their type."""
    if not isinstance(item, dict):
        return None
    if item.get("type") is None:
        return row("message") if "role" in item else row("item_reference") if item.keys() <= {"id", "type"} else None
    found = row_of(item)
    return None if found.item is None else found


def _leads_on(rows: Sequence[PartType | None], items: Sequence[Payload | None], index: int) -> bool:
    """Returns whether the item after reasoning can be its result: the model must have written that item."""
    if index + 1 == len(items):
        return False
    found, item = rows[index + 1], items[index + 1]
    if found is None or item is None:
        return True
    if found.name == "message":
        return item.get("role") == "assistant"
    return found.step != "result" and found.name != "compaction_trigger"


def _item(problems: Problems, index: int, found: PartType, item: Payload, seen: set[str]) -> None:
    kind = found.name
    problems.require(index, item, [field for field in found.item or () if field not in MAY_BE_NULL])
    if isinstance(name := item.get("id"), str):
        if name in seen:
            problems.add(index, "duplicate_id", "two items have the same id")
        seen.add(name)
    if len(text_of(item.get("call_id"))) > _LONGEST_CALL_ID:
        problems.add(index, "long_id", f"the call_id has more than {_LONGEST_CALL_ID} characters")
    if kind == "code_interpreter_call" and isinstance(outputs := item.get("outputs"), list):
        for output in outputs:
            if (type_ := type_of(output)) not in IN_OUTPUTS:
                problems.add(index, "block_type", "an output of code is neither logs nor an image")
            else:
                problems.require(index, output, [IN_OUTPUTS[type_]])
    if kind == "message" and (role := problems.role(index, item, _ITEM_ROLES)) is not None:
        _item_content(problems, index, role, item.get("content"))


def _item_content(problems: Problems, index: int, role: str, content: object) -> None:
    if isinstance(content, list):
        for part in content:
            found = row_of(part)
            needed = found.in_reply if role == "assistant" else found.in_message
            if needed is None:
                problems.add(index, "block_type", f"a part of a {role} message has a type that it must not have")
            else:
                problems.require(index, part, needed)
    elif not isinstance(content, str):
        problems.add(index, "content", "the content is neither text nor a list of parts")
