"""Measures how often the package says the same fact, and prints a table. Derived files are left out.

`--spread NAME BASE HEAD` adds a row: the files that a change between two commits touched, by hand and in all.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

import grimp

from compaction_store.models import vocabulary

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "compaction_store"
# A file that is derived by a script says so in its first line.
DERIVED = re.compile(r"# Derived|\"\"\"Derived|# Generated|\"\"\"Generated")
FRAGMENT = 60
GENERATED_PAGES = ("docs/reference.md", "docs/cli.md", "docs/strategies.md", "docs/pictures/")


def is_derived(path: Path) -> bool:
    return "_sync" in path.parts or bool(DERIVED.match(path.read_text(encoding="utf-8")))


def sources() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")) if not is_derived(path)}


def count_lines(texts: dict[Path, str]) -> Counter[str]:
    lines: Counter[str] = Counter()
    for path, text in texts.items():
        room = path.relative_to(PACKAGE).parts
        lines[room[0] if len(room) > 1 else "the top"] += len(text.splitlines())
    return lines


def modules_with_one_importer(texts: dict[Path, str]) -> int:
    graph = grimp.build_graph("compaction_store", exclude_type_checking_imports=False, cache_dir=None)
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in texts if path.name != "__init__.py"}
    importers = {
        module: {
            importer.replace("._sync.", "._async.") for importer in graph.find_modules_that_directly_import(module)
        }
        for module in modules & graph.modules
    }
    return sum(len(found) == 1 for found in importers.values())


def class_names_with_two_meanings(texts: dict[Path, str]) -> list[str]:
    names = Counter(
        node.name for text in texts.values() for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in names.items() if count > 1)


def comments(texts: dict[Path, str]) -> int:
    found = 0
    for text in texts.values():
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|fmt:|type:|pragma)", token.string):
                found += 1
    return found


def spelled(texts: dict[Path, str], pattern: str) -> int:
    return sum(bool(re.search(pattern, text)) for text in texts.values())


def files_with_lists_of(texts: dict[Path, str], words: set[str]) -> tuple[int, int]:
    """Returns the files, and the literal lists in them, that spell out at least two of these words."""
    files, lists = 0, 0
    for text in texts.values():
        found = 0
        for node in ast.walk(ast.parse(text)):
            elements: list[ast.expr | None] = []
            if isinstance(node, ast.Tuple | ast.List | ast.Set):
                elements = list(node.elts)
            elif isinstance(node, ast.Dict):
                elements = list(node.keys)
            literal = {each.value for each in elements if isinstance(each, ast.Constant)}
            found += len(words & literal) > 1
        files += bool(found)
        lists += found
    return files, lists


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def loaded_by(what: str) -> dict[str, int]:
    """Returns the lines of each module of the package that the statement loads, in a new interpreter."""
    code = (
        f"{what}; import sys; print(*[m.__file__ for n, m in sys.modules.items() if n.startswith('compaction_store')])"
    )
    files = output_of(sys.executable, "-c", code)
    return {file: len(Path(file).read_text(encoding="utf-8").splitlines()) for file in files.split()}


def names_beside_append() -> int:
    code = "import compaction_store as c; print(*[n for n in dir(c.AsyncStore) if not n.startswith('_')])"
    return len(set(output_of(sys.executable, "-c", code).split()) - {"append"})


def spread(name: str, base: str, head: str) -> tuple[str, str]:
    places = ("compaction_store", "migrations", "docs", "scripts")
    shown = output_of("git", "diff", "--name-only", f"{base}...{head}", "--", *places).split()
    by_hand = [
        file
        for file in shown
        if not file.startswith(GENERATED_PAGES) and not (file.endswith(".py") and is_derived(ROOT / file))
    ]
    return f"files of a change: {name}", f"{len(shown)}, {len(by_hand)} by hand"


def measure() -> list[tuple[str, str]]:
    texts = sources()
    lines = count_lines(texts)
    total = sum(lines.values())
    modules = [path for path in texts if path.name != "__init__.py"]
    files, lists = files_with_lists_of(texts, set(vocabulary.KINDS))
    loaded = loaded_by("import compaction_store; compaction_store.AsyncStore")
    probes = sum(count for file, count in loaded.items() if "/probes/" in file)
    together = "".join(texts.values())
    return [
        ("hand-written lines of the package", f"{total:,}"),
        *((f"  {room}", f"{count:,}") for room, count in sorted(lines.items())),
        ("modules", str(len(modules))),
        ("  of at most 60 lines", str(sum(len(texts[path].splitlines()) <= FRAGMENT for path in modules))),
        ("  with exactly one importer", str(modules_with_one_importer(texts))),
        ("files that spell out the kinds of record; lists", f"{files}; {lists}"),
        ("files that spell out tool_use", str(spelled(texts, r"[\"']tool_use[\"']"))),
        ("class names with two meanings", str(len(class_names_with_two_meanings(texts)))),
        ("file names that end in -ing", str(sum(path.stem.endswith("ing") for path in modules))),
        ("names beside append", str(names_beside_append())),
        ("an AsyncStore loads: modules; lines; of probes", f"{len(loaded)}; {sum(loaded.values()):,}; {probes:,}"),
        ("comments per 100 lines", f"{100 * comments(texts) / total:.1f}"),
        ("fmt: skip; noqa", f"{together.count('fmt: skip')}; {together.count('# noqa')}"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spread", nargs=3, action="append", default=[], metavar=("NAME", "BASE", "HEAD"))
    arguments = parser.parse_args()
    for name, value in measure() + [spread(*each) for each in arguments.spread]:
        print(f"{name:<60} {value:>20}")


if __name__ == "__main__":
    main()
