"""Files of JSON lines, read as bytes from any of their lines on. Memory does not grow with a file, only with a line.

JSON is read strictly: a name twice in an object, of which Python would keep one, is refused, and so is NaN.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from compaction_store.errors import InvalidSource
from compaction_store.importers.sources import Notes

# A message may take 16 MiB; JSON with escapes takes up to three times that, and there is what is around the message.
LONGEST_LINE = 64 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_LOOKED_AT = 200
_LOOKED_AT_BYTES = 4 * 1024 * 1024


class Unreadable(ValueError):
    """Why a line is no JSON, in words without content."""


class Line(NamedTuple):
    """One line: its number, where it begins and ends in the file, and its bytes, None where it is too long."""

    number: int
    start: int
    end: int
    data: bytes | None


class Run(NamedTuple):
    """Lines that follow each other: the number of the first, where they begin, and where the next begins."""

    number: int
    start: int
    end: int


class LineFile:
    """A file of JSON lines. `done` is how far it was read."""

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

    def lines(self, runs: Iterable[Run] | None = None) -> Iterator[Line]:
        """The lines of some runs, or all of them, less blank ones."""
        wanted = [Run(1, 0, self.size)] if runs is None else runs
        try:
            with self.path.open("rb") as file:
                for number, start, end in wanted:
                    file.seek(start)
                    yield from self._run(file, number, start, end)
        except OSError as error:
            failure = error.strerror
        else:
            return
        raise InvalidSource(f"cannot read {self.name}: {failure}")

    def _run(self, file: Any, number: int, start: int, end: int) -> Iterator[Line]:
        # What is appended to the file while it is read is left for the next time.
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

    def objects(self, notes: Notes, runs: Iterable[Run] | None = None) -> Iterator[tuple[Line, dict[str, Any]]]:
        """The lines that are JSON objects; the notes hear of the others."""
        for line in self.lines(runs):
            why = "it is no JSON object"
            try:
                found = parsed(line.data)
            except Unreadable as failure:
                why = str(failure)
            else:
                if isinstance(found, dict):
                    yield line, found
                    continue
            notes.refuse(self.where(line.number), why, line.number)

    def sample(self) -> Iterator[tuple[Line, dict[str, Any]]]:
        """The first lines that are JSON objects, for a look at what they are."""
        for line, found in islice(self.objects(Notes(skip_bad=True)), _LOOKED_AT):
            yield line, found
            if line.end > _LOOKED_AT_BYTES:
                return


def parsed(data: bytes | None) -> Any:
    """The JSON of a line, or why it is none."""
    if data is None:
        raise Unreadable(f"it is longer than {LONGEST_LINE:,} bytes")
    try:
        return _DECODER.decode(data.decode())
    except UnicodeDecodeError:
        failure = "it is not UTF-8"
    except json.JSONDecodeError as error:
        failure = f"it is no JSON: {error.msg[0].lower()}{error.msg[1:]} at column {error.colno:,}"
        if not data.endswith(b"\n"):
            failure = f"{failure}; the file ends before the line does"
    except RecursionError:
        failure = "it nests too deep"
    except Unreadable as error:
        failure = str(error)
    except ValueError:
        # What Python says of an integer of more than 4,300 digits.
        failure = "a number is too long"
    raise Unreadable(failure)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Unreadable("a name stands twice in an object")
    return found


def _constant(_name: str) -> Any:
    raise Unreadable("a number is NaN or infinite")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def json_object(data: str) -> dict[str, Any] | str:
    """The JSON object of a text, or why it is none."""
    try:
        found = parsed(data.encode("utf-8", "surrogatepass"))
    except Unreadable as failure:
        return str(failure)
    return found if isinstance(found, dict) else "it is no JSON object"


class Files:
    """The files of a source, as one source; a kind of file is a subclass that finds the threads in each."""

    format = ""
    unit = "bytes"

    def __init__(self, path: Path, *, skip_bad: bool = False) -> None:
        self.skip_bad = skip_bad
        self._files = list(found_in(path))
        self.total: int | None = sum(file.size for file in self._files)

    @property
    def done(self) -> int:
        return sum(file.done for file in self._files)

    def close(self) -> None:
        """A file is open only while it is read."""


def found_in(path: Path) -> Iterator[LineFile]:
    """The file itself, or every .jsonl file of a folder, named from there."""
    if not path.is_dir():
        yield LineFile(path)
        return
    names = sorted(found for found in path.rglob("*.jsonl") if found.is_file())
    if not names:
        raise InvalidSource(f"there is no .jsonl file in the folder {path.name or path}")
    for found in names:
        yield LineFile(found, found.relative_to(path).as_posix())
