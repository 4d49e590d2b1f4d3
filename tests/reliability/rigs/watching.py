"""Kills a watcher again and again while sessions are written: `python -m reliability.rigs.watching [KILLS] [SECONDS]`.

After the kills, the database is away for so many seconds while more is written. At the end, each line must be stored
once, and every thread must verify.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from support.agent_sessions import Session, said, stored_lines

import compaction_store as cs
from compaction_store import migrate
from reliability.rigs.ground import Postgres
from reliability.rigs.proxy import Proxy

_NOWHERE = "postgresql://postgres@127.0.0.1:1/postgres"


def _write(sessions: list[Session], chance: random.Random, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        chance.choice(sessions).add(chance.randint(1, 40))
        time.sleep(0.02)


def main(kills: int, away: float) -> None:
    chance = random.Random(kills)
    with ExitStack() as stack:
        server = stack.enter_context(Postgres())
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = server.url
        migrate.upgrade(url)
        way = stack.enter_context(Proxy(url, chance))
        sessions = [Session(home) for _ in range(5)]
        command = [sys.executable, "-m", "compaction_store", "watch", "--url", way.url]
        env = os.environ | {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
        for number in range(kills):
            running = subprocess.Popen([*command, "--every", "0.1"], env=env, stdout=subprocess.DEVNULL)
            _write(sessions, chance, chance.uniform(0.3, 3))
            running.send_signal(signal.SIGKILL)
            running.wait()
            print(f"kill {number + 1} of {kills}")  # noqa: T201 — a rig reports to its user
        running = subprocess.Popen([*command, "--every", "0.5"], env=env)
        _write(sessions, chance, 3)
        way.retarget(_NOWHERE)
        _write(sessions, chance, away)
        way.retarget(url)
        time.sleep(10)
        running.terminate()
        running.wait()
        subprocess.run([*command, "--once"], env=env, check=False)
        with cs.Store.open(url) as store:
            for session in sessions:
                lines = stored_lines(store, session.thread)
                assert b"".join(lines) == session.data(), session.thread
                assert set(lines.values()) == {1}, session.thread
                assert said(store, session.thread) == [str(i) for i in range(1, session.count + 1)]
            assert all(report.findings == () for report in store.audit.verify())
        print(f"{sum(s.count for s in sessions):,} lines: none lost, none doubled, all verified")  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50, float(sys.argv[2]) if len(sys.argv) > 2 else 600)
