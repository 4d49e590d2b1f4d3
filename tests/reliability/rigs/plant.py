"""`scripts/planted_bugs [WORDS …]`: plants each bug of `planted.py` in a copy of the tree and runs its tests there.

WORDS choose the bugs whose names contain one of them. The exit code is 1 if a bug is not caught, or if its tests fail
without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.paths import ROOT

from reliability.rigs.planted import BUGS, Bug, planted

_LEFT_BEHIND = shutil.ignore_patterns(".git", ".venv", "*.egg-info", "__pycache__", ".*_cache", "dist", "build")
_NO_TESTS_FAILED, _TESTS_FAILED = 0, 1
_LONGEST = 600


def main() -> int:
    words = sys.argv[1:]
    bugs = [bug for bug in BUGS if not words or any(word in bug.name for word in words)]
    if not bugs:
        sys.stderr.write("no bug has such a name\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="cs") as folder:
        tree = Path(folder) / "tree"
        # The embedded server runs under another account, which must be able to enter the folder.
        Path(folder).chmod(0o755)
        shutil.copytree(ROOT, tree, ignore=_LEFT_BEHIND)
        _is_imported(tree)
        if not _sound(tree, bugs):
            return 1
        missed = [bug.name for bug in bugs if not _caught(tree, bug)]
    sys.stdout.write(f"{len(bugs) - len(missed)} of {len(bugs)} bugs are caught\n")
    return 1 if missed else 0


def _environment(tree: Path) -> dict[str, str]:
    """Puts the tree before the installed package. Writes no bytecode, because files change within one second."""
    return os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}


def _is_imported(tree: Path) -> None:
    done = subprocess.run(
        (sys.executable, "-c", "import compaction_store as c; print(c.__file__)"), cwd=tree, env=_environment(tree),
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    if not done.stdout.startswith(str(tree)):
        raise AssertionError(f"the copy is not what is imported, but {done.stdout.strip()}")


def _run(tree: Path, tests: Iterable[str]) -> tuple[int, str]:
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *tests), cwd=tree,
        env=_environment(tree), check=False, capture_output=True, text=True, timeout=_LONGEST,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def _sound(tree: Path, bugs: Iterable[Bug]) -> bool:
    """Checks that the named tests pass without a bug."""
    tests = sorted({test for bug in bugs for test in bug.caught})
    code, said = _run(tree, tests)
    _row("no bug", f"{len(tests)} tests", "passed" if code == _NO_TESTS_FAILED else "FAILED")
    if code != _NO_TESTS_FAILED:
        sys.stdout.write(said[-4000:])
    return code == _NO_TESTS_FAILED


def _caught(tree: Path, bug: Bug) -> bool:
    """Checks that each of its tests catches the bug. One that cannot run here does not count if another catches it."""
    results = []
    with _in_place(tree, bug):
        for test, words in bug.caught.items():
            start = time.monotonic()
            code, said = _run(tree, [test])
            result = _judged(code, said, words)
            results.append(result)
            _row(bug.name, test, f"{result}, {time.monotonic() - start:.0f} s")
            if result not in {"caught", "left out"}:
                sys.stdout.write(said[-4000:])
    return set(results) in ({"caught"}, {"caught", "left out"})


def _judged(code: int, said: str, words: str | tuple[str, ...]) -> str:
    if code == _TESTS_FAILED:
        # The lines of pytest about the failure itself, without the code that led to it.
        reasons = [line for line in said.splitlines() if line.startswith("E  ")]
        wanted = [words] if isinstance(words, str) else words
        found = any(word in reason for word in wanted for reason in reasons)
        return "caught" if found else f"FAILED OTHERWISE, without {words!r}"
    if code == _NO_TESTS_FAILED:
        return "left out" if " skipped" in said else "NOT CAUGHT"
    return f"NOT RUN, pytest returned {code}"


@contextmanager
def _in_place(tree: Path, bug: Bug) -> Iterator[None]:
    made = planted(bug.edits, tree)
    before = {path: path.read_text(encoding="utf-8") for path in made}
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")


def _row(bug: str, test: str, result: str) -> None:
    sys.stdout.write(f"{bug:52} | {test.removeprefix('tests/'):110} | {result}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
