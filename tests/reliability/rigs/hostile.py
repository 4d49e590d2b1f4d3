"""Sends five hundred messages, names, keys and texts that have broken other stores through every interface.

Each is stored and comes back byte for byte, or is refused with an error of this package before anything is sent: a
proxy counts the requests. Then everything that reads, audits, exports and prints is run on the accepted ones, and must
not fail.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

import compaction_store as cs
from reliability.rigs.ground import Ground
from reliability.rigs.proxy import Proxy

MIB = 1024 * 1024
LEAST = 500
_FEW = 120

TEXTS = (
    "", " ", "\n", "\r\n", "\t", "\0", "a\0b", "\0" * 1000, "\ud800", "\udc00", "\udc00\ud800", "a\ud800b", "\ud83d",
    "\ufffe", "\uffff", "\U0001ffff", "\ufeff", "\ufeffa", "\u2028", "\u2029", "\x85", "\x1b[2J", "\x7f", "\x01\x02",
    "\u202eabc", "\u2066a\u2069", "\u200b", "\u200d", "\U000e0041", "é", "e\u0301", "\ufb01", "ß", "\u0131", "\u0130",
    "\u01c5", "\u00c5", "\u212b",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u05e2\u05d1", "\u0639\u0631",
    "\u4e2d\u6587", "\U0001d518\U0001d52b", "a" * 10_000,
    "\U0001f512" * 5000, "'", "''", '"', "\\", "\\u0000", "\\ud800", "%", "%s", "%(a)s", "%b", "{}", "{0}", "$1", "$$",
    ":name", "?", "--", "/* */", "; DROP TABLE messages", "' OR 1=1 --", "<script>", "</summary>", "<|im_end|>",
    "[INST]", "System:", "../../etc/passwd", "file:///", "null", "NULL", "None", "true", "0", "-0", "1e400", "NaN",
    "Infinity", "2024-01-01", "{}\n{}", '{"a":1}', "[1,2", "\\N", "\\.", "~", "erased:x", "COPY", "\x00\x01PGCOPY",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.0, -0.0, 0.1, 1e-320, 5e-324, 1.7976931348623157e308, 1e22, 1e16,
    123456789.123456789,
    2**31, 2**53, 2**53 + 1, 2**63, 2**64, 2**70, -(2**70), 10**308, 10**400, 10**4299, 10**4300, -(10**4300), 10**5000,
    math.nan, math.inf, -math.inf, [], {}, [[]], [None], {"": ""}, {"\0": 1}, {"\ud800": 1}, {"a": {"a": {"a": 1}}},
    [1, 1.0, "1"], [[1, 2], [3]], {"é": 1, "e\u0301": 2}, {"role": "user"}, {"__proto__": 1}, {"constructor": {}},
    b"bytes", {1, 2}, object(), 1j, {1: 2}, {None: 1}, {True: 1}, {b"a": 1}, {(1,): 2}, ..., range(3), len,
    {"content": [{"type": "text", "text": "\0"}]}, {"tool_calls": "no list"}, {"tool_calls": [None, 1, {}]},
)  # fmt: skip
ROLES: tuple[Any, ...] = (
    "user",
    "assistant",
    "system",
    "tool",
    "",
    " ",
    "USER",
    "a" * 64,
    "a" * 65,
    "rôle",
    "\0",
    "\ud800",
    None,
    1,
    [],
    {},
)
NOT_MESSAGES: tuple[Any, ...] = ("text", b"{}", None, 1, True, [1], [[]], [None], ["{}"], math.nan, object(), dict, {1})


class Entry(NamedTuple):
    """An input, the place where it is given, and the value that must come back if it is accepted."""

    door: str
    what: Any


class Unlike(AssertionError):
    """The value that came back is not the one that was given."""


def deep(levels: int) -> dict[str, Any]:
    value: Any = 1
    for i in range(levels - 1):
        value = [value] if i % 2 else {"a": value}
    return {"content": value}


def corpus() -> Iterator[Entry]:
    for text in TEXTS:
        yield Entry("message", {"role": "user", "content": text})
        yield Entry("message", {text: "x"})
        yield Entry("name", text)
        yield Entry("summary", text)
    for value in VALUES:
        yield Entry("message", {"content": value})
        yield Entry("message", {"content": [{"a": value}]})
        yield Entry("meta", {"m": value})
    for role, content in product(ROLES, ("x", None)):
        yield Entry("message", {"role": role, "content": content})
    for thing in NOT_MESSAGES:
        yield Entry("message", thing)
        yield Entry("name", thing)
    for levels in (1, 199, 200, 201, 1_000, 10_000):
        yield Entry("message", deep(levels))
    for size in (255, 256, 257, 127):
        yield Entry("name", "x" * size)
        yield Entry("name", "é" * (size // 2))
    for size in (8 * 1024 - 9, 8 * 1024):
        yield Entry("meta", {"m": "x" * size})
    yield Entry("message", {f"key {i}": i for i in range(10_000)})
    yield Entry("message", {"content": list(range(100_000))})


def largest() -> Iterator[Entry]:
    room = 16 * MIB - len('{"content":""}')
    yield from (Entry("message", {"content": "x" * (room + more)}) for more in (-1, 0, 1))
    yield Entry("message", {"content": "\ud800" * (room // 6 + 1)})
    yield Entry("message", {"content": "x" * (256 * MIB)})


def run(ground: Ground, chance: random.Random, *, long: bool) -> dict[str, Any]:
    """Runs the entries in random order. The short form takes some of them, and none of the largest."""
    entries = [*corpus(), *(largest() if long else ())]
    assert len(entries) >= LEAST, len(entries)
    chance.shuffle(entries)
    printing = list(product(_VERBS, _FORMS))
    if not long:
        entries, printing = entries[:_FEW], [chance.choice(printing)]
    seen: Counter[str] = Counter()
    url = ground.database()
    with Proxy(url, chance) as proxy, cs.Store.open(proxy.url, deadline=60) as store:
        store.append("t", {"role": "user", "content": "begin"}, tokens=1)
        for entry in entries:
            requests = proxy.seen["requests"]
            try:
                _DOORS[entry.door](store, entry.what, seen)
            except cs.CompactionStoreError as refusal:
                _proper(refusal, entry, sent=proxy.seen["requests"] - requests)
                seen[f"{entry.door}: refused"] += 1
            else:
                seen[f"{entry.door}: stored"] += 1
        seen["requests while nothing was refused"] = proxy.seen["requests"]
    with cs.Store.open(url) as store:
        _everything_reads(store, seen)
        for verb, form in printing:
            _printed(url, verb, form)
            seen["printed by the command line"] += 1
    return {"entries": len(entries), **seen, "altered": 0, "raw errors": 0, "poison rows": 0}


def _proper(refusal: cs.CompactionStoreError, entry: Entry, *, sent: int) -> None:
    """Checks that nothing was sent before a refusal. The rules refuse a summary, and that is recorded."""
    kind = cs.Rejected if entry.door == "summary" else cs.InvalidInput
    assert isinstance(refusal, kind), f"{entry.door} refused with {refusal!r}"
    assert not sent or entry.door == "summary", f"{refusal!r} after {sent} requests"


def _same(found: Any, given: Any) -> None:
    """Returns whether values are equal and of the same types: 1 is not 1.0 and not True; -0.0 is not 0.0."""
    if repr(found) != repr(given):
        raise Unlike(f"{found!r:.200} is not {given!r:.200}")


def _message(store: cs.Store, what: Any, _seen: Counter[str]) -> None:
    [written] = store.append("t", what, tokens=1, raw=True)
    found = store.message("t", written.seq)
    _same(found.payload, what)
    _same(found.text, written.text)
    assert found == written
    assert found.text is not None
    _same(json.loads(found.text), what)


def _meta(store: cs.Store, what: Any, _seen: Counter[str]) -> None:
    [written] = store.append("t", {"content": "x"}, meta=what, tokens=1, raw=True)
    _same(store.message("t", written.seq).meta, what)


def _name(store: cs.Store, what: Any, _seen: Counter[str]) -> None:
    """Uses it as a thread's name, as a key, and as an actor."""
    message = {"role": "assistant", "content": "word " * 20}
    [first] = store.append(what, message, key=what, tokens=50)
    [again] = store.append(what, message, key=what, tokens=50)
    _same(first.text, again.text)
    assert first == again
    assert store.thread(what).thread_id == what
    record = store.compact(what, lambda ctx: ctx.remove(first.seq, first.seq, reason=what), actor=what)[0]
    _same((record.actor, record.reason, record.thread_id), (what, what, what))
    assert [r.number for r in store.compactions(what, actor=what)][-1:] == [record.number]


def _summary(store: cs.Store, what: Any, _seen: Counter[str]) -> None:
    """Uses it as the text of a summary, its prompt and its reason."""
    [written] = store.append("s", {"role": "assistant", "content": "word " * 20_000}, tokens=100_000)
    summary = cs.Summary(what, model="m", prompt=what, usage={"text": what}, provider={"text": what})
    # A reason is the shortest of the three.
    reason = what[:1_000]
    run = store.compact("s", lambda ctx: ctx.compact(written.seq, written.seq, summary, reason=reason))
    [record] = run
    if record.outcome != "applied":
        raise run.errors[0]
    found = store.compaction("s", record.number)
    _same((found.summary_text, found.reason), (what, reason))
    assert found.body is not None
    _same(found.body["prompt"], what)
    assert store.view("s").elements[-1].number == record.number


_VERBS = [
    ["threads"], ["compactions"], ["verify", "--all"], ["view", "t"], ["view", "s"], ["replay", "t"],
]  # fmt: skip
_FORMS = ("--table", "--json")
_DOORS: dict[str, Callable[[cs.Store, Any, Counter[str]], None]] = {
    "message": _message, "meta": _meta, "name": _name, "summary": _summary,
}  # fmt: skip


def _everything_reads(store: cs.Store, seen: Counter[str]) -> None:
    threads = [t.thread_id for t in store.threads()]
    for thread_id in threads:
        view, messages = store.view(thread_id), list(store.replay(thread_id))
        assert [s for e in view.elements for s in range(e.seq, e.end_seq + 1)] == [m.seq for m in messages]
        for record in store.compactions(thread_id):
            list(store.audit.originals(record))
            store.audit.tree(record)
        for message in messages[:: max(1, len(messages) // 20)]:
            store.audit.explain(thread_id, message.seq)
            with suppress(cs.PositionNotFound, cs.MessageNotFound):
                store.seen_by(thread_id, message.seq)
        assert store.audit.verify(thread_id).findings == ()
        _bundled(store, thread_id)
    records = list(store.compactions())
    assert len(records) == sum(store.thread(t).last_number for t in threads)
    seen["threads read"], seen["records read"] = len(threads), len(records)


def _bundled(store: cs.Store, thread_id: str) -> None:
    """Checks that a bundle of the thread verifies."""
    report = cs.verify_bundle(store.audit.export(thread_id))
    assert report.findings == (), report.findings[:3]


def _printed(url: str, verb: list[str], form: str) -> None:
    """Checks that the command line prints the thread, as a table or as JSON."""
    done = subprocess.run(
        (sys.executable, "-m", "compaction_store", *verb, form, "--url", url), check=False, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{verb} {form}: {done.stderr.decode()[-500:]}"
    if form == "--json":
        for line in done.stdout.splitlines():
            json.loads(line)
