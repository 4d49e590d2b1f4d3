"""The program imports what a verb needs, and no more: its start is most of the time of a small verb."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from support.paths import ROOT

import compaction_store as cs
from compaction_store import importers, strategies
from compaction_store.cli.choices import STRATEGIES
from compaction_store.cli.import_threads import FORMATS
from compaction_store.cli.program import VERBS

_CODE = """
import os, sys
sys.argv = ["compaction-store", *sys.argv[1:]]
from compaction_store.cli import main
try:
    main()
except SystemExit as end:
    assert end.code in (0, None), end.code
heavy = ["sqlalchemy", "sqlalchemy.ext.asyncio", "psycopg", "alembic", "tiktoken", "rich", "cryptography"]
print(sorted(set(heavy) & set(sys.modules)), file=sys.stderr)
"""


def loaded(*arguments: str, tmp_path: Path, **environment: str) -> str:
    """Returns the large libraries that a run has imported."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *arguments], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    assert done.stdout
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("arguments", [("--version",), ("--help",)], ids=lambda given: given[0])
def test_help_and_version_load_no_library_of_a_database_or_a_terminal(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    assert loaded(*arguments, tmp_path=tmp_path) == "[]"


def test_a_completion_of_a_verb_loads_none_either(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "compaction-store comp", "COMP_CWORD": "1"}
    assert loaded(tmp_path=tmp_path, _COMPACTION_STORE_COMPLETE="complete_bash", **words) == "[]"


def test_neither_the_help_of_a_verb_nor_a_completion_of_its_options_loads_databases(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "compaction-store compact --strat", "COMP_CWORD": "2"}
    assert "sqlalchemy" not in loaded(tmp_path=tmp_path, _COMPACTION_STORE_COMPLETE="complete_bash", **words)
    assert loaded("compact", "--help", tmp_path=tmp_path) == "['rich']"
    every_verb = (
        "import sys\n"
        "from compaction_store.cli.program import VERBS\n"
        "for verb in VERBS:\n"
        "    assert verb.function and not {'sqlalchemy', 'psycopg', 'anthropic'} & set(sys.modules), verb\n"
    )
    subprocess.run([sys.executable, "-c", every_verb], check=True, cwd=ROOT)


def test_import_names_every_format() -> None:
    assert set(FORMATS) == {"bundle", *importers.FORMATS}


def test_each_strategy_of_the_command_line_is_a_class_of_the_package() -> None:
    assert all(isinstance(getattr(strategies, name), type) for name in STRATEGIES.values())


def test_a_verb_on_a_database_loads_nothing_of_migrations_or_async_stores(
    store: cs.Store, url: str, tmp_path: Path
) -> None:
    store.append("t", {"role": "user", "content": "hi"})
    assert loaded("threads", tmp_path=tmp_path, COMPACTION_STORE_URL=url) == "['psycopg', 'rich', 'sqlalchemy']"


def test_every_verb_names_a_function() -> None:
    assert len({verb.place for verb in VERBS}) == len(VERBS) >= 40
    for verb in VERBS:
        assert verb.function.__name__
        assert verb.help


def test_the_root_finds_each_name_where_its_stub_has_it() -> None:
    """Type checkers see the stub, and so does a running program."""
    tree = ast.parse(Path(cs.__file__ or "").with_suffix(".pyi").read_text(encoding="utf-8"))
    imported = {
        alias.name: str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    listed = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    assert all(getattr(cs, name) is getattr(import_module(module), name) for name, module in imported.items())
    assert {*imported, "__version__"} == set(listed)
    assert listed == cs.__all__


def test_public_modules_are_attributes_without_an_import() -> None:
    code = "import compaction_store as cs\nprint(cs.tokens.__name__, cs.errors.__name__, cs.embedded.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"compaction_store.{name}" for name in ("tokens", "errors", "embedded")]
    with pytest.raises(AttributeError, match="module 'compaction_store' has no attribute 'tea'"):
        cs.tea  # type: ignore[attr-defined]  # noqa: B018 — asked for


def test_without_arguments_the_help_is_printed_line_by_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "compaction_store"], capture_output=True, text=True, check=False,
        env={"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 2
    assert (done.stdout + done.stderr).count("\n") > len(VERBS)
