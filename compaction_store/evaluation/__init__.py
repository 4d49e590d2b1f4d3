"""Evaluates compactions of real threads: recorded compactions, and those that another policy would have made.

A thread is replayed in memory, message by message, and nothing is written. `docs/evaluation.md` explains each figure
and its limits.
"""

# The function is imported now, because its module has the same name.
from compaction_store.evaluation.replay import replay as replay
from compaction_store.public_names import in_stub

__all__, __getattr__, __dir__ = in_stub(__name__, __file__)
