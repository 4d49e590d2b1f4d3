"""Idempotency keys: what makes the repetition of a write harmless."""

from __future__ import annotations

import os
import time
from binascii import b2a_base64

from compaction_store import arguments

_MADE_HERE = "~"
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_IN_ORDER = bytes.maketrans(_ALPHABET, b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")


def new() -> str:
    """A key that nobody has used. It starts with the time: so a thread's new keys are together in the index."""
    moment = (time.time_ns() // 1_000_000).to_bytes(6)
    return _MADE_HERE + b2a_base64(moment + os.urandom(10), newline=False).translate(_IN_ORDER, b"=").decode()


class Key:
    """The key of one call, through all its attempts. A new one is looked for only where it was sent before."""

    __slots__ = ("_fresh", "text")

    def __init__(self, given: str | None) -> None:
        if given is not None:
            arguments.check_key(given)
        self.text = new() if given is None else given
        self._fresh = given is None

    def is_fresh(self) -> bool:
        """Whether nothing can have been written under it: true once, for the first attempt."""
        fresh, self._fresh = self._fresh, False
        return fresh
