"""Threads with an entry of a later release that changes views."""

from __future__ import annotations

from collections.abc import Callable

from support.handmade_bundles import Thread

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
