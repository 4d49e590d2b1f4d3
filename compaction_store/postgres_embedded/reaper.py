"""Ends an embedded Postgres when its last user is gone, however that one ended.

Users hold a shared lock on one file, the server holds a lock on another; the kernel lets go of both when a process
exits or is killed, so neither a stale process id nor a crash can mislead anyone. The keeper is a small process that
waits until nobody holds the users' lock and then stops the server.

It runs as a script of its own, outside the package: it needs only the standard library and stays small.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import signal
import sys
import time
from pathlib import Path

LOCKS = "locks"
# Held by whoever makes, starts or stops the server; by each of its users; by its keeper; and by the server itself.
STARTING, USERS, KEEPER, RUNNING = (f"{LOCKS}/{name}" for name in ("starting", "users", "keeper", "running"))
# The links to the data, each with a zero behind it.
LINKS = f"{LOCKS}/links"
DATA = "data"
PAUSE = 0.02
# A shutdown writes what is in memory, on a slow disk too.
POLITE = 10.0

_STATUS_LINE = 7


def open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(lock: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def postmaster(data: Path) -> tuple[int | None, bool]:
    """What the server's own file says: its process id, and whether it takes connections."""
    try:
        lines = (data / "postmaster.pid").read_text(encoding="utf-8", errors="replace").splitlines()
        return int(lines[0]), len(lines) > _STATUS_LINE and lines[_STATUS_LINE].strip() == "ready"
    except (FileNotFoundError, IndexError, ValueError):
        return None, False


def is_ready(data: Path) -> bool:
    """Whether the server takes connections. The file of one that was killed still says so, but nobody has its id."""
    pid, is_said = postmaster(data)
    return pid is not None and is_said and works_in(pid, data) is not False


def works_in(pid: int, folder: Path) -> bool | None:
    """Whether a process works in a folder, as a server does in its data; None where the system does not say.

    The id in a file may be another container's, or by now another program's.
    """
    try:
        return Path(f"/proc/{pid}/cwd").samefile(folder)
    except FileNotFoundError:
        return False if Path("/proc/self").exists() else None
    except OSError:
        return None


def stop(folder: Path, patience: float) -> bool:
    """Asks the server to shut down and waits until no process of it is left. False when that took too long.

    Asked in the middle of a recovery, Postgres 18 may stop for ever half way down. Then it is told to stop at once, as
    in a crash, which loses nothing acknowledged.
    """
    running = open_lock(folder / RUNNING)
    start = time.monotonic()
    asked = None
    try:
        while not try_lock(running):
            waited = time.monotonic() - start
            if waited >= patience:
                return False
            pid, _ = postmaster(folder / DATA)
            how = signal.SIGINT if waited < POLITE else signal.SIGQUIT
            # A server that is just starting has not written its id yet.
            if pid is not None and (pid, how) != asked and works_in(pid, folder / DATA) is not False:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)
                asked = pid, how
            time.sleep(PAUSE)
        return True
    finally:
        os.close(running)


def note_link(folder: Path, link: Path) -> None:
    """Keeps on record that there may be a link to the folder's data."""
    with (folder / LINKS).open("a+b") as file:
        file.seek(0)
        if os.fsencode(link) not in file.read().split(b"\0"):
            file.write(os.fsencode(link) + b"\0")


def remove_links(folder: Path) -> None:
    """Removes the links to the folder's data. For the last user, who has the lock of all users alone."""
    with contextlib.suppress(OSError):
        for name in (folder / LINKS).read_bytes().split(b"\0")[:-1]:
            link = Path(os.fsdecode(name))
            with contextlib.suppress(OSError):
                if link.is_symlink() and link.samefile(folder / DATA):
                    link.unlink()
        (folder / LINKS).unlink()


def main() -> None:
    # Relative to the folder it was started in, so that it never touches another one made later at the same path.
    folder, own_lock = Path(), int(sys.argv[1])
    users = open_lock(folder / USERS)
    fcntl.flock(users, fcntl.LOCK_EX)
    stop(folder, math.inf)
    remove_links(folder)
    # In this order: who comes next must find no keeper before it may count itself as a user.
    os.close(own_lock)
    os.close(users)


if __name__ == "__main__":
    main()
