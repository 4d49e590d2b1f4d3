"""Calls the APIs of models, with the same retries and errors for Anthropic's and OpenAI's sync and async clients.

The client's own timeouts apply, and its `max_retries` applies after a broken connection or a server error. Requests
that fail because of overload or a rate limit are retried until the deadline. Errors quote neither the API nor the
input.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from typing import Any

from compaction_store.errors import SummarizerRejected, SummarizerUnavailable
from compaction_store.summarizers.api_requests import (
    ApiRequest,
    CountRequest,
    describe,
    kind_of,
    seconds_to_wait,
    status_of,
    typed_error,
)
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
