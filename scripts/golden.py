"""Prints tests/golden/format-1.json, with a second implementation of the chain that follows only docs/integrity.md.

This script imports nothing from the package. If it agrees with `chain.py`, the document is enough to write another
implementation. A test pins the hash of the golden file, so every run must print the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

Column = bytes | str | int | bool | None

SALT = bytes(range(16))
OTHER_SALT = bytes.fromhex("f0e1d2c3b4a5968778695a4b3c2d1e0f")
RUN_ID = bytes.fromhex("0123456789ab4def8123456789abcdef")


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def name_commitment(salt: bytes, thread_id: str) -> bytes:
    return sha(b"\x03", salt, thread_id.encode())


def genesis(thread_uid: str, tenant: str, commitment: bytes) -> bytes:
    key = bytes.fromhex(thread_uid.replace("-", ""))
    return sha(b"\x02", b"compaction-store/v1", b"\x00", key, commitment, tenant.encode())


def field(value: Column) -> bytes:
    if value is None:
        return b"\xff\xff\xff\xff"
    if isinstance(value, bool):
        value = b"\x01" if value else b"\x00"
    if isinstance(value, int):
        value = struct.pack(">q", value)
    if isinstance(value, str):
        value = value.encode("utf-8")
    return struct.pack(">i", len(value)) + value


def header(kind: str, columns: dict[str, Any]) -> bytes:
    """Encodes a header. `columns` are in the order of the document, with hashes and run_id as hex digits."""
    made = field(kind)
    for column, value in columns.items():
        if column == "inputs":
            made += field(b"".join(struct.pack(">q", number) for number in value))
        elif column in {"meta_commitment", "source_before", "source_end", "run_id"}:
            made += field(None if value is None else bytes.fromhex(value))
        else:
            made += field(value)
    return made


def entry(previous: bytes, pos: int, ordinal: int, microseconds: int, commitment: bytes, header: bytes) -> bytes:
    return sha(b"\x01", previous, struct.pack(">qqq", pos, ordinal, microseconds), commitment, header)


KEY = "018cc820-db2e-7a5c-9b1d-2e3f40516273"
NAMES = [
    ("default", "t-1"),
    ("acme", "support/2024-11"),
    ('quote"d', "back\\slash"),
    ("line\nfeed\ttab\rreturn", "\b\f\x01\x1f"),
    ("\x7f/slash", "\u2028\u2029"),
    ("größe", "会話"),
    ("\U0001f512", "e\u0301 is not \u00e9"),
    ("\uffff\ufdd0\U0010ffff", " "),
]

CONTENTS = [
    (SALT, "{}"),
    (SALT, '{"role":"user","content":"hi"}'),
    (OTHER_SALT, '{"role":"user","content":"größe 会話 \U0001f512"}'),
    (OTHER_SALT, '{"content":"\\ud800 alone","n":1e400,"zero":"\\u0000"}'),
    (bytes(16), '{ "spaces" : [1,  2] }'),
]

MESSAGES: list[dict[str, Any]] = [
    {
        "role": None, "tokens": 0, "counter": "", "key": None, "call_size": None, "receipt": None, "actor": None,
        "login": "", "meta_commitment": None,
    },
    {
        "role": "user", "tokens": 7, "counter": "bytes/4", "key": "~AAAAAAAAAAAAAAAAAAAAAA", "call_size": None,
        "receipt": None, "actor": None, "login": "agents", "meta_commitment": None,
    },
    {
        "role": "assistant", "tokens": 2**31 - 1, "counter": "größe", "key": "会話", "call_size": 1000,
        "receipt": '{"pos":1}', "actor": "größe", "login": "app", "meta_commitment": sha(b"\x04", SALT, b"{}").hex(),
    },
    {
        "role": "", "tokens": 1, "counter": "c", "key": "", "call_size": 0, "receipt": "", "actor": "",
        "login": "größe", "meta_commitment": "",
    },
]  # fmt: skip

COMPACTIONS: list[dict[str, Any]] = [
    {
        "kind": "summary", "outcome": "failed", "start_seq": None, "end_seq": None, "tokens_before": None,
        "tokens_after": None, "source_count": None, "source_before": None, "source_end": None, "inputs": [],
        "run_id": RUN_ID.hex(), "callback": None, "trigger": None, "actor": None, "login": "",
        "model": None, "counter": None, "revokes": None,
    },
    {
        "kind": "truncation", "outcome": "applied", "start_seq": 2, "end_seq": 2**53, "tokens_before": 900,
        "tokens_after": 31, "source_count": 2**53 - 1, "source_before": "11" * 32, "source_end": "22" * 32,
        "inputs": [1, 2, 9], "run_id": RUN_ID.hex(), "callback": "app.compact", "trigger": "budget", "actor": "größe",
        "login": "agents", "model": "model-1", "counter": "bytes/4", "revokes": None,
    },
    {
        "kind": "revocation", "outcome": "applied", "start_seq": 1, "end_seq": 3, "tokens_before": 5,
        "tokens_after": 50, "source_count": None, "source_before": None, "source_end": None, "inputs": [],
        "run_id": "ff" * 16, "callback": None, "trigger": None, "actor": "", "login": "größe", "model": None,
        "counter": None, "revokes": 1,
    },
]  # fmt: skip

EVENTS: list[dict[str, Any]] = [
    {"kind": "redaction", "critical": True, "actor": None, "login": "agents"},
    {"kind": "hold", "critical": False, "actor": "legal@größe", "login": "größe"},
    {"kind": "a_kind_of_2031", "critical": True, "actor": "", "login": ""},
]


def chain() -> dict[str, Any]:
    """Returns a thread of three entries: a message with meta, a summary of the message, and an event."""
    tenant, thread_id = "default", "t-1"
    meta = '{"source":"web"}'
    rows: list[dict[str, Any]] = []
    named = name_commitment(OTHER_SALT, thread_id)
    previous = genesis(KEY, tenant, named)
    for kind, ordinal, created_at, microseconds, salt, body in (
        ("message", 1, "2024-01-02T03:04:05.678901+00:00", 1704164645678901, SALT, CONTENTS[1][1]),
        (
            "compaction", 1, "2024-01-02T03:04:06+00:00", 1704164646000000, OTHER_SALT,
            '{"summary_text":"A greeting.","replacement":[{"role":"user","content":"A greeting."}]}',
        ),
        ("event", 0, "2024-01-02T03:04:06+00:00", 1704164646000000, bytes(16), '{"reason":"audit"}'),
    ):  # fmt: skip
        columns: dict[str, Any]
        if kind == "message":
            columns = MESSAGES[1] | {"meta_commitment": sha(b"\x04", salt, meta.encode()).hex()}
        elif kind == "compaction":
            columns = COMPACTIONS[1] | {
                "kind": "summary", "start_seq": 1, "end_seq": 1, "tokens_before": 7, "tokens_after": 3,
                "source_count": 1, "source_before": None, "source_end": rows[0]["entry"], "inputs": [],
                "actor": None,
            }  # fmt: skip
        else:
            columns = EVENTS[1]
        commitment = sha(b"\x00", salt, body.encode())
        made = header(kind, columns)
        pos = len(rows) + 1
        previous = entry(previous, pos, ordinal, microseconds, commitment, made)
        rows.append(
            {
                "kind": kind, "pos": pos, "ordinal": ordinal, "created_at": created_at, "microseconds": microseconds,
                "salt": salt.hex(), "body": body, "meta": meta if kind == "message" else None, "columns": columns,
                "commitment": commitment.hex(), "header": made.hex(), "entry": previous.hex(),
            }
        )  # fmt: skip
    return {
        "tenant": tenant, "thread_id": thread_id, "thread_uid": KEY, "name_salt": OTHER_SALT.hex(),
        "name_commitment": named.hex(), "genesis": genesis(KEY, tenant, named).hex(), "rows": rows,
        "head": previous.hex(),
    }  # fmt: skip


def golden() -> dict[str, Any]:
    kinds = {"message": MESSAGES, "compaction": COMPACTIONS, "event": EVENTS}
    made = [(kind, columns, header(kind, columns)) for kind, examples in kinds.items() for columns in examples]
    numbers = [(1, 1, 0), (2, 0, -1), (2**53, 2**53 - 1, 1704164645678901), (3, 1, -(2**55))]
    return {
        "format": 1,
        "names": [
            {
                "tenant": t, "thread_id": i, "thread_uid": KEY, "salt": SALT.hex(),
                "commitment": name_commitment(SALT, i).hex(),
                "genesis": genesis(KEY, t, name_commitment(SALT, i)).hex(),
            }
            for t, i in NAMES
        ],
        "commitments": [
            {
                "salt": salt.hex(), "text": text, "commitment": sha(b"\x00", salt, text.encode()).hex(),
                "meta_commitment": sha(b"\x04", salt, text.encode()).hex(),
            }
            for salt, text in CONTENTS
        ],
        "headers": [{"kind": kind, "columns": columns, "header": fields.hex()} for kind, columns, fields in made],
        "entries": [
            {
                "previous": f"{i:02x}" * 32, "pos": pos, "ordinal": ordinal, "microseconds": microseconds,
                "commitment": "ab" * 32, "header": made[i][2].hex(),
                "entry": entry(
                    bytes([i] * 32), pos, ordinal, microseconds, bytes.fromhex("ab" * 32), made[i][2]
                ).hex(),
            }
            for i, (pos, ordinal, microseconds) in enumerate(numbers)
        ],
        "chain": chain(),
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(golden(), indent=1, ensure_ascii=True))
