"""`offline.py` must run on Python 3.9, whose standard library lacks newer names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from compaction_store import offline


def test_it_needs_no_name_that_python_3_9_lacks() -> None:
    program = (
        "import datetime, runpy, sys; del datetime.UTC; sys.argv.pop(0); runpy.run_path(sys.argv[0], {}, '__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, offline.__file__, "-"], input=b"x\n", capture_output=True, check=False
    )
    assert done.stderr == b""
    assert done.stdout.endswith(b"findings  1\n")
    ast.parse(Path(offline.__file__).read_text(), feature_version=(3, 9))
