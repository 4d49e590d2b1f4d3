"""Stops an embedded Postgres when its last user is gone, even if that user was killed.

The reaper is a process that waits until nobody holds the users' lock, and longer if the last user let the server
linger. It runs `COMMAND` without the rest of the package and site-packages, to start fast and stay small.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from pathlib import Path

from . import postmaster, socket_links
from .locks import LINGER, USERS, open_lock, opened

# The maximum time in seconds that a server lingers. A longer time means that the clock was set back.
LONGEST = 3600
# The interval in seconds at which the reaper checks whether this time is over or the server was stopped.
_STEP = 1.0

# The arguments are the parent folder of the package `postgres_embedded`, and the descriptor of the reaper's lock. The
# folder is last in the path, so that no module in it can shadow a module of the standard library.
COMMAND = """\
import sys
sys.path.append(sys.argv[1])
from postgres_embedded import reaper
reaper.run(int(sys.argv[2]))
"""


def run(own_lock: int) -> None:
    # Use the working directory and not a path, because another folder may be made at the same path later.
    folder = Path()
    users = open_lock(folder / USERS)
    fcntl.flock(users, fcntl.LOCK_EX)
    while (left := _time_left(folder)) > 0 and postmaster.is_running(folder):
        # Release the lock during the wait, so that new users can join.
        fcntl.flock(users, fcntl.LOCK_UN)
        time.sleep(min(left, _STEP))
        fcntl.flock(users, fcntl.LOCK_EX)
    postmaster.stop(folder, math.inf)
    socket_links.remove(folder)
    # Release the reaper's lock first, because the next user starts a reaper as soon as it gets the users' lock.
    os.close(own_lock)
    os.close(users)


def let_linger(folder: Path, seconds: float) -> None:
    """Lets the server run for some seconds from now, even without a user. The caller must hold the users' lock."""
    until = time.time() + seconds
    # Replace the file, because a file of another account, such as root, cannot be changed.
    (folder / LINGER).unlink(missing_ok=True)
    with opened(folder / LINGER) as mark:
        os.utime(mark, (until, until))


def _time_left(folder: Path) -> float:
    """Returns how many seconds the server may still run without a user. Returns 0 if the clock was set back."""
    with contextlib.suppress(OSError):
        left = (folder / LINGER).stat().st_mtime - time.time()
        return left if left <= LONGEST else 0.0
    return 0.0
