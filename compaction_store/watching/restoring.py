"""Writes session files back from their lines, byte for byte, so that their program can go on with the session."""

from __future__ import annotations

import filecmp
import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from compaction_store import Reader
from compaction_store.errors import InvalidInput, ThreadNotFound
from compaction_store.importers.kept_lines import LINES, REWRITTEN, bytes_of
from compaction_store.models import Thread


class Restored(NamedTuple):
    """A file that was written, or was there already. `skipped` is the number of its redacted messages."""

    thread_id: str
    path: Path
    size: int
    skipped: int
    is_new: bool


def restore(
    store: Reader, thread: str, folder: Path, *, generation: int | None = None, skip_redacted: bool = False
) -> list[Restored]:
    """Writes the files of a session and of its subagents below a folder.

    `thread` is the session's thread, or a thread of lines, to write this file alone. With `generation`, only that
    version of the session's own file is written. A file that is there with other content is not overwritten.
    """
    names = [thread] if thread.endswith(LINES) else [thread + LINES, f"{thread}/"]
    found = [t for t in store.threads(prefix=names[-1]) if t.thread_id.endswith(LINES)]
    # The session's own file comes first.
    found.sort(key=lambda t: t.thread_id != names[0])
    if not found:
        raise ThreadNotFound(f"no lines of thread {thread!r} are kept: import or watch its file first")
    chosen = found if generation is None else found[:1]
    return [_restore(store, each, folder, generation, skip_redacted) for each in chosen]


def _seqs(store: Reader, thread: str, generation: int | None) -> list[int]:
    """Returns the seqs of the messages of one generation of a file, by default of the last."""
    found: list[int] = []
    number = 1
    for message in store.replay(thread):
        if message.payload is None or message.payload.get("type") != REWRITTEN:
            found.append(message.seq)
        elif number == generation:
            return found
        else:
            number += 1
            del found[message.payload["keeps"] :]
    if generation not in (None, number):
        raise InvalidInput(f"generation must be 1 to {number}, not {generation}: {thread!r} has no others")
    return found


def _restore(store: Reader, thread: Thread, folder: Path, generation: int | None, skip_redacted: bool) -> Restored:
    name = thread.thread_id
    place = PurePosixPath(str(thread.metadata.get("file", "")))
    if place.is_absolute() or ".." in place.parts or not place.name or "\0" in str(place):
        raise InvalidInput(f"the metadata of thread {name!r} must name its file, below a folder")
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    wanted = frozenset(_seqs(store, name, generation))
    size = skipped = 0
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for message in store.replay(name, until=max(wanted, default=0)):
                if message.seq not in wanted:
                    continue
                if message.payload is None and not skip_redacted:
                    raise InvalidInput(
                        f"the lines of {name!r} must not be redacted, as seq {message.seq} is: --skip-redacted leaves"
                        " such lines out"
                    )
                skipped += message.payload is None
                size += 0 if message.payload is None else file.write(bytes_of(message.payload))
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, this fails if there is such a file.
        with suppress(FileExistsError):
            os.link(new, path)
        is_new = path.samefile(new)
        if not is_new and not filecmp.cmp(new, path, shallow=False):
            raise InvalidInput(f"{path} must not be there with other content: move it away, or choose another folder")
    finally:
        new.unlink(missing_ok=True)
    return Restored(name, path, size, skipped, is_new)
