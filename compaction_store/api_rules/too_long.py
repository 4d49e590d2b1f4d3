"""Recognizes the errors of SDKs that mean that a request was too long for the model.

Providers share no error code, so the texts of errors are compared too, but not kept, as they may quote the request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from compaction_store.module_data import ModuleData

_CODES = frozenset({"context_length_exceeded", "request_too_large", "model_context_window_exceeded"})
_TYPES = frozenset({"ContextWindowExceededError", "ContextWindowExceeded", "ContextWindowOverflowException"})
_TOO_LARGE = 413
# Errors with these codes are about tokens per minute or load, not about the length of a request.
_THROTTLED = frozenset({429, 503, 529})
_RATE = re.compile(r"rate limit|throttl|too many requests|per min", re.IGNORECASE)
_DATA = ModuleData(__file__)
_TEXTS = re.compile(_DATA.pattern("texts"), re.IGNORECASE)
_FIGURES = tuple(re.compile(line, re.IGNORECASE) for line in _DATA.text("figures").splitlines())
_LONGEST_CHAIN = 8
_LONGEST_TEXT = 10_000


class TooLong(NamedTuple):
    """The refusal of a request as too long. The figures are in the provider's tokens, or None if they are not known.

    `limit` does not include the tokens that the request reserves for the output, if the provider stated them.
    """

    tokens: int | None
    limit: int | None


def too_long(error: BaseException) -> TooLong | None:
    """Returns a `TooLong` if the error means that the request was too long; None for any other error."""
    for each in _chain(error):
        if getattr(each, "status_code", None) in _THROTTLED:
            return None
        text = _text(each)
        if _RATE.search(text):
            return None
        if _is_named(each) or _TEXTS.search(text):
            return _figures(text)
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and the errors that it wraps, as frameworks and exception groups of one error do."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen and len(seen) < _LONGEST_CHAIN:
        seen.add(id(found))
        yield found
        if isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
            found = found.exceptions[0]
        elif found.__suppress_context__:
            found = found.__cause__
        else:
            found = found.__cause__ or found.__context__


def _is_named(error: BaseException) -> bool:
    if getattr(error, "status_code", None) == _TOO_LARGE or type(error).__name__ in _TYPES:
        return True
    codes: list[Any] = [getattr(error, "code", None), getattr(error, "type", None)]
    body = getattr(error, "body", None)
    while isinstance(body, Mapping):
        codes += [body.get("code"), body.get("type")]
        body = body.get("error")
    return any(isinstance(code, str) and code in _CODES for code in codes)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_LONGEST_TEXT]
    except Exception:  # noqa: BLE001 — a foreign __str__ may raise anything
        return ""


def _figures(text: str) -> TooLong:
    for pattern in _FIGURES:
        if (found := pattern.search(text)) is not None:
            figures = {name: int(figure.replace(",", "")[:15] or 0) for name, figure in found.groupdict().items()}
            limit = figures["limit"] - figures.get("output", 0)
            if figures["tokens"] > limit > 0:
                return TooLong(figures["tokens"], limit)
    return TooLong(None, None)
