"""The commands `rewind`, `clear`, `repair` and `fork`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from compaction_store.audit.safe_text import named
from compaction_store.cli import choices, exits, values
from compaction_store.cli.bundles import argument, option
from compaction_store.cli.compact import SUMMARIZER, Reason, show_run
from compaction_store.cli.exits import misuse
from compaction_store.cli.options import Number, Thread, WriteOptions
from compaction_store.cli.output import Output

if TYPE_CHECKING:
    from compaction_store.models import Compaction
    from compaction_store.models import Thread as ThreadValue


def rewind(
    thread: Thread,
    seq: Annotated[int, argument("SEQ", "The last seq that the view shows.", min=0)],
    reason: Reason = None,
    *,
    call: WriteOptions,
) -> None:
    out = call.output()
    with call.store() as store:
        written = store.rewind(thread, seq, reason=reason, **call.given)
        now = store.thread(thread, hidden=True)
    _show(out, thread, written, now, nothing=f"the view ends at seq {seq} or before already")


def clear(
    thread: Thread, hide: bool = option("--hide", default=False), reason: Reason = None, *, call: WriteOptions
) -> None:
    out = call.output()
    with call.store() as store:
        written = store.clear(thread, hide=hide, reason=reason, **call.given)
        now = store.thread(thread, hidden=True)
    _show(out, thread, written, now, nothing="the view is empty already")


def _show(out: Output, thread: str, written: tuple[Compaction, ...], now: ThreadValue, *, nothing: str) -> None:
    if out.as_json:
        records = [values.compaction(record) for record in written]
        out.json({"thread_id": thread, "view_tokens": now.view_tokens, "records": records})
    elif not written:
        out.text(f"{named(thread)}: {nothing}: nothing is written")
    else:
        *revoked, last = written
        also = "".join(f", revokes compaction {record.revokes}" for record in revoked)
        hidden = values.span(last.start_seq, last.end_seq)
        out.text(
            f"{named(thread)}: record {last.number} hides seqs {hidden}{also}: {values.view_tokens(now)} tokens now"
        )


def repair(
    thread: Thread, record: Number, summarizer: list[str] = SUMMARIZER, reason: Reason = None, *, call: WriteOptions
) -> None:
    summarize = choices.summarize(summarizer)
    if summarize is None:
        raise misuse("repair needs a summarizer other than none", "--summarizer")
    out = call.output()
    with call.store() as store:
        run = store.repair(thread, record, summarize, reason=reason, **call.given)
        failed = show_run(out, thread, run)
    if failed:
        raise typer.Exit(exits.REFUSED)


def fork(
    thread: Thread,
    new: Annotated[str, argument("NEW", "The name of the new thread.")],
    at: int | None = option("--at POS", default=None, min=1),
    key: str | None = option("--key KEY", default=None),
    reason: str | None = option("--reason TEXT", default=None),
    *,
    call: WriteOptions,
) -> None:
    out = call.output()
    with call.store() as store:
        done = store.fork(thread, new, at=at, key=key, reason=reason, **call.given)
    if out.as_json:
        out.json(done.as_dict())
    elif done.added:
        messages = values.count(done.last_seq, "message")
        out.text(f"{named(new)}: a copy of {named(thread)} up to pos {done.at:,}, with {messages}")
    else:
        out.text(f"{named(new)}: already made from {named(thread)}, up to pos {done.at:,}")
