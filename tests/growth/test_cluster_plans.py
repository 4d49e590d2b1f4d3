"""How many shards of a cluster a query asks, how many statements a page takes, and how a query sets its tenant."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support import cluster

import compaction_store as cs
from compaction_store.deploy import roles

pytestmark = pytest.mark.skipif(cluster.given() is None, reason="on a cluster only: it asks Citus for its plans")

_WORDS = {"role": "user", "content": "a few words that could be fewer " * 20}


@pytest.fixture
def filled(store: Any) -> Any:
    for name in ("t", *map(str, range(12))):
        store.append(name, [_WORDS] * 8)
        store.append(name, {"role": "assistant", "content": "Yes."}, view=store.view(name))
        store.compact(name, lambda ctx: ctx.compact(1, 2, "Fewer."), force=True, actor="me")
    return store


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The statements that a store sends with a cursor, and their parameters."""
    found: list[tuple[str, Any]] = []

    def note(cursor: Any) -> None:
        execute: Any = cursor.execute

        def noted(self: Any, query: Any, parameters: Any = None, **keywords: Any) -> Any:
            found.append((query.decode() if isinstance(query, bytes) else str(query), parameters))
            return execute(self, query, parameters, **keywords)

        monkeypatch.setattr(cursor, "execute", noted)

    note(psycopg.Cursor)
    note(psycopg.AsyncCursor)
    return found


def _queries(sent: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Returns the statements that read rows of the log themselves, not those that call a function."""
    return [(text, given) for text, given in sent if re.search(r"FROM\s+compaction_store\.\w+\b(?! *\()", text)]


def _shards(superuser: psycopg.Connection[Any], text: str, given: Any) -> set[int]:
    with superuser.transaction():
        superuser.execute("SET LOCAL compaction_store.tenant = 'default'")
        lines = superuser.cursor(binary=False).execute(f"EXPLAIN {text}".encode(), given).fetchall()
    return {int(count) for (line,) in lines for count in re.findall(r"Task Count: (\d+)", line)}


@pytest.mark.parametrize(
    "ask",
    [
        lambda s: list(s.compactions("t")),
        lambda s: list(s.compactions("t", newest_first=True, outcome="applied")),
        lambda s: s.compaction("t", 1),
        lambda s: s.audit.explain("t", 1),
        lambda s: list(s.audit.events("t")),
        lambda s: s.audit.tree(s.compaction("t", 1)),
        lambda s: s.seen_by("t", 9),
    ],
    ids=["compactions", "newest", "compaction", "explain", "events", "tree", "seen_by"],
)
def test_the_records_of_a_thread_are_read_from_its_shard(
    filled: Any, sent: list[tuple[str, Any]], superuser: psycopg.Connection[Any], ask: Callable[[Any], object]
) -> None:
    sent.clear()
    ask(filled)
    assert sent
    # A call of a function with the thread's key is delegated, and has no plan of its own.
    for text, given in _queries(list(sent)):
        assert _shards(superuser, text, given) == {1}, text


@pytest.mark.parametrize(
    ("ask", "statements"),
    [
        (lambda s: list(s.compactions()), 1),
        (lambda s: list(s.compactions(kind="summary", newest_first=True)), 1),
        # The second for the stubs of erased threads.
        (lambda s: list(s.threads()), 2),
        # One for the threads, and one for what the replies of all of them report.
        (lambda s: list(s.due(cs.TokenBudget(context_window=100))), 2),
    ],
    ids=["compactions", "newest", "threads", "due"],
)
def test_a_page_over_all_threads_is_read_from_all_shards_at_once(
    filled: Any, sent: list[tuple[str, Any]], superuser: psycopg.Connection[Any], ask: Callable[[Any], list[Any]],
    statements: int,
) -> None:  # fmt: skip
    sent.clear()
    assert len(ask(filled)) == 13
    found = _queries(list(sent))
    assert len(found) == statements, found
    for text, given in found:
        assert _shards(superuser, text, given) == {cluster.SHARDS}, text


@pytest.fixture
def auditor(superuser_url: str, superuser: psycopg.Connection[Any]) -> Iterator[str]:
    """The URL of a login that may only read."""
    name = f"cs_auditor_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN".encode())
    roles.grant(superuser_url, name, "auditor")
    yield sa.make_url(superuser_url).set(username=name).render_as_string(hide_password=False)
    superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


def test_a_query_in_sql_sets_the_tenant_in_its_transaction(filled: Any, auditor: str) -> None:
    query = "SELECT count(*) FROM compaction_store.audit_compactions"
    with psycopg.connect(auditor, autocommit=True) as sql:
        sql.execute("SET compaction_store.tenant = 'default'")
        # Citus does not send the settings of a session to the nodes.
        with pytest.raises(psycopg.Error) as caught:
            sql.execute(query)
        assert caught.value.sqlstate == "CS009"
        assert "SET LOCAL" in str(caught.value.diag.message_hint)
        with sql.transaction():
            sql.execute("SET LOCAL compaction_store.tenant = 'default'")
            assert sql.execute(query).fetchall() == [(len(list(filled.compactions())),)]
