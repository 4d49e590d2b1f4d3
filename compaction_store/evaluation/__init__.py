"""Measures compactions of real threads: recorded ones, and those that another policy would have made.

A thread is replayed in memory, message by message, and nothing is written. `docs/evaluation.md` says what each figure
means and what it cannot show.
"""

from __future__ import annotations

from compaction_store.evaluation.policies import RECORDED, Policy
from compaction_store.evaluation.prices import ModelPrice, Prices
from compaction_store.evaluation.recorded_thread import RecordedThread, read_thread
from compaction_store.evaluation.replaying import ModelCall, Replayed, SummarizerUse, replay
from compaction_store.evaluation.results import Evaluation, PolicyResult, Rate, evaluate

__all__ = [
    "RECORDED",
    "Evaluation",
    "ModelCall",
    "ModelPrice",
    "Policy",
    "PolicyResult",
    "Prices",
    "Rate",
    "RecordedThread",
    "Replayed",
    "SummarizerUse",
    "evaluate",
    "read_thread",
    "replay",
]
