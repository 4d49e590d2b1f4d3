"""A session store for the Claude Agent SDK that keeps each transcript as a thread of the store.

A line with a user or assistant message is stored as that message; the message's field `line` holds the rest of the
line. Any other line is stored whole in the field `line`. A compact boundary is the line that Claude Code writes when it
compacts; it becomes a compaction record for the messages that were replaced.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from compaction_store import arguments
from compaction_store.adapters.common import Calls, batches, joined_name, remember
from compaction_store.errors import Conflict, HeadConflict, MissingExtra, SequenceConflict
from compaction_store.importers.claude_code import preserved_by, summary_in
from compaction_store.models import Payload, Thread
from compaction_store.store import AsyncStore, Store
from compaction_store.store.threads import refuse_unknown

try:
    from claude_agent_sdk import SessionStore, fold_session_summary
except ImportError as error:
    raise MissingExtra("the session store of the Claude Agent SDK", "claude-agent-sdk") from error

OnDelete = Literal["hide", "erase"]
_BOUNDARY = "provider:compact_boundary"
# The sizes of two caches: the states of transcripts, and the summaries that the SDK derives.
_TRANSCRIPTS, _SUMMARIES = 64, 1000


class _KnownLines(NamedTuple):
    """The cached state of a thread.

    `seqs` maps the uuid of a line to its seq. `boundaries` maps the seq of a compact boundary to its line, until its
    compaction record is written or proves unnecessary.
    """

    thread: Thread | None
    last_seq: int
    head: bytes | None
    seqs: dict[str, int]
    boundaries: dict[int, Payload]
    #: Maps the seq of a boundary to the first message line after the boundary, which may be the summary.
    following: dict[int, Payload]


class StoreSessions(SessionStore):  # type: ignore[misc]  # the SDK is an extra
    """A session store that keeps transcripts as threads of the store's tenant.

    The function `thread_id` returns the name of a transcript's thread. A `Store` is called in a worker thread, so it
    works on any event loop. An `AsyncStore` must be used on the event loop on which it was opened. `on_delete` decides
    whether `delete` hides the transcript or erases its thread for good. `actor` is recorded with compactions and
    deletions.
    """

    def __init__(self, store: Store | AsyncStore, *, on_delete: OnDelete = "hide", actor: str | None = None) -> None:
        arguments.one_of(on_delete, ("hide", "erase"), "on_delete")
        arguments.optional_name(actor, "actor")
        self._call = Calls(store)
        self.store = store
        self._on_delete = on_delete
        self._actor = actor
        self._known: OrderedDict[str, _KnownLines] = OrderedDict()
        self._summaries: OrderedDict[str, tuple[bytes, Any]] = OrderedDict()

    async def append(self, key: Any, entries: list[Any]) -> None:
        """Appends lines. A line is skipped if the transcript has its uuid, so lines with a uuid may be sent again."""
        name = thread_id(**key)
        if not entries:
            return
        known = self._known.get(name) or await self._read(name)
        while True:
            new = _unknown(entries, known.seqs)
            try:
                for part in batches([_payload(entry) for entry in new]):
                    known = await self._append(name, known, new[part])
                break
            except (HeadConflict, SequenceConflict):
                known = await self._read(name)
        remember(self._known, name, await self._compact(name, known), _TRANSCRIPTS)

    async def load(self, key: Any) -> list[Any] | None:
        """Returns all lines, including lines that a compaction replaced, because Claude Code itself skips those."""
        return await self._lines(thread_id(**key))

    async def list_sessions(self, project_key: str) -> list[Any]:
        found = await self._threads(project_key)
        return [{"session_id": names[1], "mtime": _mtime(thread)} for names, thread in found if not names[2:]]

    async def list_session_summaries(self, project_key: str) -> list[Any]:
        """Returns the summaries that the SDK derives from the lines.

        The summaries are not stored, because they repeat parts of messages and an erasure would miss them. They are
        cached, and a transcript is read again if it has changed or its summary has left the cache.
        """
        found = []
        for names, thread in await self._threads(project_key):
            if names[2:]:
                continue
            head, data = self._summaries.get(thread.thread_id, (None, None))
            if head != thread.head:
                lines = await self._lines(thread.thread_id) or []
                data = fold_session_summary(None, {"project_key": project_key, "session_id": names[1]}, lines)["data"]
                remember(self._summaries, thread.thread_id, (thread.head, data), _SUMMARIES)
            found.append({"session_id": names[1], "mtime": _mtime(thread), "data": data})
        return found

    async def delete(self, key: Any) -> None:
        """Hides or erases a transcript, as `on_delete` says. A session is deleted with its subagents' transcripts."""
        names = [thread_id(**key)]
        if not key.get("subpath"):
            names += [thread.thread_id for _, thread in await self._threads(key["project_key"], key["session_id"])]
        # Delete the session last: if the process ends earlier, the session is still listed and can be deleted again.
        for each in reversed(names):
            self._known.pop(each, None)
            self._summaries.pop(each, None)
            await self._call.delete(each, self._on_delete, "delete", self._actor)

    async def list_subkeys(self, key: Any) -> list[str]:
        return [names[2] for names, _ in await self._threads(key["project_key"], key["session_id"])]

    async def _append(self, name: str, known: _KnownLines, entries: list[Any]) -> _KnownLines:
        expected: Payload = {"expected_seq": 0} if known.head is None else {"expected_head": known.head}
        done = await self._call("append", name, [_payload(entry) for entry in entries], raw=True, **expected)
        for message, entry in zip(done, entries, strict=True):
            _note(known, message.seq, entry)
        known = known._replace(head=done.head, last_seq=done[-1].seq)
        remember(self._known, name, known, _TRANSCRIPTS)
        return known

    async def _compact(self, name: str, known: _KnownLines) -> _KnownLines:
        """Writes a record for each boundary that a message line follows, if the view has what it replaced."""
        for seq, line in [(seq, line) for seq, line in known.boundaries.items() if seq in known.following]:
            while True:
                view = await self._call("view", name)
                last = min([seq, *(known.seqs[each] for each in preserved_by(line) if each in known.seqs)])
                folded = [element for element in view.elements if element.end_seq < last]
                summary = summary_in(known.following[seq])
                with suppress(Conflict):
                    if folded:
                        await self._call(
                            "adopt", name, line | ({} if summary is None else {"summary_text": summary}), view=view,
                            start_seq=folded[0].seq, end_seq=folded[-1].end_seq, actor=self._actor,
                        )  # fmt: skip
                    break
            known.boundaries.pop(seq, None)
            known.following.pop(seq, None)
            thread = await self._call("thread", name, hidden=True)
            # If another writer has appended lines, keep the old head: the next append then fails with a conflict, after
            # which those lines are read.
            known = known._replace(head=thread.head if thread.last_seq == known.last_seq else known.head)
        return known

    async def _read(self, name: str) -> _KnownLines:
        """Returns the state of a thread. If a valid state is cached, reads only the lines that this state lacks."""
        thread = await self._call.found("thread", name, hidden=True)
        if thread is None:
            return _KnownLines(None, 0, None, {}, {}, {})
        start, old = thread.hidden_seq or 0, self._known.get(name)
        known = _KnownLines(thread, start, thread.head, {}, {}, {})
        if old is not None and old.thread is not None and old.thread.thread_uid == thread.thread_uid:
            known = old if old.last_seq >= start else known
        last = known.last_seq
        for message in await self._call.listed("replay", name, after=last):
            last = message.seq
            if message.payload is not None and "line" in message.payload:
                _note(known, message.seq, _entry(message.payload))
        if last != thread.last_seq:
            # Something was appended between the two reads.
            return await self._read(name)
        if known.boundaries:
            records = await self._call.listed("compactions", name, callback=_BOUNDARY)
            done = {((record.body or {}).get("provider") or {}).get("uuid") for record in records} - {None}
            for seq in [seq for seq, line in known.boundaries.items() if line.get("uuid") in done]:
                del known.boundaries[seq]
        known = known._replace(thread=thread, last_seq=last, head=thread.head)
        remember(self._known, name, known, _TRANSCRIPTS)
        return known

    async def _lines(self, name: str) -> list[Any] | None:
        thread = await self._call.found("thread", name, hidden=True)
        if thread is None:
            return None
        refuse_unknown(thread)
        if thread.hidden:
            return None
        found = await self._call.listed("replay", name, after=thread.hidden_seq or 0)
        return [_entry(each.payload) for each in found if each.payload is not None and "line" in each.payload]

    async def _threads(self, *names: str) -> list[tuple[list[str], Thread]]:
        """Returns the threads of a project or of a session, with the parts of their names."""
        found = await self._call.listed("threads", prefix=_name(names)[:-1] + ", ")
        return [(json.loads(thread.thread_id), thread) for thread in found if not thread.erased_pos]


def thread_id(project_key: str, session_id: str, subpath: str | None = None) -> str:
    """Returns the name of a transcript's thread."""
    return _name((project_key, session_id, subpath) if subpath else (project_key, session_id))


def _name(names: tuple[str, ...]) -> str:
    return joined_name(names, "the parts of a session's key")


def _payload(entry: Payload) -> Payload:
    message = entry.get("message")
    if isinstance(message, dict) and message.get("role") in {"user", "assistant"} and "line" not in message:
        return message | {"line": {name: value for name, value in entry.items() if name != "message"}}
    return {"line": entry}


def _entry(payload: Payload) -> Payload:
    message = {name: value for name, value in payload.items() if name != "line"}
    line: Payload = payload["line"]
    return line | {"message": message} if message else line


def _unknown(entries: list[Any], seqs: dict[str, int]) -> list[Any]:
    seen, found = set(seqs), []
    for entry in entries:
        if isinstance(own := entry.get("uuid"), str):
            if own in seen:
                continue
            seen.add(own)
        found.append(entry)
    return found


def _note(known: _KnownLines, seq: int, entry: Payload) -> None:
    if isinstance(own := entry.get("uuid"), str):
        known.seqs[own] = seq
    if entry.get("type") == "system" and entry.get("subtype") == "compact_boundary":
        known.boundaries[seq] = entry
    elif entry.get("type") in {"user", "assistant"}:
        for boundary in known.boundaries:
            known.following.setdefault(boundary, entry)


def _mtime(thread: Thread) -> int:
    return int((thread.last_message_at or thread.created_at).timestamp() * 1000)
