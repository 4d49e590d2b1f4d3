"""The group `store.audit`: verifies, exports, searches and explains what is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Unpack, overload
from uuid import UUID

from compaction_store import arguments, models
from compaction_store.bundles import line_format
from compaction_store.checkpoints import Checkpoint, CheckpointLog, Signer
from compaction_store.checkpoints.make import CheckpointRequest, Sink
from compaction_store.compaction import records
from compaction_store.errors import InvalidInput, ThreadNotFound, UnknownEntry, Unreadable
from compaction_store.integrity import erasure
from compaction_store.integrity.entry import Kind
from compaction_store.integrity.rows import RowRequest, Rows, ThreadHead
from compaction_store.messages import encoding
from compaction_store.models import Report
from compaction_store.models.record_filters import FILTERS, RecordFilters, SampleFilters
from compaction_store.models.vocabulary import JUDGEMENTS, EventKind, Judgement
from compaction_store.postgres import queries, tables, typed_rows
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import CompactionFilter, CompactionKey, EventFilter, ThreadKey
from compaction_store.rendering import receipts
from compaction_store.rendering.given import System
from compaction_store.results import AsyncResults
from compaction_store.store._async import erasures, forks, pages, verification
from compaction_store.store._async.scope import AsyncScope
from compaction_store.store.text_search import TextSearch


class AsyncAudit:
    """The methods of `store.audit`, which read: proofs, exports, events, explanations and parts of views."""

    def __init__(self, scope: AsyncScope) -> None:
        self._scope = scope

    async def _thread(self, thread_id: str) -> models.Thread:
        return typed_rows.thread(await self._scope.db.call(queries.thread, self._scope.key(thread_id)))

    # ---- proofs

    @overload
    def verify(
        self,
        thread_id: str,
        *,
        level: models.Level = "content",
        since: Report | tuple[int, bytes] | None = None,
        checkpoints: CheckpointLog | None = None,
        progress: verification.Progress | None = None,
    ) -> Coroutine[Any, Any, Report]: ...

    @overload
    def verify(
        self,
        *,
        level: models.Level = "content",
        after: str | UUID | Report | None = None,
        checkpoints: CheckpointLog | None = None,
        progress: verification.Progress | None = None,
    ) -> AsyncResults[Report]: ...

    def verify(
        self,
        thread_id: str | None = None,
        *,
        level: models.Level = "content",
        since: Report | tuple[int, bytes] | None = None,
        after: str | UUID | Report | None = None,
        checkpoints: CheckpointLog | None = None,
        progress: verification.Progress | None = None,
    ) -> Coroutine[Any, Any, Report] | AsyncResults[Report]:
        """Recomputes a thread's hash chain and reports the level that was verified and every finding.

        Level "structure" reads no content, and level "content" reads it. Level "schema" also checks that the database
        still protects the thread. Level "checkpoint" also compares the thread with checkpoints of the log
        `checkpoints`. `since` is an earlier report of the thread, or a pos and the hash of the entry at that pos: only
        later entries are verified. `progress` is called with the number of verified entries and the total.

        Without a thread, verifies every thread of the tenant and yields a report on each, in the order of thread_uid.

        Threads are found by thread_uid, not by name, so a thread whose name is wrong or missing is reported too. So are
        rows that belong to no thread. Bad data is a finding, never an exception. `after` skips all threads up to one,
        given by its report, its thread_uid or its name.

        At levels "schema" and "checkpoint", the first report is on the schema. At level "checkpoint", the order of all
        checkpoints of the log is checked, and a last report has a finding for each of their threads that was not
        found. Both reports have an empty thread_id and no thread_uid. `progress` is called with the number of verified
        threads and the total.

        Nothing is verified until the result is iterated over. If nobody does, the result warns when it is dropped.
        """
        wanted = verification.Verification(self._scope.db.as_stored(), self._scope.tenant, level, checkpoints, progress)
        if thread_id is None:
            if since is not None:
                raise InvalidInput("since must be given with a thread")
            return AsyncResults("verify()", verification.verify_all(wanted, after))
        if after is not None:
            raise InvalidInput("after must be given without a thread")
        return verification.verify_thread(wanted, self._scope.key(thread_id), since)

    async def verify_schema(self) -> Report:
        """Checks that the database still protects the threads, as level "schema" does, and reads no thread."""
        return await verification.verify_schema(self._scope.db)

    async def verify_entry(
        self, thread_id: str, *, seq: int | None = None, number: int | None = None, pos: int | None = None
    ) -> tuple[models.Finding, ...]:
        """Checks one message, compaction record or event, given by its seq, number or pos. Returns the findings.

        The entry must have the content of its commitment, and follow from the entry before it. That entry is taken as
        it is stored, so only `verify` proves a thread.
        """
        places: tuple[tuple[Kind, str, int | None], ...] = (
            ("message", "seq", seq), ("compaction", "number", number), ("event", "pos", pos),
        )  # fmt: skip
        given = [(kind, name, ordinal) for kind, name, ordinal in places if ordinal is not None]
        if len(given) != 1:
            raise InvalidInput(f"exactly one of seq, number and pos must be given, not {len(given)}")
        [(kind, name, ordinal)] = given
        arguments.number(ordinal, name, least=1)
        return await verification.verify_entry(self._scope.db.as_stored(), self._scope.key(thread_id), kind, ordinal)

    async def checkpoint(
        self, signer: Signer, log: CheckpointLog, *sinks: Sink, all_tenants: bool = False, allow_empty: bool = True
    ) -> Checkpoint:
        """Signs the head of every thread of the tenant and appends the checkpoint to the log.

        Computes the chain of every thread that has grown, from its entry in the log's last checkpoint up to its head.
        Raises `CheckpointRefused` if anything is found: a thread is missing, is shorter, or has another entry at the
        recorded pos, or its chain does not hold. Without `allow_empty`, also refuses if there is no thread.

        A checkpoint without new messages is useful too, because it shows that nothing was removed. Each sink is called
        with the checkpoint and the path of its list of heads, after both are on disk. `all_tenants` needs a login that
        is exempt from row-level security.
        """
        db, tenant = self._scope.db, None if all_tenants else self._scope.tenant
        request = CheckpointRequest(tenant, signer, log, sinks, verification.patience(db), allow_empty)
        return await verification.make_checkpoint(db, request)

    def export(
        self, thread_id: str, *, bodies: line_format.Bodies = True, checkpoint: Mapping[str, Any] | None = None
    ) -> AsyncIterator[bytes]:
        """Yields the lines of a bundle: the whole thread up to its head, and everything that is needed to verify it.

        The thread is read in pages, so memory does not grow with the thread. `bodies=False` withholds the content of
        every entry. `bodies` may also be a callable that takes the line of an entry, as a mapping without content: the
        content is withheld if the callable returns False. Commitments stay, so the bundle still verifies. `checkpoint`
        is copied into the manifest. Entries that are appended during the export are left out; an erasure during the
        export raises a `Conflict`.
        """
        key = self._scope.key(thread_id)
        line_format.check_options(bodies, checkpoint)
        return bundle_lines(self._scope.db, key, bodies, checkpoint)

    # ---- events, messages and records

    def events(
        self,
        thread_id: str | None = None,
        *,
        kind: EventKind | Sequence[EventKind] | None = None,
        actor: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        subject: str | None = None,
        newest_first: bool = False,
        after: int | models.Event = 0,
    ) -> AsyncIterator[models.Event]:
        """Yields the events of a thread or of all the tenant's threads, such as redactions, holds, forks and verdicts.

        `kind` is one kind of event or several. With `subject`, only threads that belong to it now are read. The events
        of one thread are in the order of their pos, and `after` skips all events up to a pos or an event. The events of
        all threads are in the order of their times, and `after` skips all events up to an event.
        """
        wanted = pages.check_event_filter(EventFilter(pages.event_kinds(kind), actor, since, until, subject))
        arguments.instance(newest_first, bool, "newest_first")
        if thread_id is not None:
            if subject is not None:
                raise InvalidInput(f"subject must be given without thread_id{arguments.about(thread_id)}")
            if isinstance(after, models.Event) and after.thread_id != thread_id:
                raise InvalidInput(f"after must be an event of the thread{arguments.about(thread_id)}")
            pos = after.pos if isinstance(after, models.Event) else after
            arguments.number(pos, "after", least=0)
            key = self._scope.key(thread_id)
            found = pages.matching_events(self._scope.db, key, pos, wanted, newest_first=newest_first)
            return AsyncResults("events(…)", found, works=False)
        if not isinstance(after, models.Event) and (type(after) is not int or after != 0):
            raise InvalidInput("after must be an Event if thread_id is not given: a pos needs its thread")
        found = self._tenant_events(
            wanted, after if isinstance(after, models.Event) else None, newest_first=newest_first
        )
        return AsyncResults("events(…)", found, works=False)

    def feed(
        self, *, after: str | None = None, messages: bool = False, content: bool = False
    ) -> AsyncIterator[models.FeedEntry]:
        """Yields the records and events of all threads of the tenant, and also the messages if `messages` is given.

        The entries of a thread are in the order of their pos. An entry is yielded once no running transaction can
        still add one before it. So an entry has no cursor after which entries appear later that it hides: to read what
        is new, call again with `after` as the `cursor` of the last entry. A long transaction delays the feed.

        Without `content`, no payload, meta or body is read. An erased thread has its new name and entries without
        content, and the event of its erasure. Raises `FeedInterrupted` if the entry of the cursor is not in the
        database, as after a failover that lost it. A standby can serve the feed; a cluster cannot.
        """
        place = None if after is None else pages.check_cursor(after)
        arguments.instance(messages, bool, "messages")
        arguments.instance(content, bool, "content")
        found = pages.feed(self._scope.db, self._scope.tenant, place, messages=messages, content=content)
        return AsyncResults("feed(…)", found, works=False)

    async def _tenant_events(
        self, wanted: EventFilter, after: models.Event | None, *, newest_first: bool
    ) -> AsyncIterator[models.Event]:
        reached = None
        if after is not None:
            reached = (after.created_at, (await self._thread(after.thread_id)).thread_uid, after.pos)
        db, tenant = self._scope.db, self._scope.tenant
        async for event in pages.tenant_events(db, tenant, wanted, newest_first=newest_first, after=reached):
            yield event

    async def explain(
        self,
        thread_id: str,
        seq: int,
        *,
        tools: Sequence[Any] | None = None,
        system: System | None = None,
        records: int | None = None,
    ) -> models.Explanation:
        """Returns a message's receipt, its element in the current view, and every record that ever covered it.

        For a message that a fork copied, the result also says where it was first appended. `tools` and `system` are
        compared with the hashes in the receipt of a reply. `records` limits the result to that many of the newest
        records.
        """
        key, wanted = self._scope.key(thread_id), receipts.digests(tools, system)
        arguments.number(seq, "seq", least=1)
        arguments.number(records, "records", least=1, optional=True)
        # Use thread_uid for all calls: the name may go to another thread between two calls.
        thread = await self._thread(thread_id)
        key = key._replace(uid=thread.thread_uid)
        message, redacted_pos = await pages.message_and_erasure(self._scope.db, key, seq)
        covering = CompactionFilter(thread.thread_uid, filters={"covering": seq})
        log = []
        async for record in pages.compaction_log(
            self._scope.db, self._scope.tenant, covering, newest_first=records is not None
        ):
            log.append(record)
            if len(log) == records:
                break
        if records is not None:
            log.reverse()
        rows = await self._scope.db.call(queries.element, key, seq)
        if not rows:
            raise Unreadable(f"the view has no element for seq {seq}; run verify{arguments.about(thread_id)}")
        [element] = typed_rows.view(thread_id, rows).elements
        redaction = await pages.redaction_of(self._scope.db, key, message, redacted_pos)
        found = await pages.receipt_of(self._scope.db, key, seq)
        receipt = None if found is None else found.receipt
        origin = await forks.origin(self._scope.db, key, seq, message.pos)
        request = receipts.agents_receipt(message) if receipt is None else receipt
        same_tools = receipts.has_digest(request, "tools", wanted.tools)
        same_system = receipts.has_digest(request, "system", wanted.system)
        return models.Explanation(message, tuple(log), element, redaction, receipt, same_tools, same_system, origin)

    def originals(self, compaction: models.Compaction) -> AsyncIterator[models.Message]:
        """Yields the messages of a compaction's span, as they were appended."""
        arguments.instance(compaction, models.Compaction, "compaction")
        if compaction.start_seq is None or compaction.end_seq is None:
            raise InvalidInput(f"compaction {compaction.number} has no span{arguments.about(compaction.thread_id)}")
        # Use thread_uid: the name may belong to another thread by now.
        key = self._scope.key(compaction.thread_id)._replace(uid=compaction.thread_uid)
        found = pages.messages(self._scope.db, key, compaction.start_seq - 1, compaction.end_seq)
        return AsyncResults("originals(…)", found, works=False)

    async def tree(self, compaction: models.Compaction, *, most: int | None = None) -> models.CompactionTree:
        """Returns a record with the records that it was made from, down to messages.

        With `most`, the tree has only so many of the newest records inside it. Raises `UnknownEntry` if an earlier
        entry may change views in a way that this release does not know.
        """
        arguments.instance(compaction, models.Compaction, "compaction")
        arguments.number(most, "most", least=1, optional=True)
        if compaction.unknown_pos is not None and compaction.unknown_pos < compaction.pos:
            raise UnknownEntry(
                f"compaction {compaction.number} was made after pos {compaction.unknown_pos}, whose kind this release"
                f" does not know{arguments.about(compaction.thread_id)}"
            )
        if compaction.start_seq is None or compaction.end_seq is None:
            return models.CompactionTree(compaction, ())
        span = (compaction.start_seq, compaction.end_seq)
        wanted = CompactionFilter(compaction.thread_uid, within=span, filters={"outcome": ["applied"]})
        last = CompactionKey(compaction.created_at, compaction.thread_uid, compaction.number)
        inside: list[models.Compaction] = []
        async for record in pages.compaction_log(
            self._scope.db, self._scope.tenant, wanted, newest_first=True, after=last
        ):
            inside.append(record)
            if len(inside) == most:
                break
        return records.tree(compaction, inside)

    def search(self, text: str, *, thread_id: str | None = None, after: str = "") -> AsyncIterator[models.Found]:
        """Yields every message, record and metadata that contains a text, in one or all threads of the tenant.

        Use it to answer requests to erase. It searches messages and their metas, the bodies of records, and the
        metadata of threads, in the order of the threads' names; `after` skips all threads up to that name. Case,
        Unicode normal forms, invisible characters and the length of white space make no difference, and JSON escapes
        inside a string are decoded. It does not search pictures and files.
        """
        wanted = TextSearch(text)
        if after:
            arguments.check_thread_id(after)
        if thread_id is None:
            found = pages.search_all(self._scope.db, self._scope.tenant, wanted, after)
        else:
            found = pages.search_thread(self._scope.db, self._scope.key(thread_id), wanted)
        return AsyncResults("search(…)", found, works=False)

    async def sample(
        self, seed: int, count: int = 10, *, among: int = 20_000, **filters: Unpack[SampleFilters]
    ) -> models.Sample:
        """Draws a random sample of matching compaction records from all threads of the tenant.

        Revocations, records without a span and erased records are left out. So are the copies in forks whose original
        is there and not erased. The sample consists of the records with the lowest SHA-256 of `seed/thread_uid/number`,
        in that order, so the same seed draws the same records again. If more than `among` records match, the sample is
        drawn from the oldest `among` of them.
        """
        wanted = CompactionFilter(filters=pages.checked_filters(filters, SampleFilters.__annotations__))
        arguments.number(seed, "seed", least=0)
        arguments.number(count, "count", least=1)
        arguments.number(among, "among", least=1)
        return await pages.sample(self._scope.db, self._scope.tenant, wanted, seed, count, among)

    async def counts(
        self, thread_id: str | None = None, *, among: int = 10_000, **filters: Unpack[RecordFilters]
    ) -> dict[str, dict[str, int]]:
        """Counts the newest `among` matching records of a thread or of all, and each `actor`, `model` and `callback`.

        `all` has the number of the records under an empty name. The other counts are of the 50 most frequent values,
        the most frequent first. The filters that need the body of a record are refused.
        """
        known = [name for name, row in FILTERS.items() if row.holds is None]
        wanted = CompactionFilter(filters=pages.checked_filters(filters, known))
        arguments.number(among, "among", least=1)
        if thread_id is not None:
            wanted = wanted._replace(thread_uid=(await self._thread(thread_id)).thread_uid)
        return await self._scope.db.call(queries.counts, self._scope.tenant, wanted, among)

    async def figures(self, *, since: datetime) -> models.Figures:
        """Counts the threads of the tenant, and its compactions since a time, by day in UTC and outcome.

        Revocations, rewinds, clears and the copies in forks are no compactions. Erased threads count as threads.
        """
        arguments.moment(since, "since")
        return await self._scope.db.call(queries.figures, self._scope.tenant, since)

    def tenants(self, *, after: str = "") -> AsyncIterator[str]:
        """Yields the names of the tenants that have threads, in byte order. `after` skips all names up to that name.

        The login must be exempt from row-level security, as a superuser is. Any other login gets `PermissionDenied`,
        because row-level security would show it only one tenant.
        """
        if after:
            arguments.name(after, "after")
        return AsyncResults("tenants()", pages.tenants(self._scope.db, after), works=False)

    # ---- views

    async def outline(
        self, thread_id: str, *, at: int | None = None, span: tuple[int, int] | None = None
    ) -> models.Outline:
        """Returns the parts of the current view, or of the view at a pos, without their messages.

        If a view may be too large to read completely, read its outline, and then some of its parts with `elements`.
        With `span`, only the elements from one seq to another are read; one element must begin at the first seq, and
        one must end at the last. This method also finds a thread that `clear` has hidden.
        """
        key = self._scope.key(thread_id)
        arguments.number(at, "at", least=1, optional=True)
        start, end = (None, None) if span is None else arguments.seqs(span, "span")
        rows = await self._scope.db.call(queries.outline, key, at, start, end)
        return typed_rows.outline(thread_id, rows, (start, end))

    async def compare(
        self,
        thread_id: str,
        at: int | None = None,
        beside: int | None = None,
        *,
        only_changes: bool = False,
        start: int = 0,
        count: int = 50,
    ) -> models.Comparison:
        """Compares the view at a pos with the view at another pos, and returns a page of their parts.

        A part is a record or a range of messages. `start` and `count` count elements, that is records and single
        messages, not parts. Read the messages with `elements`. With
        `only_changes`, elements that are in both views are left out. Without `at`, the first view is the current view.
        Without `beside`, the view is compared with itself, so the page is of this view alone. The database does the
        work, so memory does not grow with the thread. This method also finds a thread that `clear` has hidden.
        """
        key = self._scope.key(thread_id)
        for name, pos in (("at", at), ("beside", beside)):
            arguments.number(pos, name, least=1, optional=True)
        arguments.instance(only_changes, bool, "only_changes")
        arguments.number(start, "start", least=0)
        arguments.number(count, "count", least=1)
        rows = await self._scope.db.call(queries.compare, key, at, beside, only_changes, start, count)
        return typed_rows.comparison(thread_id, rows)

    async def elements(self, thread_id: str, parts: Iterable[models.Part]) -> list[models.Element]:
        """Returns the elements of the given parts of an outline, in order."""
        wanted = list(parts)
        for part in wanted:
            arguments.instance(part, models.Part, "every part in parts")
        return [element async for element in pages.elements(self._scope.db, self._scope.key(thread_id), wanted)]

    async def entries(
        self, thread_id: str, *, after: int | datetime = 0, count: int = 50
    ) -> list[models.Message | models.Compaction | models.Event]:
        """Returns a page of a thread: its messages, compaction records and events, in the order of their pos.

        `after` skips all entries up to a pos or a time. The next page is that after the pos of the last entry. This
        method also finds a thread that `clear` has hidden.
        """
        if isinstance(after, datetime):
            arguments.moment(after, "after")
        else:
            arguments.number(after, "after", least=0)
        arguments.number(count, "count", least=1)
        return await pages.entries(self._scope.db, self._scope.key(thread_id), after, count)

    async def neighbours(self, thread_id: str, pos: int) -> tuple[int | None, int | None]:
        """Returns the pos of the last compaction record up to a pos, and the pos of the first record after that."""
        arguments.number(pos, "pos", least=0)
        found = await self._scope.db.call(queries.neighbours, self._scope.key(thread_id), pos)
        earlier = max((each for each in found if each <= pos), default=None)
        return earlier, min((each for each in found if each > pos), default=None)

    async def token_steps(self, thread_id: str, *, ranges: int = 1000) -> list[models.TokenStep]:
        """Returns how the number of tokens in a thread's view changed over time, for a chart.

        There is one step for each applied record. The thread is divided into at most `ranges` equal ranges of pos, and
        all messages of a range are one step. The steps do not include erasures; `thread` returns the tokens of the
        current view. The result is empty for a thread that does not exist. The steps end before the thread's
        `unknown_pos`.
        """
        key = self._scope.key(thread_id)
        arguments.number(ranges, "ranges", least=1)
        try:
            found = typed_rows.thread(await self._scope.db.call(queries.thread, key))
        except ThreadNotFound:
            return []
        key = key._replace(uid=found.thread_uid)
        last_pos = found.last_pos if found.unknown_pos is None else found.unknown_pos - 1
        messages = await self._scope.db.call(queries.appended_tokens, key, ranges, last_pos)
        return records.token_steps(messages, await self._scope.db.call(queries.applied_tokens, key, last_pos))

    async def names_of(self, thread_uids: Iterable[UUID]) -> dict[UUID, str]:
        """Returns the current names of threads by thread_uid. Leaves out threads that the tenant does not have."""
        wanted = list(thread_uids)
        for each in wanted:
            arguments.instance(each, UUID, "thread_uids")
        return dict(await self._scope.db.call(queries.names_of, self._scope.tenant, wanted)) if wanted else {}


class AsyncStoreAudit(AsyncAudit):
    """Adds what audits record: the verdicts of reviewers, the results of evaluations, and those of verifications."""

    async def record_verification(
        self,
        *,
        level: models.Level,
        threads: int,
        findings: int,
        seconds: float | None = None,
        checkpoint: str | None = None,
        actor: str | None = None,
    ) -> models.Event | None:
        """Records the result of a verification of all threads in the log of the tenant, where the audit pages read it.

        `checkpoint` is the digest of the checkpoint that the threads were compared with. Returns None, and records
        nothing, if this login may not write, as one that is only an auditor, or if the server is a standby.
        """
        arguments.one_of(level, models.LEVELS, "level")
        for name, number in (("threads", threads), ("findings", findings)):
            arguments.number(number, name, least=0)
        if seconds is not None:
            arguments.seconds(seconds, "seconds")
        arguments.text(checkpoint, "checkpoint")
        actor = self._scope.chosen_actor(actor)
        if not await self._scope.db.call(queries.may_record_in_log):
            return None
        body = erasure.body(level=level, threads=threads, findings=findings, seconds=seconds, checkpoint=checkpoint)
        return await erasures.record_in_log(self._scope.db, self._scope.tenant, "verification", body, actor)

    async def review(
        self,
        thread_id: str,
        number: int,
        verdict: Judgement,
        *,
        note: str | None = None,
        sample: Mapping[str, Any] | None = None,
        actor: str | None = None,
    ) -> models.Event:
        """Records a verdict on a compaction record, as an event of the thread. Earlier verdicts stay.

        `sample` names the sample that the record was drawn for. The login must have the role
        `compaction_store_reviewer`, which may write nothing else. Notes are kept forever, even if the record is erased,
        so they should quote nothing.
        """
        thread = self._scope.writable_key(thread_id)
        arguments.number(number, "number", least=1)
        arguments.instance(verdict, str, "verdict")
        arguments.one_of(verdict, JUDGEMENTS, "verdict")
        erasure.check_text(note, "note", optional=True)
        drawn = encoding.json_object(sample, "sample")
        actor = self._scope.chosen_actor(actor)
        body = erasure.body(number=number, verdict=verdict, note=note, sample=drawn)
        return await erasures.record(self._scope.db, queries.record_verdict, thread, "verdict", body, actor, number)

    async def record_evaluation(
        self,
        thread_id: str,
        document: Mapping[str, Any],
        *,
        reason: str,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> models.Event:
        """Records the result of an evaluation that replayed this thread. `Evaluation.documents` yields the document.

        The document is kept forever, even if the thread is erased, so it must quote nothing.
        """
        checked = encoding.object_of(document, "document")
        return await self._scope.record_event(thread_id, "evaluation", reason, actor, authority, evaluation=checked)


async def bundle_lines(
    db: AsyncConnections, thread: ThreadKey, bodies: line_format.Bodies, checkpoint: Mapping[str, Any] | None
) -> AsyncIterator[bytes]:
    db = db.as_stored()
    row = await db.call(queries.thread, thread)
    thread = thread._replace(uid=typed_rows.thread(row).thread_uid)
    state = ThreadHead._make(await db.call(queries.thread_state, thread, None))
    steps = line_format.export(
        thread.tenant, typed_rows.thread(row), (state.name_salt, state.name_commitment), row.metadata,
        schema=tables.REVISION, made_at=datetime.now(UTC),
        bodies=bodies, checkpoint=checkpoint, about=arguments.about(thread.thread_id),
    )  # fmt: skip
    wanted = next(steps, None)
    while wanted is not None:
        rows: Rows | None = None
        if not isinstance(wanted, RowRequest):
            yield wanted
        elif wanted.kind is None:
            rows = [await db.call(queries.thread, thread)]
        else:
            rows = await db.call(queries.entries, thread, wanted.kind, wanted.start, True, wanted.limit)
        try:
            wanted = steps.send(rows)
        except StopIteration:
            return
