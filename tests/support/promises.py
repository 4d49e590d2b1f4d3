"""Finds the tests of the promises, which the pages and the planted bugs name. None may be missing or skipped.

`conftest.py` imports the two hooks. If one of these tests is skipped, the whole run fails.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest
from reliability.rigs.planted import BUGS

from support import doc_pages as pages

_NAMED = re.compile(r"`(tests/[\w/]+\.py(?:::\w+)*)`")
_skipped: dict[str, str] = {}


def named() -> dict[str, set[str]]:
    """Returns the named tests and files of tests, each with the pages that name it."""
    found = defaultdict(set)
    for test in {test.partition("[")[0] for bug in BUGS for test in bug.caught if "test_rigs" not in test}:
        found[test].add("planted.py")
    for path in pages.PAGES:
        for test in _NAMED.findall(path.read_text(encoding="utf-8")):
            found[test].add(pages.name(path))
    return dict(found)


def promised(nodeid: str) -> str | None:
    """Returns the name by which a page names this test, its id without parameters or its file, or None."""
    test = nodeid.partition("[")[0]
    return next((name for name in (test, test.partition("::")[0]) if name in _promises()), None)


def _promises(known: list[dict[str, set[str]]] = []) -> dict[str, set[str]]:  # noqa: B006 — read once
    if not known:
        known.append(named())
    return known[0]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes skipped tests. With several processes, pytest calls this in the process that collects the results."""
    # An expected failure counts as skipped too, because it proves nothing.
    if report.skipped and promised(report.nodeid) is not None:
        _skipped[report.nodeid] = str(promised(report.nodeid))


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Print nothing in worker processes, which report to the collecting process.
    if _skipped and not hasattr(session.config, "workerinput"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for test, name in sorted(_skipped.items()):
        where = ", ".join(sorted(_promises()[name]))
        terminalreporter.write_line(f"PROMISED but skipped: {test}, named in {where}", red=True)
