"""Leases of compactions in several processes: a run that died or stalled delays the others for less than a minute."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

import compaction_store as cs

BUDGET = cs.TokenBudget(1000)
_HOLD = """
import sys
import compaction_store as cs

def slow(ctx):
    print("begun", flush=True)
    sys.stdin.readline()
    ctx.compact(1, 10, "what the slow one says")

with cs.Store.open(sys.argv[1]) as store:
    try:
        run = store.compact(sys.argv[2], slow, budget=cs.TokenBudget(1000), actor="the first")
        print(run.reason, flush=True)
    except cs.SpanConflict as error:
        print(type(error).__name__, flush=True)
"""


@contextmanager
def holding(url: str, thread: str) -> Iterator[subprocess.Popen[str]]:
    """A process whose run has begun."""
    code = (sys.executable, "-c", _HOLD, url, thread)
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


def fold(ctx: cs.CompactionContext) -> None:
    ctx.compact(1, 10, "what the second says")


def test_a_run_that_was_killed_or_stopped_is_replaced_within_a_minute(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with cs.Store.open(url, actor="the second") as store, ExitStack() as stack, ThreadPoolExecutor() as pool:
        for name in ("killed", "stopped", "lives"):
            store.append(name, [{"role": "user", "content": "secret words"}] * 12, tokens=100)
        killed, stopped, lives = (stack.enter_context(holding(url, name)) for name in ("killed", "stopped", "lives"))
        killed.kill()
        stopped.send_signal(signal.SIGSTOP)

        # Without a wait, it says who is in the way.
        run = store.compact("killed", fold, budget=BUDGET, wait=0)
        assert run.reason.startswith("another run is compacting the thread: actor 'the first', since 2")
        with pytest.raises(cs.BudgetExceeded, match="another run is compacting the thread: actor 'the first', since 2"):
            store.fit("killed", BUDGET, fold, wait=0)
        assert {lease.thread_id: lease.actor for lease in store.leases(BUDGET)} == dict.fromkeys(
            ("killed", "stopped", "lives"), "the first"
        )
        assert list(store.due(BUDGET)) == []

        with caplog.at_level(logging.WARNING, "compaction_store"):
            views = [pool.submit(store.fit, name, BUDGET, fold, wait=60) for name in ("killed", "stopped")]
            waiting = pool.submit(store.compact, "lives", fold, budget=BUDGET, wait=50)
            assert all(BUDGET.fits(view.result()) for view in views)
            # The lease of the third was renewed.
            assert waiting.result().reason.endswith("waited 50 s")
        texts = [record.getMessage() for record in caplog.records]
        for name in ("killed", "stopped", "lives"):
            [text] = [text for text in texts if text.endswith(f"(thread {name!r})")]
            assert "waits up to" in text
            assert "another run: actor 'the first', since 2" in text
        assert "secret" not in caplog.text

        # The one that was stopped goes on, and its span is taken.
        stopped.send_signal(signal.SIGCONT)
        for process in (stopped, lives):
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout is not None
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "SpanConflict\n"
        assert lives.stdout is not None
        assert lives.stdout.readline() == "compacted\n"
        for name, actor in (("killed", "the second"), ("stopped", "the second"), ("lives", "the first")):
            [record] = store.compactions(name, outcome="applied")
            assert (record.actor, record.start_seq, record.end_seq) == (actor, 1, 10)
            assert store.audit.verify(name).findings == ()
        assert store.leases(BUDGET) == ()
