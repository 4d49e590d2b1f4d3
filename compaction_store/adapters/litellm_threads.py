"""Finds the thread of a LiteLLM call, and stores the call in it.

A client sends the whole conversation with each call, so new messages are found by comparison with the thread. Calls of
one session that have no message in common, such as a subagent's calls or a request for a title, get separate threads.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import uuid4

from compaction_store.adapters.litellm_calls import (
    SUMMARY_PREFIX,
    Call,
    after_compaction,
    compared,
    has_compaction,
    is_system,
)
from compaction_store.adapters.states import Threads, items_of, name
from compaction_store.errors import HeadConflict, SpanConflict
from compaction_store.models import Payload
from compaction_store.models.messages import is_erased
from compaction_store.rendering.view import View
from compaction_store.store import Store
from compaction_store.waiting import Work

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
        self._threads = Threads(store, actor, has_compaction, compared)
        self._actor = actor
        self._sessions: OrderedDict[str, list[_Known]] = OrderedDict()
        # Both are for calls without a session. `_asked` maps the digest of a request to its thread, and `_answered`
        # maps the digest of a request with its reply.
        self._asked: OrderedDict[bytes, str] = OrderedDict()
        self._answered: OrderedDict[bytes, str] = OrderedDict()
        self._summaries: OrderedDict[str, Payload] = OrderedDict()

    def store_call(self, call: Call) -> Work[None]:
        """Stores the new messages of a call. A call that is already stored changes nothing.

        If the call only asked for a summary, stores nothing, and remembers its meta and usage.
        """
        if call.summary is not None:
            _remember(self._summaries, call.summary, {**call.meta, **({"usage": call.usage} if call.usage else {})})
            return
        state = after_compaction([json.loads(text) for text in call.messages])
        replies = [json.loads(text) for text in call.replies]
        thread_id = yield from self._thread_of(call, state)
        view = yield from self._threads.view(thread_id)
        meta = {"litellm": {name: value for name, value in call.meta.items() if value is not None}}
        known = [] if view is None else [compared(each.payload) for each in items_of(view) if each.payload is not None]
        if not _begins(known, [*state, *replies] if replies else state):
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

    def _adopt(self, thread_id: str, call: Call, summary: str) -> Work[None]:
        """Records a compaction by LiteLLM. A block with the summary replaces the messages that were not sent."""
        sent = [compared(json.loads(text)) for text in call.sent[1:]]
        while True:
            view: View = yield from self._threads.call("view", thread_id)
            shown = [each for each in view.elements if not any(is_system(m) for m in each.messages)]
            kept = 0
            while kept < len(shown) - 1 and _is_sent(shown[-1 - kept].messages, sent):
                kept += 1
            folded = shown[: len(shown) - kept]
            block = {"role": "assistant", "content": [{"type": "compaction", "content": summary}]}
            about = self._summaries.get(summary, {})
            by = f" by {about['model']}" if about.get("model") else ""
            try:
                if folded:
                    yield from self._threads.call(
                        "adopt", thread_id, [block], view=view, start_seq=folded[0].seq, end_seq=folded[-1].end_seq,
                        reason=f"LiteLLM's compact_20260112{by}", actor=self._actor,
                    )  # fmt: skip
                return
            except (HeadConflict, SpanConflict):
                continue

    # ---- the thread of a call

    def _thread_of(self, call: Call, state: list[Payload]) -> Work[str]:
        if call.session is None:
            return self._thread_of_prefix(call, state)
        names = _names(state)
        known = self._sessions.get(call.session)
        is_fresh = False
        while True:
            if known is None:
                known, is_fresh = (yield from self._read(call.session)), True
                _remember(self._sessions, call.session, known, _SESSIONS)
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
            found.append(_Known(thread_id, _names([i.payload for i in items_of(view) if i.payload is not None])))
        return found

    def _name(self, session: str, place: int) -> str:
        return session if place == 0 and session != self._reserved else f"{session}#{place + 1}"

    def _thread_of_prefix(self, call: Call, state: list[Payload]) -> str:
        digests = list(_digests(call.scope, state))
        if digests and digests[-1] in self._asked:
            return self._asked[digests[-1]]
        for digest in reversed(digests):
            if digest in self._answered:
                # Remove the digest, so that another conversation with the same beginning gets its own thread.
                return self._answered.pop(digest)
        return f"litellm-{uuid4()}"

    def _note(self, call: Call, thread_id: str, state: list[Payload], replies: list[Payload]) -> None:
        if call.session is None:
            asked = list(_digests(call.scope, [*state, *replies]))
            _remember(self._asked, asked[len(state) - 1], thread_id, _CALLS)
            if replies:
                _remember(self._answered, asked[-1], thread_id, _CALLS)
            return
        known = self._sessions[call.session]
        names = _names([*state, *replies])
        known[:] = [_Known(thread_id, names) if each.thread_id == thread_id else each for each in known]


def _summary(call: Call, known: OrderedDict[str, Payload]) -> str | None:
    """Returns the summary that LiteLLM itself sent in place of messages; None if there is no such summary."""
    if not call.sent:
        return None
    text: str = json.loads(call.sent[0])["content"].removeprefix(SUMMARY_PREFIX)
    blocks = [
        block.get("content") for message in map(json.loads, call.messages) if has_compaction(message)
        for block in message["content"] if isinstance(block, dict) and block.get("type") == "compaction"
    ]  # fmt: skip
    if any(isinstance(each, str) and each and text.startswith(each) for each in blocks):
        return None
    written = [each for each in known if text == each or text.startswith(f"{each}\n\n")]
    return max(written, key=len, default=text)


def _is_sent(messages: tuple[Payload, ...], sent: list[Payload]) -> bool:
    return all(not is_erased(each) and compared(each) in sent for each in messages)


def _begins(known: list[Payload], state: list[Payload]) -> bool:
    """Returns whether a view begins with the messages of a call. If so, the call is already stored."""
    return bool(state) and known[: len(state)] == list(map(compared, state))


def _names(messages: list[Payload]) -> frozenset[str]:
    found = (name(compared(each)) for each in messages if not is_system(each))
    return frozenset(hashlib.sha256(each.encode(errors="surrogatepass")).hexdigest() for each in found)


def _digests(scope: str, messages: list[Payload]) -> Iterator[bytes]:
    """Yields a digest of the first message, of the first two messages, and so on."""
    digest = hashlib.sha256(scope.encode(errors="surrogatepass"))
    for each in messages:
        digest.update(name(compared(each)).encode(errors="surrogatepass") + b"\n")
        yield digest.copy().digest()


def _remember(cache: OrderedDict[Any, Any], key: Any, value: Any, most: int = _SUMMARIES) -> None:
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > most:
        cache.popitem(last=False)
