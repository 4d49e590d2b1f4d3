"""Erases messages, threads and all threads of a subject, and records holds, retentions and verdicts."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from compaction_store.arguments import LOG, about
from compaction_store.errors import Held, OutcomeUnknown, ThreadDamaged, ThreadNotFound
from compaction_store.integrity import erasure
from compaction_store.models import Event, Expiry, Redaction, Thread
from compaction_store.models.vocabulary import LogEvent
from compaction_store.postgres import queries, typed_rows
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import ThreadKey
from compaction_store.postgres.queries.across_threads import Expiring

# Ten times the measured time for erasing one message.
SECONDS_A_MESSAGE = 0.001
_PAGE = 500
_RETAINED = "the thread is retained "


def check_reasons(reason: object, override: object = None, legal_basis: object = None) -> None:
    erasure.check_text(reason, "reason")
    erasure.check_text(override, "override", optional=True)
    erasure.check_text(legal_basis, "legal_basis", optional=True)


@dataclass(frozen=True, slots=True)
class Erasure:
    """How to erase. If `dry_run` is None, the erasure is unconfirmed: nothing but a refusal by a hold is recorded."""

    body: str
    actor: str | None
    overrides: bool = False
    dry_run: bool | None = False
    forks: bool = True


async def redact(db: AsyncConnections, thread: ThreadKey, ranges: Sequence[tuple[int, int]], how: Erasure) -> Redaction:
    salt = os.urandom(16)
    seconds = sum(end - start + 1 for start, end in ranges) * SECONDS_A_MESSAGE
    starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
    row = await db.with_more_time(seconds).call(
        queries.redact, thread, starts, ends, how.actor, salt, how.body, how.overrides, how.dry_run, how.forks,
        key=salt.hex(),
    )  # fmt: skip
    return erasure.redaction(thread.thread_id, row)


async def find(db: AsyncConnections, thread: ThreadKey) -> Thread:
    """Returns a thread that is to be erased. It is also found by the name of its stub, even before the erasure."""
    return typed_rows.thread(await db.call(queries.thread, thread._replace(uid=erasure.stub_uid(thread.thread_id))))


async def erase(db: AsyncConnections, thread: ThreadKey, how: Erasure, *, last_pos: int) -> Redaction:
    salt = os.urandom(16)
    assert thread.uid is not None  # noqa: S101 — the caller looked it up
    stub = erasure.stub_name(thread.uid)
    try:
        row = await db.with_more_time(last_pos * SECONDS_A_MESSAGE).call(
            queries.erase, thread, how.actor, salt, how.body, how.overrides, how.dry_run, how.forks, None,
            key=salt.hex(),
        )  # fmt: skip
    except OutcomeUnknown as error:
        # Suggest the stub's name: repeating the call with the old name could erase a new thread of that name.
        what = f"it is unknown whether the thread was erased: repeat the call safely with custody.erase({stub!r})"
        raise OutcomeUnknown(f"{what}{about(thread.thread_id)}", key=error.key, sqlstate=error.sqlstate) from None
    done = erasure.redaction(thread.thread_id, row)
    return replace(done, thread_id=stub) if how.dry_run is False else done


async def record(
    db: AsyncConnections,
    write: Any,
    thread: ThreadKey,
    kind: str,
    body: str,
    actor: str | None,
    *given: Any,
    salt: bytes | None = None,
) -> Event:
    """Writes an event with a query that takes `given` before the actor. A call with a known salt is a retry."""
    salt = salt or os.urandom(16)
    row = await db.call(write, thread, *given, actor, salt, body, key=salt.hex())
    # A retention says more than was asked for, if it shortens another one or is locked because that one was.
    return erasure.event({
        "thread_id": thread.thread_id, "pos": row.event_pos, "kind": kind, "critical": False, "actor": actor,
        "login": row.written_login, "created_at": row.written_at, "body": getattr(row, "written_body", body),
    })  # fmt: skip


async def record_in_log(
    db: AsyncConnections, tenant: str, kind: LogEvent, body: str, actor: str | None, *, salt: bytes | None = None
) -> Event:
    """Records an event in the log of a tenant, which the first event makes."""
    return await record(db, queries.record_in_log, ThreadKey(None, tenant, LOG), kind, body, actor, kind, salt=salt)


async def erase_subject(db: AsyncConnections, tenant: str, subject: str, how: Erasure) -> AsyncIterator[Expiry]:
    """Erases the threads of a subject, and those that get it meanwhile, each in a transaction of its own."""
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
    db: AsyncConnections, tenant: str, found: queries.OfSubject | Expiring, how: Erasure
) -> Expiry | None:
    """Erases a thread unless it must be kept. Returns None if another call has erased or removed it meanwhile."""
    key = ThreadKey(found.thread_uid, tenant, found.thread_id)
    result = Expiry(found.thread_id, found.thread_uid, found.last_message_at, None)
    try:
        done = await erase(db, key, how, last_pos=found.last_pos)
    except ThreadNotFound:
        return None
    except ThreadDamaged:
        return replace(result, kept="damaged")
    except Held as held:
        return replace(result, kept="retained" if str(held).startswith(_RETAINED) else "held")
    if done.pos is None and not how.dry_run:
        return None
    return replace(result, messages=len(done.seqs), records=len(done.records), pos=done.pos)
