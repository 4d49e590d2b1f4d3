"""Strategies, which choose the spans of a thread to compact. A strategy is used like any `on_compact` callback."""

from compaction_store.public_names import in_stub

# The function is imported now, because a module has the same name.
from compaction_store.strategies.items import sliding_window as sliding_window

__all__, __getattr__, __dir__ = in_stub(__name__, __file__)
