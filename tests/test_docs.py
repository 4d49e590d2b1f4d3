"""The documentation's Python is run, and what it says is printed is what is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest

_ROOT = Path(__file__).parent.parent
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    where: str
    line: int
    code: str
    output: str | None


def _blocks(path: Path) -> list[Block]:
    """The Python blocks of a page, each with the text block that follows it before any other block."""
    text = path.read_text(encoding="utf-8")
    fences = list(_FENCE.finditer(text))
    found = []
    for fence, following in zip_longest(fences, fences[1:]):
        if fence[1] != "python":
            continue
        output = following[2] if following is not None and following[1] == "text" else None
        line = text.count("\n", 0, fence.start()) + 2
        found.append(Block(str(path.relative_to(_ROOT)), line, fence[2], output))
    return found


_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))]
_ALL = [block for page in _PAGES if page.is_file() for block in _blocks(page)]


def test_every_python_block_of_the_documentation_compiles() -> None:
    for block in _ALL:
        compile("\n" * (block.line - 1) + block.code, block.where, "exec")


@pytest.mark.parametrize("page", ["README.md", "docs/erasure.md"])
def test_the_blocks_of_a_page_run_in_order_and_print_what_they_say(page: str, url: str, tmp_path: Path) -> None:
    blocks = _blocks(_ROOT / page)
    if not blocks:
        pytest.skip("the page has no Python blocks")
    environment = os.environ | {
        "COMPACTION_STORE_URL": url, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "PYTHONUTF8": "1",
    }  # fmt: skip
    # One process: a later block may use what an earlier one made, as a reader of the page would.
    mark = "=== the end of a block ==="
    script = tmp_path / "page.py"
    script.write_text("".join(f"{block.code}\nprint({mark!r}, flush=True)\n" for block in blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    printed = done.stdout.split(f"{mark}\n")
    assert done.returncode == 0, f"block {len(printed)} of {page}:\n{done.stderr}"
    for block, output in zip(blocks, printed, strict=False):
        if block.output is not None:
            assert output.rstrip("\n") == block.output.rstrip("\n"), f"{block.where}:{block.line}"
