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

REFUSED = 1
MISUSED = 2
NO_DATABASE = 3
UNKNOWN = 4
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES = """\b
Exit codes:
  0    success; verify and doctor found no problem
  1    the store refused, an attempt failed, or the command found a problem
  2    an option, an argument or the input is wrong
  3    the database cannot be used: unreachable, not migrated, or a role is missing
  4    it is unknown whether the write happened: repeat it with the same key
  130  interrupted by Ctrl-C
  141  the reader of the output closed it
"""


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
