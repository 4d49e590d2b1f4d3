"""Each promise of the documentation names a test that exists and is run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import promises
from support.paths import ROOT, TESTS

# The lines of these pages that make a promise, and must name a test.
_PROMISING = {
    "docs/why.md": r"^- .*?(?=^- |^#|\Z)",
}


def _run_by_default(file: str) -> set[str]:
    """Returns the tests of a file except those marked slow, and the file itself."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")]
    slow = {each.name for each in functions if "pytest.mark.slow" in map(ast.unparse, each.decorator_list)}
    return {file} | {f"{file}::{each.name}" for each in functions if each.name not in slow}


def test_every_test_that_is_named_is_there_and_is_run() -> None:
    files = {name.partition("::")[0] for name in promises.named()}
    assert files
    collected = set().union(*(_run_by_default(file) for file in files if (ROOT / file).exists()))
    missing = {test: sorted(places) for test, places in promises.named().items() if test not in collected}
    assert not missing


@pytest.mark.parametrize("page", _PROMISING)
def test_every_guarantee_names_a_test(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    if page == "docs/why.md":
        text = text.partition("## The promises")[2].partition("## What is not promised")[0]
    found = re.findall(_PROMISING[page], text, re.MULTILINE | re.DOTALL)
    assert len(found) >= 5
    assert not [promise for promise in found if "`tests/" not in promise]


_CONFTEST = """
from support import promises
from support.promises import pytest_runtest_logreport, pytest_sessionfinish, pytest_terminal_summary
promises._promises = lambda: {"tests/test_it.py::test_one": {"README.md"}, "tests/test_all.py": {"docs/why.md"}}
"""
_SKIPPING = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_one(n):
    if n == 2:
        pytest.skip("no")
"""
_FAILING = "import pytest\n\n\n@pytest.mark.xfail\ndef test_two():\n    assert False\n"
_FINE = "import pytest\n\n\ndef test_three():\n    pass\n\n\ndef test_four():\n    pytest.skip('no')\n"


@pytest.mark.parametrize(
    ("processes", "file", "code", "told"),
    [
        ("0", "test_it.py", _SKIPPING, "tests/test_it.py::test_one[2], named in README.md"),
        ("2", "test_it.py", _SKIPPING, "tests/test_it.py::test_one[2], named in README.md"),
        ("0", "test_all.py", _FAILING, "tests/test_all.py::test_two, named in docs/why.md"),
        ("0", "test_other.py", _FINE, None),
    ],
)
def test_a_promised_test_that_is_skipped_fails_the_run(
    tmp_path: Path, processes: str, file: str, code: str, told: str | None
) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "conftest.py").write_text(_CONFTEST, encoding="utf-8")
    (folder / file).write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", processes, "--rootdir", str(tmp_path), str(folder)],
        cwd=tmp_path, env={"PYTHONPATH": str(TESTS), "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == (0 if told is None else 1), done.stdout + done.stderr
    assert (f"PROMISED but skipped: {told}" in done.stdout) == (told is not None)
