"""Stores the appends of several callers in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from compaction_store.messages.keys import Key
from compaction_store.postgres.driver import cursor
from compaction_store.postgres.driver.cursor import Connection
from compaction_store.postgres.queries.functions import ThreadKey
from compaction_store.postgres.queries.one_thread import Expected, NewMessage, Written

_TOGETHER = (
    "SELECT * FROM compaction_store.append_together"
    "(%b::uuid[], %b::text[], %b::text[], %b::int4[], %b::text[], %b::text[], %b::text[], %b::int8[], %b::bool[],"
    " %b::bytea[], %b::bytea[], %b::text[], %b, %b::text[], %b::int4[], %b::text[], %b::text[],"
    " %b::text[], %b)"
)


class Append(NamedTuple):
    """The arguments of one append."""

    thread: ThreadKey
    new: Sequence[NewMessage]
    counter: str
    key: Key
    receipt: str | None
    actor: str | None
    expected: Expected
    durable: bool = True


def append_together(connection: Connection, appends: Sequence[Append]) -> list[Written | None]:
    """Stores several appends in one commit. Returns None for an append that was not stored and must be repeated alone.

    The commit waits for the disk unless every append is marked as not durable. No append may be part of a turn. Appends
    to the same thread are stored in the given order.
    """
    # Append in the order of the names, so that two batches that make the same threads cannot deadlock.
    order = sorted(range(len(appends)), key=lambda i: appends[i].thread[1:])
    calls = [appends[i] for i in order]
    new = list(chain.from_iterable(call.new for call in calls))
    rows = cursor.call(
        connection, _TOGETHER,
        (
            [call.thread.uid for call in calls], [call.thread.tenant for call in calls],
            [call.thread.thread_id for call in calls], [len(call.new) for call in calls],
            [call.counter for call in calls], [call.key.text for call in calls], [call.receipt for call in calls],
            [call.expected.seq for call in calls],
            [call.key.is_fresh() for call in calls], [call.expected.head for call in calls],
            [call.expected.seen_head for call in calls],
            [m.payload for m in new], b"".join([m.salt for m in new]), [m.role for m in new], [m.tokens for m in new],
            [m.meta for m in new], [call.actor for call in calls],
            [call.expected.subject for call in calls], any(call.durable for call in calls),
        ),
        tuple,
    )  # fmt: skip
    written: list[Written | None] = [None] * len(appends)
    for number, *fields in rows:
        written[order[number - 1]] = Written(*fields)
    return written
