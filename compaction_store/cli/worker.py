"""A worker: compacts the threads that are due, several at once, until it is told to stop.

Any number of workers may run. Which thread is whose is decided by leases in the database, so none is compacted twice,
and the threads of a worker that was killed are taken over when its leases have run out. Told to stop, a worker begins
nothing new and finishes what it has begun; told twice, it is gone at once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Annotated, Any

import typer

from compaction_store import CompactionRun, Store, TokenBudget
from compaction_store.cli import choosing, exits, options
from compaction_store.cli.compacting import Strategy, Summarizer
from compaction_store.cli.options import Actor, AsJson, Reserve, Target, Tenant, Trigger, Url
from compaction_store.cli.output import Output, note
from compaction_store.errors import DatabaseError, InvalidInput, SchemaOutOfDate, own_text

_FIRST_REST = 60.0
_LONGEST_REST = 3600.0
_GLANCE = 0.2
_NONE_DUE = "no thread was due; one whose last attempt came to nothing is due again when it has grown"


def worker(
    window: Annotated[
        int, typer.Option("--window", metavar="TOKENS", min=1, help="The model's context window.", show_default=False)
    ],
    strategy: Strategy = ["sliding-window"],  # noqa: B006 — never changed
    summarizer: Summarizer = ["extractive"],  # noqa: B006 — never changed
    reserve: Reserve = 0,
    trigger: Trigger = "0.8",
    target: Target = "0.5",
    parallel: Annotated[int, typer.Option("--parallel", metavar="N", min=1, max=256, help="Threads at once.")] = 4,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, help="How often to look for threads that are due.")
    ] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Stop when nothing is due any more.")] = False,
    actor: Actor = None,
    url: Url = None,
    tenant: Tenant = "default",
    as_json: AsJson = None,
) -> None:
    """Compacts the threads whose view is over the budget, as they come to be. Run as many workers as you like.

    SIGTERM or Ctrl-C: it finishes what it has begun and exits with 0; a second one ends it at once. A thread that fails
    rests for a minute and then longer, up to an hour; the failure is on record.
    """
    budget = options.budget(window, reserve, trigger, target)
    if budget is None:  # pragma: no cover — typer asks for a window
        raise InvalidInput("a worker needs --window")
    callback = choosing.strategy(strategy, summarizer)
    out = Output(as_json=as_json)
    with options.store(url, tenant, pool_size=parallel + 1) as store, _told_to_stop() as stop:
        shift = _Shift(store, callback, budget, actor, parallel, stop, out)
        note(f"a worker of tenant {tenant!r}: threads above {budget.trigger_tokens:,} tokens, {parallel} at once")
        with ThreadPoolExecutor(parallel, thread_name_prefix="compact") as pool:
            while not stop.is_set() and (shift.round(pool) or not once):
                stop.wait(0 if once else every)
            shift.finish()
        note(shift.summary)
    if once and shift.failures:
        raise typer.Exit(exits.REFUSED)


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    stop = threading.Event()

    def told(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            # A summary may take minutes, and a thread that waits for one cannot be interrupted.
            os._exit(128 + number)
        stop.set()

    before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class _Rest:
    """How long a thread that failed is left alone."""

    seconds: float
    until: float


@dataclass
class _Shift:
    store: Store
    callback: Callable[..., Any]
    budget: TokenBudget
    actor: str | None
    parallel: int
    stop: threading.Event
    out: Output
    begun: int = 0
    compacted: int = 0
    failures: int = 0
    _busy: dict[Future[CompactionRun], tuple[str, float]] = field(default_factory=dict)
    _resting: dict[str, _Rest] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        return f"{self.compacted:,} compacted, {self.failures:,} failed" if self.begun else _NONE_DUE

    def round(self, pool: ThreadPoolExecutor) -> bool:
        """Begins all that is due now. Whether there was anything, or is anything left to finish."""
        begun = 0
        try:
            for thread in self.store.due(self.budget):
                while len(self._busy) >= self.parallel and not self.stop.is_set():
                    self._reap(_GLANCE)
                if self.stop.is_set():
                    break
                if self._is_free(thread.thread_id):
                    run = pool.submit(
                        self.store.compact, thread.thread_id, self.callback, budget=self.budget, actor=self.actor
                    )
                    self._busy[run] = thread.thread_id, time.monotonic()
                    begun += 1
                    self.begun += 1
        except SchemaOutOfDate:
            raise
        except DatabaseError as error:
            # A worker outlives a restart of its database.
            self._tell(None, {"error": type(error).__name__}, str(error))
            begun += 1
            self.stop.wait(1)
        self._reap(_GLANCE if begun == 0 and self._busy else 0)
        return bool(begun or self._busy)

    def finish(self) -> None:
        if self._busy and self.stop.is_set():
            note(f"stopping: {len(self._busy)} begun are being finished; once more ends it at once")
        while self._busy:
            self._reap(_GLANCE)

    def _is_free(self, thread_id: str) -> bool:
        if any(thread_id == busy for busy, _ in self._busy.values()):
            return False
        rest = self._resting.get(thread_id)
        return rest is None or rest.until <= time.monotonic()

    def _reap(self, seconds: float) -> None:
        done, _ = wait(self._busy, timeout=seconds, return_when=FIRST_COMPLETED)
        for run in done:
            thread_id, start = self._busy.pop(run)
            took = time.monotonic() - start
            error = run.exception()
            if error is not None:
                self._fail(thread_id)
                # Another's error may quote a message.
                told = own_text(error) or type(error).__name__
                self._tell(thread_id, {"error": type(error).__name__, "seconds": round(took, 3)}, told)
                continue
            result = run.result()
            self.compacted += result.applied
            if result.applied or not (result.records or result.errors):
                self._resting.pop(thread_id, None)
            else:
                self._fail(thread_id)
            self._tell_result(thread_id, result, took)

    def _fail(self, thread_id: str) -> None:
        self.failures += 1
        rest = self._resting.get(thread_id)
        seconds = _FIRST_REST if rest is None else min(_LONGEST_REST, 2 * rest.seconds)
        self._resting[thread_id] = _Rest(seconds, time.monotonic() + seconds)

    def _tell_result(self, thread_id: str, result: CompactionRun, took: float) -> None:
        outcomes = [record.outcome for record in result.records]
        parts = {
            "reason": result.reason, "applied": outcomes.count("applied"), "rejected": outcomes.count("rejected"),
            "failed": outcomes.count("failed"), "tokens": result.view.tokens, "seconds": round(took, 3),
        }  # fmt: skip
        text = f"{result.reason}: {result.view.tokens:,} tokens now, {parts['applied']} applied, {took:.1f} s"
        self._tell(thread_id, parts, text)

    def _tell(self, thread_id: str | None, parts: dict[str, Any], text: str) -> None:
        if self.out.as_json:
            self.out.json({"thread_id": thread_id} | parts)
        else:
            self.out.text(text if thread_id is None else f"{thread_id}: {text}")
        self.out.flush()
