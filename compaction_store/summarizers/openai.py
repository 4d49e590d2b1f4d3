"""Summaries by models with OpenAI's Chat Completions or Responses API, on OpenAI's servers or any other.

Typed errors are raised for failed requests, and for answers that are no summary. These errors quote no content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from compaction_store.arguments import other
from compaction_store.compaction.checks import Check
from compaction_store.compaction.summary_request import Request
from compaction_store.errors import InvalidInput, MissingExtra, NativeRefused, SummaryUseless
from compaction_store.messages.tool_pairs import is_system
from compaction_store.models import Payload, Summary
from compaction_store.rendering.blocks import both
from compaction_store.rendering.view import View, for_openai
from compaction_store.summarizers.api_calls import CompactRequest, CompletionRequest, OpenAIAnswer, ResponseRequest
from compaction_store.summarizers.prompted import CONTEXT, Asked, Mode, ModelSummarizer, Render, finished
from compaction_store.waiting import Work

DEFAULT_MODEL = "gpt-4o-mini"
Api = Literal["chat", "responses"]
LimitName = Literal["max_completion_tokens", "max_tokens"]
_LIMITS = ("max_completion_tokens", "max_tokens")
_RESERVED = {
    "chat": ("model", "messages", "stream", "stream_options", "n", *_LIMITS),
    "responses": ("model", "input", "instructions", "stream", "background", "max_output_tokens"),
}
_NOT_NATIVE = ("previous_response_id", "tools")

# The reasons that some servers give if the model's window was full. Other servers give the same reason as for an answer
# that was cut off at its limit.
_FULL = ("model_length", "model_context_window_exceeded")
# Servers that do not separate a model's reasoning leave it at the beginning of the answer. It may be the whole answer.
# The opening tag may be missing, because some models' templates put it into the prompt.
_THINKING = re.compile(r"\A\s*(?:<think>.*?(?:</think>|\Z)|(?:(?!<think>).)*?\n\s*</think>[ \t]*\n)", re.DOTALL)


class OpenAISummarizer(ModelSummarizer):
    """Summarizes with a model of an OpenAI-compatible API. The caller makes, configures and closes the client.

    `api` is "chat" for the Chat Completions API, or "responses" for the Responses API, which is asked to store nothing
    unless `parameters` has `store`. `mode="native"` asks for the Responses API's own compaction, which is encrypted and
    has no `max_tokens`. `limit_name` is the name of the Chat Completions parameter that limits the tokens
    of an answer; older servers only know `max_tokens`. `stream` requests streams, for servers and proxies that close a
    connection without traffic; a stream that was not requested is read too. The other options are those of
    `AnthropicSummarizer`.
    """

    name = "OpenAISummarizer"

    def __init__(
        self,
        client: Any,
        *,
        model: str = DEFAULT_MODEL,
        instructions: str | None = None,
        max_tokens: int = 4096,
        deadline: float = 600.0,
        parameters: Mapping[str, Any] | None = None,
        api: Api = "chat",
        limit_name: LimitName | None = None,
        stream: bool = False,
        mode: Mode = "prompt",
        render: Render | None = None,
        context: int = CONTEXT,
        checks: Sequence[Check] = (),
    ) -> None:
        if not is_client(client):
            raise InvalidInput(f"client must be an OpenAI or AsyncOpenAI client, not {type(client).__name__}")
        if api not in _RESERVED:
            raise InvalidInput(f"api must be 'chat' or 'responses'{other(api)}")
        if api == "responses" and not hasattr(client, "responses"):
            raise InvalidInput("client must have the Responses API for api='responses'")
        if not isinstance(stream, bool):
            raise InvalidInput(f"stream must be True or False{other(stream)}")
        if limit_name is not None and limit_name not in _LIMITS:
            raise InvalidInput(f"limit_name must be 'max_completion_tokens' or 'max_tokens'{other(limit_name)}")
        if limit_name is not None and api == "responses":
            raise InvalidInput("limit_name must not be given with api='responses', whose limit has only one name")
        if mode == "native" and (api == "chat" or stream or checks):
            raise InvalidInput("mode='native' must have api='responses', no stream, and no checks of an encrypted text")
        limit = (limit_name or _LIMITS[0]) if api == "chat" else "max_output_tokens"
        super().__init__(
            client, model, instructions, max_tokens, deadline, parameters, checks, mode=mode, context=context,
            render=render or partial(for_openai, api=api), limit=limit,
            unfit=(*_RESERVED[api], *(_NOT_NATIVE if mode == "native" else ())),
        )  # fmt: skip
        if mode == "native":
            self._limit = {}
        self._is_chat = api == "chat"
        self._conversation = "messages" if self._is_chat else "input"
        self._stream: Payload = {}
        if stream:
            # Without this option, a streamed chat completion has no usage.
            self._stream = {"stream": True, **({"stream_options": {"include_usage": True}} if self._is_chat else {})}

    def __repr__(self) -> str:
        api = "" if self._is_chat else ", api='responses'"
        return f"OpenAISummarizer(model={self._model!r}{api})"

    def _summary(self, request: Request, asked: Asked) -> Work[Summary]:
        """Asks the API for its own compaction: the users' messages, and an item that only the API can read."""
        if self._mode != "native":
            return (yield from super()._summary(request, asked))
        if any(map(is_system, (message for element in request for message in element.messages))):
            raise NativeRefused("a system message is inside the span")
        given = self._rendered(View("", 0, request.elements))
        if all(item.get("role") == "user" or item.get("type") == "compaction" for item in given["input"]):
            raise NativeRefused("there is nothing to summarize")
        asked.prompt = self.instructions or given.get("instructions")
        own = {} if asked.prompt is None else {"instructions": asked.prompt}
        answer = yield from self._answer({**self._given, "input": given["input"], **own}, asked)
        if not answer.is_whole:
            raise SummaryUseless("the API returned no compaction item")
        return replace(asked.summary(""), replacement=tuple(answer.output))

    def _send(self, shown: str, asked: Asked) -> Work[str]:
        given = self._given
        named = {"name": "state", "strict": True, "schema": asked.schema}
        if self._is_chat:
            given["messages"] = [{"role": "system", "content": asked.prompt}, {"role": "user", "content": shown}]
            if asked.schema is not None:
                given["response_format"] = {"type": "json_schema", "json_schema": named}
        else:
            given |= {"instructions": asked.prompt, "input": shown}
            if asked.schema is not None:
                given["text"] = {**(given.get("text") or {}), "format": {"type": "json_schema", **named}}
        return self._said(given, asked)

    def _send_inline(self, arguments: Payload, prompt: str, asked: Asked) -> Work[str]:
        name = self._conversation
        sent = [*arguments[name]]
        own: Payload = {"role": "user", "content": prompt}
        if self._is_chat and sent and sent[-1].get("role") == "user":
            # Some models' templates refuse two messages of one role in a row.
            own = both(sent.pop(), own, "text")
        parameters = {**arguments, **self._parameters, "model": self._model, **self._limit, name: [*sent, own]}
        return self._said(parameters, asked)

    def _request(self, parameters: Payload) -> CompletionRequest | ResponseRequest | CompactRequest:
        if self._mode == "native":
            return CompactRequest(parameters)
        if self._is_chat:
            return CompletionRequest({**parameters, **self._stream})
        # Without store=False, the service would store the conversation.
        return ResponseRequest({"store": False, **parameters, **self._stream})

    def _text(self, answer: OpenAIAnswer) -> str:
        text, reason = _THINKING.sub("", answer.text), answer.reason
        return finished(text, reason, refused=answer.is_refused, full=reason in _FULL, whole=answer.is_whole)


def is_client(client: object) -> bool:
    """Returns whether an object has the methods of OpenAI's client, sync or async."""
    return getattr(getattr(client, "chat", None), "completions", None) is not None and hasattr(client, "with_options")


def client_of(base_url: str | None, *, key_needed: bool) -> Any:
    """Makes a client of OpenAI's SDK for an address. Returns None if a key is needed and the environment has none."""
    try:
        import openai  # noqa: PLC0415 — an extra
    except ImportError:
        raise MissingExtra("OpenAISummarizer", "openai") from None
    try:
        return openai.OpenAI(base_url=base_url)
    except openai.OpenAIError:
        return None if key_needed else openai.OpenAI(base_url=base_url, api_key="none")
