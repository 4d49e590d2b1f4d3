"""Reads files of JSON lines, from any line on. Memory grows with the longest line, not with the file.

JSON is read strictly. NaN is refused. An object that contains the same name twice is refused too, because Python would
silently drop one of the two values.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from compaction_store.errors import InvalidInput, InvalidSource
from compaction_store.importers.sources import Notes, SourceThread
from compaction_store.messages import encoding
from compaction_store.models import ToLoad

# A message may take 16 MiB. Escapes in JSON can triple that, and the line has other fields besides the message.
LONGEST_LINE = 64 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_LOOKED_AT = 200
_LOOKED_AT_BYTES = 4 * 1024 * 1024


class Unreadable(ValueError):
    """A line cannot be read as JSON. The text of the error gives the reason, without content."""


class Line(NamedTuple):
    """A line: its number, its start and end in the file, and its bytes, or None if it is too long."""

    number: int
    start: int
    end: int
    data: bytes | None

    def extend(self, runs: list[LineRange]) -> None:
        """Adds the line to ranges of lines: to the last one if the line follows it directly, or as a new range."""
        if runs and runs[-1].end == self.start:
            runs[-1] = runs[-1]._replace(end=self.end)
        else:
            runs.append(LineRange(self.number, self.start, self.end))


class LineRange(NamedTuple):
    """A range of lines: the number of the first line, and the start and end of the range in the file."""

    number: int
    start: int
    end: int


class LineFile:
    """A file of JSON lines. `done` is the number of bytes read."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name or path.name
        self.done = 0
        try:
            self.size = path.stat().st_size
        except OSError as error:
            raise InvalidSource(f"cannot read {self.name}: {error.strerror}") from None

    def where(self, number: int) -> str:
        return f"line {number:,} of {self.name}"

    def lines(self, runs: Iterable[LineRange] | None = None) -> Iterator[Line]:
        """Yields the lines in some ranges, or all lines. Skips blank lines."""
        wanted = [LineRange(1, 0, self.size)] if runs is None else runs
        try:
            with self.path.open("rb") as file:
                for number, start, end in wanted:
                    file.seek(start)
                    yield from self._run(file, number, start, end)
        except OSError as error:
            raise InvalidSource(f"cannot read {self.name}: {error.strerror}") from None

    def _run(self, file: Any, number: int, start: int, end: int) -> Iterator[Line]:
        # Lines that are appended while the file is read are left for the next import.
        while start < end and (data := file.readline(min(LONGEST_LINE + 1, end - start))):
            at = start
            start += len(data)
            whole: bytes | None = data
            while len(data) > LONGEST_LINE and not data.endswith(b"\n"):
                whole = None
                data = file.readline(min(LONGEST_LINE + 1, end - start))
                start += len(data)
            self.done = start
            if at == 0 and whole is not None:
                whole = whole.removeprefix(_BOM)
            if whole is None or whole.strip():
                yield Line(number, at, start, whole)
            number += 1

    def objects(self, notes: Notes, runs: Iterable[LineRange] | None = None) -> Iterator[tuple[Line, dict[str, Any]]]:
        """Yields the lines that are JSON objects. Other lines are refused with `notes`."""
        for line in self.lines(runs):
            found = json_object(line.data)
            if isinstance(found, dict):
                yield line, found
            else:
                notes.refuse(self.where(line.number), found, line.number)

    def sample(self) -> Iterator[tuple[Line, dict[str, Any]]]:
        """Yields the first lines that are JSON objects, to detect their format."""
        for line, found in islice(self.objects(Notes(skip_bad=True)), _LOOKED_AT):
            yield line, found
            if line.end > _LOOKED_AT_BYTES:
                return


def parsed(data: bytes | None) -> Any:
    """Parses a line, or raises `Unreadable`."""
    if data is None:
        raise Unreadable(f"it is longer than {LONGEST_LINE:,} bytes")
    try:
        return _DECODER.decode(data.decode())
    except UnicodeDecodeError:
        failure = "it is not UTF-8"
    except json.JSONDecodeError as error:
        # Some messages of the parser end with "at" already.
        message = f"{error.msg[0].lower()}{error.msg[1:]}".removesuffix(" at")
        failure = f"it is not JSON: {message} at column {error.colno:,}"
        if not data.endswith(b"\n"):
            failure = f"{failure}; the file ends before the line does"
    except RecursionError:
        failure = "it is nested too deeply"
    except Unreadable as error:
        failure = str(error)
    except ValueError:
        # Python raises ValueError for an integer of more than 4,300 digits.
        failure = "a number is too long"
    raise Unreadable(failure)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Unreadable("an object has the same name twice")
    return found


def _constant(_name: str) -> Any:
    raise Unreadable("a number is NaN or infinite")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def json_object(data: str | bytes | None, otherwise: str = "it is not a JSON object") -> dict[str, Any] | str:
    """Parses a text or a line; returns the JSON object, or the reason why it is not one."""
    try:
        found = parsed(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
    except Unreadable as failure:
        return str(failure)
    return found if isinstance(found, dict) else otherwise


class Files:
    """A source of several files. A subclass for each format finds the threads in a file.

    Without `lines`, a source of session files leaves out the threads that keep their lines. If `lines` is None, it only
    keeps the lines of files that have requests to a model.
    """

    format = ""
    unit = "bytes"

    def __init__(self, path: Path | Sequence[Path], *, skip_bad: bool = False, lines: bool | None = True) -> None:
        self.skip_bad = skip_bad
        self.lines = lines
        paths = [path] if isinstance(path, Path) else path
        self._files = [file for each in paths for file in found_in(each)]
        self.total: int | None = sum(file.size for file in self._files)

    @property
    def done(self) -> int:
        return sum(file.done for file in self._files)

    def threads(self) -> Iterator[SourceThread]:
        raise NotImplementedError

    def end_at(self, size: int) -> None:
        """Leaves out what a file has after so many bytes."""
        for file in self._files:
            file.size = min(file.size, size)

    def close(self) -> None:
        """Does nothing: a file is open only while it is read."""


def found_in(path: Path) -> Iterator[LineFile]:
    """Yields the file itself, or every .jsonl file in a folder and its subfolders, named by its path in the folder."""
    if not path.is_dir():
        yield LineFile(path)
        return
    names = sorted(found for found in path.rglob("*.jsonl") if found.is_file())
    if not names:
        raise InvalidSource(f"there is no .jsonl file in the folder {path.name or path}")
    for found in names:
        yield LineFile(found, found.relative_to(path).as_posix())


# ---- the lines of a session file, which are kept so that the file can be written again byte for byte
#
# The lines of a file are the messages of a thread of their own, whose name is that of the session's thread with
# `/lines` after it. A line that is no UTF-8 is kept as base64, and a very long line in pieces. The last line has an
# `end` if the file does not end with a newline; if it is no JSON, it is still being written, and left for the next
# import.
#
# If a file no longer begins with the lines that are kept, a message of the type `rewritten` says so. The file then has
# the first messages of its former generation, as many as `keeps` says, and after them the messages that follow.


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
        raise InvalidSource(f"cannot read {file.name}: {error.strerror}") from None


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
