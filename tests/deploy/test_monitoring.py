"""All that the alert rules and the dashboard name is in a scrape of the commands that they are about.

`scripts/check` has the rules tried by Prometheus's own tool, where that can be had.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from cli.program import Forks, Run
from cli.services import LONGER, fill, running, until
from support.agent_sessions import Session
from support.paths import ROOT
from support.scrapes import Sample, scraped

import compaction_store as cs
from compaction_store.telemetry.prometheus import GAUGES, Registry

FOLDER = ROOT / "deploy" / "monitoring"
#: The labels that Prometheus itself gives.
OF_PROMETHEUS = {"instance", "job"}
_METRIC = re.compile(r"\bcompaction_store_\w+(?:\{([^}]*)\})?")
_GROUPED = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
_MATCHER = re.compile(r'(\w+)\s*(=|!=)\s*"([^"]*)"')


class Wanted(NamedTuple):
    """A metric as an expression uses it: the labels that it must have, and conditions for their values."""

    where: str
    name: str
    labels: frozenset[str]
    matchers: tuple[tuple[str, str, str], ...]

    def fits(self, sample: Sample) -> bool:
        return (
            sample.name == self.name
            and self.labels <= sample.labels.keys()
            and all(
                name in sample.labels and (sample.labels[name] == value) == (how == "=")
                for name, how, value in self.matchers
            )
        )


def wanted(where: str, expression: str, labels: Iterable[str]) -> Iterator[Wanted]:
    grouped = {label.strip() for group in _GROUPED.findall(expression) for label in group.split(",")}
    needed = frozenset({*grouped, *labels} - OF_PROMETHEUS)
    for found in _METRIC.finditer(_GROUPED.sub("", expression)):
        yield Wanted(where, found[0].partition("{")[0], needed, tuple(_MATCHER.findall(found[1] or "")))


def all_wanted() -> list[Wanted]:
    _, *rules = (FOLDER / "alerts.yaml").read_text(encoding="utf-8").split("- alert: ")
    found: list[Wanted] = []
    for rule in rules:
        expression = re.search(r"expr: (?:>-)?(.*?)\n +(?:for|labels):", rule, re.DOTALL)
        assert expression is not None, rule
        found += wanted(rule.split()[0], expression[1], re.findall(r"\$labels\.(\w+)", rule))
    panels: list[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    for panel in panels:
        for target in panel["targets"]:
            found += wanted(panel["title"], target["expr"], re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert len(found) > len(rules) + len(panels) - 2
    return found


@pytest.fixture
def run(forks: Forks, url: str, tmp_path: Path) -> Run:
    return Run(forks, tmp_path, url)


@pytest.fixture
def seen(run: Run, url: str, tmp_path: Path) -> list[Sample]:
    """What a worker, the pages and a watcher say, after each of the things happened that they report."""
    found: list[Sample] = []
    with cs.Store.open(url) as store:
        for name in (LONGER, "another"):
            fill(store, name)
        store.audit.record_verification(level="content", threads=2, findings=0)
    [made] = run.json("checkpoint", "log", "--key", "key", "--new-key", "example.org/audit")
    with running(run, "worker", "--window", "1000", "--strategy", "ours.slow", "--parallel", "1") as worker:
        until(lambda: "compaction_store_lease_oldest_timestamp_seconds" in scraped(worker.metrics))
        found += scraped(worker.metrics).samples
        (run.folder / "go").touch()
        until(lambda: len(worker.lines()) > 1)
        found += scraped(worker.metrics).samples
    given = ("--checkpoints", "log", "--public-key", made["public_key"])
    with (
        running(run, "serve", "--listen", "127.0.0.1:0", *given) as pages,
        httpx.Client(follow_redirects=True) as reader,
    ):
        reader.get(pages.served()).raise_for_status()
        assert reader.get(pages.served().partition("?")[0] + "thread?id=nobody").status_code == 404
        found += scraped(pages.metrics).samples
    Session(tmp_path).add(5)
    with running(run, "watch") as watcher:
        found += scraped(watcher.metrics).samples
    return found


def test_all_that_rules_and_panels_use_is_in_a_scrape(seen: list[Sample]) -> None:
    missing = [need for need in all_wanted() if not any(map(need.fits, seen))]
    assert missing == []
    assert {f"compaction_store_{name}" for name in GAUGES} <= {sample.name for sample in seen}


def test_every_alert_is_tried() -> None:
    alerts = re.findall(r"- alert: (\w+)", (FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
    tries = (FOLDER / "tests.yaml").read_text(encoding="utf-8")
    fires = re.findall(r"alertname: (\w+)\n +exp_alerts:\n +- exp_labels", tries)
    silent = re.findall(r"alertname: (\w+), exp_alerts: \[\]", tries)
    assert set(fires) == set(silent) == set(alerts)


def test_labels_are_escaped() -> None:
    text = Registry().text([("due_threads", {"tenant": 'a"b\\c\nd'}, 1)])
    assert text.splitlines()[-1] == r'compaction_store_due_threads{tenant="a\"b\\c\nd"} 1'
