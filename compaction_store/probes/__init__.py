"""Probes find out what a summary lost and what it invented.

A probe is a question about a compaction, and its answer. Rules derive the questions from the thread itself, without a
model. So the same thread always gives the same answers. The time is linear in the length of the thread. `ThreadFacts`
reads a thread once. `ThreadProbe` walks through the thread as it grows and is folded. docs/evaluation.md describes
what each probe finds and what it cannot find.
"""

from compaction_store.public_names import in_stub

__all__, __getattr__, __dir__ = in_stub(__name__, __file__)
