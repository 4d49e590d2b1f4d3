"""The commands `compactions`, `explain` and `events`, which show the audit trail and the losses of compactions."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from compaction_store.audit.safe_text import named
from compaction_store.cli import options, values
from compaction_store.cli.bundles import argument, misuse, option
from compaction_store.cli.options import FilterOptions, ListOptions, TenantOptions, TenantsListOptions, Thread
from compaction_store.cli.output import Column, Output, ProgressBar, figures, line, moment, note, number
from compaction_store.errors import DatabaseUnavailable
from compaction_store.jsonable import encoded
from compaction_store.models.vocabulary import EventKind
from compaction_store.module_data import ModuleData

if TYPE_CHECKING:
    from compaction_store import Compaction, Explanation, Reader
    from compaction_store.evaluation import Replayed
    from compaction_store.probes import Probe, ProbeType

_SENTENCES = ModuleData(__file__).values["sentences"]
_Text = Annotated[bool, option("--text", "Include summaries, prompts and reasons. Prints JSON or CSV.")]
_EVENTS: list[str | Column] = [
    Column("pos", right=True), "when", "kind", Column("what", fold=True, optional=True), Column("actor", fold=True),
    Column("login", fold=True), Column("authority", fold=True, optional=True), Column("reason", fold=True),
]  # fmt: skip
_RECORDS: list[str | Column] = [
    Column("number", right=True), "written", "kind", Column("seqs", right=True), *figures("before", "after"), "status",
    *(Column(name, fold=True, optional=True) for name in ("callback", "actor", "login", "authority", "model", "error")),
]  # fmt: skip
_FAILURES: list[str | Column] = [
    Column("number", right=True), "written", Column("seqs", right=True), Column("callback", cut=16, optional=True),
    Column("model", cut=16, optional=True), Column("error", cut=24),
]  # fmt: skip


def compactions(
    thread: str | None = argument("[THREAD]", default=None),
    *,
    filters: FilterOptions,
    newest_first: bool = option("--newest-first", default=False),
    limit: int | None = option("--limit N", default=None, min=1),
    text: _Text = False,
    call: TenantsListOptions,
) -> None:
    call.only_one(thread, "THREAD")
    out = call.output("--text" if text else None)
    with call.reader() as store, ProgressBar("compactions", "records") as progress:
        log = (
            (name, record)
            for name, its in call.readers(store)
            for record in its.compactions(thread, newest_first=newest_first, **filters.given)
        )
        found = progress.over(islice(log, limit))
        failures = set(filters.given.get("outcome", ["applied"])) <= {"failed", "rejected"}
        none = f"no records found in {call.where}"
        if out.as_json:
            call.rows(out, [], ((name, values.compaction(record, text=text), []) for name, record in found), none)
        elif call.all_tenants:
            _list_by_tenant(out, found, none, failures=failures)
        else:
            _list_records(out, [record for _, record in found], none, own=thread is not None, failures=failures)


def _list_by_tenant(out: Output, found: Iterable[tuple[str, Compaction]], none: str, *, failures: bool) -> None:
    listed = False
    for name, records in groupby(found, itemgetter(0)):
        out.wrapped(f"tenant {name}", style="bold")
        _list_records(out, [record for _, record in records], none, own=False, failures=failures)
        listed = True
    if not listed:
        out.text(none)


def _list_records(out: Output, records: list[Compaction], none: str, *, own: bool, failures: bool) -> None:
    """Prints records as a table or, if the terminal is too narrow, as a few lines each."""
    if not records:
        out.text(none)
        return
    columns, rows = _table(out, records, own=own, failures=failures)
    if out.fits(columns, rows):
        out.grid(columns, rows)
        return
    for record in records:
        head, *rest = values.record_lines(record, own=own)
        out.wrapped(head, style="bold")
        for more in rest:
            out.wrapped(more, indent=4)


def _table(
    out: Output, records: list[Compaction], *, own: bool, failures: bool
) -> tuple[list[str | Column], list[list[str]]]:
    columns = _FAILURES if failures else _RECORDS
    rows = [values.failure_cells(record) if failures else values.record_cells(record) for record in records]
    if not own:
        columns = [Column("thread", fold=True), *columns]
        rows = [[record.thread_id, *cells] for record, cells in zip(records, rows, strict=True)]
    # For failures on a narrow terminal, leave out first the model and then the callback, so that the error has room.
    for _ in ("model", "callback") if failures else ():
        if not out.fits(columns, rows):
            columns = [*columns[:-2], columns[-1]]
            rows = [[*cells[:-2], cells[-1]] for cells in rows]
    return columns, rows


def explain(
    thread: Thread,
    seq: int | None = argument("[SEQ]", default=None, min=1),
    lost: bool = option("--lost", default=False),
    tools: Path | None = option("--tools FILE", default=None),
    system: Path | None = option("--system FILE", default=None),
    text: bool = option("--text", default=False),
    *,
    db: TenantOptions,
    printed: ListOptions,
) -> None:
    if seq is None and not lost:
        raise misuse("must be given, unless --lost is", "SEQ")
    if lost and (tools is not None or system is not None):
        raise misuse("must not be given with --lost", "--tools or --system")
    if printed.as_csv and not lost and seq is not None:
        raise misuse("needs --lost: the history of a message is not a list", "--csv")
    out = printed.output("--text" if text else None)
    given_tools = None if tools is None else options.json_list(tools, "--tools")
    given_system = None if system is None else _prompt(system)
    with db.reader() as store:
        if lost or seq is None:
            show_losses(out, losses_in(store, thread, seq), text=text)
            return
        found = store.audit.explain(thread, seq, tools=given_tools, system=given_system)
    if out.as_json:
        out.json_text(_explained(found, text=text))
        return
    message, now = found.message, found.element
    out.text(f"seq {message.seq:,} of thread {named(thread)}", "bold")
    facts = [("role", message.role or ""), *_appended(found), ("tokens", number(message.tokens))]
    if (event := found.redaction) is not None:
        who = f"{event.actor or 'an unknown actor'} (login {event.login})"
        facts.append(("erased", f"{moment(event.created_at)} by {who}"))
        facts += [("authority", values.authority(event.authority))] * bool(event.authority)
    elif message.redacted:
        facts.append(("erased", "by an unknown actor: no event records it; run verify"))
    place = values.span(now.seq, now.end_seq)
    in_view = "the message itself" if now.kind is None else f"{values.who(now)}, for seqs {place}"
    facts += _receipt(found, {"tools": tools, "system": system})
    said = [(record.number, _parts(record, seq)) for record in found.records]
    facts += [("summarized", f"in {', '.join(names)} of record {which}") for which, names in said if names]
    out.facts({}, [*facts, ("in the view", in_view)])
    out.rows(_RECORDS, ((values.compaction(r), values.record_cells(r)) for r in found.records), "no record covers it")


def _parts(record: Compaction, seq: int) -> list[str]:
    """Returns the names of the parts of a state summary that have a line of a message."""
    state: Mapping[Any, Any] = record.parts or {}
    return [name for name, found in state.items() if any(seq in each.seqs for each in found)]


def _appended(found: Explanation) -> Iterator[tuple[str, str]]:
    """Yields when a message was appended and, for a copy in a fork, the original's place and, if known, time."""
    if (origin := found.origin) is None:
        yield "appended", moment(found.message.created_at)
        return
    yield "copied", moment(found.message.created_at)
    if origin.thread_id is None or origin.created_at is None:
        yield "appended", f"in thread_uid {origin.thread_uid}, which is not in this database, at pos {origin.pos:,}"
    else:
        yield "appended", f"{moment(origin.created_at)} in {named(origin.thread_id)}, at pos {origin.pos:,}"


def _prompt(path: Path) -> str | list[Any]:
    text = options.file_text(path, "--system").removesuffix("\n")
    return options.json_list(path, "--system") if text.lstrip().startswith("[{") else text


def _receipt(found: Explanation, asked: Mapping[str, Path | None]) -> Iterator[tuple[str, str]]:
    """Yields the facts to print about a reply's request, from the reply's receipt."""
    from compaction_store.rendering.receipts import agents_receipt

    request = agents_receipt(found.message) or {}
    receipt = found.receipt or request
    if found.receipt:
        yield "written from", f"the view at pos {receipt['pos']:,}, rendered as {receipt.get('renderer')}"
    elif request:
        yield "written from", f"the request of the agent in line {request.get('line')} of {line(request['lines'])}"
    for name, same in (("tools", found.same_tools), ("system", found.same_system)):
        if name in receipt:
            judged = "" if same is None else f" (those of {asked[name]})" if same else f" (not those of {asked[name]})"
            yield name, f"sha256 {receipt[name]}{judged}"
        elif asked[name] is not None:
            yield name, "no hash in a receipt"


def _explained(found: Explanation, *, text: bool) -> str:
    message, event = found.message, found.redaction
    head = values.message(message) if text else values.message(message._replace(text=None, meta=None))
    element = found.element.as_dict()
    if not text:
        head = head.removesuffix(',"payload":null}') + "}"
        del element["messages"]
    rest = {
        "element": element,
        "records": [values.compaction(record, text=text) for record in found.records],
        "redaction": None if event is None else values.event(event, text=text),
        "receipt": found.receipt,
        "same_tools": found.same_tools,
        "same_system": found.same_system,
        "origin": None if found.origin is None else found.origin.as_dict(),
    }
    return f'{{"message":{head},{encoded(rest)[1:]}'


def events(
    thread: str | None = argument("[THREAD]", default=None),
    kind: EventKind | None = option("--kind", default=None),
    actor: str | None = option("--actor NAME", default=None),
    since: str | None = option("--since WHEN", default=None),
    until: str | None = option("--until WHEN", default=None),
    subject: str | None = option("--subject NAME", default=None),
    after: str | None = option("--after POS|CURSOR", default=None),
    limit: int | None = option("--limit N", default=None, min=1),
    follow: bool = option("--follow", default=False),
    messages: bool = option("--messages", default=False),
    content: bool = option("--content", default=False),
    every: float = option("--every SECONDS", default=1.0, min=0),
    *,
    call: TenantsListOptions,
) -> None:
    call.only_one(thread, "THREAD")
    if follow:
        left_out = {
            "THREAD": thread, "--kind": kind, "--actor": actor, "--since": since, "--until": until,
            "--subject": subject, "--all-tenants": call.all_tenants, "--csv": call.as_csv,
        }  # fmt: skip
        for name in (name for name, given in left_out.items() if given):
            raise misuse("must not be given with --follow", name)
        with call.reader() as store:
            _follow(call.output("--follow"), store, after, messages=messages, content=content, every=every, limit=limit)
        return
    if messages or content:
        raise misuse("must be given with --follow", "--messages" if messages else "--content")
    if after is not None and not re.fullmatch("[0-9]{1,18}", after, re.ASCII):
        raise misuse(f"must be a pos, not {after!r}", "--after")
    out = call.output()
    of_thread = "" if thread is None else f" of thread {thread!r}"
    with call.reader() as store:
        found = (
            (name, values.event(event, text=True), [*[event.thread_id] * (thread is None), *values.event_cells(event)])
            for name, its in call.readers(store)
            for event in its.audit.events(
                thread, kind=kind, actor=actor, since=options.moment(since, "--since"),
                until=options.moment(until, "--until"), subject=subject, after=int(after or 0),
            )
        )  # fmt: skip
        columns = [*[Column("thread", fold=True)] * (thread is None), *_EVENTS]
        call.rows(out, columns, islice(found, limit), f"no events{of_thread} in {call.where}")


def _follow(
    out: Output, store: Reader, after: str | None, *, messages: bool, content: bool, every: float, limit: int | None
) -> None:
    """Prints the feed. If the database is gone for a while, goes on from the last printed entry when it is back."""
    left, gone = limit, False
    while left is None or left > 0:
        try:
            for entry in islice(store.audit.feed(after=after, messages=messages, content=content), left):
                out.json(entry.as_dict())
                after, left = entry.cursor, None if left is None else left - 1
            gone = False
        except DatabaseUnavailable as error:
            if not every:
                raise
            if not gone:
                note(f"{error}; goes on when the database is back")
            gone = True
        # The reader of a pipe must see an entry now, and not with the next ones.
        out.flush()
        if not every:
            return
        if left != 0:
            time.sleep(every)


@dataclass(frozen=True)
class Loss:
    session: str
    probe: Probe

    def as_dict(self) -> dict[str, Any]:
        return {"thread_id": self.session, **self.probe.as_dict()}


def losses_of(sessions: Sequence[Replayed]) -> list[Loss]:
    """Returns all failed probes. The probes that cost the most tokens come first."""
    found = [Loss(run.thread_id, probe) for run in sessions for probe in run.probes if probe.is_loss]
    return sorted(found, key=lambda loss: (-(loss.probe.tokens or 0), loss.session, loss.probe.record))


def counts(run: Replayed) -> dict[ProbeType, tuple[int, int]]:
    """Returns, for each type of probe, the number of probes and the number of failed probes."""
    from compaction_store.probes import ProbeType

    asked, failed = Counter[ProbeType](), Counter[ProbeType]()
    for probe in run.probes:
        asked[probe.type] += 1
        failed[probe.type] += not probe.kept
    return {kind: (asked[kind], failed[kind]) for kind in asked}


def repeated_tokens(run: Replayed) -> int:
    """Returns the number of tokens of results that the agent fetched again because they had been folded."""
    return sum(probe.tokens or 0 for probe in run.probes if probe.type == "re_derivation" and not probe.kept)


def sentence(probe: Probe) -> str:
    where = "" if probe.place.seq is None else f" of seq {probe.place.seq:,}"
    again = "" if probe.again is None or probe.again.seq is None else f", and came again at seq {probe.again.seq:,}"
    text = f"“{line(probe.text)}”"
    record = f"record {probe.record}"
    said: str = _SENTENCES.get(probe.type, _SENTENCES["other"])
    return said.format(text=text, where=where, record=record, again=again, tokens=probe.tokens or 0)


def losses_in(store: Reader, thread: str, seq: int | None) -> list[Loss]:
    """Returns the losses and inventions of a thread's own compactions, or only the losses of one message."""
    from compaction_store.errors import InvalidInput
    from compaction_store.evaluation import read_thread
    from compaction_store.evaluation.evaluator import lost_in

    recorded = read_thread(store, thread)
    try:
        found = lost_in(recorded)
    except InvalidInput as error:
        raise misuse(f"cannot be used for this thread: {error}", "--lost") from None
    return [Loss(thread, probe) for probe in found if seq is None or probe.place.seq == seq]


def show_losses(out: Output, losses: Sequence[Loss], *, text: bool) -> None:
    """Prints losses in the order of their records. Their texts are content of messages, so only `text` prints them."""
    ordered = sorted(losses, key=lambda loss: (loss.probe.record, loss.probe.place.seq or 0))
    columns: list[str | Column] = ["type", "kind", *(Column(name, right=True) for name in ("record", "seq", "again"))]
    rows = []
    for loss in ordered:
        probe = loss.probe
        value = {name: one for name, one in loss.as_dict().items() if text or name != "text"}
        seqs = (probe.place.seq, None if probe.again is None else probe.again.seq)
        shown = ["" if one is None else f"{one:,}" for one in seqs]
        rows.append((value, [probe.type, line(probe.kind), f"{probe.record:,}", *shown]))
    out.rows(columns, rows, "nothing was lost or invented")
