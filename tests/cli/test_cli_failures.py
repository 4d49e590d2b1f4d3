"""The list of failed and rejected attempts says in a table why each came to nothing."""

from __future__ import annotations

import pytest

import compaction_store as cs
from cli.program import SECRET, Run
from compaction_store.errors import SummaryTooLong
from compaction_store.summarizers import StateSummary


@pytest.fixture
def failing(store: cs.Store) -> cs.Store:
    """A thread with attempts that failed for four reasons, and one that was rejected."""
    store.append("t", [{"role": "user", "content": f"{SECRET} wrote of the tide. " * 20} for _ in range(8)])
    store.append("t", [{"role": "user", "content": "?"} for _ in range(2)])

    class House:
        model = "claude-haiku-4-5"

        def __init__(self, error: Exception) -> None:
            self.error = error

        def __call__(self, _elements: object) -> str:
            raise self.error

    def tries(ctx: cs.CompactionContext) -> None:
        for error in (OSError(f"{SECRET}\nno route"), SummaryTooLong(SECRET), ValueError(SECRET)):
            with pytest.raises(type(error)):
                ctx.compact(1, 4, House(error))
        with pytest.raises(SummaryTooLong):
            ctx.compact(9, 9, StateSummary())
        with pytest.raises(cs.Rejected):
            ctx.compact(1, 2, "much too long " * 900)

    store.compact("t", tries)
    return store


REASONS = [
    "OSError: the summarizer failed", "SummaryTooLong: the summarizer failed", "ValueError: the summarizer failed",
    "SummaryTooLong: the source of 1 characters is too short for a shorter summary",
]  # fmt: skip


def test_every_failure_has_its_reason_in_one_line(run: Run, failing: cs.Store) -> None:
    lines = run("compactions", "--outcome", "failed", "--table").stdout.splitlines()
    assert [part for part in lines[0].split() if part] == [
        "thread", "number", "written", "seqs", "callback", "model", "error",
    ]  # fmt: skip
    assert len(lines) == 2 + len(REASONS)
    for line, why in zip(lines[2:], REASONS, strict=True):
        assert why in line
    assert "claude-haiku-4-5" in lines[2]
    # The place is behind the text, as in `show`.
    assert lines[2].rstrip().endswith("in __call__)")
    [rejected] = run("compactions", "t", "--outcome", "rejected", "--table").stdout.splitlines()[2:]
    assert "NotSmaller: the summary has" in rejected
    assert SECRET not in "".join(lines) + rejected
    assert len(list(failing.compactions())) == 5


@pytest.mark.parametrize("columns", [200, 140, 100, 80, 70])
def test_on_a_terminal_the_reason_is_shortened_and_never_left_out(run: Run, failing: cs.Store, columns: int) -> None:
    seen = run.on_terminal("compactions", "--outcome", "failed", columns=columns, NO_COLOR="1")
    lines = seen.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert len(lines) == 2 + len(REASONS)
    assert max(map(len, lines)) <= columns
    for line, why in zip(lines[2:], REASONS, strict=True):
        assert why[:20] in line
    assert (columns >= 140) == ("model" in lines[0])
    assert SECRET not in seen
    assert len(list(failing.compactions())) == 5


def test_on_a_very_narrow_terminal_each_is_a_few_lines(run: Run, failing: cs.Store) -> None:
    seen = run.on_terminal("compactions", "--outcome", "failed", columns=50)
    for why in REASONS:
        assert why in " ".join(seen.split())
    assert len(list(failing.compactions())) == 5
