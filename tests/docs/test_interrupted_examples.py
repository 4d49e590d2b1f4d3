"""The examples of streaming and resuming: clients that disconnect in mid-stream, and processes that are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from support.paths import ROOT

from compaction_store import Store

_EXAMPLES = ROOT / "examples"


def environment(url: str, **more: str) -> dict[str, str]:
    return os.environ | {"COMPACTION_STORE_URL": url, "PYTHONUTF8": "1"} | more


@pytest.fixture
def address(url: str, tmp_path: Path) -> Iterator[str]:
    """The address of the streaming example, served by uvicorn in a process of its own."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(_EXAMPLES / "streaming.py")],
        cwd=tmp_path, env=environment(url, PORT=str(port)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "running on" in line:
                break
        else:
            pytest.fail("the service did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        rest, _ = process.communicate(timeout=30)
    assert "Traceback" not in rest, rest
    assert "never retrieved" not in rest, rest


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def leave_early(address: str, chat: str, question: str, **headers: str) -> str:
    """Reads a part of an answer and closes the connection. Returns what it has read."""
    with httpx.stream("POST", f"{address}/chats/{chat}", content=question, headers=headers, timeout=30) as answer:
        return next(answer.iter_text())


def replies(store: Store, chat: str) -> list[tuple[str, Any]]:
    return [
        (message.payload["content"], message.meta)
        for message in store.replay(chat)
        if message.payload is not None and message.role == "assistant"
    ]


def test_ten_clients_that_leave_in_mid_stream_leave_no_turn_and_a_part_of_the_answer(
    address: str, url: str, superuser: psycopg.Connection[Any]
) -> None:
    with Store.open(url) as store:
        for times in range(1, 11):
            begin = leave_early(address, "c", f"question {times}")
            # The next question is not refused: it does not wait for the lease of the first.
            until(lambda count=times: _has(store, "c", count))  # type: ignore[misc]
            with store.turn("c", wait=5):
                pass
            text, meta = replies(store, "c")[-1]
            assert text.startswith(begin)
            assert meta == {"complete": False}
        assert superuser.execute("SELECT count(*) FROM compaction_store.turns").fetchall() == [(0,)]

        # A client that asks again at once, before the service has noticed that the first is gone.
        part = leave_early(address, "d", "question 1")
        full = httpx.post(f"{address}/chats/d", content="question 2", timeout=60).text
        assert full.startswith(part)
        [(first, cut), (second, complete)] = replies(store, "d")
        assert (cut, complete, second) == ({"complete": False}, {"complete": True}, full)
        assert full.startswith(first)
        assert len(first) < len(full)
        for chat in ("c", "d"):
            assert store.audit.verify(chat).findings == ()
            assert store.seen_by(chat, 2).evidence == "proved"


def _has(store: Store, chat: str, count: int) -> bool:
    with contextlib.suppress(Exception):
        return len(replies(store, chat)) == count
    return False


def test_every_tenant_of_the_service_has_its_own_chats(address: str, url: str) -> None:
    for tenant in ("a", "b"):
        leave_early(address, "c", f"I am {tenant}", tenant=tenant)
    for tenant in ("a", "b"):
        with Store.open(url, tenant=tenant) as store:
            until(lambda store=store: _has(store, "c", 1))  # type: ignore[misc]
            assert next(m.payload["content"] for m in store.replay("c") if m.payload) == f"I am {tenant}"


@pytest.mark.parametrize("at", ["find_order", "ask_carrier", "refund"])
def test_an_agent_that_is_killed_between_a_call_and_its_result_goes_on(url: str, tmp_path: Path, at: str) -> None:
    def run(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(_EXAMPLES / "resuming_agent.py"), "order-4722"],
            cwd=tmp_path, env=environment(url, **more), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    assert run(KILL_AT=at).returncode == -signal.SIGKILL
    with Store.open(url) as store:
        [call] = store.view("order-4722").pending_calls
        assert (call.name, call.input) == (at, {"order": 4722})
        done = run()
        assert (done.returncode, done.stderr) == (0, "")
        assert f"runs {at} for {call.id}" in done.stdout
        assert done.stdout.endswith("The order is lost; I refunded it.\n")
        view = store.view("order-4722")
        assert (len(view.messages), view.pending_calls) == (8, ())
        assert run().stdout == "The order is lost; I refunded it.\n"
        assert store.thread("order-4722").last_seq == 8
        for reply in (2, 4, 6, 8):
            assert store.seen_by("order-4722", reply).evidence == "proved"
        assert store.audit.verify("order-4722").findings == ()
