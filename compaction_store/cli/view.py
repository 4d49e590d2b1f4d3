"""The commands `threads`, `view`, `replay` and `search`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from compaction_store.audit import words
from compaction_store.audit._sync.threads import kept_threads
from compaction_store.audit.safe_text import named
from compaction_store.audit.words import Kept
from compaction_store.cli import options, values
from compaction_store.cli.bundles import argument, misuse, option
from compaction_store.cli.options import ReadOptions, Subject, TenantsListOptions, Thread
from compaction_store.cli.output import Column, Output, ProgressBar, figures, moment, number

if TYPE_CHECKING:
    from compaction_store import Compaction, Message, Reader, View


_Limit = Annotated[int | None, option("--limit N", "Print at most N threads.", min=1)]
_Format = Literal["anthropic", "openai", "openai-responses"]
_Full = Annotated[bool, option("--full", "Print whole texts instead of their beginnings.")]


def _members(text: str) -> Any:
    return options.json_object(text, "--having")


def threads(
    after: str = option("--after THREAD", default="", show_default=False),
    limit: _Limit = None,
    subject: Subject = None,
    prefix: str = option("--prefix TEXT", default="", show_default=False),
    having: Any = option("--having JSON", default=None, parser=_members),
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
            ([name] * call.all_tenants, thread, kept.get(thread.thread_id, Kept()))
            for name, its in call.readers(store)
            for kept in [kept_threads(its, None, most=None)[0]]
            for thread in its.threads(
                subject=subject, prefix=prefix, metadata=having, order=order, limit=limit, after=after, hidden=hidden
            )
        )
        found = progress.over(islice(listed, limit))
        out.rows(
            [
                *([Column("tenant", fold=True)] * call.all_tenants), Column("thread", fold=True),
                *figures("messages", "compactions", "view tokens"), "last message",
                Column("state", optional=True),
            ],
            (
                (
                    values.of_tenant(of) | values.thread(thread, kept, metadata=metadata),
                    [
                        *of, thread.thread_id, number(thread.last_seq), number(thread.last_number),
                        values.view_tokens(thread), moment(thread.last_message_at), values.state(thread, kept),
                    ],
                )
                for of, thread, kept in found
            ),
            none=f"no threads of {call.where}",
        )  # fmt: skip


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
        out.json(_rendered(found, render))
    elif out.as_json:
        about = {} if seen is None else {name: seen.as_dict()[name] for name in ("evidence", "messages", "where")}
        out.json(found.as_dict() | {name: value for name, value in about.items() if value is not None})
    elif seen is not None and seen.messages is not None:
        where = "" if seen.where is None else f": {seen.where}"
        out.text(f"the request for seq {seen_by:,} of {named(thread)}: {seen.evidence}{where}", "bold")
        _show_request(out, seen.messages, full=full)
    else:
        what = "" if seen is None else f", {seen.evidence}"
        out.text(f"{named(found.thread_id)} at pos {found.pos:,}: {found.tokens:,} tokens{what}", "bold")
        _show_view(out, found, full=full)


def _point(store: Reader, thread: str, text: str | None) -> int | datetime | Compaction | None:
    if text is None:
        return None
    if text.isdecimal():
        return int(text)
    if found := re.fullmatch(r"compaction:(\d{1,18})", text):
        return store.compaction(thread, int(found[1]))
    return options.moment(text, "--at")


def _rendered(found: View, render: _Format) -> dict[str, Any]:
    if render == "anthropic":
        return found.for_anthropic()
    return found.for_openai(api="chat" if render == "openai" else "responses")


def _show_view(out: Output, found: View, *, full: bool) -> None:
    if not full:
        out.text(_line("seq", "what", "tokens", "text"), "bold")
    for part in found.elements:
        span = values.span(part.seq, part.end_seq)
        if full:
            _block(out, f"{span} {values.who(part)}, {part.tokens:,} tokens", part.messages)
        else:
            out.clipped(_line(span, values.who(part), number(part.tokens), values.preview(part.messages)))


def _show_request(out: Output, messages: Iterable[dict[str, Any]], *, full: bool) -> None:
    """Prints the messages of an agent's request, with their numbers in it."""
    for place, message in enumerate(messages, 1):
        if full:
            _block(out, f"message {place:,}, {values.role(message)}", [message])
        else:
            out.clipped(_line(number(place), values.role(message), "", values.preview([message])))


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
        if payloads:
            for message in found:
                out.json_text(message.text or "null")
        elif out.as_json:
            for message in found:
                out.json_text(values.message(message))
        elif full:
            for message in found:
                _block(
                    out, f"{message.seq:,} {values.role(message.payload)}, {message.tokens:,} tokens", [message.payload]
                )
        else:
            _show_messages(out, found)


def _show_messages(out: Output, found: Iterator[Message]) -> None:
    out.text(_line("seq", "role", "tokens", "text"), "bold")
    for message in found:
        text = values.preview([message.payload])
        out.clipped(_line(number(message.seq), values.role(message.payload), number(message.tokens), text))


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
    columns: list[str | Column] = [
        *([Column("tenant", fold=True)] * call.all_tenants), Column("thread", fold=True), "where",
        Column("at", right=True),
    ]  # fmt: skip
    with call.reader() as store, ProgressBar("search", "matches") as progress:
        listed = (
            ([name] * call.all_tenants, place)
            for name, its in call.readers(store)
            for place in its.audit.search(text, thread_id=thread, after=after)
        )
        found = progress.over(listed)
        out.rows(
            [*columns, Column("excerpt", fold=True)] if excerpts else columns,
            (
                (
                    values.of_tenant(of) | place.as_dict() | ({} if excerpts else {"excerpt": None}),
                    [
                        *of,
                        place.thread_id,
                        place.kind,
                        number(place.seq or place.number),
                        *([place.excerpt] * excerpts),
                    ],
                )
                for of, place in found
            ),
            none=f"no matches in {call.where}",
        )
