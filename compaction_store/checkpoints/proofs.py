"""Makes and checks proofs that a thread is in a checkpoint. Performs no I/O.

For a million threads, a proof consists of about twenty hashes, which reveal nothing about other threads.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from compaction_store.checkpoints import notes
from compaction_store.checkpoints.heads import DATA, PREFIX, Head
from compaction_store.checkpoints.keys import public_key
from compaction_store.checkpoints.notes import Checkpoint
from compaction_store.checkpoints.tree import leads, leaf
from compaction_store.errors import InvalidCheckpoint


class Proved(NamedTuple):
    """The result of a checked proof: at the checkpoint, the thread's last entry was `entry` at `pos`."""

    checkpoint: Checkpoint
    pos: int
    entry: bytes


def proof(checkpoint: Checkpoint, head: Head, index: int, hashes: Sequence[bytes]) -> dict[str, Any]:
    """Returns the proof for an export. Its first part is the data of the thread's leaf, and the others are the path."""
    return {
        "note": checkpoint.note, "proof": [part.hex() for part in (head.data(), *hashes)], "leaf_index": index,
        "key": checkpoint.key.hex(),
    }  # fmt: skip


def check_proof(carried: Mapping[str, Any], thread_uid: UUID, *keys: bytes | str) -> Proved:
    """Checks the proof that an export carries. The public keys must not come from the export.

    The caller must still check that the thread has the returned entry at the returned pos.
    """
    try:
        data, *hashes = [bytes.fromhex(part) for part in carried["proof"]]
        index, note = carried["leaf_index"], carried["note"]
        prefix, uid, pos, entry = DATA.unpack(data)
    except (KeyError, TypeError, ValueError, struct.error):
        raise InvalidCheckpoint("this is not a proof that a thread is in a checkpoint") from None
    checkpoint = notes.read(note, *map(public_key, keys))
    if prefix != PREFIX or uid != thread_uid.bytes or type(index) is not int:
        raise InvalidCheckpoint("the proof is malformed, or is for another thread")
    if not leads(leaf(data), index, checkpoint.size, hashes, checkpoint.root):
        raise InvalidCheckpoint("the proof does not lead to the checkpoint")
    return Proved(checkpoint, pos, entry)
