"""Runs the real Claude Code against the stub, in a home folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from stub_anthropic import Stub

_ALLOWED = ("--dangerously-skip-permissions",)
_SECONDS = 90


class Claude:
    """A home folder, a folder to work in, and a stub. `sessions` are the files that the program wrote."""

    def __init__(self, program: Path, folder: Path, stub: Stub) -> None:
        self.program, self.stub = program, stub
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir(parents=True)
        self.work.mkdir()
        (self.work / "notes.txt").write_text("Order A-17 is late.\nNever ship on Sundays.\n")
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.home), "ANTHROPIC_BASE_URL": stub.url,
            "ANTHROPIC_API_KEY": "sk-ant-dummy", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1",
        }  # fmt: skip

    @property
    def projects(self) -> Path:
        return self.home / ".claude" / "projects"

    @property
    def sessions(self) -> list[Path]:
        return sorted(self.projects.glob("*/*.jsonl"))

    def prompt(self, *arguments: str) -> dict[str, Any]:
        """Runs one prompt with `-p`, and returns the result."""
        done = subprocess.run(
            [self.program, "-p", "--output-format", "json", *_ALLOWED, *arguments], cwd=self.work,
            env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS,
            check=True,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def stream(self, said: Sequence[str | float], *arguments: str) -> str:
        """Sends prompts in one session, and returns its id.

        A prompt waits for the result before it; after a number, it waits so many seconds instead.
        """
        program = subprocess.Popen(
            [self.program, "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose",
             *_ALLOWED, *arguments],
            cwd=self.work, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        results = threading.Semaphore(0)
        ids: list[str] = []

        def read() -> None:
            for line in program.stdout or ():
                found = json.loads(line)
                if found.get("type") == "result":
                    ids.append(found["session_id"])
                    results.release()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        is_first = True
        waits = True
        for item in said:
            if isinstance(item, float | int):
                time.sleep(item)
                waits = False
                continue
            if waits and not is_first:
                assert results.acquire(timeout=_SECONDS), f"no result before {item!r}"
            is_first, waits = False, True
            message = {"type": "user", "message": {"role": "user", "content": item}}
            program.stdin.write(json.dumps(message) + "\n")
            program.stdin.flush()
        assert results.acquire(timeout=_SECONDS)
        program.stdin.close()
        program.wait(_SECONDS)
        reader.join(_SECONDS)
        program.stdout.close()
        return ids[-1]


def program() -> Path:
    """Returns the program that `scripts/agents` has installed. Skips the test without it."""
    found = os.environ.get("COMPACTION_STORE_CLAUDE")
    if not found or shutil.which(found) is None:
        pytest.skip("scripts/agents installs Claude Code and names it in COMPACTION_STORE_CLAUDE")
    return Path(found)
