"""Converts errors of models' APIs and their clients to errors of this package.

The new errors quote nothing of the API's error text, which may quote the input.
"""

from __future__ import annotations

import email.utils
import random
import re
import time
from typing import Any, Literal

from compaction_store.api_rules.too_long import too_long
from compaction_store.errors import SourceTooLong, SummarizerRejected, SummarizerUnavailable, raised_at

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
    if isinstance(error, Interrupted | OSError | TimeoutError) or _is_of_connection(error):
        return "broken"
    return "broken" if type(error).__module__.partition(".")[0] in _TRANSPORT else "final"


def _is_of_connection(error: Exception) -> bool:
    """Returns whether an error is an SDK's APIConnectionError. Each SDK has its own class of that name."""
    return any(kind.__name__ == "APIConnectionError" for kind in type(error).__mro__)


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
