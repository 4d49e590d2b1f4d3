"""The planted bugs still apply to the tree, and the tests that must catch them are there.

`scripts/planted_bugs` shows that they do catch them, which takes minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paths import ROOT

from reliability.rigs import plant
from reliability.rigs.planted import BUGS, Bug, Edit, Rotten, planted

_LEAST = 10


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_still_be_planted(bug: Bug) -> None:
    for path, text in planted(bug.edits, ROOT).items():
        assert text != path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            compile(text, str(path), "exec")
    assert bug.caught


def test_every_test_that_a_bug_names_is_there() -> None:
    code, said = plant._run(ROOT, ["--collect-only", *sorted({test for bug in BUGS for test in bug.caught})])
    assert code == 0, said[-2000:]


def test_every_bug_has_a_name_of_its_own() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= _LEAST


def test_the_documentation_says_how_many_bugs_there_are() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert f"Of {len(BUGS)} bugs, {len(BUGS)} are caught" in page


@pytest.mark.parametrize("text", ["", "one", "a two a two"])
def test_text_that_is_not_found_exactly_once_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text, encoding="utf-8")
    with pytest.raises(Rotten):
        planted([Edit("file", "a two", "b")], tmp_path)


def test_edits_of_one_file_add_up(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one two", encoding="utf-8")
    made = planted([Edit("file", "one", "1"), Edit("file", "two", "2")], tmp_path)
    assert made == {tmp_path / "file": "1 2"}


@pytest.mark.parametrize(
    ("code", "said", "result"),
    [
        (1, "E   assert 1 == 2", "caught"),
        (1, "E   assert 3 == 2", "caught"),
        (1, "E   assert 4 == 2\n>   assert 1 == 2", "FAILED OTHERWISE"),
        (0, "1 passed", "NOT CAUGHT"),
        (0, "1 skipped", "left out"),
        (4, "not found", "NOT RUN"),
    ],
)
def test_a_test_catches_a_bug_where_it_fails_for_its_reason(code: int, said: str, result: str) -> None:
    assert plant._judged(code, said, ("assert 1 ==", "assert 3 ==")).startswith(result)


@pytest.mark.parametrize(
    ("caught", "is_caught"),
    [
        ({"test_it.py::test_one": "assert 1 == 2", "test_it.py::test_skipped": "assert"}, True),
        ({"test_it.py::test_skipped": "assert"}, False),
    ],
)
def test_a_bug_is_in_place_while_its_tests_are_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caught: dict[str, str], is_caught: bool
) -> None:
    (tmp_path / "it.py").write_text("x = 2\n", encoding="utf-8")
    (tmp_path / "test_it.py").write_text(
        "import pytest\nfrom it import x\n\ndef test_one():\n    assert x == 2\n\n"
        "def test_skipped():\n    pytest.skip('no')\n",
        encoding="utf-8",
    )
    bug = Bug("of a test", (Edit("it.py", "x = 2", "x = 1"),), caught)
    assert plant._caught(tmp_path, bug) == is_caught
    assert "of a test" in capsys.readouterr().out
    assert (tmp_path / "it.py").read_text(encoding="utf-8") == "x = 2\n"
