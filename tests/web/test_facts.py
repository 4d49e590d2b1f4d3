"""The facts of each page, read from a Store and from an AsyncStore, and as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.compactable_thread import span

import compaction_store as cs
from compaction_store.audit._async import overview as overview_aio
from compaction_store.audit._async import records as records_aio
from compaction_store.audit._async import threads as threads_aio
from compaction_store.audit._sync import overview, records, threads
from web.audited import THREAD

Read = Callable[[Any, Any, Any], Any]
PAGES: dict[str, Read] = {
    "threads": lambda threads, _, reader: threads.thread_list(reader, "", cs.TokenBudget(100)),
    "thread": lambda threads, _, reader: threads.thread(reader, THREAD, 3),
    "events": lambda threads, _, reader: threads.event_list(reader),
    "event": lambda threads, _, reader: threads.event_page(reader, THREAD, 20),
    "view": lambda _, records, reader: records.view(reader, THREAD, 16, 20),
    "record": lambda _, records, reader: records.record(reader, THREAD, 3, content=True),
    "record without a span": lambda _, records, reader: records.record(reader, THREAD, 4, content=True),
    "records": lambda _, records, reader: records.record_list(reader, None, {"actor": "nightly"}),
    "message": lambda _, records, reader: records.message(reader, THREAD, 2, content=True),
    "fields": lambda _, records, reader: records.text(reader, THREAD, number=1),
    "reply": lambda _, records, reader: records.reply(reader, THREAD, 4),
    "sample": lambda _, records, reader: records.sample(reader, {}, {}, 3, 10),
}


def test_both_forms_of_a_store_read_the_same_first_page(store: cs.Store, url: str) -> None:
    budget = cs.TokenBudget(10)
    found = overview.overview(store, budget, lambda _: 0.1).as_dict()
    assert json.loads(json.dumps(found)) == found
    assert read_async(url, lambda reader: overview_aio.overview(reader, budget, lambda _: 0.1)).as_dict() == found


def read_async(url: str, read: Callable[[cs.AsyncReader], Any]) -> Any:
    async def run() -> Any:
        async with cs.AsyncReader.open(url) as reader:
            return await read(reader)

    return asyncio.run(run())


@pytest.mark.parametrize("name", PAGES)
def test_both_forms_of_a_store_read_the_same_facts_and_they_are_json(store: cs.Store, url: str, name: str) -> None:
    found = PAGES[name](threads, records, store).as_dict()
    assert json.loads(json.dumps(found)) == found
    assert read_async(url, lambda reader: PAGES[name](threads_aio, records_aio, reader)).as_dict() == found


def test_a_page_as_json_has_what_the_page_shows(store: cs.Store) -> None:
    found = records.record(store, THREAD, 3, content=True).as_dict()
    assert (found["record"]["number"], found["inside"], found["compared"]) == (3, [1], True)
    assert {"text": "$999.99", "mark": "new"} in found["replaced"][0]
    assert [row["seq"] for row in found["originals"]["rows"]] == list(range(1, 9))
    listed = threads.thread_list(store).as_dict()
    [hold] = store.audit.events(THREAD, kind="hold")
    assert listed["kept"] == {
        THREAD: {
            "held": True, "until": None, "locked": False, "shortened": False,
            "held_by": [hold.as_dict()["created_at"], "legal"], "retained_by": None,
        }
    }  # fmt: skip
    read = threads.thread(store, THREAD, seq=4).as_dict()
    assert [entry["pos"] for entry in read["entries"]] == list(range(4, store.thread(THREAD).last_pos + 1))
    assert records.record_list(store, None, {}).as_dict()["costs"]["sums"]["attempts"]["rejected"] == 1


def test_a_chart_has_the_tokens_of_the_view_in_a_thread_with_erasures(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": "word " * 10 * seq} for seq in range(1, 9)])
        for start in (1, 3, 5):
            store.compact("t", span(start, start + 1))
        for seq in (1, 6, 3):
            store.custody.redact("t", [seq], reason="asked for")
            store.append("t", {"role": "user", "content": "again"})
        found = store.thread("t")
        line = threads.course(store, found)
        by_pos = {point.pos: point.tokens for point in line.points}
        assert by_pos == {pos: store.view("t", at=pos).tokens for pos in by_pos}
    assert read_async(url, lambda reader: threads_aio.course(reader, found)) == line
