"""The audit verbs: compaction records, the messages they replace, and the history of a message or a thread."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from compaction_store import Compaction, Element, Explanation, Reader
from compaction_store.cli import options, saying, values
from compaction_store.cli.options import AsJson, Kind, Outcome, Tenant, Thread, Url
from compaction_store.cli.output import Column, Output, Progress, encoded, figures, moment, number
from compaction_store.cli.visible import lines, shown

_WIDEST = 160
_SIDE_BY_SIDE = 90
# What `show` prints of each original without --full.
_LONGEST = 1000
_AT_EACH_END = 10
_FACTS = (
    "created_at", "kind", "outcome", "status", "callback", "trigger", "actor", "model", "counter", "run_id", "error",
)  # fmt: skip
_Text = Annotated[bool, typer.Option("--text", help="Include summaries, prompts and reasons. Prints JSON.")]
_EVENTS: list[str | Column] = [
    Column("pos", right=True), "when", "what", Column("seqs", fold=True, optional=True),
    Column("records", fold=True, optional=True), Column("actor", fold=True), Column("reason", fold=True),
]  # fmt: skip
_RECORDS: list[str | Column] = [
    Column("number", right=True), "written", "kind", Column("seqs", right=True), *figures("before", "after"), "status",
    *(Column(name, fold=True, optional=True) for name in ("callback", "actor", "model", "error")),
]  # fmt: skip


def compactions(
    thread: Annotated[
        str | None, typer.Argument(metavar="[THREAD]", help="Only records of this thread.", show_default=False)
    ] = None,
    covering: Annotated[
        int | None,
        typer.Option(
            "--covering", metavar="SEQ", min=1, help="Only records whose span contains this seq.", show_default=False
        ),
    ] = None,
    kind: Annotated[Kind | None, typer.Option("--kind", help="Only records of this kind.", show_default=False)] = None,
    outcome: Annotated[
        Outcome | None, typer.Option("--outcome", help="Only records with this outcome.", show_default=False)
    ] = None,
    actor: Annotated[
        str | None, typer.Option("--actor", metavar="NAME", help="Only records of this actor.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="NAME", help="Only records of this model, failed attempts included.", show_default=False
        ),
    ] = None,
    callback: Annotated[
        str | None,
        typer.Option(
            "--callback", metavar="NAME", help="Only records of this strategy or callback.", show_default=False
        ),
    ] = None,
    run: Annotated[
        UUID | None, typer.Option("--run", metavar="UUID", help="Only records of this run.", show_default=False)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="WHEN",
            help="Only records since this time, for example 2026-05-01, or 24h or 7d ago.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="WHEN", help="Only records up to this time.", show_default=False)
    ] = None,
    newest_first: Annotated[bool, typer.Option("--newest-first", help="List the newest records first.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Print at most N records.", show_default=False)
    ] = None,
    text: _Text = False,
    url: Url = None,
    tenant: Tenant = "default",
    as_json: AsJson = None,
) -> None:
    """Lists compaction records of one thread, or of all threads of the tenant, with any outcome.

    The column `error` says why an attempt failed or was rejected.
    """
    out = options.with_text(as_json, text=text)
    with options.reader(url, tenant) as store, Progress("compactions", "records") as progress:
        log = store.compactions(
            thread, covering=covering, kind=kind, outcome=outcome, actor=actor, model=model, callback=callback,
            run_id=run, since=options.moment(since, "--since"), until=options.moment(until, "--until"),
            newest_first=newest_first,
        )  # fmt: skip
        found = progress.over(islice(log, limit))
        _list_records(out, found, own=thread is not None, text=text)


def _list_records(out: Output, found: Iterable[Compaction], *, own: bool, text: bool) -> None:
    """Prints records as a table or, if the terminal is too narrow, as a few lines each."""
    columns = _RECORDS if own else [Column("thread", fold=True), *_RECORDS]

    def cells(record: Compaction) -> list[str]:
        return [*([] if own else [record.thread_id]), *values.record_cells(record)]

    none = "no records found"
    if out.as_json:
        out.rows(columns, ((values.compaction(record, text=text), ()) for record in found), none)
        return
    records = list(found)
    rows = [cells(record) for record in records]
    if not rows:
        out.text(none)
    elif out.fits(columns, rows):
        out.grid(columns, rows)
    else:
        for record in records:
            head, *rest = values.record_lines(record, own=own)
            out.wrapped(head, style="bold")
            for line in rest:
                out.wrapped(line, indent=4)


def show(
    thread: Thread,
    number_: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="The record's number.", show_default=False)],
    full: Annotated[bool, typer.Option("--full", help="Show every original message in full.")] = False,
    url: Url = None,
    tenant: Tenant = "default",
    as_json: AsJson = None,
) -> None:
    """Shows one compaction record beside the messages that it replaces.

    Long messages are shortened, and of a long span only the first and last messages are shown; --full shows everything.
    On a terminal, output longer than the screen goes through your pager.
    """
    out = Output(as_json=as_json)
    with options.reader(url, tenant) as store:
        record = store.compaction(thread, number_)
        originals = [] if record.start_seq is None else list(store.originals(record))
        inside = [branch.record.number for branch in store.tree(record).inside]
        read = _read(store, record) if inside else None
    if out.as_json:
        parts = values.compaction(record, text=True) | {"inside": inside}
        if read is not None:
            parts["made_from"] = [_element(element) for element in read]
        messages = ",".join(values.message(message) for message in originals)
        out.json_text(f'{{"compaction":{encoded(parts)},"originals":[{messages}]}}')
        return
    left = [(f"{m.seq:,} {values.role(m.payload)}", saying.said(m.payload)) for m in originals]
    right = [(values.role(payload), saying.said(payload)) for payload in record.replacement or []]
    if record.redacted:
        right = [("", "(erased)")]
    elif record.replacement is None and record.summary_text is not None:
        right = [("a summary that was not applied", record.summary_text)]
    sides = [("originals", left if full else _shortened(left)), ("replacement", right)]
    if read is not None:
        # The summarizer was given the replacements of earlier records instead of these originals.
        made_from = [_said(element) for element in read]
        sides.insert(1, ("input of the summarizer", made_from if full else _shortened(made_from)))
    with out.paged():
        _show_record(out, record, inside)
        _side_by_side(out, sides)


def _read(store: Reader, record: Compaction) -> list[Element]:
    """Returns the input of a record's summarizer: the view within its span, just before the record."""
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
    return head, "\n".join(saying.said(message) for message in element.messages)


def _shortened(said: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Shortens long messages, and drops those in the middle of many."""
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
    facts["reason"] = record.reason
    facts["summarizer"] = record.summarizer
    facts["failed before"] = "; ".join(map(values.failure, record.failed_before))
    facts["settings"] = encoded(record.settings) if record.settings else None
    facts["prompt"] = record.prompt
    facts["usage"] = encoded(record.usage) if record.usage else None
    facts["includes"] = ", ".join(f"compaction {number}" for number in inside)
    head = f"compaction {record.number} of thread {record.thread_id}"
    if record.start_seq is not None:
        head += f": seqs {values.span(record.start_seq, record.end_seq)}, {number(record.tokens_before)}"
        head += f" to {number(record.tokens_after)} tokens" if record.tokens_after is not None else " tokens"
    out.text(head, "bold")
    out.facts({}, [(name.removesuffix("_at"), str(value)) for name, value in facts.items() if value])


def _side_by_side(out: Output, sides: list[tuple[str, list[tuple[str, str]]]]) -> None:
    """Prints originals and replacement in columns, or one below the other on a narrow terminal."""
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
    # A wider table would be mostly spaces.
    out.print_table(table, width=min(out.console.width, _WIDEST))


def _blocks(said: list[tuple[str, str]]) -> Group:
    """Indents every line of a text below its heading."""
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


def explain(
    thread: Thread,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="The message's seq.", show_default=False)],
    text: Annotated[bool, typer.Option("--text", help="Include the message and its replacement. Prints JSON.")] = False,
    url: Url = None,
    tenant: Tenant = "default",
    as_json: AsJson = None,
) -> None:
    """Shows what happened to one message: every record that covers it, and what the view now has in its place."""
    out = options.with_text(as_json, text=text)
    with options.reader(url, tenant) as store:
        found = store.explain(thread, seq)
    if out.as_json:
        out.json_text(_explained(found, text=text))
        return
    message, now = found.message, found.element
    out.text(f"seq {message.seq:,} of thread {thread}", "bold")
    facts = [("role", message.role or ""), ("appended", moment(message.created_at)), ("tokens", number(message.tokens))]
    if found.redaction is not None:
        facts.append(
            (
                "erased",
                f"{moment(found.redaction.created_at)} by {found.redaction.actor or 'an unknown actor'}",
            )
        )
    elif message.redacted:
        facts.append(("erased", "without an event that says by whom; run verify"))
    in_view = (
        "the message itself" if now.kind is None else f"{values.who(now)}, for seqs {values.span(now.seq, now.end_seq)}"
    )
    out.facts({}, [*facts, ("in the view", in_view)])
    out.rows(_RECORDS, ((values.compaction(r), values.record_cells(r)) for r in found.records), "no record covers it")


def _explained(found: Explanation, *, text: bool) -> str:
    message, event = found.message, found.redaction
    head = values.message(message) if text else values.message(message._replace(text=None, meta=None))
    element = values.element(found.element)
    if not text:
        head = head.removesuffix(',"payload":null}') + "}"
        del element["messages"]
    rest = {
        "element": element,
        "records": [values.compaction(record, text=text) for record in found.records],
        "redaction": None if event is None else values.event(event, text=text),
    }
    return f'{{"message":{head},{encoded(rest)[1:]}'


def events(
    thread: Thread,
    after: Annotated[int, typer.Option("--after", metavar="POS", min=0, help="Only events after this pos.")] = 0,
    url: Url = None,
    tenant: Tenant = "default",
    as_json: AsJson = None,
) -> None:
    """Lists the events of a thread: erasures, holds, releases, retentions, loads and checkpoints."""
    out = Output(as_json=as_json)
    with options.reader(url, tenant) as store:
        out.rows(
            _EVENTS,
            (
                (values.event(event, text=True), values.event_cells(event))
                for event in store.events(thread, after=after)
            ),
            none="no events found",
        )
