"""`scripts/rigs NAME [--long] [--seed N] [--figures FILE]`: one rig, or `all` of them, and its figures.

The seed is printed first. The same seed makes the same plan, but scheduling still differs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reliability.rigs.catalogue import COUNTED, RIGS, Missing, Rig, run_cluster
from reliability.rigs.ground import Postgres


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/rigs", description="Puts the promises under faults.")
    parser.add_argument("name", choices=[*RIGS, "cluster", "all"])
    parser.add_argument("cluster", nargs="*", help="cluster: its URL, and the data folders of all of its servers")
    parser.add_argument("--long", action="store_true", help="as long as the figures in docs/results.md took")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--count", type=int, help=f"how many inputs to try: {', '.join(COUNTED)}")
    parser.add_argument("--figures", type=Path, help="a file to add the figures to, as JSON lines")
    given = parser.parse_args()
    if len(given.cluster) < 2 if given.name == "cluster" else given.cluster:
        parser.error("cluster needs a URL and data folders, and the other rigs need none")
    if given.name == "cluster":
        _report("cluster", given, lambda chance: run_cluster(chance, *given.cluster, long=given.long))
        return
    names = list(RIGS) if given.name == "all" else [given.name]
    for name in names:
        _run(name, RIGS[name], given)


def say(line: str) -> None:
    """Prints a line at once, for a person who watches a long run through a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _run(name: str, rig: Rig, given: argparse.Namespace) -> None:
    def run(chance: random.Random) -> dict[str, Any]:
        with Postgres() as server:
            if given.count is not None and name in COUNTED:
                return COUNTED[name](server, chance, count=given.count)
            return rig(server, chance, given.long)

    _report(name, given, run)


def _report(name: str, given: argparse.Namespace, run: Callable[[random.Random], dict[str, Any]]) -> None:
    say(f"{name}: seed {given.seed}")
    start, load = time.monotonic(), os.getloadavg()
    try:
        figures = run(random.Random(given.seed))
    except Missing as missing:
        say(f"  left out: {missing}")
        return
    figures |= {
        "took": round(time.monotonic() - start, 1),
        "load before and after": f"{load[0]:.1f}, {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        "python": platform.python_version(),
    }
    for what, figure in figures.items():
        say(f"  {what}: {figure:,}" if isinstance(figure, int | float) else f"  {what}: {figure}")
    if given.figures is not None:
        with given.figures.open("a") as lines:
            lines.write(json.dumps({"rig": name, "seed": given.seed, "long": given.long, **figures}) + "\n")


if __name__ == "__main__":
    main()
