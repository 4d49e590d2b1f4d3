"""A persistent conversation store on Postgres, with auditable compaction records.

This module has the names that an application needs, such as the stores, the context that a callback gets, the values
that stores return, and the errors that an application catches. The other errors are in `compaction_store.errors`, and
the other values in `compaction_store.models`.
"""

from importlib import import_module

from compaction_store.public_names import in_stub

__version__ = "0.1.0"

_PUBLIC_MODULES = (
    "checks", "distribution", "embedded", "errors", "evaluation", "grants", "importers", "models", "recall",
    "strategies", "summarizers", "tokens",
)  # fmt: skip
__all__, _getattr, __dir__ = in_stub(__name__, __file__)
__all__ += ["__version__"]
__all__.sort()


def __getattr__(name: str) -> object:
    return import_module(f"{__name__}.{name}") if name in _PUBLIC_MODULES else _getattr(name)
