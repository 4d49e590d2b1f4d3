"""Finds the server process of a data folder, checks whether it is ready, and shuts it down."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path

from .locks import PAUSE, RUNNING, opened, try_lock

DATA = "data"
# A fast shutdown writes dirty pages, which may take this many seconds on a slow disk.
FAST_SHUTDOWN_SECONDS = 10.0

_STATUS_LINE = 7


def read_pid_file(data: Path) -> tuple[int | None, bool]:
    """Returns the process id in the server's pid file, and whether this file says that the server is ready."""
    try:
        lines = (data / "postmaster.pid").read_text(encoding="utf-8", errors="replace").splitlines()
        return int(lines[0]), len(lines) > _STATUS_LINE and lines[_STATUS_LINE].strip() == "ready"
    except (FileNotFoundError, IndexError, ValueError):
        return None, False


def is_ready(data: Path) -> bool:
    """Returns whether the server accepts connections. The pid file of a killed server is ignored."""
    pid, says_ready = read_pid_file(data)
    return pid is not None and says_ready and works_in(pid, data) is not False


def is_running(folder: Path) -> bool:
    """Returns whether any process of the server still runs."""
    with opened(folder / RUNNING) as running:
        return not try_lock(running, fcntl.LOCK_SH)


def works_in(pid: int, folder: Path) -> bool | None:
    """Returns whether a process works in this folder, as its server does; None if unknown. A pid may be reused."""
    try:
        return Path(f"/proc/{pid}/cwd").samefile(folder)
    except FileNotFoundError:
        return False if Path("/proc/self").exists() else None
    except OSError:
        return None


def runs(data: Path, program: str) -> bool | None:
    """Returns whether the server of a folder runs exactly this program file, or None if this is unknown."""
    pid, _ = read_pid_file(data)
    if pid is None or not works_in(pid, data):
        return None
    try:
        return Path(f"/proc/{pid}/exe").samefile(program)
    except OSError:
        return None


def stop(folder: Path, timeout: float) -> bool:
    """Shuts down the server and waits until all of its processes have ended. Returns False after `timeout` seconds.

    Postgres 18 can hang if a fast shutdown arrives during recovery. So after ten seconds, this requests an immediate
    shutdown. The next start recovers as after a crash, and no acknowledged message is lost.
    """
    start = time.monotonic()
    sent = None
    with opened(folder / RUNNING) as running:
        while not try_lock(running):
            waited = time.monotonic() - start
            if waited >= timeout:
                return False
            pid, _ = read_pid_file(folder / DATA)
            how = signal.SIGINT if waited < FAST_SHUTDOWN_SECONDS else signal.SIGQUIT
            # A server that has just started has not written its pid file yet.
            if pid is not None and (pid, how) != sent and works_in(pid, folder / DATA) is not False:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)
                sent = pid, how
            time.sleep(PAUSE)
        return True
