"""The documentation's blocks run and print what the pages say, and every link leads somewhere."""

from __future__ import annotations

import codeop
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import doc_pages as pages
from support.paths import ROOT, TESTS
from typer.main import get_command

sys.path.insert(0, str(ROOT / "examples"))
import local_model
from cli.program import Forks

from compaction_store import Store
from compaction_store.cli.program import program as commands
from compaction_store.errors import MissingExtra
from compaction_store.store._sync.audit import StoreAudit
from compaction_store.store._sync.custody import Custody
from compaction_store.store._sync.loader import Loader

# Names and threads that a page presupposes.
_FIXTURES = TESTS / "importers" / "fixtures"


def _loads(fixture: str) -> str:
    return f"_sql(open({str(_FIXTURES / fixture)!r}, encoding='utf-8').read())\n"


_BEFORE = {
    "docs/how-to/from-langgraph.md": _loads("langgraph.sql"),
    "docs/how-to/from-openai-sessions.md": _loads("agents.sql"),
}
_WITH_BLOCKS = [path for path in pages.PAGES if pages.blocks(path)]
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    """The address of a fake of the models' APIs."""
    with local_model.serving() as address:
        yield address


@pytest.fixture
def program(forks: Forks, tmp_path: Path) -> Path:
    """A folder with `compaction-store` and `python`, as in an installation."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, command in (("compaction-store", forks.command()), ("python", shlex.quote(sys.executable))):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
    return folder


def test_every_python_block_of_the_documentation_compiles() -> None:
    for path in _WITH_BLOCKS:
        for block in pages.blocks(path):
            if block.kind == "python":
                compile("\n" * (block.line - 1) + block.code, block.where, "exec")


@pytest.mark.parametrize("path", _WITH_BLOCKS, ids=pages.name)
def test_the_blocks_of_a_page_run_in_order_and_print_what_they_say(
    path: Path, url: str, tmp_path: Path, model: str, program: Path, forks: Forks
) -> None:
    if path.parent == ROOT / "docs" / "adapters":
        # scripts/adapters runs these pages, each where its framework is installed.
        pytest.importorskip(f"compaction_store.adapters.{path.stem.replace('-', '_')}", exc_type=MissingExtra)
    blocks = pages.blocks(path)
    environment = os.environ | {
        "COMPACTION_STORE_URL": url, "SOURCE_URL": url, "PYTHONUTF8": "1",
        "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path),
        "PATH": f"{program}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1", "COLUMNS": "120",
        "ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": model,
        "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{model}/v1",
    }  # fmt: skip
    script = tmp_path / "page.py"
    script.write_text(pages.script(blocks, _BEFORE.get(pages.name(path), "")), encoding="utf-8")
    code, printed, complaints = _run(forks, script, environment)
    _, *outputs = printed.split(f"{pages.MARK}\n")
    if code:
        failed = blocks[min(max(len(outputs) - 1, 0), len(blocks) - 1)]
        pytest.fail(f"the block of {failed.where}:{failed.line}\n{printed[-2000:]}\n{complaints}")
    wrong = [
        f"{block.where}:{block.line} printed\n{output}"
        for block, output in zip(blocks, outputs, strict=False)
        if block.output is not None and not pages.matches(block.output, output)
    ]
    assert not wrong, "\n".join(wrong)


def _run(forks: Forks, script: Path, environment: dict[str, str]) -> tuple[int, str, str]:
    """Runs a script by a fork of a process that has the package loaded. Returns its exit code and its output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as null:
        files = [null.fileno(), out.fileno(), err.fileno()]
        running = forks.start((), environment, script.parent, files, script)
        killer = threading.Timer(120, running.kill, [signal.SIGKILL])
        killer.start()
        code = running.wait()
        killer.cancel()
        killer.join()
        out.seek(0)
        err.seek(0)
        return code, out.read().decode(), err.read().decode()


@pytest.mark.parametrize("path", pages.PAGES, ids=pages.name)
def test_what_a_page_links_to_is_there(path: Path) -> None:
    for target in _LINK.findall(path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{pages.name(path)} links to {target}"
        if anchor:
            assert anchor in _anchors(found), f"{pages.name(path)} links to {target}"


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+?) *$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_reference_is_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/reference.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_readmes_picture_is_what_the_program_draws(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/picture.py", "--check"],
        cwd=ROOT, env=os.environ | {"COMPACTION_STORE_URL": url}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_picture_of_the_demo_names_no_machine_and_loads_nothing() -> None:
    picture = (ROOT / "docs" / "pictures" / "demo.svg").read_text(encoding="utf-8")
    assert not re.search(r"@font-face|url\((?!#)|<image|<script|/(?:home|root|tmp|Users)/", picture)
    assert "verify:" in picture.replace("&#160;", " ")


def test_the_architecture_names_every_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = [folder.parent.name for folder in (ROOT / "compaction_store").glob("*/__init__.py")]
    assert len(packages) > 10
    assert [name for name in packages if f"`{name}`" not in page] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


def test_the_first_sentence_of_an_adapters_page_says_what_the_model_sees() -> None:
    pages = sorted(path for path in (ROOT / "docs" / "adapters").glob("*.md") if path.name != "mcp.md")
    assert len(pages) > 8
    for path in pages:
        first = path.read_text(encoding="utf-8").partition("\n\n")[2]
        assert re.match(r"With `Store\w+`, the\s+model sees\s", first), path.name


def test_methods_that_the_pages_name_in_prose_are_there() -> None:
    groups = {"audit": StoreAudit, "custody": Custody, "load": Loader}
    named = 0
    for path in pages.PAGES:
        text = path.read_text(encoding="utf-8")
        found = re.findall(r"`(?:(?:store|reader|Store|AsyncStore|Reader)\.)?(audit|custody|load)\.(\w+)", text)
        missing = [f"{group}.{name}" for group, name in found if not hasattr(groups[group], name)]
        plain = re.findall(r"`(?:store|reader|Store|AsyncStore|Reader)\.(\w+)", text)
        missing += [name for name in plain if not hasattr(Store, name)]
        assert not missing, f"{path.name} names {', '.join(missing)}"
        named += len(found) + len(plain)
    assert named > 100


def test_every_page_can_be_found_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = {target.partition("#")[0] for target in _LINK.findall(index)}
    there = {path.relative_to(ROOT / "docs").as_posix() for path in pages.PAGES if "docs" in path.parts}
    assert there - linked <= {"index.md"}


def test_commands_in_the_documentation_name_verbs_and_options_that_there_are() -> None:
    verbs: dict[str, Any] = get_command(commands).commands  # type: ignore[attr-defined]
    for path in pages.PAGES:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        # Commands in blocks are run. These are the others, in indented lines and in sentences.
        for verb, rest in re.findall(r"(?:^    |[`/]|\| )compaction-store ([a-z]+)([^`\n|]*)", text, re.MULTILINE):
            assert verb in verbs, f"{pages.name(path)}: compaction-store {verb}"
            known = {
                option for parameter in verbs[verb].params for option in (*parameter.opts, *parameter.secondary_opts)
            }
            unknown = set(re.findall(r"(?<= )--[a-z-]+", rest)) - known - {"--help"}
            assert not unknown, f"{pages.name(path)}: compaction-store {verb}{rest}"


def test_the_controls_name_verbs_and_options_that_there_are() -> None:
    verbs: dict[str, Any] = get_command(commands).commands  # type: ignore[attr-defined]
    options = {name: {option for one in verb.params for option in one.opts} for name, verb in verbs.items()}
    rows = re.findall(r"^\| .*", (ROOT / "docs" / "controls.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = [span for row in rows for span in re.findall(r"`([^`]+)`", row)]
    for span in named:
        verb, *rest = span.split()
        known = set().union(*options.values()) if verb.startswith("--") else options[verb]
        assert {word for word in [verb, *rest] if word.startswith("--")} <= known, span
    assert len(named) > 20
    # Each row leads to a page or names a command.
    assert [row for row in rows[1:] if "`" not in row and "](" not in row] == []


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_blocks_of_a_page_can_be_pasted_at_pythons_prompt(page: str) -> None:
    """At the prompt, an indented block must end with an empty line before the next statement."""
    for block in pages.blocks(ROOT / page):
        if block.kind != "python":
            continue
        typed: list[str] = []
        for line in [*block.code.splitlines(), ""]:
            typed.append(line)
            if codeop.compile_command("\n".join(typed), block.where) is not None:
                typed.clear()
        assert not "".join(typed).strip(), f"{page}:{block.line}"
