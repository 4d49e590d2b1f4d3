"""The commands that append to threads, compact them, and change, end or copy their views."""

from __future__ import annotations

import subprocess
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from compaction_store.audit.safe_text import named
from compaction_store.cli import choices, options, values
from compaction_store.cli.bundles import REFUSED, argument, exit_code, misuse, option
from compaction_store.cli.options import Number, ReadOptions, Reserve, Target, Thread, Trigger, Window, WriteOptions
from compaction_store.cli.output import Column, Output, ProgressBar, figures, note, number
from compaction_store.errors import BatchTooLarge, CompactionStoreError, InvalidMessage, NoProgress, raised_at
from compaction_store.jsonable import time_text

if TYPE_CHECKING:
    from compaction_store import Appended, CompactionPlan, CompactionRun
    from compaction_store.models import Attempt, Compaction, Lease
    from compaction_store.models import Thread as ThreadValue

_NOTHING = "the input must have at least one message; nothing was appended"


def append(
    thread: Thread,
    file: Path | None = argument("[FILE]", default=None),
    key: str | None = option("--key KEY", default=None),
    expected_seq: int | None = option("--expected-seq SEQ", default=None, min=0),
    expected_head: str | None = option("--expected-head HEX", default=None),
    meta: str | None = option("--meta JSON", default=None),
    not_durable: bool = option("--not-durable", default=False),
    each: bool = option("--each", default=False),
    raw: bool = option("--raw", default=False),
    subject: options.Subject = None,
    actor: options.Actor = None,
    *,
    call: ReadOptions,
) -> None:
    if each and any(given is not None for given in (key, expected_seq, expected_head)):
        raise misuse("must not be given with --key, --expected-seq or --expected-head", "--each")
    if file is None and sys.stdin.isatty():
        note("reading messages from the terminal; end with Ctrl-D")
    out = call.output()
    extra = options.json_object(meta, "--meta")
    head = options.head(expected_head, "--expected-head")
    given: dict[str, Any] = {"actor": actor, "subject": subject, "meta": extra, "durable": not not_durable, "raw": raw}
    with _open(file) as stream, call.store() as store:
        if each:
            for message in _lines(stream):
                _show_appended(out, store.append(thread, message, **given))
            return
        messages = _messages(stream)
        if not messages:
            raise InvalidMessage(_NOTHING)
        written = store.append(thread, messages, key=key, expected_seq=expected_seq, expected_head=head, **given)
        _show_appended(out, written)


def _open(file: Path | None) -> IO[bytes]:
    if file is None or str(file) == "-":
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as error:
        raise misuse(f"cannot read {file}: {error.strerror}", "FILE") from None


def _lines(lines: Iterable[bytes]) -> Iterator[Any]:
    return (_parsed(line, number) for number, line in enumerate(lines, 1) if line.strip())


def _messages(stream: IO[bytes]) -> list[Any]:
    """Reads one JSON text, or else JSON lines. Errors name the line and quote nothing."""
    from compaction_store.messages import encoding

    # Twice the limit of one append, because JSON may be written with spaces and escapes.
    most_bytes = 2 * encoding.MAX_BATCH_BYTES
    text = stream.read(most_bytes + 1)
    if len(text) > most_bytes:
        raise BatchTooLarge(f"the input must have at most {most_bytes:,} bytes: use import or --each")
    try:
        whole = _json(text)
    except ValueError:
        return list(_lines(text.splitlines()))
    return whole if isinstance(whole, list) else [whole]


def _parsed(line: bytes, number: int) -> Any:
    from compaction_store.importers.line_files import Unreadable

    try:
        return _json(line)
    except Unreadable as error:
        why = str(error).removeprefix("it is not JSON: ")
    raise InvalidMessage(f"line {number:,} must be JSON: {why}")


def _json(text: bytes) -> Any:
    from compaction_store.importers.line_files import parsed

    return parsed(text.removeprefix(BOM_UTF8))


def _show_appended(out: Output, written: Appended) -> None:
    if out.as_json:
        for message in written:
            out.json({
                "seq": message.seq, "pos": message.pos, "role": message.role, "tokens": message.tokens,
                "created_at": message.created_at, "head": written.head, "durable": written.durable,
            })  # fmt: skip
    else:
        first, last = written[0].seq, written[-1].seq
        tokens = sum(message.tokens for message in written)
        durable = ", not yet durable" * (not written.durable)
        out.text(f"appended seq{'s' * (first < last)} {values.span(first, last)}: {tokens:,} tokens{durable}")


# If a signal ended the command, the exit code is this plus the number of the signal, as in a shell.
_SIGNALLED = 128


def turn(
    thread: Thread,
    command: Annotated[list[str], argument("COMMAND...", "The command and its arguments.")],
    wait: float = option("--wait SECONDS", default=60.0, min=0),
    lease: float = option("--lease SECONDS", default=30.0, min=1),
    actor: str | None = option("--actor NAME", default=None, show_default="user@host"),
    *,
    db: options.TenantOptions,
) -> None:
    with db.store() as store, store.turn(thread, wait=wait, lease=lease, actor=actor):
        try:
            code = subprocess.run(command, check=False).returncode  # noqa: S603 — it is what the user asked for
        except OSError as error:
            raise misuse(f"cannot run the command: {error.strerror}", "COMMAND") from None
    raise typer.Exit(code if code >= 0 else _SIGNALLED - code)


#: The options of the same names, with their defaults.
STRATEGY: list[str] = option(
    "--strategy NAME[:OPTION=VALUE,...]",
    f"{', '.join(choices.STRATEGIES)}, or your own package.module.name. Repeat it to run several in order.",
    ["sliding-window"],
    autocompletion=lambda incomplete: [name for name in choices.STRATEGIES if name.startswith(incomplete)],
    show_default="sliding-window",
)
SUMMARIZER: list[str] = option(
    "--summarizer NAME[:OPTION=VALUE,...]",
    default=["state"],
    autocompletion=lambda incomplete: [name for name in choices.SUMMARIZERS if name.startswith(incomplete)],
    show_default="state",
)
Reason = Annotated[str | None, option("--reason TEXT", "The reason, stored in the record.")]
Wait = Annotated[float, option("--wait SECONDS", min=0, max=86_400)]
_COLUMNS: list[str | Column] = [
    "outcome", "kind", Column("seqs", right=True), *figures("before", "after"), Column("callback", fold=True),
    Column("why", fold=True, optional=True),
]  # fmt: skip


def compact(
    threads: list[str] | None = argument("[THREADS]...", default=None),
    due: bool = option("--due", default=False),
    strategy: list[str] = STRATEGY,
    summarizer: list[str] = SUMMARIZER,
    window: Window = None,
    reserve: Reserve = 0,
    trigger: Trigger = "0.8",
    target: Target = "0.5",
    wait: Wait = 600.0,
    force: bool = option("--force", default=False),
    dry_run: bool = option("--dry-run", default=False),
    *,
    call: WriteOptions,
) -> None:
    if bool(threads) == due:
        raise misuse("give either thread names or --due", "THREADS")
    budget = options.budget(window, reserve, trigger, target)
    if due and budget is None:
        raise misuse("needs --window", "--due")
    callback = choices.strategy(strategy, summarizer)
    out = call.output()
    failed = False
    with call.store() as store, ProgressBar("compact", "threads") as progress:
        # List all threads before compacting one: a compacted thread is no longer due, so the next page would skip one.
        wanted = threads or ([thread.thread_id for thread in store.due(budget)] if budget is not None else [])
        if not wanted and not out.as_json:
            leases = store.leases(budget) if budget is not None else ()
            out.text(f"no thread is due in tenant {call.tenant!r}{leased(leases)}")
        for thread in progress.over(wanted):
            try:
                with options.naming(call.tenant):
                    if dry_run:
                        plan = store.plan(thread, callback, budget=budget, force=force)
                        failed = _show_plan(out, thread, plan) or failed
                        continue
                    run = store.compact(thread, callback, budget=budget, force=force, wait=wait, **call.given)
                    failed = show_run(out, thread, run) or failed
            except CompactionStoreError as error:
                # If one of several threads is refused, continue with the others.
                if exit_code(error) != REFUSED or (threads is not None and len(threads) == 1):
                    raise
                note(f"compaction-store: {error}")
                failed = True
    if failed:
        raise typer.Exit(REFUSED)


def leased(leases: Sequence[Lease]) -> str:
    """Says which runs keep threads from being due, at the end of a sentence; empty if there are none."""
    if not leases:
        return ""
    whose = ", ".join(sorted({"no actor given" if lease.actor is None else named(lease.actor) for lease in leases}))
    since, last = time_text(min(lease.since for lease in leases)), time_text(max(lease.until for lease in leases))
    threads = values.count(len(leases), "thread")
    return f"; {threads} leased by {whose}, the longest since {since}, until {last} unless renewed"


def _show_plan(out: Output, thread: str, plan: CompactionPlan) -> bool:
    attempts = [_attempt(attempt) for attempt in plan.attempts]
    before, after = plan.before.tokens, plan.after.tokens
    applied = any(attempt.outcome == "applied" for attempt in plan.attempts)
    if out.as_json:
        out.json({
            "thread_id": thread, "dry_run": True, "reason": plan.reason, "pos": plan.before.pos,
            "tokens_before": before, "tokens_after": after, "attempts": attempts,
            "errors": [type(error).__name__ for error in plan.errors],
        })  # fmt: skip
    else:
        head = f"{named(thread)}: {'would be compacted' if applied else plan.reason}"
        out.text(f"{head}: {before:,} tokens now, {after:,} then (dry run: nothing is written)", "bold")
        reasons = (attempt.error and values.error(attempt.error) for attempt in plan.attempts)
        _show_attempts(out, [a | {"why": text} for a, text in zip(attempts, reasons, strict=True)])
        _show_errors(plan.errors)
    return _is_failure(plan.attempts, plan.errors, applied=applied)


def show_run(out: Output, thread: str, run: CompactionRun) -> bool:
    if out.as_json:
        out.json({
            "thread_id": thread, "dry_run": False, "reason": run.reason, "pos": run.view.pos, "head": run.view.head,
            "tokens": run.view.tokens, "records": [values.compaction(record) for record in run.records],
            "errors": [type(error).__name__ for error in run.errors],
        })  # fmt: skip
    else:
        out.text(f"{named(thread)}: {run.reason}: {run.view.tokens:,} tokens now", "bold")
        _show_attempts(out, [values.compaction(r) | {"why": r.error and values.error(r.error)} for r in run.records])
        _show_errors(run.errors)
    return _is_failure(run.records, run.errors, applied=run.applied)


def _is_failure(tried: Sequence[object], errors: Iterable[Exception], *, applied: bool) -> bool:
    """Returns whether attempts were made and none was applied. `NoProgress` does not count as an attempt."""
    return not applied and bool(tried or any(not isinstance(error, NoProgress) for error in errors))


def _attempt(attempt: Attempt) -> dict[str, Any]:
    error = attempt.error or {}
    return {
        "outcome": attempt.outcome, "kind": attempt.kind, "start_seq": attempt.start_seq, "end_seq": attempt.end_seq,
        "tokens_before": attempt.tokens_before, "tokens_after": attempt.tokens_after, "callback": attempt.callback,
        "error": error.get("type"), "error_at": error.get("at"), "text": error.get("text"),
    }  # fmt: skip


def _show_attempts(out: Output, attempts: list[dict[str, Any]]) -> None:
    rows = [
        (
            a["outcome"], a["kind"], values.span(a["start_seq"], a["end_seq"]), number(a["tokens_before"]),
            number(a["tokens_after"]), values.callback(a["callback"]), a["why"] or "",
        )
        for a in attempts
    ]  # fmt: skip
    out.grid(_COLUMNS, rows)


def _show_errors(errors: Iterable[Exception]) -> None:
    for error in errors:
        # An error from outside this package may quote a message, so print only its type.
        place = raised_at(error)
        what = error if isinstance(error, CompactionStoreError) else type(error).__name__
        note(f"  {what}" if place is None else f"  {what}, at {place}")


def revoke(thread: Thread, record: Number, reason: Reason = None, *, call: WriteOptions) -> None:
    with call.store() as store:
        written = store.revoke(thread, record, reason=reason, **call.given)
        now = store.thread(thread, hidden=True)
    text = f"compaction {record} is revoked by record {written.number}: {values.view_tokens(now)} tokens now"
    call.output().said(values.compaction(written) | {"view_tokens": now.view_tokens}, f"{named(thread)}: {text}")


def adopt(
    thread: Thread,
    record: Annotated[int, argument("NUMBER", "The observed record's number.", min=1)],
    reason: str | None = option("--reason TEXT", default=None),
    *,
    call: WriteOptions,
) -> None:
    with call.store() as store:
        written = store.adopt(thread, store.compaction(thread, record), reason=reason, **call.given)
        now = store.thread(thread)
    records = [values.compaction(each) for each in written]
    numbers = ", ".join(str(each.number) for each in written)
    done = f"adopted by record {numbers}" if written else "adopted already"
    text = f"{named(thread)}: compaction {record} is {done}: {values.view_tokens(now)} tokens now"
    said = {"thread_id": thread, "adopted": record, "records": records, "view_tokens": now.view_tokens}
    call.output().said(said, text)


def rewind(
    thread: Thread,
    seq: Annotated[int, argument("SEQ", "The last seq that the view shows.", min=0)],
    reason: Reason = None,
    *,
    call: WriteOptions,
) -> None:
    with call.store() as store:
        written = store.rewind(thread, seq, reason=reason, **call.given)
        now = store.thread(thread, hidden=True)
    _show_hidden(call.output(), thread, written, now, nothing=f"the view ends at seq {seq} or before already")


def clear(
    thread: Thread, hide: bool = option("--hide", default=False), reason: Reason = None, *, call: WriteOptions
) -> None:
    with call.store() as store:
        written = store.clear(thread, hide=hide, reason=reason, **call.given)
        now = store.thread(thread, hidden=True)
    _show_hidden(call.output(), thread, written, now, nothing="the view is empty already")


def _show_hidden(out: Output, thread: str, written: tuple[Compaction, ...], now: ThreadValue, *, nothing: str) -> None:
    text = f"{nothing}: nothing is written"
    if written:
        *revoked, last = written
        also = "".join(f", revokes compaction {record.revokes}" for record in revoked)
        hidden = values.span(last.start_seq, last.end_seq)
        text = f"record {last.number} hides seqs {hidden}{also}: {values.view_tokens(now)} tokens now"
    records = [values.compaction(record) for record in written]
    out.said({"thread_id": thread, "view_tokens": now.view_tokens, "records": records}, f"{named(thread)}: {text}")


def repair(
    thread: Thread, record: Number, summarizer: list[str] = SUMMARIZER, reason: Reason = None, *, call: WriteOptions
) -> None:
    summarize = choices.summarize(summarizer)
    if summarize is None:
        raise misuse("repair needs a summarizer other than none", "--summarizer")
    out = call.output()
    with call.store() as store:
        failed = show_run(out, thread, store.repair(thread, record, summarize, reason=reason, **call.given))
    if failed:
        raise typer.Exit(REFUSED)


def fork(
    thread: Thread,
    new: Annotated[str, argument("NEW", "The name of the new thread.")],
    at: int | None = option("--at POS", default=None, min=1),
    key: str | None = option("--key KEY", default=None),
    reason: str | None = option("--reason TEXT", default=None),
    *,
    call: WriteOptions,
) -> None:
    with call.store() as store:
        done = store.fork(thread, new, at=at, key=key, reason=reason, **call.given)
    text = f"already made from {named(thread)}, up to pos {done.at:,}"
    if done.added:
        text = f"a copy of {named(thread)} up to pos {done.at:,}, with {values.count(done.last_seq, 'message')}"
    call.output().said(done.as_dict(), f"{named(new)}: {text}")
