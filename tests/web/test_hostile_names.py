"""Threads whose names cannot be shown as they are, each beside a twin whose name is the escaped text."""

from __future__ import annotations

import html
import json
import re
import subprocess
from html.parser import HTMLParser
from urllib.parse import parse_qs

import pytest

import compaction_store as cs
from compaction_store.audit.safe_text import named, shown
from compaction_store.models import Verdict
from web.audited import Client, visit
from web.test_verdicts import reviewing

NAMES = (
    "t\u202egpj.exe", "a\nb", "a\r\nb", "\x1b[31mred", "c1\x85x", "-\u202e'quote\"\\\U000e0041",
)  # fmt: skip
PLAIN = ("--help", "=ls", 'it\'s "quoted" $HOME `id`', "C:\\new", "a & b <i>")
TENANT = "-te'nant\u2066"


class Forms(HTMLParser):
    """Reads the fields of each form of a page as a browser does, except that line breaks in them are changed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str, dict[str, str]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.found.append((given["action"], given.get("method", "get"), {}))
        elif tag == "input" and given.get("type") in ("radio", "checkbox") and "checked" not in given:
            pass
        elif tag == "input" and "name" in given:
            value = re.sub(r"\r\n|\r|\n", "\r\n" if given.get("type") == "hidden" else "", given.get("value", ""))
            self.found[-1][2][given["name"]] = value


def _fill(store: cs.Store, name: str) -> None:
    store.append(name, [{"role": "user", "content": "the original"}, {"role": "assistant", "content": "yes"}] * 2)
    store.compact(name, lambda ctx: ctx.compact(1, 3, "the summary"), actor=name)


@pytest.fixture
def filled(url: str) -> list[str]:
    names = list(dict.fromkeys([*NAMES, *map(shown, NAMES), *PLAIN]))
    with cs.Store.open(url) as store:
        for name in names:
            _fill(store, name)
    return names


def test_every_form_leads_to_the_thread_of_its_page(url: str, filled: list[str]) -> None:
    async def steps(client: Client) -> None:
        for name in filled:
            for page, more in (
                ("/thread", {}), ("/view", {}), ("/search", {"q": "original"}), ("/integrity", {}), ("/erasures", {}),
                ("/records", {"actor": name}),
            ):  # fmt: skip
                answer = await client.get(page, params={"id": name, **more})
                assert answer.status_code == 200, (page, name, answer.text)
                for action, _, fields in Forms(answer.text).found:
                    sent = fields | ({"seq": "1"} if action == "/message" else {})
                    result = await client.get(action, params=sent)
                    assert result.status_code == 200, (action, name, result.text)
                    links = re.findall(r'href="/(?:thread|record|message)\?([^"]*)"', result.text)
                    ids = [parse_qs(html.unescape(link))["id"] for link in links]
                    assert ids, (action, name)
                    # The page of verifications also lists the threads that were verified before.
                    assert all(each == [name] for each in ids[: 1 if action == "/integrity" else None]), (action, ids)

    visit(url, steps)


@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
def test_a_verdict_is_written_on_the_thread_that_was_shown(url: str, filled: list[str]) -> None:
    async def steps(client: Client) -> None:
        for name in filled:
            page = await client.get("/record", params={"id": name, "number": 1, "sample": json.dumps({"actor": name})})
            (form,) = [each for each in Forms(page.text).found if each[0] == "/verdict"]
            answer = await client.post("/verdict", data=form[2] | {"verdict": "good", "note": "n"})
            assert answer.status_code == 303, answer.text

    reviewing(url, steps)
    with cs.Store.open(url) as store:
        for name in filled:
            (event,) = store.audit.events(name, kind="verdict")
            found = Verdict.of(event)
            assert found is not None
            assert found.sample == {"actor": name}


@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
def test_a_form_of_a_thread_whose_name_was_used_again_is_refused(url: str) -> None:
    async def steps(client: Client) -> None:
        page = await client.get("/record", params={"id": "again", "number": 1})
        form = Forms(page.text).found[0][2] | {"verdict": "bad"}
        with cs.Store.open(url) as store:
            store.custody.erase("again", reason="asked for")
            _fill(store, "again")
        answer = await client.post("/verdict", data=form)
        assert answer.status_code == 409
        assert "another thread" in answer.text

    with cs.Store.open(url) as store:
        _fill(store, "again")
    reviewing(url, steps)
    with cs.Store.open(url) as store:
        assert not list(store.audit.events(kind="verdict"))


def test_different_names_look_different_in_every_list(url: str, filled: list[str]) -> None:
    async def steps(client: Client) -> None:
        for page in ("/threads", "/records", "/search?q=original"):
            texts: set[str] = set()
            names: set[str] = set()
            address, after = page, ""
            while address:
                answer = await client.get(address)
                assert shown(answer.text.replace("\n", " ")) == answer.text.replace("\n", " ")
                texts |= set(re.findall(r'<td [^>]*class="name"><a href="[^"]*">([^<]*)</a>', answer.text))
                more = re.search(r'<p class="more"><a href="([^"]*)"', answer.text)
                address, after = (html.unescape(more[1]) if more else ""), address
                assert address != after
            names = {html.unescape(text) for text in texts}
            assert names == {named(name) for name in filled}, page
            assert len(names) == len(filled)

    visit(url, steps)


@pytest.mark.parametrize("tenant", ["default", TENANT])
def test_printed_commands_name_exactly_this_thread(url: str, tenant: str) -> None:
    names = dict.fromkeys([*NAMES[-2:], *map(shown, NAMES[-2:]), *PLAIN])
    with cs.Store.open(url, tenant=tenant) as store:
        for name in names:
            _fill(store, name)
            store.custody.hold(name, reason="a lawsuit")

    async def steps(client: Client) -> None:
        for name in names:
            certificate = await client.get("/certificate", params={"id": name, "pos": 6})
            records = await client.get("/records", params={"id": name, "actor": name})
            (exported,) = re.findall(r"<pre>(compaction-store export [^<]*?) &gt; thread", certificate.text)
            (listed,) = re.findall(r"<pre>(compaction-store compactions [^<]*)</pre>", records.text)
            for command in (exported, listed):
                assert _words(html.unescape(command))[-1] == name
            assert f"--actor={name}" in _words(html.unescape(listed))
            of = [] if tenant == "default" else _words(html.unescape(exported))
            assert tenant == "default" or f"--tenant={tenant}" in of

    visit(url, steps, tenant=tenant)


def _words(command: str) -> list[str]:
    """Returns the words that a shell makes of a command, in a locale without Unicode."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True,
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    return done.stdout.decode().split("\0")[:-1]
