"""What the API refuses: bodies, queries and addresses that are wrong, too large, too slow or too many."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import sqlalchemy

import compaction_store as cs
from compaction_store.web import api
from web.api_clients import JSON, READER, WRITER, Client, token_file, visit

SECRET = "Elm Street 12"
MESSAGES = "/v1/threads/t/messages"


def message(content: str) -> bytes:
    return b'{"messages":[{"role":"user","content":' + content.encode() + b"}]}"


@pytest.mark.parametrize(("body", "status", "says"), [
    (b"", 400, "is not JSON"),
    (b"\xff\xfe", 400, "is not UTF-8"),
    (message('"Elm Street 12') + b"\xc3", 400, "is not UTF-8"),
    (b'{"messages":[{"role":"user","content":"Elm Street 12\0"}]}', 400, "is not JSON"),
    (message('"Elm Street 12"') + b"x", 400, "is not JSON"),
    (message("[" * 100_000 + "]" * 100_000), 400, "nests deeper"),
    (message("[" * 300 + "]" * 300), 400, "nests deeper"),
    (b"[" * 1_000_000, 400, "nests deeper"),
    (message("9" * 5000), 400, "more than 4,300 digits"),
    (message("1e999"), 400, "must be a finite number"),
    (message("NaN"), 400, "NaN or infinite"),
    (message("-Infinity"), 400, "NaN or infinite"),
    (b'{"messages":[{"role":"user","content":"Elm Street 12","content":"x"}]}', 400, "a name twice"),
    (b'{"messages":[],"key":"a","key":"b"}', 400, "a name twice"),
    (b"[]", 400, "must be a JSON object"),
    (b'"Elm Street 12"', 400, "must be a JSON object"),
    (b"null", 400, "must be a JSON object"),
    (b'{"messages":"Elm Street 12"}', 400, "messages must be a valid list"),
    (b'{"messages":["Elm Street 12"]}', 400, "messages.0 must be"),
    (b'{"messages":[]}', 400, "at least one message"),
    (b'{"messages":[{"Elm Street 12":1}]}', 400, "role"),
    (b'{"Elm Street 12":1}', 400, "messages must be given"),
    (b'{"messages":[{"role":"user","content":"x"}],"Elm Street 12":1}', 400, "a name must be one of messages, key"),
    (b'{"messages":[{"role":"user","content":"x"}],"expected_seq":"1"}', 400, "expected_seq must be a valid integer"),
    (b'{"messages":[{"role":"user","content":"x"}],"expected_seq":true}', 400, "expected_seq must be a valid integer"),
    (b'{"messages":[{"role":"user","content":"x"}],"tokens":-1}', 400, "tokens must be integers"),
    (b'{"messages":[{"role":"user","content":"x"}],"key":""}', 400, "key must be text"),
    (b'{"messages":[{"role":"user","content":"x"}],"key":"a\\u0000"}', 400, "key must be text"),
    (b'{"messages":[{"role":"user","content":"x"}],"meta":{"a":"' + b"x" * 9000 + b'"}}', 400, "meta must"),
    (b'{"messages":[{"role":"user","content":"x"}],"view":{"pos":1,"head":"xyz"}}', 400, "view.head"),
    (b'{"messages":[{"role":"user","content":"x"}],"durable":"yes"}', 400, "durable must be"),
    (b'{"messages":[{"role":"user","content":"x"}],"actor":"somebody else"}', 400, "actor must be one of"),
    (b'{"messages":[{"role":"user","content":"x"}],"tenant":"globex"}', 400, "tenant must be one of"),
    (b'{"messages":[' + b",".join([b'{"role":"user","content":"x"}'] * 1001) + b"]}", 400, "at most 1,000 messages"),
])  # fmt: skip
def test_a_wrong_body_is_refused_and_stores_nothing(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, body: bytes, status: int, says: str
) -> None:
    async def steps(client: Client) -> None:
        with caplog.at_level(logging.DEBUG):
            answer = await client.post(MESSAGES, body)
        assert (answer.status, says in answer.body["message"]) == (status, True), answer.body
        assert answer.kind.startswith(("Invalid", "Message", "BatchTooLarge"))
        assert SECRET not in json.dumps(answer.body)
        assert (await client.get("/v1/threads")).body["items"] == []

    visit(url, tmp_path, steps)
    assert SECRET not in caplog.text


def test_what_other_programs_write_is_stored_without_loss(url: str, tmp_path: Path) -> None:
    content = '"a\\u0000b \\ud83d\\ude00 \\ud800 é"'
    number = "9" * 4000

    async def steps(client: Client) -> None:
        body = (
            b'{"raw":true,"messages":[{"role":"user","content":'
            + content.encode()
            + b',"n":'
            + number.encode()
            + b"}]}"
        )
        assert (await client.post(MESSAGES, body)).status == 201
        [item] = (await client.get(MESSAGES)).body["items"]
        assert item["payload"] == {"role": "user", "content": json.loads(content), "n": int(number)}

    visit(url, tmp_path, steps)


@pytest.mark.parametrize(("path", "status", "says"), [
    ("/v1/threads?nme=x", 400, "nme must be one of subject, prefix, metadata, order, after, hidden, limit"),
    ("/v1/threads?limit=0", 400, "limit must be greater"),
    ("/v1/threads?limit=1001", 400, "limit must be less"),
    ("/v1/threads?limit=x", 400, "limit must be a valid integer"),
    ("/v1/threads?limit=" + "9" * 5000, 400, "limit"),
    ("/v1/threads?limit=1&limit=2", 400, "once only"),
    ("/v1/threads?after=%ff", 400, "percent-encoded"),
    ("/v1/threads?after=%00", 400, "thread_id must be text"),
    ("/v1/threads?" + "a=1&" * 100, 400, "at most 50"),
    ("/v1/threads?actor=somebody", 400, "actor must be one of"),
    ("/v1/compactions?since=Elm+Street+12", 400, "since must be a time"),
    ("/v1/compactions?since=2026-05-01T12:30:00", 400, "since"),
    ("/v1/compactions?kind=Elm", 400, "kind must be 'summary'"),
    ("/v1/compactions?tokens_before=Elm", 400, "a range must be"),
    ("/v1/compactions?authority=Elm", 400, "must be a JSON object"),
    ("/v1/compactions?run_id=Elm", 400, "run_id must be a valid UUID"),
    ("/v1/compactions?covering=0", 400, "covering must be an integer >= 1"),
    ("/v1/compactions?after=Elm", 400, "the `next` of the page before"),
    ("/v1/compactions?after=99999999999999999999:t", 400, "the `next` of the page before"),
    ("/v1/threads/%ff", 400, "percent-encoded"),
    ("/v1/threads/%00", 400, "thread_id must be text"),
    ("/v1/threads/" + "x" * 256, 400, "thread_id must be text"),
    ("/v1/threads/none", 404, "no such thread"),
    ("/v1/threads/t/messages/0/seen", 400, "seq must be an integer >= 1"),
    ("/v1/threads/t/messages/99999999999999999999/seen", 400, "seq must be an integer >= 1"),
    ("/v1/threads/t/messages/x/seen", 400, "seq must be an integer >= 1"),
    ("/v1/threads/t/messages/9/seen", 404, "no seq 9"),
    ("/v1/threads/t/compactions/9", 404, "no compaction 9"),
    ("/v1/threads/t/view?at=99", 404, "99"),
    ("/v1/threads/t/view?at=0", 400, "at must be"),
    ("/v1/threads/t/view?at=Elm", 400, "at must be a time"),
    ("/v1/threads/t/view?at=2020-01-01T00:00:00Z", 404, "no entry up to that time"),
    ("/v1/threads/t/request", 400, "format must be given"),
    ("/v1/threads/t/request?format=Elm", 400, "format must be 'anthropic'"),
    ("/v1/threads/t/verify?level=checkpoint", 400, "level must be 'structure'"),
    ("/v1/threads//view", 404, "not one of this API's"),
    ("/v1/threads/a/b/view", 404, "not one of this API's"),
    ("/v1", 404, "not one of this API's"),
    ("/", 404, "not one of this API's"),
])  # fmt: skip
def test_a_wrong_address_is_refused(url: str, tmp_path: Path, path: str, status: int, says: str) -> None:
    async def steps(client: Client) -> None:
        await client.talk("t", 2)
        answer = await client.get(path)
        assert (answer.status, says in answer.body["message"]) == (status, True), answer.body
        assert answer.kind
        assert "Elm" not in answer.body["message"]

    visit(url, tmp_path, steps)


def test_other_methods_and_other_kinds_of_bodies_are_refused(url: str, tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        for method in ("PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"):
            answer = await client.http.request(method, "/v1/threads/t", headers={"Authorization": f"Bearer {WRITER}"})
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
        both = await client.http.request("PUT", MESSAGES)
        assert both.headers["allow"] == "POST, GET"
        for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/json; charset=latin-1",
                     "application/json-seq", "text/json"):  # fmt: skip
            answer_ = await client.post(MESSAGES, message('"x"'), headers={"Content-Type": kind})
            assert (answer_.status, answer_.kind) == (415, "UnsupportedMediaType")
        packed = await client.post(MESSAGES, message('"x"'), headers={"Content-Encoding": "gzip"})
        assert packed.status == 415
        assert (await client.get("/v1/threads")).body["items"] == []
        for kind in ("application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'):
            assert (await client.post(MESSAGES, message('"x"'), headers={"Content-Type": kind})).status == 201

    visit(url, tmp_path, steps)


def test_every_route_refuses_a_body_above_its_limit(url: str, tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        await client.talk("t", 2)
        for path in ("compact", "fork", "rewind", "compactions/1/revoke"):
            for size in (65_536, 200_000):
                answer = await client.post(f"/v1/threads/t/{path}", b'{"reason":"' + b"x" * size + b'"}')
                assert (answer.status, answer.kind) == (413, "TooLarge")
        answer = await client.post(MESSAGES, message('"' + "x" * 33_554_432 + '"'))
        assert (answer.status, answer.kind) == (413, "TooLarge")
        # The limit of one message is the store's, and below that of a body.
        answer = await client.post(MESSAGES, message('"' + "x" * 17_000_000 + '"'))
        assert (answer.status, answer.kind) == (400, "MessageTooLarge")
        assert (await client.get("/v1/threads/t")).body["last_seq"] == 2

    visit(url, tmp_path, steps)


def test_a_body_that_never_ends_is_not_read_to_its_end(url: str, tmp_path: Path) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 10_000
            yield b" " * 10_000

    async def steps(client: Client) -> None:
        headers = JSON | {"Authorization": f"Bearer {WRITER}"}
        answer = await client.http.post("/v1/threads/t/rewind", content=endless(), headers=headers)
        assert answer.status_code == 413
        assert answer.headers["connection"] == "close"

    visit(url, tmp_path, steps)
    assert sent < 1_000_000


def test_half_requests_hold_no_place_and_end(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_LONGEST_ARRIVAL", 1.0)

    async def half() -> AsyncIterator[bytes]:
        yield b'{"messages":['
        await asyncio.sleep(600)

    async def steps(client: Client) -> None:
        headers = JSON | {"Authorization": f"Bearer {WRITER}"}
        halves = [asyncio.create_task(client.http.post(MESSAGES, content=half(), headers=headers)) for _ in range(50)]
        await asyncio.sleep(0.2)
        # There is a place for one request only, and these get it.
        for _ in range(5):
            assert (await client.post(MESSAGES, message('"x"'))).status == 201
        assert not any(task.done() for task in halves)
        for answer in await asyncio.gather(*halves):
            assert (answer.status_code, answer.json()["type"]) == (408, "RequestTimeout")

    visit(url, tmp_path, steps, most_at_once=1)


def test_bodies_together_take_no_more_memory_than_allowed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_MOST_HELD", 1_000_000)
    go_on = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield message('"' + "x" * 600_000 + '"')
        await go_on.wait()

    async def steps(client: Client) -> None:
        headers = JSON | {"Authorization": f"Bearer {WRITER}"}
        waiting = asyncio.create_task(client.http.post(MESSAGES, content=half(), headers=headers))
        await asyncio.sleep(0.2)
        answer = await client.post(MESSAGES, message('"' + "x" * 600_000 + '"'))
        assert (answer.status, answer.kind, answer.headers["retry-after"]) == (503, "Unavailable", "1")
        go_on.set()
        assert (await waiting).status_code == 201
        assert (await client.post(MESSAGES, message('"' + "x" * 600_000 + '"'))).status == 201

    visit(url, tmp_path, steps)


@pytest.mark.one_server("a lock on one server does not stop a cluster")
def test_what_takes_too_long_and_what_is_too_much_is_refused(
    url: str, tmp_path: Path, superuser: psycopg.Connection[Any]
) -> None:
    async def steps(client: Client) -> None:
        await client.talk("t", 2)
        with superuser.transaction():
            superuser.execute("LOCK TABLE compaction_store.messages IN ACCESS EXCLUSIVE MODE")
            slow = asyncio.create_task(client.post(MESSAGES, message('"x"')))
            await asyncio.sleep(0.3)
            full = await client.get("/v1/threads")
            assert (full.status, full.kind, full.headers["retry-after"]) == (503, "Unavailable", "1")
            answer = await slow
            assert (answer.status, answer.kind) == (504, "DeadlineExceeded")
            assert "with the same key" in answer.body["message"]
            read = await client.get(MESSAGES)
            assert (read.status, "key" in read.body["message"]) == (504, False)
        assert (await client.get("/v1/threads/t")).body["last_seq"] == 2

    visit(url, tmp_path, steps, most_at_once=1, longest=1.5)


def test_an_error_of_other_code_is_not_shown(url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def failing(_: cs.CompactionContext) -> None:
        raise RuntimeError(SECRET)

    def lying(_: cs.CompactionContext) -> None:
        raise cs.InvalidInput(SECRET)

    async def steps(client: Client) -> None:
        await client.talk("t", 4)
        for name in ("failing", "lying"):
            answer = await client.post("/v1/threads/t/compact", {"strategy": name})
            assert (answer.status, answer.body["records"][0]["outcome"]) == (200, "failed")
            assert answer.body["errors"][0]["text"] is None
            assert SECRET not in json.dumps(answer.body)
        wrong = await client.post("/v1/threads/t/compact", {"strategy": "Elm"})
        assert wrong.body["message"] == "strategy must be one of failing, lying"

    visit(url, tmp_path, steps, strategies={"failing": failing, "lying": lying})
    assert SECRET not in caplog.text


def test_a_database_that_is_away_is_named_to_nobody(url: str, tmp_path: Path) -> None:
    port = sqlalchemy.make_url(url).port

    async def steps(client: Client) -> None:
        answer = await client.get("/v1/threads/t")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert str(port) not in answer.body["message"]
        assert (await client.get("/readyz", token=None)).status == 503
        assert (await client.get("/healthz", token=None)).status == 200

    async def closed() -> None:
        store = await cs.AsyncStore.open(url)
        await store.close()
        app = api.api_app(store, callers=api.TokenFile(token_file(tmp_path)))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as http:
            await steps(Client(http))

    asyncio.run(closed())


def test_every_call_has_one_line_in_the_log_also_a_refused_one(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "compaction_store.web.access")
    bad = message(f'"{SECRET}"')[:-1] + b',"expected_seq":7}'

    async def steps(client: Client) -> None:
        await client.talk("t", 1)
        caplog.clear()
        assert (await client.get("/v1/threads/t")).status == 200
        assert (await client.get("/v1/threads/none")).status == 404
        assert (await client.get(f"/v1/threads/t?{SECRET[:3]}=1")).status == 400
        assert (await client.post(MESSAGES, bad)).status == 409
        assert (await client.post(MESSAGES, bad, token=READER)).status == 403
        assert (await client.get("/v1/threads/t", token="x" * 40)).status == 401
        assert (await client.get("/v1/threads/t", headers={"Host": "elsewhere"})).status == 421
        assert (await client.get("/v1/elsewhere")).status == 404
        assert (await client.ask("DELETE", "/v1/threads/t")).status == 405
        assert (await client.get("/v1/threads/" + "x" * 3000)).status == 400
        assert (await client.get("/healthz", token=None)).status == 200

    visit(url, tmp_path, steps)
    lines = [json.loads(each.message) for each in caplog.records if each.name == "compaction_store.web.access"]
    assert [[line.get(name) for name in ("reader", "tenant", "page", "id", "status")] for line in lines] == [
        ["bot", "acme", "thread", "t", 200], ["bot", "acme", "thread", "none", 404],
        ["bot", "acme", "thread", "t", 400], ["bot", "acme", "append", "t", 409],
        ["auditor", "acme", "append", "t", 403], [None, None, "thread", "t", 401], [None, None, "thread", "t", 421],
        [None, None, "unknown", None, 404], [None, None, "unknown", None, 405],
        ["bot", "acme", "thread", "x" * 255, 400],
    ]  # fmt: skip
    assert SECRET not in caplog.text
