"""A persistent conversation store on Postgres, with auditable compaction records.

This module has the names that an application needs, such as the stores, the context that a callback gets, the values
that stores return, and the errors that an application catches. The other errors are in `compaction_store.errors`, and
the other values in `compaction_store.models`.
"""

import ast
import pathlib
from importlib import import_module

__version__ = "0.1.0"

# The stub has the module of each public name. A module is imported on first use, so that short commands start quickly.
_STUB = ast.parse(pathlib.Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_IMPORTS = [node for node in _STUB.body if isinstance(node, ast.ImportFrom)]
_MODULES = {alias.name: str(node.module) for node in _IMPORTS for alias in node.names}
_PUBLIC_MODULES = (
    "checks", "distribution", "embedded", "errors", "evaluation", "grants", "importers", "models", "recall",
    "strategies", "summarizers", "tokens",
)  # fmt: skip
_NAMES = sorted([*_MODULES, "__version__"])
__all__ = list(_NAMES)


def __getattr__(name: str) -> object:
    if name in _PUBLIC_MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
