"""Reads rollouts of the Codex CLI. A file becomes a thread with the items exchanged with OpenAI's Responses API.

A `compacted` line becomes a record of everything before it. A rollout that a fork or a revert began continues another
file, so its thread begins with the items of that file. With the traces of Codex, a reply has the receipt of its request
in its meta. `codex.toml` lists the lines that are left out; a line of a type that it does not list is reported.
Rollouts of the first versions, whose lines are bare items, are read too.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from compaction_store.errors import InvalidSource, MissingExtra
from compaction_store.importers.line_files import LONGEST_LINE, Files, Line, LineFile, json_object, kept, messages
from compaction_store.importers.sources import Item, Notes, SourceThread, count, moment, text, to_load
from compaction_store.models import Observed, Payload, ToLoad
from compaction_store.module_data import ModuleData
from compaction_store.rendering.agent_requests import ClaudeRequests, KeptLine, canonical, hash_of, normal

FORMAT = "codex"
# The types of lines that are not messages, each with the reason.
_LEFT_OUT: dict[str, str] = {
    name: group["why"] for group in ModuleData(__file__).values["left_out"] for name in group["types"].split()
}
_LINE_TYPES = frozenset({"response_item", "compacted", *_LEFT_OUT})
_DEEPEST = 100
_FOLDERS = ("sessions", "archived_sessions")


def is_line(found: dict[str, Any]) -> bool:
    has_type = text(found.get("type")) in _LINE_TYPES and isinstance(found.get("payload"), dict)
    return has_type or "record_type" in found or _is_old_header(found)


def _is_old_header(found: dict[str, Any]) -> bool:
    return {"id", "timestamp"} <= found.keys() and found.keys().isdisjoint({"type", "role", "payload"})


class Codex(Files):
    """A rollout, or a folder of them. `traces` is the folder of traces; by default, $CODEX_ROLLOUT_TRACE_ROOT."""

    format = FORMAT

    def __init__(
        self, path: Path | Sequence[Path], *, skip_bad: bool = False, lines: bool = True, traces: str | None = None
    ) -> None:
        super().__init__(path, skip_bad=skip_bad, lines=lines)
        if traces is not None and not Path(traces).is_dir():
            raise InvalidSource("traces must be a folder")
        root = traces or os.environ.get(ROOT)
        self._bundles = bundles(Path(root)) if root and (lines or traces) else {}

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
    """Returns the id in the first header, or the name of the file in which a reverted session goes on."""
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


# ---- the traces that Codex writes below $CODEX_ROLLOUT_TRACE_ROOT, which have each request to the model exactly
#
# A bundle is a folder with the events of one run, and their payloads in streams of zstd. A thread of the run gets a
# thread of lines for each bundle, in the form in which Claude Code writes its requests: each message and each set of
# tools is there once, under its hash. Codex flushes a request before it sends it, so a reply always has one.


ROOT = "CODEX_ROLLOUT_TRACE_ROOT"
REQUESTS = "/requests/"
_SCHEMA = 3
# A payload's header: the lengths of its id and of its body.
_HEADER = struct.Struct("<HQ")
_READ = 1 << 16
_STARTED = {"inference_started": "inference", "compaction_request_started": "compaction"}
_OF_SHAPE = {"system": "instructions", "tools": "tools"}


class Trace(NamedTuple):
    """A bundle: its folder and its id."""

    path: Path
    id: str


def bundles(root: Path) -> dict[str, list[Trace]]:
    """Returns the bundles below a folder, by session."""
    found: dict[str, list[Trace]] = {}
    for path in sorted(root.rglob("manifest.json")):
        try:
            manifest = json_object(path.read_bytes())
        except OSError as error:
            manifest = str(error.strerror)
        about = {} if isinstance(manifest, str) else manifest
        session, trace = about.get("root_thread_id"), about.get("trace_id")
        why = manifest if isinstance(manifest, str) else None
        if about.get("schema_version") != _SCHEMA:
            why = why or f"schema_version must be {_SCHEMA}, the only one that is known"
        if why or not isinstance(session, str) or not isinstance(trace, str):
            why = why or "trace_id and root_thread_id must be text"
            raise InvalidSource(f"{path.relative_to(root).as_posix()}: {why}")
        found.setdefault(session, []).append(Trace(path.parent, trace))
    return found


# A request in the events: its id, its source, and the ids of the items that followed it.
_Asked = tuple[str, str, list[str]]


class Requests:
    """The requests of one thread of Codex in a bundle."""

    def __init__(self, bundle: Trace, thread_id: str, notes: Notes) -> None:
        self._bundle = bundle
        self._thread_id = thread_id
        self._notes = notes
        self.source_id = f"{thread_id}{REQUESTS}{bundle.id}"

    def thread(self, session: str) -> SourceThread:
        return SourceThread(self.source_id, self._items(), self._notes, lines_of=session)

    def receipts(self) -> dict[str, Payload]:
        """Returns the receipt of each reply's request, by the reply's id. `lines` is the id of the thread of lines."""
        found: dict[str, Payload] = {}
        requests = ClaudeRequests()
        seq = 1
        for line, asked in self._lines():
            data = canonical(line).encode("utf-8", "surrogatepass")
            requests.add(KeptLine(seq, data), line)
            seq += sum(1 for _ in _pieces(data))
            if asked is not None and requests.last is not None and asked[1] == "inference":
                found.update(dict.fromkeys(asked[2], requests.last.receipt() | {"lines": self.source_id}))
        return found

    def _items(self) -> Iterator[ToLoad]:
        for line, _ in self._lines():
            for message in _pieces(canonical(line).encode("utf-8", "surrogatepass")):
                yield ToLoad(message, tokens=0)

    def _lines(self) -> Iterator[tuple[Payload, _Asked | None]]:
        """Yields the lines of each request: the messages and the shape that are new, and then the request itself."""
        events = self.events()
        known: set[str] = set()
        last: str | None = None
        before: list[str] = []
        paths = sorted((self._bundle.path / "payloads").glob("*.zst"))
        for payload_id, body in chain.from_iterable(map(_records, paths)):
            if (asked := events.get(payload_id)) is None:
                continue
            found = json_object(body)
            given = found.get("input") if isinstance(found, dict) else None
            if isinstance(found, str) or not isinstance(given, list) or not all(isinstance(m, dict) for m in given):
                self._notes.refuse(f"{payload_id} of {self._bundle.path.name}", "it must be a request with an input")
                continue
            hashes = []
            for message in given:
                name = hash_of(normal(message))
                hashes.append(name)
                if name not in known:
                    known.add(name)
                    yield {"type": "api-request-blob", "hash": name, "message": message}, None
            shape = {name: found[field] for name, field in _OF_SHAPE.items() if field in found}
            if (name := hash_of(shape)) not in known:
                known.add(name)
                yield {"type": "api-request-shape", "shapeHash": name, "shape": shape}, None
            keep = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, hashes, strict=False)))
            line = {
                "type": "api-request", "id": asked[0], "querySource": asked[1], "shapeHash": name, "keep": keep,
                "params": {n: v for n, v in found.items() if n not in ("input", *_OF_SHAPE.values())},
                "tail": hashes[keep:],
            }  # fmt: skip
            yield line if last is None or not keep else {**line, "base": last}, asked
            last, before = asked[0], hashes

    def events(self) -> dict[str, _Asked]:
        """Returns the requests, by the id of the payload that has the body."""
        found: dict[str, _Asked] = {}
        asked: _Asked | None = None
        file = LineFile(self._bundle.path / "trace.jsonl", f"trace.jsonl of {self._bundle.path.name}")
        for line in file.lines():
            event = json_object(line.data)
            if isinstance(event, str):
                if line.end < file.size:
                    self._notes.refuse(file.where(line.number), event, line.number)
                continue
            payload = event.get("payload")
            if event.get("thread_id") != self._thread_id or not isinstance(payload, dict):
                continue
            kind, item = payload.get("type"), payload.get("item_id")
            if (source := _STARTED.get(str(kind))) is not None:
                body = payload.get("request_payload")
                own = payload.get("inference_call_id") or payload.get("compaction_request_id")
                asked = (str(own), source, [])
                found[str(body.get("raw_payload_id") if isinstance(body, dict) else None)] = asked
            elif kind == "history_item_accepted" and asked is not None and isinstance(item, str):
                asked[2].append(item)
        return found


def _pieces(line: bytes) -> Iterator[Payload]:
    data = line + b"\n"
    return (piece.message for piece in messages(io.BytesIO(data), len(data)))


def _records(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the payloads in a stream. The last one may be incomplete, because Codex is still writing it."""
    zstd = _zstd()
    found = bytearray()
    decoder = zstd.ZstdDecompressor()
    try:
        with path.open("rb") as file:
            while data := file.read(_READ):
                while data:
                    found += decoder.decompress(data)
                    data = decoder.unused_data if decoder.eof else b""
                    decoder = zstd.ZstdDecompressor() if decoder.eof else decoder
                at = 0
                while len(found) - at >= _HEADER.size:
                    name, size = _HEADER.unpack_from(found, at)
                    if size > LONGEST_LINE:
                        raise InvalidSource(f"{path.name}: a payload must have at most {LONGEST_LINE:,} bytes")
                    start = at + _HEADER.size + name
                    if len(found) < start + size:
                        break
                    yield found[start - name : start].decode(errors="replace"), bytes(found[start : start + size])
                    at = start + size
                del found[:at]
    except OSError as error:
        raise InvalidSource(f"cannot read {path.name}: {error.strerror}") from None
    except zstd.ZstdError:
        raise InvalidSource(f"{path.name} must be a stream of zstd") from None


def _zstd() -> Any:
    # Python 3.14 has it, and the package has the same for older ones.
    for name in ("compression.zstd", "backports.zstd"):
        with suppress(ImportError):
            return import_module(name)
    raise MissingExtra("reading traces of Codex", "importers")
