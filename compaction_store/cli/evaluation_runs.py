"""Replays threads for `evaluate` and `autopsy`. Many threads are replayed in several processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from compaction_store.cli import choices, options
from compaction_store.cli import processes as process
from compaction_store.cli.exits import misuse
from compaction_store.cli.options import TenantOptions

if TYPE_CHECKING:
    from compaction_store import Reader
    from compaction_store.evaluation import Judge, Policy
    from compaction_store.evaluation.evaluator import Settings, ThreadRuns
    from compaction_store.language.names import NameReader

# With fewer threads than this, starting processes would take longer than replaying the threads in this process.
_LEAST_THREADS = 40
# The number of threads that a process gets at a time.
_AT_A_TIME = 4


class Setup(NamedTuple):
    """The policies by name, and the settings of the replay."""

    policies: dict[str, Policy | None]
    settings: Settings


@dataclass(frozen=True)
class Wanted:
    """The options of the command line, from which every process makes the same policies."""

    strategies: tuple[str, ...] = ()
    summarizers: tuple[str, ...] = ("extractive",)
    windows: tuple[int, ...] = ()
    reserve: int = 0
    trigger: str = "0.8"
    targets: tuple[str, ...] = ("0.5",)
    seed: int = 0
    prices: Path | None = None
    model: str | None = None
    replicates: int = 1
    planted: int = 0
    judge: str | None = None
    judge_replicates: int = 3
    keep_runs: bool = False

    def made(self) -> Setup:
        """Returns the policies and the settings. Raises an error if an option is wrong."""
        from compaction_store import tokens
        from compaction_store.evaluation import RECORDED, Prices
        from compaction_store.evaluation.evaluator import Settings, check_policies

        window = self.windows[0] if len(set(self.windows)) == 1 else None
        prices = None if self.prices is None else Prices.read(self.prices)
        settings = Settings(
            tokens.o200k_base(), self.seed, prices, self.model, window, self.replicates, self.planted, self._judge(),
            self.keep_runs,
        )  # fmt: skip
        own = () if self.planted else (RECORDED,)
        return Setup(check_policies([*own, *self._policies()], settings), settings)

    def _policies(self) -> Iterator[Policy]:
        """Yields a policy for each combination of options.

        The name of a policy gives the strategy, and the other options that differ between policies.
        """
        from compaction_store.evaluation import Policy

        if self.strategies and not self.windows:
            raise misuse("is required with --strategy", "--window")
        if self.planted and not self.strategies:
            raise misuse(
                "is required with --plant: the planted facts are not in the threads' own compactions", "--strategy"
            )
        for spec, summarizer, window, target in product(self.strategies, self.summarizers, self.windows, self.targets):
            budget = options.budget(window, self.reserve, self.trigger, target)
            assert budget is not None  # noqa: S101 — there is a window
            parts = [
                spec, *([summarizer] * (len(self.summarizers) > 1)), *([f"{window:,}"] * (len(self.windows) > 1)),
                *([f"to {target}"] * (len(self.targets) > 1)),
            ]  # fmt: skip
            yield Policy(" · ".join(parts), (choices.strategy([spec], [summarizer]),), budget)

    def _judge(self) -> Judge | None:
        from compaction_store.evaluation import Judge

        if self.judge is None:
            return None
        made = choices.summarize([self.judge], "--judge")
        if not hasattr(made, "answer"):
            raise misuse(f"must be anthropic:model=NAME or openai:model=NAME, not {self.judge!r}", "--judge")
        return Judge(made.answer, model=made.model, replicates=self.judge_replicates)


def runs(
    store: Reader,
    url: str | None,
    tenant: str,
    names: Sequence[str],
    wanted: Wanted,
    setup: Setup,
    processes: int | None = None,
) -> Iterator[ThreadRuns]:
    """Yields the result of each thread, in the order of `names`. `setup` must have been made from `wanted`."""
    from compaction_store.language.names import NameReader

    # If there are few threads, each may be long, so a process gets one at a time.
    most = _AT_A_TIME if len(names) >= _LEAST_THREADS else 1
    parts = [tuple(names[at : at + most]) for at in range(0, len(names), most)]
    count = process.count(processes, len(parts))
    # A judge counts its calls and tokens, so it must run in one process.
    if count == 1 or wanted.judge is not None or (processes is None and len(names) < _LEAST_THREADS):
        reader = NameReader()
        for name in names:
            yield _of_thread(store, name, setup, reader)
        return
    for found in process.run(count, _in_process, parts, _begin, url, tenant, wanted):
        yield from found


def _of_thread(store: Reader, name: str, setup: Setup, reader: NameReader) -> ThreadRuns:
    from compaction_store.evaluation import read_thread
    from compaction_store.evaluation.evaluator import replay_thread

    thread = read_thread(store, name, labels=setup.settings.judge is not None, names=reader)
    return replay_thread(thread, setup.policies, setup.settings)


# ---- in another process


class _Worker(NamedTuple):
    store: Reader
    setup: Setup
    reader: NameReader


_given: tuple[str | None, str, Wanted] | None = None


def _begin(url: str | None, tenant: str, wanted: Wanted) -> None:
    global _given  # noqa: PLW0603 — how a pool hands something to its processes
    _given = url, tenant, wanted


@cache
def _worker() -> _Worker:
    from compaction_store.language.names import NameReader

    assert _given is not None  # noqa: S101 — the pool has called _begin
    url, tenant, wanted = _given
    store = process.opened(TenantOptions(url=url, tenant=tenant).reader())
    return _Worker(store, wanted.made(), NameReader())


def _in_process(names: tuple[str, ...]) -> list[ThreadRuns]:
    worker = _worker()
    return [_of_thread(worker.store, name, worker.setup, worker.reader) for name in names]
