"""Tools with which an agent searches and reads its own thread, including messages that are folded in its view.

The tools read one thread and write nothing. A wrong call raises no exception: its result tells the model what is wrong.
Errors of the database are raised as usual. No result is longer than `max_tokens`, and quoted content stands between two
lines that no content can contain.
"""

from __future__ import annotations

from compaction_store.recall.pages import Recalled
from compaction_store.recall.tools import AsyncRecallTools, RecallTools, recall_tools

__all__ = ["AsyncRecallTools", "RecallTools", "Recalled", "recall_tools"]
