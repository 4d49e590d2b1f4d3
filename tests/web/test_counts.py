"""Lists of records say how many match, and offer the actors, models and callbacks that there are."""

from __future__ import annotations

import re

import pytest
from support.compactable_thread import span

import compaction_store as cs
from compaction_store.audit import facts
from web.audited import THREAD, Client, visit
from web.test_facts import read_async
from web.test_pages import shown, text_of


def _folded(store: cs.Store, name: str, count: int, actor: str) -> None:
    store.append(name, [{"role": "user", "content": f"{n} " + "word " * 40} for n in range(count + 3)])
    for seq in range(1, count + 1):
        store.compact(name, span(seq, seq, cs.Summary("short", model=f"model {seq % 3}")), actor=actor)


def test_records_are_counted_with_their_most_frequent_values(url: str) -> None:
    with cs.Store.open(url) as store:
        assert store.audit.counts() == {"all": {}}
        _folded(store, "a", 7, "ann")
        _folded(store, "b", 4, "bob")
        callback = store.compaction("a", 1).callback
        assert store.audit.counts() == {
            "all": {"": 11},
            "actor": {"ann": 7, "bob": 4},
            "model": {"model 1": 5, "model 0": 3, "model 2": 3},
            "callback": {callback: 11},
        }
        assert store.audit.counts("b", model="model 1")["all"] == {"": 2}
        # Only the newest are counted.
        assert store.audit.counts(among=5)["actor"] == {"bob": 4, "ann": 1}
        with pytest.raises(cs.InvalidInput, match=r"the filters must be among .*; not 'status'"):
            store.audit.counts(status="active")
        with pytest.raises(cs.ThreadNotFound):
            store.audit.counts("c")
        for n in range(60):
            store.compact("b", span(5, 5), actor=f"actor {n:02}")
            store.revoke("b", store.thread("b").last_number, reason="again", actor=f"actor {n:02}")
        found = store.audit.counts("b")
        assert list(found["actor"])[:2] == ["bob", "actor 00"]
        assert len(found["actor"]) == 50
        assert read_async(url, lambda reader: reader.audit.counts("b")) == found


def test_a_list_says_how_many_match(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with cs.Store.open(url) as store:
        _folded(store, "a", 60, "ann")
        _folded(store, "b", 1, "bob")

    async def steps(client: Client) -> None:
        async def said(address: str) -> str:
            found = re.search(
                r"(?:More than )?[\d,]+ records? match(?:es)?\.", text_of((await client.get(address)).text)
            )
            return found[0] if found else ""

        assert await said("/records") == "61 records match."
        assert await said("/records?actor=bob") == "1 record matches."
        assert await said("/records?actor=nobody") == "0 records match."
        assert await said("/records?id=a&actor=ann") == "60 records match."
        assert await said("/records?id=a&after_id=a&after=20") == "60 records match."
        # Only a look at each record tells.
        assert await said("/records?id=a&status=active") == ""
        monkeypatch.setattr("compaction_store.web.app.MOST_COUNTED", 50)
        assert await said("/records?actor=ann") == "More than 50 records match."

    visit(url, steps)
    assert facts.MOST_COUNTED == 1000


def test_a_form_offers_the_actors_models_and_callbacks_there_are(url: str, store: cs.Store) -> None:
    hostile = 'ann"><script>'
    store.compact(THREAD, span(11, 12), actor=hostile)
    store.compact(THREAD, span(13, 14), actor="two\nlines")
    page = shown(url, "/records")
    assert '<input id="actor" name="actor" value="" inputmode' not in page
    assert re.search(r'<input id="actor"[^>]* list="actor-choices"', page)
    assert '<option value="nightly">nightly, 4 records</option>' in page
    assert '<option value="ann&#34;&gt;&lt;script&gt;">ann&#34;&gt;&lt;script&gt;, 1 records</option>' in page
    # A browser would enter this name without its line break.
    assert "two" not in page.partition("<datalist")[2].partition("</form>")[0]
