"""Erases the threads of a tenant whose last message is older than a retention policy allows.

Each thread is erased in a transaction of its own, in which the database decides once more. So a run can be stopped at
any point: the next run erases what is left.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, cast
from uuid import UUID

from compaction_store import arguments
from compaction_store.errors import InvalidInput, NotConfigured, ThreadDamaged, ThreadNotFound
from compaction_store.integrity import erasure
from compaction_store.jsonable import time_text
from compaction_store.models import Event, Expiry, Finding, Payload
from compaction_store.models.vocabulary import KeptBy
from compaction_store.postgres import queries
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import EventFilter, ThreadKey
from compaction_store.postgres.queries.across_threads import Expiring, ranges
from compaction_store.store._async import erasures, pages

# The most threads or events that one statement reads.
_PAGE = 1000
# An event lists the keys of threads only up to this number. More are named by a digest of their keys.
MOST_NAMED = 100
_LONGEST = timedelta(days=100 * 366)
_EARLIEST = datetime.min.replace(tzinfo=UTC) + _LONGEST
OLDER_THAN, NEW_THREADS = "older_than_seconds", "new_threads_seconds"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a retention policy: what it erases, and what it writes into the events of the erasures."""

    db: AsyncConnections
    tenant: str
    run_id: UUID
    older_than: timedelta
    prefix: str
    subject: str | None
    actor: str | None
    reason: str
    legal_basis: str | None
    authority: Payload | None
    dry_run: bool


def check_age(age: object, what: str) -> None:
    if not isinstance(age, timedelta) or not timedelta(0) < age <= _LONGEST:
        given = f", not {age}" if isinstance(age, timedelta) else arguments.other(age)
        raise InvalidInput(f"{what} must be a positive timedelta of at most {_LONGEST.days:,} days{given}")


def rule_body(older_than: timedelta | None, prefix: str, new_threads: timedelta | None, **more: Any) -> str:
    """Returns the body of a rule. It begins with the term, which the database finds there, in whole seconds."""
    return erasure.body(
        new_threads_seconds=None if new_threads is None else -(-new_threads // timedelta(seconds=1)),
        older_than_seconds=None if older_than is None else older_than.total_seconds(), prefix=prefix or None, **more,
    )  # fmt: skip


async def rule(db: AsyncConnections, tenant: str) -> Event | None:
    """Returns the newest event of the kind `rule` in the log of a tenant, or None if no rule is in force."""
    with suppress(ThreadNotFound):
        async for event in pages.events(db, ThreadKey(None, tenant, arguments.LOG), 0, ["rule"], newest_first=True):
            return event if event.body.keys() & {OLDER_THAN, NEW_THREADS} else None
    return None


async def _ruled(run: Run) -> Run:
    """Returns the run with the age and the prefix of the tenant's rule."""
    found = await rule(run.db, run.tenant)
    age = None if found is None else _age(found)
    prefix = "" if found is None else found.body.get("prefix", "")
    if age is None or not isinstance(prefix, str):
        raise NotConfigured("older_than must be given, because the tenant has no rule with an age")
    return replace(run, older_than=age, prefix=prefix)


def _age(event: Event) -> timedelta | None:
    """Returns the age in a rule or in the beginning of a run. The body may be forged, and then the result is None."""
    age: Any = event.body.get(OLDER_THAN)
    is_age = type(age) in (int, float) and 0 < age <= _LONGEST.total_seconds() and event.created_at >= _EARLIEST
    return timedelta(seconds=age) if is_age else None


async def apply(run: Run) -> AsyncIterator[Expiry]:
    """Erases the threads, and yields each that was old enough."""
    if not run.older_than:
        run = await _ruled(run)
    before = await run.db.call(queries.clock) - run.older_than
    for unfinished in () if run.dry_run else await _unfinished(run):
        await _record_end(run, unfinished, "interrupted", await _found_again(run, unfinished))
    begun = None if run.dry_run else await _record_beginning(run, before)
    tally = Tally()
    async for found in old(run, before):
        if (expiry := await _expire(run, before, found)) is not None:
            tally.add(expiry)
            yield expiry
    if begun is not None:
        await _record_end(run, begun, "ended", tally)


def _cut_off(begun: Event) -> datetime:
    """Returns the time before which the last message had to be. The event is later by the age, or by more than that,
    because the time of an event is never before that of the last one.
    """
    latest = begun.created_at - timedelta(seconds=begun.body[OLDER_THAN])
    try:
        return min(latest, datetime.fromisoformat(begun.body["before"]))
    except (KeyError, TypeError, ValueError):
        return latest


# ---- the events of a run
# A run writes one event before it erases anything, and one at its end. If it is stopped, the second is missing, and the
# next run writes it: it finds what was erased by the events of the erasures, which have the name of the run.


async def _record_beginning(run: Run, before: datetime) -> Event:
    body = erasure.body(
        run=str(run.run_id), state="begun", older_than_seconds=run.older_than.total_seconds(),
        before=time_text(before), prefix=run.prefix or None, of_subject=None if run.subject is None else True,
        reason=run.reason, legal_basis=run.legal_basis, authority=run.authority,
    )  # fmt: skip
    return await erasures.record_in_log(run.db, run.tenant, "policy", body, run.actor)


async def _record_end(run: Run, begun: Event, state: str, tally: Tally) -> None:
    body = erasure.body(
        run=begun.body["run"], state=state, begun=begun.pos, before=time_text(_cut_off(begun)), **tally.body()
    )  # fmt: skip
    await erasures.record_in_log(run.db, run.tenant, "policy", body, run.actor)


async def _unfinished(run: Run) -> list[Event]:
    """Returns the beginnings of earlier runs that have no end, the oldest first."""
    found: list[Event] = []
    with suppress(ThreadNotFound):
        log = ThreadKey(None, run.tenant, arguments.LOG)
        async for event in pages.events(run.db, log, 0, ["policy"], newest_first=True):
            found.append(event)
            if len(found) == _PAGE:
                break
    ended = {str(event.body.get("run")) for event in found if event.body.get("state") != "begun"}
    return [e for e in reversed(found) if _is_beginning(e) and e.body["run"] not in ended]


def _is_beginning(event: Event) -> bool:
    """Returns whether an event is the beginning of a run."""
    return event.body.get("state") == "begun" and type(event.body.get("run")) is str and _age(event) is not None


async def _found_again(run: Run, begun: Event) -> Tally:
    """Returns what an interrupted run erased, by the events of the erasures."""
    tally = Tally()
    wanted = EventFilter(["redaction"], since=begun.created_at)
    async for event in pages.tenant_events(run.db, run.tenant, wanted, newest_first=False):
        uid = erasure.stub_uid(event.thread_id)
        if uid is not None and event.body.get("run") == begun.body["run"]:
            # A body that says this otherwise is a finding of the walk over the thread.
            messages, records = (
                sum(end - start + 1 for start, end in erasure.said_ranges(event, part)) for part in ("seqs", "records")
            )
            tally.add(Expiry(event.thread_id, uid, None, None, messages, records, event.pos))
    return tally


class Tally:
    """The threads that a run erased, and those that it kept, by the reason."""

    def __init__(self) -> None:
        self._uids: dict[str, list[UUID]] = {"erased": []}
        self._messages = self._records = 0

    def add(self, expiry: Expiry) -> None:
        self._uids.setdefault(expiry.kept or "erased", []).append(expiry.thread_uid)
        self._messages += expiry.messages
        self._records += expiry.records

    def body(self) -> dict[str, Payload]:
        erased, *kept = (
            (name, {"threads": len(uids), "sha256": digest(uids)}
             | ({"thread_uids": [str(uid) for uid in sorted(uids)]} if len(uids) <= MOST_NAMED else {}))
            for name, uids in self._uids.items()
        )  # fmt: skip
        return {"erased": erased[1] | {"messages": self._messages, "records": self._records}, "kept": dict(kept)}


def digest(uids: Iterable[UUID]) -> str:
    """Returns the SHA-256 of keys of threads, in hexadecimal: one line for each key, in order."""
    return sha256("".join(f"{uid}\n" for uid in sorted(uids)).encode()).hexdigest()


async def findings(db: AsyncConnections, tenant: str) -> list[Finding]:
    """Compares the log of a tenant with the erasures of the runs that it names.

    The erasures of a run that has ended must be those that the log says, and none may be of a thread that was younger
    than the run allowed: the walk over each thread compares its last message with the time in its erasure.
    """
    # Runs go on meanwhile. The log is read after this time, and nothing that was erased later is compared.
    now = await db.call(queries.clock)
    found: list[Finding] = []
    begun: dict[str, Event] = {}
    ended: dict[str, Event] = {}
    async for event in pages.events(db, ThreadKey(None, tenant, arguments.LOG), 0, ["policy"], newest_first=False):
        (begun if _is_beginning(event) else ended)[str(event.body.get("run"))] = event
    # Another run may have taken a run that goes on for an interrupted one.
    ended = {run: end for run, end in ended.items() if end.body.get("state") == "ended" and end.created_at <= now}
    erased: dict[str, list[UUID]] = {run: [] for run in ended}
    if not begun:
        return found
    # Stubs that were erased before may come from another database, whose log is not here.
    wanted = EventFilter(["redaction"], since=min(event.created_at for event in begun.values()), until=now)
    async for event in pages.tenant_events(db, tenant, wanted, newest_first=False):
        run, uid = event.body.get("run"), erasure.stub_uid(event.thread_id)
        if run is None or uid is None:
            continue
        erased.setdefault(str(run), []).append(uid)
        at = begun.get(str(run))
        if at is None or str(event.body.get("before")) > time_text(_cut_off(at)):
            what = "is not in the log" if at is None else "has another age than the log says"
            found.append(Finding(None if at is None else at.pos, f"the run that erased thread {uid} {what}"))
    for run, end in ended.items():
        said = end.body.get("erased")
        if not isinstance(said, dict) or said.get("sha256") != digest(erased[run]):
            found.append(Finding(end.pos, f"{len(erased[run])} threads name this run, but not those that it erased"))
    return found


# ---- one thread


async def old(run: Run, before: datetime) -> AsyncIterator[Expiring]:
    """Yields the threads that are old enough, in the order of their names."""
    for low, end in ranges(run.prefix):
        after = ""
        while True:
            page = await run.db.call(queries.expiring, run.tenant, before, run.subject, low, after, end, _PAGE)
            for found in page:
                if found.is_old:
                    yield found
            if not page or not page[-1].ends_page:
                break
            after = page[-1].thread_id


async def _expire(run: Run, before: datetime, found: Expiring) -> Expiry | None:
    """Erases a thread unless it must be kept. Returns None if another call has erased or removed it meanwhile."""
    key = ThreadKey(found.thread_uid, run.tenant, found.thread_id)
    expiry = Expiry(found.thread_id, found.thread_uid, found.last_message_at, None)
    salt = os.urandom(16)
    body = erasure.body(run=str(run.run_id), reason=run.reason, legal_basis=run.legal_basis, authority=run.authority)
    try:
        row = await run.db.with_more_time(found.last_pos * erasures.SECONDS_A_MESSAGE).call(
            queries.erase, key, run.actor, salt, body, False, run.dry_run, False, before, key=salt.hex()
        )
    except ThreadNotFound:
        return None
    except ThreadDamaged:
        return replace(expiry, kept="damaged")
    if row.refusal is not None:
        return replace(expiry, kept=cast("KeptBy", row.refusal))
    if row.seqs is None:
        return None
    done = erasure.redaction(found.thread_id, row)
    return replace(expiry, messages=len(done.seqs), records=len(done.records), pos=done.pos)
