"""Makes short links, until the last user leaves, to folders with paths too long or unsafe for a socket's URL."""

from __future__ import annotations

import contextlib
import os
import tempfile
from hashlib import sha256
from pathlib import Path

from .locks import FOLDER
from .postmaster import DATA

# The file with the paths of the links. Each path ends with a zero byte.
LINKS = f"{FOLDER}/links"
# The maximum length of a socket's path on any system, without the socket's name and the zero byte at the end.
_LONGEST = 104 - len("/.s.PGSQL.5432") - 1
_ATTEMPTS = 100


def short_path(data: Path) -> Path | None:
    """Returns a path of the folder that can be the host in a URL. If its own path is too long for a socket or has
    unsafe characters, makes a link in the temporary folder. Returns None if no link's path is short enough.
    """
    name = os.fsencode(data)
    if len(name) <= _LONGEST and b"," not in name and name.isascii():
        return data
    mark = sha256(name).hexdigest()[:16]
    for number in range(_ATTEMPTS):
        link = Path(tempfile.gettempdir(), f"compaction-store-{mark}-{number}")
        try:
            # List the link before it is made. Then it is removed later even if this process is killed now.
            _list(data.parent, link)
            link.symlink_to(data)
        except FileExistsError:
            # The owner of a link can change it at any time, so use a link only if this user owns it.
            if not link.is_symlink() or link.lstat().st_uid != os.geteuid() or link.readlink() != data:
                continue
        if len(os.fsencode(link)) <= _LONGEST:
            return link
    return None


def _list(folder: Path, link: Path) -> None:
    with (folder / LINKS).open("a+b") as file:
        file.seek(0)
        if os.fsencode(link) not in file.read().split(b"\0"):
            file.write(os.fsencode(link) + b"\0")


def remove(folder: Path) -> None:
    """Removes the links to the folder's data. The caller must hold the users' lock exclusively."""
    with contextlib.suppress(OSError):
        for name in (folder / LINKS).read_bytes().split(b"\0")[:-1]:
            link = Path(os.fsdecode(name))
            with contextlib.suppress(OSError):
                if link.is_symlink() and link.samefile(folder / DATA):
                    link.unlink()
        (folder / LINKS).unlink()
