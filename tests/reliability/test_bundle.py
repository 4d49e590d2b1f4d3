"""Bundles verify by themselves: the findings of both verifiers in files that were changed in every way."""

from __future__ import annotations

import ast
import io
import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import handmade_bundles as bundles
from support.handmade_bundles import Line, Thread, golden, rich, said, sealed
from support.paths import ROOT

import compaction_store as cs
from compaction_store import offline
from compaction_store.bundles import line_format
from compaction_store.integrity import chain

PAGE = (ROOT / "docs" / "bundles.md").read_text(encoding="utf-8")
UNPROTECTED = set(re.findall(r"^\| `(\w+)` +\|[^|]*\|$", PAGE, re.MULTILINE))
GOLDEN = golden()
FULL = GOLDEN["bundle-1.jsonl"]
SOURCE = Path(offline.__file__)


def ours(lines: list[bytes], **kept: Any) -> tuple[cs.Finding, ...]:
    return cs.verify_bundle(lines, **kept).findings


def theirs(data: bytes, head: str | None = None, pos: int | None = None) -> list[Any]:
    return offline.check(io.BytesIO(data), head, pos).findings


def found_by_both(lines: list[bytes]) -> bool:
    """Returns whether both find something. Fails if only one does."""
    mine, other = bool(ours(lines)), bool(theirs(b"".join(lines)))
    assert mine == other
    return mine


def cut(data: bytes) -> list[bytes]:
    """Splits data into lines, as reading a binary file does."""
    return list(io.BytesIO(data))


# ---- valid bundles


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_the_golden_bundles_never_change(name: str) -> None:
    assert (bundles.GOLDEN / name).read_bytes() == b"".join(GOLDEN[name])
    assert not found_by_both(GOLDEN[name])


def test_what_the_verifiers_count() -> None:
    counted = {}
    for name, lines in GOLDEN.items():
        report, walk = cs.verify_bundle(lines), offline.check(io.BytesIO(b"".join(lines)))
        mine = (report.level, report.entries, report.withheld, report.redacted, report.redactions)
        assert mine == (walk.level, sum(walk.count.values()), walk.withheld, walk.redacted, walk.redactions)
        assert report.head.hex() == said(lines)[0]["head"]
        assert report.pos == report.entries
        counted[name] = mine
    assert counted == {
        "bundle-1.jsonl": ("content", 21, 0, 3, 1),
        "bundle-1-withheld.jsonl": ("structure", 21, 6, 3, 1),
        "bundle-1-erased.jsonl": ("content", 22, 0, 16, 2),
        "bundle-1-fork.jsonl": ("content", 12, 0, 0, 0),
    }


def test_notes_say_what_was_not_looked_at() -> None:
    """In the golden bundles: two entries of kinds that a later release may write, and the checkpoint."""
    for name, lines in GOLDEN.items():
        count = {"bundle-1-erased.jsonl": 2, "bundle-1-fork.jsonl": 0}.get(name, 3)
        expected = ["pos 15 is .*later_kind", "pos 16 is .*later_kind", "checkpoint"][:count]
        for notes in (cs.verify_bundle(lines).notes, offline.check(io.BytesIO(b"".join(lines))).notes):
            assert len(notes) == len(expected)
            assert all(re.search(*pair) for pair in zip(expected, notes, strict=True))


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_NAME = _TEXT.filter(lambda name: 1 <= len(name.encode()) <= 255)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


_OBJECT = st.dictionaries(st.text(max_size=5), _JSON, max_size=3)


@st.composite
def threads(draw: st.DrawFn) -> Thread:
    """Any thread: any names, any content, any order of what may happen to it."""
    thread = Thread(draw(_NAME), draw(_NAME))
    for _ in range(draw(st.integers(1, 12))):
        seqs = thread._count("message")
        kind = draw(st.sampled_from(["message", "message", "failed", "applied", "event", "redaction"]))
        if kind == "applied" and seqs:
            start = draw(st.integers(1, seqs))
            body = draw(_OBJECT) | {"replacement": draw(st.lists(_OBJECT, max_size=2))}
            thread.compaction(json.dumps(body), start=start, end=draw(st.integers(start, seqs)), actor=draw(_TEXT))
        elif kind == "failed":
            earlier = st.integers(0, thread._count("compaction"))
            thread.compaction(json.dumps(draw(_OBJECT)), inputs=draw(st.lists(earlier)))
        elif kind == "event":
            thread.event(draw(st.sampled_from(["hold", "release"])), json.dumps(draw(_OBJECT)), draw(st.none() | _TEXT))
        elif kind == "redaction" and seqs:
            numbers = set(range(1, thread._count("compaction") + 1))
            chosen = draw(st.sets(st.integers(1, seqs)))
            thread.redact(chosen, draw(st.sets(st.sampled_from(sorted(numbers)))) if numbers else set())
        else:
            payload = json.dumps(draw(_OBJECT), ensure_ascii=True)
            role = json.loads(payload).get("role")
            role = role if isinstance(role, str) and re.fullmatch("[!-~]{1,64}", role) else None
            meta = draw(st.none() | st.just("{}"))
            thread.message(payload, role=role, key=draw(st.none() | _TEXT), meta=meta, tokens=draw(st.integers(0, 99)))
    if draw(st.booleans()) and thread._count("message"):
        thread.erase()
    return thread


@settings(max_examples=300, deadline=None)
@given(threads(), st.integers(0, 2**30))
def test_both_verifiers_take_every_thread_that_is_sound(thread: Thread, mask: int) -> None:
    assert not found_by_both(thread.lines())
    assert not found_by_both(thread.lines(lambda line: bool(mask >> line["pos"] & 1)))
    for line in thread.lines():
        assert line_format.dump(line_format.parse(line)) == line


# ---- invalid bundles


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_every_flipped_bit_is_found_by_both(name: str, seed: int) -> None:
    """There are 5,000 of them."""
    random_bits = random.Random(seed)
    data = b"".join(GOLDEN[name])
    for _ in range(334):
        at = random_bits.randrange(8 * len(data))
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        assert ours(cut(bytes(flipped))), at
        assert theirs(bytes(flipped)), at


def _others(value: Any) -> list[Any]:
    """Yields other values of the same form, and some of another form."""
    if isinstance(value, bool) or value is None:
        return [0, "", "x", 1]
    if isinstance(value, int):
        return [value + 1, value - 1, 0 if value else 2, str(value), None]
    if isinstance(value, list):
        return [[*value, 1], None]
    if isinstance(value, dict):
        return [None, value | {"note": "other"}]
    if re.fullmatch("[0-9a-f]{32}|[0-9a-f]{64}", value):
        return [value[::-1], "0" * len(value), value.upper(), value[:-2], None]
    return [value + "x", value[:-1], None, 7]


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_every_changed_field_is_found_though_the_end_fits_again_or_is_listed(name: str) -> None:
    """As by somebody who knows the format, changes one field, and recomputes only the end of the bundle."""
    lines = said(GOLDEN[name])
    missed = set()
    for at, line in enumerate(lines):
        for field, value in line.items():
            for other in _others(value):
                changed = [*lines[:at], line | {field: other}, *lines[at + 1 :]]
                if other != value and not found_by_both(sealed(changed)):
                    missed.add(field)
    # What a redaction erased is known from its content alone.
    besides = {"bundle-1-withheld.jsonl": {"redacted_pos"}}
    assert missed <= UNPROTECTED | besides.get(name, set())
    assert sorted(UNPROTECTED) == ["checkpoint", "made_at", "metadata", "schema", "subject"]


@pytest.mark.parametrize("name", sorted(GOLDEN))
@pytest.mark.parametrize("sealing", [True, False])
def test_lines_that_are_missing_moved_or_there_twice_are_found(name: str, sealing: bool) -> None:
    lines = GOLDEN[name]
    close: Callable[[list[Line]], list[bytes]] = sealed if sealing else lambda some: [
        *map(line_format.dump, some), lines[-1]
    ]  # fmt: skip
    entries = said(lines)
    other = said(rich("default", "another").lines())
    for at in range(1, len(entries)):
        assert found_by_both(close([*entries[:at], *entries[at + 1 :]])), at
        assert found_by_both(close([*entries[:at], entries[at], *entries[at:]])), at
        if at < len(other):
            assert found_by_both(close([*entries[:at], other[at], *entries[at + 1 :]])), at
        for to in range(1, at):
            moved = [*entries]
            moved.insert(to, moved.pop(at))
            assert found_by_both(close(moved)), (at, to)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_half_a_bundle_is_refused_wherever_it_ends(name: str) -> None:
    data = b"".join(GOLDEN[name])
    for end in range(0, len(data), 7):
        assert ours(cut(data[:end])), end
        assert theirs(data[:end]), end
    assert ours(cut(data[:-1]))
    assert theirs(data[:-1])


DATA = b"".join(FULL)


@pytest.mark.parametrize(
    "data",
    [
        DATA + DATA,
        DATA + b"\n",
        b"\n" + DATA,
        b"\xef\xbb\xbf" + DATA,
        DATA.replace(b"\n", b"\r\n"),
        DATA.replace(b"\n", b"\n\n", 1),
        DATA.replace(b'"type"', b' "type"'),
        DATA.replace("größe".encode(), "größe".encode("latin-1")),
        DATA.replace("größe".encode(), b"gr\\u00f6\\u00dfe"),
        DATA.decode().encode("utf-16"),
        b"\0" * 1000,
        b"\0" + DATA,
        b"",
        b"\n",
        b"{}\n",
        b"[]\n" * 10,
        b'{"type":"manifest"}\n',
        b'{"type":"' + b"[" * 1_000_000 + b"\n",
        b"[" * 1_000_000 + b"\n",
        b'{"type":"end","entries":0,"head":"' + b"0" * 64 + b'","sha256":"' + b"0" * 64 + b'"}\n',
        b'{"type":"' + b"x" * 5_000_000 + b'"}\n',
        b"x" * 5_000_000,
        DATA.replace(b'"pos":1,', b'"pos":' + b"1" * 100_000 + b",", 1),
        DATA.replace(b'"pos":1,', b'"pos":1,"pos":1,', 1),
        DATA.replace(b'"pos":1,', b'"pos":1.0,', 1),
        DATA.replace(b'"pos":1,', b'"pos":NaN,', 1),
        DATA.replace(b'"pos":1,', b'"pos":true,', 1),
        DATA.replace(b'"pos":1,', b'"pos":{"a":' * 5000 + b"1" + b"}" * 5000 + b",", 1),
        DATA.replace(b'"role":"user"', b'"role":"\\u0000"', 1),
        DATA.replace(b'"role":"user"', b'"role":"\\ud800"', 1),
        DATA.replace(b'"type":"message"', b'"type":["message"]', 1),
    ],
    ids=range(31),
)  # fmt: skip
def test_what_is_no_bundle_is_found_by_both(data: bytes) -> None:
    assert data != DATA
    assert ours(cut(data))
    assert theirs(data)


def test_content_that_is_missing_in_part_is_found() -> None:
    entries = said(FULL)
    for name in ("salt", "payload", "meta"):
        assert found_by_both(sealed([entries[0], entries[1] | {name: None}, *entries[2:]])), name


@pytest.mark.parametrize("body", [{"seqs": [[5, 6]], "records": []}, {"seqs": [[4, 6]], "records": [[7, 7]]}, {}, []])
def test_a_redaction_that_names_other_rows_than_were_erased_is_found(body: Any) -> None:
    thread = rich()
    thread.message("{}")
    thread.redact({1}, set())
    pos = len(thread.entries)
    text = json.dumps(body)
    line = thread.entries[-1]
    line["body"] = text
    line["commitment"] = chain.commitment(bytes.fromhex(line["salt"]), text.encode()).hex()
    line["entry"] = bundles.entry(line, bytes.fromhex(thread.entries[-2]["entry"]))
    assert found_by_both(thread.lines())
    withheld = thread.lines(lambda line: line["pos"] != pos)
    assert not found_by_both(withheld)
    assert cs.verify_bundle(withheld).level == "structure"


def test_an_erasure_that_nobody_ordered_is_found() -> None:
    entries = said(FULL)
    for pos in (12, 21, 999):
        line = entries[1] | {"redacted_pos": pos, "salt": None, "meta": None, "payload": None}
        assert found_by_both(sealed([entries[0], line, *entries[2:]])), pos


def test_an_erased_thread_that_kept_something_is_found() -> None:
    erased = golden()["bundle-1-erased.jsonl"]
    entries = said(erased)
    assert found_by_both(sealed([entries[0] | {"metadata": '{"title":"kept"}'}, *entries[1:]]))
    assert found_by_both(sealed([entries[0] | {"thread_id": "to be erased", "tenant": "acme"}, *entries[1:]]))
    assert found_by_both(sealed([said(FULL)[0] | {"thread_id": entries[0]["thread_id"]}, *said(FULL)[1:]]))


def test_a_chain_computed_anew_shows_only_against_a_head_kept_elsewhere() -> None:
    old, new = rich(), rich()
    new.entries[0]["payload"] = '{"role":"user","content":"HI"}'
    salt = bytes.fromhex(new.entries[0]["salt"])
    new.entries[0]["commitment"] = chain.commitment(salt, new.entries[0]["payload"].encode()).hex()
    previous = new.genesis
    for line in new.entries:
        line["entry"] = bundles.entry(line, previous)
        previous = bytes.fromhex(line["entry"])
    lines = new.lines()
    assert not found_by_both(lines)
    data = b"".join(lines)
    for pos in (None, 1, 9, len(old.entries)):
        kept = old.entries[-1 if pos is None else pos - 1]["entry"]
        assert ours(lines, head=bytes.fromhex(kept), pos=pos)
        assert theirs(data, kept, pos)
        same = new.entries[-1 if pos is None else pos - 1]["entry"]
        assert not ours(lines, head=bytes.fromhex(same), pos=pos)
        assert not theirs(data, same, pos)
    assert ours(lines, head=previous, pos=99)
    assert theirs(data, previous.hex(), 99)


def test_a_finding_names_its_line_and_its_pos_and_no_content() -> None:
    entries = said(FULL)
    changed = entries[3] | {"payload": '{"SECRET":"SECRET"}'}
    lines = sealed([*entries[:3], changed, *entries[4:]])
    [finding] = ours(lines)
    assert (finding.line, finding.pos) == (4, 3)
    assert [found[:2] for found in theirs(b"".join(lines))] == [(4, 3)]
    for secret in ("role", "key", "payload", "seq", "type", "commitment"):
        told = sealed([*entries[:3], entries[3] | {secret: "SECRET"}, *entries[4:]])
        assert "SECRET" not in repr(cs.verify_bundle(told))
        assert "SECRET" not in "".join(offline.report(offline.check(io.BytesIO(b"".join(told)))))


def test_findings_have_an_end() -> None:
    thread = Thread()
    for _ in range(1200):
        thread.message("{}")
    entries = said(thread.lines())
    for line in entries[1:]:
        line["tokens"] += 1
    lines = sealed(entries)
    assert len(ours(lines)) == len(theirs(b"".join(lines))) == 1001


# ---- any garbage


@settings(max_examples=500, deadline=None)
@given(st.lists(st.binary(max_size=200) | st.sampled_from([*FULL, b"\n", b"{}\n"]), max_size=30))
def test_no_garbage_makes_a_verifier_fail(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert bool(ours(cut(data))) == bool(theirs(data)) == (data != DATA)
    ours(pieces)


@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_no_value_makes_a_verifier_fail(data: st.DataObject) -> None:
    """The lines have the right shape and any values in their fields, and the end matches."""
    lines = said(data.draw(st.sampled_from([GOLDEN[name] for name in sorted(GOLDEN)])))
    for _ in range(data.draw(st.integers(1, 3))):
        line = data.draw(st.sampled_from(lines))
        field = data.draw(st.sampled_from(sorted(line)))
        numbers = st.sampled_from([-(2**63), 2**63 - 1, 2**63, -1, 0, 2**31, 10**30])
        strings = st.sampled_from(["\0", "{", "null", "[" * 3000, '{"seqs":[[1,2],[3]],"records":{}}', "0" * 64])
        line[field] = data.draw(numbers | strings | _JSON.filter(lambda value: "\\ud" not in json.dumps(value)))
    written = [json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for line in lines]
    digest = sha256(b"".join(written)).hexdigest()
    end = {"type": "end", "entries": len(lines) - 1, "head": "0" * 64, "sha256": digest}
    found_by_both([*written, line_format.dump(end)])


def test_a_bundle_is_given_as_lines_of_bytes() -> None:
    wrong: Any
    for wrong in (DATA, DATA.decode(), {}, None, 7, [DATA.decode()], [bytearray(DATA)], [None]):
        with pytest.raises(cs.InvalidInput, match="mode 'rb'"):
            cs.verify_bundle(wrong)
    for kept in (
        {"pos": 1},
        {"head": "00"},
        {"head": b""},
        {"head": bytes(32), "pos": 0},
        {"head": bytes(32), "pos": "1"},
    ):
        with pytest.raises(cs.InvalidInput):
            cs.verify_bundle(FULL, **kept)


# ---- the file that is run alone


def run(*arguments: str, cwd: Path, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Runs a copy of offline.py outside of the package, with only the standard library."""
    shutil.copy(SOURCE, cwd / "offline.py")
    command = [sys.executable, "-I", "-S", "offline.py", *arguments]
    return subprocess.run(command, cwd=cwd, input=given, capture_output=True, timeout=60, check=False)


def test_the_command_says_what_it_found(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(DATA)
    head = said(FULL)[0]["head"]
    for arguments in ((), ("--head", head), ("--head", head, "--pos", "21")):
        done = run("b.jsonl", *arguments, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"level     content" in done.stdout
        assert b"findings  0" in done.stdout
    done = run("-", cwd=tmp_path, given=b"".join(GOLDEN["bundle-1-withheld.jsonl"]))
    assert done.returncode == 0
    assert re.search(rb"level     structure.*withheld  [1-9]", done.stdout, re.DOTALL)
    done = run("b.jsonl", "--head", "0" * 64, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"finding   line 1: the head is not the one kept elsewhere" in done.stdout
    done = run("-", cwd=tmp_path, given=DATA[:-400])
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    "arguments", [("missing.jsonl",), ("\udcff\udcfe",), (".",), (), ("b", "--pos", "1"), ("b", "--head", "xyz")]
)
def test_the_command_that_cannot_check_says_so(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert done.stderr


def test_names_are_shown_so_that_they_move_no_cursor(tmp_path: Path) -> None:
    done = run("-", cwd=tmp_path, given=b"".join(rich("größe\x1b[2J", "t\n\u202e").lines()))
    assert done.returncode == 0
    assert b"'t\\n\\u202e' of tenant 'gr\\xf6\\xdfe\\x1b[2J'" in done.stdout


def test_the_file_is_python_3_9_and_imports_nothing_else() -> None:
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"), feature_version=(3, 9))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    assert names <= sys.stdlib_module_names
    assert not any(isinstance(node, ast.Match) for node in ast.walk(tree))


def test_a_name_that_utf_8_cannot_carry_is_a_finding() -> None:
    manifest = re.sub(rb'"(tenant|thread_id)":"[^"]*"', rb'"\1":"\\ud800"', FULL[0])
    assert manifest.count(rb"\ud800") == 2
    assert found_by_both([manifest, *FULL[1:]])
