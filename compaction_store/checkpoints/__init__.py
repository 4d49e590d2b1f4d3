"""Checkpoints: where every thread stood at one moment, signed and kept where the database cannot change it."""

from compaction_store.checkpoints.keys import Signer, SigningKey
from compaction_store.checkpoints.log import CheckpointLog
from compaction_store.checkpoints.notes import Checkpoint
from compaction_store.checkpoints.proofs import Proved, check_proof

__all__ = ["Checkpoint", "CheckpointLog", "Proved", "Signer", "SigningKey", "check_proof"]
