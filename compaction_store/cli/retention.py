"""The command `retention`, which erases threads by their age."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from compaction_store.arguments import written_age
from compaction_store.audit.safe_text import named
from compaction_store.cli import exits, options, values
from compaction_store.cli.bundles import argument, option
from compaction_store.cli.erase import DryRun, LegalBasis, Yes
from compaction_store.cli.exits import misuse
from compaction_store.cli.options import DeedOptions, PrintOptions, Reason, TenantOptions
from compaction_store.cli.progress import ProgressBar

if TYPE_CHECKING:
    from compaction_store.models import Expiry

_WORDS = {
    "written": "got a message meanwhile", "held": "a hold", "retained": "a retention", "damaged": "damaged: run verify",
}  # fmt: skip


def retention(
    action: Annotated[str, argument("ACTION", "apply: erase the threads that are old enough.")],
    older_than: Annotated[
        str, option("--older-than AGE", "The least age of a thread's last message, such as 180d, 26w or 6y.")
    ] = "",
    prefix: Annotated[str, option("--prefix TEXT", "Only threads whose names begin with this text.")] = "",
    reason: Reason = "",
    legal_basis: LegalBasis = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    *,
    deed: DeedOptions,
    db: TenantOptions,
    printed: PrintOptions,
) -> None:
    """Erases the threads whose last message is older than an age, by the database's clock.

    Only a message makes a thread younger. Threads under a hold or a retention are kept. The log of the tenant records
    each run. A run that was stopped at any point can be repeated: the next one erases what is left. An erasure cannot
    be undone: use --dry-run first, which lists exactly what would be erased and kept. The exit code is 1 if a thread
    was not erased because it is damaged.
    """
    if action != "apply":
        raise misuse("must be apply", "ACTION")
    age = _age(older_than, "--older-than")
    out = printed.output()
    counts: dict[str | None, int] = {}
    with db.store() as store:
        if not dry_run:
            which = f"whose last message is older than {older_than}"
            which += f" and whose names begin with {named(prefix)}" if prefix else ""
            options.confirm(f"Erase the threads of tenant {named(db.tenant)} {which} permanently?", yes=yes)
        done = store.custody.apply_retention(
            older_than=age, prefix=prefix, reason=reason or None, **deed.given, legal_basis=legal_basis, dry_run=dry_run
        )  # fmt: skip
        with ProgressBar("retention", "threads") as progress:
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


def _age(text: str, option: str) -> timedelta:
    age = written_age(text)
    if not age:
        raise misuse(f"must be an age such as 24h, 180d, 26w or 6y{f', not {text!r}' if text else ''}", option)
    return age
