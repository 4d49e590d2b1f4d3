"""Makes the errors for wrong options and arguments."""

from __future__ import annotations

import typer

from compaction_store.display.visible import shown


def misuse(text: str, option: str) -> typer.BadParameter:
    """Returns the error for a wrong option or argument, "Invalid value for OPTION: TEXT"."""
    return typer.BadParameter(shown(text), param_hint=f"'{option}'")
