"""A repair revokes a compaction and summarizes its span again in one run, or leaves everything as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.rewinding import SAID, said, shown

import compaction_store as cs
from compaction_store.checks import NothingInvented
from compaction_store.errors import ChecksFailed, CompactionNotFound, Conflict, InvalidCallback
from compaction_store.models.compactions import status_in_words


@pytest.fixture
def folded(store: Any) -> Any:
    store.append("t", [*SAID, said("the last")])
    store.compact("t", lambda ctx: ctx.compact(2, 4, "three"))
    store.compact("t", lambda ctx: ctx.compact(2, 8, "a bad summary", role="assistant", reason="old"), actor="bot")
    return store


def test_the_same_span_is_summarized_again_in_one_run(folded: Any) -> None:
    given: list[Any] = []

    def summarize(elements: Sequence[cs.Element]) -> str:
        given.extend(elements)
        return "a good summary"

    run = folded.repair("t", 2, summarize, reason="the bad one was bad", actor="anna", authority={"ticket": "X-1"})
    assert [(e.seq, e.end_seq, e.kind) for e in given] == [
        (2, 4, "summary"), (5, 5, None), (6, 6, None), (7, 7, None), (8, 8, None)
    ]  # fmt: skip
    revocation, record = run
    assert (revocation.kind, revocation.revokes, record.kind, record.summary_text) == (
        "revocation", 2, "summary", "a good summary",
    )  # fmt: skip
    assert revocation.run_id == record.run_id
    for each in run:
        assert (each.reason, each.actor, each.trigger) == ("the bad one was bad", "anna", "repair")
        assert each.authority == {"ticket": "X-1"}
    assert (record.callback, record.inputs, record.status) == ("repair", (1,), "active")
    assert record.replacement is not None
    assert record.replacement[0]["role"] == "assistant"
    assert run.view == folded.view("t")
    assert shown(run.view) == [1, (2, 8, "summary"), 9, 10, 11]
    assert list(run) == list(folded.compactions("t"))[2:]
    assert status_in_words(folded.compaction("t", 2)) == "revoked by 3"
    assert folded.thread("t").view_tokens == run.view.tokens
    assert folded.audit.verify("t").findings == ()


def test_a_summarizer_that_fails_leaves_the_record_in_force(folded: Any) -> None:
    before = folded.view("t")

    def summarize(_elements: Sequence[cs.Element]) -> str:
        raise OSError("no network")

    run = folded.repair("t", 2, summarize, reason="it was bad")
    assert [(r.outcome, r.kind, r.start_seq, r.end_seq, r.trigger) for r in run] == [
        ("failed", "summary", 2, 8, "repair")
    ]
    assert (type(run.errors[0]), run.reason, run.view) == (OSError, "every attempt failed", before)
    assert folded.view("t").elements == before.elements
    # Asked again at once, it tries again.
    assert folded.repair("t", 2, "a good summary").applied


def test_a_summary_that_a_check_refuses_leaves_the_record_in_force(folded: Any) -> None:
    order = "Never push to main without Ben's approval. " + "We go on. " * 90
    folded.append("t", [said(order), said("yes", "assistant"), said("go on")])
    folded.compact("t", lambda ctx: ctx.compact(12, 13, "they go on"))
    number = folded.thread("t").last_number
    for _ in range(2):
        run = folded.repair("t", number, lambda _: "They use OrderParser2.", checks=[NothingInvented(strict=True)])
        assert [type(error) for error in run.errors] == [ChecksFailed]
        assert [record.outcome for record in run] == ["rejected"]
    assert folded.compaction("t", number).status == "active"


def test_what_the_compaction_was_allowed_to_break_may_be_broken_again(store: Any) -> None:
    store.append("t", SAID)
    store.compact("t", lambda ctx: ctx.compact(8, 10, "the end", allow={"last_user"}))
    assert store.repair("t", 1, "the end of it").applied
    assert store.repair("t", 3, "x " * 500).errors
    assert store.repair("t", 3, "x " * 500, allow={"larger"}).applied


def test_the_frame_of_a_repair_need_not_fit_where_that_of_the_compaction_did_not(store: Any) -> None:
    store.append("t", [said("yes"), said("no"), said("the end")])
    store.compact("t", lambda ctx: ctx.compact(1, 2, "y, n"))
    run = store.repair("t", 1, lambda _: "n, y")
    assert run.applied, run.errors
    assert store.repair("t", 3, "a text that is no shorter than what it replaces").errors


def test_a_removal_becomes_a_summary(store: Any) -> None:
    store.append("t", SAID)
    store.compact("t", lambda ctx: ctx.remove(2, 5))
    assert shown(store.repair("t", 1, "four").view)[1] == (2, 5, "summary")


def test_only_an_active_record_that_replaces_messages_can_be_repaired(folded: Any) -> None:
    folded.rewind("t", 9)
    folded.compact("t", lambda ctx: ctx.compact(1, 1, ""))
    for number, why in ((1, "superseded by 2"), (4, "rejected"), (3, "is a rewind, which has no summary")):
        with pytest.raises(Conflict, match=why):
            folded.repair("t", number, "x")
    folded.revoke("t", 2)
    for number, why in ((2, "revoked by 5"), (5, "it is a revocation")):
        with pytest.raises(Conflict, match=why):
            folded.repair("t", number, "x")
    with pytest.raises(CompactionNotFound):
        folded.repair("t", 99, "x")


def test_a_rival_that_was_faster_voids_it_whole(folded: Any, url: str) -> None:
    def summarize(_elements: Sequence[cs.Element]) -> str:
        with cs.Store.open(url) as rival:
            rival.revoke("t", 2)
        return "too late"

    with pytest.raises(Conflict, match="compaction 2 is not active"):
        folded.repair("t", 2, summarize)
    assert folded.thread("t").last_number == 3


def test_messages_appended_meanwhile_stay(folded: Any, url: str) -> None:
    def summarize(_elements: Sequence[cs.Element]) -> str:
        with cs.Store.open(url) as other:
            other.append("t", said("meanwhile"))
        return "a good summary"

    run = folded.repair("t", 2, summarize)
    assert shown(run.view) == [1, (2, 8, "summary"), 9, 10, 11, 12]
    assert run.view == folded.view("t")


def test_an_async_summarizer_is_awaited(folded: Any) -> None:
    async def summarize(_elements: Sequence[cs.Element]) -> str:
        return "a good summary"

    if folded.runner is None:
        with pytest.raises(InvalidCallback, match="needs an AsyncStore"):
            folded.repair("t", 2, summarize)
    else:
        assert folded.repair("t", 2, summarize)[1].summary_text == "a good summary"


def test_wrong_arguments_are_refused(folded: Any) -> None:
    with pytest.raises(InvalidCallback, match="summarizer must be a callable, a text or a Summary, not int"):
        folded.repair("t", 2, 3)
    with pytest.raises(cs.InvalidInput, match="number must be an integer >= 1"):
        folded.repair("t", 0, "x")
    with pytest.raises(cs.InvalidInput, match="allow must be among"):
        folded.repair("t", 2, "x", allow={"everything"})
    with pytest.raises(cs.InvalidInput, match="reason must be"):
        folded.repair("t", 2, "x", reason=3)
