"""Changes bundles in every way and seals them again. Both verifiers must agree, and valid bundles are imported.

It changes bytes, lines and fields, and also the meaning: documents, times, kinds, names, erasures. After a change of
meaning the chain is recomputed, so that only rules about meaning can find it. A bundle that both verifiers accept must
be imported and read back, or refused with an error of this package.
"""

from __future__ import annotations

import io
import json
import random
import struct
from collections import Counter
from typing import Any
from uuid import UUID

from support.handmade_bundles import Line, Thread, entry, golden, said, sealed

import compaction_store as cs
from compaction_store import offline
from compaction_store.errors import UnknownEntry
from compaction_store.integrity import chain
from reliability.rigs import fuzz
from reliability.rigs.ground import Ground

_IMPORT_ONE_IN = 25


def _nested(levels: int, leaf: str = "1") -> str:
    return '{"a":' * (levels - 1) + f'{{"b":{leaf}}}' + "}" * (levels - 1)


def _copied(other: str, entry: str, pos: int) -> str:
    """Makes the body of an origin or a fork."""
    return f'{{"{other}":"{UUID(int=pos)}","pos":{pos},"seq":{pos},"{entry}":"{"00" * 32}","reason":"r"}}'


def _digits(count: int, sign: str = "") -> str:
    return f'{{"n":{sign}{"9" * count}}}'


DOCUMENTS = (
    "", "x", "{", "null", "5", "[]", '"x"', "{}", " {} ", '{"a":1,}', '{"a":NaN}', '{"a":-Infinity}', "NaN",
    '{"a":1}{', '{"a":01}', '{"a":1.}', '{"a":+1}', '{"a":1e400}', '{"a":-0}', '{"a":-0.0,"b":1E5,"c":1.50}',
    '{"a":1,"a":1}', '{"a":1,"\\u0061":2}', '{"a":{"b":[{"c":1,"c":1}]}}', '{"\\ud83d\\ude00":1,"😀":2}',
    '{"a":"\\ud800"}', '{"a":"\\udc00\\ud800"}', '{"\\ud800":1}', '{"a":"\\u0000"}', '{"":1}', '{"":1,"":1}',
    '{"a":"\t"}', '{"a":"\x7f\u2028"}', "\ufeff{}", "{\u00a0}", '{"a":"\\x"}', '{"a":"\\/"}', "{'a':1}", '{"a":tru}',
    '{"role":"user"}', '{"role":"user","role":"user"}', '{"role":"assistant"}', '{"role":1}', '{"role":"user","x":[]}',
    '{"replacement":[]}', '{"replacement":{}}', '{"replacement":[{}]}', '{"replacement":["x"]}', '{"replacement":null}',
    '{"replacement":[],"replacement":[]}', '{"seqs":[],"records":[]}', '{"seqs":[[1,1]],"records":[]}',
    '{"seqs":[[1,1]],"seqs":[],"records":[]}', '{"seqs":[[1,2],[3,4]],"records":[]}',
    '{"seqs":[["a","b"]],"records":[]}',
    '{"seqs":{"ab":1},"records":[]}', '{"seqs":[[1,1]],"records":[],"whole":true}',
    '{"seqs":[[true,true]],"records":[]}',
    '{"seqs":[[1.0,1]],"records":[]}', '{"seqs":[[1,99999999999999999999]],"records":[]}',
    '{"seqs":[[1,1,1]],"records":[]}',
    '{"seqs":[],"records":[],"whole":false}', '{"seqs":[],"records":[],"whole":7}', '{"seqs":"ab","records":[]}',
    _copied("parent", "entry", 1), _copied("parent", "entry", 10**18), _copied("child", "head", 3),
    _copied("child", "head", 1) + " ", " " + _copied("parent", "entry", 1), '{"parent":5}', '{"pos":1e400}',
    '{"refused":"redact","seqs":5}', '{"refused":"erase","because":5,"seqs":[[5]]}',
    '{"until":"2031-01-31T00:00:00.000000Z"}', '{"until":"2001","until":"2099"}',
    _digits(4300), _digits(4301), _digits(4300, "-"), _digits(4301, "-"), _digits(5000),
    *(_nested(levels) for levels in (199, 200, 201, 209, 210, 211, 300, 1000, 3000)),
    '{"a":' + "[" * 199 + "]" * 199 + "}", '{"a":' + "[" * 200 + "]" * 200 + "}", '{"a":"' + "[" * 500 + '"}',
    '{"a":"\\\\","b":"' + "{" * 300 + '"}', '{"a":"\\"' + "[" * 300 + '"}', "[" * 100_000, '{"a":' * 50_000,
    '{"a":"' + "x" * 8184 + '"}', '{"a":"' + "x" * 8185 + '"}', '{"a":"' + "é" * 4092 + '"}',
    '{"a":"' + "é" * 4093 + '"}',
)  # fmt: skip
_NUMBERS: tuple[Any, ...] = (
    0, 1, 2, 3, -1, 7, 2**31 - 1, 2**31, 2**53, 2**63 - 1, -(2**63), 2**63, 10**25, True, False, None, 1.0, "1", [],
    [1],
    -62_135_596_800_000_001, -62_135_596_800_000_000, 253_402_300_799_999_999, 253_402_300_800_000_000,
)  # fmt: skip
_TEXTS = (
    "", "x", "user", "assistant", "x" * 64, "x" * 65, "x" * 255, "x" * 256, "é" * 128, "\x7f", "\n", "a\u0300", None,
    "applied", "failed", "observed", "rejected", "summary", "removal", "truncation", "revocation", "redaction", "hold",
    "release", "retention", "import", "checkpoint", "erased:", "erased:00000000-0000-0000-0000-000000000000",
    "00000000-0000-0000-0000-000000000000", "00" * 16, "00" * 32, "ab" * 31, "AB" * 32, "2026-01-01T00:00:00.000000Z",
)  # fmt: skip


def thread(chance: random.Random) -> Thread:
    """Makes a valid thread of up to nine entries, with everything that a store writes."""
    made = Thread(chance.choice(("default", "größe", 't"\\')), chance.choice(("t-1", "\x1f", "会話", "x" * 255)))
    if chance.random() < 0.15:
        made.event("origin", _copied("parent", "entry", chance.choice((0, 1, 2, 5, 9))))
    for _ in range(chance.randrange(1, 10)):
        seqs = made._count("message")
        kind = chance.randrange(12)
        if kind == 0 and seqs:
            start = chance.randrange(1, seqs + 1)
            body = json.dumps({"summary_text": "s", "replacement": [{"role": "user"}] * chance.randrange(3)})
            made.compaction(body, start=start, end=chance.randrange(start, seqs + 1))
        elif kind == 1:
            made.compaction('{"error":{"type":"X"}}', outcome=chance.choice(("failed", "rejected", "observed")))
        elif kind == 2:
            made.event(chance.choice(("hold", "release", "retention", "import")), '{"reason":"r"}', "me")
        elif kind == 3 and seqs:
            made.redact({chance.randrange(1, seqs + 1)}, set(), reason="r")
        elif kind == 6 or (kind in {4, 5, 7} and seqs):
            _add_newer(made, chance, kind, seqs)
        else:
            role = chance.choice(("user", "assistant"))
            made.message(json.dumps({"role": role, "content": "x"}), meta=chance.choice((None, '{"n":1}')))
    if seqs and chance.random() < 0.15:
        made.erase()
    return made


def _add_newer(made: Thread, chance: random.Random, kind: int, seqs: int) -> None:
    """Adds a rewind or a clear, an adoption, an event of a fork, or an observed record."""
    if kind == 4:
        hides = chance.choice((("rewind", "manual"), ("clear", "manual"), ("clear", "hide")))
        start = 1 if hides[0] == "clear" else chance.randrange(1, seqs + 1)
        made.compaction('{"replacement":[]}', start=start, end=seqs, kind=hides[0], trigger=hides[1], tokens_after=0)
    elif kind == 5:
        start, records = chance.randrange(1, seqs + 1), made._count("compaction")
        made.compaction(
            '{"replacement":[{"role":"user"}],"provider":{"id":"x"}}', start=start, end=seqs, kind="adoption",
            inputs=sorted(chance.sample(range(records + 1), chance.randrange(min(2, records) + 1))),
        )  # fmt: skip
    elif kind == 6:
        made.event(*chance.choice((
            ("fork", _copied("child", "head", 1)), ("refusal", '{"refused":"redact","because":"b","seqs":[[1,1]]}'),
            ("later", '{"x":1}'),
        )))  # fmt: skip
    elif kind == 7:
        made.compaction("{}", start=1, end=seqs, kind=chance.choice(("later", "summary")), outcome="observed")


def rechained(lines: list[Line], genesis: bytes) -> list[bytes]:
    """Recomputes every commitment, entry, count and head. Values that no chain can contain stay."""
    manifest, *entries = lines
    previous = genesis
    for line in entries:
        try:
            salt = bytes.fromhex(line["salt"])
            line["commitment"] = chain.commitment(salt, str(line.get("payload", line.get("body"))).encode()).hex()
            if line.get("meta") is not None:
                line["meta_commitment"] = chain.meta_commitment(salt, line["meta"].encode()).hex()
        except (AttributeError, KeyError, TypeError, ValueError):
            pass
        try:
            line["entry"] = entry(line, previous)
            previous = bytes.fromhex(line["entry"])
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, struct.error):
            pass
    return sealed([manifest | {"head": previous.hex(), "last_pos": len(entries)}, *entries])


def _meaning(chance: random.Random, lines: list[Line]) -> None:
    """Changes what a line means, by a value of the same kind more often than not."""
    line = chance.choice(lines)
    name = chance.choice([name for name in line if name not in {"type", "commitment", "entry", "head"}])
    old = line[name]
    if name in {"payload", "body", "meta", "metadata"}:
        line[name] = chance.choice(DOCUMENTS)
    elif isinstance(old, int):
        line[name] = chance.choice((*_NUMBERS, old + 1, old - 1))
    elif name == "inputs":
        line[name] = chance.choice(([], [1], [2, 1], [-1], [2**63], ["x"], None))
    elif name == "checkpoint":
        line[name] = chance.choice((None, {}, {"note": "", "proof": [], "leaf_index": 0, "key": ""}, 5))
    else:
        line[name] = chance.choice((*_TEXTS, *_NUMBERS) if chance.random() < 0.3 else _TEXTS)


def _moved(chance: random.Random, lines: list[Line]) -> None:
    """Removes an entry, duplicates it, or moves it."""
    if len(lines) < 2:
        return
    at = chance.randrange(1, len(lines))
    line = lines.pop(at)
    if chance.random() < 0.7:
        for _ in range(chance.choice((1, 1, 2))):
            lines.insert(chance.randrange(1, len(lines) + 1), dict(line))


def _erased(chance: random.Random, lines: list[Line]) -> None:
    """Erases an entry as if by the event at a pos, or restores content."""
    line = chance.choice(lines[1:] or lines)
    if "redacted_pos" in line:
        line["redacted_pos"] = chance.choice((None, 1, len(lines), len(lines) - 1, 99, -1))
    if chance.random() < 0.7:
        line.update(dict.fromkeys(set(line) & {"salt", "meta", "payload", "body"}))


def bundle(chance: random.Random) -> tuple[str, list[bytes]]:
    """Returns a changed bundle, and how it was changed."""
    made = thread(chance) if chance.random() < 0.9 else None
    whole = made.lines() if made is not None else chance.choice(_GOLDEN)
    kind = chance.randrange(10)
    if kind == 0:
        return "sound", whole
    if kind == 1:
        return "bytes", list(io.BytesIO(fuzz.broken(chance, b"".join(whole))))
    lines = said(whole)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        chance.choice((_meaning, _meaning, _meaning, _meaning, _moved, _erased))(chance, lines)
    try:
        if kind == 2 or made is None:
            return "sealed", sealed(lines)
        return "computed anew", rechained(lines, made.genesis)
    except (UnicodeEncodeError, ValueError, TypeError):
        return "sound", whole


def judged(lines: list[bytes]) -> bool:
    """Returns whether both verifiers find something. They must agree, and must not fail."""
    mine = cs.verify_bundle(lines).findings
    theirs = offline.check(io.BytesIO(b"".join(lines))).findings
    assert bool(mine) == bool(theirs), f"one verifier alone finds something: {mine[:1]}, {theirs[:1]}"
    return bool(mine)


def imported(store: cs.Store, lines: list[bytes]) -> str:
    """Imports a bundle that both accept: it can be read, or it is refused with an error of this package."""
    manifest = json.loads(lines[0])
    name = manifest["thread_id"]
    try:
        done = store.load.bundle(lines)
    except cs.CompactionStoreError as refusal:
        return f"refused, {type(refusal).__name__}"
    if not done.added:
        return "there already"
    assert all(message.fault is None for message in store.replay(name)), "a message cannot be read"
    assert all(record.fault is None for record in store.compactions(name)), "a record cannot be read"
    assert all(event.fault is None for event in store.audit.events(name)), "an event cannot be read"
    thread = store.thread(name, hidden=True)
    assert thread.fault is None
    report = store.audit.verify(name)
    contradicted = _is_contradicted(store, json.loads(lines[1]))
    assert bool(report.findings) == contradicted, f"verify finds {report.findings[:1]}"
    assert list(store.audit.export(name))[1:-1] == lines[1:-1]
    if contradicted:
        return "imported, and found to have another parent than the one here"
    if thread.hidden:
        return "imported and read, and hidden"
    try:
        assert list(store.view(name).messages) is not None
    except UnknownEntry:
        assert report.notes, "verify notes no entry of an unknown kind"
        return "imported, but has no view in this release"
    return "imported and read"


def _is_contradicted(store: cs.Store, first: Line) -> bool:
    """Returns whether the thread is a fork of one that is stored here with another entry at that pos."""
    if first.get("kind") != "origin":
        return False
    origin = json.loads(first["body"])
    for thread in store.threads(hidden=True):
        if str(thread.thread_uid) == origin["parent"]:
            there = {line["pos"]: line["entry"] for line in said(list(store.audit.export(thread.thread_id)))[1:]}
            return bool(there.get(origin["pos"]) != origin["entry"])
    return False


def run(ground: Ground, chance: random.Random, *, count: int) -> dict[str, Any]:
    """Tries `count` bundles. A failure names the seed that repeats it."""
    seen: Counter[str] = Counter()
    url = ground.database()
    stores = {name: cs.Store.open(url, tenant=name) for name in ("default", "größe", 't"\\')}
    for number in range(count):
        seed = chance.getrandbits(64)
        how, lines = bundle(random.Random(seed))
        try:
            found = judged(lines)
            seen[f"{how}: {'found by both' if found else 'taken by both'}"] += 1
            tenant = "" if found else json.loads(lines[0])["tenant"]
            if tenant in stores and number % _IMPORT_ONE_IN == 0:
                # A name can be imported once, so each thread gets a new one. An erased one keeps its name.
                seen[f"of those taken: {imported(stores[tenant], _renamed(lines, number))}"] += 1
        except Exception as error:
            raise AssertionError(f"bundle of seed {seed}: {error!r:.300}") from error
    for store in stores.values():
        store.close()
    return {"bundles": count, **dict(sorted(seen.items())), "disagreements": 0, "crashes": 0}


def _renamed(lines: list[bytes], number: int) -> list[bytes]:
    """Gives the thread a new name, so that it can be imported. An erased thread stays as it is."""
    parts = said(lines)
    if parts[0]["thread_id"].startswith("erased:"):
        return lines
    # The key has the time of birth in front; its random part is the number here.
    key = UUID(parts[0]["thread_uid"])
    key = UUID(bytes=key.bytes[:9] + number.to_bytes(7))
    named = chain.name_commitment(bytes.fromhex(parts[0]["name_salt"]), f"t-{number}")
    parts[0] |= {"thread_id": f"t-{number}", "thread_uid": str(key), "name_commitment": named.hex()}
    return rechained(parts, chain.genesis(key, parts[0]["tenant"], named)) if _whole(parts) else lines


def _whole(parts: list[Line]) -> bool:
    """Returns whether only the chain depends on the name: bindings of records name entries, which would change."""
    return not any(line.get("source_end") or line.get("source_before") for line in parts)


_GOLDEN = tuple(golden().values())
