"""Calls of models' APIs: one policy of retries and errors for Anthropic's and OpenAI's clients, synchronous and async.

What decides is a generator: it yields what is to be sent, or how long to wait, and is sent the answer or the exception
that came of it. The client's own settings hold: its timeouts, and its `max_retries` for whatever breaks. Overloaded and
rate-limited answers are tried again until the deadline. No error here repeats a word of the API's or of the input.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import random
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from compaction_store.errors import (
    MissingExtra,
    SourceTooLong,
    SummarizerRejected,
    SummarizerUnavailable,
    raised_at,
)
from compaction_store.models import Payload
from compaction_store.telemetry.telemetry import model_call

_T = TypeVar("_T")

_FIRST_WAIT = 0.5
_LONGEST_WAIT = 30.0
_NAME = re.compile(r"[a-z_]{1,64}")
_REQUEST_ID = re.compile(r"req_\w{1,64}", re.ASCII)
# The API has no code for it, only words. They are those of its errors so far, and of some gateways.
_TOO_LONG = re.compile(
    r"(?:prompt|input) is too long|exceeds? (?:the )?(?:available )?(?:context|model'?s? context|maximum context)"
    r"|context (?:limit|window|length)|too many (?:input )?tokens",
    re.IGNORECASE,
)
# How Python names an argument that a function does not take, or that it lacks.
_ARGUMENT = re.compile(r"\b\w+\(\) (?:got an unexpected keyword|missing \d+ required [\w-]+) arguments?:? '(\w{1,64})'")
_TOO_LONG_CODE = "context_length_exceeded"
# OpenAI answers 429 where no money is left, too: waiting brings none.
_SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_PATIENT = frozenset({"overloaded_error", "rate_limit_error"})
_BROKEN = frozenset({"api_error", "timeout_error"})
_TRANSPORT = frozenset({"httpx2", "httpcore2", "httpx", "httpcore", "h11", "h2", "ssl", "socket"})
_RATE_LIMITED, _OVERLOADED = 429, 529
_TIMED_OUT, _LOCKED, _TOO_LARGE, _SERVERS_FAULT = 408, 409, 413, 500


class Send(NamedTuple):
    """A request, and the seconds that are left for it."""

    parameters: Payload
    native: bool
    stream: bool
    seconds: float


class Count(NamedTuple):
    """The same, of which only the tokens are to be counted."""

    parameters: Payload
    native: bool
    seconds: float


class Complete(NamedTuple):
    """A request for a chat completion, to an API that speaks OpenAI's."""

    parameters: Payload
    seconds: float


class Completion:
    """A chat completion, told as an answer of Anthropic's is: what is recorded and measured is the same for both."""

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
        self._told: Payload = {
            "id": given.get("id"), "model": given.get("model"), "stop_reason": self.reason, "content": self.text,
            "usage": _usage(given.get("usage")),
        }  # fmt: skip

    def to_dict(self, **_options: Any) -> Payload:
        return self._told


def _usage(given: Any) -> Payload | None:
    """Tokens by Anthropic's names. OpenAI counts what was read from a cache among what went in."""
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


class Wait(NamedTuple):
    seconds: float


Work = Generator[Send | Count | Complete | Wait, Any, _T]


class Deadline:
    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._until - time.monotonic()


class _Interrupted(Exception):
    """The stream ended before the answer did."""


def sdk(what: str = "AnthropicSummarizer") -> ModuleType:
    try:
        import anthropic  # noqa: PLC0415 — an extra
    except ImportError:
        raise MissingExtra(what, "anthropic") from None
    return anthropic


def is_async(client: object) -> bool:
    return hasattr(client, "__aenter__")


# ---- driving


def run(client: Any, work: Work[_T]) -> _T:
    """Does the work with a synchronous client."""
    answer: Any = None
    while True:
        try:
            step = work.send(answer)
        except StopIteration as done:
            result: _T = done.value
            return result
        if isinstance(step, Wait):
            time.sleep(step.seconds)
            answer = None
        elif isinstance(step, Count):
            answer = _count(client, step)
        else:
            with model_call(client, step.parameters) as told:
                answer = told(_complete(client, step) if isinstance(step, Complete) else _send(client, step))


async def run_async(client: Any, work: Work[_T]) -> _T:
    """The same with an async one."""
    answer: Any = None
    while True:
        try:
            step = work.send(answer)
        except StopIteration as done:
            result: _T = done.value
            return result
        if isinstance(step, Wait):
            await asyncio.sleep(step.seconds)
            answer = None
        elif isinstance(step, Count):
            answer = await _count_async(client, step)
        else:
            with model_call(client, step.parameters) as told:
                sent = _complete_async(client, step) if isinstance(step, Complete) else _send_async(client, step)
                answer = told(await sent)


def _send(client: Any, step: Send) -> Any:
    """The answer, or the exception that came of it. At the deadline it is given up, between two pieces of it."""
    deadline = Deadline(step.seconds)
    try:
        api = _api(client, step)
        if not step.stream:
            with api.with_streaming_response.create(**step.parameters) as response:
                body = b"".join(_in_time(response.iter_bytes(), deadline))
            types = sdk().types
            return (types.beta.BetaMessage if step.native else types.Message).construct(**json.loads(body))
        with api.stream(**step.parameters) as stream:
            for _ in _in_time(stream, deadline):
                pass
            return _whole(stream)
    except Exception as error:  # noqa: BLE001 — the work decides what to make of it
        return error


def _in_time(pieces: Iterable[_T], deadline: Deadline) -> Iterator[_T]:
    """A client's timeout is for every piece anew: a body that drips would never reach it."""
    for piece in pieces:
        if deadline.left <= 0:
            raise TimeoutError
        yield piece


async def _send_async(client: Any, step: Send) -> Any:
    try:
        async with asyncio.timeout(step.seconds):
            api = _api(client, step)
            if not step.stream:
                return await api.create(**step.parameters)
            async with api.stream(**step.parameters) as stream:
                async for _ in stream:
                    pass
                return _whole(stream)
    except Exception as error:  # noqa: BLE001 — the work decides what to make of it
        return error


def _count(client: Any, step: Count) -> Any:
    deadline = Deadline(step.seconds)
    try:
        with _api(client, step).with_streaming_response.count_tokens(**step.parameters) as response:
            return json.loads(b"".join(_in_time(response.iter_bytes(), deadline)))
    except Exception as error:  # noqa: BLE001 — the work decides what to make of it
        return error


async def _count_async(client: Any, step: Count) -> Any:
    try:
        async with asyncio.timeout(step.seconds):
            asked = _api(client, step).with_streaming_response.count_tokens(**step.parameters)
            async with asked as response:
                return json.loads(await response.read())
    except Exception as error:  # noqa: BLE001 — the work decides what to make of it
        return error


def _complete(client: Any, step: Complete) -> Any:
    deadline = Deadline(step.seconds)
    try:
        api = _completions(client, step)
        with api.with_streaming_response.create(**step.parameters) as response:
            return Completion(json.loads(b"".join(_in_time(response.iter_bytes(), deadline))))
    except Exception as error:  # noqa: BLE001 — the work decides what to make of it
        return error


async def _complete_async(client: Any, step: Complete) -> Any:
    try:
        async with (
            asyncio.timeout(step.seconds),
            _completions(client, step).with_streaming_response.create(**step.parameters) as response,
        ):
            return Completion(json.loads(await response.read()))
    except Exception as error:  # noqa: BLE001 — the work decides what to make of it
        return error


def _completions(client: Any, step: Complete) -> Any:
    return client.with_options(max_retries=0, timeout=_timeout(client.timeout, step.seconds)).chat.completions


def _api(client: Any, step: Send | Count) -> Any:
    """The client as it was given, but for the retries, which are ours, and no timeout beyond the deadline."""
    scoped = client.with_options(max_retries=0, timeout=_timeout(client.timeout, step.seconds))
    return scoped.beta.messages if step.native else scoped.messages


def _timeout(given: Any, seconds: float) -> Any:
    if given is None:
        return seconds
    if isinstance(given, int | float):
        return min(given, seconds)
    parts = given.as_dict()
    return type(given)(**{name: seconds if value is None else min(value, seconds) for name, value in parts.items()})


def _whole(stream: Any) -> Any:
    try:
        message = stream.current_message_snapshot
    except AssertionError:
        message = None
    if message is None or message.stop_reason is None:
        raise _Interrupted
    return message


# ---- what to make of an answer


def answer(parameters: Payload, *, native: bool, stream: bool, deadline: Deadline, retries: int) -> Work[Any]:
    """Sends a request until there is an answer. What cannot be had is a typed error."""
    return _asked(lambda left: Send(parameters, native, stream, left), deadline, retries)


def completion(parameters: Payload, *, deadline: Deadline, retries: int) -> Work[Any]:
    """The same of an API that speaks OpenAI's."""
    return _asked(lambda left: Complete(parameters, left), deadline, retries)


def count(parameters: Payload, *, native: bool, deadline: Deadline, retries: int) -> Work[int]:
    """The tokens of a request, which is not sent."""
    told = yield from _asked(lambda left: Count(parameters, native, left), deadline, retries)
    tokens = told.get("input_tokens") if isinstance(told, dict) else None
    if type(tokens) is not int or tokens < 0:
        raise SummarizerRejected("the API answered without a count")
    return tokens


def _asked(step: Callable[[float], Send | Count | Complete], deadline: Deadline, retries: int) -> Work[Any]:
    tries = broken = 0
    status: int | None = None
    while (left := deadline.left) > 0:
        got = yield step(left)
        if not isinstance(got, Exception):
            return got
        status = getattr(got, "status_code", None)
        kind = _kind(got)
        if kind == "broken":
            broken += 1
        if kind == "final" or (kind == "broken" and broken > retries):
            raise _typed(got, kind)
        seconds = _wait(got, tries)
        if seconds >= deadline.left:
            raise SummarizerUnavailable(_say(got, "no time is left to wait for another try"), status=_number(status))
        tries += 1
        yield Wait(seconds)
    raise SummarizerUnavailable("the deadline is over", status=_number(status))


def _kind(error: Exception) -> str:
    """Whether to try again until the deadline, a few times, or never."""
    response = getattr(error, "response", None)
    status, name = getattr(error, "status_code", None), getattr(error, "type", None)
    told = response is not None and response.headers.get("x-should-retry") == "false"
    if told or getattr(error, "code", None) in _SPENT:
        return "final"
    if status in (_RATE_LIMITED, _OVERLOADED) or (isinstance(name, str) and name in _PATIENT):
        return "patient"
    if isinstance(status, int) and (status in (_TIMED_OUT, _LOCKED) or status >= _SERVERS_FAULT):
        return "broken"
    if isinstance(name, str) and name in _BROKEN:
        return "broken"
    if isinstance(error, _Interrupted | OSError | TimeoutError) or _is_of_connection(error):
        return "broken"
    return "broken" if type(error).__module__.partition(".")[0] in _TRANSPORT else "final"


def _is_of_connection(error: Exception) -> bool:
    """Whether an SDK says that its connection broke; each has a class of its own for it."""
    return any(kind.__name__ == "APIConnectionError" for kind in type(error).__mro__)


def _wait(error: Exception, tries: int) -> float:
    response = getattr(error, "response", None)
    asked = None if response is None else _retry_after(response.headers)
    if asked is not None:
        return asked
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


def _typed(error: Exception, kind: str) -> Exception:
    """Our error for one of another's: whatever that says, it may quote what it was given."""
    status = _number(getattr(error, "status_code", None))
    if kind == "broken":
        return SummarizerUnavailable(_say(error, "the request was tried as often as the client tries"), status=status)
    said = getattr(error, "api_message", None) or getattr(error, "message", None)
    too_long = getattr(error, "code", None) == _TOO_LONG_CODE
    if too_long or status == _TOO_LARGE or (status is not None and isinstance(said, str) and _TOO_LONG.search(said)):
        return SourceTooLong(_say(error, "the request is too long for the model"))
    where = "" if status is not None else _where(error)
    return SummarizerRejected(_say(error, "it is not tried again", where), status=status)


def _say(error: Exception, what: str, where: str = "") -> str:
    status, name = _number(getattr(error, "status_code", None)), getattr(error, "type", None)
    said = f"answered {status}" if status is not None else f"raised {type(error).__name__}"
    if isinstance(name, str) and _NAME.fullmatch(name):
        said += f" {name}"
    request = getattr(error, "request_id", None)
    if isinstance(request, str) and _REQUEST_ID.fullmatch(request):
        said += f" ({request})"
    return f"the {'API' if status is not None else 'client'} {said}{where}: {what}"


def _where(error: Exception) -> str:
    """What of a client's own error helps to mend the call and cannot hold content: the argument, and the place."""
    found = _ARGUMENT.search(str(error)) if isinstance(error, TypeError) else None
    argument = "" if found is None else f" over the argument {found[1]!r}"
    place = raised_at(error)
    return argument if place is None else f"{argument} at {place}"


def plain_name(name: Any) -> str:
    """A name that the API gave, where it is but a name."""
    return name if isinstance(name, str) and _NAME.fullmatch(name) else "it has no reason for its end"


def _number(status: Any) -> int | None:
    return status if isinstance(status, int) else None
