"""Runs the code blocks of a documentation page, in order and in one process, and checks their output.

A `python` block is run unchanged, an `sh` block by bash with the program on its path, and an `sql` block by a
superuser. A `text` block right after such a block must be its output, in which `…` means any text. Other blocks, and
indented ones, are not run.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from support.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARK = "=== the end of a block ==="

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_RUN = frozenset({"python", "sh", "sql"})
_HELPERS = """\
import os as _os, subprocess as _subprocess, sys as _sys


def _sh(code):
    _sys.stdout.flush()
    _subprocess.run(["bash", "-euo", "pipefail", "-c", code], check=True)


def _sql(code):
    import psycopg

    with psycopg.connect(_os.environ["COMPACTION_STORE_URL"], autocommit=True) as connection:
        for statement in code.split(";\\n"):
            if statement.strip():
                cursor = connection.execute(statement)
                while cursor.nextset():
                    pass
        if cursor.description is not None:
            print(" | ".join(column.name for column in cursor.description))
            for row in cursor:
                print(" | ".join("" if value is None else str(value) for value in row))


"""


class Block(NamedTuple):
    where: str
    line: int
    kind: str
    code: str
    output: str | None


def blocks(path: Path) -> list[Block]:
    """Yields the blocks of a page that are run, each with the `text` block right after it."""
    text = path.read_text(encoding="utf-8")
    fences = list(_FENCE.finditer(text))
    found = []
    for fence, following in zip_longest(fences, fences[1:]):
        if fence[1] in _RUN:
            output = following[2] if following is not None and following[1] == "text" else None
            line = text.count("\n", 0, fence.start()) + 2
            found.append(Block(name(path), line, fence[1], fence[2], output))
    return found


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def script(page: list[Block], before: str = "") -> str:
    """Returns all blocks of a page as one program, because a block may use names of an earlier block."""
    parts = [_HELPERS, before, f"\nprint({MARK!r}, flush=True)\n"]
    for block in page:
        code = block.code if block.kind == "python" else f"_{block.kind}({block.code!r})\n"
        parts.append(f"{code}\nprint({MARK!r}, flush=True)\n")
    return "".join(parts)


def matches(said: str, printed: str) -> bool:
    """Returns whether the printed output matches. `…` matches any text. Spaces at the end of a line are ignored."""
    printed = "\n".join(line.rstrip() for line in printed.splitlines())
    pattern = ".*".join(re.escape(part) for part in said.strip().split("…"))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None
