"""kill -9 of the client: in the middle of an append, of a callback and of a commit.

The client is a separate process behind a proxy, and is killed when a request is on its way. The request then reaches
the server or is lost. The next client must find the thread whole, and settles the outcome by key.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

from support.paths import ROOT, TESTS

import compaction_store as cs
from reliability.rigs.book import marked, whole_view
from reliability.rigs.ground import Ground, superuser
from reliability.rigs.proxy import Proxy

_CHILD = """
import sys, time
import compaction_store as cs
from reliability.rigs.book import marked
what, url, name = sys.argv[1:]
store = cs.Store.open(url)
print("ready", flush=True)
def fold(ctx):
    print("in callback", flush=True)
    if what == "callback":
        time.sleep(600)
    ctx.compact(1, 2, "S")
    ctx.remove(3, 4)
if what == "append":
    for n in range(1_000_000):
        store.append("t", marked(f"{name}-{n}"), tokens=10, key=f"{name}-{n}")
        print(n, flush=True)
store.compact("t", fold)
"""
_AT = {"append": b"compaction_store.append", "commit": b"commit_compactions"}


def run(ground: Ground, chance: random.Random, *, kills: int) -> dict[str, Any]:
    figures: Counter[str] = Counter()
    for number in range(kills):
        what = ("append", "callback", "commit")[number % 3]
        url = ground.database()
        with Proxy(url, chance) as proxy, cs.Store.open(url) as healthy:
            healthy.append("t", [marked(f"before-{i}") for i in range(10)], tokens=10)
            said = _killed(what, proxy, chance, figures)
            _settled(url, proxy)
            figures[f"killed in mid-{what}"] += 1
            if what == "append":
                _check_append(healthy, said, figures)
            else:
                _check_run(healthy, what, figures)
            whole_view(healthy, "t", healthy.thread("t").last_seq)
            assert healthy.audit.verify("t").findings == ()
    return {**figures, "half done": 0, "lost": 0, "duplicated": 0}


def _killed(what: str, proxy: Proxy, chance: random.Random, figures: Counter[str]) -> list[int]:
    """Kills the client, and returns the replies that it had received."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(folder) for folder in (ROOT, TESTS, TESTS / "reliability"))
    }
    child = subprocess.Popen(
        (sys.executable, "-c", _CHILD, what, proxy.url, "x"), stdout=subprocess.PIPE, text=True, env=environment
    )
    left = chance.randrange(1, 40) if what == "append" else 1

    def kill(request: bytes) -> bool:
        nonlocal left
        if what not in _AT or _AT[what] not in request:
            return False
        left -= 1
        if left == 0:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            never = chance.random() < 0.5
            figures["requests the server never heard of" if never else "requests the server served"] += 1
            return never
        return False

    proxy.on_request = kill
    with child:
        assert child.stdout is not None
        said = []
        for line in child.stdout:
            if what == "callback" and line == "in callback\n":
                child.kill()
            elif line.endswith("\n") and line.strip().isdigit():
                said.append(int(line))
    assert child.returncode == -signal.SIGKILL, child.returncode
    return said


def _settled(url: str, proxy: Proxy) -> None:
    """Returns when the server has noticed that the client is gone, with no transaction left open by it."""
    proxy.on_request = None
    end = time.monotonic() + 20
    with superuser(url) as connection:
        # The healthy store's own connections are idle, outside of any transaction.
        while connection.execute(
            "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend' AND state <> 'idle'"
        ).fetchall():
            assert time.monotonic() < end, "the killed client's transaction is still open"
            time.sleep(0.01)


def _check_append(healthy: cs.Store, said: list[int], figures: Counter[str]) -> None:
    """Checks that acknowledged messages are there, and settles the others by key, so that they are there once."""
    figures["appends acknowledged"] += len(said)
    assert said == list(range(len(said)))
    last = len(said)
    before = healthy.thread("t").last_seq
    written = healthy.append("t", marked(f"x-{last}"), tokens=10, key=f"x-{last}")
    assert written[0].seq == 11 + last
    assert healthy.thread("t").last_seq == 11 + last
    figures["unknown that had been stored"] += before == 11 + last
    found = [str((m.payload or {})["content"]).split()[0] for m in healthy.replay("t", after=10)]
    assert found == [f"x-{n}" for n in range(last + 1)]


def _check_run(healthy: cs.Store, what: str, figures: Counter[str]) -> None:
    records = list(healthy.compactions("t"))
    assert [(r.kind, r.start_seq, r.end_seq) for r in records] in ([], [("summary", 1, 2), ("removal", 3, 4)])
    assert what == "commit" or not records
    figures["commits that had been written"] += bool(records)
    # No client waits for the one that died.
    assert healthy.compact("t", lambda ctx: ctx.remove(5, 6)).applied
