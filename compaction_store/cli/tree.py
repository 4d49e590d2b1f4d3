"""The command `tree`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from compaction_store.audit.safe_text import named
from compaction_store.cli import values
from compaction_store.cli.bundles import option
from compaction_store.cli.options import Database, Number, Printed, Thread
from compaction_store.models.compactions import status_in_words

if TYPE_CHECKING:
    from compaction_store import Compaction

# Records at a greater depth are not indented further: their line states the depth.
_DEEPEST = 16


def tree(
    thread: Thread,
    number_: Number,
    text: Annotated[bool, option("--text", "Include summaries, prompts and reasons. Prints JSON.")] = False,
    *,
    db: Database,
    printed: Printed,
) -> None:
    """Shows a compaction record with all records inside it, down to the records that were made from messages alone.

    Each record is indented below the record that replaced it. JSON lists all records, each with the numbers of the
    records directly inside it.
    """
    out = printed.output("--text" if text else None)
    with db.reader() as store:
        found = store.audit.tree(store.compaction(thread, number_))
    if out.as_json:
        records = [
            values.compaction(each.record, text=text) | {"inside": [part.record.number for part in each.inside]}
            for _, each in found.walk()
        ]
        out.json({"thread_id": thread, "number": number_, "records": records})
        return
    out.text(f"compaction {number_} of thread {named(thread)}", "bold")
    for depth, each in found.walk():
        out.text("  " * min(depth, _DEEPEST) + _line(each.record, depth))


def _line(record: Compaction, depth: int) -> str:
    parts = [
        f"level {depth}" if depth > _DEEPEST else "",
        f"{record.number}  {record.kind}",
        f"seqs {values.span(record.start_seq, record.end_seq)}" if record.start_seq is not None else "",
        values.change(record), status_in_words(record), values.callback(record.callback),
    ]  # fmt: skip
    return ", ".join(part for part in parts if part)
