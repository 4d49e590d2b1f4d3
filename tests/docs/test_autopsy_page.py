"""The page on evaluation shows what the autopsy of the example's session prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import doc_pages as pages
from support.paths import ROOT


def test_the_page_shows_the_autopsy_of_the_session_that_forgot_its_rules(url: str, tmp_path: Path) -> None:
    environment = os.environ | {
        "COMPACTION_STORE_URL": url, "PYTHONUTF8": "1", "NO_COLOR": "1", "COLUMNS": "120",
    }  # fmt: skip

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(str(ROOT / "examples" / "forgotten_rules.py"), "sessions")
    printed = run("-m", "compaction_store", "autopsy", "sessions", "--table")
    text = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    _, _, after = text.partition("### A session that forgot its rules")
    shown = after.partition("```text\n")[2].partition("```")[0]
    assert pages.matches(shown, printed)
