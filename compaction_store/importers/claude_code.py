"""Reads Claude Code's session files. A session becomes a thread, and so does each of its side chains.

Lines of users and assistants become messages, in the order of the file, as they were sent to the API; rewound messages
keep their place. What a user typed while a tool ran becomes a message too, with the text that the model saw in its
meta. A compact boundary becomes a record of the messages before it. If the boundary lists messages as preserved, the
record ends before the first of them. The summary after the boundary becomes a message. A reply has the receipt of its
request in its meta, if the file has the request. `claude_code.toml` lists the lines that are left out; a line of a type
that it does not list is reported.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Any
from uuid import UUID

from compaction_store.importers.line_files import Files, Line, LineFile, LineRange, Unreadable, kept, parsed
from compaction_store.importers.sources import EMPTY, Item, Notes, SourceThread, count, moment, text, to_load
from compaction_store.messages.encoding import MAX_META_BYTES
from compaction_store.models import Observed
from compaction_store.module_data import ModuleData
from compaction_store.rendering.agent_requests import ClaudeRequests, KeptLine

FORMAT = "claude-code"
# In a text inside the line, the quotes would be escaped, so this finds only fields.
_REQUEST = b'"api-request"'
_SIDE = re.compile(rb'"isSidechain"\s*:\s*true')
# The number of recent messages to remember, to find a boundary's preserved messages and a side chain's earlier lines.
_REMEMBERED = 10_000
# The types of lines that are not messages, each with the reason.
_LEFT_OUT: dict[str, str] = {
    name: group["why"] for group in ModuleData(__file__).values["left_out"] for name in group["types"].split()
}
_LINE_TYPES = frozenset({"user", "assistant", "system", *(name.partition("/")[0] for name in _LEFT_OUT)})
_QUEUED = "attachment/queued_command"
_RECORDS = frozenset({"system/compact_boundary", "system/microcompact_boundary"})
_READ = frozenset({"user", "assistant", _QUEUED}) | _RECORDS
_SUBTYPES = {"system": ("subtype",), "attachment": ("attachment", "type")}
_AGENTS_FILE = "agent-"
# The text that the model got for a message typed while a tool ran is kept in the meta up to this number of characters.
_MOST_RENDERED = MAX_META_BYTES // 8


def is_line(found: dict[str, Any]) -> bool:
    kind = found.get("type")
    is_marked = "sessionId" in found or "leafUuid" in found or ("messageId" in found and "snapshot" in found)
    # With the id of a session, the type may be one of a later version.
    return isinstance(kind, str) and (_is_uuid(found.get("sessionId")) or (is_marked and kind in _LINE_TYPES))


def _is_uuid(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(UUID(value))
    except ValueError:
        return False


def type_of(found: dict[str, Any]) -> str | None:
    """Returns the name of a line's type, such as `attachment/file`; None if the line has no type."""
    kind = text(found.get("type"))
    below: Any = found
    for name in _SUBTYPES.get(kind or "", ()):
        below = below.get(name) if isinstance(below, dict) else None
    return f"{kind}/{below}" if isinstance(below, str) else kind


class ClaudeCode(Files):
    """A session file, or a folder of them such as ~/.claude/projects."""

    format = FORMAT

    def threads(self) -> Iterator[SourceThread]:
        for file in self._files:
            session = session_of(file)
            own = file.path.stem if file.path.stem.startswith(_AGENTS_FILE) else None
            chains, has_requests = _chains(file, own)
            for chain, runs in chains.items():
                notes = Notes(self.skip_bad)
                source_id = session if chain is None else f"{session}/{chain}"
                yield SourceThread(source_id, _Chain(file, runs, notes).items(), notes)
            if has_requests if self.lines is None else self.lines:
                yield kept(file, thread_of(file, chains), FORMAT)


def session_of(file: LineFile) -> str:
    """Returns the session's id: the file's name, or the id in its lines if the file was renamed."""
    try:
        return str(UUID(file.path.stem))
    except ValueError:
        ids = (text(found.get("sessionId")) for _, found in file.sample())
        return next((found for found in ids if found), file.path.stem)


def thread_of(file: LineFile, chains: Collection[str | None] | None = None) -> str:
    """Returns the id of the thread whose lines a file has: the session, or a subagent with a file of its own."""
    session, name = session_of(file), file.path.stem
    if name.startswith(_AGENTS_FILE) or name == session:
        return session if name == session else f"{session}/{name}"
    first, *others = _chains(file, None)[0] if chains is None else chains
    return session if others or first is None else f"{session}/{first}"


def _chains(file: LineFile, own: str | None) -> tuple[dict[str | None, list[LineRange]], bool]:
    """Finds the lines of each chain, and whether the file has requests to a model.

    The key of the main chain is None. `own` is the chain of a subagent's file.
    Memory grows only with the number of switches between chains.
    """
    chains: dict[str | None, list[LineRange]] = {}
    tips: OrderedDict[str, str] = OrderedDict()
    last: str | None = None
    has_requests = False
    for line in file.lines():
        has_requests = has_requests or (line.data is not None and _REQUEST in line.data)
        chain = _chain(line, tips, last) if line.data is not None and _SIDE.search(line.data) else None
        last, chain = chain or last, chain or own
        line.extend(chains.setdefault(chain, []))
    file.done = 0
    return chains, has_requests


def _chain(line: Line, tips: OrderedDict[str, str], last: str | None) -> str | None:
    """Returns the side chain of a line: its agent's id, or in older files the id of the chain's first line."""
    try:
        found = parsed(line.data)
    except Unreadable:
        return None
    if not isinstance(found, dict) or found.get("isSidechain") is not True:
        return None
    if agent := text(found.get("agentId")):
        return f"agent-{agent}"
    own, parent = text(found.get("uuid")), text(found.get("parentUuid"))
    root = (tips.get(parent) or last if parent else own) or "sidechain"
    if own:
        tips[own] = root
        if len(tips) > _REMEMBERED:
            tips.popitem(last=False)
    return root


class _Chain:
    def __init__(self, file: LineFile, runs: list[LineRange], notes: Notes) -> None:
        self._file = file
        self._runs = runs
        self._notes = notes
        self._messages = 0
        self._boundary: dict[str, Any] | None = None
        self._places: OrderedDict[str, int] = OrderedDict()
        self._requests = ClaudeRequests()
        self._answered: set[str] = set()

    def items(self) -> Iterator[Item]:
        for line, found in self._file.objects(self._notes, self._runs):
            self._requests.add(KeptLine(line.number, (line.data or b"").removesuffix(b"\n")), found)
            if (said := _said(found)) is not None:
                yield from self._message(line, found | {"message": said})
            elif type_of(found) == "system/compact_boundary":
                yield from self._compaction(None)
                self._boundary = found
            elif type_of(found) == "system/microcompact_boundary":
                yield Observed(
                    "microcompact_boundary", kind="truncation", provider=found, spans=False,
                    occurred_at=moment(found.get("timestamp")),
                )  # fmt: skip
            self._note(line, found, is_said=said is not None)
        for request in self._requests.by_id.values():
            if request.id not in self._answered:
                self._notes.leave_out("api-request", _LEFT_OUT["api-request"], -1)
                self._notes.leave_out(f"api-request/{request.source}", _UNANSWERED)
        yield from self._compaction(None)

    def _note(self, line: Line, found: dict[str, Any], *, is_said: bool) -> None:
        """Counts a line that is no message, or that is of an unknown type."""
        kind = type_of(found)
        if kind in _LEFT_OUT or kind in _READ:
            self._notes.is_recognised = True
        elif kind is not None:
            self._notes.unknown[kind] += 1
            return
        if is_said or kind in _RECORDS:
            return
        if kind is None:
            self._notes.refuse(self._file.where(line.number), "it is not a line of a session", line.number)
        else:
            self._notes.leave_out(kind, _LEFT_OUT.get(kind, EMPTY))

    def _message(self, line: Line, found: dict[str, Any]) -> Iterator[Item]:
        is_summary = found.get("isCompactSummary") is True
        if is_summary and self._boundary is None:
            # Older versions wrote no boundary: use the line of the summary instead.
            self._boundary = {name: value for name, value in found.items() if name != "message"}
        yield from self._compaction(summary_in(found))
        own = text(found.get("uuid"))
        message = found["message"]
        meta = {
            "source": FORMAT, "occurred_at": moment(found.get("timestamp")), "external_id": own,
            "parent_id": text(found.get("parentUuid")), "is_meta": found.get("isMeta") is True or None,
            "is_compact_summary": is_summary or None,
            "is_api_error": found.get("isApiErrorMessage") is True or None, "rendered": _rendered(found),
            "request": self._request(found),
        }  # fmt: skip
        for item in to_load(message, meta, self._notes, self._file.where(line.number), line.number):
            self._messages += 1
            if own:
                self._places[own] = self._messages
                if len(self._places) > _REMEMBERED:
                    self._places.popitem(last=False)
            yield item

    def _request(self, found: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the receipt of the request that a line of the model answers, if the file has the request."""
        # The program writes messages of its own too, such as one about an error.
        is_reply = found.get("type") == "assistant" and found["message"].get("model") != _OWN_MODEL
        request = self._requests.of_reply(found) if is_reply else None
        if request is None:
            return None
        self._answered.add(request.id)
        return request.receipt()

    def _compaction(self, summary: str | None) -> Iterator[Item]:
        """Yields the record of the last boundary. `summary` is the text of the summary that follows it, if any."""
        found, self._boundary = self._boundary, None
        if found is None:
            return
        about = found.get("compactMetadata")
        about = about if isinstance(about, dict) else {}
        last = min((self._places[name] - 1 for name in preserved_by(found) if name in self._places), default=None)
        yield Observed(
            "compact_boundary", summary_text=summary, provider=found, tokens_before=count(about.get("preTokens")),
            tokens_after=count(about.get("postTokens")), occurred_at=moment(found.get("timestamp")),
            last=last if last != 0 else None, spans=last != 0,
        )  # fmt: skip


_OWN_MODEL = "<synthetic>"
_UNANSWERED = "it is a call beside the conversation, or one that failed: the file has no reply to it"


def _said(found: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the message in a line of any type, also one that the user typed while a tool ran, as an attachment."""
    kind, message = text(found.get("type")), found.get("message")
    if isinstance(message, dict) and (
        kind in ("user", "assistant") or (kind not in _LINE_TYPES and message.get("role") in ("user", "assistant"))
    ):
        return message
    prompt = found["attachment"].get("prompt") if type_of(found) == _QUEUED else None
    return {"role": "user", "content": prompt} if isinstance(prompt, str | list) and prompt else None


def _rendered(found: dict[str, Any]) -> list[str] | None:
    """Returns the texts with which the model got a message that the user typed while a tool ran."""
    parts = found.get("rendered") if type_of(found) == _QUEUED else None
    texts = [part.get("content") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    said = [each for each in texts if isinstance(each, str)]
    return said if said and sum(map(len, said)) <= _MOST_RENDERED else None


def preserved_by(boundary: dict[str, Any]) -> list[str]:
    """Returns the ids of the messages that a compaction preserved. Of a preserved segment, returns only the first."""
    about = boundary.get("compactMetadata")
    about = about if isinstance(about, dict) else {}
    names: list[Any] = []
    if isinstance(messages := about.get("preservedMessages"), dict) and isinstance(messages.get("uuids"), list):
        names += messages["uuids"]
    if isinstance(segment := about.get("preservedSegment"), dict):
        names.append(segment.get("headUuid"))
    return [name for name in names if isinstance(name, str)]


def summary_in(line: dict[str, Any]) -> str | None:
    """Returns the text of a summary line; None for any other line, or if the text is empty."""
    message = line.get("message")
    content = message.get("content") if line.get("isCompactSummary") is True and isinstance(message, dict) else None
    if isinstance(content, str):
        return content or None
    if not isinstance(content, list):
        return None
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "\n\n".join(found for found in texts if isinstance(found, str)) or None
