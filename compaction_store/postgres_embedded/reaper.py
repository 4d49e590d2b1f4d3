"""Stops an embedded Postgres when its last user is gone, even if that user was killed.

The reaper is a small process that waits until nobody holds the users' lock. It runs from `COMMAND`, without the rest
of the package and without site-packages: it starts fast and stays small.
"""

from __future__ import annotations

import fcntl
import math
import os
from pathlib import Path

from . import postmaster, socket_links
from .locks import USERS, open_lock

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
    postmaster.stop(folder, math.inf)
    socket_links.remove(folder)
    # Release the reaper's lock first: the next user must be able to start a reaper as soon as it holds the users' lock.
    os.close(own_lock)
    os.close(users)
