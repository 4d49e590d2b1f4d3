"""ProgressBar bars on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from types import TracebackType
from typing import Self, TypeVar

import rich.progress

from compaction_store.audit.safe_text import shown
from compaction_store.cli.output import bars, console

_T = TypeVar("_T")
_DELAY = 1.0


class ProgressBar:
    """A progress bar on stderr, if that is a terminal, with the rate and the time left.

    The bar appears after a second. When the command prints something on the terminal, the bar is hidden for a second.
    """

    def __init__(self, what: str, unit: str, total: int | None = None) -> None:
        self._unit = unit
        self._done = 0
        self._start = time.monotonic()
        self._timer: Timer | None = None
        self._lock = Lock()
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
            self._appear_later(self._bar)
            bars.append(self._hidden)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None and self._bar is not None:
            bars.remove(self._hidden)
            self._timer.cancel()
            self._timer.join()
            if self._bar.live.is_started:
                self._bar.stop()

    def _appear_later(self, bar: rich.progress.Progress) -> None:
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
            rate = done / max(1e-3, time.monotonic() - self._start)
            state = f"{done:,} {self._unit}, {rate:,.0f}/s"
            self._bar.update(self._task, completed=done, total=total, state=state)

    def over(self, items: Iterable[_T]) -> Iterator[_T]:
        for item in items:
            yield item
            self.advance()
