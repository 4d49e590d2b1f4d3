"""Anthropic's own compaction. Its rules are checked before a request is sent, and its block is kept unchanged.

A compaction block replaces everything before it. The span must therefore begin at the first message that is not a
system message. It must have no system message, no call without a result and no result without a call. An earlier block
must be at the beginning of the span. The message after the span must have another role than the last message in the
span, and must not be a system message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from compaction_store.compaction.summary_request import Request
from compaction_store.errors import NativeRefused, SummaryCutShort, SummaryRefused, SummaryUseless
from compaction_store.messages.tool_pairs import Links, is_system
from compaction_store.models import Element, Payload, Summary
from compaction_store.rendering.anthropic import SIGNED_BETA
from compaction_store.rendering.blocks import parts
from compaction_store.rendering.view import View

Render = Callable[[View], Mapping[str, Any]]
# Parameters that a caller must not give: those that the API refuses in a compaction request, and those that the
# summarizer sets itself.
UNFIT = ("context_management", "stop_sequences", "output_format", "stream", "compaction", "messages", "model")


def parameters(request: Request, render: Render, instructions: str | None, fixed: Payload) -> Payload:
    """Returns the parameters of a compaction request. Raises NativeRefused if the span breaks a rule."""
    check(request)
    view = View("", 0, (*(request.before or ()), *request.elements))
    arguments = dict(render(view))
    messages = arguments["messages"]
    if all(block.get("type") == "compaction" for message in messages for block in _blocks(message)):
        raise NativeRefused("there is nothing to summarize")
    compaction = {"type": "summarize"} | ({} if instructions is None else {"instructions": instructions})
    betas = {*arguments.pop("betas", ()), *fixed.get("betas", ()), SIGNED_BETA}
    return {**arguments, **fixed, "compaction": compaction, "betas": sorted(betas)}


def check(request: Request) -> None:
    """Raises NativeRefused for a span that the API would refuse, or whose block would not be first in the view."""
    if request.before is None and request.start_seq != 1:
        raise NativeRefused(
            "the API's block must be first in the view, and the elements before the span are not known:"
            " use Request.within(…)"
        )
    if not all(map(is_system, _payloads(request.before or ()))):
        raise NativeRefused("the API's block must be first in the view, and the span has messages before it")
    if any(map(is_system, _payloads(request.elements))):
        raise NativeRefused("a system message is inside the span")
    links = Links([element.messages for element in request.elements])
    if links.pending or links.orphans:
        raise NativeRefused("the span has a call without a result, or a result without a call")
    _check_blocks(request.elements)
    _check_kept(request)


def _check_blocks(elements: Iterable[Element]) -> None:
    are_first = [
        place == 0 and number == 0
        for place, payload in enumerate(_payloads(elements))
        if payload.get("role") == "assistant"
        for number, block in enumerate(_blocks(payload))
        if block.get("type") == "compaction" and block.get("content")
    ]
    if len(are_first) > 1:
        raise NativeRefused("the span has more than one compaction block")
    if are_first == [False]:
        raise NativeRefused("the span has a compaction block that is not at its beginning")


def _check_kept(request: Request) -> None:
    """Raises NativeRefused if the span's last turn continues after the span, or if a system message follows the span.

    The API would join the two parts of such a turn.
    """
    following = next(iter(_roles(request.unquoted_after or ())), None)
    last = [*_roles(request.elements)][-1:]
    if following == "system" or [following] == last:
        raise NativeRefused(
            "the message after the span must have another role than the last message in the span, and not be a system"
            " message"
        )


def _roles(elements: Iterable[Element]) -> Iterable[str]:
    for element in elements:
        for payload in element.messages:
            yield from (part.role for part in parts(element.seq, payload))


def _payloads(elements: Iterable[Element]) -> Iterable[Payload]:
    return (payload for element in elements for payload in element.messages)


def _blocks(payload: Payload) -> list[Payload]:
    content = payload.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def summary(answer: Any, instructions: str | None) -> Summary:
    """Returns the summary in the response to a compaction request, which must be one block with content."""
    response: Payload = answer.to_dict(mode="json", warnings=False)
    content, reason = response.get("content"), response.get("stop_reason")
    if reason == "refusal":
        raise SummaryRefused("the model refused")
    if reason == "max_tokens":
        raise SummaryCutShort("the answer is not finished: max_tokens")
    block = content[0] if isinstance(content, list) and len(content) == 1 else {}
    text = block.get("content") if block.get("type") == "compaction" else None
    if reason != "compaction" or not isinstance(text, str) or not text.strip():
        raise SummaryUseless("the API returned no summary")
    usage = response.get("usage")
    provider: Payload = {name: response[name] for name in ("id", "model", "stop_reason") if name in response}
    block_message = {"role": "assistant", "content": [block]}
    return Summary(
        text,
        model=response.get("model"),
        prompt=instructions,
        usage=usage,
        provider=provider,
        replacement=(block_message,),
    )
