"""Stores with keys: nothing that was said leaves the process in the clear, and without its key nothing opens it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces
from support.paths import ROOT

import compaction_store as cs
from compaction_store.sealing import Keys, owner_of
from compaction_store.sealing.keys import ENVIRONMENT
from compaction_store.sealing.seals import Seals

MARK = "Zaubernuss"


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.make(tmp_path / "keys")


@pytest.fixture
def sealed(faces: Faces, url: str, keys: Keys) -> Face:
    return faces.open(url, seal=keys)


def says(number: int) -> dict[str, Any]:
    return {"role": "assistant" if number % 2 else "user", "content": f"{MARK} {number} " + "and so on " * 30}


def fill(store: Face) -> None:
    """Writes in every way that a store has, with the mark in every text."""
    store.append("t", [says(n) for n in range(8)], meta={"note": MARK})
    view = store.view("t").for_openai()
    answer = {"role": "assistant", "content": MARK, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": json.dumps({"for": MARK})}},
    ]}  # fmt: skip
    store.append("t", answer, view=view, meta={"usage": {"input_tokens": 900}, "note": MARK})
    store.append("t", {"role": "tool", "tool_call_id": "c1", "content": f"{MARK} found"})
    store.compact("t", lambda ctx: ctx.compact(1, 4, f"{MARK}: short", reason=MARK), actor="a")
    store.compact("t", lambda ctx: ctx.compact(5, 6, f"{MARK} " * 900), actor="a")
    store.compact("t", lambda ctx: ctx.replace(7, 7, [{"role": "user", "content": MARK}]), actor="a")
    store.revoke("t", 1, reason=MARK)
    store.load.messages("loaded", [says(n) for n in range(30)], key="k")
    list(store.load.threads([(f"many {n}", [says(n)]) for n in range(3)]))
    store.set_metadata("t", {"who": MARK})
    store.fork("t", "fork", reason=MARK)
    store.append("fork", says(9))
    store.rewind("fork", 9, reason=MARK)
    store.custody.hold("t", reason=MARK, authority={"case": "X-1"})
    store.custody.release("t", reason=MARK)
    store.custody.redact("t", 3, reason="asked for", authority={"case": "X-1"})


def contents(superuser: psycopg.Connection[Any]) -> str:
    """Returns every row of every table of the schema as text."""
    tables = superuser.execute(
        "SELECT c.oid::regclass::text FROM pg_class AS c WHERE c.relkind = 'r'"
        " AND c.relnamespace = 'compaction_store'::regnamespace"
    ).fetchall()
    return "\n".join(
        str(row) for (table,) in tables for row in superuser.execute(f"SELECT t::text FROM {table} AS t".encode())
    )


def seen(store: Face) -> dict[str, Any]:
    """Returns what readers of the threads get."""
    return {
        "replay": {
            name: [(m.payload, m.meta) for m in store.replay(name)] for name in ("t", "loaded", "fork", "many 1")
        },
        "view": {name: [e.messages for e in store.view(name).elements] for name in ("t", "loaded", "fork")},
        "records": [(c.kind, c.outcome, c.summary_text, c.reason) for c in store.compactions("t")],
        "events": [(e.kind, e.body) for e in store.audit.events("t")],
        "metadata": store.thread("t").metadata,
    }


def test_no_table_has_a_word_and_readers_get_what_an_open_store_gives(
    sealed: Face, faces: Faces, other_url: str, superuser: psycopg.Connection[Any]
) -> None:
    fill(sealed)
    plain = faces.open(other_url)
    fill(plain)
    assert MARK not in contents(superuser)

    def comparable(found: dict[str, Any]) -> dict[str, Any]:
        # The frame of a note has random digits, and a fork names the key of its parent.
        return json.loads(_changing(json.dumps(found, default=str)))  # type: ignore[no-any-return]

    assert comparable(seen(sealed)) == comparable(seen(plain))
    assert [(f.thread_id, f.seq, f.number) for f in sealed.audit.search(MARK)] == [
        (f.thread_id, f.seq, f.number) for f in plain.audit.search(MARK)
    ]


def _changing(text: str) -> str:
    return re.sub(r"notes-\d+|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{64}", "…", text)


def test_verifying_exporting_and_importing_need_no_key(sealed: Face, faces: Faces, url: str, tmp_path: Path) -> None:
    fill(sealed)
    blind = faces.open(url)
    for store in (sealed, blind):
        assert [f.what for report in store.audit.verify() for f in report.findings] == []
        lines = list(store.audit.export("t"))
        assert MARK.encode() not in b"".join(lines)
    file = tmp_path / "t.jsonl"
    file.write_bytes(b"".join(lines))
    offline = ROOT / "compaction_store" / "offline.py"
    checked = subprocess.run([sys.executable, offline, file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_bundle_is_opened_where_the_keys_are(sealed: Face, faces: Faces, other_url: str, keys: Keys) -> None:
    fill(sealed)
    lines = list(sealed.audit.export("t"))
    other = faces.open(other_url, seal=keys)
    other.load.bundle(lines)
    assert [m.payload for m in other.replay("t")] == [m.payload for m in sealed.replay("t")]
    assert other.thread("t").metadata == {"who": MARK}


def test_without_keys_a_view_is_refused_and_a_replay_is_what_is_stored(sealed: Face, faces: Faces, url: str) -> None:
    fill(sealed)
    blind = faces.open(url)
    with pytest.raises(cs.errors.NotConfigured, match="is sealed"):
        blind.view("loaded")
    with pytest.raises(cs.errors.NotConfigured, match="is sealed"):
        blind.compact("loaded", lambda ctx: ctx.compact(1, 3, "x"))
    stored = [m.payload for m in blind.replay("loaded")]
    assert all(set(payload) == {"role", "sealed"} for payload in stored)


def test_other_keys_are_a_clear_error_and_nothing_looks_erased(
    sealed: Face, faces: Faces, url: str, tmp_path: Path
) -> None:
    fill(sealed)
    stranger = faces.open(url, seal=Keys.make(tmp_path / "other"))
    with pytest.raises(cs.errors.NotConfigured, match="does not have"):
        stranger.view("loaded")
    with pytest.raises(cs.errors.NotConfigured, match="does not have"):
        list(stranger.replay("loaded"))


def test_a_destroyed_key_leaves_nothing_and_the_chain_still_verifies(sealed: Face, keys: Keys) -> None:
    fill(sealed)
    assert keys.destroy(owner_of("default", thread_id="loaded"))
    assert [(m.payload, m.meta) for m in sealed.replay("loaded")] == [(None, None)] * 30
    assert all(e.is_erased for e in sealed.view("loaded").elements)
    assert sealed.replay("t").__next__().payload == says(0)
    assert [f.what for report in sealed.audit.verify() for f in report.findings] == []
    assert not keys.destroy(owner_of("default", thread_id="loaded"))
    # The name lives on, with a new key.
    sealed.append("loaded", says(1))
    assert [m.payload for m in sealed.replay("loaded", last=1)] == [says(1)]


def test_a_destroyed_key_is_gone_in_other_processes_too(
    sealed: Face, faces: Faces, url: str, tmp_path: Path, keys: Keys
) -> None:
    sealed.append("t", says(0))
    other = faces.open(url, seal=Keys(tmp_path / "keys"))
    assert [m.payload for m in other.replay("t")] == [says(0)]
    keys.destroy(owner_of("default", thread_id="t"))
    assert [m.payload for m in other.replay("t")] == [None]


def test_a_repeated_write_is_recognized(sealed: Face) -> None:
    first = sealed.append("t", [says(0), says(1)], key="k")
    again = sealed.append("t", [says(0), says(1)], key="k")
    assert [m.seq for m in again] == [m.seq for m in first]
    assert again.head == first.head
    with pytest.raises(cs.IdempotencyConflict):
        sealed.append("t", [says(0), says(2)], key="k")
    assert sealed.load.messages("l", [says(n) for n in range(20)], key="l").added == 20
    assert sealed.load.messages("l", [says(n) for n in range(25)], key="l").added == 5
    with pytest.raises(cs.IdempotencyConflict):
        sealed.load.messages("l", [says(n + 1) for n in range(25)], key="l")


def test_a_changed_box_is_found_and_never_shown(sealed: Face, superuser: psycopg.Connection[Any]) -> None:
    sealed.append("t", [says(0), says(1)])
    superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER USER")
    [_, (second,)] = superuser.execute(
        "SELECT payload ->> 'sealed' FROM compaction_store.messages ORDER BY seq"
    ).fetchall()
    changed = second[:-8] + ("AAAA" if second[-8:-4] != "AAAA" else "BBBB") + second[-4:]
    superuser.execute(
        "UPDATE compaction_store.messages SET payload = replace(payload::text, %s, %s)::json WHERE seq = 2",
        (second, changed),
    )
    assert sealed.audit.verify("t").findings
    with pytest.raises(cs.errors.Unreadable, match="does not fit its key"):
        sealed.view("t")


def test_reported_usage_still_measures_the_view(sealed: Face) -> None:
    sealed.append("t", [says(n) for n in range(12)])
    view = sealed.view("t").for_openai()
    sealed.append("t", says(13), view=view, meta={"usage": {"input_tokens": 4321, "output_tokens": 5}})
    measured: list[int] = []
    sealed.compact(
        "t", lambda ctx: measured.append(ctx.measured.tokens), budget=cs.TokenBudget(9000, trigger=100, target=50)
    )
    assert measured[0] > 4321 > 2 * sealed.view("t").tokens


def test_a_text_that_only_fits_unsealed_is_refused_before_it_is_sent(sealed: Face) -> None:
    with pytest.raises(cs.errors.MessageTooLarge, match="when it is sealed"):
        sealed.append("t", {"role": "user", "content": "x" * (14 * 1024 * 1024)})
    with pytest.raises(cs.errors.InvalidMeta, match="when it is sealed"):
        sealed.append("t", says(0), meta={"note": "x" * 7000})
    assert list(sealed.threads()) == []


@pytest.mark.parametrize("text", ["\ud800 alone", "\x00", "\u2028", "😀", '"sealed":"cs1.', "\\u0000"])
def test_any_text_comes_back_as_it_was(sealed: Face, text: str) -> None:
    message = (
        {"role": "user", "content": text, "sealed": "cs1.abc"}
        if "sealed" in text
        else {"role": "user", "content": text}
    )
    sealed.append("t", message, raw=True)
    sealed.append("t", {"content": text}, raw=True)
    assert [m.payload for m in sealed.replay("t")] == [message, {"content": text}]


def test_the_environment_names_the_keys(
    faces: Faces, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    superuser: psycopg.Connection[Any],
) -> None:  # fmt: skip
    Keys.make(tmp_path / "keys")
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "keys"))
    faces.open(url).append("t", says(0))
    assert MARK not in contents(superuser)
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "missing"))
    with pytest.raises(cs.errors.InvalidInput, match="must be a folder of keys"):
        faces.open(url)


def test_threads_of_a_subject_share_a_key_and_lose_it_together(sealed: Face, keys: Keys) -> None:
    sealed.append("a", says(0), subject="person 7")
    sealed.load.messages("b", [says(n) for n in range(3)], subject="person 7")
    list(sealed.load.threads([("c", [says(1)]), ("d", [says(2)])], subject="person 7"))
    sealed.append("e", says(0))
    sealed.append("a", says(2))
    sealed.fork("a", "f")
    sealed.append("f", says(4))
    with pytest.raises(cs.errors.InvalidInput, match="first append"):
        sealed.custody.set_subject("e", "person 7")
    keys.destroy(owner_of("default", "person 7"))
    for name in "abcdf":
        assert {m.payload is None for m in sealed.replay(name)} == {True}, name
    assert [m.payload for m in sealed.replay("e")] == [says(0)]


def test_shredding_a_subject_erases_its_threads_and_its_key_and_is_an_event(
    sealed: Face, faces: Faces, url: str, keys: Keys, superuser: psycopg.Connection[Any]
) -> None:
    for name in "abc":
        sealed.append(name, [says(n) for n in range(4)], subject="person 7")
    sealed.append("other", says(1), subject="person 8")
    before = [m.payload for m in faces.open(url).replay("a")]
    sealed.custody.hold("b", reason="claim")
    with pytest.raises(cs.Conflict, match="1 threads of the subject were kept"):
        sealed.custody.shred("person 7", reason="asked for")
    assert keys.id_of(owner_of("default", "person 7")) is not None
    sealed.custody.release("b", reason="settled")
    event = sealed.custody.shred("person 7", reason="asked for", legal_basis="Art. 17 GDPR", actor="desk")
    assert (event.kind, event.actor, event.body["legal_basis"]) == ("shred", "desk", "Art. 17 GDPR")
    assert keys.id_of(owner_of("default", "person 7")) is None
    # A copy that was made before cannot be opened.
    boxes = [Seals(keys, "default").opened_message(json.dumps(payload)) for payload in before]
    assert boxes == [None] * 4
    assert "person 7" not in contents(superuser)
    [erased] = [
        e
        for e in sealed.audit.events(next(t.thread_id for t in sealed.threads() if t.erased_pos))
        if e.kind == "redaction"
    ]
    assert erased.body["reason"] == "asked for"
    assert [m.payload for m in sealed.replay("other")] == [says(1)]
    assert [f.what for report in sealed.audit.verify() for f in report.findings] == []
    with pytest.raises(cs.NotConfigured, match="seal=Keys"):
        faces.open(url).custody.shred("person 8", reason="asked for")
