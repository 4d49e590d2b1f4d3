"""Threads with an entry of a later release that changes views."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psycopg

from support.handmade_bundles import Thread
from support.keys import key_of

KIND = "later_kind"
#: The pos of the entry: three messages and a compaction are before it.
POS = 5


def add_event(thread: Thread) -> None:
    thread.event(KIND, '{"any":["thing"]}', critical=True)


def add_record(thread: Thread) -> None:
    thread.compaction('{"any":["thing"]}', start=2, end=3, kind=KIND, tokens_after=0)


def folded(name: str, add: Callable[[Thread], None]) -> Thread:
    """Returns a thread with a compaction before and after the entry. The second compaction covers the first."""
    thread = Thread(thread_id=name)
    for seq in range(1, 4):
        role = "assistant" if seq == 2 else "user"
        thread.message(f'{{"role":"{role}","content":"message {seq}"}}')
    body = '{{"summary_text":"{0}","replacement":[{{"role":"user","content":"{0}"}}]}}'
    thread.compaction(body.format("inner"), start=1, end=2)
    add(thread)
    thread.message('{"role":"assistant","content":"message 4"}')
    thread.compaction(body.format("outer"), start=1, end=3, inputs=[1])
    return thread


def change_views(superuser: psycopg.Connection[Any], thread_id: str, tenant: str = "default") -> None:
    """Writes such an event at the end of a stored thread."""
    superuser.execute(
        """
        SELECT compaction_store.write_event(h, %s, true, 'later', %s, '{"any":["thing"]}')
        FROM compaction_store.heads AS h WHERE h.thread_uid = %s
        """,
        (KIND, os.urandom(16), key_of(superuser, thread_id, tenant)),
    )
