"""The group `store.custody`: erases content, and forbids to erase it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from compaction_store import arguments
from compaction_store.integrity import erasure
from compaction_store.messages import encoding
from compaction_store.models import (
    Event,
    Redaction,
)
from compaction_store.postgres.queries import ThreadKey
from compaction_store.store._async import erasures
from compaction_store.store._async.scope import AsyncScope
from compaction_store.store.threads import thread_key


class AsyncCustody:
    """The methods of `store.custody`, which erase messages and threads, or keep them from being erased.

    `redact` and `erase` need the role `compaction_store_eraser`, and `hold`, `release` and `retain`
    `compaction_store_custodian`. `override` needs both. The login of an embedded Postgres may do everything.
    """

    def __init__(self, scope: AsyncScope) -> None:
        self._scope = scope

    async def redact(
        self,
        thread_id: str,
        seqs: int | Iterable[int],
        *,
        reason: str,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
        legal_basis: str | None = None,
        override: str | None = None,
        dry_run: bool = False,
        confirmed: bool = True,
        forks: bool = True,
    ) -> Redaction:
        """Erases messages and the bodies of all compaction records that may repeat their content, all or nothing.

        The payload, meta and salt of each message are erased. So is the body of every record whose span or inputs
        include the message, directly or through other records. Failed and rejected records are erased too. Commitments
        stay, so the thread still verifies. Messages that are erased already are skipped. A hold or a retention raises
        `Held`, unless `override` gives a reason to ignore it. Reasons are kept forever, so they should name nobody.
        With `dry_run`, nothing is written: the result says what would be erased, and the same errors are raised.
        `confirmed=False` is for an erasure that was ordered but not yet confirmed. Such a call is a dry run, except
        that it records the refusal if a hold or a retention forbids the erasure.

        Copies of the messages in forks, and in forks of forks, are erased too; a hold on a fork also raises `Held`.
        With `forks=False`, the forks are left alone. The result names the forks in both cases.
        """
        thread = self._scope.writable_key(thread_id)
        looks = erasures.only_looks(dry_run=dry_run, confirmed=confirmed)
        arguments.instance(forks, bool, "forks")
        ranges = erasure.seq_ranges(seqs)
        erasures.check_reasons(reason, override)
        actor = None if dry_run else self._scope.chosen_actor(actor)
        erasure.check_text(legal_basis, "legal_basis", optional=True)
        body = erasure.body(
            reason=reason, legal_basis=legal_basis, override=override, authority=encoding.authority(authority)
        )
        return await erasures.redact(
            self._scope.db,
            thread,
            ranges,
            body,
            actor=actor,
            overrides=override is not None,
            dry_run=looks,
            forks=forks,
        )

    async def erase(
        self,
        thread_id: str,
        *,
        reason: str,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
        legal_basis: str | None = None,
        override: str | None = None,
        dry_run: bool = False,
        confirmed: bool = True,
        forks: bool = True,
    ) -> Redaction:
        """Erases a whole thread: every message and record, the metadata and the name.

        A stub stays, which still verifies. Its name is `erased:` followed by the thread_uid, and appending to it raises
        `ThreadErased`. The old name is free, so an append to it makes a new thread. `thread_id` may also be the name of
        the stub, even before the thread is erased. A call with an unknown outcome can therefore be repeated without
        reaching another thread. The `pos` of the result is None if the thread was erased already. `legal_basis`,
        `override`, `dry_run`, `confirmed` and `forks` are as in `redact`: forks lose only the copies.
        """
        key = thread_key(self._scope.tenant, thread_id)
        if erasure.stub_uid(thread_id) is None:
            arguments.check_new_thread_id(key.tenant, thread_id)
        looks = erasures.only_looks(dry_run=dry_run, confirmed=confirmed)
        arguments.instance(forks, bool, "forks")
        erasures.check_reasons(reason, override)
        erasure.check_text(legal_basis, "legal_basis", optional=True)
        actor = None if dry_run else self._scope.chosen_actor(actor)
        body = erasure.body(
            reason=reason, legal_basis=legal_basis, override=override, authority=encoding.authority(authority)
        )  # fmt: skip
        thread = await erasures.find(self._scope.db, key)
        # Use thread_uid: a repeated call must not reach a new thread of the same name.
        key = ThreadKey(thread.thread_uid, self._scope.tenant, thread.thread_id)
        return await erasures.erase(
            self._scope.db, key, body, last_pos=thread.last_pos, actor=actor,
            overrides=override is not None, dry_run=looks, forks=forks,
        )  # fmt: skip

    async def hold(
        self, thread_id: str, *, reason: str, actor: str | None = None, authority: Mapping[str, Any] | None = None
    ) -> Event:
        """Forbids erasing anything from a thread until `release` is called."""
        return await self._scope.record_event(thread_id, "hold", reason, actor, authority)

    async def release(
        self, thread_id: str, *, reason: str, actor: str | None = None, authority: Mapping[str, Any] | None = None
    ) -> Event:
        """Ends the hold on a thread."""
        return await self._scope.record_event(thread_id, "release", reason, actor, authority)

    async def retain(
        self,
        thread_id: str,
        until: datetime,
        *,
        reason: str,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> Event:
        """Forbids erasing anything from a thread until the time `until`. The newest retention replaces earlier ones."""
        end = erasure.until_text(until)
        return await self._scope.record_event(thread_id, "retention", reason, actor, authority, until=end)
