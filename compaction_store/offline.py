"""Checks bundles and reports from the files alone. It needs Python 3.9 or newer, no package, no network, no database.

    python offline.py bundle.jsonl …
    python offline.py report.html …
    python offline.py bundle.jsonl … --public-key HEX
    python offline.py bundle.jsonl --head HEX [--pos N]

This program is a second opinion. It was written from `docs/integrity.md`, `docs/bundles.md` and `docs/reports.md`
alone, it shares no code with the store, and this one file can be copied anywhere. The exit code is 0 if there are no
findings, 1 if there are findings, and 2 if a file cannot be read. Of a report, the program checks the hash and the
bundles. Only the store can check that the page of the report agrees with the bundles.

A bundle alone shows that it is complete and consistent. It cannot show that nobody recomputed the whole bundle. To
check this too, give a head that was kept elsewhere (--head), or the public key that signs checkpoints (--public-key).
With public keys, one of them must have signed the checkpoint in the bundle, the thread must be in the signed tree, and
the bundle must have the signed entry.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import datetime as dt
import hashlib
import io
import json
import re
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

Line = dict[str, Any]
Check = Callable[[Any], bool]

FORMAT = "compaction-store/bundle/1"
CHAIN = "compaction-store/v1"
LONGEST_LINE = 1024 * 1024 * 1024
MOST_FINDINGS = 1000
MOST_DIGITS = 4300
FIRST_MOMENT, LAST_MOMENT = -62_135_596_800_000_000, 253_402_300_799_999_999
LEVELS = {"payload": 200, "receipt": 200, "meta": 200, "metadata": 200, "body": 210}
SIZES = {"receipt": 64 * 1024} | dict.fromkeys(("payload", "body"), 16 * 1024 * 1024)
SIZES |= dict.fromkeys(("meta", "metadata"), 8 * 1024)
PIECE = 64 * 1024
FEW_BYTES, FEW_VALUES = 64 * 1024 * 1024, 500_000
START = b'{"type":"'
PAGE, SEALED = b"<!doctype html>", b'{"report":'
DATA = re.compile(b'<template id="data">([A-Za-z0-9+/=]*)</template>\n')
LAST_LINE = re.compile(b'<p id="hash">SHA-256 of all lines above this one: <code>([0-9a-f]{64})</code></p>\n')
LAST_MEMBER = re.compile(b',"sha256":"([0-9a-f]{64})"}\n\\Z')
# The kinds of events that only the log of a tenant has, and all known kinds, and whether they are critical. A later
# release may write other kinds.
LOG_EVENTS = ("verification", "policy", "rule", "removal", "shred", "grant", "ungrant", "migration")
EVENTS = {"redaction": True} | dict.fromkeys(
    (
        "hold", "release", "retention", "refusal", "fork", "origin", "verdict", "evaluation", "metadata", "subject",
        *LOG_EVENTS,
    ), False,
)  # fmt: skip
KINDS = ("summary", "truncation", "removal", "revocation", "rewind", "clear", "adoption")
LOG = "compaction-store:log"
MOST_UNKNOWN = 20
SPANS = ("start_seq", "end_seq", "tokens_before", "tokens_after", "source_count")
LABELS = ("callback", "trigger", "actor", "login", "model", "counter")
ORDINAL = {"message": "seq", "compaction": "number"}

HASH = re.compile("[0-9a-f]{64}")
SALT = re.compile("[0-9a-f]{32}")
UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
COPIED = {
    kind: re.compile(
        rf'\{{"{other}":"{UUID.pattern}","pos":([0-9]{{1,18}}),"seq":[0-9]{{1,18}},"{entry}":"{HASH.pattern}"[,}}]'
    )
    for kind, other, entry in (("origin", "parent", "entry"), ("fork", "child", "head"))
}
KIND = re.compile("[a-z][a-z0-9_]{0,62}")
ROLE = re.compile("[!-~]{1,64}")
MOMENT = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}Z")
STUB = re.compile("erased:" + UUID.pattern)


class Unreadable(Exception):
    """Raised for a line that is not a valid line of a bundle. The text says why."""


# ---- the form of a line


def is_between(least: int, most: int) -> Check:
    return lambda value: type(value) is int and least <= value <= most


def is_text(value: Any) -> bool:
    return type(value) is str and "\0" not in value


def is_within(most: int) -> Check:
    # A lone surrogate can only come from an escape, which no bundle has. `read` refuses such a line later.
    return lambda value: is_text(value) and len(value.encode("utf-8", "surrogatepass")) <= most


def is_checkpoint(value: Any) -> bool:
    return (
        type(value) is dict
        and list(value) == ["note", "proof", "leaf_index", "key"]
        and type(value["note"]) is str
        and type(value["proof"]) is list
        and all(type(part) is str for part in value["proof"])
        and is_integer(value["leaf_index"])
        and type(value["key"]) is str
    )


def like(form: re.Pattern[str]) -> Check:
    return lambda value: type(value) is str and form.fullmatch(value) is not None


def absent_or(check: Check) -> Check:
    return lambda value: value is None or check(value)


def fields(names: str, check: Check) -> list[tuple[str, Check]]:
    return [(name, check) for name in names.split()]


is_integer, is_count = is_between(-(2**63), 2**63 - 1), is_between(0, 2**31 - 1)
is_label = is_within(255)
INTEGER, TEXT, DIGEST = absent_or(is_integer), absent_or(is_text), absent_or(like(HASH))
LABEL = absent_or(is_label)
FIELDS: dict[str, list[tuple[str, Check]]] = {
    "manifest": [
        ("format", like(re.compile(FORMAT))), ("chain", like(re.compile(CHAIN))),
        *fields("tenant thread_id", lambda value: is_label(value) and value != ""),
        ("thread_uid", like(UUID)), ("name_salt", absent_or(like(SALT))), ("name_commitment", like(HASH)),
        ("schema", is_label),
        ("made_at", like(MOMENT)), ("metadata", is_text), ("subject", LABEL),
        *fields("last_pos last_seq last_number", is_integer), ("head", like(HASH)),
        ("checkpoint", absent_or(is_checkpoint)),
    ],
    "message": [
        *fields("pos seq microseconds", is_integer), ("role", absent_or(is_within(64))), ("tokens", is_count),
        ("counter", is_label), ("key", absent_or(is_within(272))), ("call_size", absent_or(is_count)),
        ("receipt", absent_or(is_within(SIZES["receipt"]))), ("actor", LABEL), ("login", is_label),
        ("meta_commitment", DIGEST), ("redacted_pos", INTEGER), *fields("commitment entry", like(HASH)),
        ("salt", absent_or(like(SALT))), *fields("meta payload", TEXT),
    ],
    "compaction": [
        *fields("pos number microseconds", is_integer), *fields("kind outcome", like(KIND)),
        *fields(" ".join(SPANS), INTEGER),
        *fields("source_before source_end", DIGEST),
        ("inputs", lambda value: type(value) is list and all(map(is_integer, value))), ("run_id", like(UUID)),
        *[(name, is_label if name == "login" else LABEL) for name in LABELS], *fields("revokes redacted_pos", INTEGER),
        *fields("commitment entry", like(HASH)), ("salt", absent_or(like(SALT))), ("body", TEXT),
    ],
    "event": [
        *fields("pos microseconds", is_integer), ("kind", like(KIND)),
        ("critical", lambda value: type(value) is bool), ("actor", LABEL), ("login", is_label),
        *fields("commitment entry", like(HASH)), ("salt", absent_or(like(SALT))), ("body", TEXT),
    ],
    "end": [("entries", is_integer), *fields("head sha256", like(HASH))],
}  # fmt: skip
NAMES = {kind: ["type", *[name for name, _ in checks]] for kind, checks in FIELDS.items()}


def whole(digits: str) -> int:
    # Older versions of Python have no limit for the digits of an integer, and take minutes to parse a long one.
    if len(digits.lstrip("-")) > MOST_DIGITS:
        raise ValueError
    return int(digits)


def refuse(_constant: str) -> None:
    raise ValueError


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


decode = json.JSONDecoder(parse_int=whole, parse_constant=refuse).decode
decode_unique = json.JSONDecoder(parse_int=whole, parse_constant=refuse, object_pairs_hook=once).decode
encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


def read(data: bytes) -> Line:
    if len(data) > LONGEST_LINE:
        raise Unreadable(f"the line must have at most {LONGEST_LINE:,} bytes, not {len(data):,}")
    if data[-1:] != b"\n":
        raise Unreadable("the line does not end with a newline")
    try:
        text = data[:-1].decode("utf-8")
        line = decode(text)
        again = encode(line)
    except UnicodeDecodeError:
        raise Unreadable("the line is not UTF-8") from None
    except (ValueError, RecursionError):
        raise Unreadable("the line cannot be parsed as JSON") from None
    if type(line) is not dict or type(line.get("type")) is not str or NAMES.get(line["type"]) != list(line):
        raise Unreadable("the line does not have exactly the fields of its type, in their order")
    for name, is_right in FIELDS[line["type"]]:
        if not is_right(line[name]):
            raise Unreadable(f"the value of {name} does not have the right form")
    if again != text:
        raise Unreadable("the line is not in the canonical form of JSON")
    return line


# ---- the rule for documents


def document(kind: str, content: str) -> dict[str, Any] | None:
    """Parses a document: a payload, a meta, metadata or a body. Returns None if it breaks the rules for documents."""
    if len(content.encode("utf-8")) > SIZES[kind] or depth(content) > LEVELS[kind]:
        return None
    try:
        found = (decode if kind in ("payload", "receipt") else decode_unique)(content)
    except (ValueError, RecursionError):
        return None
    return found if type(found) is dict else None


def depth(content: str) -> int:
    """Returns how deep the brackets outside strings are nested."""
    outside = content.replace("\\\\", "").replace('\\"', "").split('"')[::2]
    level = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", "".join(outside)):
        level += 1 if bracket in "[{" else -1
        deepest = max(deepest, level)
    return deepest


def is_document(line: Line, content: str) -> bool:
    """Returns whether a line's content is a valid document and agrees with its other fields, such as the role."""
    said = document("payload" if line["type"] == "message" else "body", content)
    if said is None:
        return False
    if line["type"] == "message":
        role = said.get("role")
        return bool(line["role"] == (role if type(role) is str and ROLE.fullmatch(role) else None))
    if line["type"] == "compaction" and line["outcome"] == "applied" and line["kind"] in KINDS:
        return _replaces(said, line["kind"])
    if line["type"] == "event" and line["kind"] in COPIED:
        return COPIED[line["kind"]].match(content) is not None
    return True


def is_receipt(content: str) -> bool:
    """Returns whether a receipt is a document that names the pos of a view, of at most 18 digits."""
    pos = (document("receipt", content) or {}).get("pos")
    return type(pos) is int and 0 <= pos < 10**18


def _replaces(body: dict[str, Any], kind: str) -> bool:
    """Returns whether the body of an applied record has a replacement that fits the record's kind."""
    stand_ins = body.get("replacement")
    if kind == "revocation":
        return "replacement" not in body
    if stand_ins and kind in ("rewind", "clear"):
        return False
    return type(stand_ins) is list and all(type(message) is dict for message in stand_ins)


# ---- format version 1


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def unhex(value: str | None) -> bytes | None:
    return None if value is None else bytes.fromhex(value)


def header(*parts: bytes | str | int | None) -> bytes:
    """Packs the parts, each after its length. The length of an absent part is -1."""
    out = []
    for part in parts:
        data = part.encode("utf-8") if isinstance(part, str) else part
        data = struct.pack(">q", data) if isinstance(data, int) else data
        out += [struct.pack(">i", -1 if data is None else len(data)), data or b""]
    return b"".join(out)


def header_of(line: Line) -> bytes:
    if line["type"] == "message":
        names = ("role", "tokens", "counter", "key", "call_size", "receipt", "actor", "login")
        return header("message", *[line[name] for name in names], unhex(line["meta_commitment"]))
    if line["type"] == "event":
        return header("event", line["kind"], bytes((line["critical"],)), line["actor"], line["login"])
    columns, labels = ([line[name] for name in names] for names in (("kind", "outcome", *SPANS), LABELS))
    sources = [unhex(line["source_before"]), unhex(line["source_end"])]
    inputs = b"".join(struct.pack(">q", number) for number in line["inputs"])
    run = bytes.fromhex(line["run_id"].replace("-", ""))
    return header("compaction", *columns, *sources, inputs, run, *labels, line["revokes"])


def entry_of(line: Line, previous: bytes) -> str:
    ordinal = line.get("seq", line.get("number", 0))
    place = struct.pack(">qqq", line["pos"], ordinal, line["microseconds"])
    return sha256(b"\x01", previous, place, bytes.fromhex(line["commitment"]), header_of(line)).hex()


def uid_of(manifest: Line) -> bytes:
    return bytes.fromhex(manifest["thread_uid"].replace("-", ""))


def genesis_of(manifest: Line) -> bytes:
    name, tenant = bytes.fromhex(manifest["name_commitment"]), manifest["tenant"].encode("utf-8")
    return sha256(b"\x02", b"compaction-store/v1", b"\x00", uid_of(manifest), name, tenant)


def is_named(manifest: Line) -> bool:
    """Returns whether the name in the manifest matches its commitment, or is the name of an erased thread."""
    if manifest["thread_id"].startswith("erased:"):
        return bool(manifest["thread_id"] == "erased:" + manifest["thread_uid"]) and manifest["name_salt"] is None
    if manifest["name_salt"] is None:
        return False
    salted = sha256(b"\x03", bytes.fromhex(manifest["name_salt"]), manifest["thread_id"].encode("utf-8"))
    return salted.hex() == str(manifest["name_commitment"])


def is_born(uid: bytes, microseconds: int) -> bool:
    """Returns whether a thread_uid is a UUID of version 7 that begins with the given time.

    The UUID has the time in milliseconds, rounded toward 1970.
    """
    sign = -1 if microseconds < 0 else 1
    milliseconds = sign * (abs(microseconds) // 1000)
    return (
        uid[:6] == (milliseconds % 2**48).to_bytes(6, "big") and uid[6] >> 4 == 7 and uid[8] >> 6 == 2  # noqa: PLR2004
    )


# ---- checkpoints: Ed25519 (RFC 8032), signed notes, and the tree of RFC 6962

FIELD = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
CURVE = -121665 * pow(121666, FIELD - 2, FIELD) % FIELD
ROOT = pow(2, (FIELD - 1) // 4, FIELD)
Point = tuple[int, int, int, int]
NEUTRAL: Point = (0, 1, 1, 0)
NOTE = re.compile(
    r"([!-~]{1,1000})\n(0|[1-9][0-9]{0,15})\n([A-Za-z0-9+/]{43}=)\n"
    r"time ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6})Z\n"
    r"heads [0-9a-f]{64}\nprevious (?:none|[0-9a-f]{64})\n"
)
SIGNATURE = re.compile("— ([!-*,-~]{1,100}) ([A-Za-z0-9+/]+={0,2})\n")
HEAD = b"compaction-store/head/v1\0"


class Unproved(Exception):
    """Raised for a checkpoint that proves nothing. The text says why."""


def point(given: bytes) -> Point | None:
    """Decodes a point of the curve from 32 bytes: its y coordinate, with the sign of x in the highest bit.

    Returns None if no point of the curve has this y coordinate.
    """
    y = int.from_bytes(given, "little")
    sign, y = y >> 255, y % 2**255
    square = (y * y - 1) * pow(CURVE * y * y + 1, FIELD - 2, FIELD) % FIELD
    x = pow(square, (FIELD + 3) // 8, FIELD)
    if (x * x - square) % FIELD:
        x = x * ROOT % FIELD
    if (x * x - square) % FIELD:
        return None
    if x % 2 != sign:
        x = -x % FIELD
    return x, y % FIELD, 1, x * y % FIELD


def plus(p: Point, q: Point) -> Point:
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % FIELD, (p[1] + p[0]) * (q[1] + q[0]) % FIELD
    c, d = 2 * p[3] * q[3] * CURVE % FIELD, 2 * p[2] * q[2] % FIELD
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % FIELD, g * h % FIELD, f * g % FIELD, e * h % FIELD


def times(n: int, p: Point) -> Point:
    found = NEUTRAL
    while n:
        if n & 1:
            found = plus(found, p)
        p, n = plus(p, p), n >> 1
    return found


def coded(p: Point) -> bytes:
    inverse = pow(p[2], FIELD - 2, FIELD)
    x, y = p[0] * inverse % FIELD, p[1] * inverse % FIELD
    return (y | (x & 1) << 255).to_bytes(32, "little")


BASE = point((4 * pow(5, FIELD - 2, FIELD) % FIELD).to_bytes(32, "little")) or NEUTRAL


def is_key(key: bytes) -> bool:
    """Returns whether 32 bytes are a canonical encoding of a value that is not a point of small order.

    With a key of small order, one signature is valid for any text. If the bytes encode no point, this returns True, but
    `is_signed` accepts no signature for such a key.
    """
    found = point(key)
    if int.from_bytes(key, "little") % 2**255 >= FIELD:
        return False
    return found is None or coded(times(8, found)) != coded(NEUTRAL)


def is_signed(key: bytes, signature: bytes, data: bytes) -> bool:
    """Returns whether a signature is valid (RFC 8032, 5.1.7). The second half of a valid signature is below `ORDER`."""
    public = point(key)
    if len(signature) != 64 or public is None:  # noqa: PLR2004
        return False
    factor = int.from_bytes(signature[32:], "little")
    if factor >= ORDER:
        return False
    challenge = int.from_bytes(hashlib.sha512(signature[:32] + key + data).digest(), "little") % ORDER
    minus = (-public[0] % FIELD, public[1], public[2], -public[3] % FIELD)
    return coded(plus(times(factor, BASE), times(challenge, minus))) == signature[:32]


def unbase64(given: str) -> bytes:
    try:
        found = base64.b64decode(given, validate=True)
    except ValueError:
        raise Unproved("a part of its note is not valid base64") from None
    if base64.b64encode(found).decode("ascii") != given:
        raise Unproved("a part of its note is not valid base64")
    return found


def read_note(note: str, keys: Sequence[bytes]) -> tuple[str, int, bytes, str]:
    """Returns the origin, tree size, root hash and time of a checkpoint's note that one of the keys signed."""
    text, _, signatures = note.rpartition("\n\n")
    text += "\n"
    found = NOTE.fullmatch(text)
    if found is None or not signatures or SIGNATURE.sub("", signatures):
        raise Unproved("its note does not have the form of a checkpoint's note")
    try:
        dt.datetime.fromisoformat(found[4])
    except ValueError:
        raise Unproved("the time in its note is not valid") from None
    for name, given in SIGNATURE.findall(signatures):
        signature = unbase64(given)
        for key in keys:
            named = hashlib.sha256(name.encode("utf-8") + b"\n\x01" + key).digest()[:4]
            if signature[:4] == named and is_signed(key, signature[4:], text.encode("utf-8")):
                return found[1], int(found[2]), unbase64(found[3]), found[4]
    raise Unproved("none of the given public keys signed it")


def leads(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Returns whether a path leads from a leaf to the root of a tree (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    at, last, found = index, size - 1, leaf
    for other in path:
        if last == 0:
            return False
        if at % 2 or at == last:
            found = sha256(b"\x01", other, found)
            while at % 2 == 0 and at:
                at, last = at >> 1, last >> 1
        else:
            found = sha256(b"\x01", found, other)
        at, last = at >> 1, last >> 1
    return last == 0 and found == root


def proved(manifest: Line, keys: Sequence[bytes]) -> tuple[int, str, str]:
    """Returns the pos and the entry that the checkpoint in the manifest proves for the thread, and a note about it."""
    carried = manifest["checkpoint"]
    if carried is None:
        raise Unproved("the manifest has no checkpoint")
    try:
        data, *path = [bytes.fromhex(part) for part in carried["proof"]]
    except ValueError:
        raise Unproved("its proof is malformed") from None
    if len(data) != len(HEAD) + 56 or data[: len(HEAD)] != HEAD:
        raise Unproved("its proof is malformed")
    uid, pos = data[len(HEAD) : len(HEAD) + 16], int.from_bytes(data[-40:-32], "big", signed=True)
    origin, size, root, moment = read_note(carried["note"], keys)
    if uid != uid_of(manifest):
        raise Unproved("its proof is for another thread")
    if not leads(sha256(b"\0", data), carried["leaf_index"], size, path, root):
        raise Unproved("its proof does not lead to the signed root hash")
    return pos, data[-32:].hex(), f"{origin} signed pos {pos} and its entry at {moment}Z"


# ---- the rows that redactions name


class Ranges:
    """Ascending numbers, stored as ranges in two arrays to save memory: half of a long thread may be erased."""

    def __init__(self) -> None:
        self.starts, self.ends = array("q"), array("q")

    def add(self, number: int) -> None:
        if self.ends and self.ends[-1] + 1 == number:
            self.ends[-1] = number
        else:
            self.starts.append(number)
            self.ends.append(number)


EPOCH = dt.datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def named_by(body: str) -> tuple[dict[str, Ranges], bool, int | None] | None:
    """Parses a redaction's body. Returns the rows that it names, and whether it erased the whole thread.

    If a retention policy erased the thread, also returns the time before which the last message had to be. Returns None
    if the body is not valid.
    """
    try:
        said = decode(body)
        found = {"message": ranges_of(said["seqs"]), "compaction": ranges_of(said["records"])}
        if said.get("whole", True) is not True:
            return None
        if "before" not in said:
            return found, "whole" in said, None
        before = (dt.datetime.fromisoformat(said["before"]) - EPOCH) // dt.timedelta(microseconds=1)
        return found, "whole" in said, before
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def ranges_of(pairs: Any) -> Ranges:
    found = Ranges()
    for first, last in pairs:
        if type(first) is not int or type(last) is not int or first > last:
            raise ValueError
        if found.ends and first <= found.ends[-1] + 1:
            raise ValueError
        found.starts.append(first)
        found.ends.append(last)
    return found


# ---- the walk


class Walk:
    """Checks a bundle line by line. A finding is a tuple of line, pos and text, and never has content of messages."""

    def __init__(self, head: str | None = None, pos: int | None = None, keys: Sequence[bytes] = ()) -> None:
        self.kept_head, self.kept_pos = head, pos
        self._keys = keys
        self._proved: tuple[int, str, str] | None = None
        self.findings: list[tuple[int | None, int | None, str]] = []
        self.notes: list[str] = []
        self.manifest: Line | None = None
        self.count = {"message": 0, "compaction": 0, "event": 0}
        self.withheld = self.redacted = self.redactions = 0
        self.line = 0
        self.pos = 0
        self.is_ended = self.is_broken = False
        self._digest = hashlib.sha256()
        self._previous: bytes | None = None
        self._born: int | None = None
        self._message_time: int | None = None
        self._unknown = 0
        self._unreadable_from: int | None = None
        self._ordinal = {"message": 0, "compaction": 0}
        self._time = -(2**63)
        self._last_kind = ""
        self._copied_to = 0
        self._subject: tuple[Any] | None = None
        self._claims: dict[int, dict[str, Ranges]] = {}
        self._erasure: int | None = None
        self._is_log = False

    @property
    def level(self) -> str:
        if self.manifest is None or self.is_broken:
            return "none"
        return "structure" if self.withheld else "content"

    def find(self, what: str, pos: int | None = None, line: int | None = None) -> None:
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append((self.line if line is None else line, pos, what))
        elif len(self.findings) == MOST_FINDINGS:
            self.findings.append((None, None, "there are more findings than are listed"))

    def feed(self, data: bytes) -> bool:
        """Checks one line. Returns False if the following lines cannot be checked."""
        self.line += 1
        try:
            if self.is_ended:
                raise Unreadable("the bundle has a line after the end mark")
            line = read(data)
            if (line["type"] == "manifest") is not (self.line == 1):
                raise Unreadable("the first line, and only the first line, must be a manifest")
        except Unreadable as error:
            self.find(str(error) + "; from here on nothing was checked")
            self.is_broken = True
            return False
        if line["type"] == "end":
            self._end(line)
            return True
        self._digest.update(data)
        if line["type"] == "manifest":
            self.manifest = line
            if document("metadata", line["metadata"]) is None:
                self.find("the metadata break the rule for documents")
            try:
                self._proved = proved(line, self._keys) if self._keys else None
            except Unproved as error:
                self.find(f"the checkpoint in the bundle does not hold: {error}")
            if not is_named(line):
                self.find("the name is not the one that was committed to when the thread was made")
            self._previous = genesis_of(line)
            self._is_log = line["thread_id"] == LOG
        else:
            self._place(line)
            self._link(line)
            self._kind(line)
            self._content(line)
            if self._last_kind == "redaction":
                self._redaction(line)
            self._note_subject(line)
        return True

    def _place(self, line: Line) -> None:
        kind, pos = line["type"], line["pos"]
        self.count[kind] += 1
        if pos != self.pos + 1:
            self.find(f"pos {pos} is where pos {self.pos + 1} should be", pos)
        self.pos = pos
        if kind in ORDINAL:
            ordinal, due = line[ORDINAL[kind]], self._ordinal[kind] + 1
            if ordinal != due:
                self.find(f"{ORDINAL[kind]} {ordinal} is where {due} should be", pos)
            self._ordinal[kind] = ordinal
        if kind == "compaction" and line["kind"] in KINDS:
            if line["end_seq"] is not None and line["end_seq"] > self._ordinal["message"]:
                self.find("the record has a span of messages that come after it", pos)
            if not all(0 <= number < line["number"] for number in line["inputs"]):
                self.find("the record has inputs that are not numbers of earlier records", pos)
        if line["microseconds"] < self._time:
            self.find("the time is earlier than the time of the entry before", pos)
        self._time = line["microseconds"]
        if self._born is None:
            self._born = self._time
        if not FIRST_MOMENT <= self._time <= LAST_MOMENT:
            self.find("the time must be in the years 1 to 9999", pos)
        self._last_kind = line["kind"] if kind == "event" else kind

    def _link(self, line: Line) -> None:
        if entry_of(line, self._previous or b"") != line["entry"]:
            self.find("the entry is not the hash of its columns and of the entry before", line["pos"])
        if line["pos"] == self.kept_pos and line["entry"] != self.kept_head:
            self.find("the entry is not the one kept elsewhere", line["pos"])
        if self._proved is not None and line["pos"] == self._proved[0] and line["entry"] != self._proved[1]:
            self.find("the entry is not the one in the checkpoint", line["pos"])
        if line["type"] == "message":
            self._message_time = self._time
        # Continue from the entry in the line, not from the computed one, so that one changed line gives one finding.
        self._previous = bytes.fromhex(line["entry"])

    def _kind(self, line: Line) -> None:
        """Checks a receipt. Adds a note about an entry of an unknown kind, which a newer release may have written."""
        is_event, said = line["type"] == "event", self._last_kind
        is_of_log = is_event and said in LOG_EVENTS
        if is_of_log is not self._is_log and (not is_event or said in EVENTS):
            self.find("the entry must not be in this thread, because of what the log of a tenant has", line["pos"])
        if line["type"] == "message" and line["receipt"] is not None and not is_receipt(line["receipt"]):
            self.find("the receipt breaks the rule for receipts", line["pos"])
        if line["type"] == "message" or (line["type"] == "compaction" and line["kind"] in KINDS):
            return
        kind, pos = line["kind"], line["pos"]
        if line["type"] == "event" and kind in EVENTS:
            if line["critical"] is not EVENTS[kind]:
                self.find("the event is not marked as its kind must be", pos)
            return
        self._unknown += 1
        if self._unknown <= MOST_UNKNOWN:
            self.notes.append(f"the entry at pos {pos} is of the kind {kind}, which this file does not know")
        changes_views = line["critical"] if line["type"] == "event" else line["outcome"] == "applied"
        if changes_views and self._unreadable_from is None:
            self._unreadable_from = pos

    def _content(self, line: Line) -> None:
        content, meta, pos = line.get("payload", line.get("body")), line.get("meta"), line["pos"]
        nothing = line["salt"] is None and content is None and meta is None
        if line.get("redacted_pos") is not None:
            self.redacted += 1
            claimed = self._claims.setdefault(line["redacted_pos"], {kind: Ranges() for kind in ORDINAL})
            claimed[line["type"]].add(line[ORDINAL[line["type"]]])
            if not nothing:
                self.find("a redacted entry still has content", pos)
        elif nothing:
            self.withheld += 1
        elif line["salt"] is None or content is None:
            self.find("content and salt are not both there", pos)
        else:
            salt = bytes.fromhex(line["salt"])
            if sha256(b"\x00", salt, content.encode("utf-8")).hex() != line["commitment"]:
                self.find("the content does not match its commitment", pos)
            elif not is_document(line, content):
                self.find("the content breaks the rule for documents", pos)
            elif pos == 1 and self._last_kind == "origin":
                said = COPIED["origin"].match(content)
                self._copied_to = int(said[1]) + 1 if said else 0
            found = None if meta is None else sha256(b"\x04", salt, meta.encode("utf-8")).hex()
            if found != line.get("meta_commitment"):
                self.find("the meta does not match its commitment", pos)
            elif meta is not None and document("meta", meta) is None:
                self.find("the meta breaks the rule for documents", pos)

    def _redaction(self, line: Line) -> None:
        self.redactions += 1
        claimed = self._claims.pop(line["pos"], {kind: Ranges() for kind in ORDINAL})
        if line["body"] is None:
            return
        said = named_by(line["body"])
        if said is None:
            self.find("the redaction does not say what it erased", line["pos"])
            return
        named, is_whole, before = said
        if is_whole:
            self._erasure = line["pos"]
        if before is not None and self._message_time is not None and self._message_time >= before:
            self.find("a retention policy erased the thread, but its last message is not older", line["pos"])
        for kind, ranges in named.items():
            if (ranges.starts, ranges.ends) != (claimed[kind].starts, claimed[kind].ends):
                self.find(f"the redaction does not name exactly the {kind}s that it erased", line["pos"])

    def _end(self, line: Line) -> None:
        self.is_ended = True
        if line["sha256"] != self._digest.hexdigest():
            self.find("the SHA-256 of the lines before the end mark differs: the file is not as it was exported")
        there = sum(self.count.values())
        if line["entries"] != there:
            self.find(f"the end mark counts {line['entries']} entries, but the bundle has {there}")
        if line["head"] != (self.manifest or {}).get("head"):
            self.find("the head in the end mark is not the head in the manifest")

    def finish(self) -> None:
        if self.is_broken:
            return
        if not self.is_ended:
            self.find("the end mark is missing: this is not the whole bundle", line=self.line + 1)
        if self.manifest is None:
            return
        for pos in sorted(self._claims):
            self.find(f"erased entries name a redaction at pos {pos}, but no redaction after them has this pos", pos)
        if STUB.fullmatch(self.manifest["thread_id"]):
            self._stub(self.manifest)
        elif self._erasure is not None:
            self.find("the thread was erased, but it still has its name", self._erasure)
        if self._born is not None and not is_born(uid_of(self.manifest), self._born):
            self.find("the thread_uid is not a UUID of version 7 with the time of the first entry", line=1)
        if self._copied_to > self.pos:
            self.find("the origin says that more entries were copied than are there", 1, 2)
        self._subject_of(self.manifest)
        self._note_unknown()
        self._head(self.manifest)
        self._note_checkpoint(self.manifest)

    def _note_checkpoint(self, manifest: Line) -> None:
        if self._proved is not None:
            pos, _, said = self._proved
            self.notes.append(f"{said}; {max(0, self.pos - pos)} of the entries are newer")
            if pos > self.pos:
                self.find(f"the checkpoint has an entry at pos {pos}, but the bundle ends at pos {self.pos}")
        elif manifest["checkpoint"] is not None and not self._keys:
            self.notes.append("the checkpoint in the manifest was not checked: give --public-key")

    def _note_subject(self, line: Line) -> None:
        if self._last_kind == "subject" and line["pos"] > self._copied_to:
            said = document("body", line["body"] or "")
            self._subject = None if said is None else (said.get("new"),)

    def _subject_of(self, manifest: Line) -> None:
        """Compares the subject with the hash in the newest event about it, which a copied event does not have."""
        salt, subject = unhex(manifest["name_salt"]), manifest["subject"]
        if self._subject is not None and salt is not None:
            named = None if subject is None else sha256(b"\x00", salt, subject.encode("utf-8")).hex()
            if self._subject != (named,):
                self.find("the subject is not the one that the newest event about it says", line=1)

    def _note_unknown(self) -> None:
        if self._unknown > MOST_UNKNOWN:
            self.notes.append(f"{self._unknown - MOST_UNKNOWN} more entries are of unknown kinds")
        if self._unreadable_from is not None:
            self.notes.append(
                f"views from pos {self._unreadable_from} on cannot be judged, because this entry changes them"
            )

    def _stub(self, manifest: Line) -> None:
        """Checks the bundle of a thread that was erased as a whole. Such a thread has its thread_uid in its name."""
        if manifest["metadata"] != "{}" or manifest["subject"] is not None:
            self.find("an erased thread has metadata or a subject", line=1)
        if self.redacted != self.count["message"] + self.count["compaction"]:
            self.find("an erased thread has content")
        if self._last_kind != "redaction" or (self._erasure is not None and self._erasure != self.pos):
            self.find("the last entry of an erased thread is not its erasure")
        if self._erasure is None and not self.withheld:
            self.find("the thread has the name of an erased thread, but no erasure", line=1)

    def _head(self, manifest: Line) -> None:
        if manifest["last_pos"] != self.pos:
            self.find(f"the manifest says last pos {manifest['last_pos']}, but the last entry has {self.pos}", line=1)
        if self._previous is None or manifest["head"] != self._previous.hex():
            self.find("the manifest's head is not the last entry", line=1)
        for kind, name in ORDINAL.items():
            expected, there = manifest["last_" + name], self._ordinal[kind]
            if expected != there:
                self.find(f"the manifest says last {name} {expected}, but the last {kind} has {there}", line=1)
        if self.kept_pos is not None and self.kept_pos > self.pos:
            self.find(f"an entry at pos {self.kept_pos} was kept elsewhere, but the bundle ends at pos {self.pos}")
        if self.kept_pos is None and self.kept_head is not None and manifest["head"] != self.kept_head:
            self.find("the head is not the one kept elsewhere", line=1)


# ---- the command


def lines_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a file. Yields a long line in pieces if it is not a line of a bundle, to save memory."""
    while True:
        data = stream.readline(PIECE)
        if not data:
            return
        if data[-1:] != b"\n" and data.startswith(START):
            data += stream.readline(LONGEST_LINE)
        yield data


def check(stream: BinaryIO, head: str | None = None, pos: int | None = None, keys: Sequence[bytes] = ()) -> Walk:
    walk = Walk(head, pos, keys)
    for data in lines_of(stream):
        if not walk.feed(data):
            break
    walk.finish()
    return walk


# ---- reports


class Report:
    """The bundles in a report, and findings about the file. The page of the report is not compared with the bundles."""

    def __init__(self, data: bytes) -> None:
        self.bundles: list[bytes] = []
        self.findings: list[str] = []
        self.is_page = data.startswith(PAGE)
        end = data.rfind(b"\n", 0, -1) + 1
        if self.is_page:
            last, hashed = LAST_LINE.fullmatch(data[end:]), data[:end]
            found = DATA.findall(data)
            carried = unpacked(found[0]) if len(found) == 1 else None
        else:
            last = LAST_MEMBER.search(data)
            carried = hashed = data[len(SEALED) : last.start()] if last else data[len(SEALED) :]
        if last is None or last[1].decode() != hashlib.sha256(hashed).hexdigest():
            self.findings.append("the hash at the end of the file does not match the file")
        try:
            if carried is None or has_many_values(carried):
                raise ValueError
            threads = json.loads(carried, object_pairs_hook=once)["threads"]
            self.bundles = ["".join(text + "\n" for text in thread["bundle"]).encode() for thread in threads]
        except (ValueError, KeyError, TypeError, RecursionError):
            self.findings.append("the data of the report cannot be read")


def has_many_values(data: bytes) -> bool:
    """Returns whether JSON has more values than a report can have. Parsing them could take all memory."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    values = quotes = 0
    for at in range(0, len(plain), PIECE):
        parts = plain[at : at + PIECE].split(b'"')
        values += sum(part.count(b"[") + part.count(b"{") + part.count(b",") for part in parts[quotes % 2 :: 2])
        quotes += len(parts) - 1
    return values > max(FEW_VALUES, len(data) // 8)


def unpacked(data: bytes) -> bytes | None:
    try:
        reading = zlib.decompressobj(wbits=31)
        # A report is packed to about a fifth. What grows much more was made to take all memory.
        most = min(LONGEST_LINE, max(FEW_BYTES, 200 * len(data)))
        found = reading.decompress(base64.b64decode(data, validate=True), most)
    except (ValueError, zlib.error):
        return None
    return found if reading.eof else None


def report(walk: Walk) -> Iterator[str]:
    if walk.manifest is not None:
        # Print names in ASCII, because control characters in a name could move the cursor of a terminal.
        said = walk.manifest
        yield f"thread    {said['thread_id']!a} of tenant {said['tenant']!a}"
        yield f"exported  {said['made_at']}"
        yield f"head      {said['head']} at pos {said['last_pos']}"
    messages, compactions, events = walk.count.values()
    total = messages + compactions + events
    yield f"level     {walk.level}"
    yield f"entries   {total} ({messages} messages, {compactions} compactions, {events} events)"
    yield f"withheld  {walk.withheld}, whose content was not checked"
    yield f"redacted  {walk.redacted}, by {walk.redactions} redactions"
    for note in walk.notes:
        yield "note      " + note
    for line, pos, what in walk.findings:
        places = [f"{name} {at}" for name, at in (("line", line), ("pos", pos)) if at is not None]
        yield "finding   " + ", ".join(places) + ": " + what
    yield f"findings  {len(walk.findings)}"


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="offline.py", description="Checks bundles and reports from the files alone.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="a bundle or a report, or - for standard input")
    parser.add_argument(
        "--head", metavar="HEX", help="the hash of the last entry, or of the entry at --pos, kept elsewhere"
    )
    parser.add_argument("--pos", metavar="N", type=int, help="the pos of the entry in --head")
    parser.add_argument(
        "--public-key", metavar="HEX", action="append", default=[],
        help="a public key that may have signed the checkpoint in a bundle; may be given several times",
    )  # fmt: skip
    found = parser.parse_args(given)
    if found.head is not None and not HASH.fullmatch(found.head):
        parser.error("--head must be 64 lower-case hexadecimal digits")
    if found.pos is not None and (found.head is None or found.pos < 1):
        parser.error("--pos must be an integer >= 1, and needs --head")
    if found.head is not None and len(found.files) > 1:
        parser.error("--head must come with one file only")
    if not all(HASH.fullmatch(key) and is_key(bytes.fromhex(key)) for key in found.public_key):
        parser.error("--public-key must be 64 lower-case hexadecimal digits, of a key that is not of small order")
    return found


def main(given: Sequence[str] | None = None) -> int:
    found = arguments(given)
    keys = [bytes.fromhex(key) for key in found.public_key]
    findings = unread = count = 0
    has_report = has_page = False
    for name in found.files:
        try:
            for title, lines, wrong in checked(name, found.head, found.pos, keys):
                has_report = has_report or bool(title)
                if len(found.files) > 1 or title:
                    sys.stdout.write(f"file      {name!a}{title}\n")
                told = list(lines)
                has_page = has_page or NOT_COMPARED in told
                sys.stdout.write("".join(line + "\n" for line in told))
                findings += wrong
                count += not title.startswith(":")
        except (OSError, ValueError) as error:
            # A file name with a NUL raises ValueError.
            why = getattr(error, "strerror", None) or "no such name"
            sys.stderr.write(f"offline.py: cannot read {name!a}: {why}\n")
            unread += 1
        except MemoryError:
            sys.stderr.write(f"offline.py: {name!a} has a line that does not fit the memory\n")
            unread += 1
    if len(found.files) > 1 or has_report:
        said = [counted(count, "bundle"), counted(findings, "finding")]
        said += [f"{counted(unread, 'file')} not read"] if unread else []
        # Say at the end what was not checked, because this line may be the only one that is read.
        unchecked = "; not checked: whether the page shows what its bundles say" if has_page else ""
        sys.stdout.write(", ".join(said) + unchecked + "\n")
    if unread:
        return 2
    return 1 if findings else 0


NOT_COMPARED = "note      the page was not compared with its bundles: compaction-store verify does that"


def counted(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"


def checked(
    name: str, head: str | None, pos: int | None, keys: Sequence[bytes]
) -> Iterator[tuple[str, Iterator[str], int]]:
    """Checks a file. Yields a title, lines of text and the number of findings for each bundle in the file.

    If the file is a report, yields the same for the report itself at the end.
    """
    with contextlib.ExitStack() as stack:
        stream: Any = sys.stdin.buffer if name == "-" else stack.enter_context(open(name, "rb"))  # noqa: PTH123 — enough
        if not stream.peek(len(PAGE)).startswith((PAGE, SEALED)):
            walk = check(stream, head, pos, keys)
            yield "", report(walk), len(walk.findings)
            return
        carrier = Report(stream.read())
    for number, bundle in enumerate(carrier.bundles, 1):
        walk = check(io.BytesIO(bundle), head, pos, keys)
        yield f", bundle {number}", report(walk), len(walk.findings)
    lines = ["finding   " + what for what in carrier.findings]
    if carrier.is_page:
        lines.insert(0, NOT_COMPARED)
    lines.append(f"findings  {len(carrier.findings)}")
    yield ": the report itself", iter(lines), len(carrier.findings)


if __name__ == "__main__":
    sys.exit(main())
