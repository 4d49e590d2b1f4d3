"""Sessions of Claude Code are watched, deleted and restored, and the program goes on from them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from claude_program import Claude, program
from stub_anthropic import Stub

import compaction_store as cs


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[Claude]:
    stub = Stub()
    try:
        made = Claude(program(), tmp_path, stub)
        made.stream(["ASK-AGENT first", "RUN-TOOL and READ-FILE", "/compact", "What now?"])
        yield made
    finally:
        stub.close()


def test_a_deleted_session_is_restored_byte_for_byte_and_resumed(claude: Claude, url: str, tmp_path: Path) -> None:
    more = {"HOME": str(claude.home), "XDG_STATE_HOME": str(tmp_path / "state"), "COMPACTION_STORE_URL": url}

    def run(*arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "compaction_store", *arguments], env=os.environ | more, check=True)

    run("watch", "--once")
    session = claude.sessions[0]
    assert list(session.with_suffix("").rglob("agent-*.jsonl")), "it had a subagent"
    before = {file: file.read_bytes() for file in claude.projects.rglob("*.jsonl")}
    for file in before:
        file.unlink()
    for file in list(before):
        if "subagents" not in file.parts:
            run("restore", f"claude-code:{file.stem}", "--to", str(claude.projects))
    assert {file: file.read_bytes() for file in claude.projects.rglob("*.jsonl")} == before
    claude.prompt("--resume", session.stem, "And now?")
    assert session.read_bytes().startswith(before[session])
    assert len(session.read_bytes()) > len(before[session])
    run("watch", "--once")
    with cs.Store.open(url) as store:
        lines = store.thread(f"claude-code:{session.stem}/lines")
        assert lines.last_seq == len(session.read_bytes().splitlines())
        assert {report.findings for report in store.audit.verify()} == {()}
