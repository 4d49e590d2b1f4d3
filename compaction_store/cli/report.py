"""The command `report`, which writes audit reports."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from compaction_store.cli import exits, options, values
from compaction_store.cli.bundles import argument, option
from compaction_store.cli.checkpoint import AllowEmpty, LogFile, PublicKeys, open_log, refuse_empty
from compaction_store.cli.exits import misuse
from compaction_store.cli.options import TenantOptions
from compaction_store.cli.output import line, note, private

_STDOUT = "-"


def report(
    threads: list[str] | None = argument("[THREADS]...", default=None),
    since: str | None = option("--since WHEN", default=None),
    until: str | None = option("--until WHEN", default=None),
    to: str = option("--to FILE", default="report.html"),
    as_json: bool = option("--json", default=False),
    content: bool = option("--content/--no-content", default=True),
    checkpoints: LogFile = None,
    public_key: PublicKeys = None,
    allow_empty: AllowEmpty = False,
    *,
    db: TenantOptions,
) -> None:
    if not threads and since is None:
        raise misuse("give thread names, or --since for all threads that changed", "THREADS")
    log = open_log(checkpoints, public_key)
    # Imported here, because the page needs an extra.
    from compaction_store.reporting import envelope, gather, page

    with db.reader() as reader:
        document = gather(
            reader, threads or None, tenant=db.tenant, made_by=options.user_at_host(),
            since=options.moment(since, "--since"), until=options.moment(until, "--until"),
            content=content, checkpoints=log,
        )  # fmt: skip
    data = envelope.sealed(document) if as_json else page.render(document)
    if to == _STDOUT:
        sys.stdout.buffer.write(data)
    else:
        try:
            private(Path(to)).write_bytes(data)
        except OSError as error:
            raise misuse(f"cannot write {line(to)}: {error.strerror}", "--to") from None
    findings = document.finding_count()
    found = values.count(findings, "finding") if findings else "no findings"
    note(f"{values.count(len(document.threads), 'thread')}, {found}; SHA-256 {envelope.hash_of(data)}")
    if findings:
        raise typer.Exit(exits.REFUSED)
    if not document.completeness.stored:
        refuse_empty(f"tenant {db.tenant!r}", allowed=allow_empty)
