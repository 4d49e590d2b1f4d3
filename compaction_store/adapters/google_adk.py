"""A session service for Google's Agent Development Kit (ADK) that keeps each session as a thread of the store.

A compaction by the ADK becomes a compaction record for the events that it covers. The state of each app and of each
user is a separate thread. Changes of the state are appended, so sessions that change different keys at the same time do
not overwrite each other's changes.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from compaction_store import arguments
from compaction_store.adapters.common import Calls, joined_name
from compaction_store.errors import Conflict, MissingExtra, SequenceConflict
from compaction_store.models import Payload, Thread
from compaction_store.store import AsyncStore, Store
from compaction_store.store.threads import refuse_unknown

try:
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events.event import Event
    from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
    from google.adk.sessions.session import Session
    from google.adk.sessions.state import State
    from pydantic_core import to_jsonable_python
except ImportError as error:
    raise MissingExtra("the session service of Google's ADK", "google-adk") from error

OnDelete = Literal["clear", "erase"]
_STARTED, _STATE = "session", "state"
_FOLD_STATE = 200


class _StoredSession(NamedTuple):
    """A stored session: its first message, and its events with their seqs, which are 0 for those in records."""

    started: Payload
    events: list[tuple[int, Payload]]

    @property
    def updated(self) -> float:
        return float(self.events[-1][1]["timestamp"] if self.events else self.started["timestamp"])

    @property
    def state(self) -> Payload:
        found = dict(self.started["state"])
        for _, event in self.events:
            found.update(_scoped(event["actions"]["stateDelta"])[2])
        return found


class StoreSessionService(BaseSessionService):  # type: ignore[misc]  # the framework is an extra
    """A session service that keeps sessions as threads.

    The function `thread_id` returns the name of a session's thread. A `Store` is called in a worker thread. An
    `AsyncStore` must be used on the event loop on which it was opened. `on_delete` decides whether `delete_session`
    hides the session or erases its thread for good. `actor` is recorded with compactions and deletions.
    """

    def __init__(self, store: Store | AsyncStore, *, on_delete: OnDelete = "clear", actor: str | None = None) -> None:
        arguments.one_of(on_delete, ("clear", "erase"), "on_delete")
        arguments.optional_name(actor, "actor")
        self._call = Calls(store)
        self.store = store
        self._on_delete = on_delete
        self._actor = actor

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        session_id = session_id or str(uuid.uuid4())
        name = thread_id(app_name, user_id, session_id)
        taken = AlreadyExistsError(f"Session with id {session_id} already exists.")
        now = Event(author="user").timestamp
        app, user, own = _scoped(to_jsonable_python(state or {}, serialize_unknown=True))
        started = {"type": _STARTED, "state": own, "timestamp": now}
        found = await self._call.found("thread", name, hidden=True)
        if found is not None and not found.hidden:
            raise taken
        try:
            await self._call("append", name, started, expected_seq=0 if found is None else found.last_seq, raw=True)
        except SequenceConflict:
            raise taken from None
        await self._change_states(app_name, user_id, app, user)
        merged = _merge(*await asyncio.gather(self._state(app_name), self._state(app_name, user_id)), own)
        return Session(app_name=app_name, user_id=user_id, id=session_id, state=merged, last_update_time=now)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Returns the session, including events that a compaction covers, because the ADK itself skips those."""
        thread = await self._call.found("thread", thread_id(app_name, user_id, session_id))
        if thread is None:
            return None
        states = self._state(app_name), self._state(app_name, user_id)
        stored, app, user = await asyncio.gather(self._stored(thread), *states)
        if stored is None:
            return None
        events = [payload for _, payload in stored.events]
        if config and config.after_timestamp:
            events = [event for event in events if event["timestamp"] >= config.after_timestamp]
        if config and config.num_recent_events is not None:
            events = events[max(len(events) - config.num_recent_events, 0) :]
        return Session(
            app_name=app_name, user_id=user_id, id=session_id, last_update_time=stored.updated,
            state=_merge(app, user, stored.state),
            events=[Event.model_validate({name: event[name] for name in event if name != "role"}) for event in events],
        )  # fmt: skip

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Returns the sessions of an app, or of one user, without their events, in the order of their last update."""
        found = []
        prefix = _name((app_name,) if user_id is None else (app_name, user_id))[:-1] + ", "
        for thread in await self._call.listed("threads", prefix=prefix):
            names = json.loads(thread.thread_id)
            stored = await self._stored(thread) if names[2:] and not thread.erased_pos else None
            if stored is not None:
                found.append((stored.updated, names, stored.state))
        found.sort(key=lambda each: each[:2])
        users = {names[1]: await self._state(app_name, names[1]) for _, names, _ in found}
        app = await self._state(app_name)
        sessions = [
            Session(
                app_name=app_name, user_id=names[1], id=names[2], last_update_time=updated,
                state=_merge(app, users[names[1]], own),
            )
            for updated, names, own in found
        ]  # fmt: skip
        return ListSessionsResponse(sessions=sessions)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Hides the session, or erases its thread, as `on_delete` says. The state of the user and of the app stays."""
        name = thread_id(app_name, user_id, session_id)
        await self._call.delete(name, self._on_delete, "delete_session", self._actor)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        return await self._state(app_name, user_id)

    async def append_event(self, session: Session, event: Event) -> Event:
        """Appends an event. If another process has written to the session meanwhile, both events are stored."""
        if event.partial:
            return event
        name = thread_id(session.app_name, session.user_id, session.id)
        payload = _payload(event)
        app, user, _ = _scoped(payload["actions"]["stateDelta"])
        if (await self._call.found("thread", name)) is None:
            raise SessionNotFoundError(f"Session {session.id} not found.")
        await self._change_states(session.app_name, session.user_id, app, user)
        if event.actions.compaction is None or not await self._compact(name, payload):
            await self._call("append", name, payload, raw=True)
        session.last_update_time = event.timestamp
        return await super().append_event(session, event)

    async def _compact(self, name: str, payload: Payload) -> bool:
        """Writes a compaction record for an ADK compaction. Returns False if the view has nothing to replace."""
        compaction = payload["actions"]["compaction"]
        while True:
            thread = await self._call.found("thread", name)
            stored = None if thread is None else await self._stored(thread)
            if stored is None:
                return False
            view = await self._call("view", name)
            first, last = compaction["startTimestamp"], compaction["endTimestamp"]
            seqs = {seq for seq, event in stored.events if first <= event["timestamp"] <= last}
            # Keep an earlier compaction that this one covers only in part. The ADK's requests keep it too.
            begin, stop = _longest([set(range(element.seq, element.end_seq + 1)) <= seqs for element in view.elements])
            if begin == stop:
                return False
            start, end = view.elements[begin].seq, view.elements[stop - 1].end_seq
            # If another writer came first, read again.
            with suppress(Conflict):
                await self._call(
                    "adopt", name, [payload], view=view, start_seq=start, end_seq=end, reason="EventCompaction",
                    actor=self._actor,
                )  # fmt: skip
                return True

    async def _stored(self, thread: Thread) -> _StoredSession | None:
        """Reads a session from its thread. Messages before the last deletion are ignored."""
        refuse_unknown(thread)
        name, after = thread.thread_id, thread.hidden_seq or 0
        messages = await self._call.listed("replay", name, after=after)
        if not messages:
            return None
        started = messages[0].payload
        if started is None or started.get("type") != _STARTED:
            # The session's first message was erased, or the session was deleted while an event was appended.
            started = {"type": _STARTED, "state": {}, "timestamp": messages[0].created_at.timestamp()}
        events = [(m.pos, m.seq, m.payload) for m in messages if m.payload and "actions" in m.payload]
        if thread.last_number:
            for record in await self._call.listed("compactions", name, kind="adoption", outcome="applied"):
                if record.revoked_by is None and (record.start_seq or 0) > after:
                    events += [(record.pos, 0, each) for each in record.replacement or () if each and "actions" in each]
            events.sort(key=lambda each: each[0])
        return _StoredSession(started, [(seq, payload) for _, seq, payload in events])

    async def _change_states(self, app_name: str, user_id: str, app: Payload, user: Payload) -> None:
        for names, change in (((app_name,), app), ((app_name, user_id), user)):
            if change:
                await self._call("append", _name(names), {"type": _STATE, "state": change}, raw=True)

    async def _state(self, *names: str) -> Payload:
        """Returns the state of an app or a user. If the view has many changes, replaces them by one in the view."""
        view = await self._call.found("view", _name(names))
        state: Payload = {}
        for message in () if view is None else view.messages:
            state.update(message.get("state", {}))
        if view is not None and len(view.elements) > _FOLD_STATE:
            folded = {"type": _STATE, "state": state}
            # A conflict means that another process has changed the view. A later call then replaces the changes.
            with suppress(Conflict):
                await self._call("adopt", _name(names), [folded], view=view, reason="state", actor=self._actor)
        return state


def thread_id(app_name: str, user_id: str, session_id: str) -> str:
    """Returns the name of a session's thread."""
    return _name((app_name, user_id, session_id))


def _name(names: Sequence[str]) -> str:
    return joined_name(names, "names of apps, users and sessions")


def _scoped(state: Payload) -> tuple[Payload, Payload, Payload]:
    """Splits a state into the app's, the user's and the session's parts. Drops the prefixes and the temporary keys."""
    app, user, temp = State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX
    apps = {key.removeprefix(app): value for key, value in state.items() if key.startswith(app)}
    users = {key.removeprefix(user): value for key, value in state.items() if key.startswith(user)}
    return apps, users, {key: value for key, value in state.items() if not key.startswith((app, user, temp))}


def _merge(app: Payload, user: Payload, own: Payload) -> Payload:
    apps = {State.APP_PREFIX + key: value for key, value in app.items()}
    return own | apps | {State.USER_PREFIX + key: value for key, value in user.items()}


def _payload(event: Event) -> Payload:
    found: Payload = event.model_dump(mode="json", by_alias=True, exclude_none=True)
    delta = found["actions"]["stateDelta"]
    found["actions"]["stateDelta"] = {key: delta[key] for key in delta if not key.startswith(State.TEMP_PREFIX)}
    return {"role": "user" if event.author == "user" else "assistant"} | found


def _longest(flags: Sequence[bool]) -> tuple[int, int]:
    """Returns the start and the end of the longest run of true flags."""
    best = start = end = 0
    for place, flag in enumerate(flags, 1):
        best = best + 1 if flag else 0
        if best > end - start:
            start, end = place - best, place
    return start, end
