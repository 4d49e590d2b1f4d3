"""Summaries by Anthropic's models, either with this package's prompt or with the API's own compaction.

Typed errors are raised for failed requests, and for answers that are no summary. These errors quote no content.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from compaction_store import errors
from compaction_store.arguments import number, other
from compaction_store.compaction.checks import Check
from compaction_store.compaction.summary_request import Request
from compaction_store.messages.tool_pairs import Links, is_system
from compaction_store.models import Element, Measured, Payload, Summary
from compaction_store.rendering.anthropic import SIGNED_BETA
from compaction_store.rendering.blocks import parts
from compaction_store.rendering.view import View, for_anthropic
from compaction_store.summarizers import api_calls, prompted
from compaction_store.waiting import Work, drive, drive_async

_GOOD = ("end_turn", "stop_sequence")
_RESERVED = ("model", "max_tokens", "messages", "stream")


class AnthropicSummarizer(prompted.ModelSummarizer):
    """Summarizes with one of Anthropic's models. The caller makes, configures and closes the client.

    With an async client, the result must be awaited. `mode="native"` requests the API's own signed compaction block,
    which becomes part of the view unchanged. `instructions` replace the part of the prompt that says what to keep; in
    native mode, they replace the prompt of the API. `mode="inline"` sends the agent's own request, up to the end of the
    span, and one instruction, so that the API reads the conversation from its cache. `render` makes the agent's request
    from a view; both modes need it if the agent has a `system` or `tools`. `parameters` are sent with every request;
    in these modes, they may have `system` and `tools` too. `context` is the number of tokens of the messages around the
    span that the model is shown. `deadline` is the number of seconds for all requests of one summary together.
    """

    name = "AnthropicSummarizer"

    def __init__(
        self,
        client: Any,
        *,
        model: str,
        instructions: str | None = None,
        max_tokens: int = 4096,
        mode: prompted.Mode = "prompt",
        deadline: float = 600.0,
        stream: bool = True,
        parameters: Mapping[str, Any] | None = None,
        render: prompted.Render = for_anthropic,
        context: int = prompted.CONTEXT,
        checks: Sequence[Check] = (),
    ) -> None:
        _check_client(client, "AnthropicSummarizer")
        unfit = {"prompt": [*_RESERVED, "system"], "inline": _RESERVED}.get(str(mode), _UNFIT)
        super().__init__(
            client, model, instructions, max_tokens, deadline, parameters, checks, mode=mode, context=context,
            render=render, unfit=unfit, limit="max_tokens",
        )  # fmt: skip
        self._stream = stream

    def __repr__(self) -> str:
        return f"AnthropicSummarizer(model={self._model!r}, mode={self._mode!r})"

    def _summary(self, request: Request, asked: prompted.Asked) -> Work[Summary]:
        if self._mode != "native":
            return (yield from super()._summary(request, asked))
        asked.prompt = self.instructions
        fixed = {**self._parameters, "model": self._model, **self._limit}
        parameters = _native_parameters(request, self._rendered, self.instructions, fixed)
        return _native_summary((yield from self._answer(parameters, asked)), asked)

    def _send(self, shown: str, asked: prompted.Asked) -> Work[str]:
        parameters = {**self._given, "system": asked.prompt, "messages": [{"role": "user", "content": shown}]}
        if asked.schema is not None:
            format_ = {"type": "json_schema", "schema": asked.schema}
            parameters["output_config"] = {**(parameters.get("output_config") or {}), "format": format_}
        return self._said(parameters, asked)

    def _send_inline(self, arguments: Payload, prompt: str, asked: prompted.Asked) -> Work[str]:
        messages, own = arguments["messages"], [{"type": "text", "text": prompt}]
        if messages and messages[-1]["role"] == "user":
            *messages, last = messages
            own = [*_blocks(last), *own]
        parameters = {**arguments, **self._parameters, "model": self._model, **self._limit}
        return self._said({**parameters, "messages": [*messages, {"role": "user", "content": own}]}, asked)

    def _request(self, parameters: Payload) -> api_calls.MessagesRequest:
        native = "betas" in parameters
        return api_calls.MessagesRequest(parameters, native, stream=self._stream and not native)

    def _text(self, answer: Any) -> str:
        reason, text = answer.stop_reason, "".join(block.text for block in answer.content if block.type == "text")
        full = reason == "model_context_window_exceeded"
        return prompted.finished(text, reason, refused=reason == "refusal", full=full, whole=reason in _GOOD)


def _check_client(client: Any, what: str) -> None:
    api_calls.sdk(what)
    if not hasattr(client, "messages"):
        raise errors.InvalidInput(f"client must be an Anthropic or AsyncAnthropic client, not {type(client).__name__}")


# ---- Anthropic's own compaction
# A compaction block replaces everything before it. The span must therefore begin at the first message that is not a
# system message. It must have no system message, no call without a result and no result without a call. An earlier
# block must be at the beginning of the span. The message after the span must have another role than the last message in
# the span, and must not be a system message. These rules are checked before a request is sent, and the block is kept
# unchanged.

# Parameters that a caller must not give: those that the API refuses in a compaction request, and those that the
# summarizer sets itself.
_UNFIT = ("context_management", "stop_sequences", "output_format", "stream", "compaction", "messages", "model")


def _native_parameters(
    request: Request, render: Callable[[View], Payload], instructions: str | None, fixed: Payload
) -> Payload:
    """Returns the parameters of a compaction request. Raises NativeRefused if the span breaks a rule."""
    _check_native(request)
    arguments = render(View("", 0, (*(request.before or ()), *request.elements)))
    if all(block.get("type") == "compaction" for message in arguments["messages"] for block in _blocks(message)):
        raise errors.NativeRefused("there is nothing to summarize")
    compaction = {"type": "summarize"} | ({} if instructions is None else {"instructions": instructions})
    betas = {*arguments.pop("betas", ()), *fixed.get("betas", ()), SIGNED_BETA}
    return {**arguments, **fixed, "compaction": compaction, "betas": sorted(betas)}


def _check_native(request: Request) -> None:
    """Raises NativeRefused for a span that the API would refuse, or whose block would not be first in the view."""
    if request.before is None and request.start_seq != 1:
        raise errors.NativeRefused(
            "the API's block must be first in the view, and the elements before the span are not known:"
            " use Request.within(…)"
        )
    if not all(map(is_system, _payloads(request.before or ()))):
        raise errors.NativeRefused("the API's block must be first in the view, and the span has messages before it")
    if any(map(is_system, _payloads(request.elements))):
        raise errors.NativeRefused("a system message is inside the span")
    links = Links([element.messages for element in request.elements])
    if links.pending or links.orphans:
        raise errors.NativeRefused("the span has a call without a result, or a result without a call")
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
        raise errors.NativeRefused("the span has more than one compaction block")
    if are_first == [False]:
        raise errors.NativeRefused("the span has a compaction block that is not at its beginning")


def _check_kept(request: Request) -> None:
    """Raises NativeRefused if the span's last turn, or a system message, goes on after it: the API would join turns."""
    following = next(iter(_roles(request.unquoted_after or ())), None)
    if following == "system" or [following] == [*_roles(request.elements)][-1:]:
        raise errors.NativeRefused(
            "the message after the span must have another role than the last message in the span, and not be a system"
            " message"
        )


def _roles(elements: Iterable[Element]) -> Iterable[str]:
    return (part.role for element in elements for message in element.messages for part in parts(element.seq, message))


def _payloads(elements: Iterable[Element]) -> Iterable[Payload]:
    return (payload for element in elements for payload in element.messages)


def _blocks(payload: Payload) -> list[Payload]:
    content = payload.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _native_summary(answer: Any, asked: prompted.Asked) -> Summary:
    """Returns the summary in the response to a compaction request, which must be one block with content."""
    response: Payload = answer.to_dict(mode="json", warnings=False)
    content, reason = response.get("content"), response.get("stop_reason")
    if reason == "refusal":
        raise errors.SummaryRefused("the model refused")
    if reason == "max_tokens":
        raise errors.SummaryCutShort("the answer is not finished: max_tokens")
    block = content[0] if isinstance(content, list) and len(content) == 1 else {}
    text = block.get("content") if block.get("type") == "compaction" else None
    if reason != "compaction" or not isinstance(text, str) or not text.strip():
        raise errors.SummaryUseless("the API returned no summary")
    provider: Payload = {name: response[name] for name in ("id", "model", "stop_reason") if name in response}
    message = {"role": "assistant", "content": [block]}
    return replace(asked.summary(text), usage=response.get("usage"), provider=provider, replacement=(message,))


# ---- counts of the tokens of views by Anthropic's API, which can count a request without running it. If it cannot, the
# result has the store's own count and the reason; no error is raised.

# Parameters that only affect the answer. The API refuses them in a request to count.
_SAMPLING = ("max_tokens", "stop_sequences", "stream", "temperature", "top_k", "top_p")
_OF_THE_ANSWER = (*_SAMPLING, "container", "diagnostics", "inference_geo", "metadata", "service_tier")
_OURS = ("model", "messages")
_BESIDE = ("system", "tools", "mcp_servers")


class AnthropicCounter:
    """Counts the tokens of a view with Anthropic's API. The caller makes, configures and closes the client.

    `parameters` are the parameters of your requests. If they have `system`, `tools` or `mcp_servers`, the count
    includes these: `counts_overhead` is then true, and a budget subtracts its `overhead` from the count. `render` makes
    a request from a view. With an async client, the result must be awaited. `deadline` is the number of seconds for all
    attempts to count one view. The last `remembered` counts are cached by the hash of the request.
    """

    def __init__(
        self,
        client: Any,
        *,
        model: str,
        parameters: Mapping[str, Any] | None = None,
        render: Callable[[View], Mapping[str, Any]] = for_anthropic,
        deadline: float = 5.0,
        remembered: int = 256,
    ) -> None:
        _check_client(client, "AnthropicCounter")
        prompted.check_model(model)
        if not deadline > 0:
            raise errors.InvalidInput(f"deadline must be a number of seconds > 0{other(deadline)}")
        number(remembered, "remembered", least=0)
        prompted.check_parameters(parameters, _OURS)
        self._client = client
        self._model = model
        self._parameters = {name: value for name, value in (parameters or {}).items() if name not in _OF_THE_ANSWER}
        self._render = render
        self._deadline = deadline
        self._remembered = remembered
        self._known: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"anthropic/{self._model}"

    @property
    def needs_async(self) -> bool:
        return api_calls.is_async_client(self._client)

    @property
    def counts_overhead(self) -> bool:
        """Whether a count includes parts of the request besides the view, such as system prompts and tools."""
        return any(self._parameters.get(name) for name in _BESIDE)

    def __repr__(self) -> str:
        return f"AnthropicCounter(model={self._model!r})"

    def __call__(self, view: View, /) -> Measured | Awaitable[Measured]:
        work = self._work(view)
        return drive_async(work) if self.needs_async else drive(work)

    def _request(self, view: View) -> Payload:
        rendered = dict(self._render(view))
        betas = sorted({*rendered.pop("betas", ()), *self._parameters.get("betas", ())})
        asked = {**rendered, **self._parameters, "model": self._model}
        return asked | {"betas": betas} if betas else asked

    def _work(self, view: View) -> Work[Measured]:
        try:
            asked = self._request(view)
            # Objects of an SDK are hashed by their repr.
            key = sha256(json.dumps(asked, ensure_ascii=True, default=repr).encode()).hexdigest()
            with self._lock:
                tokens = self._known.get(key)
                if tokens is not None:
                    self._known.move_to_end(key)
            if tokens is None:
                # Use the beta endpoint only for betas, because some gateways do not have it.
                request = api_calls.CountRequest(asked, native="betas" in asked)
                tokens = yield from api_calls.count_tokens(self._client, request, api_calls.Deadline(self._deadline))
                with self._lock:
                    self._known[key] = tokens
                    while len(self._known) > self._remembered:
                        self._known.popitem(last=False)
        except (errors.NotRenderable, errors.SummarizerError) as error:
            return Measured(view.tokens, view.tokens, error=str(error))
        return Measured(tokens, view.tokens, "exact", counter=self.name)
