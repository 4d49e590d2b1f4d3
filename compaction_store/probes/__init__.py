"""Probes find out what a summary lost and what it invented.

A probe is a question about a compaction, and its answer. Rules derive the questions from the thread itself, without a
model. So the same thread always gives the same answers. The time is linear in the length of the thread. `ThreadFacts`
reads a thread once. `ThreadProbe` walks through the thread as it grows and is folded. docs/evaluation.md describes
what each probe finds and what it cannot find.
"""

from __future__ import annotations

from compaction_store.models.probe import PROBE_TYPES, Place, Probe, ProbeType
from compaction_store.probes.facts import Planted, ThreadFacts, ThreadMessage
from compaction_store.probes.thread_probe import Fold, ThreadProbe

__all__ = [
    "PROBE_TYPES",
    "Fold",
    "Place",
    "Planted",
    "Probe",
    "ProbeType",
    "ThreadFacts",
    "ThreadMessage",
    "ThreadProbe",
]
