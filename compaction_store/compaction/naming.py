"""How records name what a caller gave: a callback, a strategy, a summarizer."""

from __future__ import annotations

_LONGEST = 255


def name_of(given: object, default: str) -> str:
    """Returns its own `name`, else the module and the name under which it is defined."""
    name = getattr(given, "name", None)
    if not isinstance(name, str):
        named = given if hasattr(given, "__qualname__") else type(given)
        name = f"{getattr(named, '__module__', '?')}.{named.__qualname__}"
    return name.replace("\0", "").encode(errors="replace")[:_LONGEST].decode(errors="ignore") or default
