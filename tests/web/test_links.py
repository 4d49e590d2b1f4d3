"""Every link of every page leads to a page, over a store with every kind of record and of event."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta

import pytest

import compaction_store as cs
from web.audited import THREAD, Client, fill, visit

_LINK = re.compile(r'(?:href|src)="([^"]*)"')
_MOST = 1500


def everything(store: cs.Store) -> None:
    """Adds the kinds of records and events that `fill` does not make, forks among them, and an erased thread."""
    fill(store)
    store.custody.release(THREAD, reason="it is settled", actor="legal")
    store.compact(THREAD, lambda ctx: ctx.replace(11, 11, [{"role": "user", "content": "Order #44915 …"}]))
    store.compact(THREAD, lambda ctx: ctx.remove(12, 13, reason="of no use"))
    applied = [record for record in store.compactions(THREAD) if record.outcome == "applied"]
    store.revoke(THREAD, applied[-1].number, reason="of use after all", actor="jane")
    store.audit.review(THREAD, applied[0].number, "good", note="seen", actor="jane")
    store.fork(THREAD, "copy", at=14)
    store.fork(THREAD, "again", reason="asked again")
    store.fork("again", "once more")
    store.rewind("again", 3, reason="asked again")
    store.clear("copy", hide=True, reason="done")
    store.append("cleared", [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello"}])
    store.clear("cleared")
    store.custody.retain("other", datetime.now(UTC) + timedelta(days=9), reason="tax law", actor="legal")
    with pytest.raises(cs.Held):
        store.custody.erase("other", reason="asked for", actor="privacy desk")
    store.append("gone", [{"role": "user", "content": "Ann"}, {"role": "assistant", "content": "Hello, Ann."}])
    store.fork("gone", "kept of gone")
    store.custody.erase("gone", reason="asked for", legal_basis="Art. 17", actor="privacy desk")
    store.append("theirs", [{"role": "user", "content": f"Count the parcels of day {day}."} for day in range(9)])
    store.adopt("theirs", [{"role": "user", "content": "They were counted."}], view=store.view("theirs"))


def test_no_link_of_any_page_fails(url: str) -> None:
    with cs.Store.open(url, actor="agent") as store:
        everything(store)
        kinds = {record.kind for record in store.compactions()}
        outcomes = {record.outcome for record in store.compactions()}
        events = {event.kind for event in store.audit.events()}
    assert kinds == {"summary", "truncation", "removal", "revocation", "rewind", "clear", "adoption"}
    assert {"applied", "failed", "rejected"} <= outcomes
    assert events >= {"fork", "origin", "hold", "release", "retention", "refusal", "redaction", "verdict"}
    pages: dict[str, int] = {}

    async def steps(client: Client) -> None:
        waiting = ["/", "/records?costs=1", "/search?q=order", "/sample?seed=1&until=2100-01-01T00:00:00Z"]
        while waiting and len(pages) < _MOST:
            address = waiting.pop()
            if address in pages or address.startswith("#"):
                continue
            answer = await client.get(address, follow_redirects=True)
            pages[address] = answer.status_code
            assert answer.status_code == 200, (address, answer.text[-600:])
            waiting += [html.unescape(each) for each in _LINK.findall(answer.text)]

    visit(url, steps)
    assert len(pages) > 300
    shown = {address.partition("?")[0] for address in pages}
    assert {"/", "/threads", "/thread", "/view", "/record", "/message", "/reply", "/records",
            "/erasures", "/certificate", "/integrity", "/sample", "/reviews", "/leases", "/whole", "/chart.svg",
            "/style.css", "/icon.svg"} <= shown  # fmt: skip


def test_the_first_and_the_last_message_have_no_link_beyond_them(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])

    async def steps(client: Client) -> None:
        first, last = [(await client.get("/message", params={"id": "t", "seq": seq})).text for seq in (1, 2)]
        assert "seq=2" in first
        assert "seq=0" not in first
        assert "seq=1" in last
        assert "seq=3" not in last

    visit(url, steps)
