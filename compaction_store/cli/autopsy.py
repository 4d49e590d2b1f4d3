"""The command `autopsy`, which examines the compactions in other programs' transcripts on this machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

import compaction_store
from compaction_store.audit.safe_text import named
from compaction_store.cli import evaluate, values
from compaction_store.cli.bundles import REFUSED, argument, misuse, option
from compaction_store.cli.compactions import Loss, counts, losses_of, repeated_tokens, sentence
from compaction_store.cli.evaluate import ReplayOptions, replayed, show_figures, write_file
from compaction_store.cli.options import PrintOptions, ServerOptions
from compaction_store.cli.output import Output, ProgressBar, line, note, number
from compaction_store.errors import InvalidSource

if TYPE_CHECKING:
    from compaction_store import Store, importers
    from compaction_store.evaluation import Evaluation, Replayed
    from compaction_store.importers.line_files import LineFile
    from compaction_store.importers.sources import Source
    from compaction_store.probes import ProbeType

# The number of losses of each type that the command prints.
_LISTED = 3
# The number of compactions that the command prints.
_FOLDS_LISTED = 20
_TITLE = "Autopsy of compactions"
# The maximum numbers of losses and of compactions on the page. A browser could not open a page with all losses of a
# year of sessions.
_MOST = 1000


def autopsy(
    paths: list[Path] | None = argument("[PATHS]...", default=None),
    share: bool = option("--share", default=False),
    prices: Path | None = option("--prices FILE", default=None),
    model: str | None = option("--model NAME", default=None),
    out_file: Path | None = option("--out FILE", default=None),
    tenant: str = option("--tenant NAME", default="autopsy"),
    processes: int | None = option("--processes N", default=None, min=1),
    *,
    db: ServerOptions,
    printed: PrintOptions,
) -> None:
    from compaction_store.evaluation.evaluator import summed

    wanted = ReplayOptions(prices=prices, model=model, keep_runs=True)
    setup = wanted.made()
    chosen = _chosen(paths)
    out = printed.output()
    with db.reachable() as address, compaction_store.Store.open(address, tenant=tenant, pool_size=2) as store:
        unread: list[str] = []
        parts = parts_of(chosen, unread)
        names = load_transcripts(store, address, tenant, parts, unread, processes)
        if processes is None and is_much(parts):
            processes = os.cpu_count()
        with ProgressBar("examine", "sessions", len(names)) as progress:
            runs = replayed(store, address, tenant, names, wanted, setup, processes)
            found = summed(progress.over(runs), setup.policies, setup.settings)
    sessions = _sessions(found, share=share)
    losses = [] if share else losses_of(sessions)
    _show(out, found, sessions, losses)
    if out_file is not None:
        write_file(out_file, _page(found, sessions, losses))
    if unread:
        raise typer.Exit(REFUSED)


def _chosen(paths: list[Path] | None) -> list[Path]:
    from compaction_store.importers.formats import SESSIONS

    places = [program.folder for program in SESSIONS.values()]
    found = paths or [place for name in places if (place := Path.home() / name).exists()]
    if not found:
        raise misuse(f"must be given: there are no transcripts in ~/{' or ~/'.join(places)}", "PATHS")
    for path in found:
        if not path.exists():
            raise misuse(f"{line(str(path))} does not exist", "PATHS")
    return found


def _sessions(found: Evaluation, *, share: bool) -> list[Replayed]:
    """Returns the sessions that have compactions. With `share`, numbers replace their names."""
    runs = [run for run in found.policies[0].runs if run.folds]
    if share:
        for place, run in enumerate(runs, 1):
            run.thread_id = f"session {place}"
    return runs


def as_dict(run: Replayed) -> dict[str, Any]:
    return {
        "thread_id": run.thread_id, "compactions": len(run.folds), "unreadable": len(run.unreadable),
        "probes": {kind: {"asked": asked, "failed": failed} for kind, (asked, failed) in counts(run).items()},
        "tokens_repeated": repeated_tokens(run), "calls": len(run.calls),
        "messages_folded": [[fold.start_seq, fold.end_seq] for fold in run.folds],
        "sizes": [[fold.tokens_before, fold.tokens_after] for fold in run.folds],
    }  # fmt: skip


def _show(out: Output, found: Evaluation, sessions: Sequence[Replayed], losses: Sequence[Loss]) -> None:
    from compaction_store.evaluation.results import OPEN_LOOP
    from compaction_store.probes import PROBE_TYPES

    [result] = found.policies
    if out.as_json:
        out.json({
            "sessions": found.threads, "skipped": dict(found.skipped), "total": result.as_dict(),
            "with_compactions": [as_dict(run) for run in sessions], "losses": [loss.as_dict() for loss in losses],
        })  # fmt: skip
        return
    folds = values.count(sum(len(run.folds) for run in sessions), "compaction")
    out.text(f"{values.count(found.threads, 'session')}, {len(sessions):,} of them with {folds}", "bold")
    if not sessions:
        return
    for one in _tables(sessions, _FOLDS_LISTED, "{} more: --json has all of them"):
        show_figures(out, one)
    if result.money:
        show_figures(out, evaluate.money(found))
    out.text()
    listed = [
        loss for kind in PROBE_TYPES for loss in islice((loss for loss in losses if loss.probe.type == kind), _LISTED)
    ]
    for loss in listed:
        out.text(f"{line(loss.session)}: {sentence(loss.probe)}")
    if len(losses) > len(listed):
        out.text(f"and {len(losses) - len(listed):,} more: --json has all of them, and --out the first 1,000")
    out.text(OPEN_LOOP)


def _tables(sessions: Sequence[Replayed], most: int, more: str) -> Iterator[evaluate.EvaluationTable]:
    """Yields the tables of the sessions, and of their compactions: the span, and its tokens before and after."""
    kinds: tuple[ProbeType, ...] = ("needed_later", "standing_order", "artifact", "invented", "re_derivation")
    rows: list[tuple[str, ...]] = []
    for run in sessions:
        by = counts(run)
        failed = (f"{by[kind][1]:,} of {by[kind][0]:,}" if kind in by else "" for kind in kinds)
        rows.append((line(run.thread_id), number(len(run.folds)), *failed, number(repeated_tokens(run))))
    heads = ["session", "compactions", "needed later", "orders", "files", "invented", "calls again", "tokens again"]
    said = "for each type of probe: how many failed, of how many asked; see `compaction-store docs evaluation`"
    yield evaluate.EvaluationTable("sessions", "", heads, rows, [said])
    folds = [
        (
            line(run.thread_id), number(fold.record), values.span(fold.start_seq, fold.end_seq),
            number(fold.tokens_before), number(fold.tokens_after) if fold.tokens_after else "unknown",
        )
        for run in sessions for fold in run.folds
    ]  # fmt: skip
    left = [f"and {more.format(f'{len(folds) - most:,}')}"] if len(folds) > most else []
    heads = ["session", "record", "seqs", "tokens before", "tokens after"]
    yield evaluate.EvaluationTable("compactions", "", heads, folds[:most], left)


def _page(found: Evaluation, sessions: Sequence[Replayed], losses: Sequence[Loss]) -> str:
    """Returns the HTML. Without `losses`, it quotes no transcript."""
    tables = (part for one in _tables(sessions, _MOST, "{} more") for part in evaluate.section(one))
    body = [f"<p>{len(sessions):,} sessions have compactions.</p>", *tables]
    if losses:
        body += ["<h2>Losses</h2>", "<ul>"]
        body += [f"<li>{escape(loss.session)}: {escape(sentence(loss.probe))}</li>" for loss in losses[:_MOST]]
        body.append("</ul>")
        if len(losses) > _MOST:
            body.append(f"<p>And {len(losses) - _MOST:,} more.</p>")
    return evaluate.page(_TITLE, found, body)


# ---- transcripts: finds them in files and folders, imports them, and says why a file is left out


# With fewer bytes than this, several processes would save less time than they take to start.
_LEAST_BYTES = 48_000_000
# A process imports one part at a time. A part of at least this many bytes gets no more sessions.
_PART_BYTES = 16_000_000

Say = Callable[[str], object]


class FileGroup(NamedTuple):
    """Files that are imported together: sessions of a program, or one file of another format."""

    form: str | None
    paths: tuple[Path, ...]
    size: int

    def source(self) -> Source | Path:
        from compaction_store.importers.formats import SESSIONS

        if self.form is None:
            return self.paths[0]
        return SESSIONS[self.form].opened(self.paths, skip_bad=True, lines=None)


def parts_of(paths: Sequence[Path], unread: list[str]) -> list[FileGroup]:
    """Returns the transcripts in files and folders, each session in one part. Adds unrecognised files to `unread`."""
    from compaction_store import importers
    from compaction_store.importers.formats import SESSIONS

    sessions: dict[str, list[Path]] = {form: [] for form in SESSIONS}
    known: dict[tuple[int, int], Path] = {}
    found: list[FileGroup] = []
    for path in paths:
        for file in _files(path):
            size = None
            try:
                size = _size(file, known)
                form = importers.detect(file)
            except InvalidSource as error:
                # Remove the hint, which names an option that only `import` has.
                why = str(error).removeprefix(f"{file.name}: ").partition("; name the format")[0]
                note(f"{line(str(file))} is left out: {line(why)}")
                unread += [] if size is None else [str(file)]
                continue
            if form in sessions:
                sessions[form].append(file)
            else:
                found.append(FileGroup(None, (file,), size))
    for form, files in sessions.items():
        found += _parts(form, files)
    return found


def _parts(form: str, files: Sequence[Path]) -> Iterator[FileGroup]:
    from compaction_store.importers.formats import SESSIONS
    from compaction_store.importers.line_files import LineFile

    made: list[list[LineFile]] = []
    sizes: list[int] = []
    places: dict[str, int] = {}
    for path in files:
        file = LineFile(path)
        place = places.get(session := SESSIONS[form].session_of(file), len(made) - 1)
        if place < 0 or (session not in places and sizes[place] >= _PART_BYTES):
            made.append([])
            sizes.append(0)
            place = len(made) - 1
        places[session] = place
        made[place].append(file)
        sizes[place] += file.size
    for files_, size in zip(made, sizes, strict=True):
        yield FileGroup(form, tuple(file.path for file in files_), size)


def is_much(parts: Sequence[FileGroup]) -> bool:
    """Returns whether several processes take less time than one."""
    return sum(part.size for part in parts) >= _LEAST_BYTES


def load_transcripts(
    store: Store, url: str, tenant: str, parts: Sequence[FileGroup], unread: list[str], wanted: int | None = None
) -> list[str]:
    """Imports transcripts and returns their threads. Names unreadable ones, and adds unrecognised ones to `unread`."""
    number = evaluate.process_count(wanted, len(parts))
    names: dict[str, None] = {}
    if number == 1 or (wanted is None and not is_much(parts)):
        for part in parts:
            with ProgressBar("import", "entries") as progress:
                names.update(dict.fromkeys(_load(store, part, note, unread, progress)))
        return list(names)
    with ProgressBar("import", "bytes", sum(part.size for part in parts)) as progress:
        found = evaluate.in_processes(number, _in_process, parts, _store, url, tenant)
        for part, (loaded, said, missed) in zip(parts, found, strict=True):
            for text in said:
                note(text)
            names.update(dict.fromkeys(loaded))
            unread += missed
            progress.advance(part.size)
    return list(names)


def _load(
    store: Store, part: FileGroup, say: Say, unread: list[str], progress: ProgressBar | None = None
) -> Iterator[str]:  # fmt: skip
    from compaction_store import importers
    from compaction_store.importers.line_files import LINES

    report = None if progress is None else progress.imported
    try:
        for thread in importers.import_into(store, part.source(), skip_bad=True, progress=report):
            _say_what_is_missing(thread, say)
            unread += [] if thread.is_recognised else [thread.thread_id]
            if thread.loaded is not None and not thread.source_id.endswith(LINES):
                yield thread.thread_id
    except InvalidSource as error:
        say(f"the rest is left out: {line(str(error))}")


def _store(url: str, tenant: str) -> Store:
    return evaluate.opened_in_process(compaction_store.Store.open(url, tenant=tenant, pool_size=2))


def _in_process(store: Store, part: FileGroup) -> tuple[list[str], list[str], list[str]]:
    said: list[str] = []
    unread: list[str] = []
    return list(_load(store, part, said.append, unread)), said, unread


def _say_what_is_missing(thread: importers.ThreadImported, say: Say) -> None:
    name = named(thread.thread_id)
    if thread.refused is not None:
        say(f"{name} is left out: {line(str(thread.refused))}")
    if thread.bad:
        first = thread.bad[0]
        many = "1 line is" if thread.skipped == 1 else f"{thread.skipped:,} lines are"
        say(f"{many} left out of {name}: {line(first.where)}: {line(first.why)}")
    for text in thread.not_known():
        say(f"{name}: {line(text)}")


def _files(path: Path) -> Iterator[Path]:
    """Yields a file, or every file of JSON lines in a folder and its subfolders. Does not follow links to folders."""
    if not path.is_dir():
        yield path
        return
    found = False
    for folder, folders, names in os.walk(path, onerror=_say_unreadable):
        folders.sort()
        for name in sorted(name for name in names if name.endswith(".jsonl")):
            found = True
            yield Path(folder, name)
    if not found:
        note(f"{line(str(path))} is left out: there is no .jsonl file in it")


def _say_unreadable(error: OSError) -> None:
    note(f"{line(str(error.filename))} is left out: {error.strerror}")


def _size(file: Path, known: dict[tuple[int, int], Path]) -> int:
    try:
        found = file.stat()
    except OSError as error:
        raise InvalidSource(f"the file cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise InvalidSource("this is not a regular file")
    if not found.st_size:
        raise InvalidSource("the file is empty")
    other = known.setdefault((found.st_dev, found.st_ino), file)
    if other is not file:
        raise InvalidSource(f"this is the same file as {other}")
    return found.st_size
