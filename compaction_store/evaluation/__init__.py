"""Evaluates compactions of real threads: recorded compactions, and those that another policy would have made.

A thread is replayed in memory, message by message, and nothing is written. `docs/evaluation.md` explains each figure
and its limits.
"""

from __future__ import annotations

from compaction_store.evaluation.evaluator import evaluate
from compaction_store.evaluation.judge import Judge, JudgeVerdict, SummarizerUse
from compaction_store.evaluation.money import FoldMoney, ModelPrice, Money, Prices
from compaction_store.evaluation.replay import (
    RECORDED,
    ModelCall,
    Policy,
    RecordedThread,
    Replayed,
    read_thread,
    replay,
)
from compaction_store.evaluation.results import Evaluation, Judged, PolicyResult, Rate

__all__ = [
    "RECORDED",
    "Evaluation",
    "FoldMoney",
    "Judge",
    "JudgeVerdict",
    "Judged",
    "ModelCall",
    "ModelPrice",
    "Money",
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
