"""The files that the pages offer, written while they are read: a line of JSON for each row, CSV, or Markdown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any

from compaction_store.audit import transcript
from compaction_store.audit.csv_rows import CsvRows, csv_line
from compaction_store.audit.facts import ROWS
from compaction_store.compaction.records import COLUMNS
from compaction_store.jsonable import encoded
from compaction_store.models import Thread
from compaction_store.store import AsyncReader

#: The forms of each file, which are suffixes of its name, and those that it has where no words are shown.
FORMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "thread": (("jsonl", "csv", "md", "bundle.jsonl", "html"), ("bundle.jsonl", "html")),
    "records": (("jsonl", "csv"), ("jsonl", "csv")),
    "view": (("jsonl", "csv", "md"), ()),
}
MEDIA = {"csv": "text/csv", "md": "text/markdown", "html": "text/html"}
#: The fields of a record that have no words.
WORDLESS = ("status", *(name for name in COLUMNS if name != "body"))


async def each(found: Iterable[Any]) -> AsyncIterator[Any]:
    for row in found:
        yield row


async def entries(reader: AsyncReader, found: Thread) -> AsyncIterator[Any]:
    for after in range(0, found.last_pos, ROWS):
        for entry in await reader.audit.entries(found.thread_id, after=after, count=ROWS):
            yield entry


async def listed(rows: AsyncIterator[Any], form: str, only: Collection[str] | None) -> AsyncIterator[str | bytes]:
    """Yields the lines of JSON or CSV. Rows of CSV wait in a file until all columns are known."""
    table = CsvRows()
    try:
        async for row in rows:
            fields = {name: value for name, value in row.as_dict().items() if only is None or name in only}
            if form == "csv":
                table.add(fields)
            else:
                yield encoded(fields) + "\n"
        for cells in table.lines():
            yield csv_line(cells)
    finally:
        table.close()


async def written(rows: AsyncIterator[Any], thread: Thread) -> AsyncIterator[str]:
    """Yields the parts of a transcript."""
    yield transcript.beginning(thread)
    async for row in rows:
        for part in transcript.entry(row):
            yield part
