"""The example of a coding agent, with the real program against the stub."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from claude_program import Claude, program
from stub_anthropic import Stub
from support.paths import ROOT


def test_the_example_keeps_a_session_and_gives_it_back(url: str, tmp_path: Path) -> None:
    stub = Stub()
    try:
        made = Claude(program(), tmp_path, stub)
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "coding_agent.py"), str(made.program)],
            cwd=tmp_path, env=os.environ | made.environment | {"COMPACTION_STORE_URL": url},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
    finally:
        stub.close()
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^record \d+: seqs 1 to \d+, (applied|observed)$", done.stdout, re.MULTILINE)
    assert re.findall(r"^reply \d+ was written from a request of \d+ messages: (\w+)$", done.stdout, re.MULTILINE)
    assert "reconstructed" not in done.stdout
    assert "differs" not in done.stdout
    assert done.stdout.endswith("byte for byte: True\n")
