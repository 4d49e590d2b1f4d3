"""What the tests of long-running commands share: slow callbacks, a thread that is due, and what a command printed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import compaction_store as cs
from cli.program import SECRET

NAME = "the-name-of-a-thread"
CALLBACKS = """
import pathlib, time, uuid

def slow(ctx):
    pathlib.Path(f"begun-{uuid.uuid4()}").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    ctx.compact(ctx.elements[0].seq, ctx.elements[-3].end_seq, "all of it")

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
