"""Verifies a whole bundle and converts it to rows for COPY, before anything is sent to the database.

The rows of each kind stay in memory up to 8 MiB. If there are more, all of them go to an unnamed temporary file, which
disappears when the process ends. So a bundle of any length takes little memory, no transaction waits for slow input,
and a COPY can be retried.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from tempfile import SpooledTemporaryFile
from typing import IO, Any, NamedTuple, Self
from uuid import UUID

from compaction_store.arguments import LOG
from compaction_store.bundles.line_format import Line
from compaction_store.bundles.verification import BundleVerifier, check_line
from compaction_store.errors import InvalidBundle
from compaction_store.messages import load_chunk
from compaction_store.models import Imported
from compaction_store.module_data import ModuleData

KINDS = ("message", "compaction", "event")
_IN_MEMORY = 8 * 1024 * 1024
_BLOCK_BYTES = 64 * 1024
# Ten times the measured time that the database takes to check an entry.
_SECONDS_AN_ENTRY = 0.0005
_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_NULL = struct.pack(">i", -1)
# Postgres counts from the year 2000.
_POSTGRES_EPOCH = 946_684_800_000_000
_LENGTH = struct.Struct(">i")
_SMALL = struct.Struct(">ii")
_LARGE = struct.Struct(">iq")
_INT8_OID = 20


class _Codec(NamedTuple):
    """Functions that encode a column's value for COPY, and that decode it to a JSON value."""

    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def _raw(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


def _large(value: int) -> bytes:
    return _LARGE.pack(8, value)


def _numbers(values: list[int]) -> bytes:
    if not values:
        return _raw(struct.pack(">iii", 0, 0, _INT8_OID))
    return _raw(struct.pack(">iiiii", 1, 0, _INT8_OID, len(values), 1) + b"".join(map(_large, values)))


def _integer(value: bytes) -> int:
    return int.from_bytes(value, signed=True)


_CODECS = {
    "text": _Codec(lambda value: _raw(value.encode()), bytes.decode),
    "bytes": _Codec(lambda value: _raw(bytes.fromhex(value)), lambda value: "\\x" + value.hex()),
    "uuid": _Codec(lambda value: _raw(UUID(value).bytes), lambda value: str(UUID(bytes=value))),
    "small": _Codec(lambda value: _SMALL.pack(4, value), _integer),
    "large": _Codec(_large, _integer),
    "flag": _Codec(lambda value: _raw(bytes((value,))), lambda value: value == b"\1"),
    "moment": _Codec(lambda value: _large(value - _POSTGRES_EPOCH), lambda value: _integer(value) + _POSTGRES_EPOCH),
    # After the header of an array, each number is preceded by its length.
    "numbers": _Codec(_numbers, lambda value: [number for _, number in struct.iter_unpack(">iq", value[20:])]),
}


def _column(name: str, given: str) -> tuple[str, _Codec]:
    """Returns the field of the line that holds a column's value, and the form of the value."""
    kind, _, field = given.partition(" ")
    return field or name, _CODECS[kind]


_COLUMNS = {
    kind: {name: _column(name, given) for name, given in columns.items()}
    for kind, columns in ModuleData(__file__).values.items()
}
COLUMNS = {kind: ("type", "thread_uid", *columns) for kind, columns in _COLUMNS.items()}


def _field(file: IO[bytes]) -> bytes | None:
    size = int.from_bytes(file.read(4), signed=True)
    return None if size < 0 else file.read(size)


class Staged:
    """A bundle during its import: `add` takes a line, `finish` checks the end, and then `blocks` yields the rows."""

    def __init__(self, tenant: str) -> None:
        self.count = 0
        self.size = 0
        self.sent = False
        self._tenant = tenant
        self._verifier = BundleVerifier()
        self._files = {kind: SpooledTemporaryFile(_IN_MEMORY) for kind in KINDS}  # noqa: SIM115 — closed by __exit__
        self._beginnings: dict[str, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    @property
    def manifest(self) -> Line:
        assert self._verifier.manifest is not None  # noqa: S101 — a bundle without a manifest is refused at its first line
        return self._verifier.manifest

    @property
    def thread_uid(self) -> UUID:
        return UUID(self.manifest["thread_uid"])

    @property
    def head(self) -> bytes:
        return bytes.fromhex(self.manifest["head"])

    @property
    def name_salt(self) -> bytes | None:
        salt = self.manifest["name_salt"]
        return None if salt is None else bytes.fromhex(salt)

    @property
    def name_commitment(self) -> bytes:
        return bytes.fromhex(self.manifest["name_commitment"])

    @property
    def seconds(self) -> float:
        """The seconds to add to the deadline, so that a slow network or a slow database can handle the bundle."""
        return self.size / load_chunk.SLOWEST_BYTES_A_SECOND + self.count * _SECONDS_AN_ENTRY

    def add(self, data: object) -> None:
        line = self._verifier.feed(check_line(data))
        self._raise_finding()
        if line is not None:
            self._write(line)
        elif self._verifier.lines == 1:
            self._open()

    def finish(self) -> None:
        self._verifier.finish()
        self._raise_finding()
        if not self.count:
            self._refuse("the bundle has no entries", None)
        if not self.manifest["last_seq"] and self.manifest["thread_id"] != LOG:
            self._refuse("the bundle has no messages: a thread must have one", None)
        for file in self._files.values():
            file.write(_TRAILER)

    def result(self, *, added: bool) -> Imported:
        said = self.manifest
        return Imported(said["thread_id"], said["last_seq"], said["last_number"], said["last_pos"], self.head, added)

    def blocks(self, kind: str) -> Iterator[bytes]:
        """Yields the COPY data of a kind. Each call begins at the start."""
        file = self._files[kind]
        file.seek(0)
        while block := file.read(_BLOCK_BYTES):
            yield block

    def rows(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yields the rows of a kind as JSON fields, with times in microseconds. Each call begins at the start."""
        file = self._files[kind]
        file.seek(len(_SIGNATURE))
        while (count := file.read(2)) != _TRAILER:
            assert int.from_bytes(count) == len(COLUMNS[kind])  # noqa: S101 — written by _write
            values = [_field(file) for _ in COLUMNS[kind]][2:]
            yield {
                name: codec.read(value)
                for (name, (_, codec)), value in zip(_COLUMNS[kind].items(), values, strict=True)
                if value is not None
            }

    def _open(self) -> None:
        if self.manifest["tenant"] != self._tenant:
            self._refuse("the bundle belongs to another tenant", None)
        for kind, file in self._files.items():
            size = struct.pack(">h", len(COLUMNS[kind]))
            self._beginnings[kind] = size + _raw(kind.encode()) + _raw(self.thread_uid.bytes)
            file.write(_SIGNATURE)

    def _write(self, line: Line) -> None:
        kind = line["type"]
        if line["salt"] is None and line.get("redacted_pos") is None:
            self._refuse("the content is withheld: a bundle must have all of it to be imported", line["pos"])
        values = [(line[name], codec) for name, codec in _COLUMNS[kind].values()]
        row = b"".join([_NULL if value is None else codec.write(value) for value, codec in values])
        self._files[kind].write(self._beginnings[kind] + row)
        self.count += 1
        self.size += len(row)

    def _raise_finding(self) -> None:
        finding = self._verifier.first_finding
        if finding is not None:
            raise InvalidBundle(finding.what, line=finding.line, pos=finding.pos)

    def _refuse(self, what: str, pos: int | None) -> None:
        raise InvalidBundle(what, line=self._verifier.lines, pos=pos)
