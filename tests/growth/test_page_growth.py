"""An audit page sends a bounded number of statements and reads a bounded number of rows, however large a thread is."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from support.keys import key_of
from support.view_base import base
from web.audited import Client, visit

import compaction_store as cs
from compaction_store.web.caches import Alarms

_FEW, _MANY = 110, 400
_UNTIL = "2100-01-01T00:00:00+00:00"
_MOST_STATEMENTS, _MOST_ROWS = 30, 900


def _fill(store: cs.Store, superuser: psycopg.Connection[Any], name: str, count: int) -> None:
    """Makes a thread in which everything is many: records that cover one message, erasures, holds, verdicts, forks."""
    message = {"role": "user", "content": "Order #44910 is late, see /srv/orders/7.json"}
    store.load.messages(name, [message] * (3 * count))
    records = [
        {
            "columns": {
                "kind": "summary", "outcome": "applied", "start_seq": 1, "end_seq": end, "tokens_after": 1,
                "actor": "nightly", "inputs": [],
            },
            "salt": "00" * 16,
            "body": '{"replacement":[{"role":"user","content":"Order #44910 and $999.99"}]}',
        }
        for end in range(1, count + 1)
    ]  # fmt: skip
    uid = key_of(superuser, name)
    superuser.execute(
        "SELECT FROM compaction_store.commit_compactions(%s, 'default', %s, gen_random_uuid(), %s, %s, %s)",
        (uid, name, *base(superuser, uid), json.dumps(records)),
    )
    for number in range(1, count + 1):
        store.custody.redact(name, [2 * count + number], reason="asked for")
        store.custody.hold(name, reason="a lawsuit")
        store.custody.release(name, reason="settled")
        store.audit.review(name, 1, "bad", note="it lost the order")
    for number in range(55):
        store.fork(name, f"{name} {number}", at=count)


class _Counted:
    def __init__(self) -> None:
        self.statements: list[str] = []
        self.rows = 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> _Counted:
    """Counts the statements that async stores send, and the rows that they get."""
    found = _Counted()
    execute: Any = psycopg.AsyncCursor.execute

    async def noted(self: Any, query: Any, parameters: Any = None, **keywords: Any) -> Any:
        answer = await execute(self, query, parameters, **keywords)
        text = query.decode() if isinstance(query, bytes) else str(query)
        if text.startswith("SELECT"):
            found.statements.append(text)
        found.rows += max(0, self.rowcount) if self.description else 0
        return answer

    look = Alarms.look

    async def look_once(self: Alarms, *, wait: bool) -> None:
        # Later looks read the same for every page, at times that do not depend on the page.
        if not looked:
            looked.append(True)
            await look(self, wait=wait)

    looked: list[bool] = []
    monkeypatch.setattr(Alarms, "look", look_once)
    monkeypatch.setattr(psycopg.AsyncCursor, "execute", noted)
    return found


def test_every_page_of_a_large_thread_reads_about_as_much_as_that_of_a_small_one(
    url: str, superuser: psycopg.Connection[Any], counted: _Counted
) -> None:
    with cs.Store.open(url) as store:
        for name, count in (("few", _FEW), ("many", _MANY)):
            _fill(store, superuser, name, count)
    cost: dict[str, dict[str, tuple[int, int]]] = {}

    async def steps(client: Client) -> None:
        for name, count in (("few", _FEW), ("many", _MANY)):
            last = 3 * count
            hold = 4 * count + 2
            pages: dict[str, tuple[str, dict[str, Any]]] = {
                # First, because the page of a thread has the chart drawn while other pages are read.
                "chart": ("/chart.svg", {"id": name}),
                "threads": ("/threads", {}),
                "thread": ("/thread", {"id": name}),
                "earlier in a thread": ("/thread", {"id": name, "at": hold + 100}),
                "view": ("/view", {"id": name}),
                "two views": ("/view", {"id": name, "at": last, "beside": last + count, "all": 1}),
                "first record": ("/record", {"id": name, "number": 1}),
                "last record": ("/record", {"id": name, "number": count}),
                "covered message": ("/message", {"id": name, "seq": 1}),
                "erased message": ("/message", {"id": name, "seq": last}),
                "records": ("/records", {"id": name}),
                "records that cover a message": ("/records", {"covering": 1}),
                "records by actor": ("/records", {"actor": "nightly"}),
                "erasures": ("/erasures", {}),
                "erasures of a thread": ("/erasures", {"id": name}),
                "releases": ("/erasures", {"kind": "release"}),
                "the oldest erasures": ("/erasures", {"order": "oldest"}),
                "erasures despite a hold": ("/erasures", {"override": "1", "legal_basis": "none"}),
                "leases": ("/leases", {}),
                "reviews": ("/reviews", {}),
                "earlier erasures": ("/erasures", {"after_id": name, "after": hold}),
                "certificate": ("/certificate", {"id": name, "pos": hold}),
                "sample": ("/sample", {"seed": 1, "until": _UNTIL}),
                "integrity": ("/integrity", {}),
            }
            for page, (address, parameters) in pages.items():
                counted.statements.clear()
                counted.rows = 0
                answer = await client.get(address, params=parameters)
                assert answer.status_code == 200, (page, answer.text)
                if page == "sample":
                    # Whole records are read of what is drawn only, thread by thread.
                    assert 1 <= len([each for each in counted.statements if "span_node" in each]) <= 2
                    assert f"of {_FEW + _MANY} records" in answer.text
                cost.setdefault(page, {})[name] = len(counted.statements), counted.rows

    visit(url, steps)
    for page, of in cost.items():
        statements, rows = of["many"]
        # A chart has a step for every record, and a summary is compared with its originals, up to 2,000 of them.
        # A search in what events say reads all of these kinds, for at most ten seconds.
        more = {"chart": 2 * _MANY, "last record": _MANY, "erasures despite a hold": 3 * _MANY}.get(page, 0)
        assert statements <= min(_MOST_STATEMENTS, of["few"][0] + 8), (page, of)
        assert rows <= _MOST_ROWS + more, (page, of)
