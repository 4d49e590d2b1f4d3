"""What an importer is: something with threads, each an iterable of messages and of what was compacted of them.

What cannot be read is never passed over in silence: it is an `InvalidSource` that names the place, or, where skipping
is asked for, on the thread's `Notes`. No content is repeated in either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from compaction_store.errors import InvalidInput, InvalidSource
from compaction_store.jsonable import AsDict
from compaction_store.messages import encoding
from compaction_store.models import Observed, ToLoad

Item = ToLoad | Observed

# How many of the bad lines of a thread are kept; the others are only counted.
_KEPT = 100
# The last moment that is a plausible number of seconds; what is larger counts milliseconds.
_LAST_SECOND = 10**11


@dataclass(frozen=True, slots=True)
class Bad(AsDict):
    """Something that was skipped: where it stands, why it was, and the number of its line, if it has one."""

    where: str
    why: str
    line: int | None = None


@dataclass(slots=True)
class Notes:
    """What was not taken over from a thread: `skipped` could not be read, `left_out` is no message, such as a title."""

    skip_bad: bool
    skipped: int = 0
    left_out: int = 0
    bad: list[Bad] = field(default_factory=list)

    def refuse(self, where: str, why: str, line: int | None = None) -> None:
        if not self.skip_bad:
            raise InvalidSource(f"{where}: {why}", line=line)
        self.skipped += 1
        if len(self.bad) < _KEPT:
            self.bad.append(Bad(where, why, line))

    def handed_on(self) -> Notes:
        """These notes, as those of another; nothing stays here."""
        other = Notes(self.skip_bad, self.skipped, self.left_out, self.bad)
        self.skipped, self.left_out, self.bad = 0, 0, []
        return other


@dataclass(frozen=True, slots=True)
class SourceThread:
    """A thread as its source has it. `source_id` is its own id there, from which the load's key is made.

    The items are read when they are iterated, and only once.
    """

    source_id: str
    items: Iterable[Item] = field(repr=False)
    notes: Notes = field(repr=False)


class Source(Protocol):
    """What `import_into` reads. `done` of `total` counts bytes of files, or messages, or threads, as `unit` says."""

    format: str
    unit: str
    total: int | None

    @property
    def done(self) -> int: ...

    def threads(self) -> Iterator[SourceThread]: ...

    def close(self) -> None: ...


def to_load(message: Any, meta: Mapping[str, Any], notes: Notes, where: str, line: int | None = None) -> ToLoad | None:
    """A message as the load takes it, its meta without what is None. What the store would refuse is refused here.

    Here the place is known: the store would name it by its number among the messages.
    """
    kept = {name: value for name, value in meta.items() if value is not None}
    why = None
    try:
        encoding.encode(message)
        encoding.encode_meta(kept)
    except InvalidInput as refusal:
        why = str(refusal)
    if why is not None:
        notes.refuse(where, why, line)
        return None
    return ToLoad(message, meta=kept)


def text(value: Any) -> str | None:
    """An id or a name that a source gives, if it gives one."""
    return value if isinstance(value, str) and value else None


def count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None


def moment(value: Any) -> str | None:
    """When something was, in ISO 8601: as the source says it, or from seconds or milliseconds since 1970."""
    if isinstance(value, str):
        return value or None
    if type(value) not in (int, float) or value < 0:
        return None
    try:
        seconds = value if value < _LAST_SECOND else value / 1000
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return None
