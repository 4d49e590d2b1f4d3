"""What the long-running commands say about themselves, and what they do on signals."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from functools import partial
from pathlib import Path

import httpx
import pytest
from reliability.rigs.proxy import Proxy
from support.agent_sessions import Session
from support.paths import ROOT
from support.scrapes import Sample, get, scraped

import compaction_store as cs
from cli.program import SECRET, Run
from cli.services import NAME, fill, running, until
from compaction_store.telemetry.prometheus import GAUGES

_NOWHERE = "postgresql://postgres@127.0.0.1:1/postgres"
_ASK = ("--window", "1000", "--strategy", "ladder:keep_recent=2", "--every", "0.2")


def test_a_worker_says_what_it_did_and_what_is_due(run: Run, store: cs.Store) -> None:
    fill(store)
    with running(run, "worker", *_ASK) as worker:
        assert get(f"{worker.metrics}/healthz") == (200, "ok\n")
        assert get(f"{worker.metrics}/readyz") == (200, "ready\n")
        assert get(f"{worker.metrics}/other")[0] == 404
        until(worker.lines)
        until(lambda: scraped(worker.metrics).of("compaction_store_due_threads", tenant="default") == 0)
        found = scraped(worker.metrics)
        applied = found.of("compaction_store_compactions_total", compaction_store_outcome="applied")
        assert applied == worker.lines()[0]["applied"]
        calls = {"compaction_store_operation": "compact"}
        assert found.of("compaction_store_operation_duration_seconds_count", **calls) == 1
        assert found.of("compaction_store_operation_duration_seconds_bucket", le="+Inf", **calls) == 1
        assert found.of("compaction_store_database_up") == 1
        assert found.of("compaction_store_info", command="worker", version=cs.__version__) == 1
        assert found.of("compaction_store_worker_runs", state="running") == 0
        assert found.of("compaction_store_worker_slots") == 4
        assert found.of("compaction_store_pool_size") == 5
        assert found.of("compaction_store_worker_search_timestamp_seconds") > 1.7e9
        text = get(f"{worker.metrics}/metrics")[1]
        assert SECRET not in text
        assert NAME not in text
        worker.process.kill(signal.SIGTERM)
        assert worker.process.wait() == 0


def test_leases_and_a_verification_are_metrics(run: Run, store: cs.Store) -> None:
    for name in ("a", "b"):
        fill(store, name)
    store.audit.record_verification(level="content", threads=2, findings=3)
    with running(run, "worker", "--window", "1000", "--strategy", "ours.slow", "--parallel", "1") as worker:
        until(lambda: list(run.folder.glob("begun-*")))
        until(lambda: scraped(worker.metrics).of("compaction_store_leases") == 1)
        found = scraped(worker.metrics)
        assert found.of("compaction_store_due_threads", tenant="default") == 1
        assert found.of("compaction_store_verification_findings", tenant="default") == 3
        [lease] = store.leases(cs.TokenBudget(1000))
        assert found.of("compaction_store_lease_oldest_timestamp_seconds") == lease.since.timestamp()
        [waiting] = store.due(cs.TokenBudget(1000))
        assert waiting.last_message_at is not None
        assert found.of("compaction_store_due_oldest_timestamp_seconds") == waiting.last_message_at.timestamp()
        assert found.of("compaction_store_worker_runs", state="running") == 1
        (run.folder / "go").touch()
        worker.process.kill(signal.SIGTERM)
        assert worker.process.wait() == 0


def test_sighup_makes_a_worker_try_again_and_ends_nothing(run: Run, store: cs.Store) -> None:
    fill(store)
    ask = ("--window", "1000", "--strategy", "ours.mended", "--every", "0.2")
    with running(run, "worker", *ask) as worker:
        until(worker.lines)
        until(lambda: scraped(worker.metrics).of("compaction_store_worker_runs", state="paused") == 1)
        (run.folder / "go").touch()
        # The view has grown, so only the pause keeps the worker from another attempt.
        fill(store)
        worker.process.kill(signal.SIGHUP)
        until(lambda: len(worker.lines()) > 1)
        assert [line["applied"] for line in worker.lines()] == [0, 1]
        assert [line["level"] for line in worker.lines()] == ["warning", "info"]
        assert SECRET not in worker.said
        worker.process.kill(signal.SIGTERM)
        assert worker.process.wait() == 0


def test_a_worker_without_its_database_is_alive_and_not_ready(run: Run, store: cs.Store, url: str) -> None:
    store.append("t", {"role": "user", "content": "hi"})
    with Proxy(url, random.Random(7)) as proxy:
        run.url = proxy.url
        with running(run, "worker", *_ASK) as worker:
            assert get(f"{worker.metrics}/readyz")[0] == 200
            proxy.retarget(_NOWHERE)
            assert get(f"{worker.metrics}/readyz") == (503, "the database does not answer\n")
            assert get(f"{worker.metrics}/healthz") == (200, "ok\n")
            until(lambda: scraped(worker.metrics).of("compaction_store_database_up") == 0)
            assert "compaction_store_due_threads" not in scraped(worker.metrics)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("command", ["serve", "api"])
def test_pages_and_api_have_metrics_and_end_at_a_signal(run: Run, command: str) -> None:
    token = {"sha256": "0" * 64, "tenant": "default", "actor": "a", "rights": "write"}
    (run.folder / "tokens").write_text(json.dumps(token))
    given = ("--token-file", "tokens") if command == "api" else ("--window", "1000")
    with running(run, command, "--listen", "127.0.0.1:0", *given, "--log", "json") as service:
        address = service.served()
        assert get(f"{service.metrics}/healthz") == (200, "ok\n")
        assert get(f"{service.metrics}/readyz") == (200, "ready\n")
        if command == "serve":
            assert httpx.get(address, follow_redirects=False).status_code == 303
        found = scraped(service.metrics)
        assert found.of("compaction_store_info", command=command) == 1
        assert found.of("compaction_store_pool_size") == (16 if command == "api" else 4)
        assert ("compaction_store_due_threads" in found) == (command == "serve")
        service.process.kill(signal.SIGHUP)
        assert get(f"{service.metrics}/healthz") == (200, "ok\n")
        service.process.kill(signal.SIGTERM)
        assert service.process.wait() == 0
    assert {json.loads(line)["logger"] for line in service.said.splitlines()} == {f"compaction_store.{command}"}


@pytest.mark.usefixtures("filled")
def test_the_newest_checkpoint_is_a_metric(run: Run) -> None:
    [made] = run.json("checkpoint", "log", "--key", "key", "--new-key", "example.org/audit")
    given = ("--checkpoints", "log", "--public-key", made["public_key"])
    with running(run, "serve", "--listen", "127.0.0.1:0", *given) as pages:

        def newest() -> Sample:
            name = "compaction_store_checkpoint_timestamp_seconds"
            [found] = [sample for sample in scraped(pages.metrics).samples if sample.name == name]
            return found

        sample = newest()
        assert sample.labels == {"origin": "example.org/audit/default"}
        assert 0 <= time.time() - sample.value < 3600
        # The rule for old checkpoints, as it is in the file: silent today, and an alarm in two days.
        rules = (ROOT / "deploy" / "monitoring" / "alerts.yaml").read_text(encoding="utf-8")
        found_rule = re.search(rf"expr: time\(\) - {sample.name} > (\d+) \* (\d+)\n", rules)
        assert found_rule is not None
        limit = int(found_rule[1]) * int(found_rule[2])
        assert not time.time() - sample.value > limit
        assert time.time() + 48 * 3600 - sample.value > limit
        # A log that is gone, or that cannot be read, raises the same alarm.
        log = run.folder / "log"
        before = log.read_bytes()
        for spoil in (log.unlink, partial(log.write_text, "no checkpoint\n")):
            spoil()
            until(lambda: newest() == Sample(sample.name, {"origin": ""}, 0))
            log.write_bytes(before)
            until(lambda: newest() == sample)


def test_a_watcher_says_what_waits_on_disk(run: Run, url: str, tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.add(5)
    with Proxy(url, random.Random(7)) as proxy:
        run.url = proxy.url
        with running(run, "watch", "--every", "0.1", "--log", "json") as watcher:
            until(lambda: any(line.get("lines") for line in watcher.lines()))
            assert get(f"{watcher.metrics}/readyz") == (200, "ready\n")
            assert scraped(watcher.metrics).of("compaction_store_spool_bytes") == 0
            assert scraped(watcher.metrics).of("compaction_store_messages_total") >= 5
            proxy.retarget(_NOWHERE)
            session.add(3)
            until(lambda: scraped(watcher.metrics).of("compaction_store_spool_bytes") > 0)
            assert get(f"{watcher.metrics}/readyz")[0] == 503
            assert get(f"{watcher.metrics}/healthz") == (200, "ok\n")
            assert scraped(watcher.metrics).of("compaction_store_database_up") == 0
            watcher.process.kill(signal.SIGHUP)
            assert get(f"{watcher.metrics}/healthz") == (200, "ok\n")
            watcher.process.kill(signal.SIGTERM)
            assert watcher.process.wait() == 0


@pytest.mark.parametrize("given", ["nowhere", "127.0.0.1:x", "192.0.2.1:1"])
def test_an_address_that_cannot_be_used_is_refused(run: Run, given: str) -> None:
    done = run("worker", "--window", "1000", "--once", "--metrics", given, code=2)
    assert "--metrics" in done.stderr


def test_every_gauge_has_a_help_text() -> None:
    assert all(text.endswith(".") for text in GAUGES.values())
