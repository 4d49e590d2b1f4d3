"""The command line `compaction-store`, also `python -m compaction_store`. Needs the extra `cli`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from compaction_store.errors import MissingExtra


def main() -> None:
    """Runs the command in `sys.argv` and exits."""
    if find_spec("typer") is None or find_spec("rich") is None:
        sys.stderr.write(f"compaction-store: {MissingExtra('the command line', 'cli')}\n")
        sys.exit(3)
    try:
        from compaction_store.cli.program import program
    except KeyboardInterrupt:
        sys.exit(130)
    program(prog_name="compaction-store")
