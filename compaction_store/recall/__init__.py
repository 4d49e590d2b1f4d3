"""Tools by which an agent looks things up in its own thread: what was folded is out of its sight, not out of reach.

They read one thread and nothing else, and write nothing. What a model asks for wrongly is told to it as the call's
result and raises nothing; a database that is away raises what it always does. No result is longer than `max_tokens`,
and whatever it quotes stands between two lines that no content can contain.
"""

from __future__ import annotations

from compaction_store.recall.pages import Recalled
from compaction_store.recall.tools import AsyncRecallTools, RecallTools, recall_tools

__all__ = ["AsyncRecallTools", "RecallTools", "Recalled", "recall_tools"]
