"""The records around and inside a record are drawn by their seqs, and two records are compared side by side."""

from __future__ import annotations

import re

from support.compactable_thread import span

import compaction_store as cs
from compaction_store.audit._sync import records
from web.audited import THREAD, Client, visit
from web.test_pages import marks, shown, text_of


def _folded_often(store: cs.Store, name: str, times: int, step: int = 2) -> None:
    """Makes records of 1 to 2, 1 to 4, 1 to 6 and so on, each of which replaces the one before."""
    store.append(name, [{"role": "user", "content": f"{n} " + "word " * 40} for n in range(1, step * times + 2)])
    for n in range(1, times + 1):
        store.compact(name, span(1, step * n))


def boxes(page: str) -> list[tuple[int, float, float, float]]:
    """Returns the number, the left and the right end, and the top of each record that is drawn."""
    drawn = r'aria-label="record (\d+),[^>]*>.*?<rect class="[^"]*" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"'
    found = re.findall(drawn, page, re.DOTALL)
    return [(int(n), float(x), float(x) + float(width), float(y)) for n, x, y, width in found]


def test_a_record_is_drawn_among_those_around_and_inside_it(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": f"{n} " + "word " * 40} for n in range(1, 14)])
        for first, last in ((1, 2), (5, 6), (3, 4), (1, 6), (1, 8), (9, 12)):
            store.compact("t", span(first, last))
    page = shown(url, "/record", id="t", number=4)
    drawn = {number: rest for number, *rest in boxes(page)}
    # The outermost comes first, and those that this one replaced are below it.
    assert sorted(drawn) == [1, 2, 3, 4, 5]
    assert drawn[5][2] < drawn[4][2] < drawn[1][2] == drawn[2][2] == drawn[3][2]
    assert (
        drawn[4][0] <= drawn[1][0] < drawn[1][1] < drawn[3][0] < drawn[3][1] < drawn[2][0] < drawn[2][1] <= drawn[4][1]
    )
    assert drawn[5][1] > drawn[4][1]
    assert page.count('class="span here"') == 1
    assert "<figure" not in shown(url, "/record", id="t", number=6)


def test_a_drawing_has_a_bounded_number_of_records(url: str) -> None:
    with cs.Store.open(url) as store:
        _folded_often(store, "deep", 60)
        for number in (60, 30, 1):
            found = records.record(store, "deep", number, content=True)
            assert len(found.lineage) <= 41 + 8
            assert [each.number for _, each in found.lineage] == sorted(
                (each.number for _, each in found.lineage), reverse=True
            )
            assert [level for level, _ in found.lineage] == list(range(len(found.lineage)))
    assert "Only the 40 newest" in text_of(shown(url, "/record", id="deep", number=60))
    assert len(boxes(shown(url, "/record", id="deep", number=60))) == 41
    assert len(boxes(shown(url, "/record", id="deep", number=1))) == 9


def test_a_tree_may_be_of_the_newest_records_only(url: str) -> None:
    with cs.Store.open(url) as store:
        _folded_often(store, "deep", 9)
        last = store.compaction("deep", 7)
        assert [part.record.number for _, part in store.audit.tree(last).walk()] == [7, 6, 5, 4, 3, 2, 1]
        # Later records of the same span are not inside it.
        assert [part.record.number for _, part in store.audit.tree(last, most=3).walk()] == [7, 6, 5, 4]


def test_two_records_are_compared(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": f"{n} " + "word " * 60} for n in range(9)])
        old = cs.Summary(
            "Ann called. She wants a refund.\nOrder 7 is late.", model="small", settings={"top": 1, "a": 2}
        )
        new = cs.Summary("Ann called. She wants a new lamp.\nOrder 7 is late.", model="large", settings={"top": 3})
        store.compact("t", lambda ctx: ctx.compact(1, 4, old), actor="ann")
        store.compact("t", lambda ctx: ctx.compact(1, 6, new), actor="ann")
    first = shown(url, "/record", id="t", number=1)
    assert re.search(r'<input id="with" name="with" value="2"', first)
    assert re.search(r'<input id="with" name="with" value="1"', shown(url, "/record", id="t", number=2))
    page = shown(url, "/compare", id="t", number=1, **{"with": 2})
    assert {each.strip() for each in marks(page, "lost")} == {"She wants a refund."}
    assert {each.strip() for each in marks(page, "new")} == {"She wants a new lamp."}
    differing = {name for mark, name in re.findall(r'<tr( class="differs")?><th scope="row">([^<]*)', page) if mark}
    assert {"model", "seqs", "settings: top", "settings: a", "status"} <= differing
    assert "actor" not in differing


def test_a_comparison_shows_no_words_where_none_are_shown(url: str, store: cs.Store) -> None:  # noqa: ARG001 — fills the database
    async def steps(client: Client) -> None:
        page = (await client.get("/compare", params={"id": THREAD, "number": 1, "with": 3})).text
        assert "words are not shown" in page
        assert "999.99" not in page
        for wrong, status in (("", 400), ("&with=99", 404), ("&with=x", 400)):
            assert (await client.get(f"/compare?id={THREAD}&number=1{wrong}")).status_code == status

    visit(url, steps, content=False)


def test_a_comparison_with_an_erased_record_says_so(url: str, store: cs.Store) -> None:
    store.custody.release(THREAD, reason="settled", actor="legal")
    store.custody.redact(THREAD, [1], reason="asked for", actor="privacy desk")
    page = text_of(shown(url, "/compare", id=THREAD, number=1, **{"with": 3}))
    assert page.count("erased") >= 2
    assert "999.99" not in page
