"""Prints the output of commands: tables for people, JSON lines or CSV for programs.

A terminal gets a table and a pipe gets JSON lines, unless an option such as `--json` says otherwise. All text from
users goes through `visible`, so that it cannot move the cursor or change colours. The lines of such text are indented,
so that none looks like a line of the program. In a pipe, JSON is printed as it is stored.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Lock, Timer
from typing import Any, NamedTuple, NoReturn, Self, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from compaction_store.audit import safe_text
from compaction_store.audit.csv_rows import CsvRows, csv_line
from compaction_store.audit.safe_text import named, shown
from compaction_store.cli.bundles import BROKEN_PIPE
from compaction_store.jsonable import encoded

# ASCII replacements for characters of charts, for locales that lack these characters.
_PLAIN = str.maketrans("·█▒│└─▁▂▃▄▅▆▇…", ".#%|+-___==##~")
# Wide enough that nothing is cut in a pipe.
_PIPE_WIDTH = 4000
_WIDEST_CELL = 100
_NARROWEST = 9
# The indentation of the second and later rows of a long line, and that of the lines of a user's text.
_CONTINUED = "    "
_QUOTED = "  "
#: Context managers that hide the progress bars while something is printed on the same terminal.
bars: list[Callable[[], AbstractContextManager[None]]] = []


def private(file: Path) -> Path:
    """Creates a file that only its owner may read, unless it exists. Files with messages or names are such files."""
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return file


def line(text: str) -> str:
    """Returns a user's text as one line. Runs of white space become one space."""
    return shown(" ".join(text.split()))


def moment(at: datetime | None) -> str:
    """Formats a time in the machine's time zone."""
    return "" if at is None else at.astimezone().isoformat(" ", "seconds")


def number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def drop_output(code: int = BROKEN_PIPE) -> NoReturn:
    """Exits without the buffered output, which nobody reads or a full disk refuses. Python would write it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(code)


@contextmanager
def without_bars(*, terminal: bool) -> Iterator[None]:
    """Hides progress bars while something is printed on a terminal, so that it does not continue a bar's line."""
    with ExitStack() as stack:
        for hidden in bars if terminal else ():
            stack.enter_context(hidden())
        yield


class _Console(Console):
    def on_broken_pipe(self) -> None:
        drop_output()


def console(*, stderr: bool = False) -> Console:
    width = None if (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return _Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def note(text: str) -> None:
    """Prints a message for people on stderr."""
    to = console(stderr=True)
    rows = _rows(to, to.width, Text(shown(text)), "", _CONTINUED) if sys.stderr.isatty() else [Text(shown(text))]
    with without_bars(terminal=sys.stderr.isatty()):
        sys.stderr.write("".join(f"{row.plain}\n" for row in rows))


def _rows(to: Console, width: int, text: Text, first: str, rest: str) -> list[Text]:
    """Wraps a line to a width. The first row begins with `first`, and the others with `rest`."""
    if cell_len(first) + cell_len(text.plain) <= width:
        return [Text(first) + text]
    parts = text.wrap(to, max(1, width - cell_len(rest)), overflow="fold")
    return [Text(rest if at else first) + part for at, part in enumerate(parts)]


class RedCell(str):
    """A cell of a table that is shown in red."""

    __slots__ = ()


class _Cell:
    """A text that wraps in a narrow column of a table."""

    def __init__(self, text: str, style: str = "") -> None:
        self._text = Text(text, style)

    def __rich_measure__(self, to: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(to, options, self._text)

    def __rich_console__(self, to: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from _rows(to, options.max_width, self._text, "", _QUOTED)


class Output:
    """The output of a command as JSON, as CSV or for people. For CSV, `as_json` is True and `csv` collects the rows."""

    def __init__(self, *, as_json: bool | None, as_csv: bool = False) -> None:
        for stream in (sys.stdout, sys.stderr):
            # If the locale lacks a character, print an escape sequence instead of raising.
            if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
                reconfigure(errors="backslashreplace")
        self.is_terminal = sys.stdout.isatty()
        self.csv = CsvRows() if as_csv else None
        self.as_json = as_csv or (not self.is_terminal if as_json is None else as_json)
        self.console = console()

    def json(self, value: Any) -> None:
        if self.csv is None:
            self.json_text(encoded(value))
        else:
            self.csv.add(value)

    def end(self) -> None:
        """Ends a list. Prints the rows that CSV has collected."""
        for cells in () if self.csv is None else self.csv.lines():
            self._write(csv_line(map(shown, cells) if self.is_terminal else cells))

    def json_text(self, text: str) -> None:
        """Prints text that is already JSON."""
        if self.is_terminal:
            text = safe_text.json_shown(text)
        self._write(text.encode() + b"\n")

    def _write(self, data: bytes) -> None:
        with without_bars(terminal=self.is_terminal):
            try:
                sys.stdout.buffer.write(data)
            except BrokenPipeError:
                drop_output()
            if self.is_terminal:
                self.flush()

    def flush(self) -> None:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            drop_output()

    def text(self, text: str = "", style: str | None = None) -> None:
        """Prints a line for people."""
        self._line(shown(text), style, "", _CONTINUED)

    def block(self, text: str) -> None:
        """Prints the lines of a user's text, indented."""
        for part in safe_text.lines(text):
            self._line(part, None, _QUOTED if part else "", _QUOTED)

    def _line(self, text: str, style: str | None, first: str, rest: str) -> None:
        if not self.console.encoding.lower().startswith("utf"):
            text = text.translate(_PLAIN)
        styled = Text(text, style=style or "")
        width = self.console.width
        with without_bars(terminal=self.is_terminal):
            for row in _rows(self.console, width, styled, first, rest) if self.is_terminal else [Text(first) + styled]:
                self.console.print(row, soft_wrap=True)

    def clipped(self, text: str) -> None:
        """Prints a line for people, cut at the terminal's width."""
        with without_bars(terminal=self.is_terminal):
            self.console.print(Text(shown(text)), no_wrap=True, overflow="ellipsis", crop=True)

    def rows(
        self, columns: Sequence[str | Column], rows: Iterable[tuple[Mapping[str, Any], Sequence[str]]], none: str
    ) -> None:
        """Prints a list, or `none` if it is empty. Each item is a value for JSON, with cells for a table."""
        if self.as_json:
            count = 0
            for value, _ in rows:
                self.json(value)
                count += 1
            self.end()
            if not count and sys.stderr.isatty():
                note(none)
        elif listed := [cells for _, cells in rows]:
            self.grid(columns, listed)
        else:
            self.text(none)

    def grid(self, columns: Sequence[str | Column], rows: Sequence[Sequence[str]]) -> None:
        """Prints a table. Leaves out optional columns that are empty, and the whole table if there are no rows."""
        if not rows:
            return
        table = self._table(columns, rows)
        # On a narrow terminal, let the terminal wrap lines, because rich would drop columns.
        before = self.console.width
        self.console.width = max(self._least(table), before)
        self.print_table(table)
        self.console.width = before

    def fits(self, columns: Sequence[str | Column], rows: Sequence[Sequence[str]]) -> bool:
        return self._least(self._table(columns, rows)) <= self.console.width

    def _least(self, table: Table) -> int:
        return Measurement.get(self.console, self.console.options.update(width=_PIPE_WIDTH), table).minimum

    @staticmethod
    def _table(columns: Sequence[str | Column], rows: Sequence[Sequence[str]]) -> Table:
        parts = [Column(column) if isinstance(column, str) else column for column in columns]
        kept = [at for at, column in enumerate(parts) if not column.optional or any(row[at] for row in rows)]
        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
        for at in kept:
            name, right, fold, cut, _ = parts[at]
            # Set the minimum width, because rich uses the longest word even for columns that must not wrap.
            whole = max(cell_len(named(text)) for text in (name, *(row[at] for row in rows)))
            table.add_column(
                name,
                justify="right" if right else "left",
                no_wrap=not fold and cut is None,
                overflow="fold" if fold else "ellipsis",
                min_width=min(whole, _NARROWEST if fold else whole if cut is None else cut),
                # A pipe has no width, but a cell as long as a prompt would be unreadable.
                max_width=_WIDEST_CELL if fold else None,
            )
        for row in rows:
            cells = [named(row[at]) for at in kept]
            table.add_row(*(
                _Cell(cell, "red" if isinstance(row[at], RedCell) else "")
                if parts[at].cut is None else Text(cell, no_wrap=True, overflow="ellipsis")
                for at, cell in zip(kept, cells, strict=True)
            ))  # fmt: skip
        return table

    def print_table(self, table: Table, width: int | None = None) -> None:
        """Prints a table. In a pipe, trailing spaces are removed."""
        if self.is_terminal:
            with without_bars(terminal=True):
                self.console.print(table, width=width)
            return
        with self.console.capture() as captured:
            self.console.print(table, width=width)
        for line_ in captured.get().splitlines():
            self.console.out(line_.rstrip(), highlight=False)

    @contextmanager
    def paged(self) -> Iterator[None]:
        """On a terminal, sends output longer than the screen through the user's pager."""
        if not self.is_terminal:
            yield
            return
        with self.console.capture() as captured:
            yield
        text = captured.get()
        long = text.count("\n") >= self.console.height
        pager = shutil.which(os.environ.get("PAGER", "less").split(" ")[0]) if long and sys.stdin.isatty() else None
        if pager is None:
            sys.stdout.write(text)
            self.flush()
            return
        # The option -R passes colours through. Control characters in users' text are escaped, so they set no colours.
        given = shlex.split(os.environ.get("PAGER", "less -R"))
        subprocess.run(given, input=text.encode(errors="backslashreplace"), check=False)  # noqa: S603 — the user's own

    def said(self, value: Any, text: str) -> None:
        """Prints `value` as JSON, or else `text`."""
        if self.as_json:
            self.json(value)
        else:
            self.text(text)

    def wrapped(self, text: str, *, indent: int = 0, style: str | None = None) -> None:
        """Prints a line, wrapped to the width of the terminal. Rows after the first are indented."""
        width = max(_NARROWEST, min(self.console.width, _WIDEST_CELL) - indent - len(_CONTINUED))
        for at, part in enumerate(Text(shown(text)).wrap(self.console, width)):
            self.text(f"{'':<{indent}}{_CONTINUED if at else ''}{part.plain.rstrip()}", style)

    def facts(self, value: Mapping[str, Any], cells: Sequence[tuple[str, str]]) -> None:
        """Prints `value` as JSON, or `cells` as lines with a name and a text."""
        if self.as_json:
            self.json(value)
            return
        table = Table.grid(padding=(0, 2))
        table.add_column()
        table.add_column(max_width=_WIDEST_CELL)
        for name, cell in cells:
            # Put users' text into a second column, where none of its lines can look like a name.
            table.add_row(Text(name, style="bold"), Text("\n".join(safe_text.lines(cell))))
        self.print_table(table)


class Column(NamedTuple):
    """A column. `right` aligns it to the right, and `fold` wraps long texts. `cut` is the minimum width to which texts
    are shortened on a terminal. An `optional` column is omitted if it is empty.
    """

    name: str
    right: bool = False
    fold: bool = False
    cut: int | None = None
    optional: bool = False


def figures(*names: str) -> list[Column]:
    return [Column(name, right=True) for name in names]


_T = TypeVar("_T")
_DELAY = 1.0


class ProgressBar:
    """A progress bar on stderr, if it is a terminal. It appears after a second, and again a second after any output."""

    def __init__(self, what: str, unit: str, total: int | None = None) -> None:
        self._unit = unit
        self._done = 0
        self._start = time.monotonic()
        self._timer: Timer | None = None
        self._lock = Lock()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            parts = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[state]}"))
            left = TimeRemainingColumn(compact=True)
            self._bar = Progress(*parts, left, console=console(stderr=True), transient=True)
            self._task = self._bar.add_task(shown(what), total=total, state="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._appear_later(self._bar)
            bars.append(self._hidden)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None and self._bar is not None:
            bars.remove(self._hidden)
            self._timer.cancel()
            self._timer.join()
            if self._bar.live.is_started:
                self._bar.stop()

    def _appear_later(self, bar: Progress) -> None:
        def appear() -> None:
            with self._lock:
                bar.start()

        self._timer = Timer(_DELAY, appear)
        self._timer.daemon = True
        self._timer.start()

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        with self._lock:
            if self._bar is not None and self._bar.live.is_started:
                self._bar.stop()
                self._appear_later(self._bar)
            yield

    def advance(self, count: int = 1) -> None:
        self.reached(self._done + count)

    def reached(self, done: int, total: int | None = None, unit: str | None = None) -> None:
        self._done = done
        self._unit = unit or self._unit
        if self._bar is not None:
            state = f"{done:,} {self._unit}, {done / max(1e-3, time.monotonic() - self._start):,.0f}/s"
            self._bar.update(self._task, completed=done, total=total, state=state)

    def imported(self, at: Any) -> None:
        self.reached(at.done, at.total, at.unit)

    def over(self, items: Iterable[_T]) -> Iterator[_T]:
        for item in items:
            yield item
            self.advance()
