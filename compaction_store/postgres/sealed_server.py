"""Seals what a store sends, and opens what it reads, at the one place that every query passes.

One table says which arguments of which queries are sealed. Verifying and exporting read through `as_stored`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from inspect import signature
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from compaction_store.errors import InvalidInput
from compaction_store.integrity import chain
from compaction_store.messages.load_chunk import Chunk, Row
from compaction_store.postgres import queries
from compaction_store.postgres.cluster import Server, subject_of
from compaction_store.postgres.driver.cursor import Connection
from compaction_store.postgres.queries import NewMessage, ThreadKey
from compaction_store.sealing.keys import Keys, OwnerKey, owner_of
from compaction_store.sealing.seals import MARK, Seals

_T = TypeVar("_T")
_Seal = Callable[[Seals, OwnerKey, Any], Any]
_MOST = 10_000
_NO_THREAD = "CS001"


def _messages(seals: Seals, key: OwnerKey, new: Sequence[NewMessage]) -> list[NewMessage]:
    return [
        m._replace(payload=seals.message(key, m.payload, m.role), meta=seals.meta(key, m.meta)) for m in new
    ]  # fmt: skip


def _chunk(seals: Seals, key: OwnerKey, chunk: Chunk) -> Chunk:
    def sealed(row: Row) -> Row:
        meta = None if row.meta is None else seals.meta(key, row.meta.decode())
        return row._replace(
            body=seals.message(key, row.body.decode(), row.role).encode(), meta=None if meta is None else meta.encode()
        )

    return chunk._replace(rows=[sealed(row) for row in chunk.rows])


_EVENT, _RECORD, _RECORDS = Seals.event, Seals.record, Seals.records
# The arguments that are sealed, by their names. The reason of an erasure must outlive the key, and a review's note is
# kept forever, so these are not.
_SENT: dict[Callable[..., Any], dict[str, _Seal]] = {
    queries.append: {"new": _messages},
    queries.append_observed: {"new": _messages, "observed": _RECORDS},
    queries.load: {"chunk": _chunk},
    queries.observe: {"records": _RECORDS},
    queries.commit_compactions: {"records": _RECORDS},
    queries.rewind: {"revoked": _RECORD, "body": _RECORD},
    queries.set_metadata: {"metadata": Seals.metadata},
    queries.fork: {"body": _EVENT},
    queries.record_event: {"body": _EVENT},
    queries.record_evaluation: {"body": _EVENT},
}  # fmt: skip


class SealedServer(Server):
    """A server or a cluster whose stores seal what they send. Remembers up to 10,000 owners of threads.

    A thread's owner is its subject, or the thread itself. It never changes, so it is remembered by the thread's key.
    """

    def __init__(self, inner: Server, keys: Keys) -> None:
        super().__init__(has_citus=inner.has_nodes)
        self.has_all_threads = inner.has_all_threads
        self._inner = inner
        self.keys = keys
        self._seals = Seals(keys)
        self._owners: OrderedDict[UUID, str] = OrderedDict()

    @property
    def as_stored(self) -> Server:
        return self._inner

    def call(self, query: Callable[..., _T], connection: Connection, *arguments: Any) -> _T:
        """Seals the arguments, runs the query, and opens its rows."""
        if query is queries.commitments:
            return self._commitments(connection, *arguments)  # type: ignore[return-value]
        sent = self._sealed(query, connection, arguments)
        opened: _T = self._opened(self._inner.call(query, connection, *sent))
        return opened

    def _sealed(self, query: Callable[..., Any], connection: Connection, given: tuple[Any, ...]) -> Sequence[Any]:
        if query is queries.append_together:
            return [[self._append(connection, append) for append in given[0]]]
        if query is queries.load_threads:
            tenant, chunks = given
            keys = [self._key(connection, ThreadKey(None, tenant, name), chunk.subject) for name, chunk in chunks]
            return tenant, [
                (name, _chunk(self._seals, key, chunk)) for key, (name, chunk) in zip(keys, chunks, strict=True)
            ]
        if query is queries.set_subject:
            raise InvalidInput("the subject of a thread whose content is sealed must be set with its first append")
        what = _SENT.get(query)
        if what is None:
            return given
        names = _names(query)
        key = self._key(connection, given[0], subject_of(given))
        return [
            what[name](self._seals, key, value) if name in what and value is not None else value
            for name, value in zip(names, given, strict=False)
        ]  # fmt: skip

    def _append(self, connection: Connection, append: queries.Append) -> queries.Append:
        key = self._key(connection, append.thread, append.expected.subject)
        return append._replace(new=_messages(self._seals, key, append.new))

    def _key(self, connection: Connection, thread: ThreadKey, subject: str | None) -> OwnerKey:
        owner = None if thread.uid is None else self._owners.get(thread.uid)
        if owner is None:
            owner, uid = self._owner(connection, thread, subject)
            if uid is not None:
                self._owners[uid] = owner
                if len(self._owners) > _MOST:
                    self._owners.popitem(last=False)
        return self._seals.keys.of_owner(owner)

    def _owner(self, connection: Connection, thread: ThreadKey, subject: str | None) -> tuple[str, UUID | None]:
        try:
            row: Any = self._inner.call(queries.thread, connection, thread)
        except psycopg.Error as error:
            if error.sqlstate != _NO_THREAD:
                raise
            return owner_of(thread.tenant, subject, thread.thread_id), None
        return owner_of(thread.tenant, row.subject, row.thread_id), row.thread_uid

    def _opened(self, found: Any) -> Any:
        """Returns rows with their sealed texts opened, and None for a text whose key was destroyed, as if erased."""
        if isinstance(found, list):
            return [self._opened(item) for item in found]
        if isinstance(found, dict):
            return {name: self._opened(item) for name, item in found.items()}
        if isinstance(found, str):
            return self._seals.opened(found) if MARK in found else found
        if isinstance(found, tuple) and any(isinstance(item, str) and MARK in item for item in found):
            items = map(self._opened, found)
            return type(found)._make(items) if hasattr(found, "_make") else tuple(items)
        return found

    def _commitments(
        self, connection: Connection, key: ThreadKey, start: int, limit: int
    ) -> list[tuple[int, bytes, bytes]]:
        """Returns what the commitments of stored messages would be unsealed, so that a repeated load finds its own."""
        rows = self._inner.call(queries.entries, connection, key, "message", start, True, limit)
        texts = [None if row.salt is None else self._opened(row.body) for row in rows]
        return [
            (row.ordinal, row.salt, row.commitment if text is None else chain.commitment(row.salt, text.encode()))
            for row, text in zip(rows, texts, strict=True)
        ]


@cache
def _names(query: Callable[..., Any]) -> list[str]:
    """Returns the names of a query's arguments after the connection."""
    return list(signature(query).parameters)[1:]
