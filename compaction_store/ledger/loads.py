"""Whole threads in bulk, by COPY as the loader: chunks of a load, what others compacted, and bundles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg

from compaction_store import bulk, staging
from compaction_store.errors import InvalidBundle, PermissionDenied, ThreadExists
from compaction_store.ledger.driver import INT8, TEXT, UUID_TYPE, Connection, call, copy, fetch, transaction
from compaction_store.ledger.single import ThreadKey, entries

# The columns come as bytes made in `bulk`.
_COPY_MESSAGES = f"COPY compaction_store.messages ({', '.join(bulk.COLUMNS)}) FROM STDIN (FORMAT BINARY)".encode()
_FINISH = b"SELECT compaction_store.finish_load($1, $2, $3)"
_LOADER = "grant this login compaction_store_loader"


@contextmanager
def _loading(what: str) -> Iterator[None]:
    try:
        yield
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidParameterValue) as error:
        # The second is what SET ROLE says where the migration could make no roles.
        raise PermissionDenied(f"{what} needs a role: {_LOADER}", sqlstate=error.sqlstate) from None
    except psycopg.errors.FeatureNotSupported as error:
        raise PermissionDenied(
            "COPY is refused under row-level security: a superuser must ALTER ROLE compaction_store_loader BYPASSRLS",
            sqlstate=error.sqlstate,
        ) from None


def find_load(connection: Connection, key: ThreadKey, chunk_key: str) -> tuple[int, int] | None:
    """The first seq and the number of the messages stored under a chunk's key."""
    with _loading("a load"):
        rows = fetch(
            connection, "SELECT * FROM compaction_store.find_load(%b, %b::text, %b::text)", (*key, chunk_key)
        )  # fmt: skip
    return (rows[0][0], rows[0][1]) if rows else None


def commitments(connection: Connection, key: ThreadKey, start: int, limit: int) -> list[tuple[Any, ...]]:
    """The seq, salt and commitment of messages, from a seq on."""
    return [(row[1], row[5], row[6]) for row in entries(connection, key, "message", start, False, limit)]


def observe(connection: Connection, key: ThreadKey, run_id: UUID, records: str) -> bool:
    """Records a compaction of others, once; False where it was on record before."""
    with _loading("a load"):
        return bool(
            fetch(
                connection, "SELECT compaction_store.observe(%b, %b::text, %b, %b::text)", (*key, run_id, records)
            )[0][0]
        )  # fmt: skip


def load(
    connection: Connection,
    key: ThreadKey,
    thread_id: str,
    chunk: bulk.Chunk,
    meanwhile: Callable[[], Iterator[None]] = lambda: iter(()),
    place: bulk.Place = bulk.blocks,
) -> bulk.Placed:
    """Copies a chunk into a thread: chained by the client under the thread's lock, checked before the head moves.

    While the server checks, the steps of `meanwhile` are taken.
    """
    count = len(chunk.rows)
    with _loading("a load"), transaction(connection, key.tenant, read_only=False):
        # COPY refuses tables under row-level security; the loader's role is exempt from it.
        fetch(connection, "SET LOCAL ROLE compaction_store_loader")
        begun = fetch(
            connection, "SELECT * FROM compaction_store.begin_load(%b, %b::text, %b::text, %b::text, %b::int8)",
            (*key, thread_id, chunk.key, chunk.expected_seq),
        )  # fmt: skip
        standing = bulk.Standing._make(begun[0])
        if standing.found_seq is not None:
            return bulk.Placed(standing.found_seq, standing.found_size or 0, replayed=True)
        copy(connection, _COPY_MESSAGES, place(key.uid, key.tenant, chunk, standing))
        until = (standing.last_seq + count).to_bytes(8)
        call(connection, _FINISH, (UUID_TYPE, TEXT, INT8), (key.uid.bytes, key.tenant, until), meanwhile())
    return bulk.Placed(standing.last_seq + 1, count, replayed=False)


def import_bundle(connection: Connection, key: ThreadKey, staged: staging.Staged, about: str) -> bool:
    """Stores the thread of a bundle, all or nothing; False where it is there with the same head already."""
    said = staged.manifest
    with _loading("an import"), _stored(about), transaction(connection, key.tenant, read_only=False):
        fetch(connection, "SET LOCAL ROLE compaction_store_loader")
        [(found_pos, found_head)] = fetch(
            connection,
            "SELECT * FROM compaction_store.begin_import(%b, %b::text, %b::text, %b, %b::text, %b::timestamptz)",
            (*key, said["thread_id"], staged.genesis, said["metadata"], staged.created_at),
        )
        if found_head is not None:
            if found_head == staged.head:
                # Where an attempt before this one has sent it, and its reply was lost, it was that one.
                return staged.sent
            raise ThreadExists(f"the thread is there already, and stands at pos {found_pos} with another head{about}")
        staged.sent = True
        for kind, table in staging.TABLES.items():
            columns = ", ".join(staging.COLUMNS[kind])
            statement = f"COPY compaction_store.{table} ({columns}) FROM STDIN (FORMAT BINARY)"
            copy(connection, statement.encode(), staged.blocks(kind))
        fetch(
            connection,
            "SELECT compaction_store.finish_import(%b, %b::text, %b::int8, %b::int8, %b::int8, %b)",
            (*key, said["last_seq"], said["last_number"], said["last_pos"], staged.head),
        )
    return True


@contextmanager
def _stored(about: str) -> Iterator[None]:
    """What a table refuses of rows that were proved is the bundle's: no store of ours would have written it."""
    try:
        yield
    except psycopg.errors.InvalidParameterValue:
        # What SET ROLE says where there are no roles.
        raise
    except (psycopg.errors.DataError, psycopg.errors.IntegrityError) as error:
        raise InvalidBundle(f"Postgres refuses an entry of the bundle: SQLSTATE {error.sqlstate}{about}") from None
    except psycopg.Error as error:
        if error.sqlstate != "CS010":
            raise
        raise InvalidBundle(f"{error.diag.message_primary}{about}") from None
