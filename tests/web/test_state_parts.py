"""The parts of a state summary on the page of its record: each has a heading, and each line links to its messages."""

from __future__ import annotations

import html
import re
from typing import Any

import compaction_store as cs
from compaction_store.models.state import State, StateLine
from web.audited import Client, visit

FILLER = "It is long and says nothing. " * 60


def page(url: str, **options: Any) -> str:
    found: list[str] = []

    async def steps(client: Client) -> None:
        answer = await client.get("/record", params={"id": "t", "number": 1})
        assert answer.status_code == 200
        found.append(answer.text)
        for link in re.findall(r'href="(/message[^"]*)"', answer.text):
            assert (await client.get(html.unescape(link))).status_code == 200, link

    visit(url, steps, **options)
    return found[0]


def fold(store: cs.Store, state: State) -> None:
    store.append("t", [{"role": "user", "content": FILLER}] * 5)
    made = cs.Summary(state.text, coverage=state.coverage)
    assert store.compact("t", lambda ctx: ctx.compact(1, 4, made, allow={"larger"})).applied


def test_each_part_has_a_heading_and_each_line_links_to_its_messages(url: str) -> None:
    with cs.Store.open(url) as store:
        fold(store, State({"task": [StateLine("Mend the parser", (1,))], "todos": [StateLine("test it", (2, 3))]}))
    shown = page(url)
    section = shown.partition('<h2 id="parts">')[2].partition('<section aria-label="Originals"')[0]
    assert re.findall("<h3[^>]*>([^<]*)</h3>", section)[:2] == ["Task", "To do"]
    items = re.findall("<li>(.*?)</li>", section)
    assert ["Mend the parser" in items[0], "test it" in items[1]] == [True, True]
    assert [re.findall(r"seq=(\d+)", item) for item in items] == [["1"], ["2", "3"]]
    assert "Parts of the summary" not in page(url, content=False)
    assert "test it" not in page(url, content=False)


def test_no_line_is_markup_and_none_makes_the_page_long(url: str) -> None:
    hostile = [StateLine(f"<script>{n}</script> \u202e" + "é" * 3000, tuple(range(1, 5))) for n in range(60)]
    with cs.Store.open(url) as store:
        fold(store, State(dict.fromkeys(("task", "orders", "facts", "errors"), hostile)))
    shown = page(url)
    assert "<script>" not in shown
    assert "\u202e" not in shown
    assert shown.count("and 30 more</p>") == 4
    assert len(shown.encode()) < 400_000


def test_a_summary_without_parts_has_no_such_section(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": FILLER}] * 5)
        store.compact("t", lambda ctx: ctx.compact(1, 4, "## Task\n- not a state [1]"))
    assert "Parts of the summary" not in page(url)
