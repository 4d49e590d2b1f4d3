"""Rules of the house that no linter knows."""

from __future__ import annotations

from support.places import ROOT, TESTS

LONGEST_TEST_FILE = 600


def test_no_test_file_is_longer_than_six_hundred_lines() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in TESTS.rglob("*.py")}
    longer = {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > LONGEST_TEST_FILE}
    assert not longer
