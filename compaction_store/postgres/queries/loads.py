"""Loads chunks of messages, records observed compactions, and imports bundles."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg

from compaction_store.bundles import import_rows
from compaction_store.errors import InvalidBundle, ThreadExists
from compaction_store.messages import load_chunk
from compaction_store.postgres.driver import cursor
from compaction_store.postgres.queries import functions
from compaction_store.postgres.queries.functions import BEGIN_IMPORT, FINISH_IMPORT, ThreadKey

_LOAD = b"SELECT compaction_store.load($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
_LOAD_TYPES = cursor.types_of("uuid text text text[] bytea text[] int4[] text[] text[] text int8 text text")
_LOAD_THREADS = (
    b"SELECT thread, written_uid FROM compaction_store.load_threads($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
)
_LOAD_THREADS_TYPES = cursor.types_of("text text[] text[] int4[] text[] bytea text[] int4[] text[] text[] text text")
# The row of the function `load` in binary: the number of fields, and then the type, length and value of each field.
_PLACED = struct.Struct(">i 2iq 2ii 2i? 2i16s")
# The SQLSTATEs for rows that do not form a chain, and for names and documents that no store would have written.
_REFUSED = {"CS010", "CS018", "CS019"}


def find_load(connection: cursor.Connection, key: ThreadKey, chunk_key: str) -> functions.FindLoadRow | None:
    """Returns the first seq and the number of the messages that were stored with a chunk's key, and the thread_uid."""
    return next(iter(functions.find_load(connection, key, chunk_key)), None)


def commitments(
    connection: cursor.Connection, key: ThreadKey, start: int, limit: int
) -> list[tuple[int, bytes, bytes]]:
    """Returns the seqs, salts and commitments of messages from a seq on."""
    rows = functions.entries(connection, key, "message", start, False, limit)
    return [(row.ordinal, row.salt, row.commitment) for row in rows]


def observe(connection: cursor.Connection, key: ThreadKey, run_id: UUID, records: str) -> bool:
    """Records compactions that a provider made. Returns False if an earlier call recorded the same run."""
    return bool(functions.observe(connection, key, run_id, records))


def load(
    connection: cursor.Connection,
    key: ThreadKey,
    chunk: load_chunk.Chunk,
    work: Callable[[], Iterator[None]] = lambda: iter(()),
) -> load_chunk.Placed:
    """Appends a chunk, or finds it if it was stored before. Does `work` step by step while the server is busy."""
    values = load_chunk.values(*key, chunk, cursor.driver_of(connection).info.encoding)
    value = cursor.execute_binary(connection, _LOAD, _LOAD_TYPES, values, work()).get_value(0, 0)
    assert value is not None  # noqa: S101 — the function returns a row, or raises
    _, _, _, first_seq, _, _, size, _, _, replayed, _, _, uid = _PLACED.unpack(value)
    return load_chunk.Placed(first_seq, size, replayed, UUID(bytes=uid))


def load_threads(
    connection: cursor.Connection, tenant: str, chunks: Sequence[tuple[str, load_chunk.Chunk]]
) -> list[UUID | None]:
    """Makes threads with their first chunks. Returns their uids, and None for those to load one by one."""
    values = load_chunk.values_of_threads(tenant, chunks, cursor.driver_of(connection).info.encoding)
    result = cursor.execute_binary(connection, _LOAD_THREADS, _LOAD_THREADS_TYPES, values)
    made: list[UUID | None] = [None] * len(chunks)
    for i in range(result.ntuples):
        thread, uid = result.get_value(i, 0), result.get_value(i, 1)
        assert thread is not None and uid is not None  # noqa: S101, PT018 — the function returns no NULL
        made[int.from_bytes(thread) - 1] = UUID(bytes=uid)
    return made


def import_bundle(connection: cursor.Connection, key: ThreadKey, staged: import_rows.Staged, about: str) -> bool:
    """Stores the thread of a bundle, all or nothing. Returns False if the thread already exists with the same head."""
    with importing(about):
        if is_there(staged, cursor.fetch(connection, BEGIN_IMPORT, tuple(key)), about):
            # If an earlier attempt of this call sent the bundle, it stored the thread, and only its response was lost.
            return staged.sent
        staged.sent = True
        with cursor.transaction(connection, key.tenant, read_only=False):
            for kind in import_rows.KINDS:
                columns = ", ".join(import_rows.COLUMNS[kind])
                statement = f"COPY compaction_store.staged ({columns}) FROM STDIN (FORMAT BINARY)"
                cursor.copy(connection, statement.encode(), staged.blocks(kind))
            return not is_there(staged, cursor.fetch(connection, FINISH_IMPORT, finishing(key, staged)), about)


def finishing(key: ThreadKey, staged: import_rows.Staged) -> tuple[Any, ...]:
    """Returns the arguments of `finish_import`."""
    said = staged.manifest
    return (
        *key, staged.name_salt, staged.name_commitment, said["metadata"], said["subject"], said["last_seq"],
        said["last_number"], said["last_pos"], staged.head,
    )  # fmt: skip


def is_there(staged: import_rows.Staged, found: list[tuple[Any, ...]], about: str) -> bool:
    [(pos, head)] = found
    if head is not None and head != staged.head:
        raise ThreadExists(f"the thread already exists at pos {pos} with a different head{about}")
    return head is not None


@contextmanager
def importing(about: str) -> Iterator[None]:
    """Converts errors about the rows to `InvalidBundle`, because no store would have written such rows."""
    try:
        yield
    except (psycopg.errors.DataError, psycopg.errors.IntegrityError) as error:
        raise InvalidBundle(f"Postgres refused an entry of the bundle with SQLSTATE {error.sqlstate}{about}") from None
    except psycopg.Error as error:
        if error.sqlstate not in _REFUSED:
            raise
        raise InvalidBundle(f"{error.diag.message_primary}{about}") from None
