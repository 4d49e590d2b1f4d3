"""Calls models' APIs: one policy of retries and errors for Anthropic's and OpenAI's clients, synchronous and async.

The client's own settings apply: its timeouts, and its `max_retries` after a broken connection or a server's error.
Overloaded and rate-limited answers are retried until the deadline. No error repeats a word of the API or of the input.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from typing import Any

from compaction_store.drivers import Call, Pause, Work
from compaction_store.errors import SummarizerRejected, SummarizerUnavailable
from compaction_store.summarizers.api_errors import describe, status_of, typed_error
from compaction_store.summarizers.api_requests import ApiRequest, CountRequest
from compaction_store.summarizers.retries import kind_of, seconds_to_wait
from compaction_store.telemetry.telemetry import model_call


class Deadline:
    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._until - time.monotonic()


def is_async_client(client: object) -> bool:
    return hasattr(client, "__aenter__")


def ask(client: Any, request: ApiRequest, deadline: Deadline) -> Work[Any]:
    """Returns the answer to a request, after retries if necessary. Raises a SummarizerError if there is none."""
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
            raise typed_error(error, kind)
        seconds = seconds_to_wait(error, tries)
        if seconds >= deadline.left:
            raise SummarizerUnavailable(describe(error, "no time is left for a retry"), status=status_of(error))
        tries += 1
        yield Pause(seconds)
    raise SummarizerUnavailable("the deadline is over", status=status_of(error))


def count_tokens(client: Any, request: CountRequest, deadline: Deadline) -> Work[int]:
    answer = yield from ask(client, request, deadline)
    tokens = answer.get("input_tokens") if isinstance(answer, dict) else None
    if type(tokens) is not int or tokens < 0:
        raise SummarizerRejected("the API answered without a count")
    return tokens


def _send(client: Any, request: ApiRequest, seconds: float) -> Work[Any]:
    """Sends a request once. Returns the answer or the exception, after reporting it to telemetry."""
    receive = _receive_async if is_async_client(client) else _receive
    with model_call(client, request.parameters) if request.is_for_model else nullcontext(_unseen) as seen:
        try:
            answer = yield Call(receive, client, request, seconds)
        except Exception as error:  # noqa: BLE001 — judged by the caller
            answer = error
        return seen(answer)


def _receive(client: Any, request: ApiRequest, seconds: float) -> Any:
    deadline = Deadline(seconds)
    body = bytearray()
    with request.open(_for_one_try(client, seconds)) as response:
        for piece in request.pieces(response):
            # A client's timeout starts again with each piece, so a body that arrives slowly would never reach it.
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


def _unseen(answer: Any) -> Any:
    return answer


def _for_one_try(client: Any, seconds: float) -> Any:
    """Returns the client without its own retries, and with no timeout longer than `seconds`."""
    return client.with_options(max_retries=0, timeout=_timeout(client.timeout, seconds))


def _timeout(given: Any, seconds: float) -> Any:
    if given is None:
        return seconds
    if isinstance(given, int | float):
        return min(given, seconds)
    parts = given.as_dict()
    return type(given)(**{name: seconds if value is None else min(value, seconds) for name, value in parts.items()})
