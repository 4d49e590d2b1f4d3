"""Reads Claude Code's session files. A session becomes a thread, and so does each of its side chains.

Lines of users and assistants become messages, in the order of the file, as they were sent to the API; rewound messages
keep their place. What a user typed while a tool ran becomes a message too. Other lines, such as titles, are left out. A
compact boundary becomes a record of the messages before it. If the boundary lists messages as preserved, the record
ends before the first of them. The summary after the boundary becomes a message.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from compaction_store.importers.kept_lines import kept
from compaction_store.importers.line_files import Files, Line, LineFile, LineRange, Unreadable, parsed
from compaction_store.importers.sources import Item, Notes, SourceThread, count, moment, text, to_load
from compaction_store.models import Observed

FORMAT = "claude-code"
# In a text inside the line, the quotes would be escaped, so this finds only fields.
_SIDE = re.compile(rb'"isSidechain"\s*:\s*true')
# The number of recent messages to remember, to find a boundary's preserved messages and a side chain's earlier lines.
_REMEMBERED = 10_000
_LINE_TYPES = frozenset({
    "user", "assistant", "system", "summary", "progress", "attachment", "file-history-snapshot", "queue-operation",
    "custom-title", "ai-title", "last-prompt",
})  # fmt: skip


def is_line(found: dict[str, Any]) -> bool:
    """Returns whether a JSON object is a line of a session file."""
    kind = found.get("type")
    if not isinstance(kind, str) or kind not in _LINE_TYPES:
        return False
    return "sessionId" in found or "leafUuid" in found or ("messageId" in found and "snapshot" in found)


class ClaudeCode(Files):
    """A session file, or a folder of them such as ~/.claude/projects."""

    format = FORMAT

    def threads(self) -> Iterator[SourceThread]:
        for file in self._files:
            session = session_of(file)
            chains = _chains(file)
            for chain, runs in chains.items():
                notes = Notes(self.skip_bad)
                source_id = session if chain is None else f"{session}/{chain}"
                yield SourceThread(source_id, _Chain(file, runs, notes).items(), notes)
            if self.lines:
                yield kept(file, _thread_of(file, session, [*chains]), FORMAT)


def session_of(file: LineFile) -> str:
    """Returns the session's id: the file's name, or the id in its lines if the file was renamed."""
    try:
        return str(UUID(file.path.stem))
    except ValueError:
        ids = (text(found.get("sessionId")) for _, found in file.sample())
        return next((found for found in ids if found), file.path.stem)


def _thread_of(file: LineFile, session: str, chains: list[str | None]) -> str:
    """Returns the id of the thread whose lines a file has: the session, or a subagent with a file of its own."""
    if file.path.stem.startswith("agent-"):
        return f"{session}/{file.path.stem}"
    is_agent = len(chains) == 1 and chains[0] is not None and file.path.stem != session
    return f"{session}/{chains[0]}" if is_agent else session


def _chains(file: LineFile) -> dict[str | None, list[LineRange]]:
    """Finds the lines of each chain. The key of the main chain is None.

    Memory grows only with the number of switches between chains.
    """
    chains: dict[str | None, list[LineRange]] = {}
    tips: OrderedDict[str, str] = OrderedDict()
    last: str | None = None
    for line in file.lines():
        chain = _chain(line, tips, last) if line.data is not None and _SIDE.search(line.data) else None
        last = chain or last
        line.extend(chains.setdefault(chain, []))
    file.done = 0
    return chains


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
    """The items of one chain."""

    def __init__(self, file: LineFile, runs: list[LineRange], notes: Notes) -> None:
        self._file = file
        self._runs = runs
        self._notes = notes
        self._messages = 0
        self._boundary: dict[str, Any] | None = None
        self._places: OrderedDict[str, int] = OrderedDict()

    def items(self) -> Iterator[Item]:
        for line, found in self._file.objects(self._notes, self._runs):
            kind = found.get("type")
            if kind in ("user", "assistant") and isinstance(found.get("message"), dict):
                yield from self._message(line, found)
            elif (prompt := _typed_meanwhile(found)) is not None:
                yield from self._message(line, found | {"message": {"role": "user", "content": prompt}})
            elif kind == "system" and found.get("subtype") == "compact_boundary":
                yield from self._compaction(None)
                self._boundary = found
            elif kind == "system" and found.get("subtype") == "microcompact_boundary":
                yield Observed(
                    "microcompact_boundary", kind="truncation", provider=found, spans=False,
                    occurred_at=moment(found.get("timestamp")),
                )  # fmt: skip
            else:
                if not isinstance(kind, str):
                    self._notes.refuse(self._file.where(line.number), "it is not a line of a session", line.number)
                    continue
                self._notes.left_out += 1
        yield from self._compaction(None)

    def _message(self, line: Line, found: dict[str, Any]) -> Iterator[Item]:
        is_summary = found.get("isCompactSummary") is True
        if is_summary and self._boundary is None:
            # Older versions wrote no boundary: use the line of the summary instead.
            self._boundary = {name: value for name, value in found.items() if name != "message"}
        yield from self._compaction(summary_in(found))
        own = text(found.get("uuid"))
        meta = {
            "source": FORMAT, "occurred_at": moment(found.get("timestamp")), "external_id": own,
            "parent_id": text(found.get("parentUuid")), "is_meta": found.get("isMeta") is True or None,
            "is_compact_summary": is_summary or None,
            "is_api_error": found.get("isApiErrorMessage") is True or None,
        }  # fmt: skip
        message = to_load(found["message"], meta, self._notes, self._file.where(line.number), line.number)
        if message is None:
            return
        self._messages += 1
        if own:
            self._places[own] = self._messages
            if len(self._places) > _REMEMBERED:
                self._places.popitem(last=False)
        yield message

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


def _typed_meanwhile(found: dict[str, Any]) -> str | list[Any] | None:
    """Returns what the user typed while a tool ran. Claude Code stores it as an attachment, and not as a message."""
    attached = found.get("attachment")
    if found.get("type") != "attachment" or not isinstance(attached, dict) or attached.get("type") != "queued_command":
        return None
    prompt = attached.get("prompt")
    return prompt if isinstance(prompt, str | list) and prompt else None


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
