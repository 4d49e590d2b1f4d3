"""The async face of the audit: what was compacted, when, by whom and into what, and what a model saw."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from uuid import UUID

from compaction_store import arguments
from compaction_store.compaction import records, size_estimate
from compaction_store.compaction.budget import TokenBudget
from compaction_store.errors import CompactionNotFound, InvalidInput, MessageNotFound, Unreadable
from compaction_store.integrity import erasure
from compaction_store.models import Compaction, CompactionTree, Event, Explanation, Found, Measured, Message, Thread
from compaction_store.postgres import queries, typed_rows
from compaction_store.postgres.queries import CompactionFilter, CompactionKey
from compaction_store.rendering import receipts
from compaction_store.rendering.view import SeenView
from compaction_store.store._async.verifying import AsyncVerifying
from compaction_store.store.search import Search

_PAGE = 100
# Among so many of the last messages the newest report of a usage is looked for.
_REPORTS = 100
_KINDS = ("summary", "truncation", "removal", "revocation")
_OUTCOMES = ("applied", "rejected", "failed", "observed")


class AsyncReader(AsyncVerifying):
    """Reads threads and their compaction logs; has no method that writes."""

    def compactions(
        self,
        thread_id: str | None = None,
        *,
        covering: int | None = None,
        kind: str | None = None,
        outcome: str | None = None,
        actor: str | None = None,
        model: str | None = None,
        callback: str | None = None,
        run_id: UUID | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        newest_first: bool = False,
        after: Compaction | None = None,
    ) -> AsyncIterator[Compaction]:
        """The compaction records of a thread, or of all the tenant's threads, in pages.

        Within a thread in the order of their numbers, across threads by time. `after` goes on behind a record.
        """
        if covering is not None:
            arguments.number(covering, "covering", least=1)
        arguments.one_of(kind, _KINDS, "kind")
        arguments.one_of(outcome, _OUTCOMES, "outcome")
        for value, what in ((actor, "actor"), (model, "model"), (callback, "callback")):
            arguments.optional_name(value, what)
        for limit, what in ((since, "since"), (until, "until")):
            if limit is not None:
                arguments.moment(limit, what)
        if run_id is not None:
            arguments.instance(run_id, UUID, "run_id")
        if after is not None:
            arguments.instance(after, Compaction, "after")
        wanted = CompactionFilter(
            None if thread_id is None else self._key(thread_id).uid,
            covering=covering,
            kind=kind,
            outcome=outcome,
            actor=actor,
            model=model,
            callback=callback,
            run_id=run_id,
            since=since,
            until=until,
        )
        return self._log(thread_id, wanted, newest_first=newest_first, after=after)

    async def _log(
        self,
        thread_id: str | None,
        wanted: CompactionFilter,
        *,
        newest_first: bool = False,
        after: Compaction | None = None,
    ) -> AsyncIterator[Compaction]:
        place = None
        if after is not None:
            place = CompactionKey(after.created_at, self._key(after.thread_id).uid, after.number)
        elif thread_id is not None:
            await self.thread(thread_id)
        while True:
            rows = await self._db.call(queries.compactions, self._tenant, wanted, place, newest_first, _PAGE)
            for row in rows:
                yield records.from_row(row)
            if len(rows) < _PAGE:
                return
            last = records.from_row(rows[-1])
            reached = CompactionKey(last.created_at, rows[-1][-1], last.number)
            if reached == place:
                # Times that no store wrote are not told apart.
                return
            place = reached

    async def compaction(self, thread_id: str, number: int) -> Compaction:
        """The record of that number."""
        arguments.number(number, "number", least=1)
        wanted = CompactionFilter(self._key(thread_id).uid, number=number)
        async for record in self._log(thread_id, wanted):
            return record
        raise CompactionNotFound(f"no compaction {number}{arguments.about(thread_id)}")

    def originals(self, compaction: Compaction) -> AsyncIterator[Message]:
        """The messages a record stands for, as they were appended."""
        arguments.instance(compaction, Compaction, "compaction")
        if compaction.start_seq is None or compaction.end_seq is None:
            raise InvalidInput(f"compaction {compaction.number} has no span{arguments.about(compaction.thread_id)}")
        return self.replay(compaction.thread_id, after=compaction.start_seq - 1, until=compaction.end_seq)

    async def tree(self, compaction: Compaction) -> CompactionTree:
        """A record and the records it was made of, down to messages."""
        arguments.instance(compaction, Compaction, "compaction")
        if compaction.start_seq is None or compaction.end_seq is None:
            return CompactionTree(compaction, ())
        span = (compaction.start_seq, compaction.end_seq)
        wanted = CompactionFilter(self._key(compaction.thread_id).uid, within=span, outcome="applied")
        return records.tree(compaction, [record async for record in self._log(None, wanted)])

    async def search(self, text: str, *, thread_id: str | None = None, after: str = "") -> AsyncIterator[Found]:
        """Where a text stands, in one thread or in all of the tenant's, as a request to erase needs it.

        In messages with their meta, in the bodies of records, and in threads' metadata. Case, Unicode's normal forms,
        invisible characters and white space make no difference; escapes inside a string are read. Every thread is read
        in pages, in the order of the names; `after` goes on behind one. Text inside pictures and files is not found.
        """
        wanted = Search(text)
        if thread_id is None:
            async for thread in self.threads(after=after):
                async for found in self._found(thread, wanted):
                    yield found
        else:
            async for found in self._found(await self.thread(thread_id), wanted):
                yield found

    async def _found(self, thread: Thread, wanted: Search) -> AsyncIterator[Found]:
        if (found := wanted.in_thread(thread)) is not None:
            yield found
        if thread.erased_pos is not None:
            return
        async for message in self.replay(thread.thread_id):
            if (found := wanted.in_message(thread.thread_id, message)) is not None:
                yield found
        if thread.last_number:
            async for record in self.compactions(thread.thread_id):
                if (found := wanted.in_record(record)) is not None:
                    yield found

    async def explain(self, thread_id: str, seq: int) -> Explanation:
        """Every record that ever covered a message, in order, and how the message stands in the view now."""
        message = await self.message(thread_id, seq)
        log = [record async for record in self.compactions(thread_id, covering=seq)]
        view = await self.view(thread_id)
        element = next((element for element in view.elements if element.seq <= seq <= element.end_seq), None)
        if element is None:
            raise Unreadable(f"nothing in the view stands for seq {seq}; run verify{arguments.about(thread_id)}")
        return Explanation(message, tuple(log), element, await self._redaction(message, thread_id))

    async def _redaction(self, message: Message, thread_id: str) -> Event | None:
        """The event by which a message was erased."""
        if message.redacted:
            async for event in self.events(thread_id, after=message.pos):
                if event.kind == "redaction" and erasure.names(event, message.seq):
                    return event
        return None

    async def events(self, thread_id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """What happened to a thread besides messages and compactions, in order, after a pos: redactions, holds,
        releases, retentions.
        """
        key = self._key(thread_id)
        arguments.number(after, "after", least=0)
        while True:
            rows = await self._db.call(queries.events, key, after, _PAGE)
            for row in rows:
                yield erasure.event(thread_id, row)
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]

    async def seen_by(self, thread_id: str, seq: int) -> SeenView:
        """The view that a reply was written from, and how far that is known."""
        arguments.number(seq, "seq", least=1)
        key = self._key(thread_id)
        found = await self._db.call(queries.receipt, key, seq)
        if found is None:
            await self.thread(thread_id)
            raise MessageNotFound(f"no seq {seq}{arguments.about(thread_id)}")
        pos, text = found
        if text is None:
            if pos == 1:
                raise MessageNotFound(f"nothing stands before seq {seq}{arguments.about(thread_id)}")
            return SeenView("reconstructed", await self.view(thread_id, at=pos - 1), None)
        receipt = receipts.read_receipt(text, seq, thread_id)
        view = await self.view(thread_id, at=receipt["pos"])
        return SeenView("proved" if receipts.matches(view, receipt) else "differs", view, receipt)

    async def due(self, budget: TokenBudget) -> AsyncIterator[Thread]:
        """The threads whose view is over the budget by the store's own figures, about the largest first.

        Not those that are within it by what the API reported of the thread; the budget's counter is not asked.
        Left out: those that somebody is compacting now, and those whose last attempt made no progress, until their view
        has grown by as much as lies between the budget's target and its trigger.
        """
        size_estimate.check_budget(budget, awaits=True)
        margin = max(1, budget.trigger_tokens - budget.target_tokens)
        place = None
        while True:
            rows = await self._db.call(queries.due, self._tenant, budget.trigger_tokens, margin, place, _PAGE)
            for row in rows:
                thread = typed_rows.thread(row[:-2])
                if budget.is_over((await self._calibrated(thread.thread_id, thread.view_tokens, budget)).tokens):
                    yield thread
            if len(rows) < _PAGE:
                return
            place = rows[-1][-2:]

    async def _calibrated(self, thread_id: str, local: int, budget: TokenBudget) -> Measured:
        """What a view of so many of the store's own tokens takes, by the newest reply that says what it took."""
        rows = await self._db.call(queries.reported, self._key(thread_id), _REPORTS)
        return size_estimate.calibrated(local, budget, size_estimate.reported(rows))
