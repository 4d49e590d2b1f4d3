"""Ranges of seqs and the body of a redaction event."""

from __future__ import annotations

import random
from typing import Any

import pytest

from compaction_store.integrity import erasure


@pytest.mark.parametrize(
    ("wanted", "there", "left"),
    [
        ([(1, 9)], [], [(1, 9)]),
        ([(1, 9)], [(1, 9)], []),
        ([(1, 9)], [(3, 3), (5, 6)], [(1, 2), (4, 4), (7, 9)]),
        ([(1, 2), (4, 5), (9, 9)], [(2, 4)], [(1, 1), (5, 5), (9, 9)]),
        ([(4, 6)], [(1, 2), (3, 4), (6, 9)], [(5, 5)]),
        ([(4, 6), (8, 9)], [(1, 20)], []),
        ([], [(1, 2)], []),
    ],
)
def test_the_ranges_that_are_missing(wanted: Any, there: Any, left: Any) -> None:
    assert erasure.missing(wanted, there) == left


def test_missing_ranges_are_those_of_sets() -> None:
    chosen = random.Random(5)
    for _ in range(2000):
        one, other = ({n for n in range(14) if chosen.random() < 0.5} for _ in range(2))
        left = erasure.missing(erasure.ranges(one), erasure.ranges(other))
        assert left == erasure.ranges(one - other)


@pytest.mark.parametrize(
    "text",
    [
        "null", "[]", "{}", '{"seqs":[]}', '{"seqs":1,"records":[]}', '{"seqs":[[1]],"records":[]}',
        '{"seqs":[[2,1]],"records":[]}', '{"seqs":[[1,2],[3,4]],"records":[]}', '{"seqs":[[5,6],[1,2]],"records":[]}',
        '{"seqs":[[1,2.0]],"records":[]}', '{"seqs":[[true,2]],"records":[]}', '{"seqs":[],"records":["12"]}',
        '{"seqs":[],"records":[],"whole":false}', '{"seqs":[],"records":[],"whole":1}',
        '{"seqs":[],"records":[],"whole":"true"}', '{"seqs":[],"records":[],"whole":null}', "[" * 5000,
    ],
)  # fmt: skip
def test_a_body_that_no_redaction_writes_names_nothing(text: str) -> None:
    assert erasure.named(text) is None


@pytest.mark.parametrize(("whole", "is_whole"), [("", False), ('"whole":true,', True)])
def test_a_redaction_says_whether_it_erased_the_whole_thread(whole: str, is_whole: bool) -> None:
    text = f'{{{whole}"seqs":[[1,2]],"records":[[3,3]],"reason":"r"}}'
    assert erasure.named(text) == erasure.Named([(1, 2)], [(3, 3)], is_whole)
