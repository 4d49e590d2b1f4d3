"""Stops an embedded Postgres when its last user is gone, even if that user was killed.

The reaper is a small process that waits until nobody holds the users' lock, and a while longer if the last user asked
for that. It runs from `COMMAND`, without the rest of the package and without site-packages: it starts fast and stays
small.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from pathlib import Path

from . import postmaster, socket_links
from .locks import LINGER, USERS, open_lock

# No time for which a server lingers is longer, in seconds: a longer one means that the clock was set back.
LONGEST = 3600
# How often the reaper checks whether that time is over, or the server was stopped.
_STEP = 1.0

# Arguments: the folder of the package `postgres_embedded`, and the descriptor of the reaper's lock. The folder goes
# last in the path, so that no module beside it shadows one of the standard library.
COMMAND = """\
import sys
sys.path.append(sys.argv[1])
from postgres_embedded import reaper
reaper.run(int(sys.argv[2]))
"""


def run(own_lock: int) -> None:
    # Relative to the working directory, so that the reaper never touches a folder made later at the same path.
    folder = Path()
    users = open_lock(folder / USERS)
    fcntl.flock(users, fcntl.LOCK_EX)
    while (left := _time_left(folder)) > 0 and postmaster.is_running(folder):
        # Without the lock, so that others can join.
        fcntl.flock(users, fcntl.LOCK_UN)
        time.sleep(min(left, _STEP))
        fcntl.flock(users, fcntl.LOCK_EX)
    postmaster.stop(folder, math.inf)
    socket_links.remove(folder)
    # Release the reaper's lock first: the next user must be able to start a reaper as soon as it holds the users' lock.
    os.close(own_lock)
    os.close(users)


def let_linger(folder: Path, seconds: float) -> None:
    """Lets the server run for some seconds from now, even without a user. The caller must hold the users' lock."""
    until = time.time() + seconds
    # Another user's file, such as root's, can be replaced and not changed.
    (folder / LINGER).unlink(missing_ok=True)
    mark = open_lock(folder / LINGER)
    try:
        os.utime(mark, (until, until))
    finally:
        os.close(mark)


def _time_left(folder: Path) -> float:
    """Returns the seconds that the server may run without a user; 0 also if the clock was set back meanwhile."""
    with contextlib.suppress(OSError):
        left = (folder / LINGER).stat().st_mtime - time.time()
        return left if left <= LONGEST else 0.0
    return 0.0
