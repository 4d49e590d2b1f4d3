"""Text that a user, a model or a framework chose: it is text on the page, and nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import compaction_store as cs
from web.audited import ADDRESSES, Client, known, visit

PAYLOADS = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'><svg/onload=alert(1)>",
    "</pre><script>1</script>",
    "javascript:alert(1)", '" autofocus onfocus="alert(1)', "{{ 7*7 }}{% raw %}", "</title><script>1</script>",
    "<!--", "]]><script>", "&lt;script&gt;", "\u202e\u2066gpj.exe\u200b", "\x1b]8;;http://evil\x07",
    "a\r\nSet-Cookie: x=1",
    "<meta http-equiv=refresh content='0;url=http://evil'>", "<base href=http://evil>",
    "<style>@import 'http://evil'</style>",
)  # fmt: skip
_ALLOWED = {
    "html", "head", "meta", "title", "link", "body", "a", "header", "nav", "ul", "li", "p", "b", "main", "footer", "h1",
    "h2", "h3", "h4", "div", "dl", "dt", "dd", "table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td", "form",
    "label", "input",
    "button", "select", "option", "svg", "image", "path", "figure", "figcaption", "span", "mark", "pre",
    "article", "section", "line", "rect", "text",
    "details", "summary", "strong", "code", "fieldset", "legend", "datalist",
}  # fmt: skip


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self.tags[tag] = self.tags.get(tag, 0) + 1
        assert tag in _ALLOWED, tag
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name not in ("style", "srcdoc", "formaction", "autofocus", "src"), name
            if name in ("href", "action"):
                assert value is not None
                assert value.startswith(("/", "#")), value
                assert not value.startswith("//"), value
            if tag == "meta":
                assert (name, value) in (("charset", "utf-8"), ("name", "viewport"), ("name", "referrer")) or (
                    name == "content" and value in ("width=device-width, initial-scale=1", "no-referrer")
                )


def test_hostile_text_stays_text_in_every_field(url: str) -> None:
    with cs.Store.open(url) as store:
        for number, payload in enumerate(PAYLOADS):
            _fill(store, payload, f"{number} {payload}")

    async def steps(client: Client) -> None:
        for number, payload in enumerate(PAYLOADS):
            name = f"{number} {payload}"
            for address, parameters in ADDRESSES:
                if address in ("/style.css", "/icon.svg", "/chart.svg"):
                    continue
                given = {**parameters, "id": name, "q": payload, "number": 1, "seq": 2, "pos": 7, "actor": payload}
                if address == "/view":
                    given |= {"at": 2, "beside": 3}
                answer = await client.get(address, params=known(address, given))
                assert answer.status_code in (200, 400, 404), (address, answer.status_code)
                _Reader().feed(answer.text)
                for hidden in "\u202e\u2066\u200b\x1b\x07":
                    assert hidden not in answer.text
            chart = await client.get("/chart.svg", params={"id": name})
            assert "<script" not in chart.text
            assert "onload=" not in chart.text.replace("&#x27;", "'").partition("<title>")[0]

    visit(url, steps)


def _fill(store: cs.Store, payload: str, name: str) -> None:
    content = [
        {"type": "text", "text": payload}, {"type": "image", "source": {"type": "url", "url": payload}},
        {"type": "tool_use", "id": payload, "name": payload, "input": {payload: payload}},
    ]  # fmt: skip
    result = {"type": "tool_result", "tool_use_id": payload, "content": payload}
    store.append(name, [
        {"role": "user", "content": payload, "name": payload},
        {"role": "assistant", "content": content, "id": payload * 9},
        {"role": "user", "content": [result]},
        {"role": "user", "content": payload},
    ], meta=[{payload: payload}] * 4)  # fmt: skip
    store.set_metadata(name, {"a": payload})

    def callback(ctx: cs.CompactionContext) -> None:
        made = cs.Summary(
            payload, summarizer=payload[:200], model=payload[:200], settings={payload: payload}, prompt=payload,
            usage={"input_tokens": 3},
        )  # fmt: skip
        ctx.compact(1, 3, made, reason=payload)

    store.compact(name, callback, actor=payload, authority={payload: payload})
    store.custody.hold(name, reason=payload, actor=payload)
    store.audit.review(name, 1, "bad", note=payload, sample={"seed": payload, payload: payload}, actor=payload)


def test_no_template_lets_text_through_unescaped() -> None:
    """Only these are HTML: the style sheet of a report, a file of the package; the chart, which escapes; and the
    marks around names, which escape too.
    """
    package = Path(cs.__file__).parent
    templates = [*package.rglob("*.html")]
    assert len(templates) > 10
    for template in templates:
        text = template.read_text()
        assert not re.search(r"\|\s*safe|autoescape|Markup|\|\s*forceescape|<script|<style>(?!\n{{ css }}\n)", text), (
            template
        )
    made = {
        file.name: file.read_text().count("Markup(") for file in package.rglob("*.py") if "Markup(" in file.read_text()
    }
    assert made == {"page.py": 2, "templates.py": 1}
    assert "autoescape=True" in (package / "audit" / "templates.py").read_text()


def test_a_tenant_and_every_filter_may_be_hostile(url: str) -> None:
    filters = ("id", "kind", "outcome", "actor", "login", "model", "callback", "trigger", "run_id", "covering",
               "authority", "since", "until", "after_id", "sample", "level", "seed", "count", "at")  # fmt: skip
    for payload in PAYLOADS[1:2]:
        with cs.Store.open(url, tenant=payload, actor=payload) as store:
            _fill(store, payload, payload)

        async def steps(client: Client, payload: str = payload) -> None:
            for address, parameters in ADDRESSES:
                for given in (parameters | {"id": payload}, {"id": payload, **dict.fromkeys(filters[1:], payload)},
                              *({"id": payload, name: payload} for name in filters)):  # fmt: skip
                    answer = await client.get(address, params=known(address, given))
                    assert answer.status_code in (200, 303, 400, 404), (address, given)
                    if address != "/style.css" and answer.headers["content-type"].startswith("text/html"):
                        _Reader().feed(answer.text)

        visit(url, steps, tenant=payload)
