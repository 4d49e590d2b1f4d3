"""The command `fork`."""

from __future__ import annotations

from typing import Annotated

from compaction_store.audit.safe_text import named
from compaction_store.cli import values
from compaction_store.cli.bundles import argument, option
from compaction_store.cli.options import Database, Deed, Printed, Thread


def fork(
    thread: Thread,
    new: Annotated[str, argument("NEW", "The name of the new thread.")],
    at: Annotated[int | None, option("--at POS", "The last pos to copy. [default: all]", min=1)] = None,
    key: Annotated[
        str | None, option("--key KEY", "Idempotency key: a retry with the same key returns the first result.")
    ] = None,
    reason: Annotated[str | None, option("--reason TEXT", "The reason to record. It is never deleted.")] = None,
    *,
    deed: Deed,
    db: Database,
    printed: Printed,
) -> None:
    """Copies a thread, or its beginning up to a pos, as a new thread.

    The two threads are then independent, except that erasing a message also erases its copies in forks. Each thread
    records the thread_uid of the other.
    """
    out = printed.output()
    with db.store() as store:
        done = store.fork(thread, new, at=at, key=key, reason=reason, **deed.given)
    if out.as_json:
        out.json(done.as_dict())
    elif done.added:
        messages = values.count(done.last_seq, "message")
        out.text(f"{named(new)}: a copy of {named(thread)} up to pos {done.at:,}, with {messages}")
    else:
        out.text(f"{named(new)}: already made from {named(thread)}, up to pos {done.at:,}")
