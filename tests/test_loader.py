"""The bulk door: chained by the client, copied, and recomputed by the server before the head moves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

import compaction_store as cs
from compaction_store import audit, chain, ledger

KEY = ledger.ThreadKey(chain.thread_uid("default", "t"), "default")


def rows(state: ledger.LoadState, count: int, spoilt: int | None = None) -> Iterator[tuple[Any, ...]]:
    head = state.head
    for i in range(1, count + 1):
        text = json.dumps({"role": "user", "content": f"message {i} \x00"})
        salt = os.urandom(16)
        commitment = chain.commitment(salt, text.encode())
        header = chain.message_header(
            role="user", tokens=3, counter="bytes/4", key=None, call_size=None, receipt=None, meta_commitment=None
        )
        seq, pos = state.last_seq + i, state.last_pos + i
        head = chain.entry(head, pos, seq, audit.microseconds(state.now), chain.leaf(header, commitment))
        stored = None if i == spoilt else salt
        yield (
            KEY.uid, seq, pos, state.now, 3, None, KEY.tenant, "user", "bytes/4", None, stored, commitment, head, None,
            None, text,
        )  # fmt: skip


def load(store: cs.Store, count: int, spoilt: int | None = None) -> None:
    with closing(store._reach.engine.raw_connection()) as connection:
        ledger.load(
            connection, KEY, "t", lambda state: (state.last_seq + count, rows(state, count, spoilt))
        )  # fmt: skip


def test_a_load_continues_the_chain_and_the_next_append_continues_the_load(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", {"role": "user", "content": "before"}, tokens=1)
        load(store, 700)
        assert store.append("t", {"role": "user", "content": "after"}, tokens=1)[0].seq == 702
        thread = store.thread("t")
        assert (thread.last_seq, thread.last_pos, thread.view_tokens) == (702, 702, 1 + 700 * 3 + 1)
        assert store.verify("t").findings == ()
        assert [m.seq for m in store.replay("t")] == list(range(1, 703))


def test_a_thread_may_begin_with_a_load(url: str) -> None:
    with cs.Store.open(url) as store:
        load(store, 5)
        assert store.message("t", 5).payload == {"role": "user", "content": "message 5 \x00"}
        assert store.verify("t").findings == ()


def test_rows_that_do_not_continue_the_chain_leave_nothing(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", {"a": 1})
        with pytest.raises(psycopg.Error, match="do not continue"):
            load(store, 10, spoilt=4)
        assert store.thread("t").last_seq == 1
        load(store, 10)
        assert store.verify("t").entries == 11
