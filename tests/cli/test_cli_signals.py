"""What the long-running commands do on signals, and their log for programs."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import stat
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest
from reliability.rigs.proxy import Proxy

import compaction_store as cs
from cli.program import SECRET, Run
from cli.services import CALLBACKS, fill, lines, served, until


@pytest.fixture(autouse=True)
def _callbacks(run: Run) -> None:
    (run.folder / "ours.py").write_text(CALLBACKS)


def test_a_run_that_takes_too_long_is_given_up_with_its_lease(run: Run, store: cs.Store) -> None:
    fill(store)
    with run.in_background("worker", "--window", "1000", "--strategy", "ours.slow", "--grace", "0.5") as (worker, path):
        until(lambda: list(run.folder.glob("begun-*")))
        assert len(store.leases(cs.TokenBudget(1000))) == 1
        worker.kill(signal.SIGTERM)
        assert worker.wait() == 1
        assert "gave up 1 run" in path.read_text()
    assert store.leases(cs.TokenBudget(1000)) == ()
    ask = ("--window", "1000", "--strategy", "ladder:keep_recent=2", "--once")
    assert "1 compacted" in run("worker", *ask).stderr


def test_the_log_can_be_lines_of_json(run: Run, store: cs.Store) -> None:
    fill(store)
    ask = ("--window", "1000", "--strategy", "ours.mended", "--every", "0.2", "--log", "json")
    with run.in_background("worker", *ask) as (worker, path):
        until(lambda: any("failed" in line for line in lines(path.read_text())))
        worker.kill(signal.SIGTERM)
        assert worker.wait() == 0
        found = [json.loads(line) for line in path.read_text().splitlines()]
    assert SECRET not in path.read_text()
    assert all(line["level"] in ("info", "warning") and re.fullmatch("20.*T.*Z", line["time"]) for line in found)
    said = [line for line in found if "message" in line]
    assert {line["logger"] for line in said} == {"compaction_store.worker", "compaction_store"}
    assert any(line["message"].startswith("worker for tenant 'default'") for line in said)
    [failure] = [line for line in said if line["level"] == "warning"]
    assert failure["message"].startswith("a callback or summarizer failed: ValueError")


@pytest.mark.parametrize("command", ["worker", "serve", "api"])
def test_a_log_of_json_says_why_a_command_could_not_begin(run: Run, command: str) -> None:
    (run.folder / "tokens").write_text(
        json.dumps({"sha256": "0" * 64, "tenant": "default", "actor": "a", "rights": "write"})
    )
    run.url = "postgresql://u:hunter2@127.0.0.1:1/d"
    given = {"worker": ("--window", "1000"), "serve": (), "api": ("--token-file", "tokens")}[command]
    [said] = [json.loads(line) for line in run(command, *given, "--log", "json", code=3).stderr.splitlines()]
    assert (said["level"], said["logger"]) == ("error", f"compaction_store.{command}")
    assert "127.0.0.1:1" in said["message"]
    assert "hunter2" not in said["message"]
    assert run(command, *given, code=3).stderr.startswith("compaction-store: ")


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("command", ["serve", "api"])
def test_pages_and_api_outlive_sighup_and_end_at_a_signal(run: Run, command: str) -> None:
    token = {"sha256": "0" * 64, "tenant": "default", "actor": "a", "rights": "write"}
    (run.folder / "tokens").write_text(json.dumps(token))
    given = ("--token-file", "tokens") if command == "api" else ()
    with run.in_background(command, "--listen", "127.0.0.1:0", *given, "--log", "json") as (process, path):
        address = served(path.read_text)
        process.kill(signal.SIGHUP)
        place = f"{address}healthz" if command == "api" else address
        assert httpx.get(place).status_code == (200 if command == "api" else 303)
        process.kill(signal.SIGTERM)
        assert process.wait() == 0
        loggers = {json.loads(line)["logger"] for line in path.read_text().splitlines()}
    assert loggers <= {f"compaction_store.{command}", "compaction_store.web.access"}


@pytest.mark.usefixtures("filled")
def test_an_access_log_that_is_moved_away_is_begun_anew(run: Run) -> None:
    log = run.folder / "access.jsonl"
    with (
        run.in_background("serve", "--listen", "127.0.0.1:0", "--access-log", str(log)) as (process, path),
        httpx.Client(follow_redirects=True) as reader,
    ):
        reader.get(served(path.read_text)).raise_for_status()
        page = served(path.read_text).partition("?")[0] + "thread?id=t-1"
        reader.get(page).raise_for_status()
        before = log.read_text()
        log.rename(run.folder / "access.old")
        process.kill(signal.SIGHUP)
        reader.get(page).raise_for_status()
        assert [line["page"] for line in lines(log.read_text())] == ["thread"]
        assert (run.folder / "access.old").read_text() == before
        assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.usefixtures("filled")
def test_a_second_signal_ends_the_pages_although_a_request_is_being_answered(run: Run, url: str) -> None:
    with Proxy(url, random.Random(7)) as proxy:
        run.url = proxy.url
        with (
            run.in_background("serve", "--listen", "127.0.0.1:0") as (process, path),
            httpx.Client(follow_redirects=True) as reader,
        ):
            reader.get(served(path.read_text)).raise_for_status()
            proxy.hush()
            with pytest.raises(httpx.ReadTimeout):
                reader.get(served(path.read_text).partition("?")[0] + "thread?id=t-1", timeout=0.5)
            process.kill(signal.SIGTERM)
            # Two signals at once may arrive as one. After the first, the pages take no more connections.
            until(lambda: not _is_open(served(path.read_text)))
            process.kill(signal.SIGTERM)
            assert process.wait() == 128 + signal.SIGTERM


def _is_open(address: str) -> bool:
    parts = urlsplit(address)
    with suppress(ConnectionRefusedError), socket.create_connection((parts.hostname, parts.port)):
        return True
    return False
