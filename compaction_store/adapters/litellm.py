"""A logger for LiteLLM that stores the calls of a gateway. Each session is a thread of the store.

Calls wait in a queue, and a worker thread stores them, so no request waits for the store. While the store is down, the
queue grows up to a limit. Calls that are dropped at this limit, or that cannot be read or stored, are recorded as gaps.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from compaction_store import arguments, errors
from compaction_store.adapters import litellm_calls
from compaction_store.adapters.common import Threads, items_of, name, payloads, remember
from compaction_store.messages.tool_pairs import is_system
from compaction_store.models import Payload
from compaction_store.models.messages import is_erased
from compaction_store.rendering.view import View
from compaction_store.store import Store
from compaction_store.waiting import Work, drive

try:
    from litellm.integrations.custom_logger import CustomLogger
except ImportError as error:
    raise errors.MissingExtra("the logger of LiteLLM", "litellm") from error

_LOG = logging.getLogger(__name__)
# Seconds to wait after each failed attempt to reach the store. The last number repeats.
_PAUSES = (0.1, 0.5, 1, 2, 5)
# A call that fails with a database error is retried this many times, and is then recorded as a gap. If the database
# accepts the gap, the call was at fault.
_TRIES = 5


class _Gap(NamedTuple):
    """A gap: calls of one session, or of unknown sessions, that were not stored, all for the same reason."""

    calls: int
    first_at: datetime
    last_at: datetime


# A message for the logger's own thread, with its idempotency key.
_Note = tuple[str, Payload]


class StoreLogger(CustomLogger):  # type: ignore[misc]  # the framework is an extra
    """A logger that stores the chat calls of LiteLLM's SDK or proxy, each in the thread of its session.

    `store` is a `Store`, or a function that opens one. The function is called again until it succeeds, so the gateway
    can start while the store is down. `thread_id` gets LiteLLM's `kwargs` and returns the name of the call's session,
    or None. By default, it is the session that the caller gave. At most `most_calls` calls, of at most `most_bytes`
    bytes together, wait for the store. Starts, stops and gaps of the logger are recorded in the thread `log_thread`.
    `actor` is recorded with every change of a view.
    """

    def __init__(
        self,
        store: Store | Callable[[], Store],
        *,
        thread_id: Callable[[dict[str, Any]], str | None] | None = None,
        most_calls: int = 10_000,
        most_bytes: int = 256 * 1024 * 1024,
        log_thread: str = "litellm",
        actor: str | None = None,
    ) -> None:
        if not isinstance(store, Store) and not callable(store):
            raise errors.InvalidInput(f"store must be a Store or a function that opens one, not {type(store).__name__}")
        if thread_id is not None and not callable(thread_id):
            raise errors.InvalidInput(f"thread_id must be a function, not {type(thread_id).__name__}")
        arguments.number(most_calls, "most_calls", least=1)
        arguments.number(most_bytes, "most_bytes", least=1)
        arguments.check_thread_id(log_thread)
        arguments.optional_name(actor, "actor")
        super().__init__()
        self._open: Callable[[], Store] = (lambda: store) if isinstance(store, Store) else store
        self._thread_id = thread_id
        self._most_calls, self._most_bytes = most_calls, most_bytes
        self._log_thread, self._actor = log_thread, actor
        self._run = str(uuid4())
        self._waiting: deque[litellm_calls.Call] = deque()
        self._bytes = 0
        self._gaps: dict[tuple[str | None, str], _Gap] = {}
        self._notes: deque[_Note] = deque()
        # The numbers of calls and gaps that the worker has handled. They make the idempotency keys of notes unique.
        self._calls = self._written = 0
        self._changed = threading.Condition()
        self._busy = self._closing = False
        self._deadline = float("inf")
        self._worker: threading.Thread | None = None
        atexit.register(self.close)

    # LiteLLM passes these arguments by name in one place and by position in another: keep their names and order.
    def log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:  # noqa: ARG002
        self._put(kwargs, response_obj, start_time)

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        self.log_success_event(kwargs, response_obj, start_time, end_time)

    def log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:  # noqa: ARG002
        self._put(kwargs, None, start_time)

    async def async_log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        self.log_failure_event(kwargs, response_obj, start_time, end_time)

    # ---- the queue

    def flush(self, timeout: float = 10.0) -> bool:
        """Waits until every queued call is stored or recorded as a gap. Returns False if the time runs out."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._waiting or self._gaps or self._notes or self._busy), timeout
            )

    def close(self, timeout: float = 10.0) -> bool:
        """Stores the queued calls and ends the worker. Returns whether no call is left. Also runs when Python exits."""
        with self._changed:
            self._closing, self._deadline = True, time.monotonic() + timeout
            self._changed.notify_all()
            worker = self._worker
        if worker is not None:
            worker.join(timeout + 1)
        elif self._waiting or self._gaps:
            # The first call came while Python was exiting, when no thread can be started, so store it here.
            self._work()
        with self._changed:
            left = len(self._waiting) + sum(gap.calls for gap in self._gaps.values())
            left += sum(payload.get("calls", 0) for _, payload in self._notes)
        if left:
            _LOG.error("%d calls of LiteLLM were not stored before the logger was closed", left)
        return not left

    def _put(self, kwargs: Any, response: Any, start: Any) -> None:
        """Queues a call. Errors are logged, and never reach the request."""
        at = start if isinstance(start, datetime) else datetime.now(UTC)
        try:
            call = litellm_calls.call_of(kwargs, response, at.astimezone(UTC), self._thread_id)
        except Exception as error:  # noqa: BLE001 — a logger must not harm a request
            _LOG.warning("a call of LiteLLM cannot be read: %s", type(error).__name__)
            with self._changed:
                self._note_gap(None, type(error).__name__, at.astimezone(UTC))
                self._wake()
            return
        if call is None:
            return
        with self._changed:
            if len(self._waiting) >= self._most_calls or self._bytes + call.size > self._most_bytes:
                self._note_gap(call.session, "too many calls were waiting", call.at)
            else:
                self._waiting.append(call)
                self._bytes += call.size
            self._wake()

    def _note_gap(self, session: str | None, reason: str, at: datetime) -> None:
        if (session, reason) not in self._gaps and len(self._gaps) >= self._most_calls:
            session = None
        gap = self._gaps.get((session, reason), _Gap(0, at, at))
        self._gaps[session, reason] = _Gap(gap.calls + 1, min(gap.first_at, at), max(gap.last_at, at))

    def _wake(self) -> None:
        if self._worker is None and not self._closing:
            worker = threading.Thread(target=self._work, name="compaction-store LiteLLM", daemon=True)
            with suppress(RuntimeError):
                worker.start()
                self._worker = worker
        elif self._closing and not (self._worker and self._worker.is_alive()):
            _LOG.error("a call of LiteLLM is not stored: the logger is closed")
        self._changed.notify_all()

    def _work(self) -> None:
        store = self._insisted(lambda _tries: self._opened())
        if store is None:
            return
        sessions = Sessions(store, self._actor, self._log_thread)
        self._notes.append(self._note("started", {"type": "started", "at": _now()}))
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._gaps or self._notes or self._closing)
                call = self._waiting[0] if self._waiting else None
                if call is None and not self._gaps and not self._notes:
                    break
                self._busy = True
            done = self._insisted(partial(self._stored, store, sessions, call))
            with self._changed:
                self._busy = False
                if done is None:
                    return
                if call is not None:
                    self._waiting.popleft()
                    self._bytes -= call.size
                    self._calls += 1
                self._changed.notify_all()
        self._notes.append(self._note("stopped", {"type": "stopped", "at": _now()}))
        self._insisted(lambda _tries: self._stored(store, sessions, None, 0))

    def _opened(self) -> Store:
        store = self._open()
        if not isinstance(store, Store):
            raise errors.InvalidInput(
                f"the function that opens the store must return a Store, not {type(store).__name__}"
            )
        return store

    def _stored(self, store: Store, sessions: Sessions, call: litellm_calls.Call | None, tries: int) -> bool:
        with self._changed:
            while self._gaps:
                which, gap = self._gaps.popitem()
                self._written += 1
                self._notes.append(self._note(f"gap {self._written}", _lost(*which, gap)))
        while self._notes:
            self._append(store, self._notes[0])
            self._notes.popleft()
        if call is None:
            return True
        try:
            drive(sessions.store_call(call))
        except Exception as error:
            may_pass = isinstance(error, errors.DatabaseError) and not isinstance(error, errors.ThreadDamaged)
            if may_pass and tries < _TRIES:
                raise
            # If the store refuses the gap too, the call stays in the queue.
            reason = type(error).__name__
            lost = _lost(call.session, reason, _Gap(1, call.at, call.at))
            self._append(store, self._note(f"call {self._calls} {reason}", lost))
            _LOG.warning("a call of LiteLLM cannot be stored: %s", reason)
        return True

    def _note(self, key: str, what: Payload) -> _Note:
        return f"{self._run} {key}", what | {"run": self._run}

    def _append(self, store: Store, note: _Note) -> None:
        """Appends a note. Its key prevents a second copy if an earlier attempt succeeded but its answer was lost."""
        store.append(self._log_thread, note[1], key=note[0], raw=True)

    def _insisted(self, work: Callable[[int], Any]) -> Any:
        """Calls `work` until it succeeds. Returns None if the time for closing the logger runs out first."""
        tries = 0
        while True:
            try:
                return work(tries)
            except Exception as error:  # noqa: BLE001 — the function that opens the store is the application's
                if tries == 0:
                    why = error if isinstance(error, errors.CompactionStoreError) else type(error).__name__
                    _LOG.warning("the store failed, and calls of LiteLLM wait: %s", why)
            pause = _PAUSES[min(tries, len(_PAUSES) - 1)]
            tries += 1
            with self._changed:
                if not self._closing:
                    self._changed.wait_for(lambda: self._closing, pause)
                elif time.monotonic() + pause > self._deadline:
                    return None
                else:
                    self._changed.wait(pause)


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _lost(session: str | None, reason: str, gap: _Gap) -> Payload:
    return {
        "type": "gap", "session": session, "reason": reason, "calls": gap.calls,
        "first_at": gap.first_at.isoformat(), "last_at": gap.last_at.isoformat(),
    }  # fmt: skip


# ---- the thread of a call


# The sizes of the caches: sessions, calls without a session, and summaries.
_SESSIONS, _CALLS, _SUMMARIES = 1000, 20_000, 100
# A session has at most this many threads. After that, a new conversation continues the first thread.
_MOST = 50


class _Known(NamedTuple):
    """A thread of a session, and the digests of its messages."""

    thread_id: str
    names: frozenset[str]


class Sessions:
    """A writer of calls that finds the thread of each call. It never writes to the thread `reserved`."""

    def __init__(self, store: Store, actor: str | None, reserved: str) -> None:
        self._reserved = reserved
        self._threads = Threads(store, actor, litellm_calls.has_compaction, litellm_calls.compared)
        self._actor = actor
        self._sessions: OrderedDict[str, list[_Known]] = OrderedDict()
        # Both are for calls without a session. `_asked` maps the digest of a request to its thread, and `_answered`
        # maps the digest of a request with its reply.
        self._asked: OrderedDict[bytes, str] = OrderedDict()
        self._answered: OrderedDict[bytes, str] = OrderedDict()
        self._summaries: OrderedDict[str, Payload] = OrderedDict()

    def store_call(self, call: litellm_calls.Call) -> Work[None]:
        """Stores the new messages of a call. A call that is already stored changes nothing.

        If the call only asked for a summary, stores nothing, and remembers its meta and usage.
        """
        if call.summary is not None:
            about = {**call.meta, **({"usage": call.usage} if call.usage else {})}
            remember(self._summaries, call.summary, about, _SUMMARIES)
            return
        state = litellm_calls.after_compaction([json.loads(text) for text in call.messages])
        replies = [json.loads(text) for text in call.replies]
        thread_id = yield from self._thread_of(call, state)
        view = yield from self._threads.view(thread_id)
        meta = {"litellm": {name: value for name, value in call.meta.items() if value is not None}}
        known = [] if view is None else list(map(litellm_calls.compared, payloads(items_of(view))))
        said = [*state, *replies]
        # If the view begins with the messages of the call, the call is already stored.
        if not said or known[: len(said)] != list(map(litellm_calls.compared, said)):
            reason = f"request {call.meta.get('call_id')}"
            yield from self._threads.follow(thread_id, state, reason, meta if not replies else None)
            summary = _summary(call, self._summaries)
            if summary is not None:
                yield from self._adopt(thread_id, call, summary)
            if replies:
                usage = {"usage": call.usage} if call.usage else {}
                metas = [{**meta, **(usage if n == 0 else {})} for n, _ in enumerate(replies)]
                view = yield from self._threads.view(thread_id)
                done = yield from self._threads.call("append", thread_id, replies, view=view, meta=metas, raw=True)
                if summary is None:
                    self._threads.remember(thread_id, done.head, [*state, *replies])
        self._note(call, thread_id, state, replies)

    def _adopt(self, thread_id: str, call: litellm_calls.Call, summary: str) -> Work[None]:
        """Records a compaction by LiteLLM. A block with the summary replaces the messages that were not sent."""
        sent = [litellm_calls.compared(json.loads(text)) for text in call.sent[1:]]
        while True:
            view: View = yield from self._threads.call("view", thread_id)
            shown = [each for each in view.elements if not any(is_system(m) for m in each.messages)]
            kept = 0
            while kept < len(shown) - 1 and all(
                not is_erased(each) and litellm_calls.compared(each) in sent for each in shown[-1 - kept].messages
            ):
                kept += 1
            folded = shown[: len(shown) - kept]
            block = {"role": "assistant", "content": [{"type": "compaction", "content": summary}]}
            about = self._summaries.get(summary, {})
            by = f" by {about['model']}" if about.get("model") else ""
            with suppress(errors.HeadConflict, errors.SpanConflict):
                if folded:
                    yield from self._threads.call(
                        "adopt", thread_id, [block], view=view, start_seq=folded[0].seq, end_seq=folded[-1].end_seq,
                        reason=f"LiteLLM's compact_20260112{by}", actor=self._actor,
                    )  # fmt: skip
                return

    def _thread_of(self, call: litellm_calls.Call, state: list[Payload]) -> Work[str]:
        if call.session is None:
            return self._thread_of_prefix(call, state)
        names = _names(state)
        known = self._sessions.get(call.session)
        is_fresh = False
        while True:
            if known is None:
                known, is_fresh = (yield from self._read(call.session)), True
                remember(self._sessions, call.session, known, _SESSIONS)
            common = [len(each.names & names) for each in known]
            if known and (max(common) > 0 or not names or len(known) == _MOST):
                return known[common.index(max(common))].thread_id
            if is_fresh:
                break
            # Another process of the gateway may have stored a conversation of this session.
            known = None
        thread_id = self._name(call.session, len(known))
        known.append(_Known(thread_id, names))
        return thread_id

    def _read(self, session: str) -> Work[list[_Known]]:
        found: list[_Known] = []
        while len(found) < _MOST:
            thread_id = self._name(session, len(found))
            view = yield from self._threads.view(thread_id)
            if view is None:
                break
            found.append(_Known(thread_id, _names(payloads(items_of(view)))))
        return found

    def _name(self, session: str, place: int) -> str:
        return session if place == 0 and session != self._reserved else f"{session}#{place + 1}"

    def _thread_of_prefix(self, call: litellm_calls.Call, state: list[Payload]) -> str:
        digests = list(_digests(call.scope, state))
        if digests and digests[-1] in self._asked:
            return self._asked[digests[-1]]
        for digest in reversed(digests):
            if digest in self._answered:
                # Remove the digest, so that another conversation with the same beginning gets its own thread.
                return self._answered.pop(digest)
        return f"litellm-{uuid4()}"

    def _note(self, call: litellm_calls.Call, thread_id: str, state: list[Payload], replies: list[Payload]) -> None:
        if call.session is None:
            asked = list(_digests(call.scope, [*state, *replies]))
            remember(self._asked, asked[len(state) - 1], thread_id, _CALLS)
            if replies:
                remember(self._answered, asked[-1], thread_id, _CALLS)
            return
        known = self._sessions[call.session]
        names = _names([*state, *replies])
        known[:] = [_Known(thread_id, names) if each.thread_id == thread_id else each for each in known]


def _summary(call: litellm_calls.Call, known: OrderedDict[str, Payload]) -> str | None:
    """Returns the summary that LiteLLM itself sent in place of messages; None if there is no such summary."""
    if not call.sent:
        return None
    text: str = json.loads(call.sent[0])["content"].removeprefix(litellm_calls.SUMMARY_PREFIX)
    blocks = [
        block.get("content") for message in map(json.loads, call.messages) if litellm_calls.has_compaction(message)
        for block in message["content"] if isinstance(block, dict) and block.get("type") == "compaction"
    ]  # fmt: skip
    if any(isinstance(each, str) and each and text.startswith(each) for each in blocks):
        return None
    return max((each for each in known if text == each or text.startswith(f"{each}\n\n")), key=len, default=text)


def _names(messages: list[Payload]) -> frozenset[str]:
    found = (name(litellm_calls.compared(each)) for each in messages if not is_system(each))
    return frozenset(hashlib.sha256(each.encode(errors="surrogatepass")).hexdigest() for each in found)


def _digests(scope: str, messages: list[Payload]) -> Iterator[bytes]:
    """Yields a digest of the first message, of the first two messages, and so on."""
    digest = hashlib.sha256(scope.encode(errors="surrogatepass"))
    for each in messages:
        digest.update(name(litellm_calls.compared(each)).encode(errors="surrogatepass") + b"\n")
        yield digest.copy().digest()
