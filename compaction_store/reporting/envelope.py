"""Reads and writes reports: pages or JSON files with the data and their own hash. Pure, without the extra `web`."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import unicodedata
import zlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from compaction_store.reporting.document import ReportDocument

_PAGE = b"<!doctype html>"
_JSON = b'{"report":'
#: The beginnings of files that are reports.
BEGINNINGS = (_PAGE, _JSON)
_END = re.compile(rb',"sha256":"([0-9a-f]{64})"\}\n')
_END_BYTES = 78
_DATA = re.compile(rb'<template id="data">([A-Za-z0-9+/=]*)</template>\n')
_HASH = re.compile(rb'<p id="hash">SHA-256 of all lines above this one: <code>([0-9a-f]{64})</code></p>\n')
# The maximum size of a page's unpacked data: in bytes, or as a multiple of the packed size, which is usually 5.
_FEW_BYTES, _MOST_TIMES = 64 * 1024 * 1024, 200
_MOST_BYTES = 1024 * 1024 * 1024
# A value of a report takes at least this many bytes; the lines of a bundle take more.
_BYTES_A_VALUE = 8
_FEW_VALUES = 500_000
_PIECE = 64 * 1024


def dump(document: ReportDocument) -> bytes:
    """Returns the canonical JSON of a document."""
    return json.dumps(document.model_dump(), ensure_ascii=False, separators=(",", ":")).encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---- a report as JSON


def sealed(document: ReportDocument) -> bytes:
    """Returns a report as JSON: the document and the hash of the document's JSON."""
    data = dump(document)
    return _JSON + data + b',"sha256":"' + sha256(data).encode() + b'"}\n'


def is_json(data: bytes) -> bool:
    """Returns whether a report is a JSON file."""
    return data.startswith(_JSON)


def opened(data: bytes) -> tuple[bytes, str | None]:
    """Returns the JSON of a JSON report's document, and the hash at its end (or None)."""
    found = _END.fullmatch(data, max(len(_JSON), len(data) - _END_BYTES))
    return (data[len(_JSON) :], None) if found is None else (data[len(_JSON) : found.start()], found[1].decode())


# ---- a report as a page


def packed(document: ReportDocument) -> str:
    """Compresses and encodes a document for a page."""
    return base64.b64encode(gzip.compress(dump(document), mtime=0)).decode()


def ended(page: bytes) -> bytes:
    """Adds a last line to a page, with the hash of all lines above it."""
    return page + f'<p id="hash">SHA-256 of all lines above this one: <code>{sha256(page)}</code></p>\n'.encode()


def carried_data(page: bytes) -> str | None:
    """Returns the packed document in a page, or None if the page does not have exactly one."""
    found = _DATA.findall(page)
    return found[0].decode() if len(found) == 1 else None


def unpacked(data: str) -> bytes:
    """Unpacks the data of a page. Raises ValueError, without quoting content, if this is not possible."""
    try:
        reading = zlib.decompressobj(wbits=31)
        most = min(_MOST_BYTES, max(_FEW_BYTES, _MOST_TIMES * len(data)))
        found = reading.decompress(base64.b64decode(data, validate=True), most)
    except (ValueError, zlib.error):
        raise ValueError("the data in the page cannot be unpacked") from None
    if not reading.eof:
        raise ValueError("the data in the page is too long or incomplete")
    return found


def refuse_many_values(data: bytes) -> None:
    """Raises ValueError for JSON with more values than a report can have. Parsing them could take all memory."""
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    count = is_in_string = 0
    for at in range(0, len(plain), _PIECE):
        parts = plain[at : at + _PIECE].split(b'"')
        outside = b"".join(parts[is_in_string::2])
        count += sum(map(outside.count, (b"[", b"{", b",")))
        is_in_string = (is_in_string + len(parts) - 1) % 2
    if count > max(_FEW_VALUES, len(data) // _BYTES_A_VALUE):
        raise ValueError("the data in the file is not a report: it has too many values")


def own_hash(page: bytes) -> tuple[str | None, str]:
    """Returns the hash in the last line of a page (or None), and the computed hash of all other lines."""
    at = page.rfind(b"\n", 0, -1) + 1
    found = _HASH.fullmatch(page, at)
    return None if found is None else found[1].decode(), sha256(page[:at])


def hash_of(data: bytes) -> str:
    """Returns the hash that a report states for itself, or an empty text if it states none."""
    stated = opened(data)[1] if is_json(data) else own_hash(data)[0]
    return stated or ""


_PACKAGE = Path(__file__).parents[1]
_SUFFIXES = (".py", ".toml", ".html", ".css")
_LIBRARIES = ("jinja2", "markupsafe")


@cache
def build() -> str:
    """Returns the SHA-256 of the package's files, and of the versions of Jinja, MarkupSafe and Unicode."""
    found = hashlib.sha256()
    for name in (*map(_version, _LIBRARIES), unicodedata.unidata_version):
        found.update(f"{name}\n".encode())
    for file in sorted(_PACKAGE.rglob("*")):
        if file.suffix in _SUFFIXES:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            found.update(f"{file.relative_to(_PACKAGE).as_posix()} {content}\n".encode())
    return found.hexdigest()


def _version(library: str) -> str:
    try:
        return f"{library} {version(library)}"
    except PackageNotFoundError:
        return f"{library} is not installed"
