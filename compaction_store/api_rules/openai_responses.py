"""The rules of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Sequence

from compaction_store.api_rules.problems import Problem, Problems, text_of, type_of
from compaction_store.messages.parts import PartType, answered, row, row_of
from compaction_store.models import Payload

MAY_BE_NULL = frozenset({"code", "outputs", "result"})
_ROLES = frozenset({"user", "assistant", "system", "developer"})
IN_OUTPUTS: dict[str | None, str] = {"logs": "logs", "image": "url"}
LONGEST_ID = 64


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
    if len(text_of(item.get("call_id"))) > LONGEST_ID:
        problems.add(index, "long_id", f"the call_id has more than {LONGEST_ID} characters")
    if kind == "code_interpreter_call" and isinstance(outputs := item.get("outputs"), list):
        for output in outputs:
            if (type_ := type_of(output)) not in IN_OUTPUTS:
                problems.add(index, "block_type", "an output of code is neither logs nor an image")
            else:
                problems.require(index, output, [IN_OUTPUTS[type_]])
    if kind == "message" and (role := problems.role(index, item, _ROLES)) is not None:
        _content(problems, index, role, item.get("content"))


def _content(problems: Problems, index: int, role: str, content: object) -> None:
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
