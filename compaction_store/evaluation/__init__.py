"""Evaluates compactions of real threads: recorded compactions, and those that another policy would have made.

A thread is replayed in memory, message by message, and nothing is written. `docs/evaluation.md` explains each figure
and its limits.
"""

from __future__ import annotations

from compaction_store.evaluation.evaluating import evaluate
from compaction_store.evaluation.judging import Judge, Verdict
from compaction_store.evaluation.money import FoldMoney, Money
from compaction_store.evaluation.policies import RECORDED, Policy
from compaction_store.evaluation.prices import ModelPrice, Prices
from compaction_store.evaluation.recorded_thread import RecordedThread, read_thread
from compaction_store.evaluation.replaying import ModelCall, Replayed, replay
from compaction_store.evaluation.results import Evaluation, Judged, PolicyResult, Rate
from compaction_store.evaluation.usage import SummarizerUse

__all__ = [
    "RECORDED",
    "Evaluation",
    "FoldMoney",
    "Judge",
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
    "Verdict",
    "evaluate",
    "read_thread",
    "replay",
]
