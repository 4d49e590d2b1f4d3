"""Judges errors of models' APIs and their clients: whether to retry, how long to wait, which error of ours to raise.

Our errors repeat no word of the API's and none of the input: an API's error may quote what it was given.
"""

from __future__ import annotations

import email.utils
import random
import re
import time
from typing import Any, Literal

from compaction_store.errors import SourceTooLong, SummarizerRejected, SummarizerUnavailable, raised_at

ErrorKind = Literal["final", "patient", "broken"]

_FIRST_WAIT = 0.5
_LONGEST_WAIT = 30.0
_NAME = re.compile(r"[a-z_]{1,64}")
_REQUEST_ID = re.compile(r"req_\w{1,64}", re.ASCII)
# Anthropic's API has no code for it, only words. These are the words of its errors so far, and of some gateways.
_TOO_LONG = re.compile(
    r"(?:prompt|input) is too long|exceeds? (?:the )?(?:available )?(?:context|model'?s? context|maximum context)"
    r"|context (?:limit|window|length)|too many (?:input )?tokens",
    re.IGNORECASE,
)
# How Python names an argument that a function does not take, or that it lacks.
_ARGUMENT = re.compile(r"\b\w+\(\) (?:got an unexpected keyword|missing \d+ required [\w-]+) arguments?:? '(\w{1,64})'")
_TOO_LONG_CODE = "context_length_exceeded"
# OpenAI also answers 429 if the account has no money left; a retry does not help then.
_SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_PATIENT = frozenset({"overloaded_error", "rate_limit_error"})
_BROKEN = frozenset({"api_error", "timeout_error"})
_TRANSPORT = frozenset({"httpx2", "httpcore2", "httpx", "httpcore", "h11", "h2", "ssl", "socket"})
_RATE_LIMITED, _OVERLOADED = 429, 529
_TIMED_OUT, _LOCKED, _TOO_LARGE, _SERVERS_FAULT = 408, 409, 413, 500


class Interrupted(Exception):
    """The stream ended before the answer did."""


def kind_of(error: Exception) -> ErrorKind:
    """Returns `patient` to retry until the deadline, `broken` to retry a few times, `final` not to retry."""
    response = getattr(error, "response", None)
    status, name = getattr(error, "status_code", None), getattr(error, "type", None)
    final = response is not None and response.headers.get("x-should-retry") == "false"
    if final or getattr(error, "code", None) in _SPENT:
        return "final"
    if status in (_RATE_LIMITED, _OVERLOADED) or (isinstance(name, str) and name in _PATIENT):
        return "patient"
    if isinstance(status, int) and (status in (_TIMED_OUT, _LOCKED) or status >= _SERVERS_FAULT):
        return "broken"
    if isinstance(name, str) and name in _BROKEN:
        return "broken"
    if isinstance(error, Interrupted | OSError | TimeoutError) or _is_of_connection(error):
        return "broken"
    return "broken" if type(error).__module__.partition(".")[0] in _TRANSPORT else "final"


def _is_of_connection(error: Exception) -> bool:
    """Returns whether an SDK's connection broke. Each SDK has its own class of that name."""
    return any(kind.__name__ == "APIConnectionError" for kind in type(error).__mro__)


def seconds_to_wait(error: Exception, tries: int) -> float:
    """Returns the pause before the next try: what the API asks for, else an exponential backoff with jitter."""
    response = getattr(error, "response", None)
    retry_after = None if response is None else _retry_after(response.headers)
    if retry_after is not None:
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


def as_ours(error: Exception, kind: ErrorKind) -> Exception:
    """Returns the error to raise for an error of an API or a client that is not retried."""
    status = status_of(error)
    if kind == "broken":
        return SummarizerUnavailable(describe(error, "the client's max_retries are used up"), status=status)
    said = getattr(error, "api_message", None) or getattr(error, "message", None)
    too_long = getattr(error, "code", None) == _TOO_LONG_CODE
    if too_long or status == _TOO_LARGE or (status is not None and isinstance(said, str) and _TOO_LONG.search(said)):
        return SourceTooLong(describe(error, "the request is too long for the model"))
    where = "" if status is not None else _where(error)
    return SummarizerRejected(describe(error, "it is not retried", where), status=status)


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
    """Returns the argument and the place of an error in a client's own code, which cannot hold content."""
    found = _ARGUMENT.search(str(error)) if isinstance(error, TypeError) else None
    argument = "" if found is None else f" over the argument {found[1]!r}"
    place = raised_at(error)
    return argument if place is None else f"{argument} at {place}"


def stop_reason(name: Any) -> str:
    """Returns the reason that an API gave for an answer's end, if it is a plain name."""
    return name if isinstance(name, str) and _NAME.fullmatch(name) else "the API gave no reason"


def status_of(error: Exception | None) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None
