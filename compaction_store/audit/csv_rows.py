"""CSV by RFC 4180, in UTF-8, that is safe to open in a spreadsheet.

A spreadsheet runs a cell that begins like a formula, so an apostrophe is put before such a text.
"""

from __future__ import annotations

import csv
import json
import unicodedata
from collections.abc import Iterable, Mapping
from io import StringIO
from tempfile import TemporaryFile
from typing import IO, Any

from compaction_store.jsonable import encoded, plain

_FORMULAS = "=+-@"
_BLANKS = ("\t", "\r", "\n")


def csv_cell(value: object) -> str:
    """Returns a value as the text of a cell. Objects and lists become JSON, and an apostrophe disarms formulas."""
    if value is None:
        return ""
    found = plain(value)
    if isinstance(found, int | float):
        return encoded(found)
    text = found if isinstance(found, str) else encoded(found)
    return f"'{text}" if text.startswith(_BLANKS) or _begins_as_formula(text) else text


def _begins_as_formula(text: str) -> bool:
    """Returns whether the first visible character begins a formula, also in another form, such as full width."""
    first = next((each for each in text if not each.isspace() and unicodedata.category(each)[0] != "C"), "")
    return bool(first) and unicodedata.normalize("NFKC", first)[0] in _FORMULAS


def csv_line(cells: Iterable[str]) -> bytes:
    """Returns a line with its line end. A lone surrogate, which UTF-8 cannot encode, becomes an escape sequence."""
    out = StringIO(newline="")
    csv.writer(out, lineterminator="\r\n").writerow(cells)
    return out.getvalue().encode(errors="backslashreplace")


class CsvRows:
    """Rows with named cells, kept in an unnamed temporary file until all columns are known."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._stream: IO[bytes] = TemporaryFile()  # noqa: SIM115 — closed by lines()

    def add(self, values: Mapping[str, Any]) -> None:
        self._names.update(dict.fromkeys(values))
        self._stream.write(json.dumps({name: csv_cell(value) for name, value in values.items()}).encode() + b"\n")

    def close(self) -> None:
        self._stream.close()

    def lines(self) -> Iterable[list[str]]:
        """Yields the names of the columns, then the cells of each row; nothing if there are no rows."""
        with self._stream as stream:
            stream.seek(0)
            if self._names:
                yield [csv_cell(name) for name in self._names]
            for row in stream:
                cells = json.loads(row)
                yield [cells.get(name, "") for name in self._names]
