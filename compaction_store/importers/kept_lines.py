"""Keeps every line of a session file, so that the file can be written again byte for byte.

The lines of a file are the messages of a thread of their own, whose name is that of the session's thread with `/lines`
after it. A line that is no UTF-8 is kept as base64, and a very long line in pieces. The last line has an `end` if the
file does not end with a newline; if it is no JSON, it is still being written, and left for the next import.

If a file no longer begins with the lines that are kept, a message of the type `rewritten` says so. The file then has
the first messages of its former generation, as many as `keeps` says, and after them the messages that follow.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from compaction_store.errors import InvalidInput, InvalidSource
from compaction_store.importers.line_files import LineFile, json_object
from compaction_store.importers.sources import Notes, SourceThread
from compaction_store.messages import encoding
from compaction_store.models import ToLoad

LINES = "/lines"
REWRITTEN = "rewritten"
# As base64, a piece of this size fits into a message.
PIECE = 12 * 1024 * 1024 - 1024
# JSON escapes a byte of a text with at most six bytes.
_SURELY_FITS = encoding.MAX_MESSAGE_BYTES // 6 - 1024
# The folders below which programs keep their sessions.
_ROOTS = frozenset({"projects", "sessions", "archived_sessions"})


def kept(file: LineFile, source_id: str, form: str) -> SourceThread:
    """Returns the thread of a file's lines. `source_id` is the id of the session's thread."""
    about = {"file": place_of(file.path), "format": form}
    return SourceThread(source_id + LINES, _items(file), Notes(skip_bad=False), metadata=about, lines_of=source_id)


def place_of(path: Path) -> str:
    """Returns the path of a session file below the folder in which its program keeps all sessions."""
    parts = path.absolute().parts
    root = next((at for at in range(len(parts) - 2, -1, -1) if parts[at] in _ROOTS), None)
    return "/".join(parts[-2:] if root is None else parts[root + 1 :])


def _items(file: LineFile) -> Iterator[ToLoad]:
    try:
        with file.path.open("rb") as opened:
            for message, size in messages(opened, file.size):
                file.done = min(file.size, size)
                # A last line that is no JSON is still being written.
                if "end" not in message or not isinstance(json_object(bytes_of(message)), str):
                    yield ToLoad(message, tokens=0)
    except OSError as error:
        failure = error.strerror
    else:
        return
    raise InvalidSource(f"cannot read {file.name}: {failure}")


class LineMessage(NamedTuple):
    """A message with a line or a piece of one, and the place in the file at which it ends."""

    message: dict[str, Any]
    end: int


def messages(file: IO[bytes], end: int) -> Iterator[LineMessage]:
    """Yields the messages for the bytes of a file, from its position to `end`."""
    at = file.tell()
    while at < end and (data := file.readline(min(PIECE, end - at))):
        at += len(data)
        yield LineMessage(_message(data, is_last=at >= end), at)


def _message(data: bytes, *, is_last: bool) -> dict[str, Any]:
    about = {} if data.endswith(b"\n") else {"end": ""} if is_last else {"more": True}
    data = data.removesuffix(b"\n")
    try:
        message = {"type": "line", "text": data.decode(), **about}
        if len(data) > _SURELY_FITS:
            encoding.encode(message)
    except (UnicodeDecodeError, InvalidInput):
        message = {"type": "line", "base64": b64encode(data).decode(), **about}
    return message


def bytes_of(message: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a message that `messages` has made."""
    data = b64decode(message["base64"]) if "base64" in message else message["text"].encode()
    return data if message.get("more") else data + message.get("end", "\n").encode()
