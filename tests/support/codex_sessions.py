"""Makes rollouts and traces as Codex writes them, without the vendor's texts."""

from __future__ import annotations

import json
import struct
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

try:
    zstd: Any = import_module("compression.zstd")
except ImportError:
    zstd = import_module("backports.zstd")

SESSION = "019a1f2e-7c11-7d32-b1c4-5d6e7f808182"
FORK = "019a1f2e-9c11-7d32-b1c4-5d6e7f808183"
REVERTED = "019a1f2e-ac11-7d32-b1c4-5d6e7f808184"

Item = dict[str, Any]
TOOLS = [{"type": "function", "name": "exec_command", "parameters": {}}]


def said(role: str, name: str, text: str, **more: Any) -> Item:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "id": name, "role": role, "content": [{"type": kind, "text": text}], **more}


USER = said("user", "m1", "Which orders are late? 17 €")
CALL = {"type": "function_call", "id": "f1", "name": "exec_command", "arguments": "{}", "call_id": "c1"}
OUTPUT = {"type": "function_call_output", "id": "o1", "call_id": "c1", "output": "A-17 🙂"}
LATE = said("assistant", "m2", "A-17 is late.", turn={"create_time": 1795910833.4800038, "least": 1e-05})
SUMMARY = said("assistant", "m3", "A-17 is late; B-9 was shipped.")
STAND_IN = said("user", "m4", "Summary: A-17 is late; B-9 was shipped.")
AGAIN = said("user", "m5", "And now?")
SHIPPED = said("assistant", "m6", "It is shipped.")
#: The inputs of the requests, in order, with the source of each and the items that it was answered with.
REQUESTS: list[tuple[str, list[Item], list[Item]]] = [
    ("inference", [USER], [CALL]),
    ("inference", [USER, CALL, OUTPUT], [LATE]),
    ("compaction", [USER, CALL, OUTPUT, LATE, {"type": "compaction_trigger"}], [SUMMARY]),
    ("inference", [STAND_IN, AGAIN], [SHIPPED]),
]
#: The seqs of the replies in the session's thread, and the number of the request of each.
REPLIES = {2: 0, 4: 1, 7: 3}


def line(kind: str, payload: Any, ordinal: int, **more: Any) -> Item:
    return {"timestamp": "2026-11-29T00:00:00Z", "ordinal": ordinal, "type": kind, "payload": payload, **more}


def header(name: str, **more: Any) -> Item:
    return {"id": name, "session_id": name, "cwd": "/work", **more}


def rollout() -> list[Item]:
    compacted = {
        "message": STAND_IN["content"][0]["text"],
        "replacement_history": [said("developer", "m7", "Be kind."), STAND_IN],
    }
    found: list[tuple[str, Item]] = [
        ("session_meta", header(SESSION)), ("turn_context", {"model": "gpt-5"}), ("response_item", USER),
        ("response_item", CALL), ("token_usage_record", {"usage": {}}), ("response_item", OUTPUT),
        ("event_msg", {"type": "agent_message", "message": "A-17 is late."}), ("response_item", LATE),
        ("response_item", SUMMARY), ("compacted", compacted), ("world_state", {"full": True}),
        ("response_item", AGAIN), ("response_item", SHIPPED),
    ]  # fmt: skip
    lines = [line(kind, payload, ordinal) for ordinal, (kind, payload) in enumerate(found)]
    lines[8]["metadata"] = {"compaction_output": True}
    return lines


def write_lines(path: Path, lines: list[Item]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines), encoding="utf-8")
    return path


def path_of(root: Path, name: str) -> Path:
    return root / "sessions" / "2026" / "11" / "29" / f"rollout-2026-11-29T00-00-00-{name}.jsonl"


def body(given: list[Item]) -> Item:
    return {"model": "gpt-5", "stream": True, "instructions": "Be brief.", "input": given, "tools": TOOLS}


def write_bundle(
    root: Path,
    name: str = "b1",
    thread: str = SESSION,
    requests: list[tuple[str, list[Item], list[Item]]] | None = None,
) -> Path:
    """Writes a bundle with some requests, or with all of them."""
    folder = root / f"trace-{name}-{SESSION}"
    (folder / "payloads").mkdir(parents=True)
    manifest = {"schema_version": 3, "trace_id": name, "root_thread_id": SESSION, "payloads_dir": "payloads"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    stream = bytearray()
    events: list[Item] = [{"type": "rollout_started"}]

    numbers = count(1)

    def payload(found: Any) -> Item:
        own, data = f"raw_payload:{next(numbers)}".encode(), json.dumps(found, ensure_ascii=False).encode()
        stream.extend(struct.pack("<HQ", len(own), len(data)) + own + data)
        return {"raw_payload_id": own.decode(), "kind": {"type": "x"}, "shard": 1}

    payload({"cwd": "/work"})
    for number, (source, given, answers) in enumerate(REQUESTS if requests is None else requests):
        of = {"inference": "inference_started", "compaction": "compaction_request_started"}[source]
        own = "inference_call_id" if source == "inference" else "compaction_request_id"
        events.append({"type": of, own: f"{name}-{number}", "request_payload": payload(body(given))})
        events.append({"type": "inference_completed", "response_payload": payload({"output": []})})
        events += [{"type": "history_item_accepted", "item_id": each["id"]} for each in answers]
    lines = [{"seq": seq, "thread_id": thread, "payload": event} for seq, event in enumerate(events, 1)]
    write_lines(folder / "trace.jsonl", lines)
    (folder / "payloads" / "000001.zst").write_bytes(zstd.compress(bytes(stream)))
    return folder
