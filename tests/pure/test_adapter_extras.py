"""An adapter whose framework is missing names the extra that its page names."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.paths import ROOT

PAGES = sorted(path.stem for path in (ROOT / "docs" / "adapters").glob("*.md"))
# The packages of the frameworks, which are missing for the import.
PROGRAM = """
import importlib, sys
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {
            "agent_framework", "agents", "claude_agent_sdk", "google", "langchain", "langchain_core", "langgraph",
            "litellm", "llama_index", "mcp", "pydantic_ai",
        }:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Missing())
from compaction_store.errors import MissingExtra
try:
    importlib.import_module("compaction_store.adapters." + sys.argv[1])
except MissingExtra as error:
    print(error.extra)
"""


@pytest.mark.parametrize("page", PAGES)
def test_the_error_for_a_missing_framework_names_the_extra_of_the_page(page: str) -> None:
    text = (ROOT / "docs" / "adapters" / f"{page}.md").read_text(encoding="utf-8")
    named = re.search(r"Install\s+the\s+adapter\s+with\s+the\s+extras?\s+`([^`]+)`", text)
    assert named is not None
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, page.replace("-", "_")], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == named[1]
