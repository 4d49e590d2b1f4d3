"""The page of a record, the report, `explain --lost`, evaluate and the checks find the same inventions and losses."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

import compaction_store as cs
from compaction_store import tokens
from compaction_store.checks import NothingInvented, QuotesAreQuotes
from compaction_store.cli import compactions
from compaction_store.evaluation import RECORDED, evaluate, read_thread
from compaction_store.reporting import gather
from compaction_store.reporting.page import render
from web.test_pages import marks, shown

THREAD = "same"
FILLER = "The parcels were counted again, and nothing was missing. " * 12
MESSAGES = [
    {"role": "user", "content": f"Order ORD-7001 is in src/orders/load.py, 4250 rows, $1,300. {FILLER}"},
    {"role": "assistant", "content": f'Ben said "the ledger is closed today". See docs/rates.md and JOB-55. {FILLER}'},
    {"role": "user", "content": "And now?"},
]
INVENTED = {"ORD-7002", "src/orders/save.py", "9317", "417", "$2,750", "the shop is open tomorrow", "v3.14.9"}
SUMMARY = (
    "ORD-7001 and ORD-7002 are in src/orders/load.py and src/orders/save.py, 4250 and 9317 rows, 417 of them bad."
    ' $1,300, not $2,750. Ben said "the ledger is closed today" and "the shop is open tomorrow". Version v3.14.9.'
)


@pytest.fixture
def record(store: cs.Store) -> Any:
    store.append(THREAD, MESSAGES)
    checks = NothingInvented(), QuotesAreQuotes()

    def fold(ctx: cs.CompactionContext) -> None:
        ctx.compact(1, 2, SUMMARY, checks=checks)

    [made] = store.compact(THREAD, fold)
    store.append(THREAD, {"role": "user", "content": "What about JOB-55, ORD-7001 and docs/rates.md?"})
    return made


def test_inventions_are_the_same_everywhere(url: str, store: cs.Store, record: Any) -> None:
    listed = compactions.losses_in(store, THREAD, None)
    explained = {loss.probe.text for loss in listed if loss.probe.type == "invented"}
    checked = {example["text"] for one in record.checks["outcomes"] for example in one["examples"]}
    page = marks(shown(url, "/record", id=THREAD, number=1), "new")
    report = render(gather(store, (THREAD,), tenant="default", made_by="someone")).decode()
    reported = {html.unescape(each) for each in re.findall(r'<mark class="new" title="new">([^<]*)</mark>', report)}
    [result] = evaluate([read_thread(store, THREAD)], [RECORDED], counter=tokens.o200k_base()).policies
    assert explained == INVENTED
    assert checked == INVENTED
    assert page == INVENTED
    assert reported == INVENTED
    rate = result.rates["invented"]
    assert rate.asked - rate.kept == len(INVENTED)


def test_what_was_needed_later_and_lost_is_marked_as_lost(url: str, store: cs.Store, record: Any) -> None:
    assert record.outcome == "applied"
    lost = {loss.probe.text for loss in compactions.losses_in(store, THREAD, None) if loss.probe.type == "needed_later"}
    assert lost == {"JOB-55", "docs/rates.md"}
    page = shown(url, "/record", id=THREAD, number=1)
    report = render(gather(store, (THREAD,), tenant="default", made_by="someone")).decode()
    reported = {html.unescape(each) for each in re.findall(r'<mark class="lost" title="lost">([^<]*)</mark>', report)}
    assert lost <= marks(page, "lost")
    assert lost <= reported
    assert {"ORD-7001", "src/orders/load.py", "4250"} <= marks(page, "kept")
