"""Random changes of single fields, by a superuser, over every column of every table: each is found, or its column is on
the list that docs/integrity.md publishes.
"""

from __future__ import annotations

import os
import random
import re
import string
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import sql
from support.paths import ROOT

import compaction_store as cs
from compaction_store.postgres import tables

_DOCUMENT = (ROOT / "docs" / "integrity.md").read_text(encoding="utf-8")
UNPROTECTED = set(re.findall(r"^\| `(\w+\.\w+)`", _DOCUMENT, re.MULTILINE))
# Columns that must never be on the list.
FORBIDDEN = re.compile(r"\.(payload|meta|body|role|start_seq|end_seq|created_at|last_at|actor|text|salt|commitment)$")
SEED = int(os.environ.get("COMPACTION_STORE_TEST_SEED", "7"))
_CELLS = "Citus does not change the key of a row, and each shard has a row of the same ctid"


class Cell(NamedTuple):
    table: str
    column: str
    kind: str
    is_nullable: bool

    @property
    def name(self) -> str:
        return f"{self.table}.{self.column}"


@pytest.fixture
def store(url: str) -> Iterator[cs.Store]:
    with cs.Store.open(url) as opened:
        yield opened


@pytest.fixture
def root(superuser: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """A superuser with all triggers disabled, and without constraints except the keys."""
    for table in tables.metadata.sorted_tables:
        superuser.execute(f"ALTER TABLE {table.fullname} DISABLE TRIGGER ALL")
    for table, check in superuser.execute(
        "SELECT conrelid::regclass::text, conname FROM pg_constraint"
        " WHERE contype = 'c' AND connamespace = 'compaction_store'::regnamespace"
    ).fetchall():
        superuser.execute(f"ALTER TABLE {table} DROP CONSTRAINT {check}".encode())
    return superuser


def build(store: cs.Store) -> list[str]:
    """Makes threads with every kind of entry."""
    names = []
    for n in range(3):
        name = f"thread {n}"
        names.append(name)
        store.append(name, {"role": "system", "content": "be kind"}, key="first", meta={"source": "web"})
        store.append(
            name, [{"role": "user", "content": f"some words that could be fewer {i}"} for i in range(6)], key="k"
        )
        store.append(name, {"role": "assistant", "content": "yes"}, view=store.view(name))
        store.compact(name, lambda ctx: ctx.compact(2, 4, "fewer"), force=True, actor="me")
        store.compact(name, lambda ctx: ctx.compact(2, 5, cs.Summary("still", model="m")), force=True)
        store.append(name, [{"type": "reasoning", "n": i} for i in range(3)], raw=True)
        store.custody.hold(name, reason="r", actor="legal")
        store.custody.release(name, reason="r")
        if n:
            store.custody.redact(name, [6], reason="asked")
            store.revoke(name, 2, reason="r")
        store.append(name, {"role": "user", "content": "last"})
    store.append("erased", [{"role": "user", "content": f"said {i}"} for i in range(3)], meta=[{"n": 1}] * 3)
    store.compact("erased", lambda ctx: ctx.compact(1, 2, "less"), force=True)
    names.append(store.custody.erase("erased", reason="asked").thread_id)
    return names


def cells(root: psycopg.Connection[Any]) -> list[Cell]:
    return [
        Cell(*row)
        for row in root.execute(
            "SELECT table_name, column_name, data_type, is_nullable = 'YES' FROM information_schema.columns"
            " WHERE table_schema = 'compaction_store' AND table_name <> 'alembic_version' AND is_generated = 'NEVER'"
            " ORDER BY 1, 2"
        ).fetchall()
    ]


def changed(cell: Cell, old: Any, rng: random.Random) -> Any:  # noqa: C901, PLR0911 — one type after another
    """Another value of a column's type: near to the old one or far from it."""
    if cell.is_nullable and old is not None and rng.random() < 0.1:
        return None
    if cell.kind in {"bigint", "integer"}:
        near = rng.choice([1, -1, 2, 10, 1000])
        return rng.choice([(old or 0) + near, rng.randrange(-5, 30), rng.randrange(2**31)])
    if cell.kind == "boolean":
        return not old
    if cell.kind == "text":
        letters = list(old or "")
        if letters and rng.random() < 0.5:
            letters[rng.randrange(len(letters))] = rng.choice(string.printable[:95])
        else:
            letters.insert(rng.randint(0, len(letters)), rng.choice(string.printable[:95]))
        return "".join(letters)
    if cell.kind == "bytea":
        data = bytearray(old or bytes(16))
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return rng.choice([bytes(data), bytes(data[:-1]), rng.randbytes(len(data))])
    if cell.kind == "uuid":
        return rng.choice([uuid.UUID(int=rng.getrandbits(128)), uuid.UUID(int=old.int ^ 1) if old else uuid.uuid4()])
    if cell.kind == "timestamp with time zone":
        step = timedelta(microseconds=rng.choice([1, 1000, 10**6, 86400 * 10**6]) * rng.choice([1, -1]))
        return (old or datetime(2026, 1, 1, tzinfo=UTC)) + step
    if cell.kind == "json":
        if old is None:
            return "{}"
        at = rng.randrange(1, len(old))
        return rng.choice([old[:at] + " " + old[at:], old.replace("o", "0", 1) + " ", old + " "])
    numbers = list(old or [])
    numbers.insert(rng.randint(0, len(numbers)), rng.randrange(5))
    return numbers


def is_found(store: cs.Store, names: list[str]) -> bool:
    """Whether anything shows: in the threads by their names, or among all of them if a name leads nowhere."""
    try:
        return any(store.audit.verify(name).findings for name in names)
    except cs.ThreadNotFound:
        return any(report.findings for report in store.audit.verify())


class Mutator:
    """Changes one field of a row and puts it back."""

    def __init__(self, root: psycopg.Connection[Any], rng: random.Random) -> None:
        self.root = root
        self.rng = rng

    def pick(self, cell: Cell) -> tuple[str, str | None, Any]:
        cast = "::text" if cell.kind == "json" else ""
        rows = self.root.execute(
            f"SELECT ctid::text, {cell.column}{cast}, thread_uid FROM compaction_store.{cell.table}".encode()
        ).fetchall()
        ctid, old, uid = self.rng.choice(rows)
        return ctid, old, uid

    def put(self, cell: Cell, ctid: str, value: Any) -> str | None:
        """Returns the row's new place, or None if the database refused the value or it is the same."""
        kind = "bigint[]" if cell.kind == "ARRAY" else cell.kind
        statement = sql.SQL(
            "UPDATE {}.{} SET {} = {}::{} WHERE ctid = {}::tid AND {}::text IS DISTINCT FROM ({}::{})::text"
            " RETURNING ctid::text"
        ).format(
            sql.Identifier("compaction_store"), sql.Identifier(cell.table), sql.Identifier(cell.column),
            sql.Literal(value), sql.SQL(kind), sql.Literal(ctid), sql.Identifier(cell.column), sql.Literal(value),
            sql.SQL(kind),
        )  # fmt: skip
        try:
            rows = self.root.execute(statement).fetchall()
        except (psycopg.IntegrityError, psycopg.DataError):
            return None
        return rows[0][0] if rows else None


def campaign(store: cs.Store, root: psycopg.Connection[Any], changes: int) -> None:
    names = build(store)
    by_uid = {store.thread(name).thread_uid: name for name in names}
    rng = random.Random(SEED)
    mutator = Mutator(root, rng)
    everything = [cell for cell in cells(root) if f"{tables.SCHEMA}.{cell.table}" in tables.metadata.tables]
    assert {cell.name for cell in everything} | {
        "heads.view_tokens_coarse",
        "heads.active_hour",
        "compactions.span_node",
    } == {f"{table.name}.{column.name}" for table in tables.metadata.sorted_tables for column in table.columns}
    done: Counter[str] = Counter()
    wrong: list[str] = []
    while done.total() < changes or len(done) < len(everything):
        cell = everything[done.total() % len(everything)] if rng.random() < 0.5 else rng.choice(everything)
        ctid, old, uid = mutator.pick(cell)
        new = changed(cell, old, rng)
        place = mutator.put(cell, ctid, new)
        if place is None:
            continue
        done[cell.name] += 1
        if not is_found(store, [by_uid[uid]]) and cell.name not in UNPROTECTED:
            wrong.append(f"{cell.name}: a change to {type(new).__name__} is not found")
        assert mutator.put(cell, place, old) is not None
    assert wrong == []
    assert {cell.name for cell in everything} == set(done)
    assert not is_found(store, names)


def test_no_column_that_matters_is_on_the_list() -> None:
    assert UNPROTECTED
    assert [name for name in sorted(UNPROTECTED) if FORBIDDEN.search(name)] == []


@pytest.mark.one_server(_CELLS)
def test_random_changes_are_found(store: cs.Store, root: psycopg.Connection[Any]) -> None:
    campaign(store, root, 600)


@pytest.mark.slow
@pytest.mark.one_server(_CELLS)
def test_five_thousand_random_changes_are_found(store: cs.Store, root: psycopg.Connection[Any]) -> None:
    campaign(store, root, 5000)
