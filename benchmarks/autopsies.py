"""Measures `compaction-store autopsy` on sessions of Claude Code that it makes up.

    python -m benchmarks.autopsies [--megabytes 200] [--each 4] [--processes 1]

The sessions have the proportions of real ones: about half of each file are messages, the rest repeats tools' results
and says where a line belongs. They are imported into a new embedded Postgres in a folder that is removed afterwards.
The processor time is that of the program's processes, without the server's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORDS = (  # noqa: SIM905 — a list of quoted words is not readable
    "the parser of orders reads a ledger when user asks for refund and checks that every parcel was booked before"
    " gateway sends it again because batch ran twice"
).split()
TOOLS = ("Read", "Read", "Bash", "Grep", "Edit")
CALLS_BETWEEN_COMPACTIONS = 150
EDITED = ("old_string", "new_string")


class Session:
    """The lines of one session, until they have a size."""

    def __init__(self, dice: random.Random, size: int) -> None:
        self.id = str(uuid.UUID(int=dice.getrandbits(128), version=4))
        self._dice = dice
        self._size = size
        self._parent: str | None = None
        self._count = 0

    def lines(self) -> Iterator[str]:
        written = calls = 0
        while written < self._size:
            for line in self._turn(calls):
                written += len(line)
                yield line
            calls += 1

    def _turn(self, number: int) -> Iterator[str]:
        dice = self._dice
        if number % 12 == 0:
            rule = " Never push to main." if number % 240 == 0 else ""
            yield self._message("user", f"{self._prose(30)} in {self._path()}, order {self._order()}.{rule}")
        tool, call = dice.choice(TOOLS), f"toolu_{dice.getrandbits(90):x}"
        given = self._given(tool)
        use = {"type": "tool_use", "id": call, "name": tool, "input": given}
        usage = {"input_tokens": 4, "cache_read_input_tokens": dice.randint(10_000, 90_000), "output_tokens": 300}
        said = {"type": "text", "text": self._prose(30)}
        yield self._message("assistant", [said, use], usage=usage, model="claude-sonnet-4-5")
        text = self._code(dice.randint(5, 120)) if tool in ("Read", "Grep") else self._prose(dice.randint(20, 300))
        result = {"tool_use_id": call, "type": "tool_result", "content": text}
        more = {"originalFile": self._code(60), **given} if tool == "Edit" else {"stdout": text, "stderr": ""}
        yield self._message("user", [result], toolUseResult=more)
        if number % CALLS_BETWEEN_COMPACTIONS == CALLS_BETWEEN_COMPACTIONS - 1:
            about = {"trigger": "auto", "preTokens": 155_000}
            yield self._line("system", subtype="compact_boundary", compactMetadata=about)
            text = f"This session is being continued. {self._prose(600)} {self._path()} {self._order()}"
            yield self._message("user", text, isCompactSummary=True)

    def _given(self, tool: str) -> dict[str, Any]:
        if tool == "Bash":
            return {"command": f"python -m pytest tests/test_{self._dice.randint(1, 40)}.py"}
        if tool == "Grep":
            return {"pattern": f"load_{self._dice.randint(1, 99)}", "path": "src"}
        edited = {name: self._code(5) for name in EDITED} if tool == "Edit" else {}
        return {"file_path": self._path(), **edited}

    def _message(self, role: str, content: Any, **more: Any) -> str:
        of_message = {name: more.pop(name) for name in ("usage", "model") if name in more}
        return self._line(role, message={"role": role, "content": content, **of_message}, **more)

    def _line(self, kind: str, **fields: Any) -> str:
        self._count += 1
        own = str(uuid.UUID(int=self._dice.getrandbits(128), version=4))
        day, minute = 1 + self._count // 1440 % 28, self._count % 1440
        known = {
            "parentUuid": self._parent, "isSidechain": False, "userType": "external", "cwd": "/home/anna/shop",
            "sessionId": self.id, "version": "2.0.14", "gitBranch": "main", "type": kind, "uuid": own,
            "timestamp": f"2026-10-{day:02d}T{minute // 60:02d}:{minute % 60:02d}:00.000Z",
        }  # fmt: skip
        self._parent = own
        return json.dumps(known | fields, ensure_ascii=False)

    def _prose(self, count: int) -> str:
        return " ".join(self._dice.choices(WORDS, k=count))

    def _code(self, count: int) -> str:
        return "\n".join(
            f"{n:6d}\u2192    def {self._dice.choice(WORDS)}_rows{self._dice.randint(1, 400)}(self, value: int):  #"
            f" {self._prose(4)}"
            for n in range(count)
        )

    def _path(self) -> str:
        return f"src/module_{self._dice.randint(1, 60)}.py"

    def _order(self) -> str:
        return f"ORD-{self._dice.randint(1000, 1400)}"


def write(folder: Path, size: int, each: int) -> int:
    """Writes sessions of about `each` bytes until the folder has `size` bytes. Returns its size."""
    folder.mkdir(parents=True)
    dice, written = random.Random(7), 0
    while written < size:
        session = Session(dice, min(each, size))
        path = folder / f"{session.id}.jsonl"
        path.write_text("\n".join(session.lines()) + "\n", encoding="utf-8")
        written += path.stat().st_size
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--each", type=float, default=4, help="megabytes of a session")
    parser.add_argument("--processes", type=int)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        size = write(Path(place, "sessions"), int(given.megabytes * 1e6), int(given.each * 1e6))
        command = [sys.executable, "-m", "compaction_store", "autopsy", str(Path(place, "sessions")), "--json"]
        command += [] if given.processes is None else ["--processes", str(given.processes)]
        environment = os.environ | {"XDG_DATA_HOME": place, "COMPACTION_STORE_LINGER": "0"}
        environment.pop("COMPACTION_STORE_URL", None)
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)  # noqa: S603
        seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = json.loads(done.stdout)
    said = f"{size / 1e6:.0f} MB, {found['sessions']} sessions, {len(found['losses']):,} losses"
    print(f"{said}: {seconds:.0f} s, {size / 1e6 / seconds:.1f} MB/s")
    print(f"{spent:.0f} s of processor in the program; the largest process took {after.ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
