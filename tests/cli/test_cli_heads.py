"""`append --expected-head`, and the heads that the verbs print."""

from __future__ import annotations

import pytest

import compaction_store as cs
from cli.program import Run

_ONE = '{"role":"user","content":"one"}'


def test_an_append_expects_the_head_that_another_verb_printed(run: Run, store: cs.Store) -> None:
    head = run.json("append", "t", stdin=_ONE)[0]["head"]
    assert bytes.fromhex(head) == store.thread("t").head
    told = run("append", "t", "--expected-head", "00" * 32, stdin=_ONE, code=1).stderr
    assert f"expected entry {'00' * 32} at pos 1 and found {head}" in told
    written = run.json("append", "t", "--expected-head", head.upper(), stdin=f"{_ONE}\n{_ONE}")
    assert [m["seq"] for m in written] == [2, 3]
    assert {m["head"] for m in written} == {store.thread("t").head.hex()}
    assert run.json("threads")[0]["head"] == written[0]["head"]


@pytest.mark.parametrize("head", ["", "00", "0" * 63, "0" * 65, "x" * 64, " " + "0" * 64])
def test_what_is_no_head_is_refused(run: Run, store: cs.Store, head: str) -> None:
    told = run("append", "t", "--expected-head", head, stdin=_ONE, code=2).stderr
    assert "64 hexadecimal digits" in " ".join(told.split())
    assert list(store.threads()) == []


def test_lines_that_are_calls_of_their_own_take_no_head(run: Run) -> None:
    assert "--expected-head" in run("append", "t", "--each", "--expected-head", "00" * 32, stdin=_ONE, code=2).stderr
