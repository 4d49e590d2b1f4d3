"""Which spans of a thread to compact. Every strategy is an ordinary `on_compact` callback."""

from compaction_store.strategies.assistant_runs import AssistantRuns, plan_assistant_runs
from compaction_store.strategies.items import Item, Piece, Slid, sliding_window
from compaction_store.strategies.outline import speaker
from compaction_store.strategies.pipeline import Pipeline, pin
from compaction_store.strategies.sliding_window import SlidingWindow, plan_sliding_window
from compaction_store.strategies.thresholds import Measure, Threshold, Window, measure, on_turn_end, over, safe_tokens

__all__ = [
    "AssistantRuns",
    "Item",
    "Measure",
    "Piece",
    "Pipeline",
    "Slid",
    "SlidingWindow",
    "Threshold",
    "Window",
    "measure",
    "on_turn_end",
    "over",
    "pin",
    "plan_assistant_runs",
    "plan_sliding_window",
    "safe_tokens",
    "sliding_window",
    "speaker",
]
