"""The page of leases lists the runs that compact threads, and those that have died."""

from __future__ import annotations

import html
import re
from typing import Any

import psycopg
import pytest

import compaction_store as cs
from web.audited import THREAD, Client, visit
from web.test_overview import text_of

_NAME = "a\nb <i>\u202e'"


def cells(page: str) -> list[tuple[str, ...]]:
    """Returns the thread, the actor and the state of each row."""
    found = []
    for row in re.findall("<tr><td.*?</tr>", page, re.DOTALL):
        its = dict(re.findall(r'data-head="(\w+)"[^>]*>(.*?)</td>', row, re.DOTALL))
        if its:
            found.append(tuple(text_of(its[name]) for name in ("Thread", "Actor", "State")))
    return found


def lease(connection: psycopg.Connection[Any], thread: str, actor: str, tenant: str = "default") -> None:
    """Takes a lease as a run does that is killed at once."""
    call = "SELECT compaction_store.lease(NULL, %s, %s, gen_random_uuid(), 3600, %s)"
    connection.execute(call, (tenant, thread, actor))


def test_runs_are_listed_with_who_and_until_when(url: str, store: cs.Store, superuser: psycopg.Connection[Any]) -> None:
    store.append(_NAME, {"role": "user", "content": "hi"})
    lease(superuser, THREAD, "dead")
    superuser.execute(
        "UPDATE compaction_store.heads SET lease_until = now() - interval '1 h' WHERE lease_run IS NOT NULL"
    )
    lease(superuser, _NAME, "<b>jane</b>")
    lease(superuser, "other", "night")

    async def steps(client: Client) -> None:
        page = (await client.get("/leases")).text
        assert cells(page) == [
            (THREAD, "dead", "expired"), (r"a\nb <i>\u202e'", "<b>jane</b>", "running"), ("other", "night", "running"),
        ]  # fmt: skip
        assert "<b>jane" not in page
        assert "<i>" not in page
        links = [html.unescape(each) for each in re.findall(r'href="(/thread\?[^"]*)"', page)]
        assert len(links) == 3
        for link in links:
            assert (await client.get(link)).status_code == 200
        assert '<a href="/leases">2 threads are</a> being compacted now' in (await client.get("/")).text

    visit(url, steps)


@pytest.mark.usefixtures("store")
def test_another_tenants_leases_are_not_listed(url: str, store: cs.Store, superuser: psycopg.Connection[Any]) -> None:
    store.of_tenant("theirs").append("other", {"role": "user", "content": "hi"})
    lease(superuser, "other", "night", tenant="theirs")

    async def steps(client: Client) -> None:
        assert "There are none." in (await client.get("/leases")).text

    visit(url, steps)


def test_a_page_has_the_first_fifty(url: str, store: cs.Store, superuser: psycopg.Connection[Any]) -> None:
    for number in range(52):
        store.append(f"t-{number}", {"role": "user", "content": "hi"})
        lease(superuser, f"t-{number}", "night")

    async def steps(client: Client) -> None:
        page = (await client.get("/leases")).text
        assert len(cells(page)) == 50
        assert "and 2 more." in page

    visit(url, steps)
