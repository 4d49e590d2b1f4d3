"""The short form of every rig; and that the check of histories finds violations."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable

import pytest
from support.paths import TESTS

from reliability.rigs.catalogue import RIGS, Missing
from reliability.rigs.ground import Postgres
from reliability.rigs.histories import Append, History, Read, _digest, violations


@pytest.mark.parametrize("name", RIGS)
def test_a_rig_holds_in_its_short_form(name: str, own: Postgres) -> None:
    seed = random.SystemRandom().randrange(2**32)
    sys.stdout.write(f"scripts/rigs {name} --seed {seed}\n")
    try:
        figures = RIGS[name](own, random.Random(seed), False)
    except Missing as missing:
        pytest.skip(str(missing))
    assert figures
    sys.stdout.write(f"{figures}\n")


@pytest.mark.parametrize("arguments", [("cluster",), ("cluster", "postgresql://localhost"), ("fuzz", "folder")])
def test_the_rig_of_a_cluster_needs_its_data_folders_and_no_other_does(arguments: tuple[str, ...]) -> None:
    command = (sys.executable, "-m", "reliability.rigs", *arguments)
    ran = subprocess.run(command, check=False, cwd=TESTS, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert "cluster needs a URL and data folders" in ran.stderr


# ---- The check of histories


def read(began: float, ended: float, last: int, marks: str, how: str = "replay") -> Read:
    return Read("t", how, began, ended, (1,) if how == "replay" else (last,), last, _digest(marks.split()))


def sound() -> History:
    """Three appends, the second a batch, and two reads."""
    appends = [
        Append("t", 1.0, 2.0, 2, 2, ("a",)), Append("t", 3.0, 6.0, 3, 4, ("b", "c")),
        Append("t", 5.0, 7.0, 5, 5, ("d",)),
    ]  # fmt: skip
    reads = [read(2.5, 2.8, 2, "0 a"), read(8.0, 9.0, 5, "0 a b c d")]
    return History(appends, reads, {"t": ["0", "a", "b", "c", "d"]})


def test_a_sound_history_has_no_violations() -> None:
    assert violations(sound()) == []


def _reads(one: Read) -> Callable[[History], History]:
    return lambda history: history._replace(reads=[*history.reads, one])


def _swapped(history: History) -> History:
    first, batch, last = history.appends
    return history._replace(appends=[first, batch._replace(began=8.0, ended=9.0), last])


@pytest.mark.parametrize(
    ("word", "spoilt"),
    [
        ("no part of the final list", _reads(read(8.0, 9.0, 5, "0 a c b d"))),
        ("no part of the final list", _reads(read(8.0, 9.0, 6, "0 a b c d e"))),
        ("stale", _reads(read(8.0, 8.5, 4, "0 a b c"))),
        ("backwards", _reads(read(9.5, 9.7, 4, "0 a b c"))),
        ("split", _reads(read(5.0, 5.5, 3, "0 a b"))),
        ("from the future", _reads(read(2.0, 2.5, 4, "0 a b c"))),
        ("reordered", _swapped),
        ("not the appends", lambda history: history._replace(final={"t": ["0", "a", "b", "c", "d", "d"]})),
        ("not the appends", lambda history: history._replace(final={"t": ["0", "a", "b", "d"]})),
    ],
)
def test_a_spoilt_history_is_seen(word: str, spoilt: Callable[[History], History]) -> None:
    found = violations(spoilt(sound()))
    assert any(word in violation for violation in found), found
