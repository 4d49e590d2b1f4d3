"""Removes a tenant: erases all of its threads, destroys their keys, records the removal and signs a statement.

Each thread is erased in a transaction of its own. A call that was stopped at any point is repeated: it erases what is
left, and its statement is about all threads. So nothing about a removal has to be stored while it goes on.
"""

from __future__ import annotations

import hmac
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime

from compaction_store.arguments import DATABASE, about
from compaction_store.checkpoints.keys import Signer
from compaction_store.checkpoints.removals import Removal, body, sign
from compaction_store.errors import Conflict, NotConfigured, PermissionDenied
from compaction_store.integrity import erasure
from compaction_store.models import Expiry
from compaction_store.postgres import checkpointing, queries
from compaction_store.postgres.queries import EventFilter, ThreadKey
from compaction_store.postgres.queries.across_threads import Expiring
from compaction_store.sealing.keys import OwnerKey, owner_of
from compaction_store.store._async import erasures, pages, retention, subjects
from compaction_store.store._async.retention import Run
from compaction_store.store._async.verification import patience

_END = datetime.max.replace(tzinfo=UTC)
_NAME = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{64}")


async def remove(order: Run, signer: Signer, progress: Callable[[int, int], object]) -> Removal:
    """Removes the tenant. A dry run returns the numbers of what is left to erase."""
    if not await order.db.call(queries.may_record_in_log, "checkpoint_turn"):
        raise PermissionDenied("grant this login compaction_store_auditor, because what is signed is proved first")
    threads, messages, records, kept = 0, 0, 0, Counter[str]()
    async for each in _erased(order, dry_run=True):
        threads, messages, records = threads + 1, messages + each.messages, records + each.records
        kept.update([each.kept] if each.kept is not None else [])
        progress(0, threads)
    if kept:
        why = ", ".join(f"{count:,} {reason}" for reason, count in kept.items())
        raise Conflict(f"{kept.total():,} of the {threads:,} threads must be kept ({why}), so nothing was erased")
    if order.dry_run:
        return Removal(order.tenant, threads, messages, records)
    # A call that was stopped may have named keys that this store does not have. Then nothing more is erased.
    await _destroy_keys(order)
    erased = 0
    async for each in _erased(order, dry_run=False):
        if each.kept is not None:
            raise Conflict(f"a thread must be kept, because it was {each.kept} meanwhile{about(each.thread_id)}")
        progress(erased := erased + 1, threads)
    proved = await order.db.call(checkpointing.prove_removal, order.tenant, patience(order.db))
    done = replace(
        proved, keys=await _destroy_keys(order), reason=order.reason, legal_basis=order.legal_basis,
        authority=order.authority,
    )  # fmt: skip
    event = await erasures.record_in_log(order.db, DATABASE, "removal", erasure.body(**body(done)), order.actor)
    return sign(signer, done, event)


async def _erased(order: Run, *, dry_run: bool) -> AsyncIterator[Expiry]:
    """Erases the threads of the tenant, and yields each. Forks are threads of the tenant, so their copies go too."""
    async for found in retention.old(order, _END):
        said = erasure.body(
            reason=order.reason, legal_basis=order.legal_basis, key=await _key_of(order, found),
            authority=order.authority,
        )  # fmt: skip
        how = erasures.Erasure(said, order.actor, dry_run=dry_run, forks=False)
        if (done := await subjects.erase_one(order.db, order.tenant, found, how)) is not None:
            yield done


async def _key_of(order: Run, found: Expiring) -> str | None:
    """Returns the key that seals a thread, by its id and a proof of it.

    The erasure names it, so that a call that is repeated can destroy it. Only who has the key can make the proof: an
    event that somebody forged or imported must not destroy the key of another tenant.
    """
    if (keys := order.db.server.keys) is None:
        return None
    thread = await order.db.call(queries.thread, ThreadKey(found.thread_uid, order.tenant, found.thread_id))
    key_id = keys.id_of(owner_of(order.tenant, thread.subject, found.thread_id))
    key = None if key_id is None else keys.by_id(key_id)
    return None if key is None else _named(key, order.tenant)


def _named(key: OwnerKey, tenant: str) -> str:
    proof = hmac.digest(key.secret, f"compaction-store removal\n{tenant}".encode(), "sha256")
    return f"{key.id.hex()}.{proof.hex()}"


async def _destroy_keys(order: Run) -> int:
    """Destroys the keys that the erasures name, and returns how many there are."""
    names, ids, keys = set(), set(), order.db.server.keys
    async for event in pages.tenant_events(order.db, order.tenant, EventFilter(["redaction"]), newest_first=False):
        if isinstance(name := event.body.get("key"), str) and _NAME.fullmatch(name):
            names.add(name)
    if keys is None:
        if names:
            raise NotConfigured("a store must be opened with seal=Keys(…) to destroy the keys of the tenant")
        return 0
    for name in names:
        key_id = bytes.fromhex(name.partition(".")[0])
        # The proof of a key that is destroyed already cannot be checked, and need not be.
        if (key := keys.by_id(key_id)) is None or hmac.compare_digest(_named(key, order.tenant), name):
            ids.add(key_id)
    keys.destroy_ids(ids)
    return len(ids)
