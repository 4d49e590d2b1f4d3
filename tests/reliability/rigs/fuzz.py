"""Sends random and broken input to every parser: the encoder, the span finder, both bundle verifiers, the importers.

Input is well-formed data that was cut, copied, swapped and overwritten, and JSON of random shape. A rule for each
target says what must happen: the same value, an error of this package, or a finding. Other exceptions, inputs that take
over a second, and verifiers that disagree are failures.
"""

from __future__ import annotations

import io
import json
import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.paths import TESTS

import compaction_store as cs
from compaction_store import importers, offline
from compaction_store.messages import encoding, tool_pairs

_SLOWEST = 1.0
_TEXTS = (
    "", "x", "\0", "\ud800", "user", "assistant", "tool", "system", "tool_use", "tool_result", "function_call",
    "function_call_output", "id-1", "id-2", "text", "type", "role", "content", "id", "call_id", "tool_calls",
    "tool_call_id", "tool_use_id", "input", "output", "summary", "server_tool_use", "mcp_tool_use", "compaction",
)  # fmt: skip
_NUMBERS = (0, 1, -1, 2**53, 2**63, 10**4299, 10**4300, 0.1, -0.0, 1e308, math.nan, math.inf)


def wild(chance: random.Random, depth: int = 0) -> Any:
    """Makes JSON of random shape from meaningful words, and sometimes a value that is not JSON."""
    kind = chance.randrange(9 if depth < 5 else 5)
    if kind < 3:
        return chance.choice(_TEXTS)
    if kind == 3:
        return chance.choice(_NUMBERS)
    if kind == 4:
        return chance.choice((None, True, False, b"x", {1}, object()) if chance.random() < 0.1 else (None, True, False))
    if kind < 7:
        return {chance.choice(_TEXTS): wild(chance, depth + 1) for _ in range(chance.randrange(5))}
    return [wild(chance, depth + 1) for _ in range(chance.randrange(4))]


def message(chance: random.Random) -> dict[str, Any]:
    """Makes something like a message, with calls and results whose ids may or may not match."""
    role = chance.choice(("user", "assistant", "tool", "system", "developer"))
    made: dict[str, Any] = {"role": role, "content": chance.choice(("x", "", None, []))}
    ids = [f"id-{chance.randrange(6)}" for _ in range(chance.randrange(3))]
    kind = chance.randrange(8)
    if kind == 0:
        made["tool_calls"] = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    elif kind == 1 and ids:
        made |= {"role": "tool", "tool_call_id": ids[0]}
    elif kind == 2:
        made["content"] = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in ids]
    elif kind == 3:
        made["content"] = [{"type": "tool_result", "tool_use_id": i, "content": "x"} for i in ids]
    elif kind == 4 and ids:
        made = {"type": "function_call", "call_id": ids[0], "name": "f", "arguments": "{}"}
    elif kind == 5 and ids:
        made = {"type": "function_call_output", "call_id": ids[0], "output": "x"}
    elif kind == 6:
        made[chance.choice(_TEXTS)] = wild(chance, 3)
    return made


def broken(chance: random.Random, data: bytes) -> bytes:
    """Returns the data with a few changes, some without effect."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 20))):
        at, to = sorted(chance.randrange(len(made) + 1) for _ in range(2))
        kind = chance.randrange(8)
        if kind == 0 and made:
            made[at % len(made)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del made[at : min(to, at + 40)]
        elif kind == 2:
            made[at:at] = made[at : min(to, at + 200)]
        elif kind == 3:
            made[at:at] = chance.choice(
                (b"\0", b"\n", b"\xff", b"{}", b'"', b"null", b"1e999", b"[" * 2000, b"\r", b" ")
            )
        elif kind == 4:
            _swapped_lines(chance, made)
        elif kind == 5:
            _changed_field(chance, made)
        elif kind == 6 and chance.random() < 0.1:
            del made[at:]
        else:
            made[at : at + 8] = chance.randbytes(chance.randrange(9))
    return bytes(made)


def _swapped_lines(chance: random.Random, made: bytearray) -> None:
    lines = bytes(made).splitlines(keepends=True)
    if lines:
        lines.insert(chance.randrange(len(lines)), lines.pop(chance.randrange(len(lines))))
        made[:] = b"".join(lines)


def _changed_field(chance: random.Random, made: bytearray) -> None:
    """Changes one field of one line, which is still JSON."""
    lines = bytes(made).splitlines(keepends=True)
    if not lines:
        return
    at = chance.randrange(len(lines))
    try:
        said = json.loads(lines[at])
    except (ValueError, RecursionError):
        return
    if isinstance(said, dict) and said:
        said[chance.choice(list(said))] = wild(chance, 3)
        try:
            lines[at] = json.dumps(said, separators=(",", ":")).encode() + b"\n"
        except (TypeError, ValueError):
            return
        made[:] = b"".join(lines)


# ---- the targets


def encoder(chance: random.Random) -> str:
    """Checks that a value comes back unchanged or is refused with an error of this package."""
    given = wild(chance) if chance.random() < 0.7 else message(chance)
    try:
        encoded = encoding.encode(given)
    except cs.InvalidInput as refusal:
        return _told(refusal)
    assert repr(encoding.decode(encoded.text)) == repr(given), "an accepted message comes back as another"
    assert len(encoded.text.encode()) == encoded.size
    return "stored"


def _told(refusal: cs.CompactionStoreError) -> str:
    assert "\n" not in str(refusal)
    return "refused"


def span_finder(chance: random.Random) -> str:
    """Checks that a safe span is inside the range and has no problem."""
    items = [tuple(message(chance) for _ in range(chance.choice((1, 1, 1, 2)))) for _ in range(chance.randrange(1, 30))]
    links = tool_pairs.Links(items)
    start = chance.randrange(len(items))
    end = chance.randrange(start, len(items))
    found = links.safe(start, end)
    if found is None:
        return "no safe span"
    assert start <= found[0] <= found[1] <= end, f"{found} is not inside {start}..{end}"
    problem = links.problem(*found)
    assert problem is None, f"a safe span has a problem: {problem}"
    return "safe"


def bundles(chance: random.Random) -> str:
    """Checks that both verifiers agree, and that they find something unless the bytes are the same."""
    whole = chance.choice(_BUNDLES)
    data = broken(chance, whole)
    ours = bool(cs.verify_bundle(list(io.BytesIO(data))).findings)
    theirs = bool(offline.check(io.BytesIO(data)).findings)
    assert ours == theirs, f"one verifier finds something ({ours}, {theirs})"
    assert ours or data in _BUNDLES or _unprotected(data, whole), "a changed bundle passes"
    return "findings" if ours else "sound"


def _unprotected(data: bytes, whole: bytes) -> bool:
    """Returns whether only fields of the manifest differ that nothing protects, such as the time of the export."""
    return data.partition(b"\n")[2] == whole.partition(b"\n")[2]


def imported(chance: random.Random) -> str:
    """Checks that a file is read to its end, or refused with an error that names the place."""
    name, whole = chance.choice(_FILES)
    data = broken(chance, whole)
    path = _folder / name
    path.write_bytes(data)
    try:
        source = importers.open_source(path, skip_bad=chance.random() < 0.5)
        items = 0
        for thread in source.threads():
            items += sum(1 for _ in thread.items)
    except cs.CompactionStoreError as refusal:
        return _told(refusal)
    return "read"


_BUNDLES = tuple(path.read_bytes() for path in sorted((TESTS / "golden").glob("bundle-*.jsonl")))
_FILES = tuple((path.name, path.read_bytes()) for path in sorted((TESTS / "importers" / "fixtures").glob("*.jsonl")))
_folder = Path(tempfile.gettempdir())
TARGETS: dict[str, Callable[[random.Random], str]] = {
    "encoder": encoder, "span finder": span_finder, "bundle verifiers": bundles, "importers": imported,
}  # fmt: skip


def run(chance: random.Random, *, seconds: float) -> dict[str, Any]:
    """Tries each target for `seconds`. A failure names the seed that repeats it."""
    global _folder  # noqa: PLW0603 — where the importers find their files
    seen: Counter[str] = Counter()
    slowest = 0.0
    with tempfile.TemporaryDirectory(prefix="cs") as folder:
        _folder = Path(folder)
        for name, target in TARGETS.items():
            end = time.monotonic() + seconds
            while (began := time.monotonic()) < end:
                seed = chance.getrandbits(64)
                try:
                    seen[f"{name}: {target(random.Random(seed))}"] += 1
                except Exception as error:
                    raise AssertionError(f"{name}, seed {seed}: {error!r:.300}") from error
                took = time.monotonic() - began
                assert took < _SLOWEST * 5, f"{name}, seed {seed}: {took:.1f} s"
                slowest = max(slowest, took)
    return {"seconds a target": seconds, **dict(sorted(seen.items())), "slowest, s": round(slowest, 2), "crashes": 0}
