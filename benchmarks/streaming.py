"""Times verifying and replaying whole threads, each in a separate process so that its memory can be measured.

python -m benchmarks.streaming URL verify|replay THREAD
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from benchmarks.appending import fill
from benchmarks.contest import Bench, Contest
from benchmarks.rows import Row
from compaction_store import Store

_MOST_BYTES = 200e6


class Streaming(Contest):
    title = "Verifying and replaying, in one process"
    name = "verify"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "verify 100,000 messages", "verify", "Three hashes for each message in Python, and reading every byte.",
            unit="rate", most=1 / 40_000,
        ),
        Row(
            "verify 100,000 messages, peak memory", "verify memory", "Python and the libraries; messages are read in"
            " pages.", unit="memory", most=_MOST_BYTES,
        ),
        Row("replay 100,000 messages", "replay", "Parsing, and creating an object for each message.", unit="rate"),
        Row(
            "replay 100,000 messages, peak memory", "replay memory", "As for verify.", unit="memory",
            most=_MOST_BYTES,
        ),
    )  # fmt: skip
    _length = 100_000

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        fill(bench.store, f"streamed-{self._length}", self._length)

    def round(self) -> Mapping[str, Sequence[float]]:
        found = {}
        for what in ("verify", "replay"):
            command = [
                sys.executable,
                "-m",
                "benchmarks.streaming",
                self.bench.app_url,
                what,
                f"streamed-{self._length}",
            ]
            done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 — a module of this package
            told = json.loads(done.stdout)
            assert told["messages"] == self._length
            found[what] = [told["seconds"] / self._length]
            found[f"{what} memory"] = [float(told["bytes"])]
        return found


class LongStreaming(Streaming):
    name = "verify-million"
    rows: ClassVar[Sequence[Row]] = tuple(
        row._replace(name=row.name.replace("100,000", "1,000,000")) for row in Streaming.rows
    )
    _length = 1_000_000


def main() -> None:
    url, what, thread = sys.argv[1:]
    with Store.open(url) as store:
        start = time.perf_counter()
        if what == "verify":
            report = store.audit.verify(thread)
            assert not report.findings
            messages = report.entries
        else:
            messages = sum(message.payload is not None for message in store.replay(thread))
        seconds = time.perf_counter() - start
    print(json.dumps({"messages": messages, "seconds": seconds, "bytes": _peak()}))


def _peak() -> int:
    """Returns the peak memory of this process. On Linux, does not use getrusage, which may return the parent's peak."""
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"^VmHWM:\s*(\d+) kB", status.read_text(encoding="ascii"), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    import resource  # noqa: PLC0415 — Windows does not have it

    # macOS has no /proc, and getrusage returns bytes there.
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if __name__ == "__main__":
    main()
