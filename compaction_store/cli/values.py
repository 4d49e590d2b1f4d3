"""Converts the store's values to JSON and to cells of tables. Content is included only if the caller asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from compaction_store.audit.safe_text import named
from compaction_store.audit.words import Kept, described, said
from compaction_store.cli.output import line, moment, number
from compaction_store.jsonable import encoded
from compaction_store.models.compactions import status_in_words
from compaction_store.models.messages import is_erased

if TYPE_CHECKING:
    from compaction_store import Compaction, Element, Event, Message
    from compaction_store import Thread as ThreadValue
    from compaction_store.checkpoints import Removal
    from compaction_store.models import Payload

_PREVIEW = 200
_READ = 4000


def thread(value: ThreadValue, kept: Kept, *, metadata: bool = False) -> dict[str, Any]:
    return (value.as_dict() if metadata else without_metadata(value)) | {
        "held": kept.held, "retained_until": kept.until, "locked": kept.locked, "shortened": kept.shortened
    }  # fmt: skip


def without_metadata(value: ThreadValue) -> dict[str, Any]:
    return {name: found for name, found in value.as_dict().items() if name != "metadata"}


def state(value: ThreadValue, kept: Kept) -> str:
    """Returns the cell that says whether a thread is erased, hidden, on hold or retained."""
    states = {"erased": value.erased_pos, "hidden": value.hidden and not value.erased_pos}
    return ", ".join([*(name for name, is_so in states.items() if is_so), *kept.words(moment)])


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


def compaction(value: Compaction, *, text: bool = False) -> dict[str, Any]:
    """Returns the fields of a record, without content unless `text`, and its errors, whose types have no content."""
    found = value.as_dict()
    if value.error is not None:
        found |= {"error": value.error.get("type"), "error_at": value.error.get("at")}
    if covered := value.failed_before:
        found["failed_before"] = [{key: each.get(key) for key in ("type", "summarizer", "model")} for each in covered]
    if not text:
        del found["body"], found["parts"]
        # The parameters of a request may include the system prompt, which is content.
        found["settings"] = value.settings and {key: part for key, part in value.settings.items() if key != "system"}
    return found


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
    found = value.as_dict()
    return found if text else {name: part for name, part in found.items() if name != "body"}


def count(number: int, noun: str) -> str:
    """Returns a number with its noun: 1 message, 2 messages, 2 summaries."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"


def removal(done: Removal, what: str = "erased") -> str:
    at = "" if done.created_at is None else f" at {done.created_at.isoformat(' ', 'seconds')}"
    threads = f"{count(done.threads, 'thread')} with {count(done.messages, 'message')}"
    return f"tenant {named(done.tenant)}: {what} {threads} and {count(done.records, 'record')}{at}"


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
    # The failures of the summarizers that were tried before the one that wrote the record's summary.
    covered = ", ".join(f"{failed.get('type')} (covered)" for failed in value.failed_before)
    status = status_in_words(value) if value.revokes is None else f"revokes {value.revokes}"
    return [
        str(value.number), f"{value.created_at.astimezone():%Y-%m-%d %H:%M}", value.kind,
        span(value.start_seq, value.end_seq),
        number(value.tokens_before), number(value.tokens_after), status, callback(value.callback), value.actor or "",
        value.login, authority(value.authority), value.model or "",
        error(value.error) if value.error else covered,
    ]  # fmt: skip


def failure_cells(value: Compaction) -> list[str]:
    """Returns the cells of a failed or rejected attempt. Its error is one line, and some other cells are left out."""
    number_, written, _, seqs, _, _, _, called, _, _, _, model, problem = record_cells(value)
    return [number_, written, seqs, called, model, next(iter(problem.splitlines()), "")]


def change(value: Compaction) -> str:
    """Returns the size of an attempt's span before and after, as far as it is known."""
    before, after = number(value.tokens_before), number(value.tokens_after)
    return f"{before} to {after} tokens" if before and after else f"{before} tokens" if before else ""


def record_lines(value: Compaction, *, own: bool) -> list[str]:
    """Returns a record as lines of text, for a narrow terminal."""
    number_, written, kind, seqs, before, _, status, called, actor, login, allowed, model, problem = record_cells(value)
    of = f" of seqs {seqs}" if seqs else ""
    tokens = f", {change(value)}" if before else ""
    head = number_ if own else f"{number_}  {named(value.thread_id)}"
    who = ", ".join(part for part in (called, model) if part)
    lines = [
        f"{head}  {written}  {kind}{of}{tokens}",
        f"{status}{f' by {actor}' if actor else ''} (login {login}){f': {who}' if who else ''}",
    ]
    return [*lines, *(part for part in (allowed, problem) if part)]


def event_cells(value: Event) -> list[str]:
    """Returns the cells of an event: pos, time, kind, what it did, actor, login, authority and reason."""
    what = described(value)
    if value.kind in ("fork", "origin"):
        what += f" {'to' if value.kind == 'fork' else 'from'} {value.body.get('child', value.body.get('parent', ''))}"
    return [
        number(value.pos), moment(value.created_at), value.kind, what, value.actor or "", value.login,
        authority(value.authority), value.reason or "",
    ]  # fmt: skip
