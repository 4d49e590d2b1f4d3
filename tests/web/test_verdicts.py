"""The one page that writes: a verdict on a record of a sample, through a role that can do nothing else."""

from __future__ import annotations

import asyncio
import html
import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import psycopg
import pytest
import sqlalchemy as sa

import compaction_store as cs
from compaction_store import web
from compaction_store.errors import InvalidInput, PermissionDenied
from compaction_store.models import Verdict
from web.audited import THREAD, Client, Visit, client, visit

pytestmark = [
    pytest.mark.usefixtures("store"),
    pytest.mark.one_server("it takes a role that may not log in, and calls a function without a key"),
]
UNTIL = "2100-01-01T00:00:00+00:00"


def reviewing(url: str, steps: Visit, **options: Any) -> None:
    """Opens the pages with the auditor's role, read-only, and the verdicts with the reviewer's."""

    async def run() -> None:
        async with (
            cs.AsyncStore.open(url, role="compaction_store_reviewer") as reviews,
            client(url, reviews=reviews, **options) as opened,
        ):
            await steps(opened)

    asyncio.run(run())


@pytest.mark.parametrize(("origin", "site", "status"), [
    ("http://127.0.0.1:8780", None, 303), ("https://audit.example", None, 303),
    ("https://audit.example:443", "same-origin", 303), ("null", "same-origin", 303), (None, "same-origin", 303),
    ("http://127.0.0.1:9999", None, 403), ("http://evil.example", None, 403), ("null", None, 403), ("", None, 403),
    ("http://127.0.0.1:8780.evil.example", None, 403), ("https://audit.example.evil", None, 403),
    ("ftp://127.0.0.1:8780", None, 403), ("null", "cross-site", 403), (None, "same-site", 403),
    ("http://127.0.0.1:8780", "cross-site", 403),
])  # fmt: skip
def test_a_form_that_another_site_sends_is_refused(
    url: str, store: cs.Store, origin: str | None, site: str | None, status: int
) -> None:
    given = {"Origin": origin, "Sec-Fetch-Site": site}
    headers = {name: value for name, value in given.items() if value is not None}

    async def steps(client: Client) -> None:
        page = await client.get("/record", params={"id": THREAD, "number": 3})
        form = fields(page.text) | {"verdict": "good"}
        assert (await client.post("/verdict", data=form, headers=headers)).status_code == status

    reviewing(url, steps, hosts=("127.0.0.1", "audit.example"))
    assert len(verdicts(store)) == (status == 303)


def fields(page: str) -> dict[str, str]:
    """Returns the hidden fields of the form on a page."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page)
    return {name: html.unescape(value) for name, value in found}


def verdicts(store: cs.Store) -> list[Verdict]:
    return [verdict for event in store.audit.events(kind="verdict") if (verdict := Verdict.of(event))]


def test_a_sample_is_drawn_judged_and_says_how_many_records_are_bad(url: str, store: cs.Store) -> None:
    async def steps(client: Client) -> None:
        drawn = await client.get("/sample", params={"seed": 7, "count": 2, "since": "7d"}, follow_redirects=True)
        asked = {name: values[0] for name, values in parse_qs(urlsplit(str(drawn.url)).query).items()}
        assert asked.keys() == {"seed", "count", "since", "until"}
        assert "Judged 0 of 2" in drawn.text
        links = [html.unescape(each) for each in re.findall(r'href="(/record\?[^"]*)"', drawn.text)]
        assert len(links) == 2
        for link, verdict in zip(links, ("good", "bad"), strict=True):
            page = (await client.get(link)).text
            assert "Originals" in page
            form = fields(page) | {"verdict": verdict, "note": f"it is {verdict} <b>"}
            answer = await client.post("/verdict", data=form)
            assert answer.status_code == 303
            back = await client.get(answer.headers["location"])
            if verdict == "good":
                # The next record without a verdict is shown.
                assert back.status_code == 303
                assert parse_qs(urlsplit(back.headers["location"]).query)["place"] == ["2"]
                following = (await client.get(back.headers["location"])).text
                assert "Record 2 of 2 of the sample" in following
                assert 'id="your-verdict"' in following
        assert "Judged 2 of 2: 1 good, 1 bad, 0 unsure" in back.text
        assert "With 95 % confidence, 1 to 2 of all 3 records are bad" in back.text
        assert "it is bad &lt;b&gt;" in (await client.get(links[1])).text

    reviewing(url, steps)
    found = verdicts(store)
    assert [(v.thread_id, v.verdict, v.actor) for v in found] == [
        (THREAD, "good", "the holder of the token"), (THREAD, "bad", "the holder of the token"),
    ]  # fmt: skip
    assert found[0].sample is not None
    assert (found[0].sample["seed"], found[0].sample["population"]) == (7, 3)
    assert store.audit.verify(THREAD, level="schema").findings == ()


def test_an_erasure_takes_one_record_from_a_sample_and_leaves_the_other_verdicts(url: str, store: cs.Store) -> None:
    async def steps(client: Client) -> None:
        asked: dict[str, Any] = {"seed": 7, "count": 3, "until": UNTIL}
        drawn = await client.get("/sample", params=asked)
        for link in re.findall(r'href="(/record\?[^"]*)"', drawn.text):
            form = fields((await client.get(html.unescape(link))).text) | {"verdict": "good"}
            assert (await client.post("/verdict", data=form)).status_code == 303
        assert "Judged 3 of 3: 3 good" in (await client.get("/sample", params=asked)).text
        store.custody.redact(THREAD, 8, reason="asked", override="the lawsuit is settled")
        after = (await client.get("/sample", params=asked)).text
        assert [record.number for record in store.compactions(THREAD) if record.redacted] == [3, 4]
        assert "Judged 2 of 2: 2 good" in after
        assert "0 to 0 of all 2 records are bad" in after

    reviewing(url, steps)


def test_the_same_seed_draws_the_same_records(url: str) -> None:
    async def steps(client: Client) -> None:
        asked: dict[str, Any] = {"seed": 5, "count": 2, "until": UNTIL}
        page = await client.get("/sample", params=asked)
        assert page.status_code == 200
        assert (await client.get("/sample", params=asked)).text == page.text
        assert "2 of 3 records" in page.text

    visit(url, steps)


def test_without_reviews_nothing_can_be_sent(url: str) -> None:
    async def steps(client: Client) -> None:
        assert (await client.post("/verdict", data={"id": THREAD})).status_code == 405
        assert "<form method" not in (await client.get("/record", params={"id": THREAD, "number": 3})).text

    visit(url, steps)


def test_only_the_form_that_the_reader_was_shown_is_taken(url: str, store: cs.Store) -> None:
    async def steps(client: Client) -> None:
        page = await client.get("/record", params={"id": THREAD, "number": 3}, headers={"X-User": "jane"})
        form = fields(page.text) | {"verdict": "good"}
        for other, reader in (
            (form | {"token": ""}, "jane"), (form | {"token": "é" * 64}, "jane"), (form, "eve"),
            ({k: v for k, v in form.items() if k != "token"}, "jane"),
        ):  # fmt: skip
            answer = await client.post("/verdict", data=other, headers={"X-User": reader})
            assert answer.status_code == 403
        # A form of another site is sent as text, or without the header of the proxy.
        as_text = {"X-User": "jane", "Content-Type": "text/plain"}
        assert (await client.post("/verdict", content="x=1", headers=as_text)).status_code == 400
        assert (await client.post("/verdict", data=form)).status_code == 403
        for address in ("/record", "/", "/sample"):
            assert (await client.post(address, data=form, headers={"X-User": "jane"})).status_code == 405
        assert not verdicts(store)
        assert (await client.post("/verdict", data=form, headers={"X-User": "jane"})).status_code == 303
        elsewhere = {"X-User": "jane", "Host": "evil.example"}
        assert (await client.post("/verdict", data=form, headers=elsewhere)).status_code == 421

    reviewing(url, steps, access=web.BehindProxy("X-User"))
    assert [(v.number, v.actor) for v in verdicts(store)] == [(3, "jane")]


@pytest.mark.parametrize(("wrong", "status"), [
    ({"verdict": "terrible"}, 400), ({"verdict": ""}, 400), ({"number": "x"}, 400), ({"number": "0"}, 400),
    ({"number": "99"}, 404), ({"id": "nobody"}, 404), ({"id": ""}, 400), ({"note": "n" * 9000}, 400),
    ({"note": "n" * 70_000}, 400), ({"sample": "[]"}, 400), ({"sample": "{"}, 400), ({"id": "\0"}, 400),
])  # fmt: skip
def test_a_wrong_form_says_why_and_writes_nothing(
    url: str, store: cs.Store, wrong: dict[str, str], status: int
) -> None:
    async def steps(client: Client) -> None:
        page = await client.get("/record", params={"id": THREAD, "number": 3})
        answer = await client.post("/verdict", data=fields(page.text) | {"verdict": "good"} | wrong)
        assert answer.status_code == status, answer.text
        assert "Traceback" not in answer.text

    reviewing(url, steps)
    assert not verdicts(store)


def test_words_must_be_shown_to_be_judged(url: str) -> None:
    async def steps(client: Client) -> None:
        raise AssertionError(client)

    with pytest.raises(InvalidInput, match="if content is False"):
        reviewing(url, steps, content=False)


def test_the_role_can_record_verdicts_and_nothing_else(url: str, superuser: psycopg.Connection[Any]) -> None:
    granted = superuser.execute("""
        SELECT p.proname FROM pg_proc AS p, aclexplode(p.proacl) AS a
        WHERE p.pronamespace = 'compaction_store'::regnamespace
            AND a.grantee = 'compaction_store_reviewer'::regrole ORDER BY 1
    """).fetchall()
    assert granted == [("record_in_log",), ("record_verdict",)]
    with cs.Store.open(url, role="compaction_store_reviewer") as reviews:
        assert reviews.audit.review(THREAD, 3, "good").kind == "verdict"
        for call in (
            lambda: reviews.append(THREAD, {"role": "user", "content": "x"}), lambda: reviews.view(THREAD),
            lambda: reviews.custody.hold(THREAD, reason="x"), lambda: list(reviews.replay(THREAD)),
            lambda: list(reviews.compactions()), lambda: reviews.custody.redact(THREAD, 1, reason="x"),
        ):  # fmt: skip
            with pytest.raises(cs.CompactionStoreError) as caught:
                call()
            assert getattr(caught.value, "sqlstate", None) == "42501"


def test_a_verdict_for_another_kind_of_sample_is_shown(url: str) -> None:
    """A reviewer's login may give any object as the sample."""
    with cs.Store.open(url, role="compaction_store_reviewer") as reviews:
        reviews.audit.review(THREAD, 3, "bad", sample={"every": "tenth"})

    async def steps(client: Client) -> None:
        page = await client.get("/record", params={"id": THREAD, "number": 3})
        assert page.status_code == 200
        assert "Verdicts" in page.text
        assert "sample of seed" not in page.text

    visit(url, steps)


def test_the_application_cannot_judge_itself(url: str) -> None:
    with (
        cs.Store.open(url, role="compaction_store_app") as store,
        pytest.raises(PermissionDenied, match="grant LOGIN reviewer"),
    ):
        store.audit.review(THREAD, 3, "good")


@pytest.mark.parametrize("body", ['{"number":4,"verdict":"good"}', '{"verdict":"good","number":3}', "{}",
                                  '{"number":3,"verdict":"fine"}', '{"number":3,"verdict":"good"'])  # fmt: skip
def test_the_database_takes_no_other_body(superuser: psycopg.Connection[Any], body: str) -> None:
    superuser.execute("SET ROLE compaction_store_reviewer")
    with pytest.raises(psycopg.Error):
        superuser.execute(
            "SELECT compaction_store.record_verdict(NULL, 'default', %s, 3, NULL, %s, %s)", [THREAD, bytes(16), body]
        )


def test_a_verdict_is_in_the_bundle_and_a_retry_writes_it_once(
    store: cs.Store, superuser: psycopg.Connection[Any], tmp_path: Any
) -> None:
    from compaction_store import offline  # noqa: PLC0415

    body = '{"number":3,"verdict":"bad","note":"it lost the order"}'
    superuser.execute("SET ROLE compaction_store_reviewer")
    call = "SELECT event_pos FROM compaction_store.record_verdict(NULL, 'default', %s, 3, 'jane', %s, %s)"
    first = superuser.execute(call, [THREAD, bytes(16), body]).fetchone()
    assert superuser.execute(call, [THREAD, bytes(16), body]).fetchone() == first
    lines = list(store.audit.export(THREAD))
    assert json.loads(json.loads(lines[-2])["body"])["verdict"] == "bad"
    (tmp_path / "bundle.jsonl").write_bytes(b"".join(lines))
    assert offline.main([str(tmp_path / "bundle.jsonl")]) == 0


def test_serve_reviews_as_the_user(url: str, store: cs.Store) -> None:
    from web.served import serving  # noqa: PLC0415

    with serving(url, "--review", "--actor", "jane") as (_, address), httpx.Client(follow_redirects=True) as browser:
        browser.get(address)
        base = address.partition("?")[0]
        page = browser.get(f"{base}record", params={"id": THREAD, "number": 3})
        assert browser.post(f"{base}verdict", data=fields(page.text) | {"verdict": "unsure"}).status_code == 200
    assert [(v.verdict, v.actor) for v in verdicts(store)] == [("unsure", "jane")]


def test_a_login_without_the_role_cannot_review(url: str, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute("DROP ROLE IF EXISTS cs_only_auditor")
    superuser.execute("CREATE ROLE cs_only_auditor LOGIN PASSWORD 'pw' IN ROLE compaction_store_auditor")
    try:
        login = sa.make_url(url).set(username="cs_only_auditor", password="pw")
        with pytest.raises(cs.CompactionStoreError):
            cs.Store.open(login.render_as_string(hide_password=False), role="compaction_store_reviewer")
    finally:
        superuser.execute("DROP ROLE cs_only_auditor")
