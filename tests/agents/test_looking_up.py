"""The MCP server in one line of the settings of the real programs: an agent looks up what its own session lost."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import claude_program
import codex_program
import pytest
from claude_program import Claude
from codex_program import Codex
from stub_anthropic import Stub
from stub_openai import StubOpenAI
from support.faces import Face

from compaction_store.importers import import_into

FACT = "The code of the lock is 4711-QX."
NAME = "memory"


@pytest.fixture
def command(store: Face, url: str) -> list[str]:
    """The command of the server, as it is in the one line of the settings."""
    found = os.environ.get("COMPACTION_STORE_MCP", "")
    if not Path(found).exists():
        pytest.skip("scripts/agents makes an environment with the MCP server and names it in COMPACTION_STORE_MCP")
    if store.runner is not None:
        pytest.skip("the adapter's tests try both kinds of store")
    return [found, "mcp", "--url", url]


@pytest.fixture
def codex(tmp_path: Path, command: list[str]) -> Iterator[Codex]:
    with StubOpenAI() as stub:
        made = Codex(codex_program.program(), tmp_path, stub)
        made.run("mcp", "add", NAME, "--", *command)
        yield made


def test_codex_looks_up_its_own_session(codex: Codex, store: Face) -> None:
    session = codex.exec(FACT)
    codex.stub.usage = 50_000
    codex.exec("resume", session, "Go on.")
    codex.stub.usage = 1_000
    codex.exec("resume", session, "This is after the compaction.")
    list(import_into(store.store, codex.sessions, traces=str(codex.traces)))
    asked = {"namespace": f"mcp__{NAME}"}
    # The program does not wait for its servers before the first request.
    codex.stub.planned += [
        codex.stub.call("exec_command", cmd="sleep 8", yield_time_ms=20_000),
        codex.stub.call("recall_search", query="code lock") | asked, codex.stub.call("what_was_lost") | asked
    ]  # fmt: skip
    codex.exec("resume", session, "What is the code?")
    outputs = [item for item in codex.stub.requests[-1][1]["input"] if item["type"] == "function_call_output"]
    _, found, lost = (json.dumps(item["output"]) for item in outputs)
    assert FACT in found
    assert "losses" in lost
    assert "Error" not in lost


@pytest.fixture
def claude(tmp_path: Path, command: list[str]) -> Iterator[Claude]:
    stub = Stub()
    try:
        made = Claude(claude_program.program(), tmp_path, stub)
        # The stub calls the tools by their names, and does not look for them first.
        made.environment["ENABLE_TOOL_SEARCH"] = "false"
        subprocess.run(
            [made.program, "mcp", "add", "--scope", "user", NAME, "--", *command], cwd=made.work, env=made.environment,
            capture_output=True, check=True,
        )  # fmt: skip
        yield made
    finally:
        stub.close()


def test_claude_code_looks_up_its_own_session(claude: Claude, store: Face) -> None:
    session = claude.stream([FACT, "/compact", "Go on."])
    list(import_into(store.store, claude.home / ".claude" / "projects"))
    calls = [f'CALL mcp__{NAME}__recall_search {{"query": "code lock"}}', f"CALL mcp__{NAME}__what_was_lost {{}}"]
    # The program does not wait for its servers before the first request.
    claude.stream(["RUN-SLOW please", "RUN-SLOW again", *calls], "--resume", session)
    bodies = list(claude.stub.requests.values())
    found, lost = (
        next(
            json.dumps(block["content"])
            for body in reversed(bodies)
            for message in body["messages"] if isinstance(message["content"], list)
            for block in message["content"] if block["type"] == "tool_result" and word in json.dumps(block["content"])
        )
        for word in ("searched", "losses")
    )  # fmt: skip
    assert FACT in found
    assert "Error" not in lost
