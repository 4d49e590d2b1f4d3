"""A provider's own compaction is recorded with the reply that contains it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from anthropic.types.beta import BetaMessage
from support.faces import Face

from compaction_store import IdempotencyConflict, TokenBudget

BLOCK = {"type": "compaction", "content": "They agreed on Tuesday.", "encrypted_content": "c2VhbGVk"}
SPENT = {
    "type": "compaction", "input_tokens": 900, "output_tokens": 12, "cache_creation": None,
    "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
}  # fmt: skip
EDIT = {"type": "clear_tool_uses_20250919", "cleared_input_tokens": 5000, "cleared_tool_uses": 4}


def reply(*content: dict[str, Any], **more: Any) -> BetaMessage:
    usage = {"input_tokens": 1, "output_tokens": 1, "iterations": [SPENT | {"type": "message", "model": "m"}, SPENT]}
    return BetaMessage.model_validate(
        {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
            "stop_sequence": None, "content": [*content, {"type": "text", "text": "So."}], "usage": usage, **more,
        }
    )  # fmt: skip


def begun(store: Face) -> None:
    store.append("t", [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "Tuesday?"}])
    store.append("t", {"role": "user", "content": "Yes."})


def test_a_compaction_block_in_a_reply_is_on_record_with_all_that_was_before_it(store: Face) -> None:
    begun(store)
    written = store.append("t", reply(BLOCK))
    [record] = store.compactions("t")
    assert (record.kind, record.outcome, record.trigger, record.status) == (
        "summary",
        "observed",
        "provider",
        "observed",
    )
    assert (record.start_seq, record.end_seq, record.pos) == (1, 3, written[0].pos + 1)
    assert (record.callback, record.model, record.actor) == ("provider:compaction", "claude-x", None)
    assert record.summary_text == BLOCK["content"]
    assert record.body is not None
    assert record.body["provider"] == BLOCK
    assert record.body["usage"] == SPENT
    assert [e.seq for e in store.view("t").elements] == [1, 2, 3, 4]
    report = store.audit.verify("t")
    assert (report.findings, report.entries) == ((), 5)


def test_edits_are_on_record_too(store: Face) -> None:
    begun(store)
    store.append("t", reply(context_management={"applied_edits": [EDIT]}))
    [record] = store.compactions("t")
    assert (record.kind, record.outcome, record.start_seq) == ("truncation", "observed", None)
    assert record.callback == "provider:clear_tool_uses_20250919"
    assert record.body == {"provider": EDIT}
    assert not store.audit.verify("t").findings


def test_a_dict_tells_as_much(store: Face) -> None:
    store.append(
        "t",
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [BLOCK], "context_management": {"applied_edits": [EDIT]}, "model": "m"},
            {"type": "compaction", "encrypted_content": "b3BhcXVl", "id": "cmp_1"},
        ],
    )
    found = [(r.kind, r.start_seq, r.end_seq, r.model, r.summary_text) for r in store.compactions("t")]
    assert found == [
        ("summary", 1, 1, "m", BLOCK["content"]), ("truncation", None, None, "m", None), ("summary", 1, 2, None, None),
    ]  # fmt: skip
    assert not store.audit.verify("t").findings


def test_a_compaction_that_came_to_nothing_is_on_record_without_a_span(store: Face) -> None:
    begun(store)
    store.append("t", reply({"type": "compaction", "content": None}))
    [record] = store.compactions("t")
    assert (record.start_seq, record.summary_text) == (None, None)
    assert record.error is not None
    assert record.error["type"] == "NoSummary"


def test_the_first_message_of_a_thread_has_nothing_before_it(store: Face) -> None:
    store.append("t", {"role": "assistant", "content": [BLOCK]})
    [record] = store.compactions("t")
    assert (record.start_seq, record.end_seq, record.outcome) == (None, None, "observed")
    assert not store.audit.verify("t").findings


@pytest.mark.parametrize("count", [1, 2])
def test_a_replay_writes_no_second_record(store: Face, count: int) -> None:
    begun(store)
    messages = [reply(BLOCK), {"role": "user", "content": "Good."}][:count]
    first = store.append("t", messages, key="k")
    again = store.append("t", messages, key="k")
    # The stored payload has no more fields than the reply, so a retry with either gives the same result.
    stored = store.append("t", [m.payload for m in first], key="k")
    assert [m.seq for m in again] == [m.seq for m in first] == [m.seq for m in stored]
    assert len(list(store.compactions("t"))) == 1
    with pytest.raises(IdempotencyConflict):
        store.append("t", reply({**BLOCK, "content": "Other."}), key="k")
    assert len(list(store.compactions("t"))) == 1
    assert not store.audit.verify("t").findings


def test_a_reply_without_its_edits_is_a_replay_of_one_with_them(store: Face) -> None:
    begun(store)
    said = reply(context_management={"applied_edits": [EDIT]})
    [first] = store.append("t", said, key="k")
    [again] = store.append("t", said.to_param(), key="k")
    assert again.seq == first.seq


def test_what_a_provider_did_leaves_our_own_compactions_alone(store: Face) -> None:
    store.append("t", [{"role": "user", "content": "word " * 500}, {"role": "assistant", "content": "yes " * 500}])
    store.append("t", {"role": "user", "content": "And?"})
    budget = TokenBudget(context_window=1500, trigger=500, target=300)

    store.on_compact(lambda ctx: ctx.compact(1, 2, " "))
    assert store.compact("t", budget=budget).reason == "every attempt was rejected"
    assert not list(store.due(budget))
    store.append("t", reply(BLOCK))
    # The thread has not grown enough to be tried again, and the record does not count as growth.
    assert not list(store.due(budget))
    assert store.compact("t", lambda ctx: ctx.compact(1, 2, "They agreed."), budget=budget, force=True).applied


def test_a_failed_append_leaves_no_record(store: Face, superuser: psycopg.Connection[Any]) -> None:
    begun(store)
    with pytest.raises(Exception, match="expected"):
        store.append("t", reply(BLOCK), expected_seq=99)
    assert superuser.execute("SELECT count(*) FROM compaction_store.compactions").fetchone() == (0,)


def test_odd_shapes_tell_of_nothing_and_never_raise(store: Face) -> None:
    for odd in (
        {"role": "assistant", "content": [{"type": ["compaction"]}, 5, None]},
        {"role": "assistant", "context_management": 5},
        {"role": "assistant", "context_management": {"applied_edits": "none"}},
        {"role": "assistant", "context_management": {"applied_edits": [1, None]}, "model": 5, "usage": "much"},
    ):
        store.append("t", odd, raw=True)
    assert not list(store.compactions("t"))
    odd_reply = {"role": "assistant", "content": [BLOCK | {"content": "a\0\ud800"}], "model": "\0"}
    store.append("t", odd_reply | {"usage": {"iterations": [1]}}, raw=True)
    [record] = store.compactions("t")
    assert (record.model, record.summary_text) == (None, "a\0\ud800")
    assert not store.audit.verify("t").findings
