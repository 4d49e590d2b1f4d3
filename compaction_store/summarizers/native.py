"""The API's own compaction: its rules are checked before anything is sent, and what it returns is kept as it is.

A block stands for everything before it. So the span begins where the conversation does, no call in it is open, a block
that stands there already is the first of all and is taken in, and what is kept goes on with the other's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from compaction_store.compaction.summary_request import Request
from compaction_store.errors import NativeRefused, SummaryCutShort, SummaryRefused, SummaryUseless
from compaction_store.messages.tool_pairs import Links, is_system
from compaction_store.models import Element, Payload, Summary
from compaction_store.rendering.blocks import parts
from compaction_store.rendering.messages import SIGNED_BETA
from compaction_store.rendering.view import View

Render = Callable[[View], Mapping[str, Any]]
# What only shapes a reply, of which there is none; the API refuses it beside a compaction.
UNFIT = ("context_management", "stop_sequences", "output_format", "stream", "compaction", "messages", "model")


def parameters(request: Request, render: Render, instructions: str | None, fixed: Payload) -> Payload:
    """The compaction request for these elements, if the rules allow it."""
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
    """Refuses what the API would refuse, and what would not have its block first in the view."""
    if request.before is None and request.start_seq != 1:
        raise NativeRefused(
            "the API's own block stands first, and what is before this span is not known: give Request.within(…)"
        )
    if not all(map(is_system, _payloads(request.before or ()))):
        raise NativeRefused("the API's own block stands first, and something else is before this span")
    if any(map(is_system, _payloads(request.elements))):
        raise NativeRefused("a system message is inside the span")
    links = Links([element.messages for element in request.elements])
    if links.pending or links.orphans:
        raise NativeRefused("a call in the span is open, or a result there answers none")
    _check_blocks(request.elements)
    _check_kept(request)


def _check_blocks(elements: Iterable[Element]) -> None:
    told = [
        place == 0 and number == 0
        for place, payload in enumerate(_payloads(elements))
        if payload is not None and payload.get("role") == "assistant"
        for number, block in enumerate(_blocks(payload))
        if block.get("type") == "compaction" and block.get("content")
    ]
    if len(told) > 1:
        raise NativeRefused("more than one compaction block is in the span")
    if told == [False]:
        raise NativeRefused("a compaction block is in the span and not its beginning")


def _check_kept(request: Request) -> None:
    """What is kept must not be joined to what is summarized: the API joins turns of one role."""
    following = next(iter(_roles(request.unquoted_after or ())), None)
    last = [*_roles(request.elements)][-1:]
    if following == "system" or [following] == last:
        raise NativeRefused("what follows the span must be the other's turn")


def _roles(elements: Iterable[Element]) -> Iterable[str]:
    for element in elements:
        for payload in element.messages:
            yield from (part.role for part in parts(element.seq, payload))


def _payloads(elements: Iterable[Element]) -> Iterable[Payload | None]:
    return (payload for element in elements for payload in element.messages)


def _blocks(payload: Payload | None) -> list[Payload]:
    content = payload.get("content") if payload is not None else None
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def summary(answer: Any, instructions: str | None) -> Summary:
    """The summary of a compaction response; anything else than a block with content, alone, is none."""
    told: Payload = answer.to_dict(mode="json", warnings=False)
    content, reason = told.get("content"), told.get("stop_reason")
    if reason == "refusal":
        raise SummaryRefused("the model refused")
    if reason == "max_tokens":
        raise SummaryCutShort("the answer was not finished: max_tokens")
    block = content[0] if isinstance(content, list) and len(content) == 1 else {}
    text = block.get("content") if block.get("type") == "compaction" else None
    if reason != "compaction" or not isinstance(text, str) or not text.strip():
        raise SummaryUseless("the API came to no summary")
    usage = told.get("usage")
    provider: Payload = {name: told[name] for name in ("id", "model", "stop_reason") if name in told}
    block_message = {"role": "assistant", "content": [block]}
    return Summary(
        text, model=told.get("model"), prompt=instructions, usage=usage, provider=provider, replacement=(block_message,)
    )
