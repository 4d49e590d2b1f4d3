"""Yields the prose of the repository: docstrings, comments, errors, help texts, SQL comments and pages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.paths import ROOT

_FENCE = re.compile(r"^(```+)(\w*)[^\n]*\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)


class Passage(NamedTuple):
    """A docstring, a comment, a string or a line of a page."""

    path: Path
    line: int
    text: str

    @property
    def file(self) -> str:
        return str(self.path.relative_to(ROOT))


def passages() -> Iterator[Passage]:
    for folder in ("compaction_store", "migrations"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            # Skip _sync, which is derived from _async.
            if "_sync" not in path.parts:
                yield from _of_python(path)
    for path in sorted((ROOT / "migrations").rglob("*.sql")):
        yield from _of_sql(path)
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        yield from _of_page(path)


def _of_python(path: Path) -> Iterator[Passage]:
    """Yields the comments, and every string of at least two words, such as docstrings, errors and help texts."""
    text = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Passage(path, token.start[0], token.string)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            for offset, line in enumerate(node.value.split("\n")):
                yield Passage(path, node.lineno + offset, line)


def _of_sql(path: Path) -> Iterator[Passage]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        _, dashes, comment = line.partition("--")
        if dashes:
            yield Passage(path, number, comment)


def _of_page(path: Path) -> Iterator[Passage]:
    """Yields the lines of a page. Of its code blocks, yields only the comments."""
    text = path.read_text(encoding="utf-8")
    text = _FENCE.sub(lambda found: "\n".join(map(_comment, found[0].split("\n"))), text)
    text = re.sub(r"`[^`\n]*`", "`…`", text)
    for number, line in enumerate(text.splitlines(), 1):
        yield Passage(path, number, line)


def _comment(line: str) -> str:
    found = re.search(r"(?:^|\s)(?:#|--) .*", line)
    return found[0] if found else ""
