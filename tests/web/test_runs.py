"""The records of one run are one row that opens: on lists, in a thread that is read, and as one mark of its chart."""

from __future__ import annotations

import html
import re

import pytest
from support.compactable_thread import span
from support.sent_statements import recorded

import compaction_store as cs
from web.audited import Client, visit
from web.test_pages import shown, text_of

_NUMBERS = re.compile(r'<a href="/record\?[^"]*number=(\d+)"')


def _run(store: cs.Store, name: str, first: int, count: int) -> None:
    """Has one run write a record for each of `count` messages."""

    def callback(ctx: cs.CompactionContext) -> None:
        for seq in range(first, first + count):
            ctx.compact(seq, seq, "short", reason="results cleared")

    assert len(store.compact(name, callback, actor="nightly").records) == count


def rows_of(page: str) -> list[list[int]]:
    """Returns the numbers of the records in each row of the list."""
    table = page.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = [[int(number) for number in _NUMBERS.findall(row)] for row in table.split("<tr")[1:]]
    return [row for row in rows if row]


@pytest.mark.parametrize("of_thread", [True, False])
def test_a_run_is_one_row_that_opens(url: str, of_thread: bool) -> None:
    with cs.Store.open(url) as store:
        store.append("flood", [{"role": "user", "content": f"{n} " + "word " * 40} for n in range(20)])
        _run(store, "flood", 1, 12)
        store.compact("flood", lambda ctx: ctx.compact(14, 15, "short", reason="asked for"))
    page = shown(url, "/records", **({"id": "flood"} if of_thread else {}))
    assert rows_of(page) == [[13], list(range(12, 0, -1))]
    text = text_of(page)
    for part in (
        "12 records of one run",
        "12 active",
        "1\u201312",
        "results cleared",
        "Record 7: summary of seqs 7\u20137",
    ):
        assert part in text, part
    alone = re.search(r'href="(/records\?[^"]*run_id=[^"]*)">The run alone', page)
    assert alone is not None

    async def steps(client: Client) -> None:
        flat = await client.get(html.unescape(alone[1]))
        assert rows_of(flat.text) == [[number] for number in range(12, 0, -1)]

    visit(url, steps)


def test_no_record_of_a_long_list_is_left_out_or_listed_twice(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("flood", [{"role": "user", "content": f"{n} " + "word " * 40} for n in range(310)])
        for first in range(1, 300, 60):
            _run(store, "flood", first, 60)
        store.append("other", [{"role": "user", "content": f"{n} " + "word " * 40} for n in range(60)])
        for seq in range(1, 56):
            store.compact("other", span(seq, seq))

    async def steps(client: Client) -> None:
        for address, order, count in (
            ("/records?id=flood", -1, 300), ("/records?id=flood&order=oldest", 1, 300), ("/records?id=other", -1, 55),
        ):  # fmt: skip
            found: list[int] = []
            pages, here = 0, address
            while here:
                page = (await client.get(here)).text
                rows = rows_of(page)
                assert len(rows) <= 50
                found += [number for row in rows for number in row]
                pages += 1
                onward = re.search(r'href="([^"]*)">(?:Earlier|Later) records', page)
                here = html.unescape(onward[1]) if onward else ""
            assert found == list(range(1, count + 1))[::order]
            assert pages == 2
        assert (await client.get("/records?order=tokens")).status_code == 400

    visit(url, steps)


def test_a_thread_that_is_read_has_one_band_and_one_mark_for_a_run(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("flood", [{"role": "user", "content": f"{n} " + "word " * 40} for n in range(20)])
        _run(store, "flood", 1, 12)
        store.append("flood", {"role": "user", "content": "go on"})
    page = shown(url, "/thread", id="flood")
    assert page.count('<details class="band run applied">') == 1
    assert "12 records, summary of seqs 1\u201312" in text_of(page)
    assert [f'id="pos-{pos}"' in page for pos in range(1, 34)] == [True] * 33
    assert len(re.findall(r'aria-label="summary \d+, applied', page)) == 1
    assert "summary 12, applied, the last of 12 records of a run at pos 32" in page


def test_a_page_of_runs_sends_no_statement_for_each_record(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = recorded(monkeypatch)

    def statements() -> int:
        before = len(sent)
        shown(url, "/records", id="flood")
        return len(sent) - before

    with cs.Store.open(url) as store:
        store.append("flood", [{"role": "user", "content": f"{n} " + "word " * 40} for n in range(150)])
        _run(store, "flood", 1, 5)
        few = statements()
        _run(store, "flood", 6, 120)
        # A list reads its records by hundreds.
        assert statements() <= few + 2


def test_a_run_that_left_more_tokens_says_so(url: str, store: cs.Store) -> None:
    store.append("repaired", [{"role": "user", "content": f"message {n} " * 40} for n in range(9)])
    store.compact("repaired", lambda ctx: ctx.compact(1, 6, "short"))
    store.repair("repaired", 1, lambda _: "a longer summary " * 20, reason="too short")
    page = text_of(shown(url, "/records", id="repaired"))
    assert re.search(r"\d more", page)
    assert not re.search(r"-\d+ fewer", page)
