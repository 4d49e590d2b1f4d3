"""Makes bundles entry by entry, as a store writes them, for golden files and random tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise
from typing import Any
from uuid import UUID

from compaction_store.bundles import line_format
from compaction_store.integrity import chain
from support.paths import TESTS

GOLDEN = TESTS / "golden"
Line = dict[str, Any]
START = 1_704_164_645_678_901
LOGIN = "app_größe"


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _unhex(value: str | None) -> bytes | None:
    return None if value is None else bytes.fromhex(value)


def new_key(tenant: str, thread_id: str, microseconds: int = START) -> UUID:
    """Returns a thread_uid for a thread that is created at a time. The same arguments give the same thread_uid."""
    born = (chain.milliseconds(microseconds) or 0).to_bytes(6, "big")
    other = bytearray(sha256(b"key %s %s" % (tenant.encode(), thread_id.encode())).digest()[:10])
    other[0], other[2] = other[0] & 15 | 0x70, other[2] & 63 | 0x80
    return UUID(bytes=born + bytes(other))


class Thread:
    """A thread that grows by one entry per call. Salts and times depend only on the pos, so the bytes never change."""

    def __init__(self, tenant: str = "default", thread_id: str = "t-1", uid: UUID | None = None) -> None:
        self.tenant, self.thread_id = tenant, thread_id
        self.uid = uid or new_key(tenant, thread_id)
        self.metadata = "{}"
        self.subject: str | None = None
        #: The time of the first entry in microseconds.
        self.start = START
        self.checkpoint: Line | None = None
        self.entries: list[Line] = []
        self.name_salt: bytes | None = sha256(b"salt of the name").digest()[:16]
        self.name_commitment = chain.name_commitment(self.name_salt, thread_id)

    @property
    def genesis(self) -> bytes:
        return chain.genesis(self.uid, self.tenant, self.name_commitment)

    def _next(self) -> tuple[int, int, str]:
        pos = len(self.entries) + 1
        return pos, self.start + 1_000_003 * (pos - 1), sha256(b"salt %d" % pos).hexdigest()[:32]

    def _count(self, kind: str) -> int:
        return sum(line["type"] == kind for line in self.entries)

    def message(
        self, payload: str, *, meta: str | None = None, key: str | None = None, tokens: int = 7, **columns: Any
    ) -> Line:
        pos, at, salt = self._next()
        said = json.loads(payload)
        line = {
            "type": "message", "pos": pos, "seq": self._count("message") + 1, "microseconds": at,
            "role": said.get("role"), "tokens": tokens, "counter": "bytes/4", "key": key, "call_size": None,
            "receipt": None, "actor": None, "login": LOGIN, "meta_commitment": None, "redacted_pos": None,
            "commitment": "", "entry": "", "salt": salt, "meta": meta, "payload": payload, **columns,
        }  # fmt: skip
        if meta is not None:
            line["meta_commitment"] = chain.meta_commitment(bytes.fromhex(line["salt"]), meta.encode()).hex()
        return self._add(line, payload)

    def compaction(self, body: str = "{}", *, start: int | None = None, end: int | None = None, **columns: Any) -> Line:
        pos, at, salt = self._next()
        line = {
            "type": "compaction", "pos": pos, "number": self._count("compaction") + 1, "microseconds": at,
            "kind": "summary", "outcome": "applied" if start else "failed", "start_seq": start, "end_seq": end,
            "tokens_before": None, "tokens_after": None, "source_count": None, "source_before": None,
            "source_end": None, "inputs": [], "run_id": str(UUID(int=pos)), "callback": "app.compact",
            "trigger": "budget", "actor": None, "login": LOGIN, "model": None, "counter": "bytes/4", "revokes": None,
            "redacted_pos": None, "commitment": "", "entry": "", "salt": salt, "body": body, **columns,
        }  # fmt: skip
        if start is not None and end is not None and line["outcome"] == "applied" and line["kind"] != "revocation":
            entries = {line["seq"]: line["entry"] for line in self.entries if line["type"] == "message"}
            line |= {
                "tokens_before": 7 * (end - start + 1), "tokens_after": 3, "source_count": end - start + 1,
                "source_before": entries.get(start - 1), "source_end": entries[end],
            } | columns  # fmt: skip
        return self._add(line, body)

    def event(self, kind: str, body: str = "{}", actor: str | None = None, *, critical: bool = False) -> Line:
        pos, at, salt = self._next()
        line = {
            "type": "event", "pos": pos, "microseconds": at, "kind": kind, "critical": critical, "actor": actor,
            "login": LOGIN, "commitment": "", "entry": "", "salt": salt, "body": body,
        }  # fmt: skip
        return self._add(line, body)

    def redact(self, seqs: set[int], numbers: set[int], **more: str | bool) -> Line:
        """Erases entries and adds the event that names them, without the entries that were erased before."""
        chosen = [
            line
            for line in self.entries
            if line.get("redacted_pos", 0) is None
            and (line.get("seq") in seqs or (line["type"] == "compaction" and line["number"] in numbers))
        ]
        named = {
            "seqs": _ranges([line["seq"] for line in chosen if line["type"] == "message"]),
            "records": _ranges([line["number"] for line in chosen if line["type"] == "compaction"]),
        }
        body = json.dumps(named | more, separators=(",", ":"))
        event = self.event("redaction", body, "legal@größe", critical=True)
        for line in chosen:
            line.update(dict.fromkeys(set(line) & {"salt", "meta", "payload", "body"}) | {"redacted_pos": event["pos"]})
        return event

    def erase(self) -> None:
        self.redact(set(range(1, 1000)), set(range(1, 1000)), whole=True)
        self.thread_id, self.name_salt = f"erased:{self.uid}", None
        self.metadata, self.subject = "{}", None

    def _add(self, line: Line, content: str) -> Line:
        previous = bytes.fromhex(self.entries[-1]["entry"]) if self.entries else self.genesis
        line["commitment"] = chain.commitment(bytes.fromhex(line["salt"]), content.encode()).hex()
        line["entry"] = entry(line, previous)
        self.entries.append(line)
        return line

    def lines(self, bodies: Callable[[Line], bool] = lambda _line: True) -> list[bytes]:
        head = self.entries[-1]["entry"]
        manifest = {
            "type": "manifest", "format": line_format.FORMAT, "chain": line_format.CHAIN, "tenant": self.tenant,
            "thread_id": self.thread_id, "thread_uid": str(self.uid), "name_salt": _hex(self.name_salt),
            "name_commitment": self.name_commitment.hex(), "schema": "0001", "made_at": "2024-01-03T00:00:00.000000Z",
            "metadata": self.metadata, "subject": self.subject, "last_pos": len(self.entries),
            "last_seq": self._count("message"), "last_number": self._count("compaction"), "head": head,
            "checkpoint": self.checkpoint,
        }  # fmt: skip
        said = [
            line if bodies(line) else line | dict.fromkeys(set(line) & {"salt", "meta", "payload", "body"})
            for line in self.entries
        ]
        return sealed([manifest, *said])


def entry(line: Line, previous: bytes) -> str:
    """Computes the entry of a line from its columns and its commitment."""
    if line["type"] == "message":
        header = chain.message_header(
            **{name: line[name] for name in chain.COLUMNS["message"]}, meta_commitment=_unhex(line["meta_commitment"])
        )
    elif line["type"] == "event":
        header = chain.event_header(**{name: line[name] for name in chain.COLUMNS["event"]})
    else:
        names = (
            "kind", "outcome", "start_seq", "end_seq", "tokens_before", "tokens_after", "source_count", "inputs",
            "callback", "trigger", "actor", "login", "model", "counter", "revokes",
        )  # fmt: skip
        header = chain.compaction_header(
            **{name: line[name] for name in names}, source_before=_unhex(line["source_before"]),
            source_end=_unhex(line["source_end"]), run_id=UUID(line["run_id"]),
        )  # fmt: skip
    ordinal = {"message": line.get("seq"), "compaction": line.get("number")}.get(line["type"]) or 0
    commitment = bytes.fromhex(line["commitment"])
    return chain.entry(previous, line["pos"], ordinal, line["microseconds"], commitment, header).hex()


def _ranges(numbers: list[int]) -> list[list[int]]:
    if not numbers:
        return []
    breaks = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1), len(numbers)]
    return [[numbers[a], numbers[b - 1]] for a, b in pairwise(breaks)]


def sealed(lines: list[Line], **end: Any) -> list[bytes]:
    """Returns the lines of a bundle, with a matching last line. The first line is the manifest."""
    written = [line_format.dump(line) for line in lines]
    digest = sha256(b"".join(written)).hexdigest()
    mark = {"type": "end", "entries": len(written) - 1, "head": lines[0]["head"], "sha256": digest}
    return [*written, line_format.dump(mark | end)]


def said(lines: list[bytes]) -> list[Line]:
    """Returns the parsed lines of a bundle without its last line, so that they can be changed and sealed again."""
    return [json.loads(line) for line in lines[:-1]]


def rich(tenant: str = "default", thread_id: str = "t-1") -> Thread:
    """Returns a thread with a value in every column, every kind of event, and kinds that a later release may write."""
    thread = Thread(tenant, thread_id)
    thread.subject = "größe"
    thread.metadata = '{"title":"größe 会話 🔒","n":1.0}'
    thread.message('{"role":"user","content":"hi"}', meta='{"source":"web"}', key="~AAAAAAAAAAAAAAAAAAAAAA")
    receipt = '{"pos":1,"renderer":"messages/1","options":{},"sha256":"' + sha256(b"seen").hexdigest() + '"}'
    thread.message(
        '{"role":"assistant","content":"größe \\u0000 \\ud800 \u2028\u007f🔒"}', receipt=receipt, key="r", actor="größe"
    )
    thread.message('{"b": 1e400,\n "a":[true,null,1.0,12345678901234567890123]}', key="three", call_size=3)
    thread.message('{"type":"function_call","call_id":"c","arguments":"{\\"q\\":\\"\\\\\\"\\"}"}', meta="{}")
    thread.message('{"role":"user","content":""}', tokens=0)
    thread.compaction()
    thread.compaction(
        '{"summary_text":"A greeting.","replacement":[{"role":"user","content":"A greeting."}]}', start=2, end=3,
        actor="größe", model="model-1", inputs=[1],
    )  # fmt: skip
    thread.compaction('{"replacement":[]}', start=1, end=4, kind="removal", inputs=[1, 2])
    revoked = {"kind": "revocation", "outcome": "applied", "tokens_before": 3, "tokens_after": 28}
    thread.compaction('{"reason":"not so"}', start=1, end=4, revokes=3, **revoked)
    thread.compaction('{"error":{"type":"SplitPair"}}', outcome="rejected", start=1, end=2)
    thread.compaction("{}", outcome="observed")
    thread.event("hold", '{"reason":"audit"}', "legal@größe")
    thread.event("release", '{"reason":"done"}')
    thread.event("retention", '{"until":"2031-01-31T00:00:00.000000Z","reason":"law"}')
    thread.event("later_kind", "{}")
    thread.compaction("{}", kind="later_kind", outcome="later_outcome")
    thread.message('{"role":"user","content":"to be erased"}', meta='{"name":"nobody"}')
    thread.message('{"role":"user","content":"and this"}')
    thread.compaction('{"replacement":[]}', start=5, end=6, kind="removal")
    thread.redact({5, 6}, {8}, reason="asked")
    thread.message('{"role":"user","content":"after"}')
    return thread


def forked(tenant: str = "default", thread_id: str = "t-2") -> Thread:
    """Returns a fork with the records and events of rewinds, clears, adoptions, refusals and forks."""
    parent, thread = rich(tenant), Thread(tenant, thread_id)
    entry_there = parent.entries[1]["entry"]
    thread.event("origin", f'{{"parent":"{parent.uid}","pos":2,"seq":2,"entry":"{entry_there}","reason":"what if?"}}')
    for line in parent.entries[:2]:
        # A copy has the salt of its original, so that their commitments are equal.
        copied = {name: line[name] for name in ("meta", "key", "receipt", "salt", "actor")}
        thread.message(line["payload"], **copied)
    thread.message('{"type":"function_call","call_id":"c","name":"look","arguments":"{}"}')
    nobody: Line = {"callback": None, "counter": None, "tokens_after": 0}
    thread.compaction('{"replacement":[],"reason":"no"}', start=3, end=3, kind="rewind", trigger="manual", **nobody)
    thread.message('{"role":"user","content":"größe?"}')
    adopted = '{"replacement":[{"type":"compaction","encrypted_content":"🔒"}],"unreadable":true}'
    by_provider = {"callback": "provider:responses.compact", "trigger": "provider", "inputs": [1]}
    thread.compaction(adopted, start=1, end=4, kind="adoption", **by_provider)
    thread.compaction('{"replacement":[]}', start=1, end=4, kind="clear", trigger="hide", actor="größe", **nobody)
    undone = {"tokens_before": 0, "tokens_after": 28, "outcome": "applied", "callback": None, "counter": None}
    thread.compaction('{"reason":"not so"}', start=1, end=4, kind="revocation", revokes=3, trigger="revoke", **undone)
    thread.event("hold", '{"reason":"audit","authority":{"ticket":"X-1"}}')
    refused = {
        "refused": "redact",
        "because": "the thread is held since pos 10",
        "forbidden_by": [10],
        "seqs": [[1, 1]],
    }
    thread.event("refusal", json.dumps(refused | {"reason": "asked"}, separators=(",", ":")), "clerk")
    child = new_key(tenant, "t-3")
    thread.event("fork", f'{{"child":"{child}","pos":11,"seq":4,"head":"{thread.entries[-1]["entry"]}"}}')
    return thread


def golden() -> dict[str, list[bytes]]:
    """Returns the golden bundles by the names of their files."""
    full = rich()
    full.checkpoint = {"note": "log\n1\nroot\n\n— log sig\n", "proof": ["00" * 32], "leaf_index": 0, "key": "ab" * 32}
    erased = rich("acme", "to be erased")
    erased.erase()
    return {
        "bundle-1.jsonl": full.lines(),
        "bundle-1-withheld.jsonl": full.lines(lambda line: line["type"] == "compaction" or line["pos"] % 3 == 0),
        "bundle-1-erased.jsonl": erased.lines(),
        "bundle-1-fork.jsonl": forked().lines(),
    }
