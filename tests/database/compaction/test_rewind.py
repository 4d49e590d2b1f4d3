"""A rewind lets the view end earlier: what it hides, what it revokes, and how appends, reads and audits go on."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.faces import Faces
from support.rewinding import SAID, many, said, shown, unfolded
from support.superuser_edits import as_role

import compaction_store as cs
from compaction_store import offline
from compaction_store.errors import HeadConflict, MessageNotFound, PermissionDenied
from compaction_store.messages import documents
from compaction_store.models.compactions import status_in_words


@pytest.fixture
def filled(store: Any) -> Any:
    store.append("t", SAID)
    return store


def fold(start: int, end: int) -> Any:
    return lambda ctx: ctx.compact(start, end, f"of {start} to {end}", allow={"larger", "last_user"})


def test_the_view_ends_at_the_seq_and_nothing_is_gone(filled: Any) -> None:
    [record] = filled.rewind("t", 6, reason="asked again", actor="anna", authority={"ticket": "X-1"})
    assert shown(filled.view("t")) == [1, 2, 3, 4, 5, 6, (7, 10, "rewind")]
    assert (record.kind, record.start_seq, record.end_seq, record.status) == ("rewind", 7, 10, "active")
    assert (record.reason, record.actor, record.authority) == ("asked again", "anna", {"ticket": "X-1"})
    assert (record.tokens_after, record.replacement, record.trigger) == (0, [], "manual")
    assert [m.payload for m in filled.replay("t")] == SAID
    thread = filled.thread("t")
    assert thread.view_tokens == filled.view("t").tokens == sum(m.tokens for m in filled.replay("t", until=6))


def test_appends_continue_with_the_next_seq(filled: Any) -> None:
    filled.rewind("t", 6)
    [message] = filled.append("t", said("asked in other words"))
    assert message.seq == 11
    assert shown(filled.view("t")) == [1, 2, 3, 4, 5, 6, (7, 10, "rewind"), 11]


def test_revoking_it_shows_what_it_hid(filled: Any) -> None:
    before = filled.view("t")
    [record] = filled.rewind("t", 6)
    filled.append("t", said("later"))
    filled.revoke("t", record.number)
    assert filled.view("t").elements[:-1] == before.elements
    assert filled.thread("t").view_tokens == filled.view("t").tokens


def test_to_the_beginning_is_an_empty_view(filled: Any) -> None:
    filled.rewind("t", 0)
    assert shown(filled.view("t")) == [(1, 10, "rewind")]
    assert filled.view("t").messages == []
    assert filled.clear("t") == ()


def test_where_the_view_ends_already_nothing_is_written(filled: Any) -> None:
    assert filled.rewind("t", 10) == ()
    filled.rewind("t", 6)
    before = filled.thread("t")
    assert [filled.rewind("t", seq) for seq in (6, 7, 9, 10)] == [()] * 4
    assert filled.thread("t") == before


def test_what_was_hidden_stays_hidden(filled: Any) -> None:
    """A rewind by somebody who read the thread before another rewind, or before a clear, shows nothing again."""
    filled.rewind("t", 4)
    filled.append("t", many(11, 13))
    filled.rewind("t", 8)
    assert shown(filled.view("t")) == [1, 2, 3, 4, (5, 13, "rewind")]
    filled.clear("t")
    filled.append("t", many(14, 15))
    filled.rewind("t", 9)
    assert shown(filled.view("t")) == [(1, 15, "rewind")]


def test_a_compaction_beyond_the_seq_is_hidden_with_its_messages(filled: Any) -> None:
    filled.compact("t", fold(7, 9))
    written = filled.rewind("t", 5)
    assert [record.kind for record in written] == ["rewind"]
    filled.revoke("t", written[0].number)
    assert shown(filled.view("t")) == [1, 2, 3, 4, 5, 6, (7, 9, "summary"), 10]


def test_a_compaction_around_the_seq_is_revoked_in_the_same_run(filled: Any) -> None:
    filled.compact("t", fold(4, 6))
    filled.compact("t", fold(3, 8))
    written = filled.rewind("t", 5, reason="asked again")
    assert [(r.kind, r.revokes, r.trigger, r.reason) for r in written] == [
        ("revocation", 2, "rewind", "asked again"),
        ("revocation", 1, "rewind", "asked again"),
        ("rewind", None, "manual", "asked again"),
    ]
    assert len({record.run_id for record in written}) == 1
    assert list(written) == list(filled.compactions("t"))[2:]
    assert shown(filled.view("t")) == [1, 2, 3, 4, 5, (6, 10, "rewind")]


def test_a_compaction_that_ends_at_the_seq_stays(filled: Any) -> None:
    filled.compact("t", fold(3, 6))
    assert len(filled.rewind("t", 6)) == 1
    assert shown(filled.view("t")) == [1, 2, (3, 6, "summary"), (7, 10, "rewind")]


def test_a_rewind_inside_a_compaction_that_is_revoked_hides_as_before(filled: Any) -> None:
    filled.rewind("t", 6)
    filled.append("t", many(11, 14))
    filled.compact("t", fold(3, 12))
    filled.rewind("t", 8)
    assert shown(filled.view("t")) == [1, 2, 3, 4, 5, 6, (7, 14, "rewind")]


def test_later_compactions_may_cover_what_is_hidden(filled: Any) -> None:
    filled.rewind("t", 6)
    filled.append("t", many(11, 14))
    run = filled.compact("t", fold(3, 12))
    assert shown(run.view) == [1, 2, (3, 12, "summary"), 13, 14]
    assert [status_in_words(record) for record in filled.compactions("t")] == ["superseded by 2", "active"]
    [tree] = filled.audit.tree(filled.compaction("t", 2)).inside
    assert tree.record.kind == "rewind"


def test_it_may_part_a_call_from_its_result(store: Any) -> None:
    call = {"id": "c-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        said("what is it?"), {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c-1", "content": "42"}, {"role": "assistant", "content": "It is 42."},
    ]  # fmt: skip
    store.append("t", messages)
    store.append("pending", messages[:2])
    store.rewind("t", 2)
    for api in ("chat", "responses"):
        found = store.view("t").for_openai(api=api)
        assert found == store.view("pending").for_openai(api=api)
    assert store.view("t").for_anthropic() == store.view("pending").for_anthropic()
    run = store.compact("t", fold(1, 4))
    assert [type(error).__name__ for error in run.errors] == ["PendingCall"]


def test_the_last_element_is_popped_message_or_summary(store: Any) -> None:
    """What `pop_item` of a framework does: with one read and one write."""
    store.append("t", SAID)
    store.compact("t", fold(5, 10))
    store.append("t", said("the last"))

    def pop() -> tuple[int, int] | None:
        view = store.view("t")
        last = next((element for element in reversed(view.elements) if element.messages), None)
        if last is None:
            return None
        store.rewind("t", last.seq - 1, view=view)
        return last.seq, last.end_seq

    popped = []
    while (last := pop()) is not None:
        popped.append(last)
    assert popped == [(11, 11), (5, 10), (4, 4), (3, 3), (2, 2), (1, 1)]
    store.append("t", said("anew"))
    assert pop() == (12, 12)
    assert store.audit.verify("t").findings == ()


def test_a_view_that_has_changed_refuses_it(filled: Any) -> None:
    view = filled.view("t")
    filled.append("t", said("meanwhile"))
    with pytest.raises(HeadConflict):
        filled.rewind("t", 9, view=view)
    assert filled.thread("t").last_number == 0
    assert len(filled.rewind("t", 9, view=filled.view("t"))) == 1


def test_a_seq_that_is_not_there_is_refused(filled: Any) -> None:
    with pytest.raises(MessageNotFound, match="no seq 11: the last seq is 10"):
        filled.rewind("t", 11)
    with pytest.raises(cs.ThreadNotFound):
        filled.rewind("nobody", 0)
    for wrong in (-1, True, 1.5, "3", None):
        with pytest.raises(cs.InvalidInput, match="seq must be an integer >= 0"):
            filled.rewind("t", wrong)
    filled.append("u", SAID)
    other = filled.view("u")
    with pytest.raises(cs.InvalidInput, match="view must be a view of thread 't', not of 'u'"):
        filled.rewind("t", 1, view=other)
    with pytest.raises(cs.InvalidInput, match="reason must be text"):
        filled.rewind("t", 1, reason=3)


def test_messages_that_it_hides_can_be_redacted_and_stay_hidden(filled: Any) -> None:
    filled.compact("t", fold(8, 9))
    filled.rewind("t", 6)
    redaction = filled.custody.redact("t", [3, 8], reason="asked for")
    assert (redaction.seqs, redaction.records) == ((3, 8), (1,))
    assert shown(filled.view("t")) == [1, 2, 3, 4, 5, 6, (7, 10, "rewind")]
    assert filled.audit.verify("t").findings == ()
    filled.revoke("t", 2)
    assert shown(filled.view("t")) == list(range(1, 11))


def test_what_the_model_saw_before_is_still_proved(filled: Any) -> None:
    view = filled.view("t")
    [reply] = filled.append("t", said("a reply", "assistant"), view=view)
    filled.rewind("t", 3)
    seen = filled.seen_by("t", reply.seq)
    assert (seen.evidence, seen.view) == ("proved", view)
    explained = filled.audit.explain("t", reply.seq)
    assert ([r.kind for r in explained.records], explained.element.kind) == (["rewind"], "rewind")


@pytest.mark.one_server("it calls functions without a key")
def test_the_same_run_again_writes_nothing(filled: Any, superuser: psycopg.Connection[Any]) -> None:
    filled.compact("t", fold(4, 8))
    again = (
        "SELECT number, kind FROM compaction_store.rewind(NULL, 'default', 't',"
        " '0b7d3a52-5f0c-4b8e-9d7a-111111111111', 5, 'rewind', false, NULL, NULL, '{}', '{\"replacement\":[]}')"
    )
    first, second = (superuser.execute(again).fetchall() for _ in range(2))
    assert first == second == [(2, "revocation"), (3, "rewind")]
    assert filled.audit.verify("t").findings == ()


@pytest.mark.one_server("it calls functions without a key")
@pytest.mark.usefixtures("filled")
def test_an_application_may_rewind_and_an_auditor_may_not(faces: Faces, url: str) -> None:
    auditor = faces.open(as_role(url, "compaction_store_auditor"))
    with pytest.raises(PermissionDenied):
        auditor.rewind("t", 3)
    application = faces.open(as_role(url, "compaction_store_app"))
    application.compact("t", fold(2, 5))
    assert [record.kind for record in application.rewind("t", 3)] == ["revocation", "rewind"]
    application.clear("t", hide=True)
    assert list(application.threads()) == []
    assert application.audit.verify("t").findings == ()
    other = faces.open(as_role(url, "compaction_store_app"), tenant="other")
    with pytest.raises(cs.ThreadNotFound):
        other.rewind("t", 1)


def test_records_that_hide_wrongly_are_refused(filled: Any, superuser: psycopg.Connection[Any]) -> None:
    """By the function that writes them, for clients that call it themselves."""
    for columns, body in (
        ({"start_seq": 3, "end_seq": 9}, {}),
        ({"start_seq": 3, "end_seq": 10, "tokens_after": 5}, {}),
        ({"start_seq": 3, "end_seq": 10}, {"replacement": [{"role": "user", "content": "x"}]}),
        ({"start_seq": 3, "end_seq": 10, "kind": "clear"}, {}),
    ):
        with pytest.raises(psycopg.Error) as refused:
            unfolded(superuser, "t", columns, body)
        assert refused.value.sqlstate in {"CS007", "CS019"}
    unfolded(superuser, "t", {"start_seq": 3, "end_seq": 10}, {})
    assert shown(filled.view("t")) == [1, 2, (3, 10, "rewind")]


def test_a_revocation_that_replaces_is_refused(filled: Any, superuser: psycopg.Connection[Any]) -> None:
    record = filled.rewind("t", 3)[-1]
    columns = {"kind": "revocation", "revokes": record.number, "start_seq": record.start_seq, "end_seq": record.end_seq}
    with pytest.raises(psycopg.Error, match="revocation must have no replacement"):
        unfolded(superuser, "t", columns | {"tokens_after": None}, {})
    assert filled.view("t").messages == filled.view("t", at=record.pos).messages


@pytest.mark.parametrize("kind", ["rewind", "clear"])
def test_both_verifiers_find_a_record_that_hides_and_replaces(kind: str) -> None:
    for replacement, is_sound in (("[]", True), ('[{"role":"user"}]', False)):
        body = f'{{"replacement":{replacement}}}'
        line = {"type": "compaction", "outcome": "applied", "kind": kind}
        assert (documents.record_fault(kind, "applied", body) is None) == is_sound
        assert offline.is_document(line, body) == is_sound
