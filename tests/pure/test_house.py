"""Rules of this repository that no linter checks."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import grimp
import pytest
from support.paths import ROOT, TESTS

LONGEST_TEST_FILE = 600
MOST_LINES_LOADED = 23_500
CITUS = ROOT / "migrations" / "sql" / "citus"
# Only these may import SQLAlchemy, psycopg or alembic. `embedded` is the public interface of `postgres_embedded`.
KNOW_THE_DATABASE = {"deploy", "embedded", "migrate", "postgres", "postgres_embedded"}
FRAMEWORKS = {
    "agent_framework",
    "agents",
    "claude_agent_sdk",
    "google",
    "langchain",
    "langchain_core",
    "langgraph",
    "litellm",
    "llama_index",
    "mcp",
    "mcp_types",
    "pydantic_ai",
}


def test_no_test_file_is_longer_than_six_hundred_lines() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in TESTS.rglob("*.py")}
    longer = {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > LONGEST_TEST_FILE}
    assert not longer


@pytest.fixture(scope="module")
def contracts() -> dict[str, dict[str, Any]]:
    """The contracts of lint-imports by their name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {contract["name"]: contract for contract in project["tool"]["importlinter"]["contracts"]}


def importers_of(libraries: set[str]) -> set[str]:
    """The modules and packages of the package that import one of these libraries themselves."""
    found = set()
    for path in (ROOT / "compaction_store").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported = {node.module.partition(".")[0]}
            elif isinstance(node, ast.Import):
                imported = {each.name.partition(".")[0] for each in node.names}
            else:
                continue
            if imported & libraries:
                found.add(path.relative_to(ROOT / "compaction_store").with_suffix("").parts[0])
    return found


def test_only_the_packages_of_the_database_import_its_libraries() -> None:
    assert importers_of({"sqlalchemy", "psycopg", "psycopg_pool", "alembic"}) <= KNOW_THE_DATABASE


def test_only_the_adapters_import_frameworks() -> None:
    assert importers_of(FRAMEWORKS) == {"adapters"}


def test_the_adapters_import_no_other_framework() -> None:
    imported = set()
    for path in (ROOT / "compaction_store" / "adapters").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {each.name.partition(".")[0] for each in node.names}
    ours = {"compaction_store", "pydantic", "pydantic_core"}
    assert imported - sys.stdlib_module_names - ours == FRAMEWORKS


def test_the_packages_are_eleven_layers(contracts: dict[str, dict[str, Any]]) -> None:
    """The table of docs/architecture.md has a row for each."""
    rows = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("| layer |")[1].split("\n\n")[0]
    named = [row for row in rows.splitlines()[2:] if not row.startswith("| |")]
    assert len(named) == len(contracts["Packages import only from the layers below them"]["layers"]) == 11


def test_no_contract_leaves_an_import_out(contracts: dict[str, dict[str, Any]]) -> None:
    assert {contract["type"] for contract in contracts.values()} == {"layers", "acyclic_siblings"}
    assert not [name for name, contract in contracts.items() if "ignore_imports" in contract]


def test_every_sql_file_that_only_a_cluster_runs_says_why_it_is_needed() -> None:
    first = {path: path.read_text(encoding="utf-8").split("\n\n")[0] for path in sorted(CITUS.rglob("*.sql"))}
    assert len(first) > 10
    for path, text in first.items():
        comment = " ".join(line[3:] for line in text.splitlines() if line.startswith("-- "))
        assert "cluster" in comment or "Citus" in comment, path


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not even a package and one of its modules, which `acyclic_siblings` does not compare, or for type annotations."""
    graph = grimp.build_graph("compaction_store", exclude_type_checking_imports=False, cache_dir=None)
    left = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    # A module that imports none of the remaining modules is in no circle.
    while done := {module for module, imported in left.items() if not imported & left.keys()}:
        left = {module: imported for module, imported in left.items() if module not in done}
    assert not left


@pytest.mark.parametrize("store", ["Store", "AsyncStore"])
def test_a_store_loads_no_package_that_few_stores_use(store: str) -> None:
    """The probes alone are a tenth of the package. They are loaded with the first check of a summary."""
    code = (
        f"import compaction_store, sys; compaction_store.{store}\n"
        "from compaction_store.compaction import checked_summary\n"
        "print(*[m.__file__ for n, m in sys.modules.items() if n.startswith('compaction_store')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    files = found.stdout.split()
    packages = {path.parent.name for path in map(Path, files)}
    assert len(files) > 100
    assert not packages & {"probes", "strategies", "summarizers", "evaluation", "importers", "recall", "cli", "web"}
    assert sum(len(Path(file).read_text(encoding="utf-8").splitlines()) for file in files) < MOST_LINES_LOADED
