"""Two hundred payloads, in every field that a user, a model or a framework can fill, stay text in a real browser."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Browser, BrowserContext, Dialog, Page, Request

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
            ("thread", {}), ("record", {"number": 1}), ("view", {"at": 3, "beside": 4}), ("message", {"seq": 2}),
            ("certificate", {"pos": 5}), ("reply", {"seq": 3}),
        ]  # fmt: skip
        # All fields are on these pages; a part of them at a time keeps the run short.
        for address, parameters in addresses if number % 5 == 0 else addresses[number % 3 : number % 3 + 2]:
            check(page, f"/{address}?{urlencode({'id': name, **parameters})}")
            looked += 1
        if number % 10 == 0:
            check(page, f"/search?{urlencode({'q': payload[:100]})}")
            check(page, f"/records?{urlencode({'actor': payload})}")
            check(page, f"/?{urlencode({'after': name})}")
    assert looked > 500
    assert not dialogs
    assert not elsewhere


def check(page: Page, address: str) -> None:
    answer = page.goto(address)
    assert answer is not None
    assert answer.status == 200, address
    assert page.evaluate("window.ran") is None, address
    assert page.evaluate(_COUNTED) == 0, address


def fill(store: cs.Store, name: str, payload: str) -> None:
    content = [{"type": "text", "text": payload}, {"type": "image", "source": {"type": "url", "url": payload}}]
    long = f"{payload} and more words, so that a summary is shorter " * 4
    store.append(
        name,
        [
            {"role": "user", "content": long, "name": payload},
            {"role": "assistant", "content": content, "id": payload},
        ],
        meta=[{payload: payload}] * 2,
    )
    store.append(name, {"role": "assistant", "content": payload}, view=store.view(name))
    store.set_metadata(name, {payload: payload})
    store.compact(
        name, lambda ctx: ctx.compact(1, 2, payload, reason=payload), actor=payload[:200], authority={payload: payload}
    )
    store.hold(name, reason=payload, actor=payload[:200])


def test_a_report_of_them_is_as_inert(browser: Browser, url: str, store: cs.Store, tmp_path: Path) -> None:  # noqa: ARG001 — the database
    names = [f"{number} {payload}"[:200] for number, payload in enumerate(PAYLOADS)]
    for name, payload in zip(names, PAYLOADS, strict=True):
        fill(store, name, payload)
    file = tmp_path / "report.html"
    document = gather(store, names, tenant=PAYLOADS[0], made_by=PAYLOADS[1])
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
