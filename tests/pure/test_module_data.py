"""The data files beside modules."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest
from support.paths import ROOT

from compaction_store.cli import bundles
from compaction_store.cli.program import VERBS
from compaction_store.module_data import ModuleData
from compaction_store.reporting import envelope

FILES = sorted((ROOT / "compaction_store").rglob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_entry_of_a_data_file_is_used_by_its_module(file: Path) -> None:
    used = file.with_suffix(".py").read_text(encoding="utf-8") + file.read_text(encoding="utf-8")
    # A table is read as a whole.
    names = [name for name, value in ModuleData(str(file)).values.items() if isinstance(value, str)]
    assert [name for name in names if f'"{name}"' not in used and f"{{{name}}}" not in used] == []


def test_every_help_text_is_of_a_parameter_of_a_command() -> None:
    parameters = {verb.function.__name__: set(signature(bundles.expanded(verb.function)).parameters) for verb in VERBS}
    parameters["shared"] = set().union(*parameters.values())
    assert [
        (name, set(texts) - parameters[name]) for name, texts in bundles._HELP.items() if set(texts) - parameters[name]
    ] == []


def test_a_pattern_is_its_lines_without_comments_and_with_the_patterns_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "module.toml").write_text(
        "who = '(?:you|we)'\nrule = '''\n# A rule.\n{who} must\n|\\w{2,3} only\n'''\n"
    )
    data = ModuleData(str(tmp_path / "module.py"))
    assert data.pattern("rule") == r"(?:you|we) must|\w{2,3} only"
    assert re.search(data.pattern("rule"), "we must") is not None
    assert data.words("who") == {"(?:you|we)"}


def test_the_build_that_a_report_names_covers_the_data_files() -> None:
    assert {file.suffix for file in FILES} <= set(envelope._SUFFIXES)
