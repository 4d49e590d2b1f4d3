"""Whatever goes wrong, the answer is a plain page with a fitting status and all headers, and nothing tells content."""

from __future__ import annotations

import html
import json
import logging
import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
import sqlalchemy as sa

import compaction_store as cs
from compaction_store import web
from compaction_store.audit._async import records, threads
from compaction_store.web.routes import PARAMETERS
from web.audited import ADDRESSES, THREAD, Client, visit
from web.test_access import check_headers

SECRET = "xylophone"
#: As they stand in an address, so that bytes which are no text can be among them.
VALUES = (
    "", "0", "-1", "1", "2", "3", "1.5", "1e9", "+1", " 1", "%C2%B2", "%D9%A3", "1_0", "0x1", "nan", "9" * 15, "9" * 16,
    "1" + "0" * 30, "9" * 5000, "2147483648", "9223372036854775807", "%00", "a%00b", "%ED%A0%80", "%FF%FE", "%",
    "%zz", "%E2%80%AE%E2%81%A6", "%0D%0ASet-Cookie:x=1", "x" * 255, "x" * 256, "%F0%9F%98%80" * 64, quote(THREAD),
    "other", "nobody", "hold", "redaction", "failed", "summary", "content", "structure", "schema", "checkpoint", "none",
    "null", "true", "[]", "{}", "%7B", quote('{"a":1}'), quote('{"a":"\\ud800"}'), quote('{"\\udfff":1}'),
    quote('{"a":NaN}'), quote('{"a":1e999}'), quote('{"a":' + "9" * 4000 + "}"), quote('{"a":' * 900 + "1" + "}" * 900),
    quote('{"a":' * 90 + "1" + "}" * 90), quote('{"":""}'), quote('{"page":"x","seed":{"a":[1]}}'),
    quote('{"a":"\\u0000"}'),
    "7d", "0m", "999999w", "2026-05-01", "0001-01-01T00:00:00%2B23:59", "9999-12-31T23:59:59-23:59", "10000-01-01",
    "2026-05-01T12:30:00.123456789", "2026-W01-1", "%3Cscript%3E", "..%2F..%2Fetc%2Fpasswd", "{{7*7}}",
    "01234567-89ab-4def-8123-456789abcdef", "{01234567-89ab-4def-8123-456789abcdef}", "erased/x",
)  # fmt: skip
_FITTING = {200, 303, 400, 404, 405, 410}

pytestmark = pytest.mark.usefixtures("store")


def addresses() -> Iterator[str]:
    """Every parameter of every page with every value, beside others that fit; and many values at once, at random."""
    fitting = {"id": quote(THREAD), "number": "1", "seq": "4", "pos": "20", "q": "elm", "seed": "3",
               "until": "2100-01-01T00:00:00%2B00:00"}  # fmt: skip
    choose = random.Random(5)

    def address(route: str, given: dict[str, str]) -> str:
        known = PARAMETERS[route]
        return f"{route}?" + "&".join(f"{key}={text}" for key, text in given.items() if key in known)

    for route, names in PARAMETERS.items():
        for name in names:
            for value in choose.sample(VALUES, 4):
                yield address(route, fitting | {name: value})
        for _ in range(8):
            some = choose.sample(names, min(len(names), choose.randrange(1, 9)))
            yield address(route, {name: choose.choice(VALUES) for name in some})
        yield f"{route}?{choose.choice(VALUES)}={choose.choice(VALUES)}"
    for value in VALUES[::2]:
        for name, route in (("id", "/thread"), ("at", "/view"), ("sample", "/record"), ("authority", "/records"),
                            ("since", "/sample"), ("level", "/integrity"),
                            ("after", "/"), ("from", "/reply"),
                            ("actor", "/sample"), ("after_id", "/erasures")):  # fmt: skip
            yield address(route, fitting | {name: value})


def test_no_address_breaks_a_page(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "compaction_store.web")

    async def steps(client: Client) -> None:
        seen: dict[int, int] = {}
        for address in addresses():
            answer = await client.get(address)
            assert answer.status_code in _FITTING, (address[:300], answer.status_code, answer.text[-400:])
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
            check_headers(answer)
            assert "Traceback" not in answer.text
            assert not set("\u202e\u2066\0\x1b\x07") & set(answer.text)
        assert {200, 303, 400, 404} <= seen.keys()

    visit(url, steps)
    assert not [each for each in caplog.records if each.name == "compaction_store.web"]


def test_a_parameter_that_is_given_twice_is_refused_by_name(url: str) -> None:
    async def steps(client: Client) -> None:
        for address, name in (
            ("/records?actor=failed&actor=rejected", "actor"), ("/?after=a&after=", "after"),
            (f"/thread?id={quote(THREAD)}&id={quote(THREAD)}", "id"),
            ("/search?q=a&q_percent=b&q_percent=c", "q_percent"),
        ):  # fmt: skip
            answer = await client.get(address)
            assert answer.status_code == 400
            assert f"{name} must be given once only" in html.unescape(answer.text)
        assert (await client.get("/search?q=a&q_percent=b")).status_code == 200

    visit(url, steps)


def test_an_address_that_there_is_not_leads_back_to_the_pages(url: str) -> None:
    async def steps(client: Client) -> None:
        answer = await client.get("/nowhere")
        assert answer.status_code == 404
        check_headers(answer)
        assert "There is no page with this address" in answer.text
        assert '<nav aria-label="Pages">' in answer.text

    visit(url, steps)


def test_a_thread_that_was_erased_says_so(url: str, store: cs.Store) -> None:
    store.append("gone", {"role": "user", "content": SECRET})
    store.custody.erase("gone", reason="asked for", actor="privacy desk")
    [stub] = [each.thread_id for each in store.threads(hidden=True) if each.erased_pos]

    async def steps(client: Client) -> None:
        for address in ("/thread?", "/view?", "/record?number=1", "/message?seq=1", "/reply?seq=1"):
            answer = await client.get(f"{address}&id=gone")
            assert answer.status_code in (404, 410)
            assert SECRET not in answer.text
        page = await client.get("/thread", params={"id": stub})
        assert page.status_code == 200
        assert "erased" in page.text
        for address in ("/view?", "/message?seq=1", "/record?number=1", "/reply?seq=1", "/certificate?pos=2",
                        "/integrity?", "/chart.svg?"):  # fmt: skip
            answer = await client.get(f"{address}&id={stub}")
            assert answer.status_code in (200, 404, 410), (address, answer.text)

    visit(url, steps)


class Broken(web.OneTimeToken):
    """Lets everybody in, until it breaks."""

    is_broken = False

    def who(self, request: Any) -> Any:
        if self.is_broken:
            raise RuntimeError(SECRET)
        return super().who(request)


def test_an_unexpected_error_shows_and_logs_no_content(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    access = Broken()

    async def fails(*_: Any, **__: Any) -> Any:
        raise ValueError(SECRET)

    for name in ("thread_list", "thread", "course", "event_list", "event_page", "first"):
        monkeypatch.setattr(threads, name, fails)
    for name in ("view", "record", "message", "text", "reply", "record_list", "sample", "reviews"):
        monkeypatch.setattr(records, name, fails)
    for name in ("thread", "leases"):
        monkeypatch.setattr(cs.AsyncReader, name, fails)

    async def steps(client: Client) -> None:
        for route, parameters in ADDRESSES:
            if route in ("/style.css", "/icon.svg") or (route in ("/sample", "/integrity") and not parameters):
                continue
            answer = await client.get(route, params=parameters)
            assert answer.status_code == 500, route
            assert "This page failed" in answer.text
            check_headers(answer)
            assert SECRET not in answer.text
        access.is_broken = True
        for route in (*PARAMETERS, "/nowhere"):
            answer = await client.get(route)
            assert (answer.status_code, answer.text.partition(".")[0]) == (500, "These pages failed")
            check_headers(answer)

    visit(url, steps, access=access)
    told = [json.loads(each.message) for each in caplog.records if each.name == "compaction_store.web"]
    assert {each["error"] for each in told} == {"ValueError", "RuntimeError"}
    assert all(each["at"][-1].startswith("test_errors.py:") for each in told)
    assert not [each for each in caplog.records if SECRET in each.getMessage() or each.exc_info]


def test_a_template_that_fails_has_the_headers_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(client: Client) -> None:
        monkeypatch.setattr("compaction_store.web.app._AuditPages._html", lambda *_: 1 / 0)
        answer = await client.get("/")
        assert answer.status_code == 500
        check_headers(answer)

    visit(url, steps)


def _login(url: str, superuser: psycopg.Connection[Any], name: str, setting: str = "") -> str:
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE compaction_store_auditor")
    if setting:
        superuser.execute(f"ALTER ROLE {name} SET {setting}")
    return sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)


def test_a_locked_table_and_a_lost_database_have_pages(
    url: str, superuser: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "compaction_store.web")
    name = f"{superuser.info.dbname}_auditor"
    login = _login(url, superuser, name, "statement_timeout = '300ms'")
    try:

        async def steps(client: Client) -> None:
            assert (await client.get("/thread", params={"id": THREAD})).status_code == 200
            with psycopg.connect(url) as other:
                other.execute("LOCK TABLE compaction_store.heads IN ACCESS EXCLUSIVE MODE")
                await _is_unavailable(client)
            assert (await client.get("/thread", params={"id": THREAD})).status_code == 200
            superuser.execute(f"ALTER ROLE {name} NOLOGIN")
            superuser.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", [name])
            await _is_unavailable(client)

        visit(login, steps, deadline=1.0)
    finally:
        superuser.execute(f"DROP ROLE {name}")
    assert {json.loads(each.message)["page"] for each in caplog.records} == {"/thread", "/view", "/records"}


async def _is_unavailable(client: Client) -> None:
    for route in ("/thread", "/view", "/records"):
        answer = await client.get(route, params={"id": THREAD})
        assert answer.status_code == 503, answer.text
        assert "This cannot be read now" in html.unescape(answer.text)
        assert answer.headers["retry-after"]
        check_headers(answer)
        assert "heads" not in answer.text
