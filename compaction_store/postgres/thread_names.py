"""Finds the keys of threads by their names on a Citus cluster, where a name and its thread are on different nodes.

A single server looks up the name inside of each SQL function. A function on one node of a cluster cannot read another
node's tables, so here the client asks the table of names first, and passes the key. Calls that append remember the
keys, which saves this second call. A key that was remembered too long is that of an erased thread: the server refuses
the append, and the name is looked up again.

A first append gives the name to a new key, makes the thread and appends, in one transaction; so does an erasure, which
frees the name. So a name always leads to a thread, and a thread that is not erased has its name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar, cast
from uuid import UUID

import psycopg

from compaction_store.integrity import erasure
from compaction_store.postgres import queries
from compaction_store.postgres.cursor import Connection, fetch, together
from compaction_store.postgres.queries import ThreadKey
from compaction_store.postgres.queries.cluster_listing import name_uid

_T = TypeVar("_T")

# Citus crashes if it is to find the node of a NULL; no thread has this key.
_NOBODY = UUID(int=0)
_MOST = 10_000
_NO_THREAD = "CS001"
# The errors of an append with the key of an erased thread, and with the key of a thread that is not there.
_STALE = {"CS012", _NO_THREAD}
_CREATING: tuple[Callable[..., Any], ...] = (queries.append, queries.append_observed, queries.load)
_NAMED = "SELECT compaction_store.named_thread(%b::uuid, %b::text, %b::text)"
_NAME = "SELECT * FROM compaction_store.name_thread(%b::uuid, %b::text, %b::text)"
_OPEN = "SELECT * FROM compaction_store.open_named_thread(%b::uuid, %b::text, %b::text)"
_UNNAME = "SELECT * FROM compaction_store.unname_thread(%b::uuid, %b::text, %b::text, %b::uuid)"


class ThreadNames:
    """Calls queries with the keys of their threads. Remembers 10,000 of them; threads and tasks share it."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], UUID] = OrderedDict()

    def call(self, query: Callable[..., _T], connection: Connection, *arguments: Any) -> _T:
        """Runs a query. If its first argument is a thread without a key, adds the key."""
        key = arguments[0] if arguments else None
        if not isinstance(key, ThreadKey):
            return query(connection, *arguments)
        if query is queries.erase:
            return self._erase(query, connection, key, arguments[1:])
        if key.uid is not None:
            return query(connection, *arguments)
        if query in _CREATING:
            return self._create(query, connection, key, arguments[1:])
        return query(connection, key._replace(uid=_find(connection, key) or _NOBODY), *arguments[1:])

    def _create(
        self, query: Callable[..., _T], connection: Connection, key: ThreadKey, arguments: tuple[Any, ...]
    ) -> _T:  # fmt: skip
        """Runs a query that appends, and makes the thread if there is none."""
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
                [(uid, is_new)] = fetch(connection, _NAME, (name_uid(*name), *name))
                if is_new:
                    fetch(connection, _OPEN, (uid, *name))
                result = query(connection, key._replace(uid=uid), *arguments)
        self._known[name] = uid
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return result

    def _erase(
        self, query: Callable[..., _T], connection: Connection, key: ThreadKey, arguments: tuple[Any, ...]
    ) -> _T:  # fmt: skip
        """Erases a thread and frees its name, unless a hold refuses the erasure, which is recorded all the same."""
        _actor, _salt, _body, _insist, dry_run, *_ = arguments
        if dry_run:
            return query(connection, key, *arguments)
        self._known.pop((key.tenant, key.thread_id), None)
        with together(connection):
            result: Any = query(connection, key, *arguments)
            *_, refused_by, refusal = result
            if refused_by is None and refusal is None:
                fetch(connection, _UNNAME, (name_uid(key.tenant, key.thread_id), key.tenant, key.thread_id, key.uid))
        return cast("_T", result)


def _find(connection: Connection, key: ThreadKey) -> UUID | None:
    """Returns the key of the thread that has a name. The stub of an erased thread has its key in its name."""
    stub = erasure.stub_uid(key.thread_id)
    if stub is None:
        uid: UUID | None
        [(uid,)] = fetch(connection, _NAMED, (name_uid(key.tenant, key.thread_id), key.tenant, key.thread_id))
        return uid
    try:
        thread_id, *_ = queries.thread(connection, key._replace(uid=stub))
    except psycopg.Error as error:
        if error.sqlstate != _NO_THREAD:
            raise
        return None
    return stub if thread_id == key.thread_id else None
