"""Puts the requests that a coding agent sent together from the lines of its session file, without I/O.

Claude Code writes each message of a request once, under its hash, and for each request the list of hashes. The hash is
the SHA-256 of the message in its normal form: `content` as a list of blocks, as canonical JSON in UTF-8. A message
without a line of its own is made from the lines of the conversation. The receipt of a request has the hash of the list
of messages, and of all lines that the list was made from, so that no change of a line stays unnoticed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import sha256
from typing import Any, NamedTuple

from compaction_store.models import Payload
from compaction_store.rendering.given import digest

CLAUDE_CODE = "claude-code"
# A message that has no line of its own is looked for among this many of the newest turns.
_TURNS = 200
# A turn of more lines is one message, or none.
_LINES_OF_A_TURN = 32
# JavaScript writes smaller numbers with an exponent.
_LEAST_DECIMAL = 1e-6


class KeptLine(NamedTuple):
    """A line of a file: the seq of its message in the thread of lines, and its bytes, without the newline."""

    seq: int
    data: bytes


def lines_in(messages: Iterable[tuple[int, Payload | None]]) -> Iterator[KeptLine]:
    """Yields the lines in the messages of a thread of lines. A long line has several messages."""
    pieces: list[bytes] = []
    first = 0
    for seq, payload in messages:
        first = first if pieces else seq
        pieces.append(_bytes(payload or {}))
        if payload is None or payload.get("more") is not True:
            yield KeptLine(first, b"".join(pieces))
            pieces = []


def _bytes(payload: Payload) -> bytes:
    text, coded = payload.get("text"), payload.get("base64")
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(coded) if isinstance(coded, str) else b""
    except ValueError:
        return b""


def canonical(value: Any) -> str:
    """Returns JSON as a program in JavaScript writes it, without spaces and with the names in each object sorted."""
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(f"{canonical(name)}:{canonical(value[name])}" for name in names) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, float) and "e-" in repr(value):
        # Python writes 0.00001 as 1e-05, and 1e-7 as 1e-07.
        return f"{Decimal(repr(value)):f}" if abs(value) >= _LEAST_DECIMAL else repr(value).replace("e-0", "e-")
    return json.dumps(value, ensure_ascii=False)


def _encoded(value: Any) -> bytes:
    # JavaScript escapes a lone surrogate in the same way.
    return canonical(value).encode("utf-8", "backslashreplace")


def hash_of(value: Any) -> str:
    return sha256(_encoded(value)).hexdigest()


def normal(message: Payload) -> Payload:
    """Returns a message in its normal form: a `content` that is text becomes a list of one block of text."""
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


class _Part(NamedTuple):
    """A message of a request, its canonical JSON's hash, and the lines that it was made from."""

    message: Payload | None
    lines: tuple[KeptLine, ...]
    is_intact: bool = True


@dataclass(slots=True, eq=False)
class AgentRequest:
    """A request of an agent. `fault` is the first message, counted from 1, that is missing or does not fit its hash."""

    id: str
    source: str
    line: int
    first: int
    parts: list[_Part]
    #: The state of the hash of the list of hashes, after each message.
    states: list[Any]
    carried: str
    system: str | None = None
    tools: str | None = None
    has_shape: bool = True
    has_base: bool = True

    @property
    def messages(self) -> list[Payload]:
        return [part.message for part in self.parts if part.message is not None]

    @property
    def fault(self) -> str | None:
        for number, part in enumerate(self.parts, 1):
            if not part.is_intact:
                return f"message {number:,} {'is missing' if part.message is None else 'does not fit its hash'}"
        if not self.has_base:
            return "the request that this one continues is missing"
        return None if self.has_shape else "the system prompt and the tools are missing or do not fit their hash"

    def receipt(self) -> Payload:
        """Returns the receipt of the request, without the name of the thread that has the lines."""
        end = self.states[-1].copy() if self.states else sha256(b"[")
        end.update(b"]")
        found = {
            "format": CLAUDE_CODE, "id": self.id, "first": self.first, "line": self.line, "messages": len(self.parts),
            "sha256": end.hexdigest(), "carried": self.carried, "system": self.system, "tools": self.tools,
        }  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}


@dataclass(slots=True, eq=False)
class _Turn:
    """Lines of the conversation that a request may have as one message."""

    role: str
    id: str | None
    lines: list[tuple[KeptLine, Payload]] = field(default_factory=list)


_SHAPE = ("system", "tools")


class ClaudeRequests:
    """The requests in the lines of one file, which are added one by one. With `keep`, it keeps the messages too."""

    def __init__(self, *, keep: bool = False) -> None:
        self._keep = keep
        self._blobs: dict[str, _Part] = {}
        self._shapes: dict[str, tuple[Payload | None, KeptLine]] = {}
        self._turns: list[_Turn] = []
        self.by_id: dict[str, AgentRequest] = {}
        self.last: AgentRequest | None = None

    def add(self, line: KeptLine, found: Mapping[str, Any]) -> None:
        """Adds a line of the file, which was parsed as `found`."""
        kind, message = found.get("type"), found.get("message")
        line = KeptLine(line.seq, sha256(line.data).digest())
        if kind == "api-request-blob" and isinstance(message, dict) and isinstance(name := found.get("hash"), str):
            self._blobs[name] = self._part(message, (line,), is_intact=hash_of(normal(message)) == name)
        elif kind == "api-request-shape" and isinstance(name := found.get("shapeHash"), str):
            shape = found.get("shape")
            self._shapes[name] = (shape if isinstance(shape, dict) and hash_of(shape) == name else None), line
        elif kind == "api-request" and isinstance(name := found.get("id"), str):
            self.last = self.by_id[name] = self._request(name, line, found)
        elif kind in ("user", "assistant") and isinstance(message, dict):
            self._said(kind, line, message)

    def of_reply(self, found: Mapping[str, Any]) -> AgentRequest | None:
        """Returns the request that a line of the model answers: the one that it names, or else the last one."""
        name = found.get("requestRef")
        return self.by_id.get(name) if isinstance(name, str) else self.last

    def _part(self, message: Payload, lines: tuple[KeptLine, ...], *, is_intact: bool = True) -> _Part:
        return _Part(message if self._keep or not is_intact else {}, lines, is_intact)

    def _said(self, role: str, line: KeptLine, message: Payload) -> None:
        """Adds a line to its turn. A message of the model may have several lines, and results of tools between them."""
        own = message.get("id") if role == "assistant" else None
        for turn in self._turns[-2:]:
            if turn.role == role and (turn.id == own or role == "user") and (own or turn is self._turns[-1]):
                turn.lines.append((line, message))
                return
        self._turns.append(_Turn(role, own, [(line, message)]))
        del self._turns[:-_TURNS]

    def _request(self, name: str, line: KeptLine, found: Mapping[str, Any]) -> AgentRequest:
        keep, tail = found.get("keep"), found.get("tail")
        base = self.by_id.get(str(found.get("base")))
        has_base = found.get("base") is None or (base is not None and type(keep) is int and keep <= len(base.parts))
        kept = keep if base is not None and type(keep) is int and keep > 0 else 0
        parts = base.parts[:kept] if base is not None else []
        states = base.states[:kept] if base is not None else []
        carried = sha256(line.data)
        first = line.seq
        if base is not None:
            carried.update(base.carried.encode())
            first = min(first, base.first)
        for each in tail if isinstance(tail, list) else ():
            part = self._blobs.get(str(each)) or self._made(str(each))
            state = states[-1].copy() if states else sha256(b"[")
            state.update((b"," if states else b"") + _encoded(str(each)))
            parts.append(part)
            states.append(state)
            for own in part.lines:
                carried.update(own.data)
                first = min(first, own.seq)
        shape, shape_line = self._shapes.get(str(found.get("shapeHash")), (None, None))
        if shape_line is not None:
            carried.update(shape_line.data)
            first = min(first, shape_line.seq)
        system, tools = (None if shape is None or name not in shape else digest(shape[name]) for name in _SHAPE)
        source = found.get("querySource")
        return AgentRequest(
            name, source if isinstance(source, str) else "", line.seq, first, parts, states, carried.hexdigest(),
            system, tools, has_shape=shape is not None, has_base=has_base,
        )  # fmt: skip

    def _made(self, name: str) -> _Part:
        """Makes the message that has a hash from lines of a turn. The newest turns are tried first."""
        for turn in reversed(self._turns):
            contents = [normal(message).get("content") for _, message in turn.lines]
            for start, end in _runs(len(turn.lines)):
                content = [block for each in contents[start:end] if isinstance(each, list) for block in each]
                message = {"role": turn.role, "content": content}
                if hash_of(message) == name:
                    return self._part(message, tuple(line for line, _ in turn.lines[start:end]))
        return _Part(None, (), is_intact=False)


def _runs(count: int) -> Iterator[tuple[int, int]]:
    """Yields the ranges of lines of a turn that may be a message: all of them first."""
    yield 0, count
    if count <= _LINES_OF_A_TURN:
        yield from ((start, end) for end in range(count, 0, -1) for start in range(end) if (start, end) != (0, count))


class SentMessages(NamedTuple):
    """The messages of a request, and what does not fit its receipt, if anything."""

    messages: list[Payload]
    where: str | None


NOTHING = SentMessages([], "the line of the request is missing")


def places(receipt: Payload) -> Iterator[tuple[int, int | None]]:
    """Yields the ranges of lines to read for a request: first the receipt's, as a rewritten file may move them."""
    first, last = receipt.get("first"), receipt.get("line")
    if type(first) is int and type(last) is int and 1 <= first <= last < 2**63:
        yield first - 1, last
    yield 0, None


def sent(receipt: Mapping[str, Any], stored: Iterable[tuple[int, Payload | None]]) -> SentMessages:
    """Puts the request of a receipt together again from the stored lines, and compares it with the receipt."""
    if receipt.get("format") != CLAUDE_CODE:
        return SentMessages([], "the format of the lines is not known")
    requests = ClaudeRequests(keep=True)
    for line in lines_in(stored):
        try:
            found = json.loads(line.data)
        except ValueError:
            continue
        if isinstance(found, dict):
            requests.add(line, found)
    request = requests.by_id.get(str(receipt.get("id")))
    if request is None:
        return NOTHING
    made = request.receipt()
    difference = next((what for name, what in _COMPARED.items() if made.get(name) != receipt.get(name)), None)
    return SentMessages(request.messages, request.fault or difference)


_COMPARED = {
    "sha256": "the list of messages", "system": "the system prompt", "tools": "the tools",
    "carried": "a line that the request was made from",
}  # fmt: skip
