"""A real Chromium, and the pages served to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright
from web.audited import fill
from web.served import serving

import compaction_store as cs

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    assert path is not None, "Chromium must be installed, or its path be in $CHROMIUM"
    with sync_playwright() as playwright:
        # Chromium's own sandbox does not work for root; the pages are the test's own.
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def store(url: str) -> Iterator[cs.Store]:
    with cs.Store.open(url, actor="agent") as opened:
        fill(opened)
        opened.append("flood", [{"role": "user", "content": f"{n} " + "word " * 40} for n in range(14)])
        opened.compact("flood", _clear_each, actor="jane.doe@support.acme.example")
        yield opened


def _clear_each(ctx: cs.CompactionContext) -> None:
    for seq in range(1, 13):
        ctx.compact(seq, seq, "short", reason="results of tools cleared")


@pytest.fixture
def served(url: str, store: cs.Store, tmp_path: Path) -> Iterator[str]:  # noqa: ARG001 — fills the database
    """The address with the token."""
    # A pipe that nobody reads would hold the server up.
    with serving(url, "--window", "300", "--access-log", str(tmp_path / "access.jsonl")) as (_, address):
        yield address


@pytest.fixture
def context(browser: Browser, served: str) -> Iterator[BrowserContext]:
    """A browser's context that has been let in."""
    with _let_in(browser, served) as opened:
        yield opened


@pytest.fixture
def reviewing(browser: Browser, url: str, store: cs.Store, tmp_path: Path) -> Iterator[BrowserContext]:  # noqa: ARG001 — fills the database
    """The same where verdicts can be recorded."""
    log = str(tmp_path / "access.jsonl")
    with (
        serving(url, "--review", "--actor", "jane@example.org", "--access-log", log) as (_, address),
        _let_in(browser, address) as opened,
    ):
        yield opened


@contextmanager
def _let_in(browser: Browser, address: str) -> Iterator[BrowserContext]:
    opened = browser.new_context(base_url=address.partition("?")[0])
    page = opened.new_page()
    page.goto(address)
    page.close()
    yield opened
    opened.close()
