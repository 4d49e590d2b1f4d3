"""The interface of an importer: a source yields threads, and a thread yields messages and records of compactions.

Input that cannot be read is never ignored. It raises `InvalidSource` with its place or, if bad input is skipped, is
recorded in the thread's `Notes`. Neither quotes any content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from compaction_store.errors import InvalidInput, InvalidSource
from compaction_store.jsonable import AsDict, named
from compaction_store.messages import encoding
from compaction_store.models import Observed, ToLoad

Item = ToLoad | Observed

# A thread's notes name at most this many skipped places, and only count the others.
_KEPT = 100
# Why messages of an account export are left out.
NOT_SHOWN = "it is in a branch of the conversation that was not the last to be shown"
EMPTY = "it has no content"
# A timestamp above this is in milliseconds: as seconds, it would be in the year 5138.
_LAST_SECOND = 10**11


@dataclass(frozen=True, slots=True)
class Bad(AsDict):
    """Skipped input: its place, the reason, and its line number if it has one."""

    where: str
    why: str
    line: int | None = None


class LeftOut(NamedTuple):
    """Input that is no message: how much of a type there was, and why it is left out."""

    number: int
    why: str

    def as_dict(self) -> dict[str, Any]:
        return named(self)


@dataclass(slots=True)
class Notes:
    """Counts of input that was not imported: bad input in `skipped`, and data such as titles in `left_out`, by type.

    `unknown` counts lines of types that the importer does not know. `hint` says how the source could be read otherwise.
    `is_recognised` says whether any line was of a known type, for formats in which a line has a type.
    `refuse` counts and describes bad input if `skip_bad` is true. Otherwise it raises `InvalidSource`.
    """

    skip_bad: bool
    skipped: int = 0
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    bad: list[Bad] = field(default_factory=list)
    hint: str | None = None
    unknown: Counter[str] = field(default_factory=Counter)
    is_recognised: bool = False

    def refuse(self, where: str, why: str, line: int | None = None) -> None:
        if not self.skip_bad:
            raise InvalidSource(f"{where}: {why}", line=line)
        self.skipped += 1
        if len(self.bad) < _KEPT:
            self.bad.append(Bad(where, why, line))

    def leave_out(self, what: str, why: str, number: int = 1) -> None:
        """Counts input of a type that is no message, with the reason."""
        if number:
            found = self.left_out.get(what, LeftOut(0, why))
            self.left_out[what] = found._replace(number=found.number + number)
            if not self.left_out[what].number:
                del self.left_out[what]

    def take(self) -> Notes:
        """Returns a copy of these notes, and empties them."""
        other = Notes(self.skip_bad, self.skipped, self.left_out, self.bad)
        self.skipped, self.left_out, self.bad = 0, {}, []
        return other


@dataclass(frozen=True, slots=True)
class SourceThread:
    """A thread in a source. The idempotency key of its load is made from `source_id`, its id in the source.

    The items are read while they are iterated, and can be iterated only once. The thread gets the metadata that it has
    not yet. If this is the thread of a file's lines, `lines_of` is the id of the session's thread.
    """

    source_id: str
    items: Iterable[Item] = field(repr=False)
    notes: Notes = field(repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)
    lines_of: str | None = None


class Source(Protocol):
    """A source for `import_into`. `done` and `total` count bytes, messages or threads, as `unit` says."""

    format: str
    unit: str
    total: int | None

    @property
    def done(self) -> int: ...

    def threads(self) -> Iterator[SourceThread]: ...

    def close(self) -> None: ...


def to_load(
    message: Any, meta: Mapping[str, Any], notes: Notes, where: str, line: int | None = None
) -> Iterator[ToLoad]:
    """Yields the message to load, or refuses it with `notes`, which have its place, if the store would refuse it."""
    kept = {name: value for name, value in meta.items() if value is not None}
    why = None
    try:
        encoding.encode(message)
        encoding.encode_meta(kept)
    except InvalidInput as refusal:
        why = str(refusal)
    if why is None:
        yield ToLoad(message, meta=kept)
    else:
        notes.refuse(where, why, line)


def text(value: Any) -> str | None:
    """Returns an id or a name; None if the value is empty or not text."""
    return value if isinstance(value, str) and value else None


def count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None


def moment(value: Any) -> str | None:
    """Returns a text as it is, and seconds or milliseconds since 1970 in ISO 8601; None for any other value."""
    if isinstance(value, str):
        return value or None
    if type(value) not in (int, float) or value < 0:
        return None
    try:
        return datetime.fromtimestamp(value if value < _LAST_SECOND else value / 1000, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return None
