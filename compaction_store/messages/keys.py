"""Idempotency keys. A write with a key can be retried without being stored twice."""

from __future__ import annotations

import os
import time
from binascii import b2a_base64

from compaction_store import arguments

_MADE_HERE = "~"
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_IN_ORDER = bytes.maketrans(_ALPHABET, b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")


def new() -> str:
    """Makes a unique key. It begins with the time, so that a thread's newest keys are close together in the index."""
    moment = (time.time_ns() // 1_000_000).to_bytes(6)
    return _MADE_HERE + b2a_base64(moment + os.urandom(10), newline=False).translate(_IN_ORDER, b"=").decode()


class Key:
    """The key of one call and of its retries: the caller's, or a new one, whose first attempt needs no lookup."""

    __slots__ = ("_fresh", "text")

    def __init__(self, given: str | None) -> None:
        if given is not None:
            arguments.check_key(given)
        self.text = new() if given is None else given
        self._fresh = given is None

    def is_fresh(self) -> bool:
        """Returns whether the key cannot be in use yet, which is true only for the first attempt with a new key."""
        fresh, self._fresh = self._fresh, False
        return fresh
