"""Tools with which an agent searches and reads its own thread, including messages that its view no longer shows.

The tools read one thread and write nothing. A wrong call raises no exception: its result tells the model what is wrong.
Database errors are raised as usual. No result is longer than `max_tokens`. Quoted content is enclosed in two delimiter
lines that the content cannot contain.
"""

from __future__ import annotations

from compaction_store.recall.pages import Recalled
from compaction_store.recall.tools import AsyncRecallTools, RecallTools, recall_tools

__all__ = ["AsyncRecallTools", "RecallTools", "Recalled", "recall_tools"]
