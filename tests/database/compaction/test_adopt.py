"""A provider's compaction is put in place of the messages it replaced: the request is then the one it wants."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types.beta import BetaMessage
from openai.types.responses import CompactedResponse
from support.faces import Face, Faces

from compaction_store import CompactionNotFound, InvalidInput, Report, SpanConflict, verify_bundle
from compaction_store.errors import InvalidSpan
from compaction_store.models import Observed, Payload
from compaction_store.models.messages import Erased

SYSTEM = {"role": "system", "content": "Be brief."}
TALK = [
    {"role": "user", "content": "When does the train to Chur leave?"},
    {"role": "assistant", "content": "At 10:07, from track 9."},
    {"role": "user", "content": "And back?"},
    {"role": "assistant", "content": "At 18:32."},
]
ITEM = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAABsealed"}
KEPT = {
    "type": "message", "id": "msg_1", "status": "completed", "role": "user",
    "content": [{"type": "input_text", "text": "And back?"}],
}  # fmt: skip
USAGE = {
    "input_tokens": 139, "output_tokens": 438, "total_tokens": 577, "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 64},
}  # fmt: skip
BLOCK = {"type": "compaction", "content": "Trains: 10:07 out, 18:32 back.", "encrypted_content": "c2VhbGVk"}


def compacted(*output: Payload) -> CompactedResponse:
    """Returns an answer of the compact endpoint as the SDK makes it, unchecked: its type has no messages of users."""
    answer: Any = {
        "id": "resp_1", "object": "response.compaction", "created_at": 1764967971, "output": list(output),
        "usage": USAGE,
    }  # fmt: skip
    return CompactedResponse.construct(**answer)


def reply(*content: Payload) -> BetaMessage:
    return BetaMessage.model_validate(
        {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
            "stop_sequence": None, "content": [*content, {"type": "text", "text": "Bon voyage."}],
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )  # fmt: skip


@pytest.fixture
def other(faces: Faces, other_url: str) -> Face:
    """A store on another database."""
    return faces.open(other_url)


def spans(store: Face, thread: str = "t") -> list[tuple[int, int]]:
    return [(element.seq, element.end_seq) for element in store.view(thread).elements]


def is_sound(report: Report) -> bool:
    return not report.findings


def test_the_output_of_openais_compact_endpoint_replaces_the_view_that_was_sent(store: Face) -> None:
    store.append("t", TALK)
    request = store.view("t").for_openai(api="responses")
    before = request["input"]
    [record] = store.adopt("t", compacted(KEPT, ITEM), view=request, actor="agent")
    assert (record.kind, record.outcome, record.status, record.trigger) == ("adoption", "applied", "active", "provider")
    assert (record.start_seq, record.end_seq, record.callback) == (1, 4, "provider:responses.compact")
    assert (record.summary_text, record.unreadable, record.actor) == (None, True, "agent")
    assert record.replacement == [KEPT, ITEM]
    assert record.usage == USAGE
    assert record.tokens_after is not None
    assert record.tokens_after >= USAGE["output_tokens"]
    assert store.view("t").for_openai(api="responses")["input"] == [KEPT, ITEM]
    assert [m.payload for m in store.replay("t")] == TALK
    assert is_sound(store.audit.verify("t"))

    store.append("t", {"role": "user", "content": "Thanks."})
    assert store.view("t").for_openai(api="responses")["input"] == [KEPT, ITEM, {"role": "user", "content": "Thanks."}]
    store.revoke("t", record.number)
    assert store.view("t").for_openai(api="responses")["input"][:4] == before


def test_messages_appended_meanwhile_stay_behind_it(store: Face) -> None:
    store.append("t", TALK)
    view = store.view("t")
    store.append("t", {"role": "user", "content": "Still there?"})
    store.adopt("t", compacted(ITEM), view=view)
    assert spans(store) == [(1, 4), (5, 5)]


def test_a_compaction_of_the_same_span_meanwhile_is_a_conflict(store: Face) -> None:
    store.append("t", TALK)
    view = store.view("t")
    store.compact("t", lambda ctx: ctx.compact(1, 2, "The train leaves at 10:07."))
    with pytest.raises(SpanConflict):
        store.adopt("t", compacted(ITEM), view=view)
    assert spans(store) == [(1, 2), (3, 3), (4, 4)]


def test_system_messages_stay_before_the_stand_ins(store: Face) -> None:
    store.append("t", [SYSTEM, *TALK[:2], SYSTEM | {"content": "Answer in German."}, *TALK[2:]], raw=True)
    records = store.adopt("t", compacted(KEPT, ITEM), view=store.view("t"))
    assert [(r.start_seq, r.end_seq, len(r.replacement or ())) for r in records] == [(2, 3, 0), (5, 6, 2)]
    assert store.view("t").messages == [SYSTEM, SYSTEM | {"content": "Answer in German."}, KEPT, ITEM]
    assert is_sound(store.audit.verify("t"))


def test_a_system_message_that_the_provider_returns_too_is_not_doubled(store: Face) -> None:
    store.append("t", [SYSTEM, *TALK])
    store.adopt("t", [SYSTEM, KEPT, ITEM], view=store.view("t"))
    assert store.view("t").messages == [SYSTEM, KEPT, ITEM]


def test_a_part_of_the_view_can_be_given(store: Face) -> None:
    store.append("t", TALK)
    [record] = store.adopt("t", [ITEM], view=store.view("t"), start_seq=3)
    assert (record.start_seq, record.end_seq) == (3, 4)


def test_a_reply_of_anthropic_with_a_block_replaces_what_was_before_it(store: Face) -> None:
    store.append("t", [SYSTEM, *TALK])
    answer = reply(BLOCK)
    store.append("t", answer)
    request = store.view("t").for_anthropic()
    [record] = store.adopt("t", answer)
    assert (record.start_seq, record.end_seq, record.replacement) == (2, 5, [])
    assert (record.summary_text, record.unreadable, record.inputs) == (BLOCK["content"], False, (1,))
    # The API ignores what is before the block, and so the request is the same.
    assert store.view("t").for_anthropic() == request
    assert request["messages"][0]["content"][0] == BLOCK
    assert spans(store) == [(1, 1), (2, 5), (6, 6)]
    assert store.view("t").tokens < sum(m.tokens for m in store.replay("t"))
    assert store.adopt("t", answer) == ()
    assert is_sound(store.audit.verify("t"))


def test_the_next_block_replaces_the_first(store: Face) -> None:
    second = BLOCK | {"content": "Both trains are booked."}
    for answer in (reply(BLOCK), reply(second)):
        store.append("t", TALK)
        store.append("t", answer)
        store.adopt("t", answer)
    assert spans(store) == [(1, 9), (10, 10)]
    assert store.view("t").for_anthropic()["messages"][0]["content"][0] == second


def test_a_compaction_item_among_the_output_of_a_response_is_found(store: Face) -> None:
    store.append("t", TALK)
    output = [ITEM, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}]
    store.append("t", output)
    [record] = store.adopt("t", {"object": "response", "output": output})
    assert (record.start_seq, record.end_seq, record.unreadable) == (1, 4, True)
    assert store.view("t").for_openai(api="responses")["input"][0] == ITEM


def test_claude_codes_boundary_is_adopted_and_its_summary_follows(store: Face) -> None:
    boundary = {
        "type": "system", "subtype": "compact_boundary", "uuid": "b-1", "content": "Conversation compacted",
        "compactMetadata": {"trigger": "auto", "preTokens": 900},
    }  # fmt: skip
    summary = {"role": "user", "content": "This session continues: trains at 10:07 and 18:32."}
    store.load.messages(
        "t", [*TALK, Observed("compact_boundary", summary_text=summary["content"], provider=boundary), summary]
    )
    [record] = store.adopt("t", boundary)
    assert (record.start_seq, record.end_seq, record.summary_text) == (1, 4, summary["content"])
    assert store.view("t").messages == [summary]
    assert is_sound(store.audit.verify("t"))


def test_claude_codes_boundary_is_recorded_with_a_given_span_and_summary(store: Face) -> None:
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "b-1"}
    summary = {"role": "user", "content": "Trains at 10:07 and 18:32."}
    store.append("t", [*TALK, summary])
    given = boundary | {"summary_text": summary["content"]}
    with pytest.raises(CompactionNotFound):
        store.adopt("t", given)
    [record] = store.adopt("t", given, start_seq=1, end_seq=len(TALK))
    assert (record.start_seq, record.end_seq, record.summary_text) == (1, len(TALK), summary["content"])
    assert record.body is not None
    assert record.body["provider"] == boundary
    assert store.view("t").messages == [summary]
    assert store.adopt("t", given, start_seq=1, end_seq=len(TALK)) == ()
    assert is_sound(store.audit.verify("t"))


def test_what_codex_continued_with_comes_from_its_line(store: Face) -> None:
    history = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And back?"}]}, ITEM]
    line = {"message": "", "replacement_history": history}
    store.load.messages("t", [*TALK, Observed("compacted", provider=line)])
    [observed] = store.compactions("t")
    [record] = store.adopt("t", observed)
    assert store.view("t").messages == history
    assert (record.unreadable, record.inputs) == (True, (1,))
    assert store.adopt("t", observed) == ()


def test_it_travels_in_a_bundle(store: Face, other: Face) -> None:
    store.append("t", TALK)
    store.adopt("t", compacted(KEPT, ITEM), view=store.view("t"), reason="the agent did", authority={"ticket": "T-1"})
    lines = list(store.audit.export("t"))
    assert not verify_bundle(lines).findings
    other.load.bundle(lines)
    [record] = other.compactions("t")
    assert other.view("t").messages == [KEPT, ITEM]
    assert (record.replacement, record.reason, record.authority) == ([KEPT, ITEM], "the agent did", {"ticket": "T-1"})


def test_erasing_a_message_erases_its_stand_ins(store: Face) -> None:
    store.append("t", TALK)
    store.adopt("t", compacted(KEPT, ITEM), view=store.view("t"))
    store.custody.redact("t", 3, reason="asked")
    assert store.view("t").messages == [TALK[0], TALK[1], Erased(), TALK[3]]
    assert is_sound(store.audit.verify("t"))


@pytest.mark.parametrize(
    ("given", "options", "text"),
    [
        (7, {}, "compaction must be an observed compaction, a reply"),
        ([], {}, "compaction must have at least one message"),
        ([ITEM], {}, "view must be given"),
        ({"role": "assistant", "content": "no block"}, {}, "the reply has no compaction"),
        ([{"type": "compaction"}], {}, "compaction must have a text or encrypted_content"),
        ([{"type": "compaction", "encrypted_content": ""}] * 2, {}, "its items have neither"),
        ([{"role": "assistant", "content": [{"type": "compaction", "content": None}]}], {}, "its items have neither"),
        ([ITEM], {"view": 3}, "view must be a View or its rendering"),
        ([ITEM], {"start_seq": 0}, "start_seq must be an integer >= 1, not 0"),
        ([ITEM], {"start_seq": 4, "end_seq": 2}, "start_seq must be at most end_seq = 2, not 4"),
        ([{"role": "system", "content": "New orders."}], {}, "must not be system messages"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_and_nothing_is_written(
    store: Face, given: Any, options: dict[str, Any], text: str
) -> None:
    store.append("t", TALK)
    if "view must be given" not in text:
        options = {"view": store.view("t"), **options}
    with pytest.raises(InvalidInput, match=text):
        store.adopt("t", given, **options)
    assert store.thread("t").last_pos == 4


def test_a_reply_that_was_not_appended_is_not_found(store: Face) -> None:
    store.append("t", TALK)
    with pytest.raises(CompactionNotFound, match="first append the reply that contains it"):
        store.adopt("t", reply(BLOCK))


def test_a_range_that_ends_inside_a_compaction_is_refused(store: Face) -> None:
    store.append("t", TALK)
    store.compact("t", lambda ctx: ctx.compact(1, 2, "The train leaves at 10:07."))
    with pytest.raises(InvalidSpan, match="must not begin or end inside compaction 1"):
        store.adopt("t", [ITEM], view=store.view("t"), start_seq=2)


def test_an_applied_record_is_not_adopted(store: Face) -> None:
    store.append("t", TALK)
    run = store.compact("t", lambda ctx: ctx.compact(1, 2, "The train leaves at 10:07."))
    with pytest.raises(InvalidInput, match="must be an observed summary, not applied"):
        store.adopt("t", run.records[0])


def test_an_erasure_reaches_the_stand_ins_of_everything_that_the_provider_was_sent(store: Face) -> None:
    """The stand-ins take the place of what follows the last system message, and may repeat what is before it."""
    store.append("t", [*TALK, SYSTEM, *TALK])
    summary = {"role": "user", "content": "A talk of 10:07 and 18:32."}
    written = store.adopt("t", [summary], view=store.view("t"))
    assert [(record.start_seq, record.end_seq) for record in written] == [(1, 4), (6, 9)]
    for seq in (2, 5):
        assert store.custody.redact("t", seq, reason="case 1", dry_run=True).records[-1] == 2
    store.append("t", TALK)
    assert store.custody.redact("t", 12, reason="case 2").records == ()
    assert store.custody.redact("t", 2, reason="case 1").records == (1, 2)
    assert summary not in store.view("t").messages
    assert not store.audit.verify("t").findings
