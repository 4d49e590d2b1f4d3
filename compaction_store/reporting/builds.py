"""Names the build of this package, because two builds of one version may make different pages from the same data."""

from __future__ import annotations

import hashlib
import unicodedata
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_SUFFIXES = (".py", ".html", ".css")
_LIBRARIES = ("jinja2", "markupsafe")


@cache
def build() -> str:
    """Returns the SHA-256 of everything that a page depends on, except for its data.

    This is the source files and templates of this package, and the versions of Jinja, MarkupSafe and Unicode.
    """
    found = hashlib.sha256()
    for name in (*map(_version, _LIBRARIES), unicodedata.unidata_version):
        found.update(f"{name}\n".encode())
    for file in sorted(_PACKAGE.rglob("*")):
        if file.suffix in _SUFFIXES:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            found.update(f"{file.relative_to(_PACKAGE).as_posix()} {content}\n".encode())
    return found.hexdigest()


def _version(library: str) -> str:
    try:
        return f"{library} {version(library)}"
    except PackageNotFoundError:
        return f"{library} is not installed"
