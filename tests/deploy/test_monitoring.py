"""The alert rules and the dashboard name only metrics that exist, and an old checkpoint raises an alarm."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
from support.paths import ROOT

from compaction_store.telemetry.prometheus import GAUGES, Registry

FOLDER = ROOT / "deploy" / "monitoring"
RULES = (FOLDER / "alerts.yaml").read_text(encoding="utf-8")
PANELS: list[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))["panels"]
EXPRESSIONS = [RULES] + [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_every_name_is_that_of_a_metric() -> None:
    named = {name for text in EXPRESSIONS for name in re.findall(r"compaction_store_[a-z_]+", text)}
    labels = {"compaction_store_outcome", "compaction_store_operation"}
    counted = {
        "compaction_store_compactions_total",
        *(f"compaction_store_operation_duration_seconds_{end}" for end in ("bucket", "count")),
    }
    assert {name.removeprefix("compaction_store_") for name in named - labels - counted} <= GAUGES.keys()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("what", [["check", "rules", "alerts.yaml"], ["test", "rules", "tests.yaml"]])
def test_prometheus_accepts_the_rules_and_an_old_checkpoint_raises_an_alarm(what: list[str]) -> None:
    found = subprocess.run(["promtool", *what], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_labels_are_escaped() -> None:
    text = Registry().text([("due_threads", {"tenant": 'a"b\\c\nd'}, 1)])
    assert text.splitlines()[-1] == r'compaction_store_due_threads{tenant="a\"b\\c\nd"} 1'
