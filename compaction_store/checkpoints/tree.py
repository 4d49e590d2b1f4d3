"""A Merkle tree as RFC 6962 defines it, and the paths that prove one leaf. Performs no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

_LEAF = b"\x00"
_NODE = b"\x01"


def leaf(data: bytes) -> bytes:
    return sha256(_LEAF + data).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(_NODE + left + right).digest()


class Tree:
    """A Merkle tree to which leaves are added one by one. At most one hash for each level is kept."""

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
    """Returns the hashes that lead from a leaf to the root of the tree over the leaves `start` to `end` - 1."""
    if end - start == 1:
        return []
    middle = start + (1 << ((end - start - 1).bit_length() - 1))
    if index < middle:
        return [*path(leaves, index, start, middle), Tree(leaves(middle, end)).root()]
    return [*path(leaves, index, middle, end), Tree(leaves(start, middle)).root()]


def leads(hashed: bytes, index: int, size: int, hashes: Sequence[bytes], root: bytes) -> bool:
    """Returns whether a path leads from a leaf to the root of a tree of that size (RFC 9162, 2.1.3.2)."""
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
