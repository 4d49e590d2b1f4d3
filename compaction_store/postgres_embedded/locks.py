"""The lock files of an embedded Postgres.

The kernel releases a lock when its process exits or is killed, so no lock is left over after a crash.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

FOLDER = "locks"
# Exclusive, by the process that creates, starts or stops the server.
STARTING = f"{FOLDER}/starting"
# Shared, by every user of the server.
USERS = f"{FOLDER}/users"
# Exclusive, by the reaper. Other versions of this package may use the folder too, so the file keeps its old name.
REAPER = f"{FOLDER}/keeper"
# Exclusive, by the server and its child processes, which inherit it.
RUNNING = f"{FOLDER}/running"
# No lock: until the time of its last change, the reaper lets a server without users run.
LINGER = f"{FOLDER}/linger"

PAUSE = 0.02


def open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(lock: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
