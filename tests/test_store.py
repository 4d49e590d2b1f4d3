"""What both faces do with threads, from the first append on."""

from __future__ import annotations

from typing import Any

import pytest

import compaction_store as cs


def test_what_is_appended_is_what_replay_returns(store: Any) -> None:
    messages = [{"role": "user", "content": "hi"}, {"type": "function_call", "call_id": "c", "arguments": "{}"}]
    written = [store.append("t", messages[0])[0], store.append("t", messages[1])[0]]
    assert [m.payload for m in store.replay("t")] == messages
    assert list(store.replay("t")) == written
    assert [(m.seq, m.pos, m.role) for m in written] == [(1, 1, "user"), (2, 2, None)]


def test_reading_an_unknown_thread_says_so(store: Any) -> None:
    for read in (
        lambda: list(store.replay("nobody")),
        lambda: store.view("nobody"),
        lambda: store.thread("nobody"),
        lambda: store.message("nobody", 1),
        lambda: store.verify("nobody"),
    ):
        with pytest.raises(cs.ThreadNotFound, match="nobody"):
            read()
