"""Reads and writes one thread. Most functions call one SQL function, whose first arguments are the thread's key."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

from compaction_store.messages.keys import Key
from compaction_store.module_data import ModuleData
from compaction_store.postgres.driver import cursor
from compaction_store.postgres.driver.cursor import Connection, fetch, select_of
from compaction_store.postgres.queries import functions
from compaction_store.postgres.queries.functions import ThreadKey


class NewMessage(NamedTuple):
    payload: str
    salt: bytes
    role: str | None
    tokens: int
    meta: str | None


class Expected(NamedTuple):
    """The conditions of an append: the thread's last seq, its head, the entry at the pos in the receipt (`seen_head`),
    the turn that must have the thread, and the subject, which a new thread gets.
    """

    seq: int | None = None
    head: bytes | None = None
    seen_head: bytes | None = None
    turn_id: UUID | None = None
    subject: str | None = None


class Written(NamedTuple):
    first_seq: int
    first_pos: int
    written_at: datetime
    head: bytes
    replayed: bool
    thread_uid: UUID
    login: str


_SQL = ModuleData(__file__).values
# The function is called in the select list, and its row is one value. In FROM, Postgres would first store the row in a
# tuplestore.
_APPEND = (
    b"SELECT compaction_store.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"
)
# An append in a turn. CASE evaluates its condition first, and both functions run in one transaction.
_IN_TURN = "SELECT CASE WHEN compaction_store.hold_turn(%b::text, %b::text, %b, %b::text) THEN {} END"
_APPEND_IN_TURN = (
    b"SELECT CASE WHEN compaction_store.hold_turn($2, $3, $19, $9) THEN " + _APPEND.removeprefix(b"SELECT ") + b" END"
)
_TYPES = cursor.types_of("uuid text text text bytea text int4 text text text text int8 bool bytea bytea bool text text")
# The row of `append` in binary: the number of fields, and then the type, length and value of each field. It is decoded
# here, because the driver would build a loader for it at every call, and take a tenth of the call's time in Python.
_WRITTEN = struct.Struct(">i 2iq 2iq 2iq 2i32s 2i? 2i16s 2i")
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def _moment(microseconds: int) -> datetime:
    """Converts a timestamp of Postgres. As in `fetch`, a time outside Python's range becomes the nearest possible."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return cursor.EARLIEST if microseconds < 0 else cursor.LATEST


def _written(connection: Connection, value: bytes | None) -> Written:
    """Decodes the result of a SQL function that appends."""
    assert value is not None  # noqa: S101 — the functions return a row, or raise
    seq, pos, microseconds, head, replayed, uid = _WRITTEN.unpack_from(value)[3:-2:3]
    info = cursor.driver_of(connection).info
    written_at = _moment(microseconds).astimezone(info.timezone)
    return Written(seq, pos, written_at, head, replayed, UUID(bytes=uid), value[_WRITTEN.size :].decode(info.encoding))


def append(
    connection: Connection,
    thread: ThreadKey,
    new: Sequence[NewMessage],
    counter: str,
    key: Key,
    receipt: str | None,
    actor: str | None,
    expected: Expected,
    durable: bool,
) -> Written:
    """Appends one message with `append`, or several messages with `append_many`, which is slower for one message."""
    if len(new) > 1:
        parameters = (
            *_lists(thread, new, counter, key, receipt, expected.seq),
            key.is_fresh(), expected.head, expected.seen_head, durable, actor, expected.subject,
        )  # fmt: skip
        return _appended(connection, "append_many", parameters, thread, key, expected)
    payload, salt, role, tokens, meta = new[0]
    values = (
        None if thread.uid is None else thread.uid.bytes, thread.tenant, thread.thread_id, payload, salt, role,
        tokens.to_bytes(4), counter, key.text, meta,
        receipt, None if expected.seq is None else expected.seq.to_bytes(8), key.is_fresh().to_bytes(), expected.head,
        expected.seen_head, durable.to_bytes(), actor, expected.subject,
    )  # fmt: skip
    if expected.turn_id is None:
        return _written(connection, cursor.execute_binary(connection, _APPEND, _TYPES, values).get_value(0, 0))
    in_turn, types = (*values, expected.turn_id.bytes), (*_TYPES, *cursor.types_of("uuid"))
    return _written(connection, cursor.execute_binary(connection, _APPEND_IN_TURN, types, in_turn).get_value(0, 0))


def append_observed(
    connection: Connection,
    thread: ThreadKey,
    new: Sequence[NewMessage],
    counter: str,
    key: Key,
    receipt: str | None,
    actor: str | None,
    expected: Expected,
    durable: bool,
    run_id: UUID,
    observed: str,
) -> Written:
    """Appends messages, and records of the compactions that a provider made and reported in these messages."""
    parameters = (
        *_lists(thread, new, counter, key, receipt, expected.seq),
        run_id, observed, key.is_fresh(), expected.head, expected.seen_head, durable, actor, expected.subject,
    )  # fmt: skip
    return _appended(connection, "append_observed", parameters, thread, key, expected)


def _appended(
    connection: Connection, name: str, parameters: tuple[Any, ...], thread: ThreadKey, key: Key, expected: Expected
) -> Written:
    """Calls a function that appends. If the append is in a turn, checks the turn first."""
    statement = _SQL[name]
    if expected.turn_id is not None:
        statement = _IN_TURN.format(statement.removeprefix("SELECT "))
        parameters = (thread.tenant, thread.thread_id, expected.turn_id, key.text, *parameters)
    return _written(connection, cursor.call_value(connection, statement, parameters))


def _lists(
    thread: ThreadKey, new: Sequence[NewMessage], counter: str, key: Key, receipt: str | None, expected_seq: int | None
) -> tuple[Any, ...]:
    metas = [m.meta for m in new]
    return (
        *thread, [m.payload for m in new], b"".join([m.salt for m in new]),
        [m.role for m in new], [m.tokens for m in new], counter, key.text, metas if any(metas) else None, receipt,
        expected_seq,
    )  # fmt: skip


def thread(connection: Connection, key: ThreadKey) -> functions.ThreadRow:
    return functions.thread(connection, key)[0]


def thread_state(connection: Connection, key: ThreadKey, pos: int | None) -> functions.ThreadStateRow:
    """Returns a thread's head, and its seq, number and entry at a pos, for a verifier."""
    return functions.thread_state(connection, key, pos)[0]


def may_record_in_log(connection: Connection, function: str = "record_in_log") -> bool:
    """Returns whether this login may call a function that records in a log, and the server accepts writes."""
    may: bool
    [(may,)] = fetch(connection, _SQL["may_record"], (function,))
    return may


def origins(connection: Connection, key: ThreadKey) -> list[tuple[Any, ...]]:
    """Returns the pos and the body of each origin event of a fork: its own event, a copy of its parent's, and so on."""
    return _of_thread(connection, key, "origins")


def other_copies(connection: Connection, key: ThreadKey, parent: UUID, seq: int, pos: int) -> tuple[int | None, ...]:
    """Returns the seq of the first message and the number of the first record that differ from their originals."""
    given = {"uid": key.uid, "parent": parent, "seq": seq, "pos": pos}
    return tuple(
        select_of(connection, key.tenant, _SQL[name], given)[0][0] for name in ("other_messages", "other_records")
    )


def name_of(connection: Connection, key: ThreadKey) -> str | None:
    """Returns the current name of the thread with a key, or None if the thread is not in this database."""
    rows = select_of(connection, key.tenant, _SQL["name"], key._asdict())
    return rows[0][0] if rows else None


def receipt(connection: Connection, key: ThreadKey, seq: int) -> tuple[int, str | None, UUID] | None:
    """Returns the pos and the receipt of a message, and the thread_uid."""
    rows = _of_thread(connection, key, "receipt", seq=seq)
    return (rows[0][0], rows[0][1], rows[0][2]) if rows else None


def _of_thread(connection: Connection, key: ThreadKey, name: str, **given: Any) -> list[tuple[Any, ...]]:
    """Executes a query of a thread, which it finds by its thread_uid if that is known, and otherwise by its name."""
    statement = _SQL[name].format(uid=_SQL["uid"] if key.uid is None else "%(uid)s::uuid")
    return select_of(connection, key.tenant, statement, {**key._asdict(), **given})


_APPLIED = ("pos", "number", "revokes", "tokens_before", "tokens_after")


def appended_tokens(connection: Connection, key: ThreadKey, ranges: int, last_pos: int) -> list[Any]:
    """Returns the last pos and the sum of the tokens of at most `ranges` ranges of a thread that have messages. `key`
    must have the thread_uid, and `last_pos` must not be after the head. The server sends only the sums.
    """
    width = max(1, (last_pos - 1) // ranges + 1)
    return select_of(connection, key.tenant, _SQL["appended"], {"uid": key.uid, "width": width, "last_pos": last_pos})


def applied_tokens(connection: Connection, key: ThreadKey, last_pos: int) -> list[dict[str, Any]]:
    """Returns the applied records up to a pos as their columns by name. `key` must have the thread_uid."""
    rows = select_of(connection, key.tenant, _SQL["applied"], {"uid": key.uid, "last_pos": last_pos})
    return [dict(zip(_APPLIED, row, strict=True)) for row in rows]


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
        connection, _SQL["together"],
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
