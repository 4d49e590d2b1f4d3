"""The page on strategies shows what the strategies do now."""

from __future__ import annotations

import subprocess
import sys

from support.paths import ROOT


def test_the_figures_and_pictures_are_as_drawn() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/strategies.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
