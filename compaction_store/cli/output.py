"""What is written: tables for people, JSON lines for programs, progress for those who wait.

A terminal gets a table and a pipe gets JSON lines, unless `--json` or `--table` says otherwise. What others wrote is
shown with its control characters spelled out, so that no message can move a cursor or change a colour. JSON is written
as it is stored.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from threading import Timer
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar
from uuid import UUID

import rich.progress
import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from compaction_store.cli.exits import BROKEN_PIPE, REFUSED

_T = TypeVar("_T")
# What a terminal would obey instead of showing: controls of both sets, and what turns the direction of writing.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# What stands for the letters of a picture where a locale has none.
_PLAIN = str.maketrans("·█▒│└─▁▂▃▄▅▆▇…", ".#%|+-___==##~")
# Wide enough that nothing is cut: a pipe has no edge.
_PIPE_WIDTH = 4000
_PATIENCE = 1.0
_NARROWEST = 9


def shown(text: str) -> str:
    """A text of others, harmless on a terminal."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def line(text: str) -> str:
    """The same in one line."""
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
    sys.stderr.write(f"{shown(text)}\n")


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
            # The one kind of control that JSON does not escape.
            text = re.sub(r"[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)
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
        if not self.console.encoding.lower().startswith("utf"):
            text = text.translate(_PLAIN)
        self.console.print(Text(shown(text), style=style or ""), soft_wrap=True)

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
        kept = [
            at
            for at, column in enumerate(columns)
            if isinstance(column, str) or not column.optional or any(row[at] for row in rows)
        ]
        if not rows:
            return
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
            )
        for row in rows:
            table.add_row(*(Text(shown(row[at])) for at in kept))
        # On a narrow terminal lines go on in the next, which is better than a column that is not there.
        least = Measurement.get(self.console, self.console.options.update(width=_PIPE_WIDTH), table).minimum
        before = self.console.width
        self.console.width = max(least, before)
        self.console.print(table)
        self.console.width = before

    def facts(self, value: Mapping[str, Any], cells: Sequence[tuple[str, str]]) -> None:
        """One thing: its JSON, or its parts by name."""
        if self.as_json:
            self.json(value)
            return
        table = Table.grid(padding=(0, 2))
        for name, cell in cells:
            table.add_row(Text(name, style="bold"), Text(shown(cell)))
        self.console.print(table)


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
