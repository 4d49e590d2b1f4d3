"""Calls the APIs of models, with the same retries and errors for Anthropic's and OpenAI's sync and async clients.

The client's own timeouts apply, and its `max_retries` applies after a broken connection or a server error. Requests
that fail because of overload or a rate limit are retried until the deadline. Errors quote no content.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Literal

from compaction_store.api_rules.too_long import too_long
from compaction_store.errors import MissingExtra, SourceTooLong, SummarizerRejected, SummarizerUnavailable, raised_at
from compaction_store.models import Payload
from compaction_store.telemetry.telemetry import model_call
from compaction_store.waiting import Call, Pause, Work


class Deadline:
    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._until - time.monotonic()


def is_async_client(client: object) -> bool:
    return hasattr(client, "__aenter__")


def ask(client: Any, request: ApiRequest, deadline: Deadline) -> Work[Any]:
    """Sends a request, with retries, and returns the answer. Raises a SummarizerError if all attempts fail."""
    tries = broken = 0
    error: Exception | None = None
    while (left := deadline.left) > 0:
        answer = yield from _send(client, request, left)
        if not isinstance(answer, Exception):
            return answer
        error = answer
        kind = kind_of(error)
        broken += kind == "broken"
        if kind == "final" or (kind == "broken" and broken > client.max_retries):
            raise typed_error(error, kind, tries + 1)
        seconds = seconds_to_wait(error, tries)
        if seconds >= deadline.left:
            raise SummarizerUnavailable(describe(error, "no time is left for a retry"), status=status_of(error))
        tries += 1
        yield Pause(seconds)
    raise SummarizerUnavailable("the deadline has passed", status=status_of(error))


def count_tokens(client: Any, request: CountRequest, deadline: Deadline) -> Work[int]:
    answer = yield from ask(client, request, deadline)
    tokens = answer.get("input_tokens") if isinstance(answer, dict) else None
    if type(tokens) is not int or tokens < 0:
        raise SummarizerRejected("the API's answer has no token count")
    return tokens


def _send(client: Any, request: ApiRequest, seconds: float) -> Work[Any]:
    """Sends a request once and reports it to telemetry. Returns the answer or the exception."""
    receive = _receive_async if is_async_client(client) else _receive
    with model_call(client, request.parameters) if request.is_for_model else nullcontext(lambda one: one) as seen:
        try:
            answer = yield Call(receive, client, request, seconds)
        except Exception as error:  # noqa: BLE001 — the caller decides whether to retry
            answer = error
        return seen(answer)


def _receive(client: Any, request: ApiRequest, seconds: float) -> Any:
    deadline = Deadline(seconds)
    body = bytearray()
    with request.open(_for_one_try(client, seconds)) as response:
        for piece in request.pieces(response):
            # Check the deadline here, because the client's timeout starts again with each piece of the body.
            if deadline.left <= 0:
                raise TimeoutError
            body += piece if isinstance(piece, bytes) else b""
        return request.answer(response, bytes(body))


async def _receive_async(client: Any, request: ApiRequest, seconds: float) -> Any:
    body = bytearray()
    async with asyncio.timeout(seconds), request.open(_for_one_try(client, seconds)) as response:
        async for piece in request.pieces(response):
            body += piece if isinstance(piece, bytes) else b""
        return request.answer(response, bytes(body))


def _for_one_try(client: Any, seconds: float) -> Any:
    """Returns a copy of the client without retries of its own and with timeouts of at most `seconds`."""
    return client.with_options(max_retries=0, timeout=_timeout(client.timeout, seconds))


def _timeout(given: Any, seconds: float) -> Any:
    if given is None:
        return seconds
    if isinstance(given, int | float):
        return min(given, seconds)
    parts = given.as_dict()
    return type(given)(**{name: seconds if value is None else min(value, seconds) for name, value in parts.items()})


# ---- the kinds of requests, each of which reads its own answers


@dataclass(frozen=True)
class ApiRequest(ABC):
    """A request to an API. With an async client, `open` and `pieces` return async objects."""

    parameters: Payload
    #: Whether a model answers the request. Telemetry makes a span only for these requests.
    is_for_model: ClassVar[bool] = True

    @abstractmethod
    def open(self, client: Any) -> Any:
        """Returns a context manager that sends the request and yields the response."""

    def pieces(self, response: Any) -> Any:
        """Returns an iterator over the bytes of the response's body, or over its events."""
        return response.iter_bytes()

    @abstractmethod
    def answer(self, response: Any, body: bytes) -> Any:
        """Returns the answer. Call it after the last piece."""


@dataclass(frozen=True)
class MessagesRequest(ApiRequest):
    """A request to Anthropic's Messages API, or to its beta endpoint if `native` is set."""

    native: bool
    stream: bool

    def open(self, client: Any) -> Any:
        api = client.beta.messages if self.native else client.messages
        return (api.stream if self.stream else api.with_streaming_response.create)(**self.parameters)

    def pieces(self, response: Any) -> Any:
        return response if self.stream else super().pieces(response)

    def answer(self, response: Any, body: bytes) -> Any:
        if self.stream:
            return _streamed(response)
        types = sdk().types
        return (types.beta.BetaMessage if self.native else types.Message).construct(**_parsed(response, body))


@dataclass(frozen=True)
class CountRequest(ApiRequest):
    """A request to Anthropic's API to count the tokens of a Messages request."""

    native: bool
    is_for_model = False

    def open(self, client: Any) -> Any:
        api = client.beta.messages if self.native else client.messages
        return api.with_streaming_response.count_tokens(**self.parameters)

    def answer(self, response: Any, body: bytes) -> Any:
        return _parsed(response, body)


class CompletionRequest(ApiRequest):
    """A request to OpenAI's Chat Completions API, or to a server with the same API."""

    def open(self, client: Any) -> Any:
        return client.chat.completions.with_streaming_response.create(**self.parameters)

    def answer(self, response: Any, body: bytes) -> OpenAIAnswer:
        return completion_answer(_streamed_completion(body) if _is_stream(body) else _parsed(response, body))


class ResponseRequest(ApiRequest):
    """A request to OpenAI's Responses API, or to a server with the same API."""

    def open(self, client: Any) -> Any:
        return client.responses.with_streaming_response.create(**self.parameters)

    def answer(self, response: Any, body: bytes) -> OpenAIAnswer:
        return response_answer(_streamed_response(body) if _is_stream(body) else _parsed(response, body))


class CompactRequest(ApiRequest):
    """A request to the compact endpoint of OpenAI's Responses API."""

    def open(self, client: Any) -> Any:
        return client.responses.with_streaming_response.compact(**self.parameters)

    def answer(self, response: Any, body: bytes) -> OpenAIAnswer:
        given = _object(_parsed(response, body))
        if error := _object(given.get("error")):
            raise AnsweredError(error)
        output = [item for item in map(_object, _list(given.get("output"))) if item]
        has_text = any(item.get("encrypted_content") for item in output)
        is_whole = has_text and given.get("object") == "response.compaction"
        usage = _usage(given.get("usage"), "input_tokens", "output_tokens")
        return OpenAIAnswer(given.get("id"), given.get("model"), "compaction", "", usage, is_whole, False, output)


@dataclass(frozen=True, slots=True)
class OpenAIAnswer:
    """An answer of an OpenAI API, with the fields of Anthropic's answers, so that both are recorded in the same way.

    `is_whole` is true if the model finished the answer. `is_refused` is true if the model or a filter refused it.
    `output` has the items in place of a conversation, if the answer is a compaction.
    """

    id: Any
    model: Any
    reason: Any
    text: str
    usage: Payload | None
    is_whole: bool
    is_refused: bool
    output: Sequence[Payload] = ()

    def to_dict(self, **_options: Any) -> Payload:
        return {
            "id": self.id, "model": self.model, "stop_reason": self.reason, "content": self.text, "usage": self.usage,
        }  # fmt: skip


def completion_answer(body: Any) -> OpenAIAnswer:
    """Converts the body of a chat completion to an OpenAIAnswer. Raises AnsweredError if the body is an error."""
    given = _object(body)
    choice = _object(next(iter(_list(given.get("choices"))), None))
    # Gateways put an error of the model's server into the body, or into its choice.
    if error := _object(choice.get("error")) or (not choice and _object(given.get("error"))):
        raise AnsweredError(error)
    message = _object(choice.get("message"))
    reason = choice.get("finish_reason")
    return OpenAIAnswer(
        given.get("id"), given.get("model"), reason, _text(message.get("content")),
        _usage(given.get("usage"), "prompt_tokens", "completion_tokens"), reason in _FINISHED,
        bool(message.get("refusal")) or reason == _FILTERED,
    )  # fmt: skip


def response_answer(body: Any) -> OpenAIAnswer:
    """Converts the body of a response to an OpenAIAnswer. Raises AnsweredError or Interrupted for an error."""
    given = _object(body)
    status, error = given.get("status"), _object(given.get("error"))
    if error.get("code") in _PASSING:
        raise Interrupted
    if error and (status is None or error.get("code") == _TOO_LONG_CODE):
        raise AnsweredError(error)
    detail = _object(given.get("incomplete_details")).get("reason") or error.get("code")
    items = [item for item in map(_object, _list(given.get("output"))) if item.get("type") == "message"]
    parts = [part for item in items for part in map(_object, _list(item.get("content")))]
    text = "".join(_text(part.get("text")) for part in parts if part.get("type") == "output_text")
    is_refused = any(part.get("type") == "refusal" for part in parts) or detail == _FILTERED
    return OpenAIAnswer(
        given.get("id"), given.get("model"), detail or status, text,
        _usage(given.get("usage"), "input_tokens", "output_tokens"), status == "completed" and bool(items), is_refused,
    )  # fmt: skip


_FILTERED = "content_filter"
# The reasons of a finished answer. Only the first is OpenAI's; servers with the same API have the others too.
_FINISHED = ("stop", "eos", "eos_token", "stop_sequence", "end_turn")
# Error codes that a failed response may have although the HTTP status is 200; the request can be retried.
_PASSING = ("server_error", "rate_limit_exceeded")


def _object(given: Any) -> Payload:
    return given if isinstance(given, dict) else {}


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []


def _text(given: Any) -> str:
    """Returns a text, or the joined texts of a list of parts. Parts with a model's reasoning are left out."""
    if isinstance(given, list):
        return "".join(_text(part.get("text")) for part in map(_object, given) if part.get("type") == "text")
    return given if isinstance(given, str) else ""


def _usage(given: Any, read: str, written: str) -> Payload | None:
    """Returns the usage with Anthropic's names. Subtracts the cached tokens, which OpenAI's input tokens include."""
    if not isinstance(given, dict):
        return None
    counted = {name: value for name, value in given.items() if type(value) is int}
    cached = _object(given.get(f"{read}_details")).get("cached_tokens")
    cached = cached if type(cached) is int else 0
    return {
        "input_tokens": max(0, counted.get(read, 0) - cached), "cache_read_input_tokens": cached,
        "output_tokens": counted.get(written, 0),
    }  # fmt: skip


def sdk(what: str = "AnthropicSummarizer") -> ModuleType:
    """Imports and returns Anthropic's SDK. `what` names the class that needs it, for the error if it is missing."""
    try:
        import anthropic  # noqa: PLC0415 — an extra
    except ImportError:
        raise MissingExtra(what, "anthropic") from None
    return anthropic


def _parsed(response: Any, body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise OtherFormat("JSON", response) from None


def _streamed(stream: Any) -> Any:
    try:
        message = stream.current_message_snapshot
    except AssertionError:
        message = None
        if not stream.response.headers.get("content-type", "").startswith("text/event-stream"):
            raise OtherFormat("a stream, or be asked for with stream=False", stream.response) from None
    if message is None or message.stop_reason is None:
        raise Interrupted
    return message


# ---- streamed answers of OpenAI's APIs
# Some servers only stream, whatever a request asks for, so an answer is recognized as a stream by its first line.

_STARTS = (b"data:", b"event:", b"id:", b":")
_DONE = "[DONE]"
_ENDS = ("response.completed", "response.incomplete", "response.failed")


def _is_stream(body: bytes) -> bool:
    return body.lstrip().startswith(_STARTS)


def _streamed_completion(body: bytes) -> Payload:
    """Returns a stream's chat completion. Raises AnsweredError for an error in it, and Interrupted without its end."""
    whole: Payload = {}
    texts: list[str] = []
    refusals: list[str] = []
    reason = usage = None
    is_done = False
    for event in _events(body):
        if event == _DONE:
            is_done = True
            continue
        chunk = _object(event)
        if error := _object(chunk.get("error")):
            raise AnsweredError(error)
        whole = whole or {name: chunk.get(name) for name in ("id", "model")}
        usage = chunk.get("usage") or usage
        for choice in map(_object, _list(chunk.get("choices"))):
            if choice.get("index") in (0, None):
                if error := _object(choice.get("error")):
                    raise AnsweredError(error)
                delta = _object(choice.get("delta"))
                texts += _texts(delta.get("content"))
                refusals += _texts(delta.get("refusal"))
                reason = choice.get("finish_reason") or reason
    if reason is None and not is_done:
        raise Interrupted
    message = {"content": "".join(texts), "refusal": "".join(refusals) or None}
    return {**whole, "usage": usage, "choices": [{"message": message, "finish_reason": reason}]}


def _streamed_response(body: bytes) -> Payload:
    """Returns a stream's last response. Raises AnsweredError for an error in it, and Interrupted without its end."""
    for event in _events(body):
        given = _object(event)
        if given.get("type") in _ENDS:
            return _object(given.get("response"))
        if given.get("type") == "error":
            raise AnsweredError(_object(given.get("error")) or given)
    raise Interrupted


def _events(body: bytes) -> Iterator[Any]:
    """Yields the data of each event: JSON, or the mark of the end. Ends at data that was cut off."""
    for line in body.decode("utf-8", "replace").split("\n"):
        name, _, value = line.partition(":")
        text = value.strip()
        if name != "data" or not text:
            continue
        if text == _DONE:
            yield text
            continue
        try:
            yield json.loads(text)
        except ValueError:
            return


def _texts(given: Any) -> list[str]:
    """Returns a text, or the texts of parts."""
    if isinstance(given, list):
        return [part["text"] for part in map(_object, given) if isinstance(part.get("text"), str)]
    return [given] if isinstance(given, str) else []


# ---- errors of APIs and their clients, without content, and when to retry

_NAME = re.compile(r"[a-z_]{1,64}")
_REQUEST_ID = re.compile(r"req_\w{1,64}", re.ASCII)
# In an API's error, these texts mean that the request was too long, like those of `api_rules.too_long`.
_TOO_LONG = re.compile(
    r"(?:prompt|input) is too long|exceeds? (?:the )?(?:available )?(?:context|model'?s? context|maximum context)"
    r"|context (?:limit|window|length)|too many (?:input )?tokens",
    re.IGNORECASE,
)
# Matches Python's error for an argument that is unexpected or missing.
_ARGUMENT = re.compile(r"\b\w+\(\) (?:got an unexpected keyword|missing \d+ required [\w-]+) arguments?:? '(\w{1,64})'")
_TOO_LONG_CODE = "context_length_exceeded"


def typed_error(error: Exception, kind: ErrorKind, tries: int) -> Exception:
    """Returns the error to raise for an API's or client's error after `tries` requests. No further one is sent."""
    status = status_of(error)
    if kind == "broken":
        sent = f"{tries} {'request was' if tries == 1 else 'requests were'} sent, as the client's max_retries allows"
        if isinstance(error, Interrupted):
            return SummarizerUnavailable(f"the answer ended before it was complete: {sent}")
        return SummarizerUnavailable(describe(error, sent), status=status)
    if isinstance(error, OtherFormat):
        return SummarizerRejected(str(error))
    if _is_too_long(error):
        return SourceTooLong(describe(error, "the request is too long for the model"))
    where = "" if status is not None else _where(error)
    return SummarizerRejected(describe(error, "the request is not retried", where), status=status)


def _is_too_long(error: Exception) -> bool:
    if getattr(error, "code", None) == _TOO_LONG_CODE or is_over_allowance(error):
        return True
    said = getattr(error, "api_message", None) or getattr(error, "message", None)
    if status_of(error) is None:
        return False
    return too_long(error) is not None or (isinstance(said, str) and _TOO_LONG.search(said) is not None)


def describe(error: Exception, what: str, where: str = "") -> str:
    status, name = status_of(error), getattr(error, "type", None)
    said = f"answered {status}" if status is not None else f"raised {type(error).__name__}"
    if isinstance(name, str) and _NAME.fullmatch(name):
        said += f" {name}"
    request = getattr(error, "request_id", None)
    if isinstance(request, str) and _REQUEST_ID.fullmatch(request):
        said += f" ({request})"
    return f"the {'API' if status is not None else 'client'} {said}{where}: {what}"


def _where(error: Exception) -> str:
    """Returns the argument that a client's code refused, and the place in the code. Neither can contain content."""
    found = _ARGUMENT.search(str(error)) if isinstance(error, TypeError) else None
    argument = "" if found is None else f" over the argument {found[1]!r}"
    place = raised_at(error)
    return argument if place is None else f"{argument} at {place}"


def stop_reason(name: Any) -> str:
    """Returns the API's reason for ending the answer, if it is a plain name."""
    return name if isinstance(name, str) and _NAME.fullmatch(name) else "the API gave no reason"


def status_of(error: Exception | None) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


ErrorKind = Literal["final", "patient", "broken"]

# ---- whether a failed request is retried, and how long to wait first

_FIRST_WAIT = 0.5
_LONGEST_WAIT = 30.0
# OpenAI also answers 429 if the account has no credit left. A retry does not help then.
_SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_PATIENT = frozenset({"overloaded_error", "rate_limit_error"})
_BROKEN = frozenset({"api_error", "timeout_error"})
_TRANSPORT = frozenset({"httpx2", "httpcore2", "httpx", "httpcore", "h11", "h2", "ssl", "socket"})
_RATE_LIMITED, _OVERLOADED = 429, 529
# OpenAI's text for a single request that has more tokens than are allowed per minute. A retry does not help.
_OVER_ALLOWANCE = re.compile(r"\brequest too large for\b", re.IGNORECASE)
_MEDIA_TYPE = re.compile(r"[a-z]{1,20}/[a-z0-9.+-]{1,60}")
_TIMED_OUT, _LOCKED, _SERVERS_FAULT = 408, 409, 500


class Interrupted(Exception):
    """The stream ended before the answer did, or the answer is an error that may pass."""


class OtherFormat(Exception):
    """The server answered in another format than the request asks for, such as JSON instead of a stream."""

    def __init__(self, wanted: str, response: Any) -> None:
        kind = str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()
        given = kind if _MEDIA_TYPE.fullmatch(kind) else "an unknown type"
        super().__init__(f"the answer must be {wanted}, not {given}")


class AnsweredError(Exception):
    """An error in the body of an answer with status 200. Some gateways send errors in this way."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.message = error.get("message")
        super().__init__(self.message)
        self.code = code = error.get("code")
        self.status_code = code if type(code) is int else None
        self.type = error.get("type")


def is_over_allowance(error: Exception) -> bool:
    """Returns whether a request alone is larger than a rate limit allows."""
    said = getattr(error, "message", None)
    is_limited = getattr(error, "status_code", None) == _RATE_LIMITED
    return is_limited and isinstance(said, str) and _OVER_ALLOWANCE.search(said) is not None


def kind_of(error: Exception) -> ErrorKind:
    """Returns how to retry after an error: `patient` until the deadline, `broken` a few times, `final` not at all."""
    response = getattr(error, "response", None)
    status, name = getattr(error, "status_code", None), getattr(error, "type", None)
    final = response is not None and response.headers.get("x-should-retry") == "false"
    code = getattr(error, "code", None)
    if final or (isinstance(code, str) and code in _SPENT) or is_over_allowance(error):
        return "final"
    if status in (_RATE_LIMITED, _OVERLOADED) or (isinstance(name, str) and name in _PATIENT):
        return "patient"
    if isinstance(status, int) and (status in (_TIMED_OUT, _LOCKED) or status >= _SERVERS_FAULT):
        return "broken"
    if isinstance(name, str) and name in _BROKEN:
        return "broken"
    # Each SDK has its own class APIConnectionError.
    is_of_connection = any(kind.__name__ == "APIConnectionError" for kind in type(error).__mro__)
    if is_of_connection or isinstance(error, Interrupted | OSError | TimeoutError):
        return "broken"
    return "broken" if type(error).__module__.partition(".")[0] in _TRANSPORT else "final"


def seconds_to_wait(error: Exception, tries: int) -> float:
    """Returns the pause before the next attempt: the API's Retry-After, or an exponential backoff with jitter."""
    response = getattr(error, "response", None)
    retry_after = None if response is None else _retry_after(response.headers)
    if retry_after:
        # Ignore a Retry-After of 0: an overloaded API would get one request after another until the deadline.
        return retry_after
    backoff: float = min(_FIRST_WAIT * 2.0**tries, _LONGEST_WAIT) * (1 - random.random() / 4)  # noqa: S311 — no secret
    return backoff


def _retry_after(headers: Any) -> float | None:
    try:
        if (text := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(text) / 1000)
        if (text := headers.get("retry-after")) is None:
            return None
        if (moment := email.utils.parsedate_tz(text)) is not None:
            return max(0.0, email.utils.mktime_tz(moment) - time.time())
        return max(0.0, float(text))
    except ValueError:
        return None
