"""Strategies, which choose the spans of a thread to compact. A strategy is used like any `on_compact` callback."""

from compaction_store.compaction.asks import Ask
from compaction_store.compaction.callbacks import Strategy
from compaction_store.strategies.assistant_runs import AssistantRuns, plan_assistant_runs
from compaction_store.strategies.clear_tool_results import ClearToolResults, plan_clear_tool_results
from compaction_store.strategies.compress import CompressResult, compress_context, compress_context_async
from compaction_store.strategies.items import Item, Piece, Slid, sliding_window, sliding_window_async
from compaction_store.strategies.ladder import Ladder
from compaction_store.strategies.outline import speaker
from compaction_store.strategies.pipeline import Pipeline, pin
from compaction_store.strategies.sliding_window import SlidingWindow, plan_sliding_window
from compaction_store.strategies.thresholds import Measure, Threshold, Window, measure, on_turn_end, over, safe_tokens
from compaction_store.strategies.tree import Node, SummaryTree, plan_summary_tree
from compaction_store.strategies.truncation import Change

__all__ = [
    "Ask",
    "AssistantRuns",
    "Change",
    "ClearToolResults",
    "CompressResult",
    "Item",
    "Ladder",
    "Measure",
    "Node",
    "Piece",
    "Pipeline",
    "Slid",
    "SlidingWindow",
    "Strategy",
    "SummaryTree",
    "Threshold",
    "Window",
    "compress_context",
    "compress_context_async",
    "measure",
    "on_turn_end",
    "over",
    "pin",
    "plan_assistant_runs",
    "plan_clear_tool_results",
    "plan_sliding_window",
    "plan_summary_tree",
    "safe_tokens",
    "sliding_window",
    "sliding_window_async",
    "speaker",
]
