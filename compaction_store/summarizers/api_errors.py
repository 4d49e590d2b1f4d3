"""Converts errors of models' APIs and their clients to errors of this package.

The new errors quote nothing of the API's error text, which may quote the input.
"""

from __future__ import annotations

import re
from typing import Any

from compaction_store.api_rules.too_long import too_long
from compaction_store.errors import SourceTooLong, SummarizerRejected, SummarizerUnavailable, raised_at
from compaction_store.summarizers.retries import ErrorKind, Interrupted, OtherFormat, is_over_allowance

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
