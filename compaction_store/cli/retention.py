"""The command `retention`, which erases threads by their age."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from compaction_store.arguments import written_age
from compaction_store.audit.safe_text import named
from compaction_store.cli import options, values
from compaction_store.cli.bundles import argument, option
from compaction_store.cli.erase import DryRun, LegalBasis, Yes, show_expiries
from compaction_store.cli.exits import misuse
from compaction_store.cli.options import Reason, WriteOptions
from compaction_store.cli.output import Output


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
    out = call.output()
    if action != "apply" and (dry_run or yes or subject is not None or legal_basis is not None):
        raise misuse("--subject, --legal-basis and --yes need apply", "--dry-run")
    if action != "apply":
        _rule(action, age, prefix, term, reason, call, out)
        return
    if term is not None:
        raise misuse("needs set", "--new-threads")
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
    action: str,
    age: timedelta | None,
    prefix: str,
    term: timedelta | None,
    reason: str,
    call: WriteOptions,
    out: Output,
) -> None:
    if action == "set" and age is None and term is None:
        raise misuse("or --new-threads is required with set", "--older-than")
    if action != "set" and (age, prefix, term) != (None, "", None):
        raise misuse(f"must not be given with {action}", "--older-than, --prefix or --new-threads")
    if action != "show" and not reason:
        raise misuse("is required: it is stored with the rule", "--reason")
    with call.store() as store:
        rule = store.custody.retention_rule()
        if action == "set":
            body = {} if rule is None else rule.body
            before, kept = (body.get(f"{name}_seconds") for name in ("older_than", "new_threads"))
            rule = store.custody.set_retention(
                older_than=age or (timedelta(seconds=before) if before else None),
                prefix=prefix or ("" if age else body.get("prefix", "")),
                new_threads=term or (timedelta(seconds=kept) if kept else None), reason=reason, **call.given,
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
                age_text = str(timedelta(seconds=seconds)).removesuffix(", 0:00:00")
                out.text(f"{name.removesuffix('_seconds').replace('_', ' ')}: {age_text}")
        out.text(f"prefix: {named(rule.body.get('prefix', '')) or 'none'}")
        out.text(f"recorded at pos {rule.pos:,} of the tenant's log")


def _age(text: str, option: str) -> timedelta | None:
    age = written_age(text)
    if text and not age:
        raise misuse(f"must be an age such as 24h, 180d, 26w or 6y, not {text!r}", option)
    return age
