"""An index that does not have every row changes what views show. Verification finds it, during and afterwards."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

import compaction_store as cs

_INDEXES = ("compactions_in_force_idx", "compactions_revokes_idx")


def ready(root: psycopg.Connection[Any], index: str, is_ready: bool) -> None:
    root.execute(
        "UPDATE pg_index SET indisready = %s WHERE indexrelid = format('compaction_store.%%s', %s::text)::regclass",
        (is_ready, index),
    )


@pytest.mark.one_server("Citus does not change the catalogue of its nodes")
@pytest.mark.parametrize("index", _INDEXES)
def test_an_index_that_missed_rows_is_found(
    store: Any, superuser: psycopg.Connection[Any], index: str, url: str
) -> None:
    for name in ("cleared", "revoked", "other"):
        store.append(name, [{"role": "user", "content": f"secret {n} " * 30} for n in range(6)])
    store.compact("revoked", lambda ctx: ctx.compact(1, 3, "a summary"), force=True)
    assert [report.findings for report in store.audit.verify(level="schema")] == [()] * 4
    ready(superuser, index, False)
    with cs.Store.open(url) as other:
        other.clear("cleared", reason="asked")
        other.compact("other", lambda ctx: ctx.compact(2, 3, "a summary"), force=True)
        other.revoke("revoked", 1, reason="wrong")
    assert any(f"index {index}" in finding.what for finding in store.audit.verify("cleared", level="schema").findings)
    ready(superuser, index, True)
    found = {report.thread_id: [f.what for f in report.findings] for report in store.audit.verify(level="content")}
    wrong = {"compactions_in_force_idx": {"cleared", "other"}, "compactions_revokes_idx": {"revoked"}}[index]
    assert {name for name, findings in found.items() if findings} == wrong
    for name in wrong:
        assert found[name] == ["views do not show the records that are in force: an index may lack a row"]
    superuser.execute(f"REINDEX INDEX compaction_store.{index}".encode())
    assert [report.findings for report in store.audit.verify(level="schema")] == [()] * 4
