"""Seals what people and models said before it leaves the process, so that destroying a key destroys every copy."""

from __future__ import annotations

from compaction_store.sealing.keys import Keys, Master, owner_of

__all__ = ["Keys", "Master", "owner_of"]
