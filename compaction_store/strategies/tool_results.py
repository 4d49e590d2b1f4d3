"""Old results of tools become one line each: the model sees that a tool was called, and can call it again.

No model is asked and no id is touched, so that every call keeps its result. A user's own words beside a result stay.
Left as they are: what is smaller than its stand-in, results that load tools, results whose content is sealed, and
screenshots of OpenAI's computer tool, in whose place no text may stand.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple, Self

from compaction_store.compaction import summary_room
from compaction_store.compaction.asking import Ask, Steps
from compaction_store.compaction.context import CompactionContext
from compaction_store.messages.tool_pairs import CALLS, RESULTS
from compaction_store.models import Element, Payload
from compaction_store.strategies import base
from compaction_store.strategies.contents import compact, pieces
from compaction_store.strategies.layout import Layout, unread
from compaction_store.strategies.outline import elements_of
from compaction_store.strategies.pins import PinOption, Pins
from compaction_store.strategies.truncation import Change
from compaction_store.tokens import Counter, chosen

_CLEARED = re.compile(r'"?\[Result of .* cleared: [\d,]+ tokens, seqs? [\d,]')
_SEARCH = "web_search_tool_result"
_WHOLE = -1
# Of a view's tokens, the share that a batch must save.
CLEAR_AT_LEAST = 0.2


class Found(NamedTuple):
    """A result: in which element, in which of its messages, in which block of it (-1: the message is the result)."""

    element: int
    message: int
    block: int
    tool: str


class ClearToolResults(base.Planner):
    """Puts a short line in the place of every result but the newest `keep`, and but those of the tools in `exclude`.

    Results that came after the last message of the assistant stay too, unless `keep` is 0: no model has read them yet.
    Nothing is cleared until that saves `clear_at_least`, tokens or as a float a share of the view's, or meets the
    budget's target. So results go in batches: each batch costs the prompt cache of all that follows it.
    """

    def __init__(
        self,
        keep: int = 3,
        exclude: Collection[str] = (),
        *,
        clear_at_least: float = CLEAR_AT_LEAST,
        pin: PinOption = (),
    ) -> None:
        base.check_count(keep, "keep", least=0)
        base.check_saving(clear_at_least, "clear_at_least")
        self.keep = keep
        self.exclude = frozenset([exclude] if isinstance(exclude, str) else exclude)
        self.clear_at_least = clear_at_least
        self.pins = Pins(pin)

    @property
    def name(self) -> str:
        return base.shown_call("ClearToolResults", [
            ("keep", self.keep, 3), ("exclude", sorted(self.exclude), []),
            ("clear_at_least", self.clear_at_least, CLEAR_AT_LEAST),
        ])  # fmt: skip

    def with_pins(self, pins: Pins) -> Self:
        """The same, with something more that it never touches."""
        held = copy(self)
        held.pins = self.pins | pins
        return held

    def steps(self, ctx: CompactionContext) -> Steps:
        missing = None if ctx.budget is None else ctx.total_tokens - ctx.budget.target_tokens
        for change in self.batch(ctx.elements, ctx.counter, missing):
            ask = Ask(change.start_seq, change.end_seq, replacement=change.messages, reason=change.reason)
            yield from base.attempt(ctx, ask)

    def batch(self, elements: Sequence[Element], counter: Counter, missing: int | None = None) -> list[Change]:
        """What is to be replaced now: all that may be, or nothing where that would save too little.

        `missing` is what a budget wants saved: who saves that has saved enough.
        """
        changes = list(self.changes(elements, counter))
        starts = {element.seq: place for place, element in enumerate(elements)}
        ends = {element.end_seq: place for place, element in enumerate(elements)}
        saved = -sum(counter.messages(change.messages) for change in changes)
        for change in changes:
            span = elements[starts[change.start_seq] : ends[change.end_seq] + 1]
            saved += sum(element.tokens for element in span)
        least = summary_room.least_saving(self.clear_at_least, sum(element.tokens for element in elements))
        enough = missing is not None and saved >= missing > 0
        return changes if enough or saved >= least else []

    def changes(self, elements: Sequence[Element], counter: Counter) -> Iterator[Change]:
        """What could be replaced: each contiguous run of messages that change."""
        layout = Layout(elements, self.pins)
        kept = layout.systems | layout.pinned | ({layout.last_user} - {None})
        if self.keep:
            kept |= unread(elements)
        chosen_ = defaultdict[int, list[Found]](list)
        for found in self._old(elements):
            if found.element not in kept:
                chosen_[found.element].append(found)
        run: list[int] = []
        forms: dict[int, tuple[Payload, ...]] = {}
        for index, results in chosen_.items():
            new = _cleared(elements[index], results, counter)
            if new is None:
                continue
            if run and index != run[-1] + 1:
                yield _change(elements, run, forms)
                run = []
            run.append(index)
            forms[index] = new
        if run:
            yield _change(elements, run, forms)

    def _old(self, elements: Sequence[Element]) -> list[Found]:
        results = list(_results(elements))
        old = results[: max(0, len(results) - self.keep)]
        return [found for found in old if found.tool not in self.exclude]


def plan_clear_tool_results(
    messages: Iterable[Any],
    keep: int = 3,
    exclude: Collection[str] = (),
    *,
    clear_at_least: float = CLEAR_AT_LEAST,
    counter: Any = None,
) -> list[Change]:
    """What would be replaced in a plain list of messages; the first is seq 1."""
    counting = chosen(counter)
    elements = elements_of(messages, lambda message: counting.messages([message]))
    return ClearToolResults(keep, exclude, clear_at_least=clear_at_least).batch(elements, counting)


def _change(elements: Sequence[Element], run: Sequence[int], forms: dict[int, tuple[Payload, ...]]) -> Change:
    messages = tuple(message for index in run for message in forms[index])
    start, end = elements[run[0]].seq, elements[run[-1]].end_seq
    return Change(start, end, "truncation", messages, reason="results of tools cleared")


# Finding results and the names of their tools.


def _results(elements: Sequence[Element]) -> Iterator[Found]:
    """Every result in order. A result answers the nearest earlier unanswered call of its id."""
    waiting = defaultdict[str, list[str]](list)
    for place, element in enumerate(elements):
        if element.is_summary:
            continue
        for index, message in enumerate(element.messages):
            if not isinstance(message, dict):
                continue
            for block, part in _parts(message):
                if (called := _called(part)) is not None:
                    waiting[called[0]].append(called[1])
                if (name := _answered(part, waiting)) is not None:
                    yield Found(place, index, block, name)


def _parts(message: Payload) -> Iterator[tuple[int, Payload]]:
    """The message and the blocks of its content, and its calls in OpenAI's chat, which are no blocks."""
    yield _WHOLE, message
    content = message.get("content")
    if isinstance(content, list):
        yield from ((index, part) for index, part in enumerate(content) if isinstance(part, dict))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            yield _WHOLE, {**call, "type": "tool_call"}


def _called(part: Payload) -> tuple[str, str] | None:
    """The id and the tool of a call."""
    kind = part.get("type")
    if not isinstance(kind, str):
        return None
    if kind == "tool_call":
        body = next((part[field] for field in ("function", "custom") if isinstance(part.get(field), dict)), None)
        name, id_ = None if body is None else body.get("name"), part.get("id")
    elif kind in CALLS:
        name, id_ = part.get("name", kind.removesuffix("_call")), part.get(CALLS[kind])
    else:
        return None
    return (id_, name) if isinstance(id_, str) and isinstance(name, str) else None


def _answered(part: Payload, waiting: dict[str, list[str]]) -> str | None:
    """The tool whose result this is; None if it is none that can be cleared."""
    kind, role = part.get("type"), part.get("role")
    if role == "tool":
        return _tool(part.get("tool_call_id"), waiting, "a tool")
    if role == "function":
        return str(part.get("name"))
    if not isinstance(kind, str) or kind not in _CLEAR:
        return None
    if kind in {"mcp_call", "code_interpreter_call", "file_search_call"}:
        return str(part.get("name", kind.removesuffix("_call")))
    usual = kind.removesuffix("_output").removesuffix("_call").removesuffix("_tool_result")
    return _tool(part.get(RESULTS.get(kind, "tool_use_id"), part.get("id")), waiting, usual)


def _tool(id_: object, waiting: dict[str, list[str]], usual: str) -> str:
    calls = waiting.get(id_) if isinstance(id_, str) else None
    if not calls:
        return usual
    # The last name stays, for a call that is answered twice.
    return calls.pop() if len(calls) > 1 else calls[0]


# Clearing.


def _cleared(element: Element, results: Sequence[Found], counter: Counter) -> tuple[Payload, ...] | None:
    """The element's messages with these results cleared; None if nothing is gained."""
    messages = list(element.messages)
    alone = len(messages) == 1
    for found in results:
        message = messages[found.message]
        assert message is not None  # noqa: S101 — that is where it was found
        part = message if found.block == _WHOLE else _block(message, found.block)
        if part is None or _is_cleared(part):
            continue
        only = alone and (found.block == _WHOLE or len(message["content"]) == 1)
        before = element.tokens if only else counter.messages([_bare(part)])
        line = f"[Result of {found.tool[:100]} cleared: {before:,} tokens, {_seq(element, found.message)}]"
        if (new := _with(part, line)) is None or counter.messages([_bare(new)]) >= before:
            continue
        messages[found.message] = new if found.block == _WHOLE else _put(message, found.block, new)
    if all(a is b for a, b in zip(messages, element.messages, strict=True)) or None in messages:
        return None
    return tuple(message for message in messages if message is not None)


def _block(message: Payload, index: int) -> Payload | None:
    """A block of a message; None where the message, a result itself, was cleared as a whole."""
    content = message.get("content")
    found = content[index] if isinstance(content, list) and index < len(content) else None
    return found if isinstance(found, dict) else None


def _seq(element: Element, index: int) -> str:
    if element.end_seq - element.seq + 1 == len(element.messages):
        return f"seq {element.seq + index:,}"
    return f"seqs {element.seq:,} to {element.end_seq:,}"


def _bare(part: Payload) -> Payload:
    return part if "role" in part else {"role": "user", "content": [part]}


def _is_cleared(part: Payload) -> bool:
    if part.get("type") == _SEARCH:
        return part.get("content") == []
    return any(piece.kind == "text" and _CLEARED.match(piece.value) for piece in pieces(part))


def _put(message: Payload, index: int, block: Payload) -> Payload:
    content = list(message["content"])
    content[index] = block
    if block.get("type") == _SEARCH:
        content = [_uncited(part) for part in content]
    return {**message, "content": content}


def _uncited(part: Any) -> Any:
    """A text without its pointers into results of a search, which are not there any more."""
    cited = part.get("citations") if isinstance(part, dict) else None
    if not isinstance(cited, list):
        return part
    left = [c for c in cited if not (isinstance(c, dict) and c.get("type") == "web_search_result_location")]
    if len(left) == len(cited):
        return part
    return {**part, "citations": left} if left else {key: part[key] for key in part if key != "citations"}


def _with(part: Payload, line: str) -> Payload | None:
    """The result with a line for its content; None if its shape has no place for one."""
    if any(part.get("role") == role for role in ("tool", "function")):
        return {**part, "content": line}
    return _CLEAR[part["type"]](part, line)


def _content(part: Payload, line: str) -> Payload:
    return {**part, "content": line}


def _output(part: Payload, line: str) -> Payload:
    return {**part, "output": line}


def _json_output(part: Payload, line: str) -> Payload:
    return {**part, "output": compact(line)}


def _search(part: Payload, _line: str) -> Payload | None:
    """What a search found is sealed, and may only be there or not."""
    return {**part, "content": []} if isinstance(part.get("content"), list) else None


def _shell(part: Payload, line: str) -> Payload | None:
    output = part.get("output")
    first = output[0] if isinstance(output, list) and output else None
    if not isinstance(first, dict):
        return None
    return {**part, "output": [{**first, "stdout": line, "stderr": ""}]}


def _inner(part: Payload, line: str) -> Payload | None:
    """A result in an object of its own, whose type says where text may stand."""
    content = part.get("content")
    kind = content.get("type") if isinstance(content, dict) else None
    inner: dict[str, Payload] = {
        "code_execution_result": {"stdout": line, "stderr": "", "content": []},
        "bash_code_execution_result": {"stdout": line, "stderr": "", "content": []},
        "text_editor_code_execution_view_result": {"content": line},
        "text_editor_code_execution_str_replace_result": {"lines": [line]},
        "web_fetch_result": {
            "content": {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": line}}
        },
        "advisor_result": {"text": line},
    }
    if not isinstance(content, dict) or not isinstance(kind, str) or kind not in inner:
        return None
    return {**part, "content": {**content, **inner[kind]}}


_CLEAR: dict[str, Callable[[Payload, str], Payload | None]] = {
    "tool_result": _content,
    "mcp_tool_result": _content,
    _SEARCH: _search,
    "web_fetch_tool_result": _inner,
    "code_execution_tool_result": _inner,
    "bash_code_execution_tool_result": _inner,
    "text_editor_code_execution_tool_result": _inner,
    "advisor_tool_result": _inner,
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    "apply_patch_call_output": _output,
    "local_shell_call_output": _json_output,
    "shell_call_output": _shell,
    "program_output": lambda part, line: {**part, "result": line},
    "mcp_call": _output,
    "code_interpreter_call": lambda part, line: {**part, "outputs": [{"type": "logs", "logs": line}]},
    "file_search_call": lambda part, line: {**part, "results": [{"text": line}]},
}
