"""Writes and reads signed notes, each with one hash over the heads of all threads at one moment. Performs no I/O.

The key that signs must not be on the database server. The hash is the root of a Merkle tree over the heads. The note
has the format of C2SP's signed notes, and names the note before it, so that no note can be inserted or left out.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import UUID

from compaction_store.checkpoints.heads import DATA, PREFIX, Head
from compaction_store.checkpoints.keys import Signer, key_hash, public_key, verifies
from compaction_store.checkpoints.tree import Tree, leads, leaf
from compaction_store.errors import InvalidCheckpoint
from compaction_store.jsonable import AsDict
from compaction_store.module_data import ModuleData

_NOTE = re.compile(ModuleData(__file__).pattern("note"))
_SIGNATURE = re.compile(r"— ([!-*,-~]{1,100}) ([A-Za-z0-9+/]+={0,2})\n")


@dataclass(frozen=True, slots=True)
class Checkpoint(AsDict):
    """A signed note over the heads of `size` threads.

    `name` is the name of the key that signed it. `heads` is the SHA-256 of the file that lists the heads. `previous` is
    the `digest` of the note before this one, or None in the first note.
    """

    note: str = field(repr=False)
    name: str
    origin: str
    size: int
    root: bytes = field(repr=False)
    time: datetime
    heads: str
    previous: str | None
    key: bytes = field(repr=False)

    def covers(self, tenant: str) -> bool:
        """Returns whether the note is about this tenant, or about all tenants."""
        return self.origin in {self.name, origin(self.name, tenant)}

    @property
    def digest(self) -> str:
        """The SHA-256 of the signed text, which the next note names."""
        return sha256(_signed(self.note)[0].encode()).hexdigest()


def origin(signer: str, tenant: str | None) -> str:
    """Returns the origin of a note: the signer's name and, unless the note covers all tenants, the tenant."""
    return signer if tenant is None else f"{signer}/{quote(tenant, safe='')}"


def sign(
    signer: Signer, tenant: str | None, tree: Tree, heads: str, previous: Checkpoint | None, now: datetime
) -> Checkpoint:
    """Signs a note over a tree of heads. The note names `previous`, the note before it."""
    moment = now.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    text = "".join((
        f"{origin(signer.name, tenant)}\n{tree.size}\n{base64.b64encode(tree.root()).decode()}\n",
        f"time {moment}Z\nheads {heads}\nprevious {'none' if previous is None else previous.digest}\n",
    ))  # fmt: skip
    # Read the note back, to check the signature that the signer returned.
    return read(with_signature(signer, text), signer.key)


def with_signature(signer: Signer, text: str) -> str:
    """Returns a text as a signed note. The caller reads it back."""
    signature = base64.b64encode(key_hash(signer.name, signer.key) + signer.sign(text.encode())).decode()
    return f"{text}\n— {signer.name} {signature}\n"


def _signed(note: str) -> tuple[str, str]:
    """Splits a note into the signed text and the lines with signatures."""
    text, gap, signatures = note.rpartition("\n\n")
    if not gap:
        raise InvalidCheckpoint("the text is not a signed note")
    return f"{text}\n", signatures


def read(note: object, *keys: bytes) -> Checkpoint:
    """Parses a note and checks that one of the public keys signed it. Signatures by other keys are not checked."""
    parsed = unsigned(note)
    _, name, key = signed_by(parsed.note, *keys)
    return replace(parsed, name=name, key=key)


def signed_by(note: str, *keys: bytes) -> tuple[str, str, bytes]:
    """Returns the signed text, and the name and the key of the first of these public keys that signed it."""
    text, signatures = _signed(note)
    for name, coded in _SIGNATURE.findall(signatures):
        for key in map(public_key, keys):
            raw = _base64(coded)
            if raw[:4] == key_hash(name, key) and verifies(key, raw[4:], text.encode()):
                return text, name, key
    raise InvalidCheckpoint("no known key signed the note")


def unsigned(note: object) -> Checkpoint:
    """Parses a note that a signed note refers to by its `digest`. The result has neither name nor key."""
    text, signatures = _signed(note) if type(note) is str else ("", "")
    found = _NOTE.fullmatch(text)
    if found is None or not signatures or _SIGNATURE.sub("", signatures):
        raise InvalidCheckpoint("the text is not the note of a checkpoint")
    try:
        moment = datetime.fromisoformat(found["time"])
    except ValueError:
        raise InvalidCheckpoint("the note's time is not a date") from None
    previous = None if found["previous"] == "none" else found["previous"]
    return Checkpoint(
        str(note), "", found["origin"], int(found["size"]), _base64(found["root"]), moment, found["heads"], previous,
        b"",
    )  # fmt: skip


def _base64(coded: str) -> bytes:
    with suppress(binascii.Error):
        raw = base64.b64decode(coded, validate=True)
        # The spare bits of the last character must be zero, so that every value has exactly one encoding.
        if base64.b64encode(raw).decode() == coded:
            return raw
    raise InvalidCheckpoint("the root or a signature in the note is not base64")


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
    """Checks the proof of an export. The keys must not come from it. The caller must check the entry at the pos."""
    try:
        data, *hashes = [bytes.fromhex(part) for part in carried["proof"]]
        index, note = carried["leaf_index"], carried["note"]
        prefix, uid, pos, entry = DATA.unpack(data)
    except (KeyError, TypeError, ValueError, struct.error):
        raise InvalidCheckpoint("this is not a proof that a thread is in a checkpoint") from None
    checkpoint = read(note, *map(public_key, keys))
    if prefix != PREFIX or uid != thread_uid.bytes or type(index) is not int:
        raise InvalidCheckpoint("the proof is malformed, or is for another thread")
    if not leads(leaf(data), index, checkpoint.size, hashes, checkpoint.root):
        raise InvalidCheckpoint("the proof does not lead to the checkpoint")
    return Proved(checkpoint, pos, entry)
