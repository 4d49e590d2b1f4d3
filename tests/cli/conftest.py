"""Fixtures: a database, the program on it, and a thread with compactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import compaction_store as cs
from cli.program import SECRET, THREAD, Forks, Run
from compaction_store import Summary
from compaction_store.strategies import AssistantRuns


@pytest.fixture
def run(forks: Forks, url: str, tmp_path: Path) -> Run:
    return Run(forks, tmp_path, url)


@pytest.fixture
def store(url: str) -> Iterator[cs.Store]:
    with cs.Store.open(url) as opened:
        yield opened


def turn(number: int) -> list[dict[str, Any]]:
    """Returns a user's question, two calls with their results, and a reply. Each has a secret."""
    long = f"{SECRET} " + " ".join(f"line {i} of what the harbour master wrote" for i in range(20))
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{number}: what did he write? {SECRET}"}]
    for part in (1, 2):
        function = {"name": "read_log", "arguments": f'{{"page":"{SECRET}"}}'}
        call = {"id": f"c{number}-{part}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}-{part}", "content": long})
    messages.append({"role": "assistant", "content": f"He wrote of the tide. {SECRET}"})
    return messages


@pytest.fixture
def filled(store: cs.Store) -> cs.Store:
    """Makes a thread of 25 messages with two active records and a rejected one."""
    for number in range(4):
        *before, reply = turn(number)
        store.append(THREAD, before)
        store.append(THREAD, reply, view=store.view(THREAD))
    store.append(THREAD, {"role": "user", "content": "and now?"})
    store.compact(THREAD, AssistantRuns(Summary(f"The tide, {SECRET}."), tool_results=True, retain=12), actor="nightly")

    class TooLong:
        name = "too-long"

        def __call__(self, ctx: cs.CompactionContext) -> None:
            ctx.compact(14, 18, SECRET * 900)

    store.compact(THREAD, TooLong(), actor="somebody")
    return store
