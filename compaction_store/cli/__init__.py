"""The command line: `compaction-store`, or `python -m compaction_store`. Needs the extra `cli`.

It uses the store as any program would, and nothing that the store keeps to itself.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from compaction_store.errors import MissingExtra


def main() -> None:
    """Runs the command that the process was started with, and ends the process."""
    if find_spec("typer") is None or find_spec("rich") is None:
        sys.stderr.write(f"compaction-store: {MissingExtra('the command line', 'cli')}\n")
        sys.exit(3)
    try:
        from compaction_store.cli.program import program  # noqa: PLC0415 — needs the extra
    except KeyboardInterrupt:
        sys.exit(130)
    program(prog_name="compaction-store")
