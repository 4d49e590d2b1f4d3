"""Reports and pages on paper, printed by Chromium."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from web.audited import fill

import compaction_store as cs
from compaction_store.reporting import gather
from compaction_store.reporting.page import render
from compaction_store.reporting.verification import verify_report

_THREADS, _RECORDS = 32, 22


def pages(printed: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", printed))


def replaced(seq: int, why: str) -> Any:
    return lambda ctx: ctx.replace(seq, seq, [{"role": "user", "content": "cleared"}], reason=why)


def _month(store: cs.Store) -> None:
    """Fills a month: 32 threads with 700 records, most of which clear one result of a tool."""
    why = "the view was over the budget, so the oldest result of a tool was cleared"
    for number in range(_THREADS):
        name = f"ticket-47{number:02}-of-a-customer"
        text = f"Order #449{number} is late, see /srv/orders/{number}.json " * 9
        store.append(name, [{"role": "user", "content": text}] * 60)
        for seq in range(1, _RECORDS):
            store.compact(name, replaced(seq, why), actor="jane.doe@support.acme.example")
        store.custody.hold(name, reason="a lawsuit", actor="legal@acme.example")


def test_a_report_of_a_month_is_short_on_paper_and_can_be_verified(browser: Browser, url: str, tmp_path: Path) -> None:
    with cs.Store.open(url) as store:
        _month(store)
        printed = {}
        for whole in (False, True):
            document = gather(store, None, tenant="default", made_by="someone", whole=whole)
            data = render(document)
            checked = verify_report(data)
            assert (checked.findings, checked.is_compared, len(checked.threads)) == ([], True, _THREADS)
            file = tmp_path / f"{whole}.html"
            file.write_bytes(data)
            page = browser.new_page()
            page.goto(file.as_uri())
            assert page.locator("tbody tr").count() >= _THREADS * _RECORDS
            assert "is short" in data.decode() if not whole else "is short" not in data.decode()
            printed[whole] = pages(page.pdf(prefer_css_page_size=True))
            page.close()
    assert _THREADS / 4 < printed[False] <= 60
    assert printed[True] > 2 * printed[False]


@pytest.mark.parametrize("count", [1, 8])
def test_no_column_of_a_report_is_cut_off_on_paper(browser: Browser, url: str, tmp_path: Path, count: int) -> None:
    with cs.Store.open(url, actor="jane.doe@support.acme.example") as store:
        fill(store)
        for number in range(1, count):
            store.append(f"thread {number}", {"role": "user", "content": "hello"})
        file = tmp_path / "report.html"
        file.write_bytes(render(gather(store, None, tenant="default", made_by="someone")))
    page = browser.new_page(viewport={"width": 688, "height": 900})
    page.emulate_media(media="print")
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 688
    boxes = page.locator(".table").evaluate_all("all => all.map(box => [box.scrollWidth, box.clientWidth])")
    assert boxes
    assert all(inner <= outer for inner, outer in boxes), boxes
    page.close()
