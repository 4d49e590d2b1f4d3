"""What callers give, judged before anything is sent; and how an error names a thread."""

from __future__ import annotations

from datetime import datetime

from compaction_store import payload
from compaction_store.errors import InvalidInput

_LARGEST = 2**53


def about(thread_id: str) -> str:
    """The end of an error's sentence."""
    return f" (thread {thread_id!r})"


def name(value: object, what: str) -> None:
    try:
        payload.check_thread_id(value)
    except InvalidInput:
        raise InvalidInput(f"a {what} is text of 1 to {payload.MAX_NAME_BYTES} bytes of UTF-8 without NUL") from None


def optional_name(value: object, what: str) -> None:
    if value is not None:
        name(value, what)


def one_of(value: object, choices: tuple[str, ...], what: str) -> None:
    if value is not None and value not in choices:
        raise InvalidInput(f"{what}= is one of {', '.join(choices)}")


def number(value: object, what: str, *, least: int) -> None:
    if type(value) is not int or not least <= value < _LARGEST:
        raise InvalidInput(f"{what}= is a whole number from {least} on")


def moment(value: object, what: str) -> None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"{what}= needs a datetime with a time zone")


def text(value: object, what: str) -> None:
    """Free text that is kept: anything JSON can carry."""
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{what}= is text")
