"""The lengths of stored texts, in bytes of UTF-8. A test compares them with the SQL and with `offline.py`."""

from __future__ import annotations

#: The most bytes of each column, and of two texts in the bodies of records and events.
MOST_BYTES = {
    **dict.fromkeys(
        ("tenant", "thread_id", "subject", "actor", "callback", "trigger", "model", "counter", "login", "lease_actor"),
        255,
    ),
    "role": 64,
    # A key that a caller gives has at most 255 bytes. The key of a chunk of a load has the chunk's number besides.
    "key": 272,
    "receipt": 64 * 1024,
    "payload": 16 * 1024 * 1024,
    "body": 16 * 1024 * 1024,
    "meta": 8 * 1024,
    "metadata": 8 * 1024,
    "reason": 8 * 1024,
    "prompt": 64 * 1024,
}
NAME_BYTES = MOST_BYTES["thread_id"]
