"""A program that appends when its main thread has ended, or while it exits."""

from __future__ import annotations

import subprocess
import sys

import pytest

import compaction_store as cs
from compaction_store.errors import CounterFailed

_APPEND = """
def append(url):
    import compaction_store as cs
    with cs.Store.open(url) as store:
        store.append("t", {"role": "user", "content": "hello"})
        assert store.view("t").tokens > 1
"""
_THREAD = """
import threading, sys
def work():
    threading.main_thread().join()
    append(sys.argv[1])
threading.Thread(target=work).start()
"""
_EXIT = """
import atexit, sys
atexit.register(append, sys.argv[1])
"""
_EXIT_OPEN = """
import atexit, sys
import compaction_store as cs
store = cs.Store.open(sys.argv[1])
atexit.register(store.append, "t", {"role": "user", "content": "hello"})
"""


@pytest.mark.parametrize("code", [_THREAD, _EXIT, _EXIT_OPEN], ids=["thread", "exit", "exit, opened before"])
def test_a_message_is_counted_and_stored_however_late(url: str, code: str) -> None:
    done = subprocess.run(
        (sys.executable, "-c", _APPEND + code, url), capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    with cs.Store.open(url) as store:
        [message] = store.replay("t")
    assert message.payload == {"role": "user", "content": "hello"}
    assert message.tokens == cs.tokens.o200k_base().tokens({"role": "user", "content": "hello"}, 0)


def test_a_count_that_fails_says_what_the_counter_raised(url: str) -> None:
    class Unhappy(Exception):
        pass

    def counter(_message: object) -> int:
        raise Unhappy("hello")

    with cs.Store.open(url, counter=counter) as store, pytest.raises(CounterFailed, match="Unhappy") as caught:
        store.append("t", {"role": "user", "content": "hello"})
    assert "hello" not in str(caught.value)
