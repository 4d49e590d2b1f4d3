"""Every program of the documentation and every example passes mypy --strict and pyright, as it would in an editor."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from support import doc_pages as pages
from support.paths import ROOT

_PYRIGHT = ROOT / ".venv-pyright"
_EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples, and with the blocks of each page as one program whose lines keep their numbers."""
    folder = tmp_path_factory.mktemp("programs")
    for path in pages.PAGES:
        program = ""
        for block in pages.blocks(path):
            if block.kind == "python":
                program += "\n" * (block.line - 1 - program.count("\n")) + block.code
        if program:
            name = pages.name(path).removesuffix(".md").replace("/", "_").replace("-", "_")
            (folder / f"{name}.py").write_text(program, encoding="utf-8")
    for example in _EXAMPLES:
        shutil.copy(example, folder)
    assert len(list(folder.iterdir())) > 40
    return folder


def test_the_programs_pass_mypy(programs: Path) -> None:
    # Frameworks of adapters are not installed here, and a page may use a name again, as one does at the prompt.
    options = ("--strict", "--ignore-missing-imports", "--allow-redefinition", "--no-error-summary")
    files = sorted(str(path) for path in programs.glob("*.py"))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", str(programs / "cache"), *files],
        cwd=programs, env={"MYPYPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _pyright() -> Path:
    """Returns pyright, which is installed on first use with its own node; skips the test where that is not possible."""
    program = _PYRIGHT / "bin" / "pyright"
    if not program.exists():
        venv.create(_PYRIGHT, with_pip=True)
        pip = [str(_PYRIGHT / "bin" / "python"), "-m", "pip", "install", "-q", "pyright[nodejs]"]
        installed = subprocess.run(pip, capture_output=True, text=True, check=False)
        if installed.returncode:
            pytest.skip(f"pyright cannot be installed: {installed.stderr[-300:]}")
    version = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False)
    if version.returncode:
        pytest.skip(f"pyright cannot get its node: {version.stderr[-300:]}")
    return program


def test_the_programs_and_examples_pass_pyright(programs: Path) -> None:
    pyright = _pyright()
    options = {"reportMissingImports": False, "reportMissingModuleSource": False, "extraPaths": [str(ROOT)]}
    config = programs / "pyrightconfig.json"
    config.write_text(json.dumps(options | {"include": ["*.py"]}), encoding="utf-8")
    done = subprocess.run(
        [str(pyright), "--project", str(config), "--pythonpath", sys.executable, "--outputjson"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(list(programs.glob("*.py")))
    told = [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in found["generalDiagnostics"]
    ]
    assert told == []
