"""Turns of many processes: one at a time, none lost, and a dead or stopped holder is replaced and refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

import compaction_store as cs
from compaction_store.errors import TurnTimeout

PROCESSES, TURNS = 16, 50
# Every process waits for a line before it begins, so that all are ready.
_WORK = """
import sys
import compaction_store as cs
url, who, turns = sys.argv[1], sys.argv[2], int(sys.argv[3])
with cs.Store.open(url, pool_size=2) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(turns):
        with store.turn("t", wait=300) as turn:
            turn.append({"role": "user", "content": f"{who} {number}"}, tokens=1)
            assert store._db.engine.pool.checkedout() == 0, "a connection is held while the turn lasts"
            turn.append({"role": "assistant", "content": f"{who} {number}"}, tokens=1)
            assert turn.others() == ()
"""
_HOLD = """
import sys
import compaction_store as cs
from compaction_store.errors import TurnLost
try:
    with cs.Store.open(sys.argv[1]) as store, store.turn("t", lease=1, actor="the one that stops") as turn:
        turn.append({"role": "user", "content": "mine"})
        print("ready", flush=True)
        sys.stdin.readline()
        turn.append({"role": "assistant", "content": "late"})
except TurnLost:
    print("lost", flush=True)
"""


@contextmanager
def process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        (sys.executable, "-c", code, *map(str, arguments)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


def line(of: subprocess.Popen[str]) -> str:
    assert of.stdout is not None
    return of.stdout.readline().strip()


def proceed(one: subprocess.Popen[str]) -> None:
    assert one.stdin is not None
    one.stdin.write("\n")
    one.stdin.flush()


def test_sixteen_processes_take_fifty_turns_each_one_at_a_time(url: str, superuser: psycopg.Connection[Any]) -> None:
    with ExitStack() as stack:
        working = [stack.enter_context(process(_WORK, url, who, TURNS)) for who in range(PROCESSES)]
        assert [line(one) for one in working] == ["ready"] * PROCESSES
        for one in working:
            proceed(one)
        assert [one.wait(240) for one in working] == [0] * PROCESSES
    with cs.Store.open(url) as store:
        said = [
            (message.payload["role"], message.payload["content"]) for message in store.replay("t") if message.payload
        ]
        assert store.audit.verify("t").findings == ()
    turns = list(zip(said[::2], said[1::2], strict=True))
    assert all(asked == ("user", text) for asked, (_, text) in turns)
    assert all(role == "assistant" for _, (role, _) in turns)
    for who in range(PROCESSES):
        mine = [text for (_, text), _ in turns if text.split()[0] == str(who)]
        assert mine == [f"{who} {number}" for number in range(TURNS)]
    assert superuser.execute("SELECT count(*) FROM compaction_store.turns").fetchall() == [(0,)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_holder_that_was_killed_or_stopped_is_replaced_after_its_lease(url: str, how: signal.Signals) -> None:
    with cs.Store.open(url) as store, process(_HOLD, url) as holder:
        assert line(holder) == "ready"
        holder.send_signal(how)
        with pytest.raises(TurnTimeout) as caught, store.turn("t", wait=0):
            pass
        assert caught.value.actor == "the one that stops"
        with store.turn("t", wait=30) as turn:
            assert turn.until is not None
            assert caught.value.until is not None
            if how == signal.SIGSTOP:
                # It wakes up in the middle of the next turn, and is refused before it does harm.
                holder.send_signal(signal.SIGCONT)
                proceed(holder)
                assert line(holder) == "lost"
            turn.append({"role": "assistant", "content": "mine now"})
            assert turn.others() == ()
        texts = [message.payload["content"] for message in store.replay("t") if message.payload]
        assert texts == ["mine", "mine now"]
