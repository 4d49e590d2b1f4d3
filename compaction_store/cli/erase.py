"""The commands that erase messages and threads, and that set and end holds and retentions, which forbid erasing."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from compaction_store.audit.safe_text import named
from compaction_store.audit.words import described
from compaction_store.cli import exits, options, values
from compaction_store.cli.bundles import argument, option
from compaction_store.cli.exits import misuse
from compaction_store.cli.options import DeedOptions, PrintOptions, Reason, Subject, TenantOptions, Thread
from compaction_store.cli.output import Output
from compaction_store.cli.progress import ProgressBar
from compaction_store.errors import MessageNotFound

if TYPE_CHECKING:
    from compaction_store import Event, Redaction
    from compaction_store.models import Expiry, RedactedFork

Yes = Annotated[bool, option("--yes", "Do not ask for confirmation.")]
DryRun = Annotated[bool, option("--dry-run", "Show what would be erased, but erase nothing.")]
LegalBasis = Annotated[str | None, option("--legal-basis TEXT", "The legal basis, stored with the erasure.")]
_Forks = Annotated[bool, option("--forks/--no-forks", "Also erase the copies in forks.", show_default=True)]
_Override = Annotated[
    str | None,
    option("--override TEXT", "Erase despite a hold or a retention. TEXT is the reason, stored with the erasure."),
]


_WORDS = {
    "written": "got a message meanwhile", "held": "a hold", "retained": "a retention", "damaged": "damaged: run verify",
}  # fmt: skip


def _reason(given: str, *, dry_run: bool) -> str:
    if not given and not dry_run:
        raise misuse("is required: it is stored with the erasure", "--reason")
    return given or "dry run"


def redact(
    thread: Thread,
    seqs: Annotated[list[str], argument("SEQS...", "Seqs of messages, such as 7 or 12-20.")],
    reason: Reason = "",
    legal_basis: LegalBasis = None,
    override: _Override = None,
    forks: _Forks = True,
    dry_run: DryRun = False,
    yes: Yes = False,
    *,
    deed: DeedOptions,
    db: TenantOptions,
    printed: PrintOptions,
) -> None:
    wanted = options.seqs(seqs)
    why = _reason(reason, dry_run=dry_run)
    out = printed.output()
    with db.store() as store:
        last_seq = store.thread(thread, hidden=True).last_seq
        if (beyond := max(span[-1] for span in wanted)) > last_seq:
            raise MessageNotFound(f"no seq {beyond} (thread {thread!r})")
        listed = list(chain.from_iterable(wanted))
        if dry_run or not yes:
            would = store.custody.redact(
                thread, listed, reason=why, **deed.given, legal_basis=legal_basis,
                override=override, dry_run=dry_run, confirmed=False, forks=forks,
            )  # fmt: skip
            if dry_run:
                _show_dry_run(out, thread, would, forks=forks)
                return
            copies = _copies(would) if forks else ""
            options.confirm(f"Erase {_all_of(would)} of thread {thread!r}{copies} permanently?", yes=yes)
        done = store.custody.redact(
            thread, listed, reason=why, **deed.given, legal_basis=legal_basis, override=override,
            forks=forks,
        )  # fmt: skip
    _show_redaction(out, thread, done)


def erase(
    thread: Annotated[str | None, argument("[THREAD]", "The thread's name, or give --subject.")] = None,
    subject: Subject = None,
    reason: Reason = "",
    legal_basis: LegalBasis = None,
    override: _Override = None,
    forks: _Forks = True,
    dry_run: DryRun = False,
    yes: Yes = False,
    shred: Annotated[
        bool,
        option("--shred", "With --subject, also destroy the key in $COMPACTION_STORE_KEYS that sealed the content."),
    ] = False,
    *,
    deed: DeedOptions,
    db: TenantOptions,
    printed: PrintOptions,
) -> None:
    why = _reason(reason, dry_run=dry_run)
    out = printed.output()
    if (thread is None) == (subject is None) or not (forks or subject is None):
        raise misuse("must be given, or --subject without --no-forks", "THREAD")
    if shred and (subject is None or dry_run):
        raise misuse("must be given with --subject and without --dry-run", "--shred")
    with db.store() as store:
        if subject is not None:
            if not dry_run:
                options.confirm(f"Erase all threads of subject {named(subject)} permanently?", yes=yes)
            if shred:
                event = store.custody.shred(
                    subject, reason=why, **deed.given, legal_basis=legal_basis, override=override
                )
                _show_event(out, event, f"has the event that the key of {named(subject)} is destroyed")
                return
            done_all = store.custody.erase_subject(
                subject, reason=why, **deed.given, legal_basis=legal_basis, override=override, dry_run=dry_run
            )
            show_expiries(out, done_all, dry_run=dry_run)
            return
        assert thread is not None  # noqa: S101 — checked above
        if dry_run or not yes:
            would = store.custody.erase(
                thread, reason=why, **deed.given, legal_basis=legal_basis, override=override,
                dry_run=dry_run, confirmed=False, forks=forks,
            )  # fmt: skip
            if dry_run:
                _show_dry_run(out, thread, would, forks=forks)
                return
            copies = _copies(would) if forks else ""
            options.confirm(f"Erase thread {thread!r} with {_all_of(would)}{copies} permanently?", yes=yes)
        done = store.custody.erase(
            thread, reason=why, **deed.given, legal_basis=legal_basis, override=override,
            forks=forks,
        )  # fmt: skip
    _show_redaction(out, thread, done)


def _all_of(done: Redaction | RedactedFork) -> str:
    records = f" and {values.count(len(done.records), 'record')}" if done.records else ""
    return f"{values.count(len(done.seqs), 'message')}{records}"


def _copies(would: Redaction) -> str:
    return f" and the copies in {values.count(len(would.forks), 'fork')}" if would.forks else ""


def _show_dry_run(out: Output, thread: str, would: Redaction, *, forks: bool) -> None:
    from compaction_store.integrity import erasure

    if out.as_json:
        erased = {"seqs": would.seqs, "records": would.records, "forks": [fork.as_dict() for fork in would.forks]}
        out.json({"thread_id": thread, "dry_run": True} | erased)
        return
    out.text(f"{named(thread)}: would erase {_all_of(would)} (dry run: nothing is erased)")
    for name, numbers in (("seqs", would.seqs), ("records", would.records)):
        if numbers:
            out.text(f"  {name} {', '.join(values.span(*pair) for pair in erasure.ranges(numbers))}")
    for fork in would.forks:
        alone = "" if forks else ", left alone by --no-forks"
        out.text(f"  {_all_of(fork)} of its fork {named(fork.thread_id)}{alone}")


def _show_redaction(out: Output, thread: str, done: Redaction) -> None:
    if out.as_json:
        erased = {"seqs": done.seqs, "records": done.records, "forks": [fork.as_dict() for fork in done.forks]}
        out.json({"thread_id": done.thread_id, "pos": done.pos} | erased)
        return
    if done.pos is None:
        out.text(f"{named(thread)}: already erased")
    else:
        stub = "" if done.thread_id == thread else f"; the stub is {named(done.thread_id)}"
        out.text(f"{named(thread)}: erased {_all_of(done)}, recorded at pos {done.pos:,}{stub}")
    for fork in done.forks:
        if fork.pos is None:
            out.text(f"{named(fork.thread_id)}: a fork that still has {_all_of(fork)}")
        else:
            out.text(f"{named(fork.thread_id)}: a fork; erased {_all_of(fork)}, recorded at pos {fork.pos:,}")


def show_expiries(out: Output, done: Iterable[Expiry], *, dry_run: bool) -> None:
    """Prints each thread that was erased or kept, and how many there were. The exit code is 1 for a damaged thread."""
    counts: dict[str | None, int] = {}
    with ProgressBar("erase", "threads") as progress:
        for expiry in progress.over(done):
            counts[expiry.kept] = counts.get(expiry.kept, 0) + 1
            out.json(expiry.as_dict() | {"dry_run": dry_run}) if out.as_json else out.text(_line(expiry, dry_run))
    if not out.as_json:
        kept = "".join(f", {count:,} kept: {_WORDS[why]}" for why, count in counts.items() if why is not None)
        erased = values.count(counts.get(None, 0), "thread")
        out.text(f"{'would erase' if dry_run else 'erased'} {erased}{kept}", "bold")
    if counts.get("damaged"):
        raise typer.Exit(exits.REFUSED)


def _line(expiry: Expiry, dry_run: bool) -> str:
    last = expiry.last_message_at
    at = "missing" if last is None else last.isoformat(" ", "minutes")
    if expiry.kept is not None:
        return f"{named(expiry.thread_id)}: kept, {_WORDS[expiry.kept]} (last message {at})"
    what = f"{values.count(expiry.messages, 'message')} and {values.count(expiry.records, 'record')}"
    return f"{named(expiry.thread_id)}: {'would erase' if dry_run else 'erased'} {what} (last message {at})"


def hold(
    thread: Thread,
    reason: Reason,
    *,
    deed: DeedOptions,
    db: TenantOptions,
    printed: PrintOptions,
) -> None:
    with db.store() as store:
        done = store.custody.hold(thread, reason=reason, **deed.given)
    _show_event(printed.output(), done, "is on hold")


def release(
    thread: Thread,
    reason: Reason,
    *,
    deed: DeedOptions,
    db: TenantOptions,
    printed: PrintOptions,
) -> None:
    with db.store() as store:
        done = store.custody.release(thread, reason=reason, **deed.given)
    _show_event(printed.output(), done, "is released")


def retain(
    thread: Thread,
    until: Annotated[str, option("--until WHEN", "The end of the retention, such as 2031-01-01.")],
    reason: Reason,
    locked: bool = option("--locked", "Nobody can shorten or override the term. It can only be made longer.", False),
    *,
    deed: DeedOptions,
    db: TenantOptions,
    printed: PrintOptions,
) -> None:
    end = options.moment(until, "--until")
    if end is None:  # pragma: no cover — typer requires it
        raise misuse("is required", "--until")
    with db.store() as store:
        done = store.custody.retain(thread, end, reason=reason, locked=locked, **deed.given)
    # The event says more than the options: a term after a locked one is locked, and one may shorten another.
    _show_event(printed.output(), done, f"is retained {described(done)}")


def subject(
    thread: Thread,
    subject: Annotated[str | None, argument("[SUBJECT]", "The new subject, or give --remove.")] = None,
    remove: Annotated[bool, option("--remove", "Remove the subject.")] = False,
    reason: Reason = "",
    *,
    deed: DeedOptions,
    db: TenantOptions,
    printed: PrintOptions,
) -> None:
    if remove == bool(subject):
        raise misuse("must be given, or --remove, and not both", "SUBJECT")
    with db.store() as store:
        done = store.custody.set_subject(thread, subject or None, reason=reason or None, **deed.given)
    _show_event(printed.output(), done, "has no subject now" if remove else f"now belongs to {named(subject or '')}")


def _show_event(out: Output, done: Event, what: str) -> None:
    if out.as_json:
        out.json(values.event(done, text=True))
    else:
        out.text(f"{named(done.thread_id)} {what}, recorded at pos {done.pos:,}")
