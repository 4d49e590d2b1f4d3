"""A tour of what the store promises, on a thread of its own, with nothing to set up.

It keeps to the tenant `demo` and to a thread that it makes. On the embedded Postgres it also changes a stored message
behind the store's back, to show what `verify` says to that, and puts it back; it does so on no other server.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime
from typing import Annotated, Any

import typer

from compaction_store import CompactionRun, Store, View
from compaction_store.cli import charts, choosing, demo_thread, stats, values
from compaction_store.cli.deploying import reached
from compaction_store.cli.options import Url
from compaction_store.cli.output import Column, Output, figures, number
from compaction_store.models import Payload
from compaction_store.postgres import engines
from compaction_store.strategies import AssistantRuns, SlidingWindow

_WIDEST = 78
_HALF = len(demo_thread.TICKETS) // 2
# Another message than the redacted one, in the part that stays unfolded.
_REDACTED = 40
_TAMPERED = 58

_READ = """
    SELECT m.payload::text FROM compaction_store.messages AS m JOIN compaction_store.threads AS t USING (thread_uid)
    WHERE t.tenant = 'demo' AND t.thread_id = %s AND m.seq = %s
"""
_FORGE = """
    UPDATE compaction_store.messages AS m SET payload = %s::json FROM compaction_store.threads AS t
    WHERE t.thread_uid = m.thread_uid AND t.tenant = 'demo' AND t.thread_id = %s AND m.seq = %s
"""
_TRIGGERS = """
    SELECT quote_ident(tgname) FROM pg_trigger
    WHERE tgrelid = 'compaction_store.messages'::regclass AND NOT tgisinternal
"""


def demo(
    summarizer: Annotated[
        list[str],
        typer.Option(
            "--summarizer",
            metavar="NAME[:OPTION=VALUE,...]",
            autocompletion=choosing.summarizer_names,
            help="As of compact. extractive needs no model.",
            show_default="extractive",
        ),
    ] = ["extractive"],  # noqa: B006 — never changed
    url: Url = None,
) -> None:
    """Shows what the store does, on a thread of its own: compacts it, proves it, undoes it, erases from it.

    It takes a few seconds, needs no key and no network, and touches no thread but the one it makes, of tenant demo.
    """
    start = time.monotonic()
    summarize = choosing.summarize(summarizer)
    out = Output(as_json=False)
    with reached(url) as address, Store.open(address, tenant="demo") as store:
        tour = _Tour(store, out, summarize, f"demo-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{os.getpid()}")
        tour.store_and_compact()
        tour.records()
        tour.seen()
        tour.replay()
        tour.revoke()
        tour.redact()
        tour.verify(None if url else address)
        tour.goodbye(time.monotonic() - start)


class _Tour:
    """The stations, each with what it proves."""

    def __init__(self, store: Store, out: Output, summarize: Any, thread: str) -> None:
        self.store = store
        self.out = out
        self.thread = thread
        self.summarize = summarize
        self.width = min(_WIDEST, out.console.width)
        self.sent: list[Payload] = []
        self.replies: list[int] = []
        self._station = 0

    def say(self, title: str, *lines: str) -> None:
        self._station += 1
        self.out.text()
        self.out.text(f"{self._station}. {title}", "bold")
        for line in lines:
            self.out.text(f"   {line}")

    def store_and_compact(self) -> None:
        turns = list(demo_thread.thread())
        self.append(turns[: 2 * _HALF])
        self.say(
            f"A thread is stored: {self.thread}",
            f"{len(self.sent)} messages of an agent that mends a bookshop's software, with its tool calls, each a link",
            "of the thread's hash chain. Replies are stored with a receipt for the view they were written from.",
        )
        before = self.store.view(self.thread)
        first = AssistantRuns(self.summarize, tool_results=True, retain=20)
        self.show_run(
            "AssistantRuns: each run of the assistant's work is folded by itself", before, self.compact(first)
        )
        self.append(turns[2 * _HALF :])
        before = self.store.view(self.thread)
        second = SlidingWindow(self.summarize, retain=20)
        self.show_run(
            "SlidingWindow: later all that is old is folded, summaries included", before, self.compact(second)
        )
        self.out.text()
        for row in charts.drawn(
            stats.course_of(self.store, self.thread, self.store.compactions(self.thread)),
            width=self.width - 3,
            height=6,
        ):
            self.out.text(f"   {row}")

    def append(self, turns: Sequence[demo_thread.Turn]) -> None:
        for turn in turns:
            self.store.append(self.thread, turn.messages)
            view = self.store.view(self.thread)
            [reply] = self.store.append(self.thread, turn.reply, view=view)
            self.sent += [*turn.messages, turn.reply]
            self.replies.append(reply.seq)

    def compact(self, strategy: Callable[..., Any]) -> CompactionRun:
        return self.store.compact(self.thread, strategy, actor="demo")

    def show_run(self, title: str, before: View, run: CompactionRun) -> None:
        self.say(title)
        after = run.view
        for name, view in (("before", before), ("after", after)):
            strip = charts.strip(view.elements, width=self.width - 12)
            self.out.text(f"   {name:<7} {strip}")
        saved = 100 - 100 * after.tokens / before.tokens
        self.out.text(
            f"   {before.tokens:,} tokens -> {after.tokens:,}, {saved:.0f} % less;"
            f" {len(before.elements)} elements of the view -> {len(after.elements)}   (· a message, █ folded)"
        )
        for error in run.errors:
            self.out.text(f"   {type(error).__name__}: {error}", "yellow")

    def records(self) -> None:
        self.say("Every compaction is a record: what, when, by whom, from how many tokens to how many")
        log = list(self.store.compactions(self.thread, outcome="applied"))
        rows = [
            (
                str(record.number), record.kind, values.span(record.start_seq, record.end_seq),
                number(record.tokens_before), number(record.tokens_after), record.status or "",
                values.callback(record.callback), record.actor or "", f"{record.created_at:%H:%M:%S}",
            )
            for record in log
        ]  # fmt: skip
        seqs = (Column("number", right=True), "kind", Column("seqs", right=True))
        self.out.grid((*seqs, *figures("before", "after"), "status", "callback", "actor", "written"), rows)
        last = log[-1]
        self.out.text(f"   Record {last.number} says, in place of seqs {values.span(last.start_seq, last.end_seq)}:")
        self.out.text(f"   {values.preview([{'role': 'user', 'content': last.summary_text or ''}])}", "dim")

    def seen(self) -> None:
        seq = self.replies[_HALF]
        found = self.store.seen_by(self.thread, seq)
        view = found.view
        self.say(
            f"What did the model see when it wrote message {seq}?",
            f"The view at pos {view.pos:,}: {len(view.messages)} messages, {view.tokens:,} tokens; {found.evidence} by",
            "its receipt, although the thread was compacted twice since.",
        )

    def replay(self) -> None:
        stored = [message.text for message in self.store.replay(self.thread)]
        sent = [json.dumps(payload, ensure_ascii=False, separators=(",", ":")) for payload in self.sent]
        same = sum(a == b for a, b in zip(sent, stored, strict=True))
        self.say(
            "Nothing is lost: the thread is replayed",
            f"{same} of {len(sent)} messages came back as they were sent, byte for byte.",
        )

    def revoke(self) -> None:
        before = self.store.view(self.thread)
        last = [record for record in self.store.compactions(self.thread) if record.status == "active"][-1]
        revoked = self.store.revoke(self.thread, last.number, reason="to see it undone", actor="demo")
        after = self.store.view(self.thread)
        self.say(
            f"Any compaction can be undone: {last.number} is revoked, and the undoing is record {revoked.number}",
            f"{before.tokens:,} tokens -> {after.tokens:,}",
            charts.strip(after.elements, width=self.width - 12),
        )

    def redact(self) -> None:
        done = self.store.redact(self.thread, _REDACTED, reason="a customer asked for it", actor="demo")
        message = self.store.message(self.thread, _REDACTED)
        records = ", ".join(map(str, done.records)) or "none"
        self.say(
            f"Message {_REDACTED} is erased, and what repeated it: records {records}",
            f"It reads {json.dumps(message.payload)} now. Its commitment stays, so that the chain still holds.",
        )

    def verify(self, address: str | None) -> None:
        report = self.store.verify(self.thread)
        self.say(
            "The chain is recomputed",
            f"verify: {report.entries:,} entries, {report.redacted} of them erased, {len(report.findings)} findings",
        )
        if address is None:
            self.out.text("   (On the embedded Postgres the demo now forges a message, and verify finds it.)", "dim")
            return
        forge = _Forger(address, self.thread)
        forge.put("I never checked any of this.")
        self.say(f"Somebody with all rights on the server changes message {_TAMPERED}, past every trigger")
        for finding in self.store.verify(self.thread).findings:
            self.out.text(f"   verify: pos {finding.pos}: {finding.what}", "red")
        forge.undo()
        findings = self.store.verify(self.thread).findings
        self.out.text(f"   Put back to the byte: {len(findings)} findings.")

    def goodbye(self, seconds: float) -> None:
        self.say(
            f"That took {seconds:.1f} s. Try next:",
            f"compaction-store show {self.thread} 1 --tenant demo",
            f"compaction-store view {self.thread} --tenant demo --at 60",
            f"compaction-store stats {self.thread} --tenant demo --svg {self.thread}.svg",
        )
        if os.environ.get("ANTHROPIC_API_KEY") and type(self.summarize).__name__ == "ExtractiveSummarizer":
            self.out.text(
                "   With your key a model can write the summaries:"
                " compaction-store demo --summarizer anthropic:model=NAME"
            )


class _Forger:
    """Changes one stored message as only a superuser can: with the triggers off, in one transaction."""

    def __init__(self, address: str, thread: str) -> None:
        self._address = address
        self._thread = thread
        self._was: str | None = None

    def put(self, text: str) -> None:
        self._was = self._write(json.dumps({"role": "assistant", "content": text}))

    def undo(self) -> None:
        if self._was is not None:
            self._write(self._was)

    def _write(self, payload: str) -> str:
        """What was there before."""
        engine = engines.create_engine(self._address, pool_size=1, connect_timeout=10)
        with closing(engine.raw_connection()) as borrowed:
            connection: Any = borrowed.driver_connection
            with connection.transaction():
                connection.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER USER")
                row = connection.execute(_READ, (self._thread, _TAMPERED)).fetchone()
                connection.execute(_FORGE, (payload, self._thread, _TAMPERED))
                for (name,) in connection.execute(_TRIGGERS).fetchall():
                    connection.execute(f"ALTER TABLE compaction_store.messages ENABLE ALWAYS TRIGGER {name}".encode())
        engine.dispose()
        assert row is not None  # noqa: S101 — the demo has stored it
        return str(row[0])
