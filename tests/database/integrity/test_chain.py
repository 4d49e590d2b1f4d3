"""Format version 1: the golden file, Python and SQL agree."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Json
from support.paths import TESTS

from compaction_store.integrity import chain

HERE = TESTS
GOLDEN_FILE = HERE / "golden" / "format-1.json"
GOLDEN_SHA256 = "29c193ef109bd10c11e4478a49f6822a526e05ccf587e99e74aef9d6886fadd1"
DOCUMENT = HERE.parent / "docs" / "integrity.md"
GENERATOR = HERE.parent / "scripts" / "golden.py"

GOLDEN: dict[str, Any] = json.loads(GOLDEN_FILE.read_bytes())
BATCH = 1000


def header(kind: str, columns: dict[str, Any]) -> bytes:
    values = dict(columns)
    for name in ("meta_commitment", "source_before", "source_end"):
        if values.get(name) is not None:
            values[name] = bytes.fromhex(values[name])
    if kind == "message":
        return chain.message_header(**values)
    if kind == "event":
        return chain.event_header(**values)
    return chain.compaction_header(**values | {"run_id": uuid.UUID(values["run_id"])})


def test_the_golden_file_never_changes() -> None:
    assert sha256(GOLDEN_FILE.read_bytes()).hexdigest() == GOLDEN_SHA256
    assert GOLDEN["format"] == chain.VERSION


@pytest.mark.skipif(not GENERATOR.exists(), reason="the source distribution has no scripts")
def test_the_second_implementation_still_prints_the_golden_file() -> None:
    assert "compaction_store" not in re.findall(r"^\s*(?:from|import) (\w+)", GENERATOR.read_text(), re.MULTILINE)
    printed = subprocess.run([sys.executable, str(GENERATOR)], capture_output=True, check=True).stdout
    assert printed.replace(b"\r\n", b"\n") == GOLDEN_FILE.read_bytes()


def test_every_hash_of_the_document_is_in_the_golden_file() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    hashes = set(re.findall(r"\b[0-9a-f]{64}\b", document))
    assert len(hashes) >= 10
    assert {h for h in hashes if h not in GOLDEN_FILE.read_text()} == set()
    example = GOLDEN["chain"]
    for row in example["rows"]:
        assert row["entry"] in hashes
        assert row["leaf"] in hashes
        assert row["commitment"] in hashes
        assert row["header"] in re.sub(r"\s", "", document)


@pytest.mark.parametrize("case", GOLDEN["names"], ids=lambda case: ascii(case["thread_id"]))
def test_names_threads_and_genesis_are_the_golden_ones(case: dict[str, str]) -> None:
    of = (case["tenant"], case["thread_id"])
    assert chain.name(*of).hex() == case["name"]
    assert str(chain.thread_uid(*of)) == case["thread_uid"]
    assert chain.thread_uid(*of).version == 8
    assert chain.thread_uid(*of).variant == uuid.RFC_4122
    assert chain.genesis(*of).hex() == case["genesis"]


@pytest.mark.parametrize("case", GOLDEN["commitments"])
def test_commitments_are_the_golden_ones(case: dict[str, str]) -> None:
    salt, text = bytes.fromhex(case["salt"]), case["text"].encode()
    assert chain.commitment(salt, text).hex() == case["commitment"]
    assert chain.meta_commitment(salt, text).hex() == case["meta_commitment"]


@pytest.mark.parametrize("case", GOLDEN["headers"], ids=lambda case: case["kind"])
def test_headers_are_the_golden_ones(case: dict[str, Any]) -> None:
    assert header(case["kind"], case["columns"]).hex() == case["header"]


def test_leaves_and_entries_are_the_golden_ones() -> None:
    for case in GOLDEN["leaves"]:
        assert chain.leaf(bytes.fromhex(case["header"]), bytes.fromhex(case["commitment"])).hex() == case["leaf"]
    for case in GOLDEN["entries"]:
        previous, leaf = bytes.fromhex(case["previous"]), bytes.fromhex(case["leaf"])
        link = chain.entry(previous, case["pos"], case["ordinal"], case["microseconds"], leaf)
        assert link.hex() == case["entry"]


def test_the_golden_chain_of_three_is_followed_to_its_head() -> None:
    example = GOLDEN["chain"]
    previous = chain.genesis(example["tenant"], example["thread_id"])
    for row in example["rows"]:
        salt = bytes.fromhex(row["salt"])
        commitment = chain.commitment(salt, row["body"].encode())
        assert commitment.hex() == row["commitment"]
        if row["meta"] is not None:
            assert chain.meta_commitment(salt, row["meta"].encode()).hex() == row["columns"]["meta_commitment"]
        made = header(row["kind"], row["columns"])
        assert made.hex() == row["header"]
        leaf = chain.leaf(made, commitment)
        assert leaf.hex() == row["leaf"]
        assert chain.microseconds(datetime.fromisoformat(row["created_at"])) == row["microseconds"]
        previous = chain.entry(previous, row["pos"], row["ordinal"], row["microseconds"], leaf)
        assert previous.hex() == row["entry"]
    assert previous.hex() == example["head"]


def test_absent_and_empty_fields_give_different_headers() -> None:
    columns: dict[str, Any] = {
        "role": None, "tokens": 1, "counter": "", "key": None, "call_size": None, "receipt": None,
        "meta_commitment": None,
    }  # fmt: skip
    seen = {chain.message_header(**columns)}
    for name in ("role", "key", "receipt"):
        seen.add(chain.message_header(**columns | {name: ""}))
    seen.add(chain.message_header(**columns | {"call_size": 0}))
    seen.add(chain.message_header(**columns | {"meta_commitment": b""}))
    assert len(seen) == 6


_AWKWARD = '"\\/\b\f\n\r\t\x01\x1f\x7f\x80\u2028\u2029\ufeff\uffff\ufdd0\U0010ffff\u0301é会\U0001f512 a'


def any_text(source: random.Random, longest: int = 40) -> str:
    """Makes text without NUL and surrogates, often with characters that JSON writers encode differently."""

    def character() -> str:
        if source.random() < 0.5:
            return source.choice(_AWKWARD)
        point = source.randrange(1, 0x110000 - 0x800)
        return chr(point + 0x800 if point >= 0xD800 else point)

    return "".join(character() for _ in range(source.randrange(longest)))


def maybe(source: random.Random, value: Any) -> Any:
    return None if source.random() < 0.3 else value


def any_number(source: random.Random, bits: int = 63) -> int:
    return int(source.choice([0, 1, -1, 2**bits - 1, -(2**bits), source.getrandbits(bits), -source.getrandbits(20)]))


@pytest.mark.parametrize("seed", range(2))
def test_sql_names_threads_as_python_does(superuser: psycopg.Connection[Any], seed: int) -> None:
    source = random.Random(seed)
    pairs = [(any_text(source), any_text(source)) for _ in range(BATCH)]
    rows = superuser.execute(
        "SELECT compaction_store.name(t, i), compaction_store.thread_uid(t, i), compaction_store.genesis(t, i)"
        " FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS u (t, i, n) ORDER BY n",
        tuple(map(list, zip(*pairs, strict=True))),
    ).fetchall()
    assert rows == [(chain.name(*p), chain.thread_uid(*p), chain.genesis(*p)) for p in pairs]


@pytest.mark.parametrize("seed", range(2))
def test_sql_commits_to_content_as_python_does(superuser: psycopg.Connection[Any], seed: int) -> None:
    source = random.Random(seed)
    pairs = [(source.randbytes(16), any_text(source, 200)) for _ in range(BATCH)]
    rows = superuser.execute(
        "SELECT compaction_store.commitment(s, b), compaction_store.meta_commitment(s, b)"
        " FROM unnest(%s::bytea[], %s::text[]) WITH ORDINALITY AS u (s, b, n) ORDER BY n",
        tuple(map(list, zip(*pairs, strict=True))),
    ).fetchall()
    assert rows == [(chain.commitment(s, b.encode()), chain.meta_commitment(s, b.encode())) for s, b in pairs]


@pytest.mark.parametrize("seed", range(2))
def test_sql_writes_message_headers_as_python_does(
    superuser: psycopg.Connection[Any],
    seed: int,
) -> None:
    source = random.Random(seed)
    rows = [
        {
            "role": maybe(source, any_text(source)), "tokens": any_number(source), "counter": any_text(source),
            "key": maybe(source, any_text(source)), "call_size": maybe(source, any_number(source)),
            "receipt": maybe(source, any_text(source)), "meta_commitment": maybe(source, source.randbytes(32)),
        }
        for _ in range(BATCH)
    ]  # fmt: skip
    made = superuser.execute(
        "SELECT compaction_store.message_header(role, tokens, counter, key, call_size, receipt, meta_commitment)"
        " FROM unnest(%s::text[], %s::int8[], %s::text[], %s::text[], %s::int8[], %s::text[], %s::bytea[])"
        " WITH ORDINALITY AS u (role, tokens, counter, key, call_size, receipt, meta_commitment, n) ORDER BY n",
        [[row[name] for row in rows] for name in rows[0]],
    ).fetchall()
    assert made == [(chain.message_header(**row),) for row in rows]


@pytest.mark.parametrize("seed", range(2))
def test_sql_writes_compaction_headers_as_python_does(
    superuser: psycopg.Connection[Any],
    seed: int,
) -> None:
    source = random.Random(seed)
    numbers = ("start_seq", "end_seq", "tokens_before", "tokens_after", "source_count", "revokes")
    texts = ("callback", "trigger", "actor", "model", "counter")
    rows: list[dict[str, Any]] = [
        {"kind": any_text(source), "outcome": any_text(source)}
        | {name: maybe(source, any_number(source)) for name in numbers}
        | {name: maybe(source, any_text(source)) for name in texts}
        | {name: maybe(source, source.randbytes(32)) for name in ("source_before", "source_end")}
        | {"inputs": [any_number(source) for _ in range(source.randrange(5))]}
        | {"run_id": uuid.UUID(bytes=source.randbytes(16))}
        for _ in range(BATCH)
    ]

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return "\\x" + value.hex()
        return str(value) if isinstance(value, uuid.UUID) else value

    records = [{name: plain(value) for name, value in row.items()} for row in rows]
    made = superuser.execute(
        "SELECT compaction_store.compaction_header(json_populate_record(NULL::compaction_store.compactions, r.value))"
        " FROM json_array_elements(%s) WITH ORDINALITY AS r (value, n) ORDER BY n",
        (Json(records),),
    ).fetchall()
    assert made == [(chain.compaction_header(**row),) for row in rows]


@pytest.mark.parametrize("seed", range(2))
def test_sql_links_entries_as_python_does(superuser: psycopg.Connection[Any], seed: int) -> None:
    source = random.Random(seed)
    first = datetime(1, 1, 2, tzinfo=UTC)
    span = timedelta(days=3_652_000) // timedelta(microseconds=1)
    rows = [
        (
            source.randbytes(32), any_number(source), any_number(source),
            first + timedelta(microseconds=source.randrange(span)), source.randbytes(source.randrange(90)),
            source.randbytes(32),
        )
        for _ in range(BATCH)
    ]  # fmt: skip
    made = superuser.execute(
        "SELECT compaction_store.entry(p, pos, o, at, h, c)"
        " FROM unnest(%s::bytea[], %s::int8[], %s::int8[], %s::timestamptz[], %s::bytea[], %s::bytea[])"
        " WITH ORDINALITY AS u (p, pos, o, at, h, c, n) ORDER BY n",
        tuple(map(list, zip(*rows, strict=True))),
    ).fetchall()
    assert made == [
        (chain.entry(previous, pos, ordinal, chain.microseconds(at), chain.leaf(header, commitment)),)
        for previous, pos, ordinal, at, header, commitment in rows
    ]
