"""The group `store.custody`: erases content, and forbids to erase it."""

from __future__ import annotations

import hmac
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from compaction_store import arguments
from compaction_store.checkpoints import removals
from compaction_store.checkpoints.keys import Signer, check_signer
from compaction_store.checkpoints.removals import Removal
from compaction_store.errors import Conflict, InvalidInput, NotConfigured, PermissionDenied, UnsupportedDatabase
from compaction_store.integrity import erasure
from compaction_store.messages import encoding
from compaction_store.models import Event, Expiry, Redaction
from compaction_store.postgres import checkpointing, queries
from compaction_store.postgres.queries import EventFilter, ThreadKey
from compaction_store.postgres.queries.across_threads import Expiring
from compaction_store.results import AsyncResults
from compaction_store.sealing.keys import OwnerKey, owner_of
from compaction_store.store._async import erasures, pages, retention
from compaction_store.store._async.scope import AsyncScope
from compaction_store.store._async.verification import Progress, patience
from compaction_store.store.threads import thread_key

_END = datetime.max.replace(tzinfo=UTC)
_NAME = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{64}")


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
        `Held`, unless `override` gives a reason to ignore it; nobody can override a locked retention. Reasons are kept
        forever, so they should name nobody.
        With `dry_run`, nothing is written: the result says what would be erased, and the same errors are raised.
        `confirmed=False` is for an erasure that was ordered but not yet confirmed. Such a call is a dry run, except
        that it records the refusal if a hold or a retention forbids the erasure.

        Copies of the messages in forks, and in forks of forks, are erased too; a hold on a fork also raises `Held`.
        With `forks=False`, the forks are left alone. The result names the forks in both cases.
        """
        thread, ranges = self._scope.writable_key(thread_id), erasure.seq_ranges(seqs)
        how = self._ordered(
            reason, legal_basis, override, authority, actor, dry_run=dry_run, confirmed=confirmed, forks=forks
        )
        return await erasures.redact(self._scope.db, thread, ranges, how)

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
        how = self._ordered(
            reason, legal_basis, override, authority, actor, dry_run=dry_run, confirmed=confirmed, forks=forks
        )
        thread = await erasures.find(self._scope.db, key)
        # Use thread_uid: a repeated call must not reach a new thread of the same name.
        key = ThreadKey(thread.thread_uid, self._scope.tenant, thread.thread_id)
        return await erasures.erase(self._scope.db, key, how, last_pos=thread.last_pos)

    def erase_subject(
        self,
        subject: str,
        *,
        reason: str,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
        legal_basis: str | None = None,
        override: str | None = None,
        dry_run: bool = False,
    ) -> AsyncResults[Expiry]:
        """Erases all threads of a subject with their forks of this subject, and yields each thread with its result.

        Each thread is erased in its own transaction, as by `erase`: the copies in forks that belong to somebody else
        are erased too. A thread under a hold or a retention is kept, unless `override` gives a reason to ignore it, and
        the refusal is recorded in it. If a call is stopped at any point, repeat it: the next one erases what is left.
        With `dry_run`, nothing is written. The reason is kept forever, so it should name nobody.

        Nothing is erased until the result is iterated over. If nobody does, the result warns when it is dropped.
        """
        arguments.name(subject, "subject")
        how = self._ordered(reason, legal_basis, override, authority, actor, dry_run=dry_run)
        found = erasures.erase_subject(self._scope.db, self._scope.tenant, subject, how)
        return AsyncResults("custody.erase_subject(…)", found)

    def _ordered(
        self,
        reason: str,
        legal_basis: str | None,
        override: str | None,
        authority: Mapping[str, Any] | None,
        actor: str | None,
        *,
        dry_run: bool,
        confirmed: bool = True,
        forks: bool = True,
    ) -> erasures.Erasure:
        """Checks the arguments that all erasures have."""
        for name, flag in (("dry_run", dry_run), ("confirmed", confirmed), ("forks", forks)):
            arguments.instance(flag, bool, name)
        erasures.check_reasons(reason, override, legal_basis)
        body = erasure.body(
            reason=reason, legal_basis=legal_basis, override=override, authority=encoding.authority(authority)
        )
        actor = None if dry_run else self._scope.chosen_actor(actor)
        looks = True if dry_run else False if confirmed else None
        return erasures.Erasure(body, actor, overrides=override is not None, dry_run=looks, forks=forks)

    async def shred(
        self,
        subject: str,
        *,
        reason: str,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
        legal_basis: str | None = None,
        override: str | None = None,
    ) -> Event:
        """Erases all threads of a subject, and destroys the key that sealed them, so that no copy can be read either.

        The store must have been opened with `seal`, and must have the key. If a hold or a retention keeps a thread,
        `Conflict` is raised and the key stays. The log of the tenant gets one event for a key, with its id. A call that
        was stopped can be repeated until the key is destroyed.

        An append that is in flight meanwhile may still be stored. It is erased with its thread, and nobody can open
        what it said. A later append with the subject makes a new key.
        """
        keys = self._scope.db.server.keys
        if keys is None:
            raise NotConfigured("a store must be opened with seal=Keys(…) to destroy a key")
        arguments.name(subject, "subject")
        owner = owner_of(self._scope.tenant, subject)
        key_id = keys.id_of(owner)
        if key_id is None:
            raise NotConfigured(f"{keys!r} must have the key of the subject, but has none: nothing was erased")
        given: dict[str, Any] = {"reason": reason, "authority": authority, "legal_basis": legal_basis}
        given |= {"actor": self._scope.chosen_actor(actor), "override": override}
        done = [each async for each in self.erase_subject(subject, **given)]
        if kept := [each.thread_id for each in done if each.kept is not None]:
            what = f"{len(kept)} threads of the subject were kept, so the key was not destroyed"
            raise Conflict(what + arguments.about(kept[0]))
        body = erasure.body(
            key=key_id.hex(), threads=len(done), reason=reason, legal_basis=legal_basis,
            authority=encoding.authority(authority),
        )  # fmt: skip
        db, log = self._scope.db, ThreadKey(None, self._scope.tenant, arguments.LOG)
        written = await erasures.record_in_log(db, log.tenant, "shred", body, given["actor"], salt=key_id)
        keys.destroy(owner)
        # Erases what was appended meanwhile.
        _ = [each async for each in self.erase_subject(subject, **given)]
        # An earlier call, which was stopped, may have written the event.
        return next(iter([each async for each in pages.events(db, log, written.pos - 1, ["shred"])]))

    async def remove_tenant(
        self,
        signer: Signer,
        *,
        reason: str,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
        legal_basis: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Removal:
        """Erases all threads of the tenant, and returns a statement about it, signed with the key of its checkpoints.

        Nothing is erased if a hold or a retention keeps a thread: `Conflict` says how many. Each thread is erased in
        its own transaction, and its key is destroyed if the store was opened with `seal`. Then the chains of all
        threads are computed, and the log of the database gets an event of the kind `removal`. A call that was stopped
        at any point can be repeated. The login needs the roles eraser and auditor. The programs of the tenant must have
        ended. With `dry_run`, nothing is written: the result has the numbers of what would be erased. `progress` is
        called with the number of erased threads and the total.
        """
        check_signer(signer)
        arguments.instance(dry_run, bool, "dry_run")
        if progress is not None and not callable(progress):
            raise InvalidInput(f"progress must be a callable{arguments.other(progress)}")
        erasures.check_reasons(reason, legal_basis=legal_basis)
        order = retention.Run(
            self._scope.db, self._scope.tenant, uuid4(), timedelta(), "", None, self._scope.chosen_actor(actor), reason,
            legal_basis, encoding.authority(authority), dry_run,
        )  # fmt: skip
        return await _remove(order, signer, progress or (lambda _done, _total: None))

    def apply_retention(
        self,
        *,
        older_than: timedelta | None = None,
        prefix: str = "",
        subject: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
        legal_basis: str | None = None,
        dry_run: bool = False,
    ) -> AsyncResults[Expiry]:
        """Erases the tenant's threads whose last message is older, and yields each thread that was old enough.

        Without `older_than`, the rule that `set_retention` stored decides, with its prefix.

        The database's clock decides, and `last_message_at`: a hold, a verdict or a fork does not make a thread younger.
        A thread without messages is as old as its creation. `prefix` limits the run to threads whose names begin with
        it, and `subject` to threads of a subject, which is not stored with the run. Hidden threads are erased like
        others. Threads under a hold or a retention are kept, and nothing is written to them. So is a thread that got a
        message meanwhile. Forks are threads like others: an old one is erased, and a younger one keeps its copies until
        it is old. `dry_run` erases nothing, and yields what a run would do.

        Each thread is erased in its own transaction, by an event with the name of the run and the time before which the
        last message had to be. The log of the tenant gets an event `policy` at the beginning and one at the end, with
        what was erased, what was kept and why. If a run is stopped at any point, repeat it: the next run erases what is
        left, and first records what the interrupted one erased.

        Nothing is erased until the result is iterated over. If nobody does, the result warns when it is dropped.
        """
        if older_than is not None:
            retention.check_age(older_than, "older_than")
        if prefix != "":
            arguments.name(prefix, "prefix")
            if older_than is None:
                raise InvalidInput("prefix must be given with older_than: the tenant's rule has its own")
        arguments.optional_name(subject, "subject")
        arguments.instance(dry_run, bool, "dry_run")
        reason = "the last message is older than the retention policy allows" if reason is None else reason
        erasures.check_reasons(reason, legal_basis=legal_basis)
        actor = None if dry_run else self._scope.chosen_actor(actor)
        run = retention.Run(
            self._scope.db, self._scope.tenant, uuid4(), older_than or timedelta(), prefix, subject, actor, reason,
            legal_basis, encoding.authority(authority), dry_run,
        )  # fmt: skip
        return AsyncResults("custody.apply_retention(…)", retention.apply(run))

    async def set_retention(
        self,
        *,
        older_than: timedelta | None = None,
        prefix: str = "",
        new_threads: timedelta | None = None,
        reason: str,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> Event:
        """Stores the tenant's rule as an event in its log. It replaces the earlier rule. An empty rule ends it.

        `older_than` and `prefix` are for `apply_retention`. `new_threads` retains every thread that is opened while the
        rule is in force, for that long from its opening, as `retain` does. A later rule does not change the terms of
        these threads. Terms for new threads need one server, not a cluster.
        """
        for age, what in ((older_than, "older_than"), (new_threads, "new_threads")):
            if age is not None:
                retention.check_age(age, what)
        if prefix != "":
            arguments.name(prefix, "prefix")
            if older_than is None:
                raise InvalidInput("prefix must be given with older_than")
        if new_threads is not None and not self._scope.db.server.has_all_threads:
            raise UnsupportedDatabase("new_threads needs one server: on a cluster, use retain for each thread")
        erasures.check_reasons(reason)
        authority = encoding.authority(authority)
        body = retention.rule_body(older_than, prefix, new_threads, reason=reason, authority=authority)
        actor = self._scope.chosen_actor(actor)
        return await erasures.record_in_log(self._scope.db, self._scope.tenant, "rule", body, actor)

    async def retention_rule(self) -> Event | None:
        """Returns the event with the tenant's rule, or None if there is none."""
        return await retention.rule(self._scope.db, self._scope.tenant)

    async def set_subject(
        self,
        thread_id: str,
        subject: str | None,
        *,
        reason: str | None = None,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> Event:
        """Says whose the thread is, or with None, that it is nobody's.

        An application may do this for a thread that has no subject. To change or remove a subject, the login needs the
        role `compaction_store_custodian`. The event has the old and the new subject as hashes, because events are kept
        forever. The thread's entry in `threads` shows the subject until the thread is erased.
        """
        thread = self._scope.writable_key(thread_id)
        arguments.optional_name(subject, "subject")
        erasure.check_text(reason, "reason", optional=True)
        actor = self._scope.chosen_actor(actor)
        body = erasure.body(reason=reason, authority=encoding.authority(authority))
        return await erasures.record(self._scope.db, queries.set_subject, thread, "subject", body, actor, subject)

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
        locked: bool = False,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> Event:
        """Forbids erasing anything from a thread until the time `until`. The newest retention replaces earlier ones.

        If this shortens a term that has not ended, `shortens` in the event's body is the pos of the earlier retention.
        Nobody can override a term that is `locked`, or make it shorter, which raises `Held`. A longer term after it is
        locked too.
        """
        end = erasure.until_text(until)
        arguments.instance(locked, bool, "locked")
        return await self._scope.record_event(
            thread_id, "retention", reason, actor, authority, until=end, locked=locked or None
        )


# ---- all threads of a tenant
# A removal that was stopped at any point is repeated: it erases what is left, and its statement is about all threads.


async def _remove(order: retention.Run, signer: Signer, progress: Callable[[int, int], object]) -> Removal:
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
            raise Conflict(
                f"a thread must be kept, because it was {each.kept} meanwhile{arguments.about(each.thread_id)}"
            )
        progress(erased := erased + 1, threads)
    proved = await order.db.call(checkpointing.prove_removal, order.tenant, patience(order.db))
    done = replace(
        proved, keys=await _destroy_keys(order), reason=order.reason, legal_basis=order.legal_basis,
        authority=order.authority,
    )  # fmt: skip
    event = await erasures.record_in_log(
        order.db, arguments.DATABASE, "removal", erasure.body(**removals.body(done)), order.actor
    )
    return removals.sign(signer, done, event)


async def _erased(order: retention.Run, *, dry_run: bool) -> AsyncIterator[Expiry]:
    """Erases the threads of the tenant, and yields each. Forks are threads of the tenant, so their copies go too."""
    async for found in retention.old(order, _END):
        said = erasure.body(
            reason=order.reason, legal_basis=order.legal_basis, key=await _key_of(order, found),
            authority=order.authority,
        )  # fmt: skip
        how = erasures.Erasure(said, order.actor, dry_run=dry_run, forks=False)
        if (done := await erasures.erase_one(order.db, order.tenant, found, how)) is not None:
            yield done


async def _key_of(order: retention.Run, found: Expiring) -> str | None:
    """Returns a thread's key by its id and a proof, so that no forged event can destroy the key of another tenant."""
    if (keys := order.db.server.keys) is None:
        return None
    thread = await order.db.call(queries.thread, ThreadKey(found.thread_uid, order.tenant, found.thread_id))
    key_id = keys.id_of(owner_of(order.tenant, thread.subject, found.thread_id))
    key = None if key_id is None else keys.by_id(key_id)
    return None if key is None else _named(key, order.tenant)


def _named(key: OwnerKey, tenant: str) -> str:
    proof = hmac.digest(key.secret, f"compaction-store removal\n{tenant}".encode(), "sha256")
    return f"{key.id.hex()}.{proof.hex()}"


async def _destroy_keys(order: retention.Run) -> int:
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
