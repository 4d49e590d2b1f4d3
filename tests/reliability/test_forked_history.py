"""A decision made on a view is written to the history that the view was read from, or not at all.

After an asynchronous failover, or a restore to an earlier moment, a thread can have other entries at the same pos. The
tests replace the database by a copy while callbacks run and others write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.faces import Face
from support.keys import key_of
from support.rewound_database import Fork, forked
from support.view_base import base

import compaction_store as cs

# The functions look up the key by the name.
UID = None
BUDGET = cs.TokenBudget(context_window=1_000, trigger=0.5, target=0.2)


def orders(what: str, count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"{what} {i}"} for i in range(count)]


@pytest.fixture
def fork(store: Face, url: str) -> Iterator[Fork]:
    """Ten messages that stay, and fourteen more that the copy does not have."""
    store.append("t", orders("kept", 10), tokens=40)
    with forked(url) as made:
        store.append("t", orders("lost", 14), tokens=40)
        yield made


def fail_over(fork: Fork, url: str, others: int) -> None:
    fork.restore()
    if others:
        with cs.Store.open(url) as other:
            other.append("t", orders("new", others), tokens=40)


def unchanged(store: Face, last_seq: int) -> None:
    """Nothing was committed; what others wrote is in the view, as it was written."""
    assert list(store.compactions("t")) == []
    view = store.view("t")
    assert [element.seq for element in view.elements] == list(range(1, last_seq + 1))
    assert store.thread("t").last_pos == last_seq
    assert store.audit.verify("t").findings == ()


def summarized(ctx: cs.CompactionContext) -> None:
    ctx.compact(11, 20, "the customer cancelled ten orders")


def shortened(ctx: cs.CompactionContext) -> None:
    ctx.replace(11, 11, [{"role": "user", "content": "short"}])


def removed(ctx: cs.CompactionContext) -> None:
    ctx.remove(12, 13)


def of_what_was_kept(ctx: cs.CompactionContext) -> None:
    ctx.compact(1, 3, "three")


def failing(ctx: cs.CompactionContext) -> None:
    ctx.compact(11, 20, lambda _elements: "")


@pytest.mark.parametrize(
    "decide", [summarized, shortened, removed, of_what_was_kept, failing], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("others", [20, 14, 3, 0])
def test_a_compaction_of_what_is_lost_is_refused(store: Face, url: str, fork: Fork, others: int, decide: Any) -> None:
    def during(ctx: cs.CompactionContext) -> None:
        fail_over(fork, url, others)
        decide(ctx)

    with pytest.raises(cs.SpanConflict, match="another entry at pos 24"):
        store.compact("t", during)
    unchanged(store, 10 + others)


def test_the_same_callback_on_the_view_as_it_is_now_is_committed(store: Face, url: str, fork: Fork) -> None:
    fail_over(fork, url, 20)
    run = store.compact("t", summarized)
    assert [(record.start_seq, record.end_seq, record.outcome) for record in run] == [(11, 20, "applied")]
    assert run.view.head == store.thread("t").head
    assert store.audit.verify("t").findings == ()


def test_a_run_under_a_budget_gives_its_lease_back(store: Face, url: str, fork: Fork) -> None:
    def during(ctx: cs.CompactionContext) -> None:
        fail_over(fork, url, 20)
        summarized(ctx)

    with pytest.raises(cs.SpanConflict):
        store.compact("t", during, budget=BUDGET)
    unchanged(store, 30)
    assert store.compact("t", summarized, budget=BUDGET).applied


def test_fit_returns_the_view_of_the_history_that_is(store: Face, url: str, fork: Fork) -> None:
    def during(ctx: cs.CompactionContext) -> None:
        fail_over(fork, url, 3)
        summarized(ctx)

    view = store.fit("t", BUDGET, during)
    assert [message["content"] for message in view.messages[10:]] == ["new 0", "new 1", "new 2"]
    unchanged(store, 13)


def test_what_a_budget_measured_before_does_not_hold_for_another_view_of_the_same_pos(
    store: Face, url: str, fork: Fork
) -> None:
    counted = []

    def count(view: cs.View) -> int:
        counted.append(view.head)
        if len(counted) == 1:
            fail_over(fork, url, 14)
        return 950

    budget = cs.TokenBudget(context_window=1_000, trigger=0.5, target=0.2, counter=count)
    store.compact("t", lambda ctx: ctx.compact(11, 20, "ten new orders"), budget=budget)
    assert len(set(counted[:2])) == 2
    assert store.audit.verify("t").findings == ()


@pytest.mark.parametrize(("others", "there"), [(20, True), (14, True), (0, False)])
@pytest.mark.parametrize("rendered", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_a_reply_to_a_view_that_is_lost_is_refused(
    store: Face, url: str, fork: Fork, others: int, there: bool, rendered: bool, count: int
) -> None:
    seen = store.view("t")
    fail_over(fork, url, others)
    reply = [{"role": "assistant", "content": "done"}] * count
    with pytest.raises(cs.HeadConflict) as caught:
        store.append("t", reply, view=seen.for_anthropic() if rendered else seen)
    assert caught.value.expected == seen.head
    assert caught.value.actual == (store.view("t", at=24).head if there else None)
    unchanged(store, 10 + others)
    # An append with a current view is accepted, and so is one without a view.
    with cs.Store.open(url) as other:
        other.append("t", reply, view=other.view("t"))
        other.append("t", reply)
    assert store.seen_by("t", 11 + others).evidence == "proved"


def test_a_reply_to_a_view_of_what_was_kept_is_stored(store: Face, url: str, fork: Fork) -> None:
    seen = store.view("t", at=7)
    fail_over(fork, url, 20)
    [reply] = store.append("t", {"role": "assistant", "content": "done"}, view=seen)
    assert (reply.seq, store.seen_by("t", reply.seq).evidence) == (31, "proved")


def test_a_revocation_that_was_decided_on_a_lost_view_is_refused(store: Face, url: str, fork: Fork) -> None:
    store.compact("t", lambda ctx: ctx.compact(11, 20, "lost"))
    seen = store.view("t")
    fail_over(fork, url, 20)
    store.compact("t", lambda ctx: ctx.compact(1, 9, "another one of the same number"))
    with pytest.raises(cs.SpanConflict, match="another entry"):
        store.revoke("t", 1, view=seen)
    assert [record.status for record in store.compactions("t")] == ["active"]
    assert store.revoke("t", 1, view=store.view("t")).revokes == 1
    assert store.audit.verify("t").findings == ()


def test_a_view_of_another_thread_is_no_ground_for_a_revocation(store: Face) -> None:
    store.append("t", orders("kept", 3))
    store.append("u", orders("kept", 3))
    with pytest.raises(cs.InvalidInput, match="'u'"):
        store.revoke("t", 1, view=store.view("u"))


def test_a_plan_writes_nothing_to_whatever_history(store: Face, url: str, fork: Fork) -> None:
    def during(ctx: cs.CompactionContext) -> None:
        fail_over(fork, url, 20)
        summarized(ctx)

    assert store.plan("t", during).after.tokens < 24 * 40
    unchanged(store, 30)


# ---- Through SQL


_RECORD = (
    '[{"columns": {"kind": "summary", "outcome": "%s", "start_seq": 2, "end_seq": %s, "tokens_after": 1},'
    ' "salt": "00000000000000000000000000000000", "body": "{\\"replacement\\": []}"}]'
)


def refused(connection: psycopg.Connection[Any], call: str, *values: Any) -> str | None:
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(f"SELECT compaction_store.{call}", values)
    return caught.value.sqlstate


def commit(connection: psycopg.Connection[Any], pos: int, head: bytes | None, outcome: str, end: int = 3) -> str | None:
    return refused(
        connection, "commit_compactions(%s, 'default', 't', gen_random_uuid(), %s, %s, %s)",
        UID, pos, head, _RECORD % (outcome, end),
    )  # fmt: skip


@pytest.mark.parametrize("role", [None, "compaction_store_app", "compaction_store_owner"])
def test_through_sql_a_run_names_the_entry_that_its_view_ended_with(
    store: Face, superuser: psycopg.Connection[Any], role: str | None
) -> None:
    store.append("t", orders("kept", 5))
    _, head = base(superuser, key_of(superuser, "t"))
    _, earlier = base(superuser, key_of(superuser, "t"), 4)
    if role is not None:
        superuser.execute(f"SET ROLE {role}")
    for outcome in ("applied", "failed", "rejected"):
        for pos, given in ((5, earlier), (4, head), (6, head), (0, head), (5, b""), (5, bytes(32)), (2**62, head)):
            assert commit(superuser, pos, given, outcome) == "CS004"
    assert commit(superuser, 5, None, "applied") == "CS008"
    # The caller has not seen entries after its view either.
    assert commit(superuser, 4, earlier, "applied", end=5) == "CS007"
    superuser.execute(
        "SELECT compaction_store.commit_compactions(%s, 'default', 't', gen_random_uuid(), 4, %s, %s)",
        (UID, earlier, _RECORD % ("applied", 4)),
    )
    assert [(record.start_seq, record.end_seq) for record in store.compactions("t")] == [(2, 4)]


_APPEND = "append(%s, 'default', 't', '{}', %s, NULL, 1, 'n', NULL, NULL, %s, NULL, false, %s, %s)"
_MANY = "append_many(%s, 'default', 't', '{\"{}\",\"{}\"}', %s, '{NULL,NULL}', '{1,1}', 'n', NULL, NULL, %s, NULL, false, %s, %s)"  # noqa: E501
_OBSERVED = "append_observed(%s, 'default', 't', '{\"{}\"}', %s, '{NULL}', '{1}', 'n', NULL, NULL, %s, NULL, gen_random_uuid(), '[]', false, %s, %s)"  # noqa: E501


@pytest.mark.parametrize("role", [None, "compaction_store_app", "compaction_store_owner"])
@pytest.mark.parametrize(("call", "salt"), [(_APPEND, bytes(16)), (_MANY, bytes(32)), (_OBSERVED, bytes(16))])
def test_through_sql_an_append_names_the_entries_that_it_relies_on(
    store: Face, superuser: psycopg.Connection[Any], role: str | None, call: str, salt: bytes
) -> None:
    store.append("t", orders("kept", 5))
    _, head = base(superuser, key_of(superuser, "t"))
    _, earlier = base(superuser, key_of(superuser, "t"), 4)
    if role is not None:
        superuser.execute(f"SET ROLE {role}")
    for expected in (earlier, b"", bytes(32)):
        assert refused(superuser, call, UID, salt, None, expected, None) == "CS017"
    for pos, seen in ((5, earlier), (4, head), (6, head), (5, bytes(32))):
        assert refused(superuser, call, UID, salt, f'{{"pos": {pos}}}', None, seen) == "CS017"
    assert refused(superuser, call, UID, salt, "{}", None, head) == "CS019"
    superuser.execute(f"SELECT compaction_store.{call}", (UID, salt, '{"pos": 4}', head, earlier))
    assert store.audit.verify("t").findings == ()


@pytest.mark.parametrize("role", ["compaction_store_auditor", "compaction_store_loader"])
def test_a_reader_reads_the_head_of_a_view(store: Face, superuser: psycopg.Connection[Any], role: str) -> None:
    store.append("t", orders("kept", 5))
    superuser.execute(f"SET ROLE {role}")
    rows = superuser.execute("SELECT seq, head FROM compaction_store.view(%s, 'default', 't', NULL)", (UID,)).fetchall()
    assert rows == [(1, store.thread("t").head), *((seq, None) for seq in range(2, 6))]
    for call in ("entry_at(%s, 1)", "refuse_other_entry(%s, 1, 1, NULL)"):
        assert refused(superuser, call, UID) == "42501"
    assert commit(superuser, 5, rows[0][1], "applied") == "42501"
