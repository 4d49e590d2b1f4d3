"""A page of a view reads few messages, whatever the view has, and sends few statements."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from web.audited import Client, visit

import compaction_store as cs
from compaction_store import migrate

_MESSAGES, _RECORDS = 4_000, 60
# Messages outside of records that were made from messages alone, and a few rows by which a pos is found.
_FEW = 150


@pytest.fixture(scope="module")
def filled(server: Any) -> Iterator[str]:
    """A database with a thread that was compacted piece by piece, and one that never was."""
    name = f"cs_view_pages_{os.getpid()}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
        url = server.database(name)
        migrate.upgrade(url)
        with cs.Store.open(url) as store:
            for thread_id in ("folded", "plain"):
                for first in range(0, _MESSAGES, 1000):
                    messages = [{"role": "user", "content": f"message {i} " * 9} for i in range(first, first + 1000)]
                    store.append(thread_id, messages)
            store.compact("folded", _fold)
            # Nested, revoked and erased records must not be counted as if they were made from messages alone.
            store.compact("folded", lambda ctx: ctx.compact(1, 99, "nested"))
            store.compact("folded", lambda ctx: ctx.compact(101, 150, "revoked, with a message beside a record"))
            store.revoke("folded", _RECORDS + 2, reason="wrong")
            store.custody.redact("folded", [205], reason="asked for")
            store.rewind("folded", 3_500, reason="a wrong turn")
        yield url
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _fold(ctx: cs.CompactionContext) -> None:
    for first in range(1, _RECORDS * 50, 50):
        ctx.compact(first, first + 48, f"summary {first}")


def _read(url: str, thread_id: str, at: int) -> int:
    """Returns how many rows of messages an outline reads."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT FROM compaction_store.outline(NULL, 'default', %s, %s, NULL, NULL)", (thread_id, at))
        found = connection.execute(
            "SELECT sum(coalesce(idx_tup_fetch, 0) + coalesce(seq_tup_read, 0))"
            " FROM pg_stat_xact_user_tables WHERE relname LIKE 'messages%'"
        ).fetchone()
        assert found is not None
        return int(found[0])


@pytest.mark.one_server("the rows are read on another node")
@pytest.mark.parametrize(
    ("thread_id", "at", "most"),
    [
        ("folded", 2_000, _FEW), ("folded", 3_000, _FEW), ("folded", 4_030, _FEW), ("plain", 3_990, _FEW),
        # No record was made from the messages after 3,000, except the rewind, which begins at 3,501.
        ("folded", 3_999, 1_000 + _FEW), ("folded", 4_064, 500 + _FEW), ("plain", 1_000, 1_000 + _FEW),
    ],
)  # fmt: skip
def test_the_tokens_of_a_past_view_are_counted_without_reading_all_its_messages(
    filled: str, thread_id: str, at: int, most: int
) -> None:
    assert _read(filled, thread_id, at) <= most


@pytest.mark.parametrize("thread_id", ["folded", "plain"])
def test_the_tokens_of_every_past_view_are_those_of_its_elements(filled: str, thread_id: str) -> None:
    with cs.Store.open(filled) as store:
        last = store.thread(thread_id).last_pos
        for at in (1, 1_500, 2_999, 3_500, *range(3_998, last + 1, 7), last):
            if at <= last:
                view = store.view(thread_id, at=at)
                assert store.audit.outline(thread_id, at=at).tokens == view.tokens, at
                assert store.audit.compare(thread_id, at).tokens == view.tokens, at


def test_a_page_of_a_view_sends_the_same_statements_however_it_is_mixed(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    rows = 0
    execute: Any = psycopg.AsyncCursor.execute

    async def noted(self: Any, query: Any, *arguments: Any, **keywords: Any) -> Any:
        nonlocal rows
        answer = await execute(self, query, *arguments, **keywords)
        text = query.decode() if isinstance(query, bytes) else str(query)
        if text.startswith("SELECT"):
            statements.append(text)
        rows += max(0, self.rowcount) if self.description else 0
        return answer

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", noted)

    async def steps(client: Client) -> None:
        nonlocal rows
        pages: list[tuple[str, dict[str, Any]]] = [
            ("/view", {"id": "folded"}), ("/view", {"id": "folded", "from": 60}),
            ("/view", {"id": "folded", "at": 2_000, "beside": 4_040}), ("/view", {"id": "plain", "at": 2_000}),
            ("/reply", {"id": "folded", "seq": 4_000}), ("/reply", {"id": "plain", "seq": 4_000}),
        ]  # fmt: skip
        # The first page waits for the comparison of the whole store.
        await client.get("/")
        for page, parameters in pages:
            statements.clear()
            rows = 0
            answer = await client.get(page, params=parameters)
            assert answer.status_code == 200, answer.text
            assert len(statements) <= 12, (page, statements)
            # A page shows fifty elements, and needs about one row for each and one for each run of messages.
            assert rows <= 150, (page, rows)

    visit(filled, steps)
