"""What the tests of long-running commands share: slow callbacks, a thread that is due, and what a command printed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import compaction_store as cs
from cli.program import SECRET, Run, Running

NAME = "the-name-of-a-thread"
#: The thread for which `slow` writes a summary that is longer than what it replaces.
LONGER = "longer"
CALLBACKS = f"""
import pathlib, time, uuid

def slow(ctx):
    pathlib.Path(f"begun-{{uuid.uuid4()}}").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    text = "all of it, and more " * 9999 if ctx.thread_id == {LONGER!r} else "all of it"
    ctx.compact(ctx.elements[0].seq, ctx.elements[-3].end_seq, text)

def mended(ctx):
    if not pathlib.Path("go").exists():
        raise ValueError(str(ctx.elements[0].message))
    ctx.compact(ctx.elements[0].seq, ctx.elements[-3].end_seq, "all of it")
"""


def lines(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def served(said: Callable[[], str]) -> str:
    """Waits for the address of the pages or of the API."""
    until(lambda: "serving http" in said())
    found = re.search(r"serving (http[^\s\"]+)", said())
    assert found is not None
    return found[1]


def until(true: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def fill(store: cs.Store, name: str = NAME) -> None:
    store.append(name, [{"role": "user", "content": f"{SECRET} " + f"{i} and the tide " * 40} for i in range(12)])


class Service(NamedTuple):
    """A command under way."""

    process: Running
    path: Path
    metrics: str

    @property
    def said(self) -> str:
        return self.path.read_text()

    def lines(self) -> list[dict[str, Any]]:
        return lines(self.said)

    def served(self) -> str:
        """Returns the address of the pages or of the API."""
        return served(lambda: self.said)


@contextmanager
def running(run: Run, *arguments: str, **more: str) -> Iterator[Service]:
    (run.folder / "ours.py").write_text(CALLBACKS)
    with run.in_background(*arguments, "--metrics", "127.0.0.1:0", **more) as (process, path):
        until(lambda: "/metrics" in path.read_text())
        found = re.search(r"metrics at (http://127\.0\.0\.1:\d+)/metrics", path.read_text())
        assert found is not None
        yield Service(process, path, found[1])
