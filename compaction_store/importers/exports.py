"""Reads account exports: a JSON array of conversations, in a file, a folder, or the downloaded zip archive.

Memory grows with the longest conversation, not with the file.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from compaction_store.errors import InvalidSource
from compaction_store.importers.line_files import Unreadable, json_object
from compaction_store.importers.sources import Item, Notes, SourceThread, text

# The maximum size of a conversation in bytes, including its branches that are no longer shown.
LONGEST_CONVERSATION = 256 * 1024 * 1024
_BLOCK = 1024 * 1024
_NAME = re.compile(r"conversations(?:-\d+)?\.json")
# Matches a whole string, or a byte that matters outside of strings. A lone quote begins a string that goes on after the
# block. The quantifiers do not backtrack, which would take memory for each escape.
_REST = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
_TOKEN = re.compile(rb'"' + _REST + rb'"|["{}\[\],]', re.DOTALL)
_REST_OF_STRING = re.compile(_REST, re.DOTALL)
_SPACE = b" \t\r\n"
_LONGEST_TITLE = 500
_BOM = b"\xef\xbb\xbf"
_OPEN, _CLOSE = frozenset({b"{", b"["}), frozenset({b"}", b"]"})

Conversation = dict[str, Any]
Read = Callable[[Conversation, Notes, str], Iterator[Item]]


class Exported:
    """A file of an export, in a folder or in an archive. `done` is the number of bytes read."""

    def __init__(self, path: Path, member: str | None = None) -> None:
        self.name = path.name if member is None else f"{path.name}/{member}"
        self.done = 0
        self._path, self._member, self.size = path, member, path.stat().st_size
        if member is not None:
            with zipfile.ZipFile(path) as archive:
                self.size = archive.getinfo(member).file_size

    def conversations(self, notes: Notes) -> Iterator[tuple[str, Conversation]]:
        """Yields each conversation with its place, and notes values that are too long, unreadable or no JSON object."""
        for number, data in enumerate(self._elements(), 1):
            where = f"conversation {number:,} of {self.name}"
            if data is None:
                notes.refuse(where, f"it is longer than {LONGEST_CONVERSATION:,} bytes")
                continue
            if isinstance(found := json_object(data, "it must be a JSON object"), dict):
                yield where, found
            else:
                notes.refuse(where, found)

    def _elements(self) -> Iterator[bytes | None]:
        failure = None
        try:
            with ExitStack() as stack:
                yield from elements(self._blocks(self._opened(stack)), LONGEST_CONVERSATION)
        except (OSError, zipfile.BadZipFile) as error:
            failure = getattr(error, "strerror", None) or "the archive is damaged"
        except Unreadable as error:
            failure = str(error)
        if failure is not None:
            raise InvalidSource(f"cannot read {self.name}: {failure}")

    def _opened(self, stack: ExitStack) -> IO[bytes]:
        if self._member is None:
            return stack.enter_context(self._path.open("rb"))
        return stack.enter_context(stack.enter_context(zipfile.ZipFile(self._path)).open(self._member))

    def _blocks(self, file: IO[bytes]) -> Iterator[bytes]:
        self.done = 0
        while block := file.read(_BLOCK):
            self.done += len(block)
            yield block


def elements(blocks: Iterator[bytes], longest: int) -> Iterator[bytes | None]:
    """Yields the bytes of each element of a JSON array; None for an element that is longer than `longest` bytes."""
    splitter = _Splitter(longest)
    for block in _from_array(blocks):
        yield from splitter.feed(block)
    if splitter.depth:
        raise Unreadable("the file ends before the array does")


class _Splitter:
    """A splitter of a JSON array into its elements. It looks only at strings, brackets and commas."""

    def __init__(self, longest: int) -> None:
        self.depth = self._string_bytes = 0
        self._longest = longest
        # The bytes from the start of the current element on. They have been scanned up to `_at`.
        self._data = bytearray()
        self._at = 0
        self._in_string = self._too_long = False

    def feed(self, block: bytes) -> Iterator[bytes | None]:
        self._data += block
        start = 0
        if self._in_string:
            self._end_string(self._at)
        if not self._in_string:
            for token in _TOKEN.finditer(self._data, self._at):
                if token[0] == b'"':
                    self._end_string(token.end())
                    break
                self._at = token.end()
                begins, ends = self._step(token[0])
                if ends and (self._too_long or self._data[start : token.start()].strip(_SPACE)):
                    yield None if self._too_long else bytes(self._data[start : token.start()])
                if begins or ends:
                    start, self._too_long = token.end(), False
            else:
                self._at = len(self._data)
        self._keep(start)

    def _end_string(self, at: int) -> None:
        """Goes on to the end of a string, or to the end of the block, but not into the middle of an escape."""
        found = _REST_OF_STRING.match(self._data, at)
        assert found is not None  # noqa: S101 — the pattern matches the empty text
        self._at = found.end()
        self._string_bytes += self._at - at
        if self._string_bytes > self._longest:
            raise Unreadable(f"a string is longer than {self._longest:,} bytes")
        self._in_string = self._data[self._at : self._at + 1] != b'"'
        if not self._in_string:
            self._at += 1
            self._string_bytes = 0

    def _step(self, token: bytes) -> tuple[bool, bool]:
        """Returns whether the array begins with this token, and whether an element ends before it."""
        if token in _OPEN:
            self.depth += 1
            return self.depth == 1, False
        if token in _CLOSE:
            self.depth -= 1
            return False, self.depth == 0
        return False, self.depth == 1 and token == b","

    def _keep(self, start: int) -> None:
        """Drops the bytes before the current element. If the element is too long, also drops its own bytes."""
        if len(self._data) - start > self._longest:
            start, self._too_long = self._at, True
        del self._data[:start]
        self._at -= start


def _from_array(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the blocks from the first that is not blank. This block must begin with the array."""
    for block in blocks:
        if first := block.removeprefix(_BOM).lstrip(_SPACE):
            if not first.startswith(b"["):
                raise Unreadable("the file must be a JSON array of conversations")
            yield first
            break
    yield from blocks


class Export:
    """The files of an export: `read` yields messages, `ids` are the fields of the id, `title` that of the title."""

    unit = "bytes"

    def __init__(
        self, path: Path, form: str, read: Read, ids: tuple[str, ...], title: str, *, skip_bad: bool = False
    ) -> None:
        self.format, self._read, self._ids, self._title, self._skip_bad = form, read, ids, title, skip_bad
        self._files = files(path)
        self.total: int | None = sum(file.size for file in self._files)

    @property
    def done(self) -> int:
        return sum(file.done for file in self._files)

    def threads(self) -> Iterator[SourceThread]:
        for file in self._files:
            notes = Notes(self._skip_bad)
            for where, conversation in file.conversations(notes):
                source_id = next((v for name in self._ids if isinstance(v := conversation.get(name), str) and v), None)
                if source_id is None:
                    notes.refuse(where, f"it must have an id in {' or '.join(self._ids)}")
                    continue
                # Skipped conversations are reported with the next one.
                own = notes.take()
                title = text(conversation.get(self._title))
                about = {} if title is None else {"title": title[:_LONGEST_TITLE]}
                yield SourceThread(source_id, self._read(conversation, own, where), own, about)
            if notes.skipped:
                yield SourceThread(file.name, (), notes)

    def close(self) -> None:
        """Does nothing: a file is open only while it is read."""


def files(path: Path) -> list[Exported]:
    """Returns the files of conversations in an export. If the path is a file, the file may have any name."""
    if path.is_dir():
        if found := [Exported(file) for file in sorted(path.iterdir()) if _NAME.fullmatch(file.name)]:
            return found
        raise InvalidSource(f"the folder {path.name} has no conversations.json")
    if not zipfile.is_zipfile(path):
        return [Exported(path)]
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if _NAME.fullmatch(name.rpartition("/")[2]))
    if not names:
        raise InvalidSource(f"the archive {path.name} has no conversations.json")
    return [Exported(path, name) for name in names]


def first_conversation(path: Path) -> Conversation | None:
    """Returns the first conversation of a file that may be an export; None if it is not one."""
    with suppress(InvalidSource, OSError):
        for file in files(path):
            for _, found in file.conversations(Notes(skip_bad=True)):
                return found
    return None
