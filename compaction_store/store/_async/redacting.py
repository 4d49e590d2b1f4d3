"""The async face of erasure: redacting messages, erasing threads, and the holds and retentions that forbid it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime

from compaction_store.integrity import erasure
from compaction_store.models import Event, Redaction
from compaction_store.postgres import queries
from compaction_store.store._async.importing import AsyncImporting

# Ten times what erasing a message has been seen to take.
_SECONDS_A_MESSAGE = 0.001


class AsyncRedacting(AsyncImporting):
    """Reads, writes and loads threads, and erases from them."""

    async def redact(
        self,
        thread_id: str,
        seqs: int | Iterable[int],
        *,
        reason: str,
        actor: str | None = None,
        legal_basis: str | None = None,
        override: str | None = None,
        dry_run: bool = False,
    ) -> Redaction:
        """Erases messages and every compaction record that may repeat what they said, in one piece.

        Payload, meta and salt go, and so do the bodies of records whose span or inputs reach one of the messages,
        directly or through other records, whatever their outcome. Commitments stay, so that the thread still verifies.
        Messages that are erased already are left out. A hold or a retention forbids it (`Held`), unless `override` says
        why it is done all the same. Reasons are kept for good: they should name nobody. With `dry_run` nothing is
        written, and the result says what would be erased; what would be refused is refused.
        """
        key = self._own_key(thread_id)
        wanted = erasure.seq_ranges(seqs)
        _check(reason, override)
        actor = None if dry_run else self._by(actor)
        erasure.check_text(legal_basis, "legal_basis", optional=True)
        body = erasure.body(reason=reason, legal_basis=legal_basis, override=override)
        salt = os.urandom(16)
        seconds = sum(end - start + 1 for start, end in wanted) * _SECONDS_A_MESSAGE
        row = await self._db.with_more_time(seconds).call(
            queries.redact, key, wanted, actor, salt, body, override is not None, dry_run, key=salt.hex()
        )
        return erasure.redaction(row)

    async def erase(
        self,
        thread_id: str,
        *,
        reason: str,
        actor: str | None = None,
        override: str | None = None,
        dry_run: bool = False,
    ) -> Redaction:
        """Erases a whole thread: every message and record, the metadata and the name.

        What stays is a stub that still verifies, that is called `erased:` and its thread_uid, and that nothing can be
        added to (`ThreadErased`). A caller that knows the old name still reaches it by that name. `dry_run` is as in
        `redact`.
        """
        key = self._own_key(thread_id)
        _check(reason, override)
        actor = None if dry_run else self._by(actor)
        body = erasure.body(reason=reason, override=override)
        salt = os.urandom(16)
        thread = await self.thread(thread_id)
        row = await self._db.with_more_time(thread.last_pos * _SECONDS_A_MESSAGE).call(
            queries.erase, key, actor, salt, body, override is not None, dry_run, key=salt.hex()
        )
        return erasure.redaction(row)

    async def hold(self, thread_id: str, *, reason: str, actor: str | None = None) -> Event:
        """Forbids to erase from a thread until `release`."""
        return await self._record(thread_id, "hold", reason, actor)

    async def release(self, thread_id: str, *, reason: str, actor: str | None = None) -> Event:
        """Ends a hold."""
        return await self._record(thread_id, "release", reason, actor)

    async def retain(self, thread_id: str, until: datetime, *, reason: str, actor: str | None = None) -> Event:
        """Forbids to erase from a thread before a moment. Of several retentions the newest counts."""
        return await self._record(thread_id, "retention", reason, actor, until=erasure.until_text(until))

    async def _record(
        self, thread_id: str, kind: str, reason: str, actor: str | None, *, until: str | None = None
    ) -> Event:
        key = self._own_key(thread_id)
        _check(reason, None)
        actor = self._by(actor)
        body = erasure.body(until=until, reason=reason)
        salt = os.urandom(16)
        pos, created_at = await self._db.call(queries.record_event, key, kind, actor, salt, body, key=salt.hex())
        return erasure.event(thread_id, (pos, kind, actor, created_at, body))


def _check(reason: object, override: object) -> None:
    erasure.check_text(reason, "reason")
    erasure.check_text(override, "override", optional=True)
