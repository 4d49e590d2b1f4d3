"""Writes session files back from their lines, byte for byte, so that their program can go on with the session."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from compaction_store import Message, Reader
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


class Range(NamedTuple):
    first: int
    last: int


def threads(store: Reader, thread: str) -> list[Thread]:
    """Returns the lines threads of a session and of its subagents, or the lines thread of that name alone."""
    if thread.endswith(LINES):
        return [store.thread(thread)]
    found = [t for t in store.threads(prefix=thread) if t.thread_id.endswith(LINES) and t.thread_id[len(thread)] == "/"]
    if not found:
        raise ThreadNotFound(f"no lines of thread {thread!r} are kept: import or watch its file first")
    # The session's own file comes first.
    return sorted(found, key=lambda t: (t.thread_id != thread + LINES, t.thread_id))


def restore(
    store: Reader, thread: str, folder: Path, *, generation: int | None = None, skip_redacted: bool = False
) -> list[Restored]:
    """Writes the files of a session below a folder. With `generation`, writes that version of the session's own file.

    A file that is there with other content is not overwritten.
    """
    chosen = threads(store, thread)[: None if generation is None else 1]
    return [_restore(store, each, folder, generation, skip_redacted) for each in chosen]


def ranges(messages: Iterator[Message], thread: str, generation: int | None = None) -> list[Range]:
    """Returns the seqs of the messages of one generation of a file, by default of the last."""
    found: list[Range] = []
    number = 1
    for message in messages:
        if message.payload is None or message.payload.get("type") != REWRITTEN:
            if found and found[-1].last == message.seq - 1:
                found[-1] = found[-1]._replace(last=message.seq)
            else:
                found.append(Range(message.seq, message.seq))
            continue
        if number == generation:
            return found
        number += 1
        found = list(_first(found, message.payload["keeps"]))
    if generation is not None and generation != number:
        raise InvalidInput(f"generation must be 1 to {number}, not {generation}: {thread!r} has no others")
    return found


def _first(found: list[Range], count: int) -> Iterator[Range]:
    for first, last in found:
        if count > 0:
            yield Range(first, min(last, first + count - 1))
        count -= last - first + 1


def _restore(store: Reader, thread: Thread, folder: Path, generation: int | None, skip_redacted: bool) -> Restored:
    name = thread.thread_id
    path = folder / _place(thread)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    size = skipped = 0
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for first, last in ranges(iter(store.replay(name)), name, generation):
                for message in store.replay(name, after=first - 1, until=last):
                    if message.payload is not None:
                        size += file.write(bytes_of(message.payload))
                    elif skip_redacted:
                        skipped += 1
                    else:
                        raise InvalidInput(
                            f"the lines of {name!r} must not be redacted, as seq {message.seq} is: --skip-redacted "
                            "leaves such lines out"
                        )
            file.flush()
            os.fsync(file.fileno())
        try:
            # Unlike a rename, this fails if there is such a file.
            os.link(new, path)
        except FileExistsError:
            is_new = False
        else:
            is_new = True
        if not is_new and not filecmp.cmp(new, path, shallow=False):
            raise InvalidInput(f"{path} must not be there with other content: move it away, or choose another folder")
    finally:
        new.unlink(missing_ok=True)
    return Restored(name, path, size, skipped, is_new)


def _place(thread: Thread) -> PurePosixPath:
    """Returns the path of a thread's file. A path that leaves the folder is refused."""
    place = PurePosixPath(str(thread.metadata.get("file", "")))
    if place.is_absolute() or ".." in place.parts or not place.name or "\0" in str(place):
        raise InvalidInput(f"the metadata of thread {thread.thread_id!r} must name its file, below a folder")
    return place
