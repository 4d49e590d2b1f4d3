"""The commands that keep the session files of coding agents, wake the watcher, and write the files back."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import compaction_store
from compaction_store.audit.safe_text import named
from compaction_store.cli import exits, options, values
from compaction_store.cli.bundles import argument, option
from compaction_store.cli.exits import misuse
from compaction_store.cli.options import PrintOptions, ReadOptions, TenantOptions, Thread
from compaction_store.cli.output import Output, line, note
from compaction_store.module_data import ModuleData

if TYPE_CHECKING:
    from compaction_store.watching.watcher import WatchReport

_TEXTS = ModuleData(__file__)


def watch(
    paths: list[Path] | None = argument("[PATHS]...", default=None),
    once: bool = option("--once", default=False),
    every: float = option("--every SECONDS", default=2.0, min=0.1),
    install: bool = option("--install", default=False),
    yes: bool = option("--yes", default=False),
    *,
    db: TenantOptions,
    printed: PrintOptions,
) -> None:
    from compaction_store.importers.formats import SESSIONS
    from compaction_store.watching import watcher

    if install:
        _install(paths or [], db, yes=yes)
        return
    home = [Path.home() / program.folder for program in SESSIONS.values()]
    roots = paths or (home if not once else [root for root in home if root.exists()])
    if not roots or not all(path.exists() for path in paths or ()):
        raise misuse(f"must be there, or without PATHS one of the folders {' and '.join(map(str, home))}", "PATHS")
    out = printed.output()
    with db.reachable() as address:
        # One watcher for each store and tenant.
        name = hashlib.sha256(f"{address}\n{db.tenant}".encode()).hexdigest()[:16]
        folder = watcher.state_folder() / name
        # A watcher must not wait long for a database that is away: it looks at the files instead.
        opening = partial(
            compaction_store.Store.open, address, tenant=db.tenant, pool_size=2, actor=options.user_at_host(),
            deadline=5, connect_timeout=5,
        )  # fmt: skip
        waker = watcher.Waker(folder)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: waker.stop())
        loop = watcher.Watcher(opening, roots, folder, waker, every, partial(_show, out))
        if not once:
            note(f"watching {', '.join(line(str(root)) for root in roots)}")
            loop.run()
        elif not loop.run_once():
            raise typer.Exit(exits.REFUSED)


def _show(out: Output, report: WatchReport) -> None:
    for finding in report.findings:
        note(f"compaction-store: {line(finding)}")
    if out.as_json:
        out.json(asdict(report) | {"files": sorted(report.files)})
    else:
        lines, new, files = values.count(report.lines, "line"), report.messages, values.count(len(report.files), "file")
        spooled = f", {values.count(report.spooled, 'line')} on disk for later" if report.spooled else ""
        out.text(f"kept {lines} and {values.count(new, 'message')} of {files}{spooled}")
    out.flush()


def _install(paths: list[Path], db: TenantOptions, *, yes: bool) -> None:
    """Prints the file that makes the system run `watch`, and writes it if the user agrees."""
    program = shutil.which("compaction-store") or f"{Path(sys.executable).parent}/compaction-store"
    tenant = [] if db.tenant == "default" else ["--tenant", db.tenant]
    words = [program, "watch", *(str(path.absolute()) for path in paths), *tenant]
    system = "launchd" if sys.platform == "darwin" else "systemd"
    if system == "launchd":
        from xml.sax.saxutils import escape

        command = "".join(f"\n    <string>{escape(word)}</string>" for word in words)
    else:
        command = " ".join(f'"{word}"' for word in words).replace("%", "%%")
    texts = _TEXTS.values[system]
    text = texts["text"].replace("COMMAND", command)
    path = Path.home() / texts["path"]
    sys.stdout.write(text)
    sys.stdout.flush()
    if db.url is not None:
        note(texts["url"])
    if not yes and not sys.stdin.isatty():
        note(f"give --yes to write this to {path}")
        return
    options.confirm(f"Write this to {path}?", yes=yes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    note(f"written; start it with: {texts['start'].replace('PATH', str(path))}")


def hooks(
    what: Annotated[Literal["print", "notify"], argument("print|notify")],
    about: list[str] | None = argument("[AGENT]", default=None),
) -> None:
    if what == "notify":
        from compaction_store.watching import watcher

        # A hook must not fail the program that calls it, so this succeeds even if nobody watches.
        watcher.notify(watcher.state_folder())
        return
    agents = _TEXTS.values["hooks"]
    if about is None or len(about) != 1 or about[0] not in agents:
        raise misuse(f"must be {' or '.join(agents)}", "AGENT")
    sys.stdout.write(agents[about[0]])


def restore(
    thread: Thread,
    to: Annotated[Path, option("--to DIR")],
    generation: int | None = option("--generation N", default=None, min=1),
    skip_redacted: bool = option("--skip-redacted", default=False),
    *,
    call: ReadOptions,
) -> None:
    from compaction_store.watching import restoring

    out = call.output()
    with call.reader() as store:
        for done in restoring.restore(store, thread, to, generation=generation, skip_redacted=skip_redacted):
            if out.as_json:
                out.json({**done._asdict(), "path": str(done.path)})
                continue
            what = "restored" if done.is_new else "there already"
            skipped = f", without {values.count(done.skipped, 'redacted line')}" if done.skipped else ""
            out.text(f"{named(done.thread_id)}: {what}: {line(str(done.path))}, {done.size:,} bytes{skipped}")
    out.end()


def days_kept() -> int | None:
    """Returns after how many days Claude Code deletes its transcripts on this machine; None if it is not used here."""
    path = Path.home() / ".claude" / "settings.json"
    found: Any = None
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
    days = found.get("cleanupPeriodDays") if isinstance(found, dict) else None
    return (days if type(days) is int else 30) if path.parent.is_dir() else None
