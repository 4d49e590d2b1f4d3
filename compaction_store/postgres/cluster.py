"""Runs the queries of a store on one server or on a Citus cluster. What differs for a store is in these two classes.

On a cluster, a name and its thread may be on different nodes. A thread's key is its thread_uid. On a single server,
each SQL function looks up the name itself. On a cluster, a function on one node cannot read the tables of another node.
So the client first looks up the name in the table of names, and passes the key to the function. For loads, and for
appends outside a turn, the client remembers the keys to save this extra call. If the thread of a remembered key was
erased in the meantime, the server refuses the write, and the client looks up the name again.

The first append to a new thread adds the name with a new key, makes the thread and appends, all in one transaction. An
erasure removes the name in its own transaction. So a name in the table always leads to a thread, and every thread that
is not erased has its name in the table.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, TypeVar, cast
from uuid import UUID

import psycopg

from compaction_store.arguments import DATABASE, LOG
from compaction_store.integrity import erasure
from compaction_store.messages import documents
from compaction_store.messages.load_chunk import Chunk
from compaction_store.models import Payload
from compaction_store.models.vocabulary import LogEvent
from compaction_store.postgres import queries
from compaction_store.postgres.driver.cursor import Connection, fetch, together
from compaction_store.postgres.queries import Expected, ThreadKey, cluster
from compaction_store.postgres.queries.across_threads import due_on_cluster
from compaction_store.sealing.keys import Keys

_T = TypeVar("_T")

# The key that is sent for a missing thread. No thread has it. With NULL, Citus would crash when it looks for the node.
_NOBODY = UUID(int=0)
_MOST = 10_000
_NO_THREAD = "CS001"
# The SQLSTATEs of an append with the key of an erased thread, and with the key of a missing thread.
_STALE = {"CS012", _NO_THREAD}
_CREATING: tuple[Callable[..., Any], ...] = (
    queries.append, queries.append_observed, queries.load, queries.record_in_log,
)  # fmt: skip
_APPENDING = _CREATING[:2]
# The places of two arguments of an append, counted after the connection and the thread.
_KEY, _EXPECTED = map([*signature(queries.append).parameters][2:].index, ("key", "expected"))
# An append that expects this last seq writes nothing new, but still finds the messages that its key has stored.
_NO_SEQ = 2**62
_OTHER_SEQ = "CS003"
# The position of the argument `dry_run` of an erasure.
_DRY_RUN = 5
# The queries that have another form on a cluster. An erasure that only says what it would erase has none.
_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    queries.due: due_on_cluster, queries.erase: cluster.erase_on_cluster, queries.fork: cluster.fork_on_cluster,
    queries.import_bundle: cluster.import_cluster_bundle, queries.stored_threads: cluster.stored_cluster_threads,
}  # fmt: skip
_OF_TURNS: tuple[Callable[..., Any], ...] = (queries.renew_turn, queries.leave_turn)
_NAMED = "SELECT compaction_store.named_thread(%b::uuid, %b::text, %b::text)"
_NAME = "SELECT * FROM compaction_store.name_thread(%b::uuid, %b::text, %b::text)"
_OPEN = "SELECT * FROM compaction_store.open_named_thread(%b::uuid, %b::text, %b::text, %b::text)"
_RENEW = "SELECT compaction_store.renew_turn(%b::text, %b::text, %b, 1)"
_HOLD = "SELECT compaction_store.hold_turn(%b::text, %b::text, %b, %b::text)"


def is_distributed(connection: Connection) -> bool:
    """Returns whether Citus distributes the tables of the database."""
    found: bool
    [(found,)] = fetch(connection, "SELECT pg_catalog.to_regclass('compaction_store.names') IS NOT NULL")
    return found


def record_in_database(connection: Connection, kind: LogEvent, said: Payload) -> None:
    """Records an event in the log of the database. Does nothing if the login has not the rights of the owner."""
    if queries.may_record_in_log(connection, "write_event"):
        server = Cluster() if is_distributed(connection) else Server()
        log = ThreadKey(None, DATABASE, LOG)
        server.call(queries.record_in_log, connection, log, kind, None, os.urandom(16), documents.body_text(said))


class Server:
    """One server. Its SQL functions look up the names of threads themselves."""

    #: Whether all threads are on one server, so that one transaction can write to several of them.
    has_all_threads = True
    #: The keys that seal what the stores send.
    keys: Keys | None = None

    def __init__(self, *, has_citus: bool = False) -> None:
        #: Whether other nodes may commit a write that this server reports as failed.
        self.has_nodes = has_citus

    @property
    def as_stored(self) -> Server:
        """The server without what opens sealed content."""
        return self

    def call(self, query: Callable[..., _T], connection: Connection, *arguments: Any) -> _T:
        """Runs a query, or the form of it that this kind of server needs."""
        return query(connection, *arguments)


class Cluster(Server):
    """A Citus cluster. Adds the keys of threads to queries, and remembers up to 10,000. Safe for concurrent use."""

    has_all_threads = False

    def __init__(self) -> None:
        super().__init__(has_citus=True)
        self._known: OrderedDict[tuple[str, str], UUID] = OrderedDict()

    def call(self, query: Callable[..., _T], connection: Connection, *arguments: Any) -> _T:
        """Runs a query, or the cluster's form of it, with the thread's key unless the query is about a turn."""
        key = arguments[0] if arguments else None
        if not (query is queries.erase and arguments[_DRY_RUN]):
            query = _FORMS.get(query, query)
        if not isinstance(key, ThreadKey):
            return query(connection, *arguments)
        if query is cluster.erase_on_cluster:
            self._known.pop((key.tenant, key.thread_id), None)
        if query is queries.take_turn:
            return self._take_turn(query, connection, *arguments)
        if key.uid is not None or query in _OF_TURNS:
            return query(connection, *arguments)
        if query in _CREATING:
            in_turn = query in _APPENDING and arguments[1 + _EXPECTED].turn_id is not None
            return (self._append_in_turn if in_turn else self._create)(query, connection, key, arguments[1:])
        return query(connection, key._replace(uid=_find(connection, key) or _NOBODY), *arguments[1:])

    def _create(
        self, query: Callable[..., _T], connection: Connection, key: ThreadKey, arguments: tuple[Any, ...]
    ) -> _T:  # fmt: skip
        """Runs a query that appends or records in the log, and makes the thread if it does not exist."""
        name = key.tenant, key.thread_id
        uid = self._known.get(name)
        if uid is not None:
            try:
                return query(connection, key._replace(uid=uid), *arguments)
            except psycopg.Error as error:
                if error.sqlstate not in _STALE:
                    raise
                self._known.pop(name, None)
        uid = _find(connection, key)
        if uid is not None:
            result = query(connection, key._replace(uid=uid), *arguments)
        else:
            with together(connection):
                uid = _open(connection, key, subject_of(arguments))
                result = query(connection, key._replace(uid=uid), *arguments)
        self._known[name] = uid
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return result

    def _append_in_turn(
        self, query: Callable[..., _T], connection: Connection, key: ThreadKey, arguments: tuple[Any, ...]
    ) -> _T:  # fmt: skip
        """Appends in one transaction with a lock on the turn, which may be on another node than the thread."""
        turn_id = arguments[_EXPECTED].turn_id
        uid = _find(connection, key)
        with together(connection):
            [(is_held,)] = fetch(connection, _HOLD, (key.tenant, key.thread_id, turn_id, arguments[_KEY].text))
            if is_held:
                uid = uid or _open(connection, key, subject_of(arguments))
                return query(connection, key._replace(uid=uid), *_expecting(arguments, turn_id=None))
        try:
            if uid is not None:
                key = key._replace(uid=uid)
                return query(connection, key, *_expecting(arguments, turn_id=None, seq=_NO_SEQ))
        except psycopg.Error as error:
            if error.sqlstate != _OTHER_SEQ:
                raise
        # The turn is lost, so this raises TurnLost.
        fetch(connection, _RENEW, (key.tenant, key.thread_id, turn_id))
        raise AssertionError("renew_turn must raise an error for a lost turn")

    def _take_turn(self, query: Callable[..., _T], connection: Connection, key: ThreadKey, *arguments: Any) -> _T:
        """Takes a turn. If it has the thread, also reads the thread's last seq and head."""
        found: Any = query(connection, key, *arguments)
        if found.place == 0:
            uid = _find(connection, key)
            if uid is not None:
                row = queries.thread(connection, key._replace(uid=uid))
                found = found._replace(last_seq=row.last_seq, head=row.head)
        return cast("_T", found)


def _open(connection: Connection, key: ThreadKey, subject: str | None) -> UUID:
    """Makes a thread with a name in the current transaction, or finds the one just made. Returns its key."""
    name = key.tenant, key.thread_id
    uid: UUID
    [(uid, is_new)] = fetch(connection, _NAME, (cluster.name_uid(*name), *name))
    if is_new:
        fetch(connection, _OPEN, (uid, *name, subject))
    return uid


def subject_of(arguments: Sequence[Any]) -> str | None:
    """Returns the subject that an append or a load expects. The arguments of other queries have none."""
    return next((given.subject for given in arguments if isinstance(given, Expected | Chunk)), None)


def _expecting(arguments: tuple[Any, ...], **expected: Any) -> tuple[Any, ...]:
    """Returns the arguments of an append with some fields of its `Expected` replaced."""
    before, after = arguments[:_EXPECTED], arguments[_EXPECTED + 1 :]
    return (*before, arguments[_EXPECTED]._replace(**expected), *after)


def _find(connection: Connection, key: ThreadKey) -> UUID | None:
    """Returns the thread_uid of the thread with this name, or None. The name of an erased thread contains it."""
    stub = erasure.stub_uid(key.thread_id)
    if stub is None:
        uid: UUID | None
        [(uid,)] = fetch(connection, _NAMED, (cluster.name_uid(key.tenant, key.thread_id), key.tenant, key.thread_id))
        return uid
    try:
        found = queries.thread(connection, key._replace(uid=stub))
    except psycopg.Error as error:
        if error.sqlstate != _NO_THREAD:
            raise
        return None
    return stub if found.thread_id == key.thread_id else None
