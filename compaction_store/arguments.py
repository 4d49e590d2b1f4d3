"""Checks the arguments of public calls before anything is sent, and writes the texts of the errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

from compaction_store.errors import InvalidInput, InvalidKey, InvalidThreadId
from compaction_store.models.vocabulary import MOST_BYTES, NAME_BYTES

_LARGEST = 2**53
_HEAD_BYTES = 32
#: The name of the log of a tenant, and the tenant whose log is that of the database.
LOG, DATABASE = "compaction-store:log", "compaction-store"
_RESERVED = "compaction-store:"
_NAME = f"text of 1 to {NAME_BYTES} bytes of UTF-8 without NUL"


def about(thread_id: str) -> str:
    """Returns the last words of an error message, which name the thread."""
    return f" (thread {thread_id!r})"


def other(value: object) -> str:
    """Returns the last words of an error message: a number, or the type of a value that may be content."""
    if isinstance(value, datetime):
        return ", not one without" if value.tzinfo is None else ""
    return f", not {value}" if type(value) in (int, float, bool) else f", not {type(value).__name__}"


def other_choice(value: object) -> str:
    """Returns the last words of an error about a choice between texts. They do not quote a wrong text."""
    return ", not another text" if isinstance(value, str) else other(value)


def name(value: object, what: str) -> None:
    if not _is_name(value):
        raise InvalidInput(f"{what} must be {_NAME}{_given(value)}")


def optional_name(value: object, what: str) -> None:
    if value is not None:
        name(value, what)


def one_of(value: object, choices: tuple[str, ...], what: str) -> None:
    if value is not None and value not in choices:
        raise InvalidInput(f"{what} must be one of {', '.join(choices)}{other_choice(value)}")


def number(value: object, what: str, *, least: int, optional: bool = False) -> None:
    if optional and value is None:
        return
    if type(value) is not int or not least <= value < _LARGEST:
        raise InvalidInput(f"{what} must be an integer >= {least}{other(value)}")


def seqs(value: object, what: str) -> tuple[int, int]:
    """Returns the first and the last seq of a span."""
    if not isinstance(value, tuple) or len(value) != 2:  # noqa: PLR2004 — a pair
        raise InvalidInput(f"{what} must be a tuple of a first and a last seq{other(value)}")
    start, end = value
    number(start, f"the first seq of {what}", least=1)
    number(end, f"the last seq of {what}", least=start)
    return start, end


def bounds(value: object, what: str) -> None:
    """Checks that a value is None, or a tuple of a lowest and a highest number, of which either may be None."""
    if value is None:
        return
    if not isinstance(value, tuple) or len(value) != 2 or value == (None, None):  # noqa: PLR2004 — a pair
        raise InvalidInput(f"{what} must be a tuple of a lowest and a highest number{other(value)}")
    least, most = value
    number(least, f"the lowest number of {what}", least=0, optional=True)
    number(most, f"the highest number of {what}", least=least or 0, optional=True)


_BOUNDS = re.compile(r"(\d{0,15})(\.\.)?(\d{0,15})", re.ASCII)
_AGE = re.compile(r"(\d{1,6})([mhdwy])", re.ASCII)
# A year is never shorter than a calendar year.
_MINUTES = {"m": 1, "h": 60, "d": 24 * 60, "w": 7 * 24 * 60, "y": 366 * 24 * 60}


def written_age(text: str) -> timedelta | None:
    """Reads an age such as `30m`, `24h`, `7d`, `2w` or `6y`. Returns None for any other text."""
    found = _AGE.fullmatch(text)
    return None if found is None else timedelta(minutes=int(found[1]) * _MINUTES[found[2]])


def written_time(text: str) -> datetime:
    """Reads a time in ISO 8601, or an age as `written_age` does. Raises ValueError for any other text.

    Raises OverflowError for an age before all times. Only a time that is written without a time zone has none.
    """
    if (age := written_age(text)) is not None:
        return datetime.now(UTC) - age
    return datetime.fromisoformat(text)


def written_bounds(text: str) -> tuple[int | None, int | None]:
    """Reads a range such as `1000..5000`, `1000..`, `..5000` or `1000`. Raises ValueError for any other text."""
    found = _BOUNDS.fullmatch(text)
    least, dots, most = found.groups() if found is not None else ("", None, "")
    if not least and not most:
        raise ValueError("a range must be such as 1000..5000, 1000.. or ..5000")
    if dots is None:
        return int(least), int(least)
    return int(least) if least else None, int(most) if most else None


def seconds(value: object, what: str) -> None:
    if type(value) not in (int, float) or not cast("float", value) >= 0:
        raise InvalidInput(f"{what} must be a number of seconds >= 0{other(value)}")


_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+|0x[0-9A-Fa-f]{6,}")


def name_of(given: Any, default: str) -> str:
    """Returns a callable's name in records: its attribute `name`, or its module and name, without a memory address."""
    name = getattr(given, "name", None)
    while isinstance(given, partial):
        given = given.func
    if not isinstance(name, str):
        named = given if isinstance(getattr(given, "__qualname__", None), str) else type(given)
        name = f"{getattr(named, '__module__', '?')}.{named.__qualname__}"
    return storable_name(name) or default


def without_addresses(text: str) -> str:
    """Returns a text without memory addresses, which differ in every process."""
    return _ADDRESS.sub("", text)


def storable_name(name: str) -> str:
    """Returns a name that fits a column: at most 255 bytes, without NUL, lone surrogates and memory addresses."""
    return without_addresses(name.replace("\0", "")).encode(errors="replace")[:NAME_BYTES].decode(errors="ignore")


def head(value: object, what: str) -> None:
    """Checks that a value can be the hash of a chain entry."""
    if not isinstance(value, bytes) or len(value) != _HEAD_BYTES:
        given = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        raise InvalidInput(f"{what} must be {_HEAD_BYTES} bytes, not {given}")


def moment(value: object, what: str) -> None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"{what} must be a datetime with a time zone{other(value)}")


def instance(value: object, kind: type, what: str, *, optional: bool = False) -> None:
    """Checks the type of an argument, for example that it is a Compaction and not the number of a compaction."""
    if not isinstance(value, kind) and not (optional and value is None):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise InvalidInput(f"{what} must be {article} {kind.__name__}, not {type(value).__name__}")


_SETTING = re.compile(r"[A-Za-z_][\w.]{0,62}", re.ASCII)


def settings(value: object, role: str | None) -> dict[str, str]:
    """Checks settings of Postgres and returns them as a dict, with `role` added if it is given."""
    if value is not None and not isinstance(value, Mapping):
        raise InvalidInput(f"settings must map names of Postgres settings to strings{other(value)}")
    for name, setting in (value or {}).items():
        if not isinstance(name, str) or _SETTING.fullmatch(name) is None:
            raise InvalidInput(f"the keys of settings must be names of Postgres settings{other_choice(name)}")
        if not isinstance(setting, str) or "\0" in setting:
            given = ", not text with one" if isinstance(setting, str) else other(setting)
            raise InvalidInput(f"the setting {name} must be text without a NUL character{given}")
    chosen = {} if value is None else dict(value)
    return chosen if role is None else {**chosen, "role": role}


def text(value: object, what: str) -> None:
    """Checks that a value is text or None."""
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{what} must be text{other(value)}")


def reason(value: object, what: str = "reason") -> None:
    """Checks a reason, or another text of the same length that is stored in a record or an event. None passes."""
    if value is None:
        return
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be text{other(value)}")
    if (size := len(value.encode(errors="surrogatepass"))) > MOST_BYTES["reason"]:
        raise InvalidInput(f"{what} must be at most {MOST_BYTES['reason']:,} bytes, not {size:,}")


def _given(value: object) -> str:
    """Returns the last words of an error message about a name, which say what is wrong with it. Text is not quoted."""
    if not isinstance(value, str):
        return other(value)
    if "\0" in value:
        return ", not text with a NUL"
    try:
        return f", not {len(value.encode()):,} bytes"
    except UnicodeEncodeError:
        return ", not text with a lone surrogate"


def _is_name(value: object) -> bool:
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        return 1 <= len(value.encode()) <= NAME_BYTES
    except UnicodeEncodeError:
        return False


def check_thread_id(thread_id: object) -> None:
    if not _is_name(thread_id):
        raise InvalidThreadId(f"thread_id must be {_NAME}{_given(thread_id)}")


def check_new_thread_id(tenant: str, thread_id: str) -> None:
    """Refuses a name that is reserved for erased threads or for the log of a tenant."""
    if thread_id.startswith(_RESERVED):
        raise InvalidThreadId(f'thread_id must not begin with "{_RESERVED}", which is reserved for the log of a tenant')
    if tenant == DATABASE:
        raise InvalidThreadId(f'tenant must not be "{DATABASE}", which is reserved for the log of the database')
    if thread_id.startswith("erased:"):
        raise InvalidThreadId('thread_id must not begin with "erased:", which is reserved for erased threads')


def check_key(key: object) -> None:
    if not _is_name(key):
        raise InvalidKey(f"key must be {_NAME}{_given(key)}")
