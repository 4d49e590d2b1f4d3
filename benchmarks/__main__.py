"""Times plain psycopg, this store, and other installed stores (peers), in one interleaved run on one server.

Every promised figure is a row of the result. Each round runs all parts in random order; within a part, the compared
sides take turns. Without a URL, an embedded Postgres is started in a temporary folder. With a URL, the run creates its
own databases on that server, and removes them at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import databases, floor, page, plot
from benchmarks.adapters import Adapters
from benchmarks.against import Peers
from benchmarks.appending import Appending, Batches, Lengths, ManyThreads
from benchmarks.contest import Bench, Contest
from benchmarks.corpus import DOCS
from benchmarks.crowds import BatchWriters, Callers, Writers
from benchmarks.disk import Disk
from benchmarks.growth import ManyRecords, Million, MillionThreads
from benchmarks.loading import Loading
from benchmarks.peers import ENTRIES, version
from benchmarks.pgbench import Function
from benchmarks.reading import Audits, Reading, Views, WideViews
from benchmarks.streaming import LongStreaming, Streaming
from benchmarks.turns import Turns
from compaction_store import migrate

USUAL: tuple[type[Contest], ...] = (
    Appending, Lengths, Function, Writers, Callers, Batches, Loading, Reading, Views, Audits, Streaming, Disk, Peers,
    Adapters,
)  # fmt: skip
LONG: tuple[type[Contest], ...] = (
    BatchWriters, Million, MillionThreads, ManyRecords, ManyThreads, WideViews, LongStreaming, Turns,
)  # fmt: skip
# Parts that run in one round only, because sizes on disk are the same in every round.
_ONCE: tuple[type[Contest], ...] = (Disk,)
_PAGE = DOCS / "results.md"
_PICTURE = DOCS / "pictures" / "performance.svg"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    made.add_argument("url", nargs="?", help="the URL of a server, with a superuser; by default, an embedded Postgres")
    names = [contest.name for contest in (*USUAL, *LONG)]
    made.add_argument(
        "--only", nargs="+", choices=names, metavar="PART", help=f"run only these parts: {', '.join(names)}"
    )
    made.add_argument("--rounds", type=int, help="how many rounds to run; by default 5, or 2 with --quick")
    made.add_argument("--quick", action="store_true", help="run fewer rounds with fewer samples, to try something out")
    made.add_argument(
        "--long", action="store_true", help="also run the parts with a million messages or a million threads"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write every figure as JSON into this file")
    made.add_argument("--write", action="store_true", help="write docs/results.md and its picture")
    return made


def chosen(options: argparse.Namespace) -> Sequence[type[Contest]]:
    if options.only:
        return [contest for contest in (*USUAL, *LONG) if contest.name in options.only]
    return (*USUAL, *LONG) if options.long else USUAL


def run(url: str, contests: Sequence[type[Contest]], rounds: int, *, quick: bool) -> page.Run:
    start = time.monotonic()
    with ExitStack() as stack:
        bench = Bench(url, quick=quick, stack=stack)
        floor.create(bench.raw)
        made = []
        for contest in contests:
            _progress(f"preparing {contest.name}", start)
            made.append(contest(bench))
        bench.raw.execute("VACUUM ANALYZE")
        played: dict[type[Contest], list[Mapping[str, Sequence[float]]]] = {contest: [] for contest in contests}
        for number in range(1, rounds + 1):
            for one in random.sample(made, len(made)):
                if number == 1 or not isinstance(one, _ONCE):
                    _progress(f"round {number} of {rounds}: {one.name}", start)
                    played[type(one)].append(one.round())
        about = _about(bench, rounds)
    _progress("", start)
    return page.Run(about, [page.Played(contest, samples) for contest, samples in played.items()])


def _progress(what: str, start: float) -> None:
    """Prints the progress on the current line of the terminal."""
    if sys.stderr.isatty():
        told = f"{time.monotonic() - start:5.0f} s  {what}" if what else ""
        print(f"\r\x1b[K{told}", end="", file=sys.stderr, flush=True)


def _about(bench: Bench, rounds: int) -> dict[str, str]:
    server = bench.raw.info.server_version
    settings = {
        name: bench.raw.execute("SELECT current_setting(%s)", (name,)).fetchone()
        for name in ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
    }
    # quicktok counts the tokens where the extra `fast` is installed.
    packages = dict.fromkeys([*(entry.package for entry in ENTRIES), "quicktok-v1", "tiktoken"])
    installed = [f"{package} {found}" for package in packages if (found := version(package))]
    kind = "a quick run, with unreliable figures: " if bench.quick else ""
    return {
        "Date": f"{datetime.now(UTC):%Y-%m-%d}",
        "Machine": f"{os.cpu_count()} cores, {_processor()}, {platform.system()}",
        "Postgres": f"{server // 10000}.{server % 10000}, "
        + ", ".join(f"{name} {value[0]}" for name, value in settings.items() if value),
        "Python": platform.python_version(),
        "Packages": ", ".join(installed),
        "Run": f"{kind}{rounds} round{'' if rounds == 1 else 's'}, in a shuffled order",
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def write(done: page.Run) -> None:
    _PAGE.write_text(page.replaced(_PAGE.read_text(encoding="utf-8"), page.markdown(done)), encoding="utf-8")
    for played in done.played:
        if played.contest is Peers:
            _PICTURE.write_text(plot.svg(page.against(played.rounds)), encoding="utf-8")


def main() -> None:
    options = parser().parse_args()
    if options.write and options.only:
        raise SystemExit("--write must not be given with --only")
    rounds = options.rounds or (2 if options.quick else 5)
    with databases.server(options.url) as server, databases.beside(server) as url:
        migrate.upgrade(url)
        done = run(url, chosen(options), rounds, quick=options.quick)
    print(page.markdown(done))
    if options.json:
        options.json.write_text(json.dumps(page.document(done), indent=2) + "\n", encoding="utf-8")
    if options.write:
        write(done)


if __name__ == "__main__":
    main()
