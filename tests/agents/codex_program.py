"""Runs the real Codex against the stub, in a home folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from stub_openai import StubOpenAI

_SECONDS = 90
_SETTINGS = """\
model = "gpt-5-codex"
model_provider = "stub"
approval_policy = "never"
sandbox_mode = "danger-full-access"
model_auto_compact_token_limit = {limit}

[model_providers.stub]
name = "{provider}"
base_url = "{url}"
wire_api = "responses"
env_key = "STUB_KEY"
supports_websockets = false
"""


class Codex:
    """A home folder, a folder to work in, a folder for the traces, and a stub.

    A provider with the name OpenAI compacts by itself. With every other one, the model is asked for a summary.
    """

    def __init__(self, program: Path, folder: Path, stub: StubOpenAI, provider: str = "stub") -> None:
        self.program, self.stub = program, stub
        self.home, self.work, self.traces = folder / "home", folder / "work", folder / "traces"
        (self.home / ".codex").mkdir(parents=True)
        self.work.mkdir()
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.home), "STUB_KEY": "none",
            "CODEX_ROLLOUT_TRACE_ROOT": str(self.traces),
        }  # fmt: skip
        settings = _SETTINGS.format(limit=20_000, provider=provider, url=stub.url)
        (self.home / ".codex" / "config.toml").write_text(settings)

    @property
    def sessions(self) -> Path:
        return self.home / ".codex" / "sessions"

    @property
    def rollouts(self) -> list[Path]:
        return sorted(self.sessions.rglob("*.jsonl"))

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.program, *arguments], cwd=self.work, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=_SECONDS, check=True,
        )  # fmt: skip
        return done.stdout

    def exec(self, *arguments: str) -> str:
        """Runs a prompt, and returns the id of the session."""
        printed = self.run("exec", "--skip-git-repo-check", "--json", *arguments)
        events: list[dict[str, Any]] = [json.loads(line) for line in printed.splitlines()]
        return next(str(event["thread_id"]) for event in events if event["type"] == "thread.started")

    def revert(self, session: str) -> None:
        """Takes back the last turn of a session, as its screen does."""
        server = subprocess.Popen(
            [self.program, "app-server"], cwd=self.work, env=self.environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

        def call(number: int, method: str, **parameters: Any) -> Any:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps({"id": number, "method": method, "params": parameters}) + "\n")
            server.stdin.flush()
            found = (json.loads(line) for line in server.stdout)
            return next(each["result"] for each in found if each.get("id") == number)

        call(1, "initialize", clientInfo={"name": "test", "title": "test", "version": "1"})
        call(2, "thread/resume", threadId=session)
        turns = call(3, "thread/turns/list", threadId=session)["data"]
        call(4, "thread/revert", threadId=session, beforeTurnId=turns[0]["id"])
        server.terminate()
        server.communicate(timeout=_SECONDS)


def program() -> Path:
    """Returns the program that `scripts/agents` has installed. Skips the test without it."""
    found = os.environ.get("COMPACTION_STORE_CODEX")
    if not found or shutil.which(found) is None:
        pytest.skip("scripts/agents installs Codex and names it in COMPACTION_STORE_CODEX")
    return Path(found)
