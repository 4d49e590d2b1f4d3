"""Makes this package's errors from those of models' APIs and their clients.

They repeat nothing of the API's error text, which may quote the input.
"""

from __future__ import annotations

import re
from typing import Any

from compaction_store.errors import SourceTooLong, SummarizerRejected, SummarizerUnavailable, raised_at
from compaction_store.summarizers.retries import ErrorKind

_NAME = re.compile(r"[a-z_]{1,64}")
_REQUEST_ID = re.compile(r"req_\w{1,64}", re.ASCII)
# A request that is too long has no error code in Anthropic's API. These are its texts so far, and those of gateways.
_TOO_LONG = re.compile(
    r"(?:prompt|input) is too long|exceeds? (?:the )?(?:available )?(?:context|model'?s? context|maximum context)"
    r"|context (?:limit|window|length)|too many (?:input )?tokens",
    re.IGNORECASE,
)
# How Python names an argument that a function does not take, or that it lacks.
_ARGUMENT = re.compile(r"\b\w+\(\) (?:got an unexpected keyword|missing \d+ required [\w-]+) arguments?:? '(\w{1,64})'")
_TOO_LONG_CODE = "context_length_exceeded"
_TOO_LARGE = 413


def typed_error(error: Exception, kind: ErrorKind) -> Exception:
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
    """Returns which argument a client's own code refused, and where it raised. Neither can contain content."""
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
