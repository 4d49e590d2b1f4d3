"""The commands `show` and `tree`, which show a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from compaction_store.audit import words
from compaction_store.audit._sync.records import inside
from compaction_store.audit.safe_text import lines, named, shown
from compaction_store.cli import values
from compaction_store.cli.bundles import option
from compaction_store.cli.options import Number, ReadOptions, Thread
from compaction_store.cli.output import Output, encoded, moment, number
from compaction_store.models.compactions import status_in_words

if TYPE_CHECKING:
    from compaction_store import Compaction, Element, Reader

_WIDEST = 160
_SIDE_BY_SIDE = 90
# The number of characters of each message that `show` prints without --full.
_LONGEST = 1000
_AT_EACH_END = 10
_FACTS = (
    "created_at", "kind", "outcome", "status", "callback", "trigger", "actor", "login", "model", "counter", "run_id",
    "thread_uid", "error",
)  # fmt: skip


def show(thread: Thread, number_: Number, full: bool = option("--full", default=False), *, call: ReadOptions) -> None:
    out = call.output()
    with call.reader() as store:
        record = store.compaction(thread, number_)
        originals = [] if record.start_seq is None else list(store.audit.originals(record))
        within = inside(store, record)
        read = _read(store, record) if within else None
    if out.as_json:
        parts = values.compaction(record, text=True) | {"inside": within}
        if read is not None:
            parts["made_from"] = [_element(element) for element in read]
        messages = ",".join(values.message(message) for message in originals)
        out.json_text(f'{{"compaction":{encoded(parts)},"originals":[{messages}]}}')
        return
    left = [(f"{m.seq:,} {values.role(m.payload)}", words.said(m.payload)) for m in originals]
    right = [(values.role(payload), words.said(payload)) for payload in record.replacement or []]
    if record.redacted:
        right = [("", "(erased)")]
    elif record.replacement is None and record.summary_text is not None:
        right = [("a summary that was not applied", record.summary_text)]
    sides = [("originals", left if full else _shortened(left)), ("replacement", right)]
    if read is not None:
        # Earlier records had replaced some originals, so the summarizer read their replacements instead.
        made_from = [_said(element) for element in read]
        sides.insert(1, ("input of the summarizer", made_from if full else _shortened(made_from)))
    with out.paged():
        _show_record(out, record, within)
        _side_by_side(out, sides)


def _read(store: Reader, record: Compaction) -> list[Element]:
    """Returns the input of a record's summarizer: the view within the record's span, just before the record."""
    start, end = record.start_seq or 0, record.end_seq or 0
    return [e for e in store.view(record.thread_id, at=record.pos - 1).elements if start <= e.seq and e.end_seq <= end]


def _element(element: Element) -> dict[str, Any]:
    return {
        "start_seq": element.seq, "end_seq": element.end_seq, "compaction": element.number,
        "messages": list(element.messages),
    }  # fmt: skip


def _said(element: Element) -> tuple[str, str]:
    head = values.span(element.seq, element.end_seq)
    if element.number is not None:
        head += f" compaction {element.number}"
    return head, "\n".join(words.said(message) for message in element.messages)


def _shortened(said: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Shortens long messages, and leaves out messages in the middle if there are many."""
    cut = [
        (head, text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)")
        for head, text in said
    ]
    if len(cut) <= 2 * _AT_EACH_END + 1:
        return cut
    left_out = len(cut) - 2 * _AT_EACH_END
    return [*cut[:_AT_EACH_END], (f"… {left_out:,} more; --full shows them", ""), *cut[-_AT_EACH_END:]]


def _show_record(out: Output, record: Compaction, inside: list[int]) -> None:
    facts = {name: getattr(record, name) for name in _FACTS}
    facts["error"] = None if record.error is None else values.error(record.error)
    facts["created_at"] = moment(record.created_at)
    facts["authority"] = encoded(record.authority) if record.authority else None
    facts["reason"] = record.reason
    facts["summarizer"] = record.summarizer
    facts["failed before"] = "; ".join(map(values.failure, record.failed_before))
    facts["settings"] = encoded(record.settings) if record.settings else None
    facts["prompt"] = record.prompt
    facts["usage"] = encoded(record.usage) if record.usage else None
    facts["duration"] = None if record.duration is None else f"{record.duration:.3g} s"
    facts["summary"] = "only the provider can read it" if record.unreadable else None
    facts["includes"] = ", ".join(f"compaction {number}" for number in inside)
    head = f"compaction {record.number} of thread {named(record.thread_id)}"
    if record.start_seq is not None:
        head += f": seqs {values.span(record.start_seq, record.end_seq)}, {number(record.tokens_before)}"
        head += f" to {number(record.tokens_after)} tokens" if record.tokens_after is not None else " tokens"
    out.text(head, "bold")
    out.facts({}, [(name.removesuffix("_at"), str(value)) for name, value in facts.items() if value])


def _side_by_side(out: Output, sides: list[tuple[str, list[tuple[str, str]]]]) -> None:
    """Prints texts, such as originals and replacement, in columns or, on a narrow terminal, one below the other."""
    if not any(side for _, side in sides):
        return
    cells = [_blocks(side) for _, side in sides]
    if out.console.width < _SIDE_BY_SIDE:
        for (name, _), cell in zip(sides, cells, strict=True):
            out.text()
            out.text(name, "bold")
            out.console.print(cell)
        return
    table = Table(box=None, padding=(1, 2, 0, 0), expand=True, header_style="bold", show_edge=False)
    for name, _ in sides:
        table.add_column(name, ratio=1, overflow="fold")
    table.add_row(*cells)
    # Limit the width, because a wider table would be mostly spaces.
    out.print_table(table, width=min(out.console.width, _WIDEST))


def _blocks(said: list[tuple[str, str]]) -> Group:
    """Returns texts with their headings. Every line of a text is indented below the heading."""
    if not said:
        return Group(Text("nothing"))
    parts: list[RenderableType] = []
    for head, text in said:
        parts += [
            *([Text()] if parts else []),
            Text(shown(head), "dim"),
            Padding(Text("\n".join(lines(text))), (0, 0, 0, 2), expand=False),
        ]
    return Group(*parts)


# Records at a greater depth are not indented further: their line states the depth.
_DEEPEST = 16


def tree(thread: Thread, number_: Number, text: bool = option("--text", default=False), *, call: ReadOptions) -> None:
    out = call.output("--text" if text else None)
    with call.reader() as store:
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
