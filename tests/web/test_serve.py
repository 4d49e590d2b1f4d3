"""The verb `serve`, as a process of its own: who it lets in, what it may do, and how it ends."""

from __future__ import annotations

import html
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from support import platforms

import compaction_store as cs
from compaction_store.reporting.verification import verify_report
from web.audited import THREAD
from web.served import serving


@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
@pytest.mark.usefixtures("store")
def test_the_printed_address_opens_the_pages(url: str, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    rights = ["--as-login"] if platforms.has_one_login() else []
    with serving(url, "--access-log", str(log), "--window", "2000", *rights) as (process, address):
        with httpx.Client(follow_redirects=True) as browser:
            assert "Due for compaction" in browser.get(address).text
            base = address.partition("?")[0]
            assert THREAD in browser.get(f"{base}thread", params={"id": THREAD}).text
        assert httpx.get(base).status_code == 403
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130)
    assert '"page": "thread"' in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
@pytest.mark.usefixtures("store")
def test_the_cookie_is_sent_to_no_other_server_of_the_machine(url: str) -> None:
    rights = ["--as-login"] if platforms.has_one_login() else []
    with serving(url, *rights) as (_, first), serving(url, *rights) as (_, second):
        paths = [httpx.URL(address).path for address in (first, second)]
        assert len({*paths, "/"}) == 3
        with httpx.Client(follow_redirects=True) as browser:
            for address in (first, second):
                assert browser.get(address).status_code == 200
            assert [cookie.path for cookie in browser.cookies.jar] == paths
            # Both are read with one browser: the cookie of one does not replace that of the other.
            for address in (first, second):
                assert browser.get(f"{address.partition('?')[0]}records").status_code == 200
            other = browser.get(httpx.URL(second).copy_with(path="/", query=None))
            assert other.status_code == 404
            assert "cookie" not in other.request.headers


_SESSION = """
    ALTER FUNCTION compaction_store.compare RENAME TO its_compare;
    CREATE FUNCTION compaction_store.compare(uuid, text, text, bigint, bigint, boolean, bigint, bigint)
    RETURNS TABLE (
        at_pos bigint, tokens bigint, total bigint, changed bigint, seq bigint, end_seq bigint, number bigint,
        is_left boolean, is_right boolean
    )
    LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM set_config('application_name', concat_ws(' ', current_user, current_setting('transaction_read_only'),
            current_setting('default_transaction_read_only'), current_setting('statement_timeout')), false);
        RETURN QUERY SELECT * FROM compaction_store.its_compare($1, $2, $3, $4, $5, $6, $7, $8);
    END
    $$;
    GRANT EXECUTE ON FUNCTION compaction_store.its_compare, compaction_store.compare TO compaction_store_auditor;
"""


@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
@pytest.mark.skipif(platforms.has_one_login(), reason="the one login may not take the auditor's role")
@pytest.mark.usefixtures("store")
def test_the_sessions_of_serve_are_the_auditor_s_read_only_and_have_a_timeout(
    url: str, superuser: psycopg.Connection[Any]
) -> None:
    """A function that a page calls writes the state of its session where another session sees it."""
    superuser.execute(_SESSION)
    seen = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    with serving(url) as (_, address), httpx.Client(follow_redirects=True) as browser:
        assert browser.get(address).status_code == 200
        page = browser.get(f"{address.partition('?')[0]}view", params={"id": THREAD})
        assert page.status_code == 200, page.text
        assert superuser.execute(seen, ["compaction_store_auditor on on 20s"]).fetchone() != (0,)


async def _settings(url: str) -> dict[str, str]:
    begun_with = {"default_transaction_read_only": "on", "statement_timeout": "20s", "application_name": "a b\\c"}
    async with cs.AsyncReader.open(url, role="compaction_store_auditor", settings=begun_with) as reader:
        from compaction_store.postgres.driver.cursor import fetch  # noqa: PLC0415 — behind the curtain

        rows = await reader._db.call(lambda connection: fetch(
            connection, "SELECT name, setting FROM pg_settings WHERE name = ANY(%b) UNION SELECT 'role', current_user",
            ([*begun_with],),
        ))  # fmt: skip
        return dict(rows)


@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
@pytest.mark.skipif(platforms.has_one_login(), reason="the one login may not take the auditor's role")
@pytest.mark.usefixtures("store")
def test_a_store_begins_its_sessions_with_settings(url: str) -> None:
    import asyncio  # noqa: PLC0415

    found = asyncio.run(_settings(url))
    assert found["default_transaction_read_only"] == "on"
    assert found["statement_timeout"] == "20000"
    assert found["role"] == "compaction_store_auditor"


@pytest.mark.one_server("Citus does not send the settings of a session to the nodes")
@pytest.mark.usefixtures("store")
def test_a_store_with_read_only_sessions_refuses_a_write(url: str) -> None:
    with (
        cs.Store.open(url, settings={"default_transaction_read_only": "on"}) as store,
        pytest.raises(cs.CompactionStoreError),
    ):
        store.append(THREAD, {"role": "user", "content": "hello"})


@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
@pytest.mark.parametrize("content", [True, False])
def test_a_thread_is_downloaded_as_a_report(url: str, store: cs.Store, content: bool) -> None:
    hostile = '"><script>alert(1)</script>/../é'
    secret = "<script>a secret</script> " * 20
    store.append(hostile, [{"role": "user", "content": secret}, {"role": "user", "content": "b"}])
    store.compact(hostile, lambda ctx: ctx.compact(1, 1, "</template><script>short</script>"))
    for count in [1_000] * 20 + [1]:
        store.append("long", [{"role": "user", "content": "x"}] * count)
    options = ["--auth", "X-User"] if content else ["--auth", "X-User", "--no-content"]
    with serving(url, *options) as (_, base), httpx.Client(headers={"X-User": "<b>jane"}) as browser:
        page = browser.get(f"{base}thread", params={"id": hostile}).text
        [link] = [href for href in re.findall(r'href="(/download[^"]*)"', page) if "form=html" in href]
        answer = browser.get(str(httpx.URL(base).join(html.unescape(link))))
        assert answer.status_code == 200, answer.text
        name = f'attachment; filename="{store.thread(hostile).thread_uid}.html"'
        assert answer.headers["Content-Disposition"] == name
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "<script" not in answer.text
        assert "&lt;b&gt;jane" in answer.text
        assert ("a secret" in answer.text, "&lt;script&gt;short" in answer.text) == (content, content)
        checked = verify_report(answer.content)
        assert [*checked.findings, *(each.findings for each in checked.threads)] == [()]
        long = browser.get(f"{base}download", params={"id": "long", "form": "html"})
        assert (long.status_code, "at most 20,000 entries, not 20,001" in long.text) == (400, True)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["role"], "settings must map names of Postgres settings to strings, not list"),
        ({"a b": "x"}, "the keys of settings must be names of Postgres settings, not another text"),
        ({"": "x"}, "the keys of settings must be names of Postgres settings, not another text"),
        ({"a-c": "x"}, "the keys of settings must be names of Postgres settings, not another text"),
        ({1: "x"}, "the keys of settings must be names of Postgres settings, not 1"),
        ({"role": 1}, "the setting role must be text without a NUL character, not 1"),
        ({"x": "secret\0"}, "the setting x must be text without a NUL character, not text with one"),
    ],
)
def test_settings_must_be_names_and_texts(url: str, settings: object, says: str) -> None:
    with pytest.raises(cs.InvalidInput, match=f"^{says}$"):
        cs.Store.open(url, settings=settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("options", "said"), [
    (("--listen", "0.0.0.0:0"), "unless --auth"), (("--listen", "x"), "must look like"),
    (("--auth", "no header"), "header must be"), (("--public-key", "00"), "needs --checkpoints"),
    (("--access-log", "/nowhere/at/all"), "cannot write"), (("--trigger", "0.9"), "needs --window"),
])  # fmt: skip
def test_a_wrong_call_is_refused(url: str, options: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "compaction_store", "serve", "--url", url, *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=dict(os.environ))
    assert ended.returncode != 0
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
