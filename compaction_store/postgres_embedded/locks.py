"""The lock files of an embedded Postgres. The kernel releases a lock when its process exits or is killed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = "locks"
# The process that creates, starts or stops the server holds this lock exclusively.
STARTING = f"{FOLDER}/starting"
# Every user of the server holds this lock shared.
USERS = f"{FOLDER}/users"
# The reaper holds this lock exclusively. The file must keep its name, because other versions may use the folder too.
REAPER = f"{FOLDER}/keeper"
# The server holds this lock exclusively, and so do its child processes, which inherit it.
RUNNING = f"{FOLDER}/running"
# This file is not a lock. Its modification time is the time until which the reaper lets a server without users run.
LINGER = f"{FOLDER}/linger"

PAUSE = 0.02


def open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Opens a lock. It is released at the end, unless another process has inherited it."""
    lock = open_lock(path)
    try:
        yield lock
    finally:
        os.close(lock)


def try_lock(lock: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
