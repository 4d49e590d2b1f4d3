"""The commands `threads`, `view`, `replay` and `search`, and `show` and `tree`, which show a record."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from compaction_store.audit import words
from compaction_store.audit._sync.records import inside
from compaction_store.audit._sync.threads import kept_threads
from compaction_store.audit.safe_text import lines, named, shown
from compaction_store.audit.words import Kept
from compaction_store.cli import options, values
from compaction_store.cli.bundles import argument, misuse, option
from compaction_store.cli.options import BudgetOptions, Idle, Number, ReadOptions, Subject, TenantsListOptions, Thread
from compaction_store.cli.output import Column, Output, ProgressBar, figures, moment, number
from compaction_store.jsonable import encoded
from compaction_store.models.compactions import status_in_words

if TYPE_CHECKING:
    from compaction_store import Compaction, Element, Reader

_Limit = Annotated[int | None, option("--limit N", "Print at most N threads.", min=1)]
_Format = Literal["anthropic", "openai", "openai-responses"]
_THREAD: list[str | Column] = [Column("thread", fold=True)]
_Full = Annotated[bool, option("--full", "Print whole texts instead of their beginnings.")]


def threads(
    after: str = option("--after THREAD", default="", show_default=False),
    limit: _Limit = None,
    subject: Subject = None,
    prefix: str = option("--prefix TEXT", default="", show_default=False),
    having: Any = option("--having JSON", default=None, parser=lambda text: options.json_object(text, "--having")),
    order: Literal["name", "recent"] = option("--order ORDER", default="name"),
    hidden: bool = option("--hidden", default=False),
    metadata: bool = option("--metadata", default=False),
    *,
    call: TenantsListOptions,
) -> None:
    call.only_one(after, "--after")
    out = call.output("--metadata" if metadata else None)
    with call.reader() as store, ProgressBar("threads", "threads") as progress:
        listed = (
            (name, thread, kept.get(thread.thread_id, Kept()))
            for name, its in call.readers(store)
            for kept in [kept_threads(its, None, most=None)[0]]
            for thread in its.threads(
                subject=subject, prefix=prefix, metadata=having, order=order, limit=limit, after=after, hidden=hidden
            )
        )
        rows = (
            (
                name, values.thread(thread, kept, metadata=metadata),
                [
                    thread.thread_id, number(thread.last_seq), number(thread.last_number), values.view_tokens(thread),
                    moment(thread.last_message_at), values.state(thread, kept),
                ],
            )
            for name, thread, kept in progress.over(islice(listed, limit))
        )  # fmt: skip
        sizes = figures("messages", "compactions", "view tokens")
        columns = [*_THREAD, *sizes, "last message", Column("state", optional=True)]
        call.rows(out, columns, rows, f"no threads of {call.where}")


def due(of: BudgetOptions, limit: _Limit = None, idle: Idle = 0.0, *, call: TenantsListOptions) -> None:
    out, budget = call.output(), of.budget()
    with call.reader() as store:
        found = (
            (
                name, values.without_metadata(thread),
                [thread.thread_id, number(thread.last_seq), values.view_tokens(thread), moment(thread.last_message_at)],
            )
            for name, its in call.readers(store) for thread in its.due(budget, idle_minutes=idle)
        )  # fmt: skip
        columns = [*_THREAD, *figures("messages", "view tokens"), "last message"]
        call.rows(out, columns, islice(found, limit), f"no thread of {call.where} is due")


def leases(
    window: options.Window = None,
    reserve: options.Reserve = 0,
    trigger: options.Trigger = "0.8",
    target: options.Target = "0.5",
    *,
    call: TenantsListOptions,
) -> None:
    out, budget = call.output(), options.budget(window, reserve, trigger, target)
    with call.reader() as store:
        rows = [
            (name, one.as_dict(), [one.thread_id, *(cell(one, moment) for cell in words.LEASES.values())])
            for name, its in call.readers(store)
            for one in its.leases(budget)
        ]
    call.rows(out, [*_THREAD, *words.LEASES], rows, f"no thread of {call.where} is being compacted")


def view(
    thread: Thread,
    at: str | None = option("--at WHEN", default=None),
    seen_by: int | None = option("--seen-by SEQ", default=None),
    render: _Format | None = option("--for", default=None),
    full: _Full = False,
    *,
    call: ReadOptions,
) -> None:
    if at is not None and seen_by is not None:
        raise misuse("must not be given with --at", "--seen-by")
    out = call.output()
    with call.reader() as store:
        seen = None if seen_by is None else store.seen_by(thread, seen_by)
        found = store.view(thread, at=_point(store, thread, at)) if seen is None else seen.view
    if render is not None:
        api: Literal["chat", "responses"] = "chat" if render == "openai" else "responses"
        out.json(found.for_anthropic() if render == "anthropic" else found.for_openai(api=api))
    elif out.as_json:
        about = {} if seen is None else {name: seen.as_dict()[name] for name in ("evidence", "messages", "where")}
        out.json(found.as_dict() | {name: value for name, value in about.items() if value is not None})
    elif seen is not None and seen.messages is not None:
        where = "" if seen.where is None else f": {seen.where}"
        out.text(f"the request for seq {seen_by:,} of {named(thread)}: {seen.evidence}{where}", "bold")
        for place, message in enumerate(seen.messages, 1):
            if full:
                _block(out, f"message {place:,}, {values.role(message)}", [message])
            else:
                out.clipped(_line(number(place), values.role(message), "", values.preview([message])))
    else:
        what = "" if seen is None else f", {seen.evidence}"
        out.text(f"{named(found.thread_id)} at pos {found.pos:,}: {found.tokens:,} tokens{what}", "bold")
        if not full:
            out.text(_line("seq", "what", "tokens", "text"), "bold")
        for part in found.elements:
            span = values.span(part.seq, part.end_seq)
            _show_part(out, span, values.who(part), part.tokens, part.messages, full=full)


def _point(store: Reader, thread: str, text: str | None) -> int | datetime | Compaction | None:
    if text is None:
        return None
    if text.isdecimal():
        return int(text)
    if found := re.fullmatch(r"compaction:(\d{1,18})", text):
        return store.compaction(thread, int(found[1]))
    return options.moment(text, "--at")


def _show_part(
    out: Output, seqs: str, what: str, tokens: int, payloads: Iterable[dict[str, Any] | None], *, full: bool
) -> None:
    if full:
        _block(out, f"{seqs} {what}, {tokens:,} tokens", payloads)
    else:
        out.clipped(_line(seqs, what, number(tokens), values.preview(payloads)))


def _line(seq: str, what: str, tokens: str, text: str) -> str:
    # The widths are fixed, so that the messages of a long thread can be printed as they are read.
    return f"{seq:>13}  {what:<14}{tokens:>8}  {text}"


def _block(out: Output, head: str, payloads: Iterable[dict[str, Any] | None]) -> None:
    out.text(head, "bold")
    for payload in payloads:
        out.block(words.said(payload))
    out.text()


def replay(
    thread: Thread,
    after: int = option("--after SEQ", default=0, min=0),
    until: int | None = option("--until SEQ", default=None, min=0),
    last: int | None = option("--last N", default=None, min=1),
    payloads: bool = option("--payloads", default=False),
    full: _Full = False,
    *,
    call: ReadOptions,
) -> None:
    out = call.output()
    with call.reader() as store, ProgressBar("replay", "messages") as progress:
        found = progress.over(store.replay(thread, after=after, until=until, last=last))
        if payloads or out.as_json:
            for message in found:
                out.json_text(message.text or "null" if payloads else values.message(message))
        else:
            if not full:
                out.text(_line("seq", "role", "tokens", "text"), "bold")
            for message in found:
                payload = message.payload
                _show_part(out, number(message.seq), values.role(payload), message.tokens, [payload], full=full)


def search(
    text: Annotated[str, argument("TEXT", "The text to find.")],
    thread: str | None = option("--thread THREAD", default=None),
    after: str = option("--after THREAD", default="", show_default=False),
    excerpts: bool = option("--text", default=False),
    *,
    call: TenantsListOptions,
) -> None:
    call.only_one(thread, "--thread")
    call.only_one(after, "--after")
    out = call.output()
    columns = [*_THREAD, "where", Column("at", right=True), *[Column("excerpt", fold=True)] * excerpts]
    with call.reader() as store, ProgressBar("search", "matches") as progress:
        found = (
            (
                name, place.as_dict() | ({} if excerpts else {"excerpt": None}),
                [place.thread_id, place.kind, number(place.seq or place.number), *[place.excerpt] * excerpts],
            )
            for name, its in call.readers(store)
            for place in its.audit.search(text, thread_id=thread, after=after)
        )  # fmt: skip
        call.rows(out, columns, progress.over(found), f"no matches in {call.where}")


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
    facts["parts"] = ", ".join(f"{len(found)} {name}" for name, found in (record.parts or {}).items())
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
        parts += [Text()] if parts else []
        parts += [Text(shown(head), "dim"), Padding(Text("\n".join(lines(text))), (0, 0, 0, 2), expand=False)]
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
        out.text("  " * min(depth, _DEEPEST) + _node(each.record, depth))


def _node(record: Compaction, depth: int) -> str:
    parts = [
        f"level {depth}" if depth > _DEEPEST else "",
        f"{record.number}  {record.kind}",
        f"seqs {values.span(record.start_seq, record.end_seq)}" if record.start_seq is not None else "",
        values.change(record), status_in_words(record), values.callback(record.callback),
    ]  # fmt: skip
    return ", ".join(part for part in parts if part)
