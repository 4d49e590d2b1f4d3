"""Several reviewers of one sample judge alone, and the pages say how far they agree."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import compaction_store as cs
from compaction_store import web
from compaction_store.audit import facts
from web.audited import THREAD, Client, visit
from web.test_overview import text_of
from web.test_verdicts import UNTIL, fields, reviewing

pytestmark = pytest.mark.one_server("it takes a role that may not log in")
_SAMPLE: dict[str, Any] = {"seed": 7, "count": 3, "until": UNTIL}


async def judge(client: Client, who: str, *verdicts: str) -> list[int]:
    """Gives the verdicts one after the other, as the pages lead to the records. Returns the places in the sample."""
    headers, places = {"X-User": who}, []
    address: str | None = None
    for verdict in verdicts:
        if address is None:
            answer = await client.get("/sample", params=_SAMPLE | {"next": 1}, headers=headers)
        else:
            answer = await client.get(address, headers=headers)
        assert answer.status_code == 303
        record = answer.headers["location"]
        places.append(int(parse_qs(urlsplit(record).query)["place"][0]))
        page = (await client.get(record, headers=headers)).text
        sent = await client.post(
            "/verdict", data=fields(page) | {"verdict": verdict, "note": f"{who} <i>"}, headers=headers
        )
        assert sent.status_code == 303, sent.text
        address = sent.headers["location"]
    return places


@pytest.mark.usefixtures("store")
def test_each_reviewer_judges_the_whole_sample_and_their_agreement_is_shown(url: str) -> None:
    async def steps(client: Client) -> None:
        assert await judge(client, "jane", "good", "bad", "unsure") == [1, 2, 3]
        for who, is_done in (("jane", True), ("<b>joe</b>", False)):
            page = (await client.get("/sample", params=_SAMPLE, headers={"X-User": who})).text
            assert ("Judge the next record" in page) is not is_done
            # Nobody sees the verdicts of others on a record before their own.
            assert ("jane &lt;i&gt;" in page) is is_done
            assert page.count("not judged by you") == (0 if is_done else 3)
            link = html.unescape(re.findall(r'href="(/record\?[^"]*)"', page)[0])
            record = (await client.get(link, headers={"X-User": who})).text
            assert ("jane &lt;i&gt;" in record) is is_done
            assert ("Verdicts of others are shown after yours" in record) is not is_done
        assert await judge(client, "<b>joe</b>", "good", "good", "unsure") == [1, 2, 3]
        page = (await client.get("/sample", params=_SAMPLE, headers={"X-User": "jane"})).text
        text = text_of(page)
        assert "<b>joe</b> and jane 3 2 67 % 0.50" in text
        assert "jane 3 1 1 1" in text
        assert "<b>joe</b> 3 2 0 1" in text
        assert "<b>joe" not in page
        # The newest verdict on a record counts for the estimate.
        assert "Judged 3 of 3: 2 good, 0 bad, 1 unsure." in text

    reviewing(url, steps, access=web.BehindProxy("X-User"))


def test_the_verdicts_of_a_period_are_summed_up(url: str, store: cs.Store) -> None:
    for who, verdicts in (("jane", "good bad good"), ("joe", "bad bad"), ("ann", "unsure")):
        for number, verdict in enumerate(verdicts.split(), 1):
            store.audit.review(THREAD, number, verdict, actor=who)  # type: ignore[arg-type]
    # The newest of several verdicts counts.
    store.audit.review(THREAD, 1, "bad", actor="jane")

    async def steps(client: Client) -> None:
        page = text_of((await client.get("/reviews")).text)
        assert "3 records were judged." in page
        assert "ann 1 0 0 1" in page
        assert "jane 3 1 2 0" in page
        assert "jane and joe 2 2 100 % undefined" in page
        assert "ann and jane 1 0 0 % 0.00" in page
        assert "3 records were judged since" in text_of((await client.get("/reviews", params={"since": "1d"})).text)
        before = text_of((await client.get("/reviews", params={"until": "1d"})).text)
        assert "0 records were judged until" in before
        assert "There are none." in before
        for wrong in ({"since": "x"}, {"actor": "jane"}):
            assert (await client.get("/reviews", params=wrong)).status_code == 400
        assert 'href="/reviews"' in (await client.get("/sample")).text

    visit(url, steps)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], (0, 0, None)),
        ([("good", "good")] * 3, (3, 3, None)),
        ([("good", "good"), ("bad", "bad")], (2, 2, 1.0)),
        ([("good", "bad"), ("bad", "good")], (2, 0, -1.0)),
        ([("good", "bad")] * 4, (4, 0, 0.0)),
        # The example of a textbook: 20 and 15 equal verdicts, 5 and 10 unequal ones.
        ([(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15, (50, 35, 0.4)),
        ([("good", "good"), ("bad", "good"), ("unsure", "unsure")], (3, 2, 0.5)),
    ],
)
def test_kappa(pairs: list[tuple[Any, Any]], expected: tuple[int, int, float | None]) -> None:
    assert facts.agreement(pairs) == expected
