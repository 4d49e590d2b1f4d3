"""The page of erasures and holds: filters, counts that are links, and both orders."""

from __future__ import annotations

import html
import re

import pytest

import compaction_store as cs
from compaction_store.audit._async import threads
from web.audited import THREAD, Client, visit
from web.test_overview import text_of

_ART = "GDPR Art. 17(1)(b) <b>"


@pytest.fixture
def erased(store: cs.Store) -> cs.Store:
    """Adds two erasures by one actor, one of them despite a hold, and an erasure without a legal basis."""
    store.custody.redact(THREAD, [2], reason="asked", legal_basis=_ART, override="a court order", actor="dpo")
    for number, basis in enumerate((_ART, None)):
        store.append(f"e-{number}", {"role": "user", "content": "hi"})
        store.custody.erase(f"e-{number}", reason="asked", legal_basis=basis, actor="dpo")
    return store


def rows(page: str) -> list[tuple[str, str, str]]:
    """Returns the thread, the kind and the actor of each event."""
    found = []
    for row in re.findall("<tr><td.*?</tr>", page, re.DOTALL):
        its = dict(re.findall(r'data-head="(\w+)"[^>]*>(.*?)</td>', row, re.DOTALL))
        if its:
            found.append((text_of(its["Thread"]), text_of(its["Kind"]), text_of(its["Actor"])))
    return found


def counts(page: str) -> dict[str, dict[str, int]]:
    """Returns the counts of each box by its name."""
    boxes = re.findall(r'<section class="box">\s*<h2>By ([^<]*)</h2>(.*?)</section>', page, re.DOTALL)
    item = r'<li>(.*?)<span class="quiet">(\d+)</span></li>'
    return {name: {text_of(text): int(count) for text, count in re.findall(item, its)} for name, its in boxes}


def links(page: str) -> list[str]:
    return [html.unescape(each) for each in re.findall(r'href="(/erasures\?[^"]*)"', page)]


@pytest.mark.usefixtures("erased")
def test_matches_are_counted_and_each_count_leads_to_its_events(url: str) -> None:
    async def steps(client: Client) -> None:
        page = (await client.get("/erasures")).text
        found = counts(page)
        assert found == {
            "kind": {"redaction": 4, "hold": 1},
            "actor": {"dpo": 3, "legal": 1, "privacy desk": 1},
            "legal basis": {"none given": 3, _ART: 2},
        }
        assert "5 match." in text_of(page)
        assert "1 despite a hold or a term" in text_of(page)
        assert "<b>" not in page.replace("<b>compaction-store</b>", "").replace("<b>default</b>", "")
        expected = [each for its in found.values() for name, each in its.items() if name != "none given"]
        led = links(page)
        assert len(led) == len(expected) + 1
        numbers = [len(rows((await client.get(link)).text)) for link in led]
        # The first link is that of the overrides.
        assert numbers == [1, *expected]

    visit(url, steps)


@pytest.mark.usefixtures("erased")
def test_filters_work_together_and_the_form_keeps_them(url: str) -> None:
    async def steps(client: Client) -> None:
        for given, expected in (
            ({"legal_basis": _ART}, 2), ({"legal_basis": _ART, "override": "1"}, 1),
            ({"actor": "dpo", "kind": "redaction"}, 3),
            ({"actor": "dpo", "legal_basis": "another"}, 0), ({"id": THREAD, "override": "1"}, 1),
            ({"since": "1d", "legal_basis": _ART}, 2), ({"until": "1d"}, 0),
        ):  # fmt: skip
            answer = await client.get("/erasures", params=given)
            assert answer.status_code == 200, answer.text
            assert len(rows(answer.text)) == expected, given
            fields = dict(re.findall(r'<input id="(\w+)" name="\w+" value="([^"]*)"', answer.text))
            for name in given.keys() & fields.keys():
                assert html.unescape(fields[name]) == given[name]
        for wrong in ({"order": "newest"}, {"order": "x"}, {"legal": "x"}):
            assert (await client.get("/erasures", params=wrong)).status_code == 400, wrong

    visit(url, steps)


def test_both_orders_list_all_events_on_their_pages(url: str, store: cs.Store) -> None:
    for number in range(60):
        store.append(f"e-{number:02}", {"role": "user", "content": "hi"})
        store.custody.hold(f"e-{number:02}", reason="a lawsuit", actor="counsel")

    async def steps(client: Client) -> None:
        listed: dict[str, list[tuple[str, str, str]]] = {}
        for order in ("newest", "oldest"):
            found: list[tuple[str, str, str]] = []
            address: str | None = "/erasures?actor=counsel" + ("&order=oldest" if order == "oldest" else "")
            while address is not None:
                page = (await client.get(address)).text
                # Counting would read all of them again.
                assert ("60 match." in text_of(page)) is (not found)
                assert counts(page).get("actor", {}) == ({} if found else {"counsel": 60})
                found += rows(page)
                more = re.findall(r'<p class="more"><a href="([^"]*)">(\w+) ones', page)
                assert [word for _, word in more] in ([], ["Later" if order == "oldest" else "Earlier"])
                address = html.unescape(more[0][0]) if more else None
            listed[order] = found
        assert len(listed["oldest"]) == 60
        assert [name for name, _, _ in listed["oldest"]] == [f"e-{number:02}" for number in range(60)]
        assert listed["newest"] == listed["oldest"][::-1]

    visit(url, steps)


def test_more_than_are_counted_is_said(url: str, store: cs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MOST_EVENTS", 3)
    for _ in range(2):
        store.custody.hold("other", reason="a lawsuit")
        store.custody.release("other", reason="settled")

    async def steps(client: Client) -> None:
        page = text_of((await client.get("/erasures")).text)
        assert "3 or more match; the counts are those of the first." in page

    visit(url, steps)


@pytest.mark.usefixtures("erased")
def test_a_legal_basis_is_content(url: str) -> None:
    async def steps(client: Client) -> None:
        page = (await client.get("/erasures")).text
        assert "GDPR" not in page
        assert "By legal basis" not in page
        assert counts(page)["kind"] == {"redaction": 4, "hold": 1}
        assert (await client.get("/erasures", params={"legal_basis": _ART})).status_code == 400

    visit(url, steps, content=False)
