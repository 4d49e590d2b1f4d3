"""Runs the functional tests with several Pythons and servers. --write puts the results into docs/versions.md.

The Python that runs this script is tested with an embedded Postgres and with each --server. Every --python is tested
with an embedded Postgres, in its own virtual environment. Servers must be disposable, and their logins must be
superusers. With --no-embedded, only the servers are tested.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psycopg

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "versions.md"
SUITE = ("tests/pure", "tests/database", "tests/summarizers", "tests/cli", "tests/importers")
BEGIN, END = "<!-- Written by scripts/versions.py -->", "<!-- Up to here -->"


class Tried(NamedTuple):
    """One test run: the Python, the server, the folders of tests, and how many tests passed, failed or were skipped."""

    python: str
    psycopg: str
    postgres: str
    of: str
    tests: str
    date: str


def environment(python: str) -> str:
    """Makes a virtual environment with the libraries of the tests, and returns the path of its Python."""
    folder = ROOT / ".venv-versions" / version_of(python)
    given = {**os.environ, "PYTHON": python, "environment": str(folder), "extras": "test"}
    subprocess.run(["bash", "-c", "set -e; source scripts/venv"], cwd=ROOT, env=given, check=True)
    return str(folder / "bin" / "python")


def version_of(python: str, of: str = "platform.python_version()", imports: str = "platform") -> str:
    return subprocess.check_output([python, "-c", f"import {imports}; print({of})"], text=True).strip()


def tried(python: str, server: str | None, folders: Sequence[str], processes: int) -> Tried:
    """Runs the tests. Without a server, each worker starts an embedded one."""
    given = {name: value for name, value in os.environ.items() if name != "COMPACTION_STORE_TEST_URL"}
    postgres = "embedded"
    if server is not None:
        given["COMPACTION_STORE_TEST_URL"] = server
        with psycopg.connect(server) as connection:
            version = connection.info.server_version
        postgres = f"{version // 10000}.{version % 10000}"
    workers = ["-p", "no:xdist"] if processes == 1 else ["-n", str(processes), "--dist", "worksteal"]
    command = [python, "-m", "pytest", "-q", *workers, *folders]
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    print(done.stdout[-3000:], flush=True)
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)", done.stdout.strip().splitlines()[-1])
    driver = version_of(python, "psycopg.__version__", "psycopg")
    of = ", ".join(f"`{folder.removeprefix('tests/')}`" for folder in folders)
    return Tried(version_of(python), driver, postgres, of, ", ".join(counts), f"{datetime.now(UTC):%Y-%m-%d}")


def all_tried(
    pythons: Sequence[str], servers: Sequence[str | None], folders: Sequence[str], processes: int
) -> Iterator[Tried]:
    for server in servers:
        yield tried(sys.executable, server, folders, processes)
    for python in pythons:
        yield tried(environment(python), None, folders, processes)


def written(page: str) -> Iterator[Tried]:
    """Yields the rows of the table that is on the page now."""
    for line in page.partition(BEGIN)[2].partition(END)[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(Tried._fields) and cells[0][0].isdigit():
            yield Tried(*cells)


def table(rows: Iterable[Tried]) -> str:
    lines = ["| Python | psycopg | Postgres | tests of | result | date |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in sorted(rows, key=lambda row: (_numbers(row.python), row.postgres))]
    return "\n".join(lines)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], metavar="PATH", help="another Python; repeatable")
    parser.add_argument("--server", action="append", default=[], metavar="URL", help="a disposable server; repeatable")
    parser.add_argument("--no-embedded", action="store_true", help="test only the servers")
    parser.add_argument("--tests", nargs="+", default=SUITE, metavar="FOLDER", help="run these tests instead")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2, help="how many processes run the tests")
    parser.add_argument("--write", action="store_true", help=f"write the results into {PAGE.relative_to(ROOT)}")
    given = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    rows = {(row.python, row.postgres, row.of): row for row in written(page)}
    servers = given.server if given.no_embedded else [None, *given.server]
    for row in all_tried(given.python, servers, given.tests, given.processes):
        rows[row.python, row.postgres, row.of] = row
        made = table(rows.values())
        if given.write:
            before, after = page.partition(BEGIN)[0], page.partition(END)[2]
            PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}", encoding="utf-8")
    print(made)


if __name__ == "__main__":
    main()
