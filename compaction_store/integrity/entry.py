"""The entries of a chain, in the form in which `walk` checks them. They come from rows or from lines of a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple
from uuid import UUID

from compaction_store.integrity import chain

Kind = Literal["message", "compaction", "event"]
ORDINALS: dict[str, str] = {"message": "seq", "compaction": "number"}


class Entry(NamedTuple):
    """One entry of a chain, read from a row or from a line of a bundle.

    `ordinal` is the seq of a message, the number of a compaction, or 0 for an event. `columns` are the fields of the
    header in order, with hashes in hexadecimal. `microseconds` is None if the time in Postgres is infinite.
    """

    kind: Kind
    pos: int
    ordinal: int
    tenant: str
    microseconds: int | None
    redacted_pos: int | None
    salt: bytes | None
    commitment: bytes
    entry: bytes
    body: str | None
    meta: str | None
    meta_commitment: bytes | None
    columns: Sequence[Any]
    line: int | None = None


class KnownEntry(NamedTuple):
    """The pos and the hash of an entry that is known from an earlier report, a kept head or a checkpoint."""

    pos: int
    entry: bytes


class ChainEnd(NamedTuple):
    """The end of a chain, as the head of a thread or the manifest of a bundle states it.

    `erased_pos` is the pos of the erasure of the whole thread. `is_bare` says whether the thread has lost its name and
    metadata. `subject` is the thread's, and `salt` that of its name. `line` is the line of the manifest.
    """

    last_pos: int
    last_seq: int
    last_number: int
    head: bytes
    erased_pos: int | None
    is_bare: bool
    subject: str | None
    salt: bytes | None
    line: int | None = None


def message_header(*columns: Any) -> bytes:
    """Computes the header of a message without meta: the fields that are hashed besides the content."""
    return chain.message_header(**dict(zip(chain.COLUMNS["message"], columns, strict=True)), meta_commitment=None)


def header(entry: Entry) -> bytes:
    """Computes the header of an entry. Raises ValueError or TypeError if the columns have wrong types or values."""
    values: dict[str, Any] = dict(zip(chain.COLUMNS[entry.kind], entry.columns, strict=True))
    if entry.kind == "message":
        return chain.message_header(**values, meta_commitment=entry.meta_commitment)
    if entry.kind == "event":
        return chain.event_header(**values)
    for name in ("source_before", "source_end"):
        values[name] = None if values[name] is None else bytes.fromhex(values[name])
    return chain.compaction_header(**values | {"run_id": UUID(values["run_id"])})
