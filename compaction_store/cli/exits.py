"""What the exit codes say. They are part of the interface: a script may rely on them."""

from __future__ import annotations

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
  0    done, and nothing was found
  1    the store refused, or something was found (verify, doctor)
  2    an option, an argument or the input is wrong
  3    the database cannot be used: not reached, not migrated, no role
  4    whether the write happened is unknown: repeat it with its key
  130  interrupted by Ctrl-C
  141  the reader of the output is gone
"""


def of(error: CompactionStoreError) -> int:
    if isinstance(error, OutcomeUnknown):
        return UNKNOWN
    # Evidence that does not hold is a finding.
    if isinstance(error, InvalidInput) and not isinstance(error, InvalidCheckpoint):
        return MISUSED
    return NO_DATABASE if isinstance(error, DatabaseError | NotConfigured) else REFUSED
