"""A search finds a text anywhere in a tenant's threads, in any form, and everything that an erasure would erase."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.deploy import roles

NAME = "Ánn Smith-Müller"


def places(found: Any) -> list[tuple[str, str, int | None]]:
    return [(f.thread_id, f.kind, f.seq or f.number) for f in found]


MESSAGES: dict[str, dict[str, Any]] = {
    "plain": {"role": "user", "content": f"I am {NAME}, of 7 Elm Street."},
    "another case": {"role": "user", "content": NAME.upper()},
    "parted by lines": {"role": "user", "content": "Ánn\n   Smith-Müller"},
    "another normal form": {"role": "user", "content": "A\u0301nn Smith-Mu\u0308ller"},
    "with characters that nobody sees": {"role": "user", "content": "Á\u00adnn Sm\u200bith-Müller"},
    "wide letters": {"role": "user", "content": "Ánn Ｓｍｉｔｈ-Müller"},  # noqa: RUF001
    "in blocks": {"role": "assistant", "content": [{"type": "text", "text": w} for w in NAME.split()]},
    "in a call": {
        "role": "assistant", "content": None,
        "tool_calls": [{
            "id": "c1", "type": "function",
            "function": {"name": "find", "arguments": json.dumps({"who": json.dumps({"name": NAME})})},
        }],
    },
    "in a field of its own": {"role": "user", "content": "hello", "name": NAME},
    "as the name of a field": {"role": "user", "content": "hello", "scores": {NAME: 3}},
}  # fmt: skip


@pytest.mark.parametrize("how", MESSAGES)
def test_a_text_is_found_however_it_is_written(store: Face, how: str) -> None:
    store.append("t", [{"role": "user", "content": "Ann or Smith, and Müller"}, MESSAGES[how]])
    assert places(store.audit.search("ánn smith-müller")) == [("t", "message", 2)]
    assert places(store.audit.search("Ánn  SMITH-MÜLLER", thread_id="t")) == [("t", "message", 2)]
    assert places(store.audit.search("Peter")) == []


def test_it_is_found_in_meta_records_and_metadata_of_every_thread(store: Face) -> None:
    for thread in ("a", "b", "c"):
        store.append(thread, [{"role": "user", "content": "x " * 90}, {"role": "assistant", "content": "y " * 90}] * 2)
    store.append("a", {"role": "user", "content": "hello"}, meta={"from": NAME})
    store.compact("b", lambda ctx: ctx.compact(1, 2, f"They spoke with {NAME}."))
    store.set_metadata("c", {"customer": NAME})
    assert places(store.audit.search(NAME)) == [("a", "message", 5), ("b", "compaction", 1), ("c", "metadata", None)]
    assert places(store.audit.search(NAME, after="a")) == [("b", "compaction", 1), ("c", "metadata", None)]


def test_what_is_erased_is_not_found_and_other_tenants_are_not_looked_at(faces: Faces, url: str) -> None:
    store, other = faces.open(url), faces.open(url, tenant="other")
    other.append("t", MESSAGES["plain"])
    store.append("t", [MESSAGES["plain"], MESSAGES["in blocks"]])
    store.append("u", MESSAGES["plain"])
    store.custody.redact("t", [f.seq for f in store.audit.search(NAME, thread_id="t")][:1], reason="asked for")
    store.custody.erase("u", reason="asked for")
    assert places(store.audit.search(NAME)) == [("t", "message", 2)]


def test_long_threads_are_read_in_pages(store: Face) -> None:
    for start in range(0, 5000, 1000):
        store.append("t", [{"role": "user", "content": f"message {start + i} of many"} for i in range(1000)])
    assert places(store.audit.search("message 4711 of")) == [("t", "message", 4712)]


@pytest.mark.parametrize(
    ("text", "given"),
    [("", "none"), ("  \n", "none"), ("\u200b", "none"), (5, "int"), (None, "NoneType"), ("x" * 1001, "1,001")],
)
def test_what_is_no_text_is_refused(store: Face, text: Any, given: str) -> None:
    with pytest.raises(cs.InvalidInput, match=f"text must be 1 to 1,000 visible characters, not {given}$"):
        list(store.audit.search(text))


def test_no_content_is_in_what_a_match_shows_of_itself(store: Face) -> None:
    store.append("t", MESSAGES["plain"])
    [found] = store.audit.search(NAME)
    assert "elm" not in repr(found)
    assert "elm street" in found.excerpt


@pytest.mark.alters_roles
@pytest.mark.parametrize("role", ["application", "auditor"])
def test_every_login_that_may_read_may_search(
    store: Face, faces: Faces, superuser_url: str, superuser: psycopg.Connection[Any], role: Any
) -> None:
    store.append("t", MESSAGES["in a call"])
    superuser.execute("CREATE ROLE cs_searcher LOGIN PASSWORD 'x'")
    try:
        roles.grant(superuser_url, "cs_searcher", role)
        login = (
            sa.make_url(superuser_url).set(username="cs_searcher", password="x").render_as_string(hide_password=False)
        )
        assert places(faces.open(login).audit.search(NAME)) == [("t", "message", 1)]
    finally:
        superuser.execute("DROP OWNED BY cs_searcher")
        superuser.execute("DROP ROLE cs_searcher")


def test_a_dry_run_says_what_an_erasure_would_take_and_writes_nothing(store: Face) -> None:
    store.append("t", [{"role": "user", "content": "x " * 90}, {"role": "assistant", "content": "y " * 90}] * 4)
    store.compact("t", lambda ctx: ctx.compact(1, 2, "one"))
    store.compact("t", lambda ctx: ctx.compact(1, 4, "two, of one"))
    store.compact("t", lambda ctx: ctx.compact(5, 6, "three"))
    before = store.thread("t")
    would = store.custody.redact("t", [1, 7], reason="asked for", dry_run=True)
    assert (would.pos, would.seqs, would.records) == (None, (1, 7), (1, 2))
    whole = store.custody.erase("t", reason="asked for", dry_run=True)
    assert (whole.pos, whole.seqs, whole.records) == (None, tuple(range(1, 9)), (1, 2, 3))
    assert store.thread("t") == before
    assert list(store.audit.events("t")) == []
    assert [m.payload is None for m in store.replay("t")] == [False] * 8
    done = store.custody.redact("t", [1, 7], reason="asked for")
    assert (done.seqs, done.records) == (would.seqs, would.records)
    assert store.custody.redact("t", [1, 7], reason="asked for", dry_run=True).seqs == ()


def test_a_dry_run_is_refused_where_the_erasure_would_be(faces: Faces, url: str) -> None:
    store = faces.open(url, require_actor=True)
    store.append("t", {"role": "user", "content": "hello"}, actor="agent")
    with pytest.raises(cs.MessageNotFound):
        store.custody.redact("t", 2, reason="x", dry_run=True)
    store.custody.hold("t", reason="claim", actor="counsel")
    with pytest.raises(cs.Held):
        store.custody.redact("t", 1, reason="x", dry_run=True)
    with pytest.raises(cs.Held):
        store.custody.erase("t", reason="x", dry_run=True)
    assert store.custody.redact("t", 1, reason="x", override="order", dry_run=True).seqs == (1,)
