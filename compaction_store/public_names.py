"""Imports the public names of a package when they are first used. The stub `__init__.pyi`, which type checkers read
too, has the module of each name, so that each name is written once.
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def in_stub(package: str, file: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Returns the names that a stub imports, and the functions `__getattr__` and `__dir__` for its package."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.asname or alias.name: (str(node.module), alias.name) for node in imports for alias in node.names}

    def getattr_(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, its_name = modules[name]
        found = vars(sys.modules[package])[name] = getattr(import_module(module), its_name)
        return found

    return sorted(modules), getattr_, lambda: sorted({*vars(sys.modules[package]), *modules})
