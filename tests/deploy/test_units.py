"""The units of systemd, as systemd itself reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_nothing_wrong(unit: Path, tmp_path: Path) -> None:
    # systemd wants the program to exist where the unit says.
    program = Path(sys.executable).parent / "compaction-store"
    installed = tmp_path / unit.name
    installed.write_text(
        unit.read_text(encoding="utf-8").replace("/opt/compaction-store/bin/compaction-store", str(program)),
        encoding="utf-8",
    )
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(installed)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (found.returncode, [line for line in found.stderr.splitlines() if unit.name in line]) == (0, [])


def test_there_are_units_of_the_worker_and_of_the_pages() -> None:
    assert [unit.stem for unit in UNITS] == ["compaction-store-pages", "compaction-store-worker"]


def _commands() -> list[str]:
    """Returns the commands of the units and of compose.yaml."""
    units = [re.search(r"^ExecStart=\S+ (.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE) for unit in UNITS]
    composed = re.findall(r"^ {4}command: (.*)$", (ROOT / "compose.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    return [unit[1] for unit in units if unit is not None] + composed


@pytest.mark.parametrize("command", _commands())
def test_the_command_is_one_that_the_program_has_and_shows_its_metrics(command: str) -> None:
    verb, *given = command.split()
    helped = subprocess.run(
        [sys.executable, "-m", "compaction_store", verb, "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    for option in given:
        assert not option.startswith("--") or option in helped.stdout
    assert "--metrics" in given


def test_each_service_is_run_by_a_unit_or_by_compose() -> None:
    assert [command.split()[0] for command in _commands()] == ["serve", "worker", "worker", "api", "mcp", "serve"]
