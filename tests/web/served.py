"""Starts the verb `serve` as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(url: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Starts the verb on a free port, and returns the process and the address that it prints."""
    command = [sys.executable, "-m", "compaction_store", "serve", "--url", url, "--listen", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert first.startswith("serving http://127.0.0.1:"), first + process.stderr.read()
        yield process, first.removeprefix("serving ").strip()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
