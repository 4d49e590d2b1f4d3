"""Claude Code itself: what a session's file says that the model was sent is what the stub of the API received."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sessions
from claude_program import Claude, program
from support.faces import Face

import compaction_store as cs
from compaction_store.importers import ThreadImported, import_into, open_source
from compaction_store.rendering import agent_requests, given

PAGE = Path(__file__).parents[2] / "docs" / "imports.md"


@pytest.fixture(scope="module")
def claude(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Claude]:
    yield from sessions.written(tmp_path_factory.mktemp("claude"))


@pytest.fixture
def imported(claude: Claude, store: Face) -> list[ThreadImported]:
    if store.runner is not None:
        pytest.skip("the importers' tests try both kinds of store")
    return list(import_into(store.store, claude.projects))


def without_marks(value: Any) -> Any:
    """Returns JSON without the marks for the cache, and with each text of a message as one block."""
    if isinstance(value, list):
        return [without_marks(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: without_marks(each) for name, each in value.items() if name != "cache_control"}
    return agent_requests.normal(found) if "role" in found else found


def replies(store: Face, imported: list[ThreadImported]) -> Iterator[tuple[str, cs.Message]]:
    for thread in imported:
        for message in store.replay(thread.thread_id):
            if message.role == "assistant" and message.payload and message.payload.get("model") != "<synthetic>":
                yield thread.thread_id, message


def test_nothing_in_the_sessions_is_unknown(claude: Claude, imported: list[ThreadImported]) -> None:
    assert len(claude.sessions) >= len(sessions.SESSIONS)
    assert [(t.thread_id, t.unknown) for t in imported if t.unknown] == []
    assert [t.thread_id for t in imported if not t.is_recognised or t.skipped or t.refused] == []
    lines = {t.thread_id: t.loaded.count for t in imported if t.loaded and t.thread_id.endswith("/lines")}
    files = sorted(claude.projects.rglob("*.jsonl"))
    assert sorted(lines.values()) == sorted(len(file.read_bytes().splitlines()) for file in files)


def test_each_reply_was_written_from_what_the_stub_received(
    claude: Claude, store: Face, imported: list[ThreadImported]
) -> None:
    seen_ids = set()
    for thread_id, reply in replies(store, imported):
        assert reply.payload is not None
        body = claude.stub.requests[reply.payload["id"]]
        seen = store.seen_by(thread_id, reply.seq)
        assert (seen.evidence, seen.where) == ("proved", None)
        assert seen.messages is not None
        assert [agent_requests.normal(m) for m in seen.messages] == without_marks(body["messages"])
        assert seen.receipt is not None
        assert seen.receipt["tools"] == given.digest(without_marks(body["tools"]))
        seen_ids.add(reply.payload["id"])
    # The request for a summary is not in the file, and the summary is a message of the user there.
    others = [body for reply, body in claude.stub.requests.items() if reply not in seen_ids]
    assert all("detailed summary" in json.dumps(body["messages"]) for body in others)
    assert len(seen_ids) > 50


def test_a_message_typed_while_a_tool_ran_is_there_as_typed_and_as_the_model_saw_it(
    store: Face, imported: list[ThreadImported]
) -> None:
    typed = {
        message.payload["content"]: message
        for thread in imported
        for message in store.replay(thread.thread_id)
        if message.meta and "rendered" in message.meta
    }
    assert typed.keys() == {"Stop! Never touch the production database.", "First: mind order C-3.", "Second: and C-4."}
    for said, message in typed.items():
        assert said in message.meta["rendered"][0]


def test_an_agents_file_is_a_thread_of_its_session(store: Face, imported: list[ThreadImported]) -> None:
    agents = [t for t in imported if re.search("/agent-[0-9a-f]+$", t.thread_id)]
    assert len(agents) == 3
    sessions_of = {t.thread_id for t in imported if "/" not in t.thread_id}
    assert {t.thread_id.rpartition("/")[0] for t in agents} <= sessions_of
    for agent in agents:
        first = next(iter(store.replay(agent.thread_id)))
        assert first.payload["content"] == "RUN-TOOL and report"


@pytest.mark.usefixtures("imported")
def test_what_is_stored_is_bounded(claude: Claude, url: str) -> None:
    size = sum(file.stat().st_size for file in claude.projects.rglob("*.jsonl"))
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_total_relation_size('compaction_store.messages')").fetchone()
    assert row is not None
    assert row[0] <= 1.3 * size, row[0] / size


def test_the_page_names_the_version_that_was_tried() -> None:
    version = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True).stdout.split()[0]
    assert f"Claude Code {version}" in PAGE.read_text(encoding="utf-8")


def test_a_source_can_be_read_again_without_its_lines(claude: Claude) -> None:
    ids = [thread.source_id for thread in open_source(claude.projects, lines=False).threads()]
    assert not [name for name in ids if name.endswith("/lines")]
