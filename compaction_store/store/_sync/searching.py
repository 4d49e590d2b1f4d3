"""Searches stored threads for a text."""

from __future__ import annotations

from collections.abc import Iterator

from compaction_store.models import Found, Thread
from compaction_store.postgres import queries, typed_rows
from compaction_store.postgres.calling._sync.connections import Connections
from compaction_store.postgres.queries import CompactionFilter, ThreadKey
from compaction_store.store._sync import auditing, pages
from compaction_store.store.text_search import TextSearch


def search_all(db: Connections, tenant: str, wanted: TextSearch, after: str) -> Iterator[Found]:
    for thread in pages.threads(db, tenant, after, hidden=True):
        for found in _found(db, tenant, thread, wanted):
            yield found


def search_thread(db: Connections, thread: ThreadKey, wanted: TextSearch) -> Iterator[Found]:
    row = db.call(queries.thread, thread)
    for found in _found(db, thread.tenant, typed_rows.thread(row), wanted):
        yield found


def _found(db: Connections, tenant: str, thread: Thread, wanted: TextSearch) -> Iterator[Found]:
    # Use thread_uid: the name may belong to another thread by now.
    key = ThreadKey(thread.thread_uid, tenant, thread.thread_id)
    if (found := wanted.in_thread(thread)) is not None:
        yield found
    if thread.erased_pos is not None:
        return
    for message in pages.messages(db, key, 0, None):
        if (found := wanted.in_message(thread.thread_id, message)) is not None:
            yield found
    if thread.last_number:
        for record in auditing.compaction_log(db, tenant, CompactionFilter(thread.thread_uid)):
            if (found := wanted.in_record(record)) is not None:
                yield found
