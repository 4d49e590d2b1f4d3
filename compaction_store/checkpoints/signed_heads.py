"""Checkpoints: where every thread stood at one moment, as one hash, signed with a key the database never sees. Pure.

The hash is the root of a Merkle tree over the threads' heads, made as RFC 6962 makes it; the note around it has the
form of C2SP's signed notes and names the note before it. So nobody can slip in or leave out a note, and a proof of
about twenty hashes shows that one thread was in a tree of a million without showing which others were.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import quote
from uuid import UUID

from compaction_store.errors import InvalidCheckpoint, InvalidInput, MissingExtra
from compaction_store.integrity import erasure
from compaction_store.jsonable import AsDict

KEY_BYTES = 32
MOST_FINDINGS = 1000
_LEAF = b"\x00"
_NODE = b"\x01"
_HEAD = b"compaction-store/head/v1\x00"
_TENANT = b"compaction-store/tenant/v1\x00"
_ED25519 = b"\x01"
_FIELD = 2**255 - 19
# The points of small order: with one of these as the key, a single signature holds for any text.
_ORDER_8 = 0x5FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_WEAK = frozenset({0, 1, _FIELD - 1, _ORDER_8, _FIELD - _ORDER_8})
_DATA = struct.Struct(f">{len(_HEAD)}s16sq32s")
_KEY_NAME = re.compile(r"[!-*,-~]{1,100}")
_NOTE = re.compile(
    r"(?P<origin>[!-~]{1,1000})\n(?P<size>0|[1-9][0-9]{0,15})\n(?P<root>[A-Za-z0-9+/]{43}=)\n"
    r"time (?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)\nheads (?P<heads>[0-9a-f]{64})\n"
    r"previous (?P<previous>none|[0-9a-f]{64})\n"
)
_SIGNATURE = re.compile(r"— ([!-*,-~]{1,100}) ([A-Za-z0-9+/]+={0,2})\n")


class Head(NamedTuple):
    """Where one thread stood: its last pos and the entry there. Of the tenant only a hash is kept."""

    thread_uid: UUID
    tenant: bytes
    pos: int
    entry: bytes

    def data(self) -> bytes:
        """What the thread's leaf is the hash of. The thread_uid holds the tenant already."""
        return _DATA.pack(_HEAD, self.thread_uid.bytes, self.pos, self.entry)


def tenant_hash(tenant: str) -> bytes:
    return sha256(_TENANT + tenant.encode()).digest()[:8]


def leaf(data: bytes) -> bytes:
    return sha256(_LEAF + data).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(_NODE + left + right).digest()


class Tree:
    """A Merkle tree that is given its leaves one by one and keeps one hash a level."""

    def __init__(self, leaves: Iterable[bytes] = ()) -> None:
        self.size = 0
        self._peaks: list[bytes] = []
        for each in leaves:
            self.add(each)

    def add(self, hashed: bytes) -> None:
        size = self.size
        while size & 1:
            hashed = _node(self._peaks.pop(), hashed)
            size >>= 1
        self._peaks.append(hashed)
        self.size += 1

    def root(self) -> bytes:
        if not self._peaks:
            return sha256(b"").digest()
        *others, root = self._peaks
        for peak in reversed(others):
            root = _node(peak, root)
        return root


def path(leaves: Callable[[int, int], Iterable[bytes]], index: int, start: int, end: int) -> list[bytes]:
    """The hashes that lead from a leaf to the root of the leaves from `start` to before `end`, from the leaf up."""
    if end - start == 1:
        return []
    middle = start + (1 << ((end - start - 1).bit_length() - 1))
    if index < middle:
        return [*path(leaves, index, start, middle), Tree(leaves(middle, end)).root()]
    return [*path(leaves, index, middle, end), Tree(leaves(start, middle)).root()]


def leads(hashed: bytes, index: int, size: int, hashes: Sequence[bytes], root: bytes) -> bool:
    """Whether a path leads from a leaf to the root of a tree of that size (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    at, last = index, size - 1
    for other in hashes:
        if last == 0:
            return False
        if at & 1 or at == last:
            hashed = _node(other, hashed)
            while not at & 1 and at:
                at >>= 1
                last >>= 1
        else:
            hashed = _node(hashed, other)
        at >>= 1
        last >>= 1
    return last == 0 and hashed == root


class Signer(Protocol):
    """Whatever signs notes by Ed25519: a `SigningKey`, or a key that never leaves its device."""

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> bytes:
        """The public key, 32 bytes."""

    def sign(self, data: bytes, /) -> bytes: ...


class SigningKey:
    """An Ed25519 key in memory and the name it signs under, such as "example.org/audit"."""

    def __init__(self, name: str, private: Any) -> None:
        if type(name) is not str or not _KEY_NAME.fullmatch(name):
            raise InvalidInput("a key's name is 1 to 100 printable ASCII characters without space and +")
        self.name = name
        self._private = private
        self.key: bytes = private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"SigningKey({self.name!r}, key={self.key.hex()})"

    @classmethod
    def generate(cls, name: str) -> Self:
        return cls(name, _ed25519().Ed25519PrivateKey.generate())

    @classmethod
    def from_bytes(cls, name: str, private: bytes) -> Self:
        """From the 32 bytes that `private_bytes` returns."""
        if type(private) is not bytes or len(private) != KEY_BYTES:
            raise InvalidInput("a private key is 32 bytes")
        return cls(name, _ed25519().Ed25519PrivateKey.from_private_bytes(private))

    def private_bytes(self) -> bytes:
        """The secret: keep it where nobody who may write to the database may read."""
        private: bytes = self._private.private_bytes_raw()
        return private

    def sign(self, data: bytes, /) -> bytes:
        signature: bytes = self._private.sign(data)
        return signature


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 — an extra
    except ImportError:
        raise MissingExtra("signing and checking checkpoints", "audit") from None
    return ed25519


def _verifies(key: bytes, signature: bytes, data: bytes) -> bool:
    ed25519 = _ed25519()
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 — an extra

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _key_hash(name: str, key: bytes) -> bytes:
    return sha256(name.encode() + b"\n" + _ED25519 + key).digest()[:4]


@dataclass(frozen=True, slots=True)
class Checkpoint(AsDict):
    """A note that was signed: over how many threads, when, and after which other note.

    `heads` is the SHA-256 of the file that lists them, `previous` the `digest` of the note before, None for the first.
    """

    note: str = field(repr=False)
    origin: str
    size: int
    root: bytes = field(repr=False)
    time: datetime
    heads: str
    previous: str | None
    key: bytes = field(repr=False)

    @property
    def digest(self) -> str:
        """The SHA-256 of what was signed: what the next note names."""
        return sha256(_signed(self.note)[0].encode()).hexdigest()


def origin(signer: Signer, tenant: str | None) -> str:
    """What a note is about: the signer's name, and the tenant it is over unless it is over all."""
    return signer.name if tenant is None else f"{signer.name}/{quote(tenant, safe='')}"


def sign(
    signer: Signer, tenant: str | None, tree: Tree, heads: str, previous: Checkpoint | None, now: datetime
) -> Checkpoint:
    """The note over a tree of heads, after the previous one."""
    moment = now.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    text = "".join((
        f"{origin(signer, tenant)}\n{tree.size}\n{base64.b64encode(tree.root()).decode()}\n",
        f"time {moment}Z\nheads {heads}\nprevious {'none' if previous is None else previous.digest}\n",
    ))  # fmt: skip
    signature = base64.b64encode(_key_hash(signer.name, signer.key) + signer.sign(text.encode())).decode()
    # Reading it back says whether what a signer returned is a signature at all.
    return read(f"{text}\n— {signer.name} {signature}\n", signer.key)


def _signed(note: str) -> tuple[str, str]:
    """The text that is signed and the lines of signatures below it."""
    text, gap, signatures = note.rpartition("\n\n")
    if not gap:
        raise InvalidCheckpoint("this is no signed note")
    return f"{text}\n", signatures


def read(note: object, *keys: bytes) -> Checkpoint:
    """A note as a checkpoint, once it is seen to be signed with one of the public keys.

    Signatures by others, such as witnesses, are passed over.
    """
    text, signatures = _signed(note) if type(note) is str else ("", "")
    found = _NOTE.fullmatch(text)
    if found is None or not signatures or _SIGNATURE.sub("", signatures):
        raise InvalidCheckpoint("this is no note of a checkpoint")
    for name, coded in _SIGNATURE.findall(signatures):
        for key in map(public_key, keys):
            raw = _base64(coded)
            if raw[:4] == _key_hash(name, key) and _verifies(key, raw[4:], text.encode()):
                return _checkpoint(str(note), found, key)
    raise InvalidCheckpoint("no known key signed the note")


def _checkpoint(note: str, found: re.Match[str], key: bytes) -> Checkpoint:
    try:
        moment = datetime.fromisoformat(found["time"])
    except ValueError:
        raise InvalidCheckpoint("the note's time is none") from None
    previous = None if found["previous"] == "none" else found["previous"]
    return Checkpoint(
        note, found["origin"], int(found["size"]), _base64(found["root"]), moment, found["heads"], previous, key
    )


def _base64(coded: str) -> bytes:
    try:
        raw = base64.b64decode(coded, validate=True)
    except binascii.Error:
        raise InvalidCheckpoint("the note is not in base64") from None
    # One text for one value: the spare bits of the last character are zero.
    if base64.b64encode(raw).decode() != coded:
        raise InvalidCheckpoint("the note is not in base64")
    return raw


def public_key(given: object) -> bytes:
    """The 32 bytes of a public key that is given as such or in hexadecimal."""
    if isinstance(given, str):
        try:
            given = bytes.fromhex(given)
        except ValueError:
            given = b""
    if type(given) is not bytes or len(given) != KEY_BYTES:
        raise InvalidInput("a public key must be 32 bytes, or their 64 hexadecimal digits")
    y = int.from_bytes(given, "little") % 2**255
    if y >= _FIELD or y in _WEAK:
        raise InvalidInput("a public key must be one that a signer makes: this one is of small order, or not canonical")
    return given


class Succession:
    """Holds the threads of now, in the order of their thread_uid, against where an earlier checkpoint saw them."""

    def __init__(self, earlier: Iterable[Head]) -> None:
        self._earlier = iter(earlier)
        self._next = next(self._earlier, None)
        self.findings: list[str] = []

    def _find(self, earlier: Head, what: str) -> None:
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(f"thread_uid {earlier.thread_uid}, pos {earlier.pos}: {what}")

    def meet(self, head: Head) -> Head | None:
        """Where the thread stood, if it has grown since: the entry that is there now is to be looked up."""
        while self._next is not None and self._next.thread_uid < head.thread_uid:
            self._gone(self._next)
        earlier = self._next
        if earlier is None or earlier.thread_uid != head.thread_uid:
            return None
        self._next = next(self._earlier, None)
        if head.pos > earlier.pos:
            return earlier
        if head.pos < earlier.pos:
            self._find(earlier, f"the thread ends at pos {head.pos} now")
        else:
            self.holds(earlier, head.entry)
        return None

    def _gone(self, earlier: Head) -> None:
        self._find(earlier, "the thread is gone")
        self._next = next(self._earlier, None)

    def holds(self, earlier: Head, entry: bytes | None) -> None:
        """Given the entry that is at the earlier pos now."""
        if entry != earlier.entry:
            self._find(earlier, "another entry is there now")

    def end(self) -> list[str]:
        """What was found, once every thread of now was met."""
        while self._next is not None:
            self._gone(self._next)
        return self.findings


class Proved(NamedTuple):
    """What a proof shows: at the checkpoint, the thread ended at that pos with that entry."""

    checkpoint: Checkpoint
    pos: int
    entry: bytes


def proof(checkpoint: Checkpoint, head: Head, index: int, hashes: Sequence[bytes]) -> dict[str, Any]:
    """What an export carries to show that a thread is in a checkpoint: first its leaf's data, then the path."""
    return {
        "note": checkpoint.note, "proof": [part.hex() for part in (head.data(), *hashes)], "leaf_index": index,
        "key": checkpoint.key.hex(),
    }  # fmt: skip


def check_proof(carried: Mapping[str, Any], tenant: str, thread_id: str, *keys: bytes | str) -> Proved:
    """Checks what an export carries, with public keys that were not got from it.

    What remains to be seen is that the thread has that entry at that pos.
    """
    try:
        data, *hashes = [bytes.fromhex(part) for part in carried["proof"]]
        index, note = carried["leaf_index"], carried["note"]
        prefix, uid, pos, entry = _DATA.unpack(data)
    except (KeyError, TypeError, ValueError, struct.error):
        raise InvalidCheckpoint("this is no proof that a thread is in a checkpoint") from None
    checkpoint = read(note, *map(public_key, keys))
    if prefix != _HEAD or uid != erasure.thread_uid(tenant, thread_id).bytes or type(index) is not int:
        raise InvalidCheckpoint("the proof is that of another thread")
    if not leads(leaf(data), index, checkpoint.size, hashes, checkpoint.root):
        raise InvalidCheckpoint("the proof does not lead to the checkpoint")
    return Proved(checkpoint, pos, entry)
