"""The names of frameworks that are private and that adapters import: a failure says which release has changed them."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

# For each package: the module and what of it an adapter imports.
IMPORTED = {
    "agent-framework-core": [("agent_framework._sessions", "filter_new_messages")],
    "langgraph-checkpoint": [("langgraph.checkpoint.serde.types", "_DeltaSnapshot")],
    "openai-agents": [
        ("agents.memory.session", "_CompactionSnapshot"), ("agents.memory.session", "_await_mutation"),
    ],
    "pydantic-ai-slim": [("pydantic_ai._conversation_marks", "mark_stored")],
}  # fmt: skip
# For each package: the module and a text of it that an adapter depends on.
TEXTS = {
    "openai-agents": [
        ("agents.memory.openai_responses_compaction_session", '"_get_compaction_snapshot"'),
        ("agents.memory.openai_responses_compaction_session", '"_atomic_replace_items"'),
    ],
}


def _cases(of: dict[str, list[tuple[str, str]]]) -> list[tuple[str, str, str]]:
    return [(package, *each) for package, found in of.items() for each in found]


def _release(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize(("package", "module", "name"), _cases(IMPORTED))
def test_a_private_name_is_in_the_release_that_is_installed(package: str, module: str, name: str) -> None:
    release = _release(package)
    try:
        found = importlib.import_module(module)
    except ImportError:
        pytest.fail(f"{release} has no module {module}")
    assert hasattr(found, name), f"{release} has no {module}.{name}"


@pytest.mark.parametrize(("package", "module", "text"), _cases(TEXTS))
def test_the_release_that_is_installed_calls_a_private_hook(package: str, module: str, text: str) -> None:
    release = _release(package)
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"{release} has no module {module}"
    assert spec.origin is not None
    assert text in Path(spec.origin).read_text(encoding="utf-8"), f"{release} does not say {text} in {module}"


def _private() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "compaction_store" / "adapters").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) and node.module else ""
            if not module or module.startswith(("compaction_store", "__")):
                continue
            for each in node.names if isinstance(node, ast.ImportFrom) else ():
                if each.name.startswith("_") or any(part.startswith("_") for part in module.split(".")):
                    yield module, each.name


def test_every_private_name_that_an_adapter_imports_is_listed() -> None:
    assert sorted(set(_private())) == sorted(each for found in IMPORTED.values() for each in found)
