"""Replaces old results of tools with one line each. The model still sees that a tool was called and can call it again.

The strategy calls no model. It keeps the ids, so that every call still has its result. It also keeps the user's own
text next to a result, results that are no larger than the line, results that load tools, and screenshots of OpenAI's
computer tool, which cannot be text. The results of a web search are encrypted: their list is emptied. Other encrypted
results are kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

from compaction_store.compaction import summary_room
from compaction_store.compaction.asks import Ask, Steps
from compaction_store.compaction.context import CompactionContext
from compaction_store.messages import stand_ins
from compaction_store.messages.parts import PartType, Path, body_of, walk
from compaction_store.models import Element, Payload
from compaction_store.models.messages import is_erased
from compaction_store.models.state import rows_of
from compaction_store.strategies import base
from compaction_store.strategies.contents import Content, compact, contents_of, exchanged
from compaction_store.strategies.outline import Layout, elements_of, unread
from compaction_store.strategies.truncation import Change
from compaction_store.tokens import Counter, chosen

# The default share of a view's tokens that clearing must save.
CLEAR_AT_LEAST = 0.2


class _Call(NamedTuple):
    """The place of a call in a view, and its tool."""

    tool: str
    element: int
    message: int
    path: Path


class _Result(NamedTuple):
    """The place of a result in a view, its row in the table of parts, its tool, and the call of a client's tool."""

    element: int
    message: int
    path: Path
    kind: PartType
    tool: str
    call: _Call | None


@dataclass(frozen=True, eq=False, repr=False)
class ClearToolResults(base.Pinnable):
    """Clears the results of tools, except the newest `keep` and those of the tools in `exclude`.

    Results after the assistant's last message are also kept, unless `keep` is 0, because no model has read them yet.
    Results are cleared in batches, because each batch loses the prompt cache for everything after the first cleared
    result. A batch must either meet the budget's target or save `clear_at_least`: a number of tokens as an integer, or
    a share of the view as a float.

    With `inputs`, the inputs of the calls are cleared with their results, as Anthropic's `clear_tool_inputs` does. The
    line in place of an input names the files that the call read or changed. `latest` names tools that keep a list or a
    plan: the newest call of each stays with its result. With `inputs`, these are by default the tools of known agents,
    such as `TodoWrite`.
    """

    keep: int = base.option(3, keep=base.a_count(0))
    exclude: Collection[str] = base.option((), keep=lambda given, _: _names(given))
    _: KW_ONLY
    clear_at_least: float = base.option(CLEAR_AT_LEAST, keep=base.a_saving)
    inputs: bool = base.option(default=False, keep=base.a_switch)
    latest: Collection[str] | None = base.option(None, keep=lambda given, _: None if given is None else _names(given))

    def steps(self, ctx: CompactionContext) -> Steps:
        missing = None if ctx.budget is None else ctx.total_tokens - ctx.budget.target_tokens
        for change in self.batch(ctx.elements, ctx.counter, missing):
            ask = Ask(change.start_seq, change.end_seq, replacement=change.messages, reason=change.reason)
            yield from base.attempt(ctx, ask)

    def batch(self, elements: Sequence[Element], counter: Counter, missing: int | None = None) -> list[Change]:
        """Returns all changes; none if they save too little together and less than the `missing` tokens."""
        changes = list(self.changes(elements, counter))
        starts = {element.seq: place for place, element in enumerate(elements)}
        ends = {element.end_seq: place for place, element in enumerate(elements)}
        saved = -sum(counter.messages(change.messages) for change in changes)
        for change in changes:
            saved += sum(element.tokens for element in elements[starts[change.start_seq] : ends[change.end_seq] + 1])
        least = summary_room.least_saving(self.clear_at_least, sum(element.tokens for element in elements))
        return changes if (missing is not None and saved >= missing > 0) or saved >= least else []

    def changes(self, elements: Sequence[Element], counter: Counter) -> Iterator[Change]:
        """Yields a change for each contiguous run of messages with results to clear."""
        layout = Layout(elements, self.pins)
        kept = layout.systems | layout.pinned | ({layout.last_user} - {None})
        if self.keep:
            kept |= unread(elements)
        chosen_ = defaultdict[int, list[_Result]](list)
        calls = defaultdict[int, list[_Call]](list)
        results = list(_results(elements))
        plans = _newest(results, self.latest, inputs=self.inputs)
        for found in results[: max(0, len(results) - self.keep)]:
            if found.tool not in self.exclude and found.element not in kept and plans.get(found.tool) is not found:
                chosen_[found.element].append(found)
                call = found.call if self.inputs else None
                if call is not None and call.element not in kept:
                    calls[call.element].append(call)
        new = {i: _cleared(elements[i], chosen_[i], calls[i], counter) for i in sorted(chosen_.keys() | calls.keys())}
        forms = {index: messages for index, messages in new.items() if messages is not None}
        for run in rows_of(forms):
            yield _change(elements, run, forms)


def _results(elements: Sequence[Element]) -> Iterator[_Result]:
    """Yields the results that can be cleared. Each belongs to the nearest earlier call with its id that has none."""
    waiting = defaultdict[str, list[_Call]](list)
    for place, element in enumerate(elements):
        for index, message in enumerate(() if element.is_summary else element.messages):
            for path, kind, part in walk(message):
                if kind.step == "call":
                    tool = body_of(part).get("name", kind.name.removesuffix("_call"))
                    if (name := kind.id_of(part)) is not None and isinstance(tool, str):
                        waiting[name].append(_Call(tool, place, index, path))
                elif kind.step is not None and kind.cleared is not None:
                    calls = waiting.get(kind.id_of(part) or "", []) if kind.step == "result" else []
                    # If only one call is left, do not remove it, because the same call may have a second result.
                    call = calls.pop() if len(calls) > 1 else calls[0] if calls else None
                    tool = _tool(kind, part) if call is None else call.tool
                    yield _Result(place, index, path, kind, tool, call if kind.is_clients else None)


def _tool(kind: PartType, part: Payload) -> str:
    if isinstance(name := part.get("name"), str):
        return name
    own = kind.name.removesuffix("_output").removesuffix("_call").removesuffix("_tool_result")
    return "a tool" if kind.name == "tool" else own


def _names(given: Collection[str]) -> frozenset[str]:
    return frozenset([given] if isinstance(given, str) else given)


def plan_clear_tool_results(messages: Iterable[Any], *options: Any, counter: Any = None, **more: Any) -> list[Change]:
    """Returns the changes that `ClearToolResults` would make to a list of messages. The first message has seq 1.

    The options are those of `ClearToolResults`.
    """
    counting = chosen(counter)
    elements = elements_of(messages, lambda message: counting.messages([message]))
    return ClearToolResults(*options, **more).batch(elements, counting)


def _change(elements: Sequence[Element], run: Sequence[int], forms: dict[int, tuple[Payload, ...]]) -> Change:
    messages = tuple(message for index in run for message in forms[index])
    start, end = elements[run[0]].seq, elements[run[-1]].end_seq
    return Change(start, end, "truncation", messages, reason="results of tools cleared")


def _newest(results: Iterable[_Result], latest: Collection[str] | None, *, inputs: bool) -> dict[str, _Result]:
    """Returns the newest result of each tool that keeps a list or a plan."""
    if latest is None and inputs:
        from compaction_store.probes.living import LATEST  # noqa: PLC0415 — few stores read it

        latest = LATEST
    return {found.tool: found for found in results if found.tool in (latest or ())}


def _without_input(message: Payload, call: _Call, counter: Counter, place: str) -> Payload:
    """Returns a message with a line in place of the input of a call, or the same message if that saves nothing."""
    from compaction_store.probes.calls import used_files  # noqa: PLC0415 — few stores read it
    from compaction_store.probes.speech import ToolCall, parsed  # noqa: PLC0415

    path = call.path

    def exchange(piece: Content) -> Any:
        before = counter.text(_text(piece.value))
        given = parsed(piece.value) if isinstance(piece.value, str) else piece.value
        line = stand_ins.input_cleared(before, place, dict.fromkeys(used_files(ToolCall(None, call.tool, "", given))))
        new: Any = line if piece.kind == "text" else {"input": line}
        new = compact(new) if piece.kind == "arguments" else new
        return piece.value if counter.text(_text(new)) >= before else new

    field = str(path[0]) if path else None
    if field is None:
        return message if stand_ins.has_cleared_input(compact(message)) else exchanged(message, exchange)
    held = message.get(field)
    calls = list(held) if isinstance(held, list) else [held]
    at = int(path[1]) if path[1:] else 0
    old = calls[at] if at < len(calls) else None
    if not isinstance(old, dict) or stand_ins.has_cleared_input(compact(old)):
        return message
    # Only a block of a content has a type of its own. The other calls are exchanged inside a message.
    if field == "content":
        calls[at] = exchanged(old, exchange)
    elif path[1:]:
        calls[at] = exchanged({field: [old]}, exchange)[field][0]
    else:
        calls[at] = exchanged({field: old}, exchange)[field]
    return message if calls[at] is old else {**message, field: calls if path[1:] else calls[0]}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else compact(value)


def _cleared(
    element: Element, results: Sequence[_Result], calls: Sequence[_Call], counter: Counter
) -> tuple[Payload, ...] | None:
    """Returns the element's messages with these results and inputs of calls cleared, or None if that saves nothing."""
    messages = list(element.messages)
    alone = len(messages) == 1
    for found in results:
        message = messages[found.message]
        part = _at(message, found.path)
        if part is None or found.kind.cleared is None or _is_cleared(found.kind, part):
            continue
        only = alone and (not found.path or len(message["content"]) == 1)
        before = element.tokens if only else counter.messages([_bare(part)])
        line = stand_ins.cleared(found.tool, before, _seq(element, found.message))
        if (new := found.kind.cleared(part, line)) is None or counter.messages([_bare(new)]) >= before:
            continue
        messages[found.message] = _put(message, found, new)
    for call in calls:
        messages[call.message] = _without_input(messages[call.message], call, counter, _seq(element, call.message))
    if all(a is b for a, b in zip(messages, element.messages, strict=True)) or any(map(is_erased, messages)):
        return None
    return tuple(messages)


def _at(message: Payload, path: Path) -> Payload | None:
    """Returns the message or a block of it, or None if clearing the message itself has removed its blocks."""
    if not path:
        return message
    content, index = message.get("content"), int(path[1])
    found = content[index] if isinstance(content, list) and index < len(content) else None
    return found if isinstance(found, dict) else None


def _seq(element: Element, index: int) -> str:
    if element.end_seq - element.seq + 1 == len(element.messages):
        return f"seq {element.seq + index:,}"
    return f"seqs {element.seq:,} to {element.end_seq:,}"


def _bare(part: Payload) -> Payload:
    return part if "role" in part else {"role": "user", "content": [part]}


def _is_cleared(kind: PartType, part: Payload) -> bool:
    if kind.sealed:
        return part.get("content") == []
    return any(piece.kind == "text" and stand_ins.is_cleared(piece.value) for piece in contents_of(part))


def _put(message: Payload, found: _Result, new: Payload) -> Payload:
    if not found.path:
        return new
    content = list(message["content"])
    content[int(found.path[1])] = new
    if found.kind.sealed:
        content = [_uncited(part) for part in content]
    return {**message, "content": content}


def _uncited(part: Any) -> Any:
    """Returns a text block without its citations of web search results, which were cleared."""
    cited = part.get("citations") if isinstance(part, dict) else None
    if not isinstance(cited, list):
        return part
    left = [c for c in cited if not (isinstance(c, dict) and c.get("type") == "web_search_result_location")]
    if len(left) == len(cited):
        return part
    return {**part, "citations": left} if left else {key: part[key] for key in part if key != "citations"}
