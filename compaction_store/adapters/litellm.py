"""A logger for LiteLLM that stores the calls of a gateway. Each session is a thread of the store.

Calls wait in a queue, and a worker thread stores them, so no request waits for the store. While the store is down, the
queue grows up to a limit. Calls that are dropped at this limit, or that cannot be read or stored, are recorded as gaps.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from compaction_store import arguments
from compaction_store.adapters.litellm_calls import Call, call_of
from compaction_store.adapters.litellm_threads import Sessions
from compaction_store.errors import CompactionStoreError, DatabaseError, InvalidInput, MissingExtra, ThreadDamaged
from compaction_store.models import Payload
from compaction_store.store import Store
from compaction_store.waiting import drive

try:
    from litellm.integrations.custom_logger import CustomLogger
except ImportError as error:
    raise MissingExtra("the logger of LiteLLM", "litellm") from error

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


class _Note(NamedTuple):
    """A message for the logger's own thread, with its idempotency key."""

    key: str
    payload: Payload


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
            raise InvalidInput(f"store must be a Store or a function that opens one, not {type(store).__name__}")
        if thread_id is not None and not callable(thread_id):
            raise InvalidInput(f"thread_id must be a function, not {type(thread_id).__name__}")
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
        self._waiting: deque[Call] = deque()
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

    # ---- methods that LiteLLM calls

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
            left += sum(note.payload.get("calls", 0) for note in self._notes)
        if left:
            _LOG.error("%d calls of LiteLLM were not stored before the logger was closed", left)
        return not left

    def _put(self, kwargs: Any, response: Any, start: Any) -> None:
        """Queues a call. Errors are logged, and never reach the request."""
        at = start if isinstance(start, datetime) else datetime.now(UTC)
        try:
            call = call_of(kwargs, response, at.astimezone(UTC), self._thread_id)
        except Exception as error:  # noqa: BLE001 — a logger must not harm a request
            _LOG.warning("a call of LiteLLM cannot be read: %s", type(error).__name__)
            self._lose(None, type(error).__name__, at.astimezone(UTC))
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

    def _lose(self, session: str | None, reason: str, at: datetime) -> None:
        with self._changed:
            self._note_gap(session, reason, at)
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

    # ---- the worker

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
            raise InvalidInput(f"the function that opens the store must return a Store, not {type(store).__name__}")
        return store

    def _stored(self, store: Store, sessions: Sessions, call: Call | None, tries: int) -> bool:
        with self._changed:
            while self._gaps:
                (session, reason), gap = self._gaps.popitem()
                self._written += 1
                self._notes.append(self._note(f"gap {self._written}", _lost(session, reason, gap)))
        while self._notes:
            self._append(store, self._notes[0])
            self._notes.popleft()
        if call is None:
            return True
        try:
            drive(sessions.store_call(call))
        except Exception as error:
            if isinstance(error, DatabaseError) and not isinstance(error, ThreadDamaged) and tries < _TRIES:
                raise
            # If the store refuses the gap too, the call stays in the queue.
            reason = type(error).__name__
            lost = _lost(call.session, reason, _Gap(1, call.at, call.at))
            self._append(store, self._note(f"call {self._calls} {reason}", lost))
            _LOG.warning("a call of LiteLLM cannot be stored: %s", reason)
        return True

    def _note(self, key: str, what: Payload) -> _Note:
        return _Note(f"{self._run} {key}", what | {"run": self._run})

    def _append(self, store: Store, note: _Note) -> None:
        """Appends a note. Its key prevents a second copy if an earlier attempt succeeded but its answer was lost."""
        store.append(self._log_thread, note.payload, key=note.key, raw=True)

    def _insisted(self, work: Callable[[int], Any]) -> Any:
        """Calls `work` until it succeeds. Returns None if the time for closing the logger runs out first."""
        tries = 0
        while True:
            try:
                return work(tries)
            except Exception as error:  # noqa: BLE001 — the function that opens the store is the application's
                if tries == 0:
                    why = error if isinstance(error, CompactionStoreError) else type(error).__name__
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
