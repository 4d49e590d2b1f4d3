"""Reads the traces that Codex writes below $CODEX_ROLLOUT_TRACE_ROOT, which have each request to the model exactly.

A bundle is a folder with the events of one run, and their payloads in streams of zstd. A thread of the run gets a
thread of lines for each bundle, in the form in which Claude Code writes its requests: each message and each set of
tools is there once, under its hash. Codex flushes a request before it sends it, so a reply always has one.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from compaction_store.errors import InvalidSource, MissingExtra
from compaction_store.importers.kept_lines import messages
from compaction_store.importers.line_files import LONGEST_LINE, LineFile, json_object
from compaction_store.importers.sources import Notes, SourceThread
from compaction_store.models import Payload, ToLoad
from compaction_store.rendering.agent_requests import ClaudeRequests, KeptLine, canonical, hash_of, normal

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
