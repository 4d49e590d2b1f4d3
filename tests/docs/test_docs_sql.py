"""The documentation's SQL shows one tenant's rows, also to a superuser, whom row-level security does not restrict."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from support import doc_pages as pages

import compaction_store as cs

# Pages whose queries are about the whole server.
_OF_THE_SERVER = {"docs/erasure.md"}
_ASKING = [
    (block.where, block.line, block.code)
    for path in pages.PAGES
    if pages.name(path) not in _OF_THE_SERVER
    for block in pages.blocks(path)
    if block.kind == "sql" and "FROM compaction_store." in block.code
]


def test_there_is_sql_to_try() -> None:
    assert {where for where, _, _ in _ASKING} >= {"README.md", "docs/how-to/sql.md"}


@pytest.mark.parametrize(("where", "line", "code"), _ASKING)
def test_a_superuser_sees_no_other_tenants_rows(
    url: str, superuser: psycopg.Connection[Any], where: str, line: int, code: str
) -> None:
    def fill(tenant: str) -> None:
        with cs.Store.open(url, tenant=tenant, actor="nightly") as store:
            talk = [{"role": "user", "content": "x " * 90}, {"role": "assistant", "content": "y " * 90}]
            store.append("t", talk * 3)
            store.compact("t", lambda ctx: ctx.compact(1, 2, f"of {tenant}"))
            store.compact("t", lambda ctx: ctx.compact(3, 4, ""))
            store.custody.redact("t", 6, reason=f"of {tenant}")

    def answer() -> list[str]:
        """Returns the answer without the parts that differ between runs."""
        *_, last = [superuser.execute(part.encode()) for part in code.split(";\n") if part.strip()]
        return sorted(map(repr, last))

    [tenant] = set(re.findall(r"compaction_store\.tenant = '(\w+)'", code))
    fill(tenant)
    alone = answer()
    assert alone, f"{where}:{line} shows nothing"
    fill("another")
    assert answer() == alone, f"{where}:{line}"
