"""Store: everything Reader reads, and what writes: append, load, compact, erase.

The file is longer than others because it holds every writing method with its documentation; the work is in the modules
beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any, Literal, TypeVar, overload

from compaction_store import arguments
from compaction_store.bundles import verification
from compaction_store.compaction import adoption, sending, size_estimate
from compaction_store.compaction.asking import Summarize
from compaction_store.compaction.budget import BudgetExceeded, TokenBudget
from compaction_store.compaction.callbacks import check_callback
from compaction_store.compaction.checks import Check
from compaction_store.compaction.plan import CompactionPlan, CompactionRun
from compaction_store.compaction.repair import check_arguments
from compaction_store.compaction.sending import Sent
from compaction_store.compaction.summary_request import SummaryResult
from compaction_store.drivers import drive, is_async
from compaction_store.errors import ActorRequired, CompactionStoreError, InvalidInput, SpanConflict
from compaction_store.integrity import erasure
from compaction_store.messages import encoding
from compaction_store.messages.keys import Key
from compaction_store.models import (
    Appended,
    Compaction,
    Event,
    Forked,
    Imported,
    Loaded,
    Redaction,
    ThreadLoaded,
)
from compaction_store.models.verdicts import VERDICTS
from compaction_store.postgres import call, queries
from compaction_store.postgres.queries import ThreadKey
from compaction_store.rendering.view import Rendered, View
from compaction_store.store import loading, loading_threads, turn_waits
from compaction_store.store._sync import (
    adopting,
    compacting,
    erasing,
    forking,
    importing,
    repairing,
    rewinding,
    writing,
)
from compaction_store.store._sync.loading import run_load
from compaction_store.store._sync.loading_threads import load_threads
from compaction_store.store._sync.reader import Reader
from compaction_store.store._sync.turns import Turn
from compaction_store.store.thread_keys import thread_key, writable_key

_IS_ASYNC = False
_C = TypeVar("_C", bound=Callable[..., Any])


class Store(Reader):
    """Reads and writes threads. Made by `open`, closed by `close` or as a context manager."""

    def _writable_key(self, thread_id: str) -> ThreadKey:
        return writable_key(self._tenant, thread_id)

    def _chosen_actor(self, actor: str | None) -> str | None:
        """Returns the actor of a call: the given one, else the store's own."""
        arguments.optional_name(actor, "actor")
        found = self._actor if actor is None else actor
        if found is None and self._require_actor:
            raise ActorRequired("actor must be given: the store was opened with require_actor=True")
        return found

    # ---- appending

    def append(
        self,
        thread_id: str,
        messages: Any,
        *,
        key: str | None = None,
        expected_seq: int | None = None,
        expected_head: bytes | None = None,
        view: View | Rendered | None = None,
        meta: writing.Metas = None,
        tokens: int | Sequence[int] | None = None,
        turn: Turn | None = None,
        durable: bool = True,
    ) -> Appended:
        """Appends one message or several, all or none; the first append creates the thread.

        A message is a dict of any JSON shape, a pydantic model or an SDK's object. With `key`, the same call again
        returns the first result. The thread must end with `expected_seq`, and its head must be `expected_head`, as
        returned by an earlier append, a view or `thread` (`HeadConflict`). `view` is the view, or its rendering, that a
        reply was written from; it is kept as the receipt, and a thread that no longer has that view refuses the reply
        (`HeadConflict`). `meta` and `tokens` are one value for all messages or one for each; without `meta`, an SDK's
        reply to a view is stored with the `usage` that it reports as its meta. With `turn`, the append is refused if
        the turn has lost the thread (`TurnLost`).

        With `durable=False` the call does not wait for the server's disk or standbys, which is faster. If the server
        crashes or fails over within the next second, the messages may be lost although they were returned. Nothing else
        changes: no gap, no half call, and any durable write to the same server after it makes it durable too.
        """
        thread = self._writable_key(thread_id)
        arguments.instance(durable, bool, "durable")
        given = [messages] if encoding.is_one(messages) else list(islice(messages, encoding.MAX_BATCH + 1))
        encoded = encoding.encode_many(given)
        checked_key = Key(key)
        if expected_seq is not None:
            arguments.number(expected_seq, "expected_seq", least=0)
        if view is not None and not isinstance(view, View | Rendered):
            raise InvalidInput(f"view must be a View or its rendering for an API, not {type(view).__name__}")
        if expected_head is not None:
            arguments.head(expected_head, "expected_head")
        if view is not None and view.thread_id != thread_id:
            raise InvalidInput(f"view must be a view of thread {thread_id!r}, not of {view.thread_id!r}")
        if turn is not None:
            arguments.instance(turn, Turn, "turn")
            turn.check(thread)
        batch = writing.batch(
            self._db, self._counter, given, encoded, meta=meta, count=tokens, has_view=view is not None
        )  # fmt: skip
        expected = queries.Expected(
            expected_seq, expected_head, None if view is None else view.head, None if turn is None else turn.turn_id
        )
        with nullcontext() if turn is None else turn.watching():
            appended = writing.append(
                self._db, self._shared_commits, self._known_threads, thread, batch, key=checked_key,
                expected=expected, view=view, durable=durable,
            )  # fmt: skip
        if turn is not None:
            turn.note(appended)
        return appended

    def turn(self, thread_id: str, *, wait: float = 60.0, lease: float = 30.0, actor: str | None = None) -> Turn:
        """Makes a turn. Across all processes, a thread has one turn at a time, in the order of the requests.

        Used with `with` or `async with`. Entering it waits up to `wait` seconds (`TurnTimeout`). The lease is renewed
        in the background until the turn ends; if the process dies, the turn ends by itself within `lease` seconds. No
        connection is held meanwhile. Appends with `turn.append` are refused if the turn has lost the thread
        (`TurnLost`); others, inside or outside of a turn, are not affected.
        """
        thread = self._writable_key(thread_id)
        arguments.optional_name(actor, "actor")
        turn_waits.check_seconds(wait, "wait", least=0, most=turn_waits.LONGEST_WAIT)
        turn_waits.check_seconds(lease, "lease", least=1, most=turn_waits.LONGEST_LEASE)
        chosen = self._actor if actor is None else actor
        return Turn(self._db, self.append, thread, actor=chosen, wait=wait, lease=lease)

    def load(
        self,
        thread_id: str,
        messages: loading.Messages,
        *,
        key: str | None = None,
        expected_seq: int | None = None,
        meta: Mapping[str, Any] | None = None,
        tokens: int | None = None,
    ) -> Loaded:
        """Appends any number of messages, streamed: memory does not grow with them. The login needs the loader's role.

        A message is anything `append` takes, or a `ToLoad` with its own meta and tokens; `meta` and `tokens` are for
        messages without. Messages are stored in chunks of up to 10,000 messages or 16 MiB, each all or none; other
        writers may append between two chunks. The thread must end with `expected_seq` before the first chunk.

        With `key`, the same call again adds nothing, and a call that failed continues where it stopped: give it the
        same messages from the first on. Additional messages at the end are appended; fewer messages, or different
        ones, are an `IdempotencyConflict`. An error carries a note on how many messages are stored.

        Compactions that a provider made by itself are recorded where a message reports them, as by `append`, and where
        an `Observed` is among the messages.
        """
        thread = self._writable_key(thread_id)
        key = Key(key).text
        if expected_seq is not None:
            arguments.number(expected_seq, "expected_seq", least=0)
        source = loading.Source(messages)
        load = loading.Load(
            key, writing.prepared(self._db, self._counter), expected_seq=expected_seq, meta=meta,
            tokens=tokens, of_thread=arguments.about(thread_id), in_memory=source.in_memory,
        )  # fmt: skip
        return run_load(self._db, thread, load, source)

    def load_threads(
        self,
        threads: loading_threads.Threads,
        *,
        key: str | None = None,
        meta: Mapping[str, Any] | None = None,
        tokens: int | None = None,
        skip_refused: bool = False,
    ) -> Iterator[ThreadLoaded]:
        """Loads many threads, streamed: each is a pair `(thread_id, messages)`, or a triple with its own key.

        Each thread is loaded as by `load`, and the result is yielded once it is stored. New threads that are short
        share transactions, of up to 10,000 messages or 16 MiB, so a thread's messages may be stored some threads later;
        nothing is stored before the iteration asks for it. With `key`, the same call again adds only what is new.

        An error is raised when the threads before it are stored. With `skip_refused`, a thread that the store refuses
        is reported, and the others are loaded.
        """
        loading_threads.check(threads)
        options = loading_threads.Options(self._tenant, self._counter, Key(key).text, meta, tokens, skip_refused)
        return load_threads(self._db, threads, options)

    def set_metadata(self, thread_id: str, metadata: Mapping[str, Any]) -> None:
        """Replaces the thread's metadata: one JSON object for any data that is not a message."""
        thread = self._writable_key(thread_id)
        text = encoding.encode_meta(metadata)
        if text is None:
            raise InvalidInput("metadata must be one JSON object, not None")
        self._db.call(queries.set_metadata, thread, text, key=call.UNKEYED)

    def import_bundle(self, lines: loading.Messages) -> Imported:
        """Stores the thread of a bundle, given as its lines, all or none. The login needs the loader's role.

        The thread is restored exactly: every entry of the chain is the same to the byte, with times, keys, receipts,
        records, events and metadata. The whole bundle is verified before anything is sent; an `InvalidBundle` names the
        line at fault. Content that is withheld is refused, erased content is not. The tenant must be the bundle's. If
        the thread exists with the same head, nothing is added; with another head it is `ThreadExists`. Times more than
        a day ahead of the server's clock are refused.
        """
        verification.check_lines(lines)
        return importing.import_bundle(self._db, self._tenant, loading.Source(lines))

    def fork(
        self,
        thread_id: str,
        new_thread_id: str,
        *,
        at: int | None = None,
        key: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> Forked:
        """Makes a new thread that begins as a copy of this one, up to a pos or as it is now.

        Everything up to there is copied: messages, records and events, with their seqs, numbers, keys and salts, and
        the metadata as it is now. The times are those of the fork. The two threads are then independent. The first
        entry of the new thread names this one, and this one gets an event that names the new thread. With `key`, the
        same call again returns the first result. The new name must be free (`ThreadExists`).
        """
        thread = self._writable_key(thread_id)
        arguments.check_thread_id(new_thread_id)
        self._writable_key(new_thread_id)
        if at is not None:
            arguments.number(at, "at", least=1)
        arguments.text(reason, "reason")
        checked_key = None if key is None else Key(key).text
        return forking.fork(
            self._db, thread, new_thread_id, at, key=checked_key, reason=reason, actor=self._chosen_actor(actor),
            authority=encoding.authority(authority),
        )  # fmt: skip

    # ---- compacting

    @overload
    def on_compact(self, callback: _C) -> _C: ...

    @overload
    def on_compact(self) -> Callable[[_C], _C]: ...

    def on_compact(self, callback: _C | None = None) -> _C | Callable[[_C], _C]:
        """Registers a callback or a strategy, as a decorator or by a call. They run in the order of registration."""
        if callback is None:
            return self.on_compact
        check_callback(callback, awaits=_IS_ASYNC)
        self._callbacks.append(callback)
        return callback

    def _compacting(
        self,
        thread: ThreadKey,
        callbacks: tuple[Callable[..., Any], ...],
        budget: TokenBudget | None,
        *,
        force: bool,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> compacting.Compacting:
        for callback in callbacks:
            check_callback(callback, awaits=_IS_ASYNC)
        chosen = callbacks or tuple(self._callbacks)
        return compacting.Compacting(
            self, self._db, self._counter, thread, chosen, budget, force=force, actor=actor,
            authority=encoding.authority(authority),
        )  # fmt: skip

    def compact(
        self,
        thread_id: str,
        *callbacks: Callable[..., Any],
        budget: TokenBudget | None = None,
        force: bool = False,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> CompactionRun:
        """Runs callbacks, the given or the registered ones, on the thread's view, and commits what they planned.

        With a budget, this only happens if the view is over it or `force` is set, and one run at a time: other calls
        return at once, or wait for that run if their view does not fit the window. `authority` is recorded beside the
        actor: a JSON object of up to 8 KiB that says what allows it, such as a policy and its version, an approval or a
        ticket.
        """
        thread, actor = self._writable_key(thread_id), self._chosen_actor(actor)
        work = self._compacting(thread, callbacks, budget, force=force, actor=actor, authority=authority)
        return compacting.compact(work)

    def plan(
        self,
        thread_id: str,
        *callbacks: Callable[..., Any],
        budget: TokenBudget | None = None,
        force: bool = False,
    ) -> CompactionPlan:
        """Returns what `compact` would write now: runs the callbacks with their summarizers, and writes nothing."""
        return compacting.plan(self._compacting(self._writable_key(thread_id), callbacks, budget, force=force))

    def fit(
        self,
        thread_id: str,
        budget: TokenBudget,
        *callbacks: Callable[..., Any],
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> View:
        """Returns the view, compacted first if it is over the budget. Its `measured` has the size and its source.

        If compacting fails, a view that fits the window is returned anyway; for one that does not fit, `BudgetExceeded`
        is raised.
        """
        # Check on every call, so that a missing actor is noticed at once and not only when the view has grown.
        actor = self._chosen_actor(actor)
        authority = encoding.authority(authority)
        view = compacting.measured_view(self, self._db, self._key(thread_id), budget)
        if not budget.is_over(view):
            return view
        failure: CompactionStoreError | None = None
        try:
            thread = self._writable_key(thread_id)
            work = self._compacting(thread, callbacks, budget, force=False, actor=actor, authority=authority)
            view = (compacting.compact_measured(work, view, budget)).view
        except SpanConflict:
            view = compacting.measured_view(self, self._db, self._key(thread_id), budget)
        except InvalidInput:
            raise
        except CompactionStoreError as error:
            failure = error
        if budget.fits(view):
            return view
        raise BudgetExceeded(
            f"the view takes {size_estimate.describe(view)}, {budget.limit} fit{arguments.about(thread_id)}", view=view
        ) from failure

    def send(
        self,
        thread_id: str,
        call: Callable[[Any], Any],
        budget: TokenBudget,
        *callbacks: Callable[..., Any],
        render: Callable[[View], View | Rendered] | None = None,
        attempts: int = 3,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> Sent:
        """Calls a model with the thread's view. If it refuses the request as too long, compacts harder and calls again.

        `call` is given the request: the view as `fit` returns it, rendered by `render`. Any other error of `call` is
        raised, and so is the last refusal if all `attempts` were refused or nothing more can be compacted. The result
        has the reply and the request, to be appended with `append(thread_id, reply, view=request)`. Refusals are
        recognized by their codes and texts, whichever SDK raises them.
        """
        if not callable(call):
            raise InvalidInput(f"call must be a callable, not {type(call).__name__}")
        if render is not None and not callable(render):
            raise InvalidInput(f"render must be a callable, not {type(render).__name__}")
        if not _IS_ASYNC and is_async(call):
            raise InvalidInput("call must be synchronous on a Store; an async one needs an Store")
        arguments.number(attempts, "attempts", least=1)
        thread, actor = self._writable_key(thread_id), self._chosen_actor(actor)
        view = self.fit(thread_id, budget, *callbacks, actor=actor, authority=authority)

        def compact(harder: TokenBudget) -> Any:
            work = self._compacting(thread, callbacks, harder, force=True, actor=actor, authority=authority)
            return compacting.compact(replace(work, trigger="too long"))

        return drive(sending.send(view, budget, call, render, compact, attempts))

    def revoke(
        self,
        thread_id: str,
        number: int,
        *,
        view: View | None = None,
        reason: str | None = None,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> Compaction:
        """Undoes an active compaction: the view shows again what it showed before. Returns the revocation.

        `view` is the view that the number was taken from: if the thread no longer has that view, the number may be
        another compaction's, and the call is refused (`SpanConflict`).
        """
        thread = self._writable_key(thread_id)
        arguments.number(number, "number", least=1)
        _check_view(view, thread_id)
        arguments.text(reason, "reason")
        return compacting.revoke(
            self._db, thread, number, view, reason=reason, actor=self._chosen_actor(actor),
            authority=encoding.authority(authority),
        )  # fmt: skip

    def adopt(
        self,
        thread_id: str,
        compaction: object,
        *,
        view: View | Rendered | None = None,
        start_seq: int | None = None,
        end_seq: int | None = None,
        reason: str | None = None,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> tuple[Compaction, ...]:
        """Replaces messages in the view by the compaction that a provider made of them. Returns the written records.

        `compaction` is OpenAI's CompactedResponse, or a list of messages: they replace the view that was sent, which is
        `view`, or its part from `start_seq` to `end_seq`. Or it is a reply that has a compaction in it, a Claude Code
        boundary, or an observed record: the thread has their messages already, so nothing replaces those before it. A
        boundary that no import recorded is recorded with a given `start_seq` and `end_seq`, and its `summary_text`. The
        messages are kept unchanged, and a compaction that only the provider can read has no `summary_text`. System
        messages are not replaced. `revoke` undoes it. If the compaction was adopted before, nothing is written.
        """
        thread = self._writable_key(thread_id)
        made = adoption.read(compaction)
        if view is not None:
            if not isinstance(view, View | Rendered):
                raise InvalidInput(f"view must be a View or its rendering for an API, not {type(view).__name__}")
            if view.thread_id != thread_id:
                raise InvalidInput(f"view must be a view of thread {thread_id!r}, not of {view.thread_id!r}")
        elif made.stand_ins is not None and made.record is None:
            raise InvalidInput("view must be given: the view that the provider compacted")
        for seq, what in ((start_seq, "start_seq"), (end_seq, "end_seq")):
            if seq is not None:
                arguments.number(seq, what, least=1)
        if made.record is not None and made.record.thread_id != thread_id:
            raise InvalidInput(f"compaction must be of thread {thread_id!r}, not of {made.record.thread_id!r}")
        arguments.text(reason, "reason")
        return adopting.adopt(
            self, self._db, self._counter, thread, made, view=view, start_seq=start_seq, end_seq=end_seq,
            reason=reason, actor=self._chosen_actor(actor), authority=encoding.authority(authority),
        )  # fmt: skip

    def repair(
        self,
        thread_id: str,
        number: int,
        summarizer: SummaryResult | Summarize,
        *,
        allow: Collection[str] = (),
        checks: Sequence[Check] = (),
        reason: str | None = None,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> CompactionRun:
        """Replaces an active compaction: revokes it and summarizes the same span again, in one run, all or none.

        If the summarizer fails, or a rule or one of `checks` refuses its summary, the compaction stays as it is and the
        attempt is on record. The rules that the compaction was allowed to break, and those in `allow`, may be broken
        again.
        """
        thread = self._writable_key(thread_id)
        arguments.number(number, "number", least=1)
        check_arguments(summarizer, allow, reason, checks, awaits=_IS_ASYNC)
        actor = self._chosen_actor(actor)
        work = self._compacting(thread, (), None, force=False, actor=actor, authority=authority)
        return repairing.repair(work, number, summarizer, reason=reason, allow=allow, checks=checks)

    # ---- rewinding

    def rewind(
        self,
        thread_id: str,
        seq: int,
        *,
        view: View | None = None,
        reason: str | None = None,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> tuple[Compaction, ...]:
        """Ends the view at a seq: hides all messages after it, until the rewind is revoked.

        The messages stay in `replay`, and appends continue with the next seq. A compaction that reaches from before the
        seq to after it is revoked in the same run. Messages that are hidden already stay hidden. Returns the records
        that were written, the rewind last: none if the view ends there already. `view` is the view that the seq was
        taken from: if anything was written to the thread since, the call is refused (`HeadConflict`).
        """
        thread = self._writable_key(thread_id)
        arguments.number(seq, "seq", least=0)
        _check_view(view, thread_id)
        arguments.text(reason, "reason")
        return rewinding.rewind(
            self._db, thread, "rewind", seq, view, hide=False, reason=reason, actor=self._chosen_actor(actor),
            authority=encoding.authority(authority),
        )  # fmt: skip

    def clear(
        self,
        thread_id: str,
        *,
        hide: bool = False,
        reason: str | None = None,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> tuple[Compaction, ...]:
        """Empties the view: hides all messages, until the clear is revoked. Nothing is erased.

        With `hide`, `view`, `thread`, `threads` and `due` do not find the thread until the next append; audits still
        do. Returns the record, or nothing if the view is empty already.
        """
        thread = self._writable_key(thread_id)
        arguments.instance(hide, bool, "hide")
        arguments.text(reason, "reason")
        return rewinding.rewind(
            self._db, thread, "clear", 0, None, hide=hide, reason=reason, actor=self._chosen_actor(actor),
            authority=encoding.authority(authority),
        )  # fmt: skip

    # ---- erasing

    def redact(
        self,
        thread_id: str,
        seqs: int | Iterable[int],
        *,
        reason: str,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
        legal_basis: str | None = None,
        override: str | None = None,
        dry_run: bool = False,
        confirmed: bool = True,
        forks: bool = True,
    ) -> Redaction:
        """Erases messages, and every compaction record that may repeat them, all or none.

        A message's payload, meta and salt are erased, and the bodies of records whose span or inputs reach it, directly
        or through other records, whatever their outcome. Commitments stay, so the thread still verifies. Messages that
        are erased already are left out. A hold or a retention forbids it (`Held`), unless `override` gives a reason to
        ignore them. Reasons are kept forever and should name nobody. With `dry_run` nothing is written, and the result
        is what would be erased; the same errors are raised. `confirmed=False` does the same for an erasure that was
        ordered but is not confirmed yet: a refusal is recorded.

        Forks of the thread hold copies. The copies are erased too, in forks of forks as well, and a hold of a fork
        forbids it. With `forks=False` they are left alone. The result names the forks either way.
        """
        thread = self._writable_key(thread_id)
        looks = erasing.only_looks(dry_run=dry_run, confirmed=confirmed)
        arguments.instance(forks, bool, "forks")
        ranges = erasure.seq_ranges(seqs)
        erasing.check_reasons(reason, override)
        actor = None if dry_run else self._chosen_actor(actor)
        erasure.check_text(legal_basis, "legal_basis", optional=True)
        body = erasure.body(
            reason=reason, legal_basis=legal_basis, override=override, authority=encoding.authority(authority)
        )
        return erasing.redact(
            self._db,
            thread,
            ranges,
            body,
            actor=actor,
            overrides=override is not None,
            dry_run=looks,
            forks=forks,
        )

    def erase(
        self,
        thread_id: str,
        *,
        reason: str,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
        override: str | None = None,
        dry_run: bool = False,
        confirmed: bool = True,
        forks: bool = True,
    ) -> Redaction:
        """Erases a whole thread: every message and record, the metadata and the name.

        A stub stays, which still verifies. Its name is `erased:` and its thread_uid, and nothing can be added to it
        (`ThreadErased`). The old name is free: an append to it makes a new thread. A thread can also be given by the
        name of its stub, even before it is erased: so a call with an unknown outcome can be repeated and reaches no
        other thread. If it is erased already, `pos` is None. `override`, `dry_run`, `confirmed` and `forks` are as in
        `redact`: in forks the copies are erased, and nothing else.
        """
        key = thread_key(self._tenant, thread_id)
        looks = erasing.only_looks(dry_run=dry_run, confirmed=confirmed)
        arguments.instance(forks, bool, "forks")
        erasing.check_reasons(reason, override)
        actor = None if dry_run else self._chosen_actor(actor)
        body = erasure.body(reason=reason, override=override, authority=encoding.authority(authority))
        thread = erasing.find(self._db, key)
        # Use the key: a repeated call must not reach a new thread of the same name.
        key = ThreadKey(thread.thread_uid, self._tenant, thread.thread_id)
        return erasing.erase(
            self._db, key, body, last_pos=thread.last_pos, actor=actor, overrides=override is not None, dry_run=looks,
            forks=forks,
        )  # fmt: skip

    def hold(
        self, thread_id: str, *, reason: str, actor: str | None = None, authority: Mapping[str, Any] | None = None
    ) -> Event:
        """Forbids erasing from a thread until `release`."""
        return self._record_event(thread_id, "hold", reason, actor, authority)

    def release(
        self, thread_id: str, *, reason: str, actor: str | None = None, authority: Mapping[str, Any] | None = None
    ) -> Event:
        """Ends a hold."""
        return self._record_event(thread_id, "release", reason, actor, authority)

    def retain(
        self,
        thread_id: str,
        until: datetime,
        *,
        reason: str,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> Event:
        """Forbids erasing from a thread before a time. The newest retention replaces earlier ones."""
        end = erasure.until_text(until)
        return self._record_event(thread_id, "retention", reason, actor, authority, until=end)

    def review(
        self,
        thread_id: str,
        number: int,
        verdict: Literal["good", "bad", "unsure"],
        *,
        note: str | None = None,
        sample: Mapping[str, Any] | None = None,
        actor: str | None = None,
    ) -> Event:
        """Records a verdict on a compaction record, as an event of the thread. Earlier verdicts stay.

        `sample` says which sample the record was drawn for. Only a login with the role `compaction_store_reviewer` may
        do this, and that role may do nothing else. Notes are kept forever, also when the record is erased: they should
        quote nothing.
        """
        thread = self._writable_key(thread_id)
        arguments.number(number, "number", least=1)
        arguments.instance(verdict, str, "verdict")
        arguments.one_of(verdict, VERDICTS, "verdict")
        erasure.check_text(note, "note", optional=True)
        drawn = encoding.json_object(sample, "sample")
        actor = self._chosen_actor(actor)
        body = erasure.body(number=number, verdict=verdict, note=note, sample=drawn)
        return erasing.record_verdict(self._db, thread, number, body, actor)

    def record_evaluation(
        self,
        thread_id: str,
        document: Mapping[str, Any],
        *,
        reason: str,
        actor: str | None = None,
        authority: Mapping[str, Any] | None = None,
    ) -> Event:
        """Records the result of an evaluation in which this thread was replayed, as `Evaluation.documents` yields it.

        It is kept forever, also if the thread is erased, and must therefore quote nothing.
        """
        checked = encoding.object_of(document, "document")
        return self._record_event(thread_id, "evaluation", reason, actor, authority, evaluation=checked)

    def _record_event(
        self,
        thread_id: str,
        kind: str,
        reason: str,
        actor: str | None,
        authority: Mapping[str, Any] | None,
        *,
        until: str | None = None,
        evaluation: dict[str, Any] | None = None,
    ) -> Event:
        thread = self._writable_key(thread_id)
        erasing.check_reasons(reason)
        actor = self._chosen_actor(actor)
        body = erasure.body(
            until=until, reason=reason, authority=encoding.authority(authority), evaluation=evaluation
        )  # fmt: skip
        return erasing.record_event(self._db, thread, kind, body, actor)


def _check_view(view: object, thread_id: str) -> None:
    if view is not None:
        arguments.instance(view, View, "view")
        assert isinstance(view, View)  # noqa: S101 — checked just now
        if view.thread_id != thread_id:
            raise InvalidInput(f"view must be a view of thread {thread_id!r}, not of {view.thread_id!r}")
