"""The exit codes of the command line, which are part of the public interface, and the error for a wrong call."""

from __future__ import annotations

import typer

from compaction_store.audit.safe_text import shown
from compaction_store.errors import (
    CompactionStoreError,
    DatabaseError,
    InvalidCheckpoint,
    InvalidInput,
    NotConfigured,
    OutcomeUnknown,
)
from compaction_store.module_data import ModuleData

REFUSED = 1
MISUSED = 2
NO_DATABASE = 3
UNKNOWN = 4
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES = "\b\n" + ModuleData(__file__).text("exit_codes")


def of(error: CompactionStoreError) -> int:
    if isinstance(error, OutcomeUnknown):
        return UNKNOWN
    # An invalid checkpoint is a finding about the data, not a wrong call.
    if isinstance(error, InvalidInput) and not isinstance(error, InvalidCheckpoint):
        return MISUSED
    return NO_DATABASE if isinstance(error, DatabaseError | NotConfigured) else REFUSED


def misuse(text: str, option: str) -> typer.BadParameter:
    """Returns the error for a wrong option or argument, "Invalid value for OPTION: TEXT"."""
    return typer.BadParameter(shown(text), param_hint=f"'{option}'")
