"""Converts the store's values to JSON and to cells of tables. Content is included only if the caller asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from compaction_store.audit.safe_text import named
from compaction_store.audit.words import Kept, said
from compaction_store.cli.formats import encoded
from compaction_store.cli.output import line, moment, number
from compaction_store.models.compactions import status_in_words
from compaction_store.models.messages import is_erased

if TYPE_CHECKING:
    from compaction_store import Compaction, Element, Event, Message, View
    from compaction_store import Thread as ThreadValue
    from compaction_store.models import Payload

_PREVIEW = 200
_READ = 4000


def of_tenant(names: Sequence[str]) -> dict[str, Any]:
    """Returns the field `tenant` for a line of JSON; no field if the command lists one tenant only."""
    return {"tenant": names[0]} if names else {}


def thread(value: ThreadValue, kept: Kept, *, metadata: bool = False) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "thread_id": value.thread_id, "thread_uid": str(value.thread_uid), "created_at": value.created_at,
        "last_message_at": value.last_message_at, "last_at": value.last_at,
        "last_seq": value.last_seq, "last_number": value.last_number, "last_pos": value.last_pos,
        "view_tokens": value.view_tokens, "head": value.head, "erased_pos": value.erased_pos,
        "hidden_seq": value.hidden_seq, "unknown_pos": value.unknown_pos, "held": kept.held,
        "retained_until": kept.until,
    }  # fmt: skip
    return parts | {"metadata": value.metadata} if metadata else parts


def state(value: ThreadValue, kept: Kept) -> str:
    """Returns the cell that says whether a thread is erased, hidden, on hold or retained."""
    states = {"erased": value.erased_pos, "hidden": value.hidden and not value.erased_pos, "held": kept.held}
    until = [] if kept.until is None else [f"retained until {moment(kept.until)}"]
    return ", ".join([*(name for name, is_so in states.items() if is_so), *until])


def view_tokens(value: ThreadValue) -> str:
    """Returns the tokens of a thread's view; "unknown" if this release cannot make the view."""
    return "unknown" if value.view_tokens is None else number(value.view_tokens)


def message(value: Message) -> str:
    """Returns a message as JSON, with the payload exactly as it is stored."""
    header = encoded({
        "seq": value.seq, "pos": value.pos, "role": value.role, "tokens": value.tokens,
        "created_at": value.created_at, "redacted": value.redacted, "meta": value.meta,
    })  # fmt: skip
    return f'{header[:-1]},"payload":{value.text or "null"}}}'


def element(value: Element) -> dict[str, Any]:
    return {
        "seq": value.seq, "end_seq": value.end_seq, "pos": value.pos, "number": value.number, "kind": value.kind,
        "callback": value.callback, "tokens": value.tokens, "messages": value.messages,
    }  # fmt: skip


def view(value: View) -> dict[str, Any]:
    return {
        "thread_id": value.thread_id, "pos": value.pos, "tokens": value.tokens,
        "elements": [element(part) for part in value.elements],
    }  # fmt: skip


def compaction(value: Compaction, *, text: bool = False) -> dict[str, Any]:
    names = (
        "thread_id", "thread_uid", "number", "pos", "created_at", "kind", "outcome", "status", "start_seq", "end_seq",
        "tokens_before", "tokens_after", "source_count", "inputs", "run_id", "callback", "trigger", "actor",
        "login", "authority", "model", "counter", "revokes", "superseded_by", "revoked_by", "redacted_pos",
        "unknown_pos",
    )  # fmt: skip
    parts = {name: getattr(value, name) for name in names}
    error = value.error
    if error is not None:
        # These are the name of a class and a place in a program, so they contain no content.
        parts |= {"error": error.get("type"), "error_at": error.get("at")}
    covered = [{name: failed.get(name) for name in ("type", "summarizer", "model")} for failed in value.failed_before]
    parts |= {"summarizer": value.summarizer, "settings": value.settings, "usage": value.usage}
    if value.settings is not None and not text:
        # The parameters of a request may include the system prompt, which is content.
        parts["settings"] = {name: part for name, part in value.settings.items() if name != "system"}
    parts |= {"duration": value.duration, "unreadable": value.unreadable}
    parts |= {"failed_before": covered} if covered else {}
    return parts | {"body": value.body} if text else parts


def failure(failed: Payload) -> str:
    """Describes the failure of a summarizer that a fallback replaced."""
    who = ", ".join(str(name) for name in (failed.get("summarizer"), failed.get("model")) if name)
    return f"{who}: {error(failed)}"


def error(value: Payload) -> str:
    """Describes the error of a record or an attempt. Texts that may quote a message are never recorded."""
    text = f": {value['text']}" if value.get("text") else ""
    place = f" (at {value['at']})" if "at" in value else ""
    return f"{value.get('type')}{text}{place}"


def event(value: Event, *, text: bool = False) -> dict[str, Any]:
    parts = {
        "thread_id": value.thread_id, "pos": value.pos, "kind": value.kind, "critical": value.critical,
        "actor": value.actor, "login": value.login, "authority": value.authority, "created_at": value.created_at,
    }  # fmt: skip
    return parts | {"body": value.body} if text else parts


def count(number: int, noun: str) -> str:
    """Returns a number with its noun: 1 message, 2 messages, 2 summaries."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"


def span(start: int | None, end: int | None) -> str:
    if start is None or end is None:
        return ""
    return f"{start:,}" if start == end else f"{start:,}-{end:,}"


def preview(payloads: Iterable[Payload | None]) -> str:
    """Returns the beginning of the messages' text as one line."""
    text = line(" / ".join(said(payload)[:_READ] for payload in payloads))
    return text if len(text) <= _PREVIEW else f"{text[: _PREVIEW - 1]}…"


def who(part: Element) -> str:
    if part.kind is not None:
        return f"{part.kind} {part.number}" if part.number is not None and part.number > 0 else part.kind
    return role(part.message)


def role(payload: Payload | None) -> str:
    if payload is None or is_erased(payload):
        return "(erased)"
    found = payload.get("role", payload.get("type"))
    return found if isinstance(found, str) else ""


def callback(name: str | None) -> str:
    """Returns a callback's name without its options, which are too long for a table."""
    kind, options, _ = (name or "").partition("(")
    return f"{kind}(…)" if options and options != ")" else kind


def authority(stated: Payload | None) -> str:
    """Returns the members of an authority in one line."""
    members = (stated or {}).items()
    return ", ".join(f"{name}: {part if isinstance(part, str) else encoded(part)}" for name, part in members)


def record_cells(value: Compaction) -> list[str]:
    status = status_in_words(value) if value.revokes is None else f"revokes {value.revokes}"
    return [
        str(value.number), f"{value.created_at.astimezone():%Y-%m-%d %H:%M}", value.kind,
        span(value.start_seq, value.end_seq),
        number(value.tokens_before), number(value.tokens_after), status, callback(value.callback), value.actor or "",
        value.login, authority(value.authority), value.model or "",
        error(value.error) if value.error else _covered(value),
    ]  # fmt: skip


def failure_cells(value: Compaction) -> list[str]:
    """Returns the cells of a failed or rejected attempt. Its error is one line, and some other cells are left out."""
    number_, written, _, seqs, _, _, _, called, _, _, _, model, problem = record_cells(value)
    return [number_, written, seqs, called, model, next(iter(problem.splitlines()), "")]


def _covered(value: Compaction) -> str:
    """Lists the failures of the summarizers that were tried before the one that wrote the record's summary."""
    return ", ".join(f"{failed.get('type')} (covered)" for failed in value.failed_before)


def change(value: Compaction) -> str:
    """Returns the size of an attempt's span before and after, as far as it is known."""
    before, after = number(value.tokens_before), number(value.tokens_after)
    return f"{before} to {after} tokens" if before and after else f"{before} tokens" if before else ""


def record_lines(value: Compaction, *, own: bool) -> list[str]:
    """Returns a record as lines of text, for a narrow terminal."""
    cells = record_cells(value)
    number_, written, kind, seqs, before, _, status, called, actor, login, allowed, model, problem = cells
    of = f" of seqs {seqs}" if seqs else ""
    tokens = f", {change(value)}" if before else ""
    head = number_ if own else f"{number_}  {named(value.thread_id)}"
    who = ", ".join(part for part in (called, model) if part)
    lines = [
        f"{head}  {written}  {kind}{of}{tokens}",
        f"{status}{f' by {actor}' if actor else ''} (login {login}){f': {who}' if who else ''}",
    ]
    return [*lines, *(part for part in (allowed, problem) if part)]


def _ranges(found: object) -> str:
    """Formats the ranges from an event's body. The body may contain any JSON, so anything but a range is left out."""
    pairs = found if isinstance(found, list) else []
    return ", ".join(
        span(*pair)
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and all(type(number_) is int for number_ in pair)  # noqa: PLR2004
    )


def event_cells(value: Event) -> list[str]:
    """Returns the cells of an event: pos, time, kind, erased seqs and records, actor, login, authority and reason."""
    what: str = value.kind
    erased = ["", ""]
    if value.kind == "redaction":
        what = "thread erased" if "whole" in value.body else "messages erased"
        erased = [_ranges(value.body.get(name)) for name in ("seqs", "records")]
    elif value.kind == "refusal":
        what = f"refused to {value.body.get('refused', 'erase')}"
        erased[0] = _ranges(value.body.get("seqs"))
    elif value.kind == "retention":
        what = f"retention until {value.body.get('until', '')}"
    elif value.kind == "origin":
        what = f"forked from {value.body.get('parent', '')} at pos {value.body.get('pos', '')}"
    elif value.kind == "fork":
        what = f"forked at pos {value.body.get('pos', '')} to {value.body.get('child', '')}"
    return [
        number(value.pos), moment(value.created_at), what, *erased, value.actor or "", value.login,
        authority(value.authority), value.reason or "",
    ]  # fmt: skip
