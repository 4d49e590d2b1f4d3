"""After an entry that changes views and is of a kind that this release does not know, no verb shows a view."""

from __future__ import annotations

from typing import Any

import pytest
from support.later_releases import POS, add_event, add_record, folded

import compaction_store as cs
from cli.program import Run


@pytest.fixture(params=[add_event, add_record])
def later(request: pytest.FixtureRequest, store: cs.Store) -> cs.Store:
    store.load.bundle(folded("t", request.param).lines())
    store.append("other", {"role": "user", "content": "hi"})
    return store


@pytest.mark.usefixtures("later")
def test_lists_say_that_the_view_and_the_statuses_are_unknown(run: Run) -> None:
    found: dict[str, Any] = {thread["thread_id"]: thread for thread in run.json("threads")}
    assert (found["t"]["view_tokens"], found["t"]["unknown_pos"]) == (None, POS)
    assert (found["other"]["view_tokens"], found["other"]["unknown_pos"]) == (4, None)
    assert "unknown" in run("threads", "--table").stdout
    records = run.json("compactions", "t")
    assert {record["status"] for record in records} == {"unknown"}
    assert {record["superseded_by"] for record in records} == {None}
    assert "active" not in run("compactions", "t", "--table").stdout
    assert {record["status"] for record in run.json("show", "t", "1")[0].values() if "status" in record} == {"unknown"}
    assert "active" not in run("show", "t", str(len(records)), "--table").stdout
    assert "unknown" in run("tree", "t", "1", "--table").stdout


@pytest.mark.usefixtures("later")
def test_figures_end_before_it(run: Run) -> None:
    [found] = run.json("stats", "t")
    assert (found["view_tokens"], found["unknown_pos"]) == (None, POS)
    assert found["course"] == [[1, 7], [2, 14], [3, 21], [4, 10]]
    assert f"unknown from pos {POS} on" in run("stats", "t", "--table").stdout
    [found] = run.json("stats")
    assert (found["view_tokens"], found["unknown_views"]) == (4, 1)
    assert "without 1 view that cannot be made" in run("stats", "--table").stdout


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    "verb",
    [
        ("view", "t"), ("explain", "t", "1"), ("rewind", "t", "1"), ("clear", "t"), ("revoke", "t", "1"),
        ("fork", "t", "fork"), ("compact", "t", "--window", "10"), ("tree", "t", "last"),
    ],
    ids=lambda verb: verb[0],
)  # fmt: skip
def test_verbs_that_need_the_view_say_why_there_is_none(run: Run, later: cs.Store, verb: tuple[str, ...]) -> None:
    last = str(later.thread("t").last_number)
    told = run(*(last if word == "last" else word for word in verb), code=1).stderr
    assert f"pos {POS}" in told
    assert "does not know" in told


@pytest.mark.usefixtures("later")
def test_what_does_not_need_the_view_works(run: Run) -> None:
    assert run("view", "t", "--at", str(POS - 1), "--table").stdout
    assert len(run.json("replay", "t")) == 4
    assert [found["seq"] for found in run.json("search", "message 4")] == [4]
    assert len(run.json("events", "t")) in (0, 1)
    notes = run.json("verify", "t")[0]["notes"]
    assert f"views from pos {POS} on cannot be judged" in notes[1]
    run("fork", "t", "fork", "--at", str(POS - 1))
    assert run.json("compactions", "fork")[0]["status"] == "active"
    file = str(run.folder / "report.html")
    run("report", "t", "--to", file)
    assert run("verify", file, "--table").stdout.splitlines()[-1] == "1 report, 0 findings"
    shown = (run.folder / "report.html").read_text(encoding="utf-8")
    assert f"unknown from pos {POS} on" in shown
    assert "<td>unknown</td>" in shown
    assert "<td>active</td>" not in shown
