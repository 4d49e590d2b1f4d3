"""Reads the data of a module from the TOML file beside it: word lists, patterns and texts, as one edits them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

_PLACE = re.compile(r"\{([a-z_]+)\}")


class ModuleData:
    """The data beside a module, which gives its `__file__`."""

    def __init__(self, module_file: str) -> None:
        self.values: dict[str, Any] = tomllib.loads(Path(module_file).with_suffix(".toml").read_text(encoding="utf-8"))

    def text(self, name: str) -> str:
        return str(self.values[name])

    def words(self, name: str) -> frozenset[str]:
        return frozenset(self.text(name).split())

    def pattern(self, name: str) -> str:
        """Returns the lines of a pattern as one, without comments, and with other patterns in place of their names."""
        lines = (line for line in self.text(name).splitlines() if not line.startswith("# "))
        return _PLACE.sub(lambda found: self.pattern(found[1]), "".join(lines))
