"""Checkpoints: signed notes over the last entry of every thread, kept where the database's users cannot change them."""

from compaction_store.checkpoints.keys import Signer, SigningKey
from compaction_store.checkpoints.log import CheckpointLog
from compaction_store.checkpoints.notes import Checkpoint, Proved, check_proof
from compaction_store.checkpoints.removals import Removal, check_removal

__all__ = [
    "Checkpoint", "CheckpointLog", "Proved", "Removal", "Signer", "SigningKey", "check_proof", "check_removal",
]  # fmt: skip
