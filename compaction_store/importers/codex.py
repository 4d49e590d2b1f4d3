"""Reads rollouts of the Codex CLI. A file becomes a thread with the items exchanged with OpenAI's Responses API.

A `compacted` line becomes a record of everything before it. A rollout that a fork or a revert began continues another
file, so its thread begins with the items of that file. With the traces of Codex, a reply has the receipt of its request
in its meta. `codex.toml` lists the lines that are left out; a line of a type that it does not list is reported.
Rollouts of the first versions, whose lines are bare items, are read too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from compaction_store.errors import InvalidSource
from compaction_store.importers import codex_traces
from compaction_store.importers.codex_traces import Requests
from compaction_store.importers.kept_lines import kept
from compaction_store.importers.line_files import Files, Line, LineFile
from compaction_store.importers.sources import Item, Notes, SourceThread, count, moment, text, to_load
from compaction_store.models import Observed, Payload
from compaction_store.module_data import ModuleData

FORMAT = "codex"
# The types of lines that are not messages, each with the reason.
_LEFT_OUT: dict[str, str] = {
    name: group["why"] for group in ModuleData(__file__).values["left_out"] for name in group["types"].split()
}
_LINE_TYPES = frozenset({"response_item", "compacted", *_LEFT_OUT})
_DEEPEST = 100
_FOLDERS = ("sessions", "archived_sessions")


def is_line(found: dict[str, Any]) -> bool:
    """Returns whether a JSON object is a line of a rollout."""
    if text(found.get("type")) in _LINE_TYPES and isinstance(found.get("payload"), dict):
        return True
    return "record_type" in found or _is_old_header(found)


def _is_old_header(found: dict[str, Any]) -> bool:
    return {"id", "timestamp"} <= found.keys() and found.keys().isdisjoint({"type", "role", "payload"})


class Codex(Files):
    """A rollout, or a folder of them such as ~/.codex/sessions.

    `traces` is the folder of the traces; by default, $CODEX_ROLLOUT_TRACE_ROOT.
    """

    format = FORMAT

    def __init__(
        self, path: Path | Sequence[Path], *, skip_bad: bool = False, lines: bool = True, traces: str | None = None
    ) -> None:
        super().__init__(path, skip_bad=skip_bad, lines=lines)
        if traces is not None and not Path(traces).is_dir():
            raise InvalidSource("traces must be a folder")
        root = traces or os.environ.get(codex_traces.ROOT)
        self._bundles = codex_traces.bundles(Path(root)) if root and (lines or traces) else {}

    def threads(self) -> Iterator[SourceThread]:
        done: set[str] = set()
        for file in self._files:
            notes = Notes(self.skip_bad)
            session = session_of(file)
            yield SourceThread(session, self._items(file, notes), notes)
            if self.lines:
                yield kept(file, session, FORMAT)
            for requests in self._requests(file, Notes(self.skip_bad)):
                # A reverted session has several files.
                if requests.source_id not in done:
                    done.add(requests.source_id)
                    yield requests.thread(session)

    def _requests(self, file: LineFile, notes: Notes) -> Iterator[Requests]:
        header = _header(file)
        thread = text(header.get("id"))
        for bundle in self._bundles.get(text(header.get("session_id")) or thread or "", ()):
            requests = Requests(bundle, thread or "", notes)
            if requests.events():
                yield requests

    def _items(self, file: LineFile, notes: Notes) -> Iterator[Item]:
        model: str | None = None
        receipts: dict[str, Payload] = {}
        of: LineFile | None = None
        for own, line, found in self._lines(file, notes):
            if own is not of:
                of = own
                # Notes are taken when the thread of the requests is read.
                for requests in self._requests(own, Notes(skip_bad=True)):
                    receipts.update(requests.receipts())
            kind, body = found.get("type"), found.get("payload")
            if kind == "turn_context" and isinstance(body, dict):
                model = text(body.get("model")) or model
            if kind == "compacted" and isinstance(body, dict):
                notes.is_recognised = True
                yield Observed(
                    "compacted", summary_text=text(body.get("message")), provider=body, model=model,
                    occurred_at=moment(found.get("timestamp")),
                )  # fmt: skip
                continue
            item = body if kind == "response_item" else None if "payload" in found else found
            name = _name(found)
            if name in _LEFT_OUT or not isinstance(item, dict) or not isinstance(item.get("type"), str):
                what = name or "session_meta"
                if (why := _LEFT_OUT.get(what) or _LEFT_OUT.get(what.partition("/")[0])) is None:
                    notes.unknown[what] += 1
                elif name is None and not is_line(found):
                    notes.refuse(own.where(line.number), "it is not a line of a rollout", line.number)
                else:
                    notes.is_recognised = True
                    notes.leave_out(what, why)
                continue
            notes.is_recognised = True
            about = found.get("metadata")
            is_summary = isinstance(about, dict) and about.get("compaction_output") is True
            request = None if is_summary or not _is_reply(item) else receipts.get(text(item.get("id")) or "")
            meta = {
                "source": FORMAT, "occurred_at": moment(found.get("timestamp")), "external_id": text(item.get("id")),
                "model": model, "is_compact_summary": is_summary or None,
                "request": None if request is None else dict(request),
            }  # fmt: skip
            yield from to_load(item, meta, notes, own.where(line.number), line.number)

    def _lines(
        self, file: LineFile, notes: Notes, before: int | None = None, depth: int = 0
    ) -> Iterator[tuple[LineFile, Line, dict[str, Any]]]:
        """Yields the lines of the file that this one continues, and then its own, those with an ordinal `before`."""
        base = _header(file).get("history_base")
        if isinstance(base, dict):
            end = count(base.get("end_ordinal_exclusive"))
            begun = self._beside(file, base.get("thread_id"))
            if begun is None or end is None or depth > _DEEPEST:
                notes.hint = f"{file.name} continues the rollout {base.get('thread_id')}, which was not found"
            else:
                yield from self._lines(begun, notes, end, depth + 1)
        for line, found in file.objects(notes):
            if before is not None and (count(found.get("ordinal")) or 0) >= before:
                return
            yield file, line, found

    def _beside(self, file: LineFile, rollout: object) -> LineFile | None:
        """Returns the file of a rollout: one of the source, or of the folder in which Codex keeps all."""
        try:
            end = f"{UUID(str(rollout))}.jsonl"
        except ValueError:
            return None
        for each in self._files:
            if each.path.name.endswith(end):
                return each
        root = next((folder.parent for folder in file.path.absolute().parents if folder.name in _FOLDERS), None)
        folders = [file.path.parent] if root is None else [root / name for name in _FOLDERS]
        found = (path for folder in folders for path in sorted(folder.rglob(f"*{end}")))
        return next((LineFile(path) for path in found), None)


def _header(file: LineFile) -> dict[str, Any]:
    """Returns the first header. A forked rollout begins with its own header, and copied headers may follow."""
    for _, found in file.sample():
        header = found.get("payload") if found.get("type") == "session_meta" else found
        if isinstance(header, dict) and (found is not header or _is_old_header(found)):
            return header
    return {}


def session_of(file: LineFile) -> str:
    """Returns the id in the first header, or else the file's name.

    A reverted session goes on in another file with the same id, whose name has the id of the rollout after it.
    """
    name = file.path.stem
    own = text(_header(file).get("id")) or name
    after = name.partition(own)[2]
    return own + after if after.startswith("_") else own


def _name(found: dict[str, Any]) -> str | None:
    """Returns the name of a line's type, such as `event_msg/token_count`; None if the line has no type."""
    kind, body = text(found.get("type")), found.get("payload")
    if kind is None and "record_type" in found:
        return "state"
    below = text(body.get("type")) if kind in ("response_item", "event_msg") and isinstance(body, dict) else None
    return kind if below is None else f"{kind}/{below}"


def _is_reply(item: dict[str, Any]) -> bool:
    """Returns whether the model wrote an item: what people and tools give it is a message of theirs, or an output."""
    return item.get("role", "assistant") == "assistant" and not str(item.get("type")).endswith("_output")
