"""Decides whether a failed request to a model's API is retried, and how long to wait first."""

from __future__ import annotations

import email.utils
import random
import re
import time
from typing import Any, Literal

ErrorKind = Literal["final", "patient", "broken"]

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
