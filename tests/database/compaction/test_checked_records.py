"""The outcome of checks is in the record, whatever became of the summary, and is erased with it."""

from __future__ import annotations

from typing import Any

import pytest
from support.faces import Face

from compaction_store import CompactionContext
from compaction_store.checks import KeepsOrders, NothingInvented

ORDER = "Never push to main without Ben's approval."
FILLER = "The work on the parser went on, and nothing was remarkable about it. " * 6


@pytest.fixture
def thread(store: Face) -> Face:
    store.append("t", [
        {"role": "user", "content": f"{ORDER} {FILLER}"},
        {"role": "assistant", "content": FILLER},
        {"role": "user", "content": "Go on."},
    ])  # fmt: skip
    return store


def folded(thread: Face, *checks: Any) -> Any:
    def plan(ctx: CompactionContext) -> None:
        ctx.compact(1, 2, "They work on OrderParser2.", checks=checks)

    [record] = thread.compact("t", plan)
    return record


def test_a_record_has_the_outcome_of_its_checks(thread: Face) -> None:
    record = folded(thread, KeepsOrders(), NothingInvented())
    assert record.summary_text.splitlines()[2:] == [f"[1] user: {ORDER}", "In none of the messages: OrderParser2"]
    assert thread.compaction("t", 1) == record
    orders, invented = record.checks["outcomes"]
    assert (orders["check"], orders["asked"], orders["failed"], orders["left"]) == ("KeepsOrders", 1, 1, 0)
    assert [example["text"] for example in invented["examples"]] == ["OrderParser2"]
    assert record.checks["appended"] == 2
    assert f"[1] user: {ORDER}" in thread.view("t").messages[0]["content"]
    assert not thread.audit.verify("t").findings


def test_a_summary_that_fails_a_strict_check_is_recorded_as_rejected(thread: Face) -> None:
    before = thread.view("t").messages
    record = folded(thread, KeepsOrders(strict=True))
    assert (record.outcome, record.summary_text) == ("rejected", None)
    assert (record.error["type"], record.error["text"]) == ("ChecksFailed", "KeepsOrders: 1 of 1 failed")
    assert record.checks["outcomes"][0]["failed"] == 1
    assert thread.view("t").messages == before
    assert list(thread.compactions("t", outcome="rejected")) == [record]


def test_a_redaction_erases_the_examples(thread: Face) -> None:
    folded(thread, KeepsOrders())
    thread.custody.redact("t", 1, reason="it was a mistake")
    assert thread.compaction("t", 1).checks is None
