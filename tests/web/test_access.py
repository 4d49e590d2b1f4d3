"""Who may read the pages, what every response says to a browser, and the log of who read content."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

import compaction_store as cs
from compaction_store import web
from compaction_store.errors import InvalidInput
from web.audited import ADDRESSES, THREAD, Client, known, visit

pytestmark = pytest.mark.usefixtures("store")


def check_headers(answer: Any) -> None:
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "script" not in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_every_response_has_the_headers(url: str) -> None:
    async def steps(client: Client) -> None:
        for address, parameters in (*ADDRESSES, ("/thread", {"id": "nobody"}), ("/nowhere", {})):
            check_headers(await client.get(address, params=parameters))
        client.cookies.clear()
        check_headers(await client.get("/"))
        check_headers(await client.get("/", headers={"Host": "evil.example"}))

    visit(url, steps)


def test_without_the_token_nothing_is_shown(url: str) -> None:
    async def steps(client: Client) -> None:
        client.cookies.clear()
        for address, parameters in ADDRESSES:
            answer = await client.get(address, params=parameters)
            assert answer.status_code == 403
            assert "8812" not in answer.text
        for wrong in ("", "x", "é", "0" * 43):
            assert (await client.get("/", params={"token": wrong})).status_code == 403
            client.cookies.set("compaction_store_audit", "wrong")
            assert (await client.get("/")).status_code == 403

    visit(url, steps)


def test_the_token_works_once(url: str) -> None:
    access = web.OneTimeToken()

    async def steps(client: Client) -> None:
        assert (await client.get("/")).status_code == 200
        client.cookies.clear()
        again = await client.get("/", params={"token": access.token})
        assert again.status_code == 403
        assert "has been used" in again.text

    visit(url, steps, access=access)


def test_the_cookie_is_kept_from_scripts_and_other_sites(url: str) -> None:
    access = web.OneTimeToken()

    async def steps(client: Client) -> None:
        assert "set-cookie" not in (await client.get("/")).headers

    visit(url, steps, access=access)
    fresh = web.OneTimeToken()
    from starlette.requests import Request  # noqa: PLC0415

    scope = {
        "type": "http", "method": "GET", "path": "/", "query_string": f"token={fresh.token}".encode(), "headers": [],
        "scheme": "http", "server": ("127.0.0.1", 8780),
    }  # fmt: skip
    answer = fresh.who(Request(scope))
    assert not isinstance(answer, str)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "127.0.0.1:80@evil.example"])
def test_another_host_is_refused(url: str, host: str) -> None:
    async def steps(client: Client) -> None:
        answer = await client.get("/", headers={"Host": host})
        assert answer.status_code == 421
        assert "8812" not in answer.text

    visit(url, steps)


def test_the_names_of_the_server_are_taken(url: str) -> None:
    async def steps(client: Client) -> None:
        for host in ("audit.example.org", "AUDIT.example.org:443"):
            assert (await client.get("/", headers={"Host": host})).status_code == 200
        assert (await client.get("/", headers={"Host": "localhost"})).status_code == 421

    visit(url, steps, hosts=["127.0.0.1", "audit.example.org"])


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_reading_is_allowed(url: str, method: str) -> None:
    async def steps(client: Client) -> None:
        for address, parameters in ADDRESSES:
            assert (await client.request(method, address, params=parameters)).status_code == 405

    visit(url, steps)


def test_behind_a_proxy_its_header_names_the_reader(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "compaction_store.web.access")

    async def steps(client: Client) -> None:
        assert (await client.get("/")).status_code == 403
        for headers in ([("X-User", "jane"), ("X-User", "eve")], [("X-User", " ")]):
            assert (await client.get("/", headers=headers)).status_code == 403
        asked = await client.get("/thread", params={"id": THREAD}, headers={"X-User": "jane"})
        assert asked.status_code == 200

    visit(url, steps, access=web.BehindProxy("X-User"))
    [entry] = [json.loads(each.message) for each in caplog.records if each.name == "compaction_store.web.access"]
    assert (entry["reader"], entry["page"], entry["thread_id"]) == ("jane", "thread", THREAD)


@pytest.mark.parametrize("header", ["", "X User", "X-User\r\nY", "é"])
def test_a_header_must_be_one(header: str) -> None:
    with pytest.raises(InvalidInput, match="header must be"):
        web.BehindProxy(header)


def test_every_reading_of_content_is_logged_and_no_content_is(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "compaction_store.web.access")

    async def steps(client: Client) -> None:
        for address, parameters in ADDRESSES:
            await client.get(address, params=parameters)

    visit(url, steps)
    entries = [json.loads(each.message) for each in caplog.records if each.name == "compaction_store.web.access"]
    read = {entry["page"] for entry in entries}
    assert read == {
        "thread", "view", "record", "compare", "message", "reply", "records", "search", "erasures", "certificate",
        "sample",
    }  # fmt: skip
    assert {"page": "record", "thread_id": THREAD, "number": 1}.items() <= next(
        entry for entry in entries if entry["page"] == "record"
    ).items()
    assert "elm" not in json.dumps(entries).casefold()


def test_without_content_no_word_is_shown_and_nothing_logged(
    url: str, store: cs.Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "compaction_store.web.access")
    secret = "xylophone"
    message = {"role": "user", "content": secret, "name": secret}
    store.append("quiet", [message, message, message], meta=[{"word": secret}] * 3)
    store.set_metadata("quiet", {"word": secret})
    authority = {"ticket": secret}
    store.compact("quiet", lambda ctx: ctx.compact(1, 2, f"{secret}", reason=secret), authority=authority)
    store.compact("quiet", lambda ctx: ctx.compact(1, 3, f"{secret} " * 90, reason=secret))

    def fails(_: cs.CompactionContext) -> None:
        raise RuntimeError(secret)

    store.compact("quiet", fails)
    store.custody.hold("quiet", reason=secret, authority=authority)

    async def steps(client: Client) -> None:
        for address, parameters in ADDRESSES:
            for number in (1, 2, 3):
                given = {**parameters, "id": "quiet", "number": number, "seq": number, "pos": 7}
                for asked in (parameters, given):
                    answer = await client.get(address, params=known(address, asked))
                    assert answer.status_code in (200, 404)
                    assert secret not in answer.text, (address, asked)

    visit(url, steps, content=False)
    assert not [each for each in caplog.records if each.name == "compaction_store.web.access"]


def test_without_content_no_word_of_any_field_is_on_any_page(url: str) -> None:
    """Every field that holds words gets a word of its own, and each is looked for on every page."""
    words: list[str] = []

    def word() -> str:
        words.append(f"zqx{len(words):03}kvj")
        return words[-1]

    with cs.Store.open(url) as store:
        for _ in range(8):
            call = {"type": "tool_use", "id": word(), "name": word(), "input": {word(): word()}}
            answer = {"type": "tool_result", "tool_use_id": call["id"], "content": word()}
            image = {"type": "image", "source": {"type": "url", "url": f"https://{word()}.example"}}
            store.append("quiet", [
                {"role": "user", "content": [{"type": "text", "text": word()}, image], "name": word()},
                {"role": "assistant", "content": [call], word(): word()},
                {"role": "user", "content": [answer]},
            ], meta=[{word(): word()}] * 3)  # fmt: skip
            store.append("quiet", {"role": "assistant", "content": word()}, view=store.view("quiet"))
        store.set_metadata("quiet", {word(): word()})

        def fold(ctx: cs.CompactionContext) -> None:
            made = cs.Summary(
                word(), prompt=word(), settings={word(): word()}, provider={word(): word()}, checks={word(): word()}
            )
            ctx.compact(ctx.elements[0].seq, ctx.elements[7].end_seq, made, reason=word())

        for _ in range(2):
            store.compact("quiet", fold, authority={word(): word()})
        store.revoke("quiet", 2, reason=word())
        store.custody.hold("quiet", reason=word(), authority={word(): word()})
        store.audit.review("quiet", 1, "bad", note=word())
        store.custody.release("quiet", reason=word())
        store.custody.redact("quiet", [30], reason=word())
        store.fork("quiet", "branch", at=12)
        last, numbers, seqs = store.thread("quiet").last_pos, range(1, 4), range(1, 33)
    assert len(words) > 100

    async def steps(client: Client) -> None:
        pages: list[tuple[str, dict[str, Any]]] = [("/certificate", {"pos": pos}) for pos in range(33, last + 1)]
        pages += [("/record", {"number": number}) for number in numbers]
        pages += [(route, {"seq": seq}) for seq in seqs for route in ("/message", "/reply")]
        pages += [("/view", {"at": at, "beside": last, "all": 1}) for at in (5, 20, 33, 35)]
        pages += [*ADDRESSES, ("/search", {"q": words[0]}), ("/records", {"id": "branch"}), ("/view", {"id": "branch"})]
        for route, parameters in pages:
            answer = await client.get(route, params={"id": "quiet", **parameters})
            text = answer.text.replace(words[0], "") if route == "/search" else answer.text
            assert not [each for each in words if each in text], (route, parameters)

    visit(url, steps, content=False)
