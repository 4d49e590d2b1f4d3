"""Sealed texts in places where callers write in the clear, in other tenants, and in damaged rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.sealing import Keys

MARK = "Zaubernuss"
BUDGET = cs.TokenBudget(600, trigger=60, target=30)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.make(tmp_path / "keys")


@pytest.fixture
def sealed(faces: Faces, url: str, keys: Keys) -> Face:
    return faces.open(url, seal=keys)


def says(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"{MARK} {number} " + "and so on " * 9}


def summarizing(summary: str, usage: dict[str, Any]) -> Callable[[cs.CompactionContext], object]:
    return lambda ctx: ctx.compact(1, 2, cs.Summary(summary, usage=usage))


def boxes(faces: Faces, url: str, keys: Keys) -> list[dict[str, Any]]:
    """Returns boxes of another tenant, of this one, of a destroyed key, of an unknown key, and a torn one."""
    for tenant in ("victim", "default"):
        faces.open(url, seal=keys, tenant=tenant).append("elsewhere", says(7))
    found = [m.payload for tenant in ("victim", "default") for m in faces.open(url, tenant=tenant).replay("elsewhere")]
    gone = faces.open(url, seal=keys)
    gone.append("gone", says(8), subject="person 7")
    found += [m.payload for m in faces.open(url).replay("gone")]
    gone.custody.shred("person 7", reason="asked for")
    return [*found, {"role": "user", "sealed": "cs1." + "A" * 80}, {"sealed": "cs1.x"}]


def test_what_callers_write_in_the_clear_is_never_opened(sealed: Face, faces: Faces, url: str, keys: Keys) -> None:
    for number, box in enumerate(boxes(faces, url, keys)):
        name = f"t{number}"
        sealed.append(name, [says(n) for n in range(6)], actor=json.dumps(box)[:99])
        usage = {"usage": {"input_tokens": 3, "of": box, "sealed": box["sealed"]}}
        sealed.append(name, {"role": "assistant", "content": "x"} | usage, meta=usage)
        sealed.set_metadata(name, {"a": box, "sealed": box["sealed"]})
        authority = {"case": box, "sealed": box["sealed"]}
        sealed.compact(name, summarizing("s", usage["usage"]), actor="a", authority=authority)
        sealed.revoke(name, 1, authority=box)
        sealed.custody.hold(name, reason=json.dumps(box)[:500], authority=box)
        sealed.custody.release(name, reason="settled", authority={"sealed": box["sealed"]})
        [*_, last] = sealed.replay(name)
        assert (last.payload, last.meta) == ({"role": "assistant", "content": "x"} | usage, usage)
        assert sealed.thread(name).metadata == {"a": box, "sealed": box["sealed"]}
        made, revoked = sealed.compactions(name)
        assert (made.authority, made.usage) == (authority, usage["usage"])
        assert revoked.authority == box
        hold, release = [e for e in sealed.audit.events(name) if e.kind in ("hold", "release")]
        assert (hold.body["authority"], hold.body["reason"]) == (box, json.dumps(box)[:500])
        assert release.body["authority"] == {"sealed": box["sealed"]}
        assert sealed.view(name).elements


@pytest.mark.parametrize("name", ['x"sealed":"cs1.', '{"sealed":"cs1.AAAA"}', '{"role":"user","sealed":"cs1.x"}'])
def test_a_name_that_looks_like_a_box_is_a_name(sealed: Face, name: str) -> None:
    sealed.append(name, [says(n) for n in range(6)], actor=name, subject=name)
    sealed.set_metadata(name, {"who": MARK})
    sealed.fork(name, f"{name} fork")
    assert [t.thread_id for t in sealed.threads()] == sorted([name, f"{name} fork"])
    assert {t.thread_id for t in sealed.threads(order="recent")} == {name, f"{name} fork"}
    thread = sealed.thread(name)
    assert (thread.subject, thread.metadata) == (name, {"who": MARK})
    assert {m.actor for m in sealed.replay(name)} == {name}
    assert name in [t.thread_id for t in sealed.due(BUDGET)]


def test_the_metadata_of_due_threads_is_opened(sealed: Face) -> None:
    sealed.append("t", [says(n) for n in range(6)])
    sealed.set_metadata("t", {"who": MARK})
    [due] = sealed.due(BUDGET)
    assert due.metadata == {"who": MARK}


def test_a_box_of_another_tenant_does_not_open(faces: Faces, url: str, keys: Keys, sealed: Face) -> None:
    stolen, own, *_ = boxes(faces, url, keys)
    blind = faces.open(url)
    blind.append("own", own, raw=True)
    assert [m.payload for m in sealed.replay("own")] == [says(7)]
    blind.append("stolen", stolen, raw=True)
    with pytest.raises(cs.errors.Unreadable, match="does not fit its key and its tenant"):
        list(sealed.replay("stolen"))
    blind.append("none", says(1))
    blind.set_metadata("none", {"a": stolen, "b": {"sealed": "cs1.x"}, "c": 1})
    # Metadata that cannot be opened stops no list.
    metadata = {t.thread_id: t.metadata for t in sealed.threads()}
    assert metadata["none"] == {"a": stolen, "b": {"sealed": "cs1.x"}, "c": 1}


def test_what_an_open_store_wrote_stays_as_it_is(faces: Faces, url: str, sealed: Face) -> None:
    blind = faces.open(url)
    message = {"role": "user", "content": MARK, "sealed": "cs1.AAAA"}
    blind.append("t", [message, says(1), says(2)], raw=True, meta={"usage": {"sealed": "cs1.AAAA"}})
    blind.compact("t", lambda ctx: ctx.compact(2, 3, "s"), authority={"sealed": "cs1.AAAA"})
    assert [m.payload for m in sealed.replay("t")] == [message, says(1), says(2)]
    assert [m.meta for m in sealed.replay("t")] == [{"usage": {"sealed": "cs1.AAAA"}}] * 3
    assert sealed.view("t").elements[0].messages == (message,)
    assert [c.authority for c in sealed.compactions("t")] == [{"sealed": "cs1.AAAA"}]


def test_only_numbers_of_tokens_stay_in_the_clear(
    sealed: Face, superuser: psycopg.Connection[Any], faces: Faces, url: str
) -> None:
    usage = {
        "input_tokens": 900, "output_tokens": 3, "service_tier": MARK, "cost": 0.5, MARK: 4, "negative_tokens": -1,
        "details": {"text": MARK, "cached_tokens": 5},
    }  # fmt: skip
    message = {"role": "assistant", "content": MARK, "usage": usage}
    sealed.append("t", [says(0), message, says(2)], meta={"usage": usage})
    sealed.compact("t", summarizing(MARK, usage))
    seen = [str(row) for table in ("messages", "compactions") for row in superuser.execute(
        f"SELECT t::text FROM compaction_store.{table} AS t".encode()
    )]  # fmt: skip
    assert seen
    assert MARK not in "".join(seen)
    clear = {"input_tokens": 900, "output_tokens": 3}
    stored = list(faces.open(url).replay("t"))
    assert (stored[1].payload or {})["usage"] == (stored[1].meta or {})["usage"] == clear
    assert [c.usage for c in faces.open(url).compactions("t")] == [clear]
    assert [m.payload for m in sealed.replay("t")][1] == message
    assert [m.meta for m in sealed.replay("t")] == [{"usage": usage}] * 3
    assert [c.usage for c in sealed.compactions("t")] == [usage]


def test_a_message_comes_back_byte_for_byte(sealed: Face) -> None:
    message = {"content": "é 1", "usage": {"b": 1, "a": 2.50}, "role": "assistant"}
    sealed.append("t", message, raw=True)
    [stored] = sealed.replay("t")
    assert stored.text == json.dumps(message, separators=(",", ":"), ensure_ascii=False)
    assert sealed.load.messages("loaded", [message], key="k").added == 1
    assert sealed.load.messages("loaded", [message], key="k").added == 0
