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
GOLDEN_SHA256 = "09a37fa74301ce519ea86e64819b11863663f4e5b2d11aa19633840c2e2ea681"
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
    assert len(hashes) >= 9
    assert {h for h in hashes if h not in GOLDEN_FILE.read_text()} == set()
    example = GOLDEN["chain"]
    for row in example["rows"]:
        assert row["entry"] in hashes
        assert row["commitment"] in hashes
        assert row["header"] in re.sub(r"\s", "", document)


@pytest.mark.parametrize("case", GOLDEN["names"], ids=lambda case: ascii(case["thread_id"]))
def test_commitments_to_names_and_genesis_are_the_golden_ones(case: dict[str, str]) -> None:
    commitment = chain.name_commitment(bytes.fromhex(case["salt"]), case["thread_id"])
    assert commitment.hex() == case["commitment"]
    assert chain.genesis(uuid.UUID(case["thread_uid"]), case["tenant"], commitment).hex() == case["genesis"]


@pytest.mark.parametrize("case", GOLDEN["commitments"])
def test_commitments_are_the_golden_ones(case: dict[str, str]) -> None:
    salt, text = bytes.fromhex(case["salt"]), case["text"].encode()
    assert chain.commitment(salt, text).hex() == case["commitment"]
    assert chain.meta_commitment(salt, text).hex() == case["meta_commitment"]


@pytest.mark.parametrize("case", GOLDEN["headers"], ids=lambda case: case["kind"])
def test_headers_are_the_golden_ones(case: dict[str, Any]) -> None:
    assert header(case["kind"], case["columns"]).hex() == case["header"]


@pytest.mark.parametrize("case", GOLDEN["entries"], ids=lambda case: str(case["pos"]))
def test_entries_are_the_golden_ones(case: dict[str, Any]) -> None:
    previous, commitment, made = (bytes.fromhex(case[name]) for name in ("previous", "commitment", "header"))
    link = chain.entry(previous, case["pos"], case["ordinal"], case["microseconds"], commitment, made)
    assert link.hex() == case["entry"]


def test_the_golden_chain_of_three_is_followed_to_its_head() -> None:
    example = GOLDEN["chain"]
    key = uuid.UUID(example["thread_uid"])
    named = chain.name_commitment(bytes.fromhex(example["name_salt"]), example["thread_id"])
    assert named.hex() == example["name_commitment"]
    assert chain.born_at(key) == chain.milliseconds(example["rows"][0]["microseconds"])
    previous = chain.genesis(key, example["tenant"], named)
    assert previous.hex() == example["genesis"]
    for row in example["rows"]:
        salt = bytes.fromhex(row["salt"])
        commitment = chain.commitment(salt, row["body"].encode())
        assert commitment.hex() == row["commitment"]
        if row["meta"] is not None:
            assert chain.meta_commitment(salt, row["meta"].encode()).hex() == row["columns"]["meta_commitment"]
        made = header(row["kind"], row["columns"])
        assert made.hex() == row["header"]
        assert chain.microseconds(datetime.fromisoformat(row["created_at"])) == row["microseconds"]
        previous = chain.entry(previous, row["pos"], row["ordinal"], row["microseconds"], commitment, made)
        assert previous.hex() == row["entry"]
    assert previous.hex() == example["head"]


def test_absent_and_empty_fields_give_different_headers() -> None:
    columns: dict[str, Any] = {
        "role": None, "tokens": 1, "counter": "", "key": None, "call_size": None, "receipt": None, "actor": None,
        "login": "", "meta_commitment": None,
    }  # fmt: skip
    seen = {chain.message_header(**columns)}
    for name in ("role", "key", "receipt", "actor"):
        seen.add(chain.message_header(**columns | {name: ""}))
    seen.add(chain.message_header(**columns | {"call_size": 0}))
    seen.add(chain.message_header(**columns | {"meta_commitment": b""}))
    assert len(seen) == 7


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
def test_sql_binds_names_as_python_does(superuser: psycopg.Connection[Any], seed: int) -> None:
    source = random.Random(seed)
    rows = [
        (uuid.UUID(bytes=source.randbytes(16)), any_text(source), any_text(source), source.randbytes(16))
        for _ in range(BATCH)
    ]
    made = superuser.execute(
        "SELECT compaction_store.name_commitment(s, i),"
        " compaction_store.genesis(u, t, compaction_store.name_commitment(s, i))"
        " FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::bytea[]) WITH ORDINALITY AS r (u, t, i, s, n) ORDER BY n",
        tuple(map(list, zip(*rows, strict=True))),
    ).fetchall()
    named = [chain.name_commitment(salt, thread_id) for _, _, thread_id, salt in rows]
    assert made == [
        (name, chain.genesis(key, tenant, name)) for (key, tenant, _, _), name in zip(rows, named, strict=True)
    ]


@pytest.mark.parametrize("seed", range(2))
def test_sql_makes_keys_that_begin_with_the_time_of_birth(superuser: psycopg.Connection[Any], seed: int) -> None:
    source = random.Random(seed)
    end = datetime(2900, 1, 1, tzinfo=UTC)
    births = sorted(
        datetime(1969, 1, 1, tzinfo=UTC) + (end - datetime(1969, 1, 1, tzinfo=UTC)) * source.random()
        for _ in range(BATCH)
    )
    rows = superuser.execute(
        "SELECT k, compaction_store.born_in(k, at),"
        " compaction_store.born_in(k, at + interval '1 millisecond'), compaction_store.born_in(gen_random_uuid(), at)"
        " FROM (SELECT compaction_store.new_thread_uid(at) AS k, at, n"
        "       FROM unnest(%s::timestamptz[]) WITH ORDINALITY AS u (at, n)) AS made ORDER BY n",
        (births,),
    ).fetchall()
    assert [(chain.born_at(key), key.version, key.variant) for key, *_ in rows] == [
        (chain.milliseconds(chain.microseconds(at)), 7, uuid.RFC_4122) for at in births
    ]
    assert {tuple(row[1:]) for row in rows} == {(True, False, False)}
    assert len({row[0] for row in rows}) == BATCH
    # Postgres orders keys by their bytes: those from 1970 on are in the order of births.
    since_1970 = [row[0] for row, at in zip(rows, births, strict=True) if at.year >= 1970]
    assert [key.bytes[:6] for key in since_1970] == sorted(key.bytes[:6] for key in since_1970)


@pytest.mark.parametrize("seed", range(2))
def test_sql_writes_event_headers_as_python_does(superuser: psycopg.Connection[Any], seed: int) -> None:
    source = random.Random(seed)
    rows = [
        {
            "kind": any_text(source), "critical": source.random() < 0.5, "actor": maybe(source, any_text(source)),
            "login": any_text(source),
        }
        for _ in range(BATCH)
    ]  # fmt: skip
    made = superuser.execute(
        "SELECT compaction_store.event_header(kind, critical, actor, login)"
        " FROM unnest(%s::text[], %s::bool[], %s::text[], %s::text[])"
        " WITH ORDINALITY AS u (kind, critical, actor, login, n) ORDER BY n",
        [[row[name] for row in rows] for name in rows[0]],
    ).fetchall()
    assert made == [(chain.event_header(**row),) for row in rows]


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
            "receipt": maybe(source, any_text(source)), "actor": maybe(source, any_text(source)),
            "login": any_text(source), "meta_commitment": maybe(source, source.randbytes(32)),
        }
        for _ in range(BATCH)
    ]  # fmt: skip
    made = superuser.execute(
        "SELECT compaction_store.message_header(role, tokens, counter, key, call_size, receipt, actor, login, meta)"
        " FROM unnest(%s::text[], %s::int8[], %s::text[], %s::text[], %s::int8[], %s::text[], %s::text[], %s::text[],"
        " %s::bytea[]) WITH ORDINALITY AS u (role, tokens, counter, key, call_size, receipt, actor, login, meta, n)"
        " ORDER BY n",
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
        {"kind": any_text(source), "outcome": any_text(source), "login": any_text(source)}
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
        (chain.entry(previous, pos, ordinal, chain.microseconds(at), commitment, header),)
        for previous, pos, ordinal, at, header, commitment in rows
    ]
