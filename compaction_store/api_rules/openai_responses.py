"""The rules of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from compaction_store.api_rules.problems import Problem, Problems, text_of, type_of
from compaction_store.messages.tool_pairs import CALLS, RESULTS
from compaction_store.models import Payload

# For each type of item: the fields that it must have. The SDK's types also require the id or status of some items, but
# the API accepts these items without them.
ITEMS = {
    kind: tuple(fields.split())
    for kind, fields in {
        "message": "content role",
        "file_search_call": "queries",
        "computer_call": "call_id pending_safety_checks",
        "computer_call_output": "call_id output",
        "web_search_call": "action",
        "function_call": "arguments call_id name",
        "function_call_output": "output",
        "tool_search_call": "arguments",
        "tool_search_output": "tools",
        "additional_tools": "role tools",
        "configuration_update": "",
        "reasoning": "summary",
        "compaction": "encrypted_content",
        "image_generation_call": "result",
        "code_interpreter_call": "code container_id outputs",
        "local_shell_call": "action call_id",
        "local_shell_call_output": "output",
        "shell_call": "action call_id",
        "shell_call_output": "call_id output",
        "apply_patch_call": "call_id operation",
        "apply_patch_call_output": "call_id",
        "mcp_list_tools": "server_label tools",
        "mcp_approval_request": "arguments name server_label",
        "mcp_approval_response": "approval_request_id approve",
        "mcp_call": "arguments name server_label",
        "custom_tool_call": "call_id input name",
        "custom_tool_call_output": "call_id output",
        "compaction_trigger": "",
        "item_reference": "id",
        "program": "call_id code fingerprint",
        "program_output": "call_id result",
    }.items()
}
MAY_BE_NULL = frozenset({"code", "outputs", "result"})
_ROLES = frozenset({"user", "assistant", "system", "developer"})
IN_MESSAGES = {"input_text": "text", "input_image": None, "input_file": None}
IN_REPLIES = {"output_text": "text", "refusal": "refusal"}
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
    kinds = [_kind(item) for item in items]
    waiting: dict[tuple[str, str], int] = {}
    called: set[tuple[str, str]] = set()
    seen: set[str] = set()
    for index, (kind, item) in enumerate(zip(kinds, items, strict=True)):
        if kind is None or item is None:
            problems.add(
                index, "no_object" if not isinstance(item, dict) else "item_type", "the item has no known type"
            )
            continue
        _item(problems, index, kind, item, seen)
        if kind in CALLS and isinstance(name := item.get(CALLS[kind]), str):
            called.add((kind, name))
            if kind != "program" and (kind != "tool_search_call" or item.get("execution") == "client"):
                waiting[kind, name] = index
        elif kind in RESULTS and (answers := _answers(kind, item, called)):
            waiting.pop(answers, None)
            if answers not in called and "item_reference" not in kinds:
                problems.add(index, "orphan_result", f"a {kind} answers no call before it")
        elif kind == "reasoning" and not _leads_on(kinds, items, index):
            problems.add(index, "reasoning_last", "reasoning is not followed by the item that it led to")
        elif kind == "compaction_trigger" and index + 1 < len(items):
            problems.add(index, "trigger_place", "a compaction trigger is not the last item")
    for (kind, _), index in waiting.items():
        problems.add(index, "unanswered_call", f"a {kind} has no output")
    return problems.in_order()


def _kind(item: Payload | None) -> str | None:
    """Returns the type of an item; None if the type is unknown. Messages and references need not state their type."""
    if not isinstance(item, dict):
        return None
    if item.get("type") is None:
        return "message" if "role" in item else "item_reference" if item.keys() <= {"id", "type"} else None
    kind = type_of(item)
    return kind if kind in ITEMS else None


def _answers(kind: str, item: Payload, called: Collection[tuple[str, str]]) -> tuple[str, str] | None:
    """Returns the type and the id of the call that an output answers."""
    name = item.get(RESULTS[kind])
    if name is None and kind == "local_shell_call_output":
        name = item.get("id")
    if not isinstance(name, str):
        return None
    if kind == "mcp_approval_response":
        return "mcp_approval_request", name
    searched = ("tool_search_call", name) in called and ("function_call", name) not in called
    if kind == "tool_search_output" or (kind == "function_call_output" and searched):
        return "tool_search_call", name
    return kind.removesuffix("_output"), name


def _leads_on(kinds: Sequence[str | None], items: Sequence[Payload | None], index: int) -> bool:
    """Returns whether the item after reasoning can be its result: the model must have written that item."""
    if index + 1 == len(items):
        return False
    kind, item = kinds[index + 1], items[index + 1]
    if kind == "message" and item is not None:
        return item.get("role") == "assistant"
    return kind not in RESULTS and kind != "compaction_trigger"


def _item(problems: Problems, index: int, kind: str, item: Payload, seen: set[str]) -> None:
    problems.require(index, item, [field for field in ITEMS[kind] if field not in MAY_BE_NULL])
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
        known = IN_REPLIES if role == "assistant" else IN_MESSAGES
        for part in content:
            kind = type_of(part)
            if kind is None or kind not in known:
                problems.add(index, "block_type", f"a part of a {role} message has a type that it must not have")
            elif field := known[kind]:
                problems.require(index, part, [field])
    elif not isinstance(content, str):
        problems.add(index, "content", "the content is neither text nor a list of parts")
