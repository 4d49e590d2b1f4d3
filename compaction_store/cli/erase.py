"""The commands that erase messages and threads, and that set and end holds and retentions, which forbid erasing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from compaction_store.arguments import written_age
from compaction_store.audit.safe_text import named
from compaction_store.audit.words import described
from compaction_store.cli import options, values
from compaction_store.cli.bundles import REFUSED, Bundle, argument, misuse, option
from compaction_store.cli.options import Reason, Subject, Thread, WriteOptions
from compaction_store.cli.output import Output, ProgressBar
from compaction_store.cli.verify import read_key
from compaction_store.errors import MessageNotFound

if TYPE_CHECKING:
    from compaction_store import Event, Redaction
    from compaction_store.models import Expiry, RedactedFork

Yes = Annotated[bool, option("--yes", "Do not ask for confirmation.")]
DryRun = Annotated[bool, option("--dry-run", "Show what would be erased, but erase nothing.")]
LegalBasis = Annotated[str | None, option("--legal-basis TEXT", "The legal basis, stored with the erasure.")]


class ErasureOptions(Bundle):
    """Why something is erased, what else is, and whether it is only shown."""

    reason: Reason = ""
    legal_basis: LegalBasis = None
    override: Annotated[str | None, option("--override TEXT")] = None
    forks: Annotated[bool, option("--forks/--no-forks", "Also erase the copies in forks.", show_default=True)] = True
    dry_run: DryRun = False
    yes: Yes = False

    def given(self, call: WriteOptions) -> dict[str, Any]:
        if not self.reason and not self.dry_run:
            raise misuse("is required: it is stored with the erasure", "--reason")
        why = {"reason": self.reason or "dry run", "legal_basis": self.legal_basis, "override": self.override}
        return call.given | why

    def run(self, out: Output, thread: str, question: str, erase: Callable[..., Redaction]) -> None:
        """Erases if the user confirms what would be erased, or only shows it. `question` has places for both."""
        if self.dry_run or not self.yes:
            would = erase(dry_run=self.dry_run, confirmed=False, forks=self.forks)
            if self.dry_run:
                _show_dry_run(out, thread, would, forks=self.forks)
                return
            copies = f" and the copies in {values.count(len(would.forks), 'fork')}" * bool(self.forks and would.forks)
            options.confirm(question.format(all=_all_of(would), thread=repr(thread), copies=copies), yes=self.yes)
        _show_redaction(out, thread, erase(forks=self.forks))


_WORDS = {
    "written": "got a message meanwhile", "held": "a hold", "retained": "a retention", "damaged": "damaged: run verify",
}  # fmt: skip


def redact(
    thread: Thread,
    seqs: Annotated[list[str], argument("SEQS...", "Seqs of messages, such as 7 or 12-20.")],
    *,
    erasure: ErasureOptions,
    call: WriteOptions,
) -> None:
    wanted = options.seqs(seqs)
    given = erasure.given(call)
    out = call.output()
    with call.store() as store:
        if (beyond := max(span[-1] for span in wanted)) > store.thread(thread, hidden=True).last_seq:
            raise MessageNotFound(f"no seq {beyond} (thread {thread!r})")
        work = partial(store.custody.redact, thread, list(chain.from_iterable(wanted)), **given)
        erasure.run(out, thread, "Erase {all} of thread {thread}{copies} permanently?", work)


def erase(
    thread: Annotated[str | None, argument("[THREAD]", "The thread's name, or give --subject.")] = None,
    subject: Subject = None,
    shred: bool = option("--shred", default=False),
    *,
    erasure: ErasureOptions,
    call: WriteOptions,
) -> None:
    given = erasure.given(call)
    out = call.output()
    if (thread is None) == (subject is None) or not (erasure.forks or subject is None):
        raise misuse("must be given, or --subject without --no-forks", "THREAD")
    if shred and (subject is None or erasure.dry_run):
        raise misuse("must be given with --subject and without --dry-run", "--shred")
    with call.store() as store:
        if thread is not None:
            work = partial(store.custody.erase, thread, **given)
            erasure.run(out, thread, "Erase thread {thread} with {all}{copies} permanently?", work)
            return
        assert subject is not None  # noqa: S101 — checked above
        if not erasure.dry_run:
            options.confirm(f"Erase all threads of subject {named(subject)} permanently?", yes=erasure.yes)
        if shred:
            event = store.custody.shred(subject, **given)
            _show_event(out, event, f"has the event that the key of {named(subject)} is destroyed")
        else:
            done = store.custody.erase_subject(subject, **given, dry_run=erasure.dry_run)
            show_expiries(out, done, dry_run=erasure.dry_run)


def _all_of(done: Redaction | RedactedFork) -> str:
    records = f" and {values.count(len(done.records), 'record')}" if done.records else ""
    return f"{values.count(len(done.seqs), 'message')}{records}"


def _erased(done: Redaction) -> dict[str, Any]:
    return {"seqs": done.seqs, "records": done.records, "forks": [fork.as_dict() for fork in done.forks]}


def _show_dry_run(out: Output, thread: str, would: Redaction, *, forks: bool) -> None:
    from compaction_store.integrity import erasure

    if out.as_json:
        out.json({"thread_id": thread, "dry_run": True} | _erased(would))
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
        out.json({"thread_id": done.thread_id, "pos": done.pos} | _erased(done))
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
        raise typer.Exit(REFUSED)


def _line(expiry: Expiry, dry_run: bool) -> str:
    last = expiry.last_message_at
    at = "missing" if last is None else last.isoformat(" ", "minutes")
    if expiry.kept is not None:
        return f"{named(expiry.thread_id)}: kept, {_WORDS[expiry.kept]} (last message {at})"
    what = f"{values.count(expiry.messages, 'message')} and {values.count(expiry.records, 'record')}"
    return f"{named(expiry.thread_id)}: {'would erase' if dry_run else 'erased'} {what} (last message {at})"


def hold(thread: Thread, reason: Reason, *, call: WriteOptions) -> None:
    with call.store() as store:
        done = store.custody.hold(thread, reason=reason, **call.given)
    _show_event(call.output(), done, "is on hold")


def release(thread: Thread, reason: Reason, *, call: WriteOptions) -> None:
    with call.store() as store:
        done = store.custody.release(thread, reason=reason, **call.given)
    _show_event(call.output(), done, "is released")


def retain(
    thread: Thread,
    until: Annotated[str, option("--until WHEN", "The end of the retention, such as 2031-01-01.")],
    reason: Reason,
    locked: bool = option("--locked", "Nobody can shorten or override the term. It can only be made longer.", False),
    *,
    call: WriteOptions,
) -> None:
    end = options.moment(until, "--until")
    if end is None:  # pragma: no cover — typer requires it
        raise misuse("is required", "--until")
    with call.store() as store:
        done = store.custody.retain(thread, end, reason=reason, locked=locked, **call.given)
    # The event says more than the options: a term after a locked one is locked, and one may shorten another.
    _show_event(call.output(), done, f"is retained {described(done)}")


def subject(
    thread: Thread,
    subject: Annotated[str | None, argument("[SUBJECT]", "The new subject, or give --remove.")] = None,
    remove: Annotated[bool, option("--remove", "Remove the subject.")] = False,
    reason: Reason = "",
    *,
    call: WriteOptions,
) -> None:
    if remove == bool(subject):
        raise misuse("must be given, or --remove, and not both", "SUBJECT")
    with call.store() as store:
        done = store.custody.set_subject(thread, subject or None, reason=reason or None, **call.given)
    _show_event(call.output(), done, "has no subject now" if remove else f"now belongs to {named(subject or '')}")


def remove_tenant(
    key: Annotated[Path, option("--key FILE", "The file with the signing key of the checkpoints.")],
    to: Annotated[Path | None, option("--to FILE", "Write the statement to this new file. [default: print it]")] = None,
    reason: Reason = "",
    legal_basis: LegalBasis = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    *,
    call: WriteOptions,
) -> None:
    signer, out = read_key(key), call.output()
    if not (reason or dry_run):
        raise misuse("is required: it is stored with the erasure", "--reason")
    if to is not None and to.exists():
        raise misuse(f"{to} exists", "--to")
    with call.store() as store, ProgressBar("erase", "threads") as progress:
        why = call.given | {"reason": reason or "dry run", "legal_basis": legal_basis}
        remove = partial(store.custody.remove_tenant, signer, **why)
        if dry_run or not yes:
            would = remove(dry_run=True)
            if dry_run:
                text = f"{values.removal(would, 'would erase')} (dry run: nothing is erased)"
                out.json(would.as_dict() | {"dry_run": True}) if out.as_json else out.text(text)
                return
            options.confirm(f"{values.removal(would, 'erase')} permanently?", yes=yes)
        done = remove(progress=progress.reached)
    if to is not None:
        to.write_text(done.note, encoding="utf-8")
    if out.as_json:
        out.json(done.as_dict())
    for text in () if out.as_json else done.note.splitlines() if to is None else [values.removal(done)]:
        out.text(text)


def _show_event(out: Output, done: Event, what: str) -> None:
    out.said(values.event(done, text=True), f"{named(done.thread_id)} {what}, recorded at pos {done.pos:,}")


def retention(
    action: Literal["apply", "set", "show", "unset"] = argument("ACTION"),
    older_than: str = option("--older-than AGE", default=""),
    prefix: str = option("--prefix TEXT", default=""),
    subject: str | None = option("--subject NAME", default=None),
    new_threads: str = option("--new-threads AGE", default=""),
    reason: Reason = "",
    legal_basis: LegalBasis = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    *,
    call: WriteOptions,
) -> None:
    age, term = _age(older_than, "--older-than"), _age(new_threads, "--new-threads")
    wrong: dict[str, object] = {"--new-threads": term} if action == "apply" else {
        "--dry-run": dry_run, "--yes": yes, "--subject": subject, "--legal-basis": legal_basis,
    }  # fmt: skip
    if action in ("show", "unset"):
        wrong |= {"--older-than": age, "--prefix": prefix, "--new-threads": term}
    if action == "show":
        wrong |= {"--reason": reason, "--actor": call.actor, "--authority": call.authority}
    for name, value in wrong.items():
        if value not in (None, "", False):
            raise misuse(f"must not be given with {action}", name)
    if action != "apply":
        _rule(action, age, prefix, term, reason, call)
        return
    out = call.output()
    with call.store() as store:
        if not dry_run:
            which = f"whose last message is older than {older_than or 'its rule says'}"
            which += f" and whose names begin with {named(prefix)}" if prefix else ""
            which += f" and whose subject is {named(subject)}" if subject else ""
            options.confirm(f"Erase the threads of tenant {named(call.tenant)} {which} permanently?", yes=yes)
        done = store.custody.apply_retention(
            older_than=age, prefix=prefix, subject=subject, reason=reason or None, **call.given,
            legal_basis=legal_basis, dry_run=dry_run,
        )  # fmt: skip
        show_expiries(out, done, dry_run=dry_run)


def _rule(
    action: str, age: timedelta | None, prefix: str, term: timedelta | None, reason: str, call: WriteOptions
) -> None:
    out = call.output()
    if action == "set" and age is None and term is None:
        raise misuse("or --new-threads is required with set", "--older-than")
    if action != "show" and not reason:
        raise misuse("is required: it is stored with the rule", "--reason")
    with call.store() as store:
        rule = store.custody.retention_rule()
        if action == "set":
            body = {} if rule is None else rule.body
            rule = store.custody.set_retention(
                older_than=age or _stored(body.get("older_than_seconds")),
                prefix=prefix or ("" if age else body.get("prefix", "")),
                new_threads=term or _stored(body.get("new_threads_seconds")), reason=reason, **call.given,
            )  # fmt: skip
        elif action == "unset" and rule is not None:
            store.custody.set_retention(reason=reason, **call.given)
            rule = None
    if out.as_json:
        out.json(None if rule is None else values.event(rule, text=True))
    elif rule is None:
        out.text("no rule")
    else:
        for name, seconds in rule.body.items():
            if name.endswith("_seconds"):
                age_text = str(_stored(seconds) or "not a valid age").removesuffix(", 0:00:00")
                out.text(f"{name.removesuffix('_seconds').replace('_', ' ')}: {age_text}")
        out.text(f"prefix: {named(str(rule.body.get('prefix', ''))) or 'none'}")
        out.text(f"recorded at pos {rule.pos:,} of the tenant's log")


def _stored(seconds: Any) -> timedelta | None:
    """Returns an age in the body of a rule, which may have been written by hand."""
    try:
        return timedelta(seconds=seconds) or None
    except (TypeError, OverflowError, ValueError):
        return None


def _age(text: str, option: str) -> timedelta | None:
    age = written_age(text)
    if text and not age:
        raise misuse(f"must be an age such as 24h, 180d, 26w or 6y, not {text!r}", option)
    return age
