"""Erases all threads of a subject or of a tenant, one transaction for each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID

from compaction_store.errors import Held, ThreadDamaged, ThreadNotFound
from compaction_store.models import Expiry
from compaction_store.postgres import queries
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import ThreadKey
from compaction_store.postgres.queries.across_threads import Expiring
from compaction_store.store._async import erasures

_PAGE = 500
_RETAINED = "the thread is retained "


async def erase(db: AsyncConnections, tenant: str, subject: str, how: erasures.Erasure) -> AsyncIterator[Expiry]:
    """Erases the threads, and those that get the subject meanwhile. Yields each with its result."""
    seen: set[UUID] = set()
    count = -1
    while count < len(seen):
        count, after = len(seen), UUID(int=0)
        while page := await db.call(queries.threads_of_subject, tenant, subject, after, _PAGE):
            for found in page:
                after = found.thread_uid
                if after not in seen:
                    seen.add(after)
                    if (done := await erase_one(db, tenant, found, how)) is not None:
                        yield done


async def erase_one(
    db: AsyncConnections, tenant: str, found: queries.OfSubject | Expiring, how: erasures.Erasure
) -> Expiry | None:
    """Erases a thread unless it must be kept. Returns None if another call has erased or removed it meanwhile."""
    key = ThreadKey(found.thread_uid, tenant, found.thread_id)
    result = Expiry(found.thread_id, found.thread_uid, found.last_message_at, None)
    try:
        done = await erasures.erase(db, key, how, last_pos=found.last_pos)
    except ThreadNotFound:
        return None
    except ThreadDamaged:
        return replace(result, kept="damaged")
    except Held as held:
        return replace(result, kept="retained" if str(held).startswith(_RETAINED) else "held")
    if done.pos is None and not how.dry_run:
        return None
    return replace(result, messages=len(done.seqs), records=len(done.records), pos=done.pos)
