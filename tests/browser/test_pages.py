"""The pages in a real Chromium: at two widths, light and dark, with the keyboard, and as a screen reader meets them."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page
from web.audited import THREAD

import compaction_store as cs
from compaction_store.reporting import gather
from compaction_store.reporting.page import render

ID = quote(THREAD, safe="")
PAGES = {
    "overview": "./",
    "threads": "./threads",
    "leases": "./leases",
    "thread": f"./thread?id={ID}",
    "view": f"./view?id={ID}&at=5",
    "compare": f"./view?id={ID}&at=16&beside=17",
    "record": f"./record?id={ID}&number=1",
    "originals": f"./record?id={ID}&number=1#originals",
    "lineage": f"./record?id={ID}&number=3",
    "compared": f"./compare?id={ID}&number=1&with=3",
    "message": f"./message?id={ID}&seq=2",
    "reply": f"./reply?id={ID}&seq=4",
    "records": "./records?outcome=applied&outcome=failed",
    "run": "./records?id=flood",
    "band": "./thread?id=flood",
    "search": "./search?q=elm",
    "erasures": "./erasures",
    "certificate": f"./certificate?id={ID}&pos=20",
    "sample": "./sample",
    "reviews": "./reviews",
    "integrity": f"./integrity?id={ID}",
    "reading": f"./thread?id={ID}&at=10#talk",
    "missing": "./thread?id=nobody",
}
#: The folder for screenshots, if they are wanted.
SCREENSHOTS = os.environ.get("SCREENSHOTS")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_fits_and_has_no_serious_finding(context: BrowserContext, scheme: Any, width: int) -> None:
    page = context.new_page()
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    for name, address in PAGES.items():
        page.goto(address)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        check_tree(page, (name, scheme, width))
        if SCREENSHOTS:
            page.screenshot(path=Path(SCREENSHOTS) / f"audit-{name}-{width}-{scheme}.png")


def check_tree(page: Page, what: Any) -> None:
    """Checks what a screen reader meets."""
    found = Axe().run(page).response["violations"]
    serious = [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")]
    assert not serious, (what, serious)


def focused(page: Page) -> str:
    found: str = page.evaluate("document.activeElement.textContent.trim()")
    return found


def test_a_record_is_reached_with_the_keyboard_alone(context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(PAGES["thread"])
    page.keyboard.press("Tab")
    assert focused(page) == "To the content"
    page.keyboard.press("Enter")
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('href') || ''").partition("?")[0].endswith("/record"):
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    page.keyboard.press("Enter")
    page.wait_for_url("**/record?**")
    assert page.locator("h1").inner_text().startswith("Record")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_form_of_a_verdict_fits_and_has_no_serious_finding(
    reviewing: BrowserContext, scheme: Any, width: int
) -> None:
    page = reviewing.new_page()
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(PAGES["record"])
    page.get_by_label("bad").check()
    page.get_by_label("note").fill("It promises a refund that no message has.")
    page.get_by_role("button", name="Record the verdict").click()
    page.wait_for_url("**/record?**")
    drawn = "./sample?seed=1&kind=summary&outcome=applied&until=2100-01-01T00:00:00%2B00:00"
    for name, address in (("verdict", PAGES["record"]), ("judged", drawn)):
        page.goto(address)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        check_tree(page, (name, scheme, width))
        if SCREENSHOTS:
            if name == "verdict":
                page.locator("section.review").scroll_into_view_if_needed()
            page.screenshot(path=Path(SCREENSHOTS) / f"audit-{name}-{width}-{scheme}.png")


def test_a_verdict_is_recorded_with_the_keyboard_alone(reviewing: BrowserContext, store: cs.Store) -> None:
    page = reviewing.new_page()
    page.goto(PAGES["record"])
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('name')") == "verdict":
            break
    # A group of radio buttons is one stop; arrows move in it and choose.
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.value") == "bad"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Tab")
    page.keyboard.type("It promises a refund.")
    page.keyboard.press("Tab")
    assert focused(page) == "Record the verdict"
    page.keyboard.press("Enter")
    page.wait_for_url("**/record?**")
    assert "It promises a refund." in page.locator("ul.verdicts").inner_text()
    [event] = store.audit.events(THREAD, kind="verdict")
    assert (event.actor, event.body["verdict"]) == ("jane@example.org", "bad")


def test_the_chart_is_drawn_and_its_marks_are_links(context: BrowserContext) -> None:
    page = context.new_page()
    answers: list[tuple[str, int]] = []
    page.on("response", lambda answer: answers.append((answer.url, answer.status)))
    page.goto(PAGES["thread"])
    page.wait_for_load_state("networkidle")
    assert [status for url, status in answers if "/chart.svg" in url] == [200]
    marks = page.locator("figure svg a[aria-label]")
    assert marks.count() >= 4
    marks.first.click()
    page.wait_for_url("**/record?**")


def test_another_browser_is_not_let_in(browser: Browser, served: str, context: BrowserContext) -> None:
    assert context.cookies()
    other = browser.new_context()
    page = other.new_page()
    answer = page.goto(served)
    assert answer is not None
    assert answer.status == 403
    other.close()


def test_a_page_prints_without_navigation(context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(PAGES["certificate"])
    page.emulate_media(media="print")
    assert not page.locator("nav").first.is_visible()
    page.goto("./erasures")
    assert not page.locator("form").first.is_visible()
    page.goto(PAGES["certificate"])
    assert page.locator("dl.facts").is_visible()


# The last width is that of A4 between its margins.
@pytest.mark.parametrize(("width", "media"), [(1280, "screen"), (390, "screen"), (688, "print")])
def test_no_column_of_records_and_events_is_cut_off(
    context: BrowserContext, store: cs.Store, width: int, media: Any
) -> None:
    name, reason = "ticket-4703-of-a-customer", "everything that may be folded, because the window was full"
    store.append(name, [{"role": "user", "content": "word " * 900}] * 3)
    made = cs.Summary("short", model="claude-haiku-4-5-20251001")
    actor = "jane.doe@support.acme.example"
    store.compact(name, lambda ctx: ctx.compact(1, 2, made, reason=reason, allow={"last_user"}), actor=actor)
    store.custody.hold(name, reason=reason, actor=actor)
    page = context.new_page()
    page.emulate_media(media=media)
    page.set_viewport_size({"width": width, "height": 900})
    for address in ("./records", f"./records?id={name}", "./erasures"):
        page.goto(address)
        boxes = page.locator(".cards").evaluate_all("all => all.map(box => [box.scrollWidth, box.clientWidth])")
        assert boxes
        assert all(inner <= outer for inner, outer in boxes), (address, boxes)
        cell = page.locator("td.why", has_text=reason).first
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width, address


@pytest.fixture
def full(store: cs.Store, superuser: psycopg.Connection[Any]) -> None:
    """Adds a lease, terms, an erasure despite a hold, a model, a prompt, verdicts of two reviewers, and forgeries."""
    name, basis = "ticket-4703-of-a-customer", "Art. 17(1)(b) GDPR, the data subject withdrew consent"
    store.append(name, [{"role": "user", "content": "word " * 300}] * 4)
    made = cs.Summary(
        "short", model="claude-haiku-4-5-20251001", summarizer="anthropic", prompt="Keep every order number."
    )
    store.compact(name, lambda ctx: ctx.compact(1, 2, made), actor="jane.doe@support.acme.example")
    lease = "SELECT compaction_store.lease(NULL, 'default', %s, gen_random_uuid(), 3600, %s)"
    superuser.execute(lease, (name, "worker-7@build.acme.example"))
    for days, actor in ((3, "counsel@acme.example"), (90, "records@acme.example")):
        store.append(f"kept {days}", {"role": "user", "content": "hello"})
        store.custody.retain(f"kept {days}", datetime.now(UTC) + timedelta(days=days), reason="tax law", actor=actor)
    by: dict[str, Any] = {"reason": "asked for", "legal_basis": basis, "override": "a court order"}
    store.custody.redact(THREAD, [12], actor="dpo@support.acme.example", **by)
    sample = {"seed": 1, "kind": "summary", "until": "2100-01-01T00:00:00+00:00"}
    judged: tuple[tuple[int, Any, Any], ...] = ((1, "good", "bad"), (2, "unsure", "unsure"), (3, "good", "good"))
    for number, *verdicts in judged:
        for actor, verdict in zip(("jane@example.org", "joe.the.second@example.org"), verdicts, strict=True):
            store.audit.review(THREAD, number, verdict, note="It promises a refund.", sample=sample, actor=actor)
    superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER USER")
    superuser.execute("UPDATE compaction_store.messages SET tokens = 99 WHERE seq > 3")


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "media"), [(1280, "screen"), (390, "screen"), (688, "print")])
def test_the_pages_of_a_full_store_fit_and_have_no_serious_finding(
    reviewing: BrowserContext, width: int, media: Any, scheme: Any
) -> None:
    page = reviewing.new_page()
    page.emulate_media(color_scheme=scheme, media="screen")
    page.set_viewport_size({"width": width, "height": 900})
    page.goto("./integrity")
    page.get_by_role("button", name="Verify all threads").click()
    page.wait_for_url("**/integrity#all-threads")
    for _ in range(100):
        if not page.get_by_role("link", name="Look again").count():
            break
        page.get_by_role("link", name="Look again").click()
    drawn = "./sample?seed=1&kind=summary&until=2100-01-01T00:00:00%2B00:00"
    addresses = {
        "full-overview": "./", "verified-all": "./integrity", "leases": "./leases", "full-erasures": "./erasures",
        "agreement": drawn, "reviews": "./reviews",
    }  # fmt: skip
    page.emulate_media(media=media)
    for page_name, address in addresses.items():
        page.goto(address)
        assert page.get_by_role("alert").count() == 1, address
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address
        boxes = page.locator(".table").evaluate_all("all => all.map(box => [box.scrollWidth, box.clientWidth])")
        assert all(inner <= outer for inner, outer in boxes), (address, boxes)
        check_tree(page, (page_name, scheme, width))
        if SCREENSHOTS:
            page.screenshot(path=Path(SCREENSHOTS) / f"audit-{page_name}-{width}-{scheme}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_report_fits_and_has_no_serious_finding(
    browser: Browser, store: cs.Store, tmp_path: Path, scheme: Any, width: int
) -> None:
    file = tmp_path / "report.html"
    file.write_bytes(render(gather(store, [THREAD, "other"], tenant="default", made_by="someone")))
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    check_tree(page, (scheme, width))
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"audit-report-{width}-{scheme}.png")
    page.close()
