"""A thread is read from its beginning to its end, and from a pos, a message or a time on."""

from __future__ import annotations

import csv
import html
import json
import re
from datetime import timedelta
from io import StringIO
from typing import Any

import psycopg
import pytest

import compaction_store as cs
from compaction_store.audit import transcript
from compaction_store.audit.words import parts
from compaction_store.bundles.verification import verify_bundle
from web.audited import THREAD, Client, visit
from web.test_pages import positions, shown, text_of

CALL = {
    "role": "assistant",
    "content": [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "a", "name": "find", "input": {"city": "São Paulo", "more": [1, 2]}},
    ],
}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": '{"n": 7, "ok": true}'}]}


def test_a_thread_is_a_conversation_with_records_and_events_in_their_place(url: str, store: cs.Store) -> None:
    page = shown(url, "/thread", id=THREAD)
    last = store.thread(THREAD).last_pos
    assert positions(page) == list(range(1, last + 1))
    turns = re.findall(r'class="turn (\w+)" id="pos-(\d+)"', page)
    assert turns == [(("user", "assistant")[seq % 2], str(seq + 1)) for seq in range(16)]
    first = page[page.index('id="pos-1"') : page.index('id="pos-2"')]
    assert "Order #44910 is not" in first
    assert f"/view?id={THREAD.replace('/', '%2F')}&amp;at=1" in first
    [record] = store.compactions(THREAD, outcome="applied", status="active")
    band = page[page.index(f'id="pos-{record.pos}"') : page.index(f'id="pos-{record.pos + 1}"')]
    assert f"{record.start_seq}\u2013{record.end_seq}" in band
    assert "A refund of $999.99" in band
    assert f"at={record.pos - 1}&amp;beside={record.pos}" in band
    assert "a lawsuit" in page[page.index(f'id="pos-{last}"') :]
    assert "erased" in text_of(page[page.index('id="pos-16"') : page.index('id="pos-17"')])


def test_calls_and_results_are_folded_with_their_json_in_lines(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": "Where?"}, CALL, RESULT])
    page = html.unescape(shown(url, "/thread", id="t"))
    folded = re.findall(r'<details class="step"><summary>(.*?)</summary><pre>(.*?)</pre>', page, re.DOTALL)
    assert folded == [
        (
            'call: find({"city": "São Paulo", "more": [1, 2]})',
            'call: find({\n  "city": "São Paulo",\n  "more": [\n    1,\n    2\n  ]\n})',
        ),
        ('result: {"n": 7, "ok": true}', 'result: {\n  "n": 7,\n  "ok": true\n}'),
    ]
    assert re.findall(r'class="turn (\w+)"', page) == ["user", "assistant", "tool"]


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": 1.10}', "[1e400]", "{not json}", "[" * 9000 + "]" * 9000])
def test_json_that_would_change_stays_as_it_is(text: str) -> None:
    payload = {"role": "tool", "tool_call_id": "a", "content": text}
    [(step, _, said)], _ = parts(payload, 100_000)
    assert (step, said) == ("result", text)


def test_a_long_message_shows_its_beginning_and_says_so() -> None:
    texts = [{"type": "text", "text": "é" * 900}] * 200
    found, size = parts({"role": "user", "content": texts}, 4000)
    assert sum(len(text) for _, _, text in found) <= 4000
    assert size >= 900 * 200
    assert parts({"role": "user", "content": "short"}, 4000) == ([(None, "short", "short")], 0)
    many = [{"type": "tool_use", "id": str(n), "name": "f", "input": {}} for n in range(90)]
    found, size = parts({"role": "assistant", "content": many}, 4000)
    assert (len(found), size > 0) == (50, True)


def test_reading_begins_at_a_pos_at_a_message_or_after_a_time(url: str, store: cs.Store) -> None:
    record = store.compaction(THREAD, 3)
    assert positions(shown(url, "/thread", id=THREAD, at=record.pos))[0] == record.pos
    assert positions(shown(url, "/thread", id=THREAD, seq=9))[0] == 9
    later = [entry.pos for entry in store.audit.entries(THREAD) if entry.created_at > record.created_at]
    assert positions(shown(url, "/thread", id=THREAD, at=record.created_at.isoformat())) == later
    begun = store.thread(THREAD).created_at - timedelta(days=1)
    assert positions(shown(url, "/thread", id=THREAD, at=begun.isoformat()))[0] == 1
    for beyond in ("10000", "2100-01-01"):
        page = shown(url, "/thread", id=THREAD, at=beyond)
        assert positions(page) == []
        assert "There are none." in page

    async def steps(client: Client) -> None:
        for wrong in ("0", "x", "-1", "9" * 30, "٣"):
            answer = await client.get("/thread", params={"id": THREAD, "at": wrong})
            assert answer.status_code == 400
            assert "at must be a pos" in answer.text
        both = await client.get("/thread", params={"id": THREAD, "at": 1, "seq": 1})
        assert (both.status_code, "at must not be given with seq" in both.text) == (400, True)
        assert (await client.get("/thread", params={"id": THREAD, "seq": 99})).status_code == 404
        early = await client.get("/view", params={"id": THREAD, "at": begun.isoformat()})
        assert (early.status_code, "no entry up to that time" in early.text) == (404, True)

    visit(url, steps)


def test_a_view_is_found_by_its_time(url: str, store: cs.Store) -> None:
    record = store.compaction(THREAD, 3)
    pos = store.view(THREAD, at=record.created_at).pos
    page = shown(url, "/view", id=THREAD, at=record.created_at.isoformat(), beside="2100-01-01")
    assert f"at pos {pos} and at pos {store.thread(THREAD).last_pos}" in text_of(page)


def test_an_entry_that_is_gone_is_missed(url: str, store: cs.Store, superuser: psycopg.Connection[Any]) -> None:
    assert "Not all entries are here" not in shown(url, "/thread", id=THREAD)
    hold = store.thread(THREAD).last_pos
    for table in ("messages", "events"):
        superuser.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER ALL")
    superuser.execute("DELETE FROM compaction_store.messages WHERE seq = 3")
    superuser.execute("DELETE FROM compaction_store.events WHERE pos = %s", [hold])
    page = shown(url, "/thread", id=THREAD)
    assert f"Not all entries are here: there is nothing at pos 3, {hold}." in text_of(page)


def test_without_content_a_conversation_has_no_words(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": "secret words " * 30}, CALL, RESULT])
        store.compact("t", lambda ctx: ctx.compact(1, 1, "short secret", reason="secret reason", allow={"last_user"}))
        store.custody.hold("t", reason="secret hold")

    async def steps(client: Client) -> None:
        page = (await client.get("/thread", params={"id": "t"})).text
        assert positions(page) == [1, 2, 3, 4, 5]
        assert "secret" not in page
        assert "Paulo" not in page

    visit(url, steps, content=False)


def test_a_thread_is_downloaded_whole_in_each_form(url: str, store: cs.Store) -> None:
    store.append(THREAD, [{"role": "user", "content": f"message {n}"} for n in range(90)])
    found = store.thread(THREAD)

    async def steps(client: Client) -> None:
        async def got(form: str) -> str:
            answer = await client.get("/download", params={"id": THREAD, "form": form})
            assert answer.status_code == 200
            assert answer.headers["Content-Disposition"] == f'attachment; filename="{found.thread_uid}.{form}"'
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            return answer.text

        lines = [json.loads(line) for line in (await got("jsonl")).splitlines()]
        assert [line["pos"] for line in lines] == list(range(1, found.last_pos + 1))
        assert lines == [entry.as_dict() for entry in store.audit.entries(THREAD, count=1000)]
        assert (
            verify_bundle(line.encode() for line in (await got("bundle.jsonl")).splitlines(keepends=True)).findings
            == ()
        )
        for wrong in ("", "exe", "html"):
            assert (await client.get("/download", params={"id": THREAD, "form": wrong})).status_code == 400

    visit(url, steps)

    async def wordless(client: Client) -> None:
        assert (await client.get("/download", params={"id": THREAD, "form": "jsonl"})).status_code == 400
        bundle = await client.get("/download", params={"id": THREAD, "form": "bundle.jsonl"})
        assert (bundle.status_code, "message 7" in bundle.text) == (200, False)

    visit(url, wordless, content=False)


def test_what_a_page_shows_is_downloaded_as_json_csv_and_markdown(url: str, store: cs.Store) -> None:
    hostile = '=HYPERLINK("http://a.b")'
    store.append(THREAD, {"role": "user", "content": "```\n# not a heading"}, actor=hostile)
    store.compact(THREAD, lambda ctx: ctx.compact(11, 12, "short", reason=hostile), actor=hostile)
    view, name = store.view(THREAD), store.thread(THREAD).thread_uid

    async def steps(client: Client) -> None:
        async def got(suffix: str, **given: Any) -> str:
            answer = await client.get("/download", params=given)
            assert answer.status_code == 200, answer.text
            assert answer.headers["Content-Disposition"] == f'attachment; filename="{suffix}"'
            return answer.text

        records = list(store.compactions(newest_first=True))
        lines = (await got("records.jsonl", what="records", form="jsonl")).splitlines()
        assert [json.loads(line) for line in lines] == [record.as_dict() for record in records]
        for order in ({}, {"order": "oldest"}):
            text = await got("records.csv", what="records", form="csv", outcome=["failed", "rejected"], **order)
            rows = list(csv.DictReader(StringIO(text, newline=""), strict=True))
            wanted = list(store.compactions(newest_first=not order, outcome=["failed", "rejected"]))
            assert [int(row["number"]) for row in rows] == [record.number for record in wanted]
        text = await got(f"{name}.records.csv", what="records", form="csv", id=THREAD, actor=hostile)
        [row] = csv.DictReader(StringIO(text, newline=""), strict=True)
        assert row["actor"] == f"'{hostile}"
        text = await got(f"{name}.csv", id=THREAD, form="csv")
        rows = list(csv.DictReader(StringIO(text, newline=""), strict=True))
        assert [int(row["pos"]) for row in rows] == list(range(1, store.thread(THREAD).last_pos + 1))
        assert not [cell for row in rows for cell in row.values() if cell.startswith("=")]
        text = await got(f"{name}.md", id=THREAD, form="md")
        assert text == "".join(transcript.markdown(store.thread(THREAD), store.audit.entries(THREAD, count=1000)))
        shown = f"{name}.view.pos-{view.pos}"
        lines = (await got(f"{shown}.jsonl", what="view", id=THREAD, form="jsonl")).splitlines()
        assert [json.loads(line) for line in lines] == [element.as_dict() for element in view.elements]
        text = await got(f"{shown}.md", what="view", id=THREAD, form="md")
        assert next(line for line in text.splitlines() if line.startswith("## ")).startswith("## 1: summary 3 of seqs")
        assert "````\n```\n# not a heading\n````" in text
        assert len((await got(f"{name}.view.pos-3.csv", what="view", id=THREAD, form="csv", at=3)).splitlines()) == 4
        for wrong in ({"what": "view", "form": "csv"}, {"what": "records", "form": "md"}, {"what": "x", "form": "csv"}):
            assert (await client.get("/download", params=wrong)).status_code == 400
        # Every link to a file leads to one.
        for page in (
            f"/thread?id={THREAD}",
            f"/records?id={THREAD}&outcome=failed&outcome=applied",
            f"/view?id={THREAD}",
        ):
            links = re.findall(r'href="(/download[^"]*)"', (await client.get(page)).text)
            assert len(links) >= 2
            for link in links:
                assert (await client.get(html.unescape(link))).status_code == 200, link

    visit(url, steps)

    async def wordless(client: Client) -> None:
        text = (await client.get("/download", params={"what": "records", "form": "csv"})).text
        assert "nightly" in text
        assert "$999.99" not in text
        assert "HYPERLINK" not in text.replace(f"'{hostile}".replace('"', '""'), "")
        assert (await client.get("/download", params={"what": "view", "id": THREAD, "form": "csv"})).status_code == 400

    visit(url, wordless, content=False)
