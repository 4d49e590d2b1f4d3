"""Prints the pages of the documentation, which are installed with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import compaction_store
from compaction_store.cli.bundles import argument
from compaction_store.cli.exits import misuse
from compaction_store.cli.output import Output

_TITLE = "# "


def folder() -> Path:
    """Returns the folder of the pages, which is in the package of an installed wheel, or beside it in a source tree."""
    package = Path(compaction_store.__file__).parent
    return package / "docs" if (package / "docs").is_dir() else package.parent / "docs"


def pages() -> dict[str, Path]:
    """Maps the name of every page, such as erasure or how-to/citus, to its file."""
    root = folder()
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.md"))}


def docs(
    page: Annotated[str | None, argument("[PAGE]", "A page, such as erasure or how-to/citus.")] = None,
) -> None:
    """Prints a page of the installed version's documentation as Markdown. Without a page, lists all pages."""
    out = Output(as_json=False)
    found = pages()
    if page is None:
        width = max(map(len, found), default=0)
        for name, path in found.items():
            with path.open(encoding="utf-8") as stream:
                out.text(f"{name:<{width}}  {stream.readline().removeprefix(_TITLE).strip()}")
        return
    name = page.removeprefix("docs/").removesuffix(".md")
    if name not in found:
        raise misuse(f"there is no page {page!r}; run docs without a page to list all pages", "PAGE")
    for line in found[name].read_text(encoding="utf-8").splitlines():
        out.text(line)
