"""What is written: tables for people, JSON lines for programs, progress for those who wait.

A terminal gets a table and a pipe gets JSON lines, unless `--json` or `--table` says otherwise. What others wrote goes
through `visible`, so that nothing in it can move a cursor, change a colour or begin a line: a line that does not fit
the terminal goes on indented, and texts of several lines are set off. In a pipe JSON is written as it is stored.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from threading import Timer
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar
from uuid import UUID

import rich.progress
import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from compaction_store.cli import visible
from compaction_store.cli.exits import BROKEN_PIPE, REFUSED
from compaction_store.cli.visible import shown

_T = TypeVar("_T")
# What stands for the letters of a picture where a locale has none.
_PLAIN = str.maketrans("·█▒│└─▁▂▃▄▅▆▇…", ".#%|+-___==##~")
# Wide enough that nothing is cut: a pipe has no edge.
_PIPE_WIDTH = 4000
_WIDEST_CELL = 100
_PATIENCE = 1.0
_NARROWEST = 9
# What sets off the rest of a line that did not fit, and the lines of a text of others.
_GOES_ON = "    "
_OTHERS = "  "


def line(text: str) -> str:
    """A text of others in one line, without the spaces that laid it out."""
    return shown(" ".join(text.split()))


def moment(at: datetime | None) -> str:
    """A moment in the machine's own time zone."""
    return "" if at is None else at.astimezone().isoformat(" ", "seconds")


def number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def broken_pipe() -> NoReturn:
    """Ends quietly, as a program does that nobody reads any more."""
    _drop_output()
    raise typer.Exit(BROKEN_PIPE)


def unwritten() -> NoReturn:
    """Ends where the output could not be written, as on a disk that is full."""
    _drop_output()
    raise typer.Exit(REFUSED)


def _drop_output() -> None:
    """What is still to be written would fail again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Console(Console):
    def on_broken_pipe(self) -> None:
        broken_pipe()


def console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return _Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def note(text: str) -> None:
    """Something beside the result, for people: on stderr."""
    to = console(stderr=True)
    rows = _rows(to, to.width, Text(shown(text)), "", _GOES_ON) if sys.stderr.isatty() else [Text(shown(text))]
    sys.stderr.write("".join(f"{row.plain}\n" for row in rows))


def _rows(to: Console, width: int, text: Text, first: str, others: str) -> list[Text]:
    """A line as rows of that width, so that only the first of them begins where a line begins."""
    if cell_len(first) + cell_len(text.plain) <= width:
        return [Text(first) + text]
    parts = text.wrap(to, max(1, width - cell_len(others)), overflow="fold")
    return [Text(others if at else first) + part for at, part in enumerate(parts)]


class _Cell:
    """A text in a table's column, which may be too narrow for it."""

    def __init__(self, text: str) -> None:
        self._text = Text(text)

    def __rich_measure__(self, to: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(to, options, self._text)

    def __rich_console__(self, to: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from _rows(to, options.max_width, self._text, "", _OTHERS)


def encoded(value: Any) -> str:
    """JSON as this package writes it: compact, and with a lone surrogate escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    return text if text.isascii() or _encodes(text) else json.dumps(value, separators=(",", ":"), default=_plain)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not written as JSON")


class Output:
    """Where a verb's results go, in the form that is wanted there."""

    def __init__(self, *, as_json: bool | None) -> None:
        for stream in (sys.stdout, sys.stderr):
            # An old locale gets an escape where it has no such letter, not a traceback.
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")
        self.is_terminal = sys.stdout.isatty()
        self.as_json = not self.is_terminal if as_json is None else as_json
        self.console = console()

    def json(self, value: Any) -> None:
        self.json_text(encoded(value))

    def json_text(self, text: str) -> None:
        """JSON that is written already."""
        if self.is_terminal:
            text = visible.json_shown(text)
        try:
            sys.stdout.buffer.write(text.encode() + b"\n")
        except BrokenPipeError:
            broken_pipe()
        if self.is_terminal:
            self.flush()

    def flush(self) -> None:
        """What is written so far is there for whoever reads."""
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            broken_pipe()

    def text(self, text: str = "", style: str | None = None) -> None:
        """A line for people."""
        self._line(shown(text), style, "", _GOES_ON)

    def block(self, text: str) -> None:
        """A text of others in its own lines, none of which begins where a line of ours does."""
        for part in visible.lines(text):
            self._line(part, None, _OTHERS if part else "", _OTHERS)

    def _line(self, text: str, style: str | None, first: str, others: str) -> None:
        if not self.console.encoding.lower().startswith("utf"):
            text = text.translate(_PLAIN)
        styled = Text(text, style=style or "")
        width = self.console.width
        for row in _rows(self.console, width, styled, first, others) if self.is_terminal else [Text(first) + styled]:
            self.console.print(row, soft_wrap=True)

    def clipped(self, text: str) -> None:
        """A line for people that is cut off where the terminal ends."""
        self.console.print(Text(shown(text)), no_wrap=True, overflow="ellipsis", crop=True)

    def rows(
        self, columns: Sequence[str | Column], rows: Iterable[tuple[Mapping[str, Any], Sequence[str]]], none: str
    ) -> int:
        """A list: of each item its JSON and its cells. Returns how many there were; `none` is said where none is."""
        count = 0
        if self.as_json:
            for value, _ in rows:
                self.json(value)
                count += 1
            return count
        listed = [cells for _, cells in rows]
        if listed:
            self.grid(columns, listed)
        else:
            self.text(none)
        return len(listed)

    def grid(self, columns: Sequence[str | Column], rows: Sequence[Sequence[str]]) -> None:
        """A table, without the optional columns in which nothing is; nothing at all where there are no rows."""
        if not rows:
            return
        table = self._table(columns, rows)
        # On a narrow terminal lines go on in the next, which is better than a column that is not there.
        before = self.console.width
        self.console.width = max(self._least(table), before)
        self.print_table(table)
        self.console.width = before

    def fits(self, columns: Sequence[str | Column], rows: Sequence[Sequence[str]]) -> bool:
        """Whether such a table has room without lines that go on in the next."""
        return self._least(self._table(columns, rows)) <= self.console.width

    def _least(self, table: Table) -> int:
        return Measurement.get(self.console, self.console.options.update(width=_PIPE_WIDTH), table).minimum

    @staticmethod
    def _table(columns: Sequence[str | Column], rows: Sequence[Sequence[str]]) -> Table:
        kept = [
            at
            for at, column in enumerate(columns)
            if isinstance(column, str) or not column.optional or any(row[at] for row in rows)
        ]
        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
        for at in kept:
            column = columns[at]
            name, right, fold = (column, False, False) if isinstance(column, str) else column.parts
            # Rich takes the longest word for what a column needs at least, also where its cells may not be wrapped.
            whole = max(cell_len(shown(text)) for text in (name, *(row[at] for row in rows)))
            table.add_column(
                name,
                justify="right" if right else "left",
                no_wrap=not fold,
                overflow="fold" if fold else "ellipsis",
                min_width=min(whole, _NARROWEST) if fold else whole,
                # A pipe has no edge, but lines as long as a prompt are for nobody to read.
                max_width=_WIDEST_CELL if fold else None,
            )
        for row in rows:
            table.add_row(*(_Cell(shown(row[at])) for at in kept))
        return table

    def print_table(self, table: Table, width: int | None = None) -> None:
        """A table; in a pipe, without the spaces that fill its lines."""
        if self.is_terminal:
            self.console.print(table, width=width)
            return
        with self.console.capture() as captured:
            self.console.print(table, width=width)
        for line_ in captured.get().splitlines():
            self.console.out(line_.rstrip(), highlight=False)

    @contextmanager
    def paged(self) -> Iterator[None]:
        """On a terminal, what is printed inside goes through the user's pager where it is longer than a screen."""
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
        # -R: the colours are ours, and controls in what others wrote are spelled out already.
        given = shlex.split(os.environ.get("PAGER", "less -R"))
        subprocess.run(given, input=text.encode(errors="backslashreplace"), check=False)  # noqa: S603 — the user's own

    def wrapped(self, text: str, *, indent: int = 0, style: str | None = None) -> None:
        """A line for people that goes on where the terminal ends, set off so that no text of others begins a line."""
        width = max(_NARROWEST, min(self.console.width, _WIDEST_CELL) - indent - len(_GOES_ON))
        for at, part in enumerate(Text(shown(text)).wrap(self.console, width)):
            self.text(f"{'':<{indent}}{_GOES_ON if at else ''}{part.plain.rstrip()}", style)

    def facts(self, value: Mapping[str, Any], cells: Sequence[tuple[str, str]]) -> None:
        """One thing: its JSON, or its parts by name."""
        if self.as_json:
            self.json(value)
            return
        table = Table.grid(padding=(0, 2))
        table.add_column()
        table.add_column(max_width=_WIDEST_CELL)
        for name, cell in cells:
            # The second column: its lines stand apart from the names whatever they say.
            table.add_row(Text(name, style="bold"), Text("\n".join(visible.lines(cell))))
        self.print_table(table)


class Column:
    """A table's column that is not plain text: figures stand to the right, long texts go on in the next line.

    An optional one is left out where nothing is in it.
    """

    def __init__(self, name: str, *, right: bool = False, fold: bool = False, optional: bool = False) -> None:
        self.parts = (name, right, fold)
        self.optional = optional


def figures(*names: str) -> list[Column]:
    return [Column(name, right=True) for name in names]


class Progress:
    """How far something is, with its rate and the time left: on stderr if that is a terminal, after a second."""

    def __init__(self, what: str, unit: str, total: int | None = None) -> None:
        self._unit = unit
        self._done = 0
        self._start = time.monotonic()
        self._timer: Timer | None = None
        self._bar: rich.progress.Progress | None = None
        if sys.stderr.isatty():
            parts = (
                rich.progress.TextColumn("{task.description}"),
                rich.progress.BarColumn(24),
                rich.progress.TextColumn("{task.fields[state]}"),
                rich.progress.TimeRemainingColumn(compact=True),
            )
            self._bar = rich.progress.Progress(*parts, console=console(stderr=True), transient=True)
            self._task = self._bar.add_task(shown(what), total=total, state="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._timer = Timer(_PATIENCE, self._bar.start)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None and self._bar is not None:
            self._timer.cancel()
            self._timer.join()
            if self._bar.live.is_started:
                self._bar.stop()

    def advance(self, count: int = 1) -> None:
        self.reached(self._done + count)

    def reached(self, done: int, total: int | None = None, unit: str | None = None) -> None:
        self._done = done
        self._unit = unit or self._unit
        if self._bar is not None:
            rate = done / max(1e-3, time.monotonic() - self._start)
            state = f"{done:,} {self._unit}, {rate:,.0f}/s"
            self._bar.update(self._task, completed=done, total=total, state=state)

    def over(self, items: Iterable[_T]) -> Iterator[_T]:
        for item in items:
            yield item
            self.advance()
