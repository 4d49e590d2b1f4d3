"""Measures the size on disk of a new database after messages are appended one by one, with all tables and indexes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

import psycopg

from benchmarks import databases, floor
from benchmarks.contest import Contest
from benchmarks.corpus import message
from benchmarks.rows import Row
from compaction_store import Store, migrate

_FIRST = 200
_COUNT = 5_000
_SIZES = (300, 600, 4096)
_LIMIT = "Two hashes, a salt, a key, a time and Postgres's row header take about 300 bytes; two indexes take the rest."


class Disk(Contest):
    title = "On disk"
    name = "disk"
    rows: ClassVar[Sequence[Row]] = (
        Row("messages of 300 bytes, over their JSONL", "over 300", _LIMIT, unit="bytes", most=480),
        Row("messages of 600 bytes, over their JSONL", "over 600", "As above.", unit="bytes", most=480),
        Row(
            "messages of 4 kB to their JSONL", "4096", "Postgres compresses values over 2 kB if that helps.",
            over="jsonl 4096", unit="bytes", most=1.2,
        ),
        Row("messages of 600 bytes, raw table to JSONL", "raw 600", "No bound: the floor's table.", over="jsonl 600",
            unit="bytes"),
    )  # fmt: skip

    def round(self) -> Mapping[str, Sequence[float]]:
        found: dict[str, Sequence[float]] = {}
        count = _COUNT // 2 if self.bench.quick else _COUNT
        for size in _SIZES:
            with databases.beside(self.bench.url, "disk") as url:
                migrate.upgrade(url)
                stored, lines, raw = _measured(url, size, count)
            found[f"over {size}"] = [stored - lines]
            found |= {f"{size}": [stored], f"jsonl {size}": [lines], f"raw {size}": [raw]}
        return found


def _measured(url: str, size: int, count: int) -> tuple[float, float, float]:
    """Returns the number of bytes per message in the store, as a line of JSON, and in the raw table."""
    lines = 0
    with psycopg.connect(url, autocommit=True) as raw, Store.open(url) as store:
        floor.create(raw)
        side = floor.Floor(raw, "disk")
        empty, empty_raw = 0, 0
        for number in range(_FIRST + count):
            if number == _FIRST:
                # Leave out the first pages of a table by measuring the size before and after.
                raw.execute("VACUUM")
                empty, empty_raw = _stored(raw)
                lines = 0
            # The role, the id and the JSON syntax take about fifty bytes.
            new = message(number, size - 70, size - 30)
            lines += len(json.dumps(new, ensure_ascii=False, separators=(",", ":")).encode()) + 1
            store.append("disk", new, tokens=size // 5)
            side.insert(new)
        raw.execute("VACUUM")
        stored, stored_raw = _stored(raw)
    return (stored - empty) / count, lines / count, (stored_raw - empty_raw) / count


def _stored(raw: psycopg.Connection) -> tuple[int, int]:
    found = raw.execute(
        "SELECT (SELECT sum(pg_total_relation_size(c.oid))::int8 FROM pg_class AS c"
        " WHERE c.relnamespace = 'compaction_store'::regnamespace AND c.relkind = 'r'),"
        " pg_total_relation_size('raw')"
    ).fetchone()
    assert found is not None
    return found[0], found[1]
