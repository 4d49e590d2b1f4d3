"""Codex itself: what its traces say that the model was sent is what the stub of the API received."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from codex_program import Codex, program
from stub_openai import StubOpenAI
from support.faces import Face

import compaction_store as cs
from compaction_store.importers import ThreadImported, import_into
from compaction_store.rendering import given

PAGE = Path(__file__).parents[2] / "docs" / "imports.md"
_HELLO = "echo hello-from-tool"


def _lived(codex: Codex) -> str:
    """Lives a session with tools, resumes, compactions between turns and in a turn, and a subagent."""
    stub = codex.stub
    stub.planned.append(stub.call("exec_command", cmd=_HELLO))
    session = codex.exec("Which orders are late?")
    codex.exec("resume", session, "And order A-17? 17 € 🙂")
    stub.usage = 50_000
    codex.exec("resume", session, "A long answer, please.")
    # Each answer fills the window, so the call of the tool is followed by a compaction in the turn.
    stub.planned.append(stub.call("exec_command", cmd=_HELLO))
    codex.exec("resume", session, "After the first compaction.")
    stub.usage = 1_000
    codex.exec("resume", session, "After the last one.")
    stub.planned.append(stub.call("spawn_agent", message="Look at order B-9.") | {"namespace": "multi_agent_v1"})
    codex.exec("resume", session, "Let somebody look.")
    return session


@pytest.fixture(scope="module", params=["stub", "OpenAI"])
def codex(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Codex]:
    with StubOpenAI() as stub:
        made = Codex(program(), tmp_path_factory.mktemp("codex"), stub, provider=request.param)
        session = _lived(made)
        made.exec("fork", session, "In the fork.")
        made.revert(session)
        made.exec("resume", session, "After the revert.")
        yield made


@pytest.fixture
def imported(codex: Codex, store: Face) -> list[ThreadImported]:
    if store.runner is not None:
        pytest.skip("the importers' tests try both kinds of store")
    return list(import_into(store.store, codex.sessions, traces=str(codex.traces)))


def replies(store: Face, imported: list[ThreadImported]) -> Iterator[tuple[str, cs.Message]]:
    for thread in imported:
        if "/" in thread.source_id:
            continue
        for message in store.replay(thread.thread_id):
            item = message.payload or {}
            is_summary = (message.meta or {}).get("is_compact_summary")
            if not is_summary and (item.get("role") == "assistant" or item["type"] == "function_call"):
                yield thread.thread_id, message


def test_nothing_in_the_rollouts_is_unknown(codex: Codex, imported: list[ThreadImported]) -> None:
    assert [(t.thread_id, t.unknown, t.hint) for t in imported if t.unknown or t.hint] == []
    assert [t.thread_id for t in imported if t.skipped or t.refused] == []
    counts = [t.loaded.count for t in imported if t.loaded and t.thread_id.endswith("/lines")]
    assert sorted(counts) == sorted(len(file.read_bytes().splitlines()) for file in codex.rollouts)
    # The session, its fork, its revert, and its subagent.
    assert len(codex.rollouts) == len([t for t in imported if "/" not in t.source_id]) == 4


def test_each_reply_was_written_from_what_the_stub_received(
    codex: Codex, store: Face, imported: list[ThreadImported]
) -> None:
    received = [body for _, body in codex.stub.requests]
    answered = set()
    for thread_id, reply in replies(store, imported):
        seen = store.seen_by(thread_id, reply.seq)
        assert (seen.evidence, seen.where) == ("proved", None), (thread_id, reply.seq)
        assert seen.receipt is not None
        found = [number for number, body in enumerate(received) if body["input"] == seen.messages]
        assert len(found) == 1
        assert seen.receipt["tools"] == given.digest(received[found[0]]["tools"])
        answered.add(found[0])
    others = [body["input"] for number, body in enumerate(received) if number not in answered]
    # The requests for summaries are no replies in the rollout. The subagent may have been stopped before its reply.
    asked = [
        body
        for body in others
        if body[-1]["type"] == "compaction_trigger" or "CONTEXT CHECKPOINT" in json.dumps(body[-1])
    ]
    assert len(asked) >= 3
    assert len(others) - len(asked) <= 1
    assert len(answered) >= 9


@pytest.mark.usefixtures("imported")
def test_without_traces_the_view_is_reconstructed(codex: Codex, store: Face) -> None:
    again = [t for t in import_into(store.store, codex.sessions, prefix="no traces:") if "/" not in t.source_id]
    found = {store.seen_by(name, reply.seq).evidence for name, reply in replies(store, again)}
    assert found == {"reconstructed"}


def test_a_compaction_that_is_adopted_gives_the_view_of_the_next_request(
    store: Face, imported: list[ThreadImported]
) -> None:
    thread_id = imported[0].thread_id
    records = [record for record in store.compactions(thread_id) if record.outcome == "observed"]
    assert len(records) >= 2
    last = records[-1]
    assert last.end_seq is not None
    store.adopt(thread_id, last)
    reply = next(r for name, r in replies(store, imported) if name == thread_id and r.seq > last.end_seq)
    seen = store.seen_by(thread_id, reply.seq)
    assert seen.messages is not None
    view = [json.dumps(message, sort_keys=True) for message in store.view(thread_id).messages]
    for item in seen.messages:
        if item["type"] == "compaction" or item["role"] == "user":
            assert _plain(item) in [_plain(json.loads(each)) for each in view]


def _plain(item: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in item.items() if name not in ("id", "internal_chat_message_metadata_passthrough")
    }


@pytest.mark.usefixtures("imported")
def test_what_is_stored_is_bounded(codex: Codex, url: str) -> None:
    files = [*codex.rollouts, *(file for file in codex.traces.rglob("*") if file.is_file())]
    size = sum(file.stat().st_size for file in files)
    # Without indexes and the free space in pages, of which a small table has more than content.
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT sum(pg_column_size(payload) + coalesce(pg_column_size(meta), 0) + pg_column_size(entry))"
            " FROM compaction_store.messages"
        ).fetchone()
    assert row is not None
    assert row[0] <= 1.3 * size, row[0] / size


def test_the_page_names_the_version_that_was_tried() -> None:
    version = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    assert f"Codex {version}" in PAGE.read_text(encoding="utf-8")
