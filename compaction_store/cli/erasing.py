"""Erasing what must go, and the holds and retentions that forbid it."""

from __future__ import annotations

from itertools import chain
from typing import Annotated

import typer

from compaction_store import Event, MessageNotFound, Redaction
from compaction_store.cli import options, values
from compaction_store.cli.options import Actor, AsJson, Reason, Tenant, Thread, Url
from compaction_store.cli.output import Output

_Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
_Override = Annotated[
    str | None,
    typer.Option(
        "--override", metavar="TEXT", help="Why it is done in spite of a hold or a retention.", show_default=False
    ),
]


def redact(
    thread: Thread,
    seqs: Annotated[list[str], typer.Argument(metavar="SEQS...", help="Such as 7 or 12-20.", show_default=False)],
    reason: Reason,
    legal_basis: Annotated[
        str | None, typer.Option("--legal-basis", metavar="TEXT", help="For the record.", show_default=False)
    ] = None,
    override: _Override = None,
    yes: _Yes = False,
    actor: Actor = None,
    url: Url = None,
    tenant: Tenant = "default",
    as_json: AsJson = None,
) -> None:
    """Erases messages, and every compaction record that may repeat what they said. The thread still verifies.

    This cannot be undone. What is erased where is in docs/erasure.md.
    """
    wanted = options.seqs(seqs)
    count = sum(map(len, wanted))
    with options.store(url, tenant) as store:
        last_seq = store.thread(thread).last_seq
        if (beyond := max(span[-1] for span in wanted)) > last_seq:
            raise MessageNotFound(f"no seq {beyond} (thread {thread!r})")
        options.asked_to_go_on(f"Erase {count:,} message{'s' * (count > 1)} of thread {thread!r} for good?", yes=yes)
        done = store.redact(
            thread, chain.from_iterable(wanted), reason=reason, actor=actor, legal_basis=legal_basis, override=override
        )
    _show_redaction(Output(as_json=as_json), thread, done)


def erase(
    thread: Thread,
    reason: Reason,
    override: _Override = None,
    yes: _Yes = False,
    actor: Actor = None,
    url: Url = None,
    tenant: Tenant = "default",
    as_json: AsJson = None,
) -> None:
    """Erases a whole thread: every message and record, its metadata and its name. A stub stays that still verifies.

    This cannot be undone.
    """
    with options.store(url, tenant) as store:
        found = store.thread(thread)
        options.asked_to_go_on(f"Erase thread {thread!r} with {found.last_seq:,} messages for good?", yes=yes)
        done = store.erase(thread, reason=reason, actor=actor, override=override)
    _show_redaction(Output(as_json=as_json), thread, done)


def _show_redaction(out: Output, thread: str, done: Redaction) -> None:
    if out.as_json:
        out.json({"thread_id": thread, "pos": done.pos, "seqs": done.seqs, "records": done.records})
    elif done.pos is None:
        out.text(f"{thread}: all of it was erased before")
    else:
        records = f" and {len(done.records):,} records" if done.records else ""
        out.text(f"{thread}: erased {len(done.seqs):,} messages{records}, on record at pos {done.pos:,}")


def hold(
    thread: Thread,
    reason: Reason,
    actor: Actor = None,
    url: Url = None,
    tenant: Tenant = "default",
    as_json: AsJson = None,
) -> None:
    """Forbids to erase from a thread until it is released."""
    with options.store(url, tenant) as store:
        done = store.hold(thread, reason=reason, actor=actor)
    _show_event(Output(as_json=as_json), done, "is on hold")


def release(
    thread: Thread,
    reason: Reason,
    actor: Actor = None,
    url: Url = None,
    tenant: Tenant = "default",
    as_json: AsJson = None,
) -> None:
    """Ends a hold."""
    with options.store(url, tenant) as store:
        done = store.release(thread, reason=reason, actor=actor)
    _show_event(Output(as_json=as_json), done, "is released")


def retain(
    thread: Thread,
    until: Annotated[str, typer.Option("--until", metavar="WHEN", help="Such as 2031-01-01.", show_default=False)],
    reason: Reason,
    actor: Actor = None,
    url: Url = None,
    tenant: Tenant = "default",
    as_json: AsJson = None,
) -> None:
    """Forbids to erase from a thread before a moment. Of several retentions the newest counts."""
    end = options.moment(until, "--until")
    if end is None:  # pragma: no cover — only where nothing is given
        raise typer.BadParameter("is needed", param_hint="'--until'")
    with options.store(url, tenant) as store:
        done = store.retain(thread, end, reason=reason, actor=actor)
    _show_event(Output(as_json=as_json), done, f"is retained until {end.isoformat(' ', 'minutes')}")


def _show_event(out: Output, done: Event, what: str) -> None:
    if out.as_json:
        out.json(values.event(done, text=True))
    else:
        out.text(f"{done.thread_id} {what}, on record at pos {done.pos:,}")
