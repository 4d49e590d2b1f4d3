"""The examples run unchanged, without a key and without a network, and print what they demonstrate."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
from support.keys import key_of
from support.paths import ROOT

from compaction_store import Store

_EXAMPLES = ROOT / "examples"
_KEYS = {"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"}


def _environment(url: str, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name not in _KEYS}
    return clean | {"COMPACTION_STORE_URL": url, "PYTHONUTF8": "1"} | more


def _run(name: str, url: str, folder: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, str(_EXAMPLES / name), *arguments],
        cwd=folder, env=_environment(url), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def _talk(store: Store, thread: str, count: int) -> None:
    for part in range(1, count + 1):
        role = "user" if part % 2 else "assistant"
        store.append(thread, {"role": role, "content": f"Part {part} of what there is to say. " * 8})


def test_an_agent_on_anthropics_api_is_compacted_and_proved(url: str, tmp_path: Path) -> None:
    printed = _run("anthropic_agent.py", url, tmp_path)
    assert "Order 4722 is on its way." in printed
    assert "49 messages are stored; the model is sent " in printed
    summary = r"^record \d+: seqs 3 to \d+, \d+ tokens to \d+, by claude-haiku-4-5, active$"
    assert re.search(summary, printed, re.MULTILINE)
    assert re.search(r"^the last reply was written from the view at pos \d+: proved$", printed, re.MULTILINE)
    assert printed.endswith("findings: []\n")


def test_an_agent_on_openais_api_is_compacted_and_undone(url: str, tmp_path: Path) -> None:
    printed = _run("openai_loop.py", url, tmp_path)
    assert "Order 4722 is on its way." in printed
    assert re.search(r"^record 1: seqs 2 to \d+, \d+ tokens to \d+, by gpt-4.1-mini, active$", printed, re.MULTILINE)
    assert re.search(r"^record \d+ revokes \d+: the view has \d+ messages again$", printed, re.MULTILINE)


def test_a_nightly_report_finds_nothing_and_then_what_was_changed(
    url: str, superuser: psycopg.Connection[Any], tmp_path: Path
) -> None:
    with Store.open(url) as store:
        for thread in ("t-1", "t-2", "t-3"):
            _talk(store, thread, 12)
        store.compact("t-1", lambda ctx: ctx.compact(1, 8, "They spoke of parts 1 to 8."), actor="nightly")
        store.compact("t-1", lambda ctx: ctx.compact(9, 10, ""), actor="nightly")
        printed = _run("nightly_audit.py", url, tmp_path)
        assert re.search(r"^\| nightly \| - \| applied \| 1 \| \d+ \|$", printed, re.MULTILINE)
        assert "- t-1, record 2: rejected, EmptySummary" in printed
        assert "3 threads, 0 findings" in printed
        assert len(list((tmp_path / "heads").glob("*.json"))) == 1
        store.append("t-1", {"role": "user", "content": "More."})
        store.custody.erase("t-3", reason="the contract has ended")
        assert " 0 findings" in _run("nightly_audit.py", url, tmp_path)

    gone = key_of(superuser, "t-2")
    superuser.execute("SET session_replication_role = replica")
    for table in ("messages", "compactions", "events", "heads", "threads"):
        superuser.execute("ALTER TABLE compaction_store." + table + " DISABLE TRIGGER USER")
    uid = "(SELECT thread_uid FROM compaction_store.threads WHERE thread_id = 't-2')"
    superuser.execute("DELETE FROM compaction_store.messages WHERE thread_uid = " + uid)
    superuser.execute("DELETE FROM compaction_store.heads WHERE thread_uid = " + uid)
    superuser.execute("DELETE FROM compaction_store.threads WHERE thread_id = 't-2'")
    superuser.execute("UPDATE compaction_store.messages SET tokens = tokens + 1 WHERE seq = 13")
    printed = _run("nightly_audit.py", url, tmp_path, code=1)
    assert f"- {gone}: the thread is gone" in printed
    assert "- t-1, pos 15: " in printed
    assert len(list((tmp_path / "heads").glob("*.json"))) == 2, "heads that may be wrong are not kept"
