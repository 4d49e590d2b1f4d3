"""The requests to models' APIs, and how each reads its answer. The code that sends them is in `api_calls`."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from compaction_store.errors import MissingExtra
from compaction_store.models import Payload
from compaction_store.summarizers.retries import Interrupted


class ApiRequest(Protocol):
    """One kind of request. With an async client, `open` and `pieces` return async objects."""

    @property
    def parameters(self) -> Payload: ...

    @property
    def is_for_model(self) -> bool:
        """Whether a model answers, so that telemetry makes a span."""
        ...

    def open(self, client: Any) -> Any:
        """Returns a context manager that sends the request and gives the response."""
        ...

    def pieces(self, response: Any) -> Any:
        """Returns an iterator over the response: bytes of its body, or events."""
        ...

    def answer(self, response: Any, body: bytes) -> Any:
        """Returns the answer, once all pieces are there."""
        ...


class MessagesRequest(NamedTuple):
    """A request to Anthropic's Messages API; with `native`, to its beta endpoint."""

    parameters: Payload
    native: bool
    stream: bool

    @property
    def is_for_model(self) -> bool:
        return True

    def open(self, client: Any) -> Any:
        api = client.beta.messages if self.native else client.messages
        if self.stream:
            return api.stream(**self.parameters)
        return api.with_streaming_response.create(**self.parameters)

    def pieces(self, response: Any) -> Any:
        return response if self.stream else response.iter_bytes()

    def answer(self, response: Any, body: bytes) -> Any:
        if self.stream:
            return _streamed(response)
        types = sdk().types
        return (types.beta.BetaMessage if self.native else types.Message).construct(**json.loads(body))


class CountRequest(NamedTuple):
    """A request to count the tokens of a request to Anthropic's Messages API."""

    parameters: Payload
    native: bool

    @property
    def is_for_model(self) -> bool:
        return False

    def open(self, client: Any) -> Any:
        api = client.beta.messages if self.native else client.messages
        return api.with_streaming_response.count_tokens(**self.parameters)

    def pieces(self, response: Any) -> Any:
        return response.iter_bytes()

    def answer(self, _response: Any, body: bytes) -> Any:
        return json.loads(body)


class CompletionRequest(NamedTuple):
    """A request to OpenAI's Chat Completions, or to a server with the same API."""

    parameters: Payload

    @property
    def is_for_model(self) -> bool:
        return True

    def open(self, client: Any) -> Any:
        return client.chat.completions.with_streaming_response.create(**self.parameters)

    def pieces(self, response: Any) -> Any:
        return response.iter_bytes()

    def answer(self, _response: Any, body: bytes) -> Completion:
        return Completion(json.loads(body))


class Completion:
    """A chat completion with the fields of Anthropic's answers, so that both are recorded in the same way."""

    def __init__(self, body: Any) -> None:
        given = body if isinstance(body, dict) else {}
        choices = given.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        said = choice.get("message")
        message: Payload = said if isinstance(said, dict) else {}
        self.reason = choice.get("finish_reason")
        self.refusal = message.get("refusal")
        content = message.get("content")
        self.text: str = content if isinstance(content, str) else ""
        self._fields: Payload = {
            "id": given.get("id"), "model": given.get("model"), "stop_reason": self.reason, "content": self.text,
            "usage": _usage(given.get("usage")),
        }  # fmt: skip

    def to_dict(self, **_options: Any) -> Payload:
        return self._fields


def _usage(given: Any) -> Payload | None:
    """Returns tokens by Anthropic's names. OpenAI's number of input tokens includes those read from a cache."""
    if not isinstance(given, dict):
        return None
    counted = {name: value for name, value in given.items() if type(value) is int}
    details = given.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    read = cached if type(cached) is int else 0
    return {
        "input_tokens": max(0, counted.get("prompt_tokens", 0) - read), "cache_read_input_tokens": read,
        "output_tokens": counted.get("completion_tokens", 0),
    }  # fmt: skip


def sdk(what: str = "AnthropicSummarizer") -> ModuleType:
    """Returns Anthropic's SDK; `what` is the class that needs it."""
    try:
        import anthropic  # noqa: PLC0415 — an extra
    except ImportError:
        raise MissingExtra(what, "anthropic") from None
    return anthropic


def _streamed(stream: Any) -> Any:
    try:
        message = stream.current_message_snapshot
    except AssertionError:
        message = None
    if message is None or message.stop_reason is None:
        raise Interrupted
    return message
