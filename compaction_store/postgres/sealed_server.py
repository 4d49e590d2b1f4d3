"""Seals what a store sends, and opens what it reads, at the one place that every query passes. Two tables say which
arguments are sealed and which columns are opened. Verifying and exporting read through `as_stored`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from inspect import signature
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import psycopg

from compaction_store.errors import InvalidInput
from compaction_store.integrity import chain
from compaction_store.messages.load_chunk import Chunk, Placed, Row
from compaction_store.postgres import queries
from compaction_store.postgres.cluster import Server
from compaction_store.postgres.driver.cursor import Connection
from compaction_store.postgres.queries import Append, Expected, NewMessage, ThreadKey, Written
from compaction_store.sealing.keys import Keys, OwnerKey, owner_of
from compaction_store.sealing.seals import MARK, Seals

_T = TypeVar("_T")
_Seal = Callable[[Seals, OwnerKey, Any], Any]
_MOST = 10_000
# The SQLSTATEs for a thread that is missing or erased, and for a thread that does not end at the expected seq.
_NO_THREAD, _ERASED, _OTHER_SEQ = "CS001", "CS012", "CS003"
# How often a thread may be replaced by another while one call writes to it.
_MOST_CHANGES = 5


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
# The columns that are opened, by their names. Other columns, such as a thread's name, are what somebody wrote.
_READ: dict[str, Callable[[Seals, str], str | None]] = {
    "payload": Seals.opened_message, "content": Seals.opened_message, "meta": Seals.opened_message,
    "metadata": Seals.opened_metadata, "body": Seals.opened_body, "written_body": Seals.opened_body,
}  # fmt: skip
# The fields of a row that are rows themselves.
_ROWS = ("thread", "reported")


class _Owned(NamedTuple):
    """A thread with the owner of its content: its subject, or the thread itself."""

    thread: ThreadKey
    owner: str
    is_new: bool = False


class SealedServer(Server):
    """A server or a cluster whose stores seal what they send. Remembers the owners of up to 5,000 threads.

    The owner of a thread never changes, but its name may pass to another thread. So a thread whose owner is known is
    written to by its key, and a new one only if it is still new: otherwise its owner is looked up again.
    """

    def __init__(self, inner: Server, keys: Keys) -> None:
        super().__init__(has_citus=inner.has_nodes)
        self.has_all_threads = inner.has_all_threads
        self._inner = inner
        self.keys = self._keys = keys
        # By the thread's uid, and by its tenant and name.
        self._owned: OrderedDict[Any, _Owned] = OrderedDict()

    @property
    def as_stored(self) -> Server:
        return self._inner

    def call(self, query: Callable[..., _T], connection: Connection, *arguments: Any) -> _T:
        """Seals the arguments, runs the query, and opens its rows."""
        found: Any
        if query is queries.set_subject:
            raise InvalidInput("the subject of a thread whose content is sealed must be set with its first append")
        if query is queries.commitments:
            found = self._commitments(connection, *arguments)
        elif query is queries.append_together:
            found = self._append_together(connection, *arguments)
        elif query is queries.load_threads:
            found = self._load_threads(connection, *arguments)
        elif query in _SENT:
            found = self._write(query, connection, *arguments)
        else:
            found = self._inner.call(query, connection, *arguments)
        of = arguments[0] if arguments else None
        tenant = of.tenant if isinstance(of, ThreadKey) else of if isinstance(of, str) else ""
        opened: _T = self._opened(Seals(self._keys, tenant), found)
        return opened

    def _write(self, query: Callable[..., Any], connection: Connection, thread: ThreadKey, *given: Any) -> Any:
        """Seals and sends a write to a thread. Repeats it if the thread was replaced by another meanwhile."""
        asked = next((value for value in given if isinstance(value, Expected | Chunk)), None)
        # A turn has a name, and on a cluster it is not where the thread is.
        by_name = isinstance(asked, Expected) and asked.turn_id is not None and not self.has_all_threads
        changes = 0
        while True:
            owned = self._find(connection, thread, None if asked is None else asked.subject, looks=by_name)
            sent = thread if by_name else owned.thread
            expected = _of_new(asked) if owned.is_new else asked
            sealed = self._sealed(query, owned.owner, thread.tenant, [expected if v is asked else v for v in given])
            try:
                found = self._inner.call(query, connection, sent, *sealed)
            except psycopg.Error as error:
                is_other = error.sqlstate in {_NO_THREAD, _ERASED} and sent.uid != thread.uid
                is_old = error.sqlstate == _OTHER_SEQ and expected != asked
                changes += 1
                if not (is_other or is_old) or changes == _MOST_CHANGES:
                    raise
                self._owned.pop(thread[1:], None)
                continue
            if isinstance(found, Written | Placed) and not found.replayed:
                self._remember(thread._replace(uid=found.thread_uid), owned.owner)
            return found

    def _sealed(self, query: Callable[..., Any], owner: str, tenant: str, given: Sequence[Any]) -> list[Any]:
        seals, key, what = Seals(self._keys, tenant), self._keys.of_owner(owner), _SENT[query]
        return [
            what[name](seals, key, value) if name in what and value is not None else value
            for name, value in zip(_names(query), given, strict=False)
        ]

    def _append_together(self, connection: Connection, appends: Sequence[Append]) -> list[Written | None]:
        unknown: dict[str, set[str]] = {}
        for each in appends:
            if each.thread.uid is None and each.expected.subject is None and each.thread[1:] not in self._owned:
                unknown.setdefault(each.thread.tenant, set()).add(each.thread.thread_id)
        new = {(tenant, name) for tenant, names in unknown.items() for name in names}
        for tenant, names in unknown.items():
            for uid, name, subject in self._inner.call(queries.subjects_of, connection, tenant, sorted(names)):
                self._remember(ThreadKey(uid, tenant, name), owner_of(tenant, subject, name))
                new.discard((tenant, name))
        places = [self._find(connection, each.thread, each.expected.subject, new=new) for each in appends]
        written = self._inner.call(queries.append_together, connection, [
            Append._make([place.thread, *self._sealed(queries.append, place.owner, place.thread.tenant, each[1:])])
            ._replace(expected=_of_new(each.expected) if place.is_new else each.expected)
            for each, place in zip(appends, places, strict=True)
        ])  # fmt: skip
        for place, done in zip(places, written, strict=True):
            if done is not None and not done.replayed:
                self._remember(place.thread._replace(uid=done.thread_uid), place.owner)
        return written

    def _load_threads(
        self, connection: Connection, tenant: str, chunks: Sequence[tuple[str, Chunk]]
    ) -> list[UUID | None]:
        """Makes new threads. A thread that there is already is not written to, so nothing is looked up."""
        seals = Seals(self._keys, tenant)
        owners = {name: owner_of(tenant, chunk.subject, name) for name, chunk in chunks}
        sealed = [(name, _chunk(seals, self._keys.of_owner(owners[name]), chunk)) for name, chunk in chunks]
        made = self._inner.call(queries.load_threads, connection, tenant, sealed)
        for uid, name in zip(made, owners, strict=True):
            if uid is not None:
                self._remember(ThreadKey(uid, tenant, name), owners[name])
        return made

    def _find(
        self, connection: Connection, thread: ThreadKey, subject: str | None, *,
        looks: bool = False, new: Iterable[tuple[str, str]] = (),
    ) -> _Owned:  # fmt: skip
        """Returns the thread with its owner. `looks` says that the name must be looked up, and `new` what is missing.

        The server refuses a write with a subject that is not the thread's, so the subject is the owner.
        """
        known = None if looks and thread.uid is None else self._owned.get(thread.uid or thread[1:])
        if known is not None:
            return known
        if subject is not None:
            return _Owned(thread, owner_of(thread.tenant, subject))
        if thread.uid is not None or thread[1:] not in new:
            try:
                row: Any = self._inner.call(queries.thread, connection, thread)
            except psycopg.Error as error:
                if error.sqlstate != _NO_THREAD:
                    raise
            else:
                found = thread._replace(uid=row.thread_uid, thread_id=row.thread_id)
                return self._remember(found, owner_of(thread.tenant, row.subject, row.thread_id))
        return _Owned(thread, owner_of(thread.tenant, None, thread.thread_id), is_new=True)

    def _remember(self, thread: ThreadKey, owner: str) -> _Owned:
        owned = _Owned(thread, owner)
        self._owned[thread.uid] = self._owned[thread[1:]] = owned
        while len(self._owned) > _MOST:
            self._owned.popitem(last=False)
        return owned

    def _opened(self, seals: Seals, found: Any) -> Any:
        """Returns rows with their sealed texts opened, and None for a text whose key was destroyed, as if erased."""
        if isinstance(found, list):
            return [self._opened(seals, item) for item in found]
        is_tuple = isinstance(found, tuple) and hasattr(found, "_asdict")
        row: dict[str, Any] = found._asdict() if is_tuple else found if isinstance(found, dict) else {}
        opened = {name: self._opened(seals, row[name]) for name in _ROWS if name in row}
        for name, value in row.items():
            if isinstance(value, str) and MARK in value and name in _READ:
                # The payload of an element, and the content of an entry, may also be the body of a record or an event.
                is_body = (
                    row.get("number") is not None if name == "payload" else row.get("type", "message") != "message"
                )
                opened[name] = (Seals.opened_body if is_body else _READ[name])(seals, value)
        return (type(found)(**row | opened) if is_tuple else row | opened) if opened else found

    def _commitments(
        self, connection: Connection, key: ThreadKey, start: int, limit: int
    ) -> list[tuple[int, bytes, bytes]]:
        """Returns what the commitments of stored messages would be unsealed, so that a repeated load finds its own."""
        seals = Seals(self._keys, key.tenant)
        rows = self._inner.call(queries.entries, connection, key, "message", start, True, limit)
        texts = [None if row.salt is None or row.body is None else seals.opened_message(row.body) for row in rows]
        return [
            (row.ordinal, row.salt, row.commitment if text is None else chain.commitment(row.salt, text.encode()))
            for row, text in zip(rows, texts, strict=True)
        ]


def _of_new(asked: Any) -> Any:
    """Returns what a write expects of a thread that was not there: that it is new."""
    name = {Expected: "seq", Chunk: "expected_seq"}.get(type(asked))
    return asked._replace(**{name: 0}) if name and getattr(asked, name) is None else asked


@cache
def _names(query: Callable[..., Any]) -> list[str]:
    """Returns the names of a query's arguments after the connection and the thread."""
    return list(signature(query).parameters)[2:]
