"""The command `demo`, which demonstrates the store on a new thread and needs no setup.

The demo touches only this thread, in the tenant `demo`. On the embedded Postgres, and on no other server, it also
changes a stored message in the table, shows the finding of `verify`, and restores the message.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import compaction_store
from compaction_store.audit import charts
from compaction_store.audit._sync.threads import course
from compaction_store.cli import choices, values
from compaction_store.cli.compact import SUMMARIZER
from compaction_store.cli.options import ServerOptions
from compaction_store.cli.output import Output, figures, number
from compaction_store.models.compactions import status_in_words
from compaction_store.module_data import ModuleData

if TYPE_CHECKING:
    from compaction_store import CompactionRun, Store, View
    from compaction_store.models import Payload

_WIDEST = 78
# Invented messages of an agent that maintains a bookshop's software, in the format of OpenAI's Chat Completions API.
_MESSAGES = Path(__file__).with_name("demo.jsonl")
_REDACTED = 40
# The seq of the message to forge: any message except the redacted one.
_TAMPERED = 58

_DATA = ModuleData(__file__)


class Turn(NamedTuple):
    """The messages up to a reply, and the reply."""

    messages: list[Payload]
    reply: Payload


def turns() -> Iterator[Turn]:
    """Yields the turns of the demo, which are the same in every run."""
    messages: list[Payload] = []
    for line in _MESSAGES.read_text(encoding="utf-8").splitlines():
        message = json.loads(line)
        if message["role"] == "assistant" and not message.get("tool_calls"):
            yield Turn(messages, message)
            messages = []
        else:
            messages.append(message)


def demo(summarizer: list[str] = SUMMARIZER, *, db: ServerOptions) -> None:
    start = time.monotonic()
    summarize = choices.summarize(summarizer)
    out = Output(as_json=False)
    with db.reachable() as address, compaction_store.Store.open(address, tenant="demo") as store:
        tour = _Tour(store, out, summarize, f"demo-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{os.getpid()}")
        tour.store_and_compact()
        tour.records()
        tour.seen()
        tour.replay()
        tour.revoke()
        tour.redact()
        tour.verify(None if db.url else address)
        tour.goodbye(time.monotonic() - start)


class _Tour:
    """The steps of the demo. Each step prints its result."""

    def __init__(self, store: Store, out: Output, summarize: Any, thread: str) -> None:
        self.store = store
        self.out = out
        self.thread = thread
        self.summarize = summarize
        self.width = min(_WIDEST, out.console.width)
        self.sent: list[Payload] = []
        self.replies: list[int] = []
        self._step = 0

    def say(self, step: str, **values: object) -> None:
        title, *lines = (line.format(**values) for line in _DATA.text(step).splitlines())
        self._step += 1
        self.out.text()
        self.out.text(f"{self._step}. {title}", "bold")
        for line in lines:
            self.out.text(f"   {line}")

    def store_and_compact(self) -> None:
        from compaction_store.strategies import AssistantRuns, SlidingWindow

        all_turns = list(turns())
        middle = len(all_turns) // 2
        self.append(all_turns[:middle])
        self.say("store", thread=self.thread, count=len(self.sent))
        before = self.store.view(self.thread)
        first = AssistantRuns(self.summarize, tool_results=True, retain=20)
        self.show_run("assistant_runs", before, self.store.compact(self.thread, first, actor="demo"))
        self.append(all_turns[middle:])
        before = self.store.view(self.thread)
        second = SlidingWindow(self.summarize, retain=20)
        self.show_run("sliding_window", before, self.store.compact(self.thread, second, actor="demo"))
        self.out.text()
        for row in charts.drawn(course(self.store, self.store.thread(self.thread)), width=self.width - 3, height=6):
            self.out.text(f"   {row}")

    def append(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self.store.append(self.thread, turn.messages)
            [reply] = self.store.append(self.thread, turn.reply, view=self.store.view(self.thread))
            self.sent += [*turn.messages, turn.reply]
            self.replies.append(reply.seq)

    def show_run(self, step: str, before: View, run: CompactionRun) -> None:
        self.say(step)
        after = run.view
        for name, view in (("before", before), ("after", after)):
            self.out.text(f"   {name:<7} {charts.strip(view.elements, width=self.width - 12)}")
        self.out.text(
            f"   {before.tokens:,} tokens -> {after.tokens:,}, {100 - 100 * after.tokens / before.tokens:.0f} % less;"
            f" {len(before.elements)} elements in the view -> {len(after.elements)}   (· a message, █ folded)"
        )
        for error in run.errors:
            self.out.text(f"   {type(error).__name__}: {error}", "yellow")

    def records(self) -> None:
        self.say("records")
        log = list(self.store.compactions(self.thread, outcome="applied"))
        rows = [
            (
                str(record.number), record.kind, values.span(record.start_seq, record.end_seq),
                number(record.tokens_before), number(record.tokens_after), status_in_words(record),
                values.callback(record.callback), record.actor or "", f"{record.created_at:%H:%M:%S}",
            )
            for record in log
        ]  # fmt: skip
        sizes = figures("seqs", "before", "after")
        self.out.grid([*figures("number"), "kind", *sizes, "status", "callback", "actor", "written"], rows)
        last = log[-1]
        span = values.span(last.start_seq, last.end_seq)
        self.out.text(f"   In the view, record {last.number} replaces seqs {span} by:")
        self.out.text(f"   {values.preview([{'role': 'user', 'content': last.summary_text or ''}])}", "dim")

    def seen(self) -> None:
        seq = self.replies[len(self.replies) // 4]
        found = self.store.seen_by(self.thread, seq)
        self.say("seen", seq=seq, view=found.view, count=len(found.view.messages), evidence=found.evidence)

    def replay(self) -> None:
        stored = [message.text for message in self.store.replay(self.thread)]
        sent = [json.dumps(payload, ensure_ascii=False, separators=(",", ":")) for payload in self.sent]
        self.say("replay", same=sum(a == b for a, b in zip(sent, stored, strict=True)), count=len(sent))

    def revoke(self) -> None:
        before = self.store.view(self.thread)
        last = [record for record in self.store.compactions(self.thread) if record.status == "active"][-1]
        revoked = self.store.revoke(self.thread, last.number, reason="shown by the demo", actor="demo")
        after = self.store.view(self.thread)
        strip = charts.strip(after.elements, width=self.width - 12)
        self.say("revoke", number=last.number, revoked=revoked, before=before, after=after, strip=strip)

    def redact(self) -> None:
        done = self.store.custody.redact(self.thread, _REDACTED, reason="a customer asked for it", actor="demo")
        message = self.store.message(self.thread, _REDACTED)
        records = ", ".join(map(str, done.records)) or "none"
        self.say("redact", seq=_REDACTED, records=records, payload=json.dumps(message.payload))

    def verify(self, address: str | None) -> None:
        report = self.store.audit.verify(self.thread)
        self.say("verify", report=report, findings=len(report.findings))
        if address is None:
            self.out.text("   (On the embedded Postgres the demo also forges a message, and verify reports it.)", "dim")
            return
        was = _forge(address, self.thread, json.dumps({"role": "assistant", "content": "I never checked any of this."}))
        self.say("forge", seq=_TAMPERED)
        for finding in self.store.audit.verify(self.thread).findings:
            self.out.text(f"   verify: pos {finding.pos}: {finding.what}", "red")
        _forge(address, self.thread, was)
        self.out.text(f"   Restored byte for byte: {len(self.store.audit.verify(self.thread).findings)} findings.")

    def goodbye(self, seconds: float) -> None:
        self.say("done", seconds=seconds, thread=self.thread)
        if os.environ.get("ANTHROPIC_API_KEY") and type(self.summarize).__name__ == "StateSummary":
            self.out.text(_DATA.text("model"))


def _forge(address: str, thread: str, payload: str) -> str:
    """Changes one stored message, as a superuser who disables the triggers. Returns its former payload."""
    from compaction_store.postgres.calling import engines

    engine = engines.create_engine(address, pool_size=1, connect_timeout=10)
    with closing(engine.raw_connection()) as borrowed:
        connection: Any = borrowed.driver_connection
        with connection.transaction():
            connection.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER USER")
            row = connection.execute(_DATA.text("read"), (thread, _TAMPERED)).fetchone()
            connection.execute(_DATA.text("write"), (payload, thread, _TAMPERED))
            for (name,) in connection.execute(_DATA.text("triggers")).fetchall():
                connection.execute(f"ALTER TABLE compaction_store.messages ENABLE ALWAYS TRIGGER {name}".encode())
    engine.dispose()
    return str(row[0])
