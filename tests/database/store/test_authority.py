"""The authority beside the actor: what allowed a compaction, an erasure or a hold, as the caller or a callback says."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.faces import Face
from support.superuser_edits import unlock

import compaction_store as cs

BUDGET = cs.TokenBudget(1000, trigger=50, target=20)
POLICY = {"policy": "retention", "version": 3, "approval": {"by": "Größe", "at": "2026-05-01"}, "ticket": "X-1"}
# No function of Postgres decodes NUL and halves of surrogate pairs.
ODD = {"ticket": "\0 \ud800 \\u0000 \U0001f600", "\ud801": None}


def fold(ctx: cs.CompactionContext) -> None:
    ctx.compact(ctx.elements[0].seq, ctx.elements[1].end_seq, "Folded.")


def too_long(ctx: cs.CompactionContext) -> None:
    ctx.compact(3, 4, "longer than what it replaces " * 99)


def fails(_ctx: cs.CompactionContext) -> None:
    raise RuntimeError


def filled(store: Face, thread: str = "t") -> Face:
    store.append(thread, [{"role": "user", "content": f"message {i} " * 9} for i in range(8)])
    return store


def do_everything(store: Face, **what: Any) -> None:
    """Every act that is on record with an authority."""
    store.compact("t", fold, too_long, fails, **what)
    store.fit("t", BUDGET, fold, **what)
    store.revoke("t", 4, **what)
    store.custody.hold("t", reason="claim", **what)
    store.custody.release("t", reason="settled", **what)
    store.custody.retain("t", datetime.now(UTC) - timedelta(days=1), reason="law", **what)
    store.custody.redact("t", 8, reason="asked for", **what)


def numbers(store: Face, **wanted: Any) -> list[int]:
    return [record.number for record in store.compactions(**wanted)]


@pytest.mark.parametrize("authority", [POLICY, ODD, {}], ids=["policy", "odd", "empty"])
def test_everything_that_is_done_keeps_the_authority_that_was_given(store: Face, authority: dict[str, Any]) -> None:
    do_everything(filled(store), authority=authority)
    log, events = list(store.compactions("t")), list(store.audit.events("t"))
    assert [record.outcome for record in log] == ["applied", "rejected", "failed", "applied", "applied"]
    assert [event.kind for event in events] == ["hold", "release", "retention", "redaction"]
    # The third has no span, so the redaction of any message erases it.
    assert [record.authority for record in log if record.number != 3] == [authority] * 4
    assert log[2].authority is None
    assert [event.authority for event in events] == [authority] * 4
    assert all(record.as_dict()["authority"] == record.authority for record in log)
    assert all(event.as_dict()["authority"] == authority for event in events)
    assert store.audit.verify("t").findings == ()


def test_what_is_returned_has_the_authority_too(store: Face) -> None:
    filled(store)
    given = dict(POLICY)
    [record] = store.compact("t", fold, authority=given)
    given["policy"] = "changed later"
    assert record.authority == POLICY
    assert store.revoke("t", 1, authority=POLICY).authority == POLICY
    assert store.custody.hold("t", reason="claim", authority=POLICY).authority == POLICY
    assert [attempt.authority for attempt in store.plan("t", fold).attempts] == [None]


def test_without_an_authority_none_is_recorded(store: Face) -> None:
    do_everything(filled(store))
    assert {record.authority for record in store.compactions("t")} == {None}
    assert {event.authority for event in store.audit.events("t")} == {None}
    assert all("authority" not in (record.body or {}) for record in store.compactions("t"))


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels - 1):
        found = {"in": found}
    return found


@pytest.mark.parametrize(
    "wrong",
    [
        "X-1", ["X-1"], 7, {1: "one"}, {"n": float("nan")}, {"n": 10**4300}, {"when": datetime.now(UTC)},
        {"text": "x" * 8192}, nested(201),
    ],
    ids=["text", "list", "number", "name", "nan", "digits", "datetime", "long", "deep"],
)  # fmt: skip
def test_another_value_is_refused_before_anything_is_sent(store: Face, wrong: Any) -> None:
    filled(store)
    calls: list[Any] = [
        lambda: store.compact("t", fold, authority=wrong), lambda: store.fit("t", BUDGET, fold, authority=wrong),
        lambda: store.fit("t", cs.TokenBudget(100_000), fold, authority=wrong),
        lambda: store.revoke("t", 1, authority=wrong), lambda: store.custody.hold("t", reason="x", authority=wrong),
        lambda: store.custody.release("t", reason="x", authority=wrong),
        lambda: store.custody.retain("t", datetime.now(UTC), reason="x", authority=wrong),
        lambda: store.custody.redact("t", 1, reason="x", authority=wrong),
        lambda: store.custody.erase("t", reason="x", authority=wrong), lambda: list(store.compactions(authority=wrong)),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(cs.InvalidInput, match="authority must be"):
            call()
    assert store.thread("t").last_pos == 8


def test_the_deepest_authority_can_be_stored(store: Face) -> None:
    do_everything(filled(store), authority=nested(200))
    assert store.audit.verify("t").findings == ()
    assert numbers(store, authority=nested(200)) == [1, 2, 4, 5]


def test_a_callback_may_state_another(store: Face) -> None:
    filled(store)

    def adds(ctx: cs.CompactionContext) -> None:
        ctx.compact(1, 1, "One.")
        ctx.authority = {**(ctx.authority or {}), "approval": "A-9"}
        ctx.compact(2, 2, "Two.")
        with pytest.raises(cs.InvalidInput, match="authority must be"):
            ctx.authority = {"approval": object()}
        with pytest.raises(cs.Rejected):
            ctx.compact(3, 3, "longer " * 99)
        raise_error(ctx)

    def raise_error(ctx: cs.CompactionContext) -> None:
        ctx.authority = None
        with pytest.raises(ZeroDivisionError):
            ctx.compact(4, 4, lambda _: str(1 / 0))

    run = store.compact("t", adds, lambda ctx: ctx.compact(5, 5, "Five."), authority={"ticket": "X-1"})
    assert [(record.outcome, record.authority) for record in run] == [
        ("applied", {"ticket": "X-1"}),
        ("applied", {"ticket": "X-1", "approval": "A-9"}),
        ("rejected", {"ticket": "X-1", "approval": "A-9"}),
        ("failed", None),
        ("applied", {"ticket": "X-1"}),
    ]


def test_a_record_is_found_by_members_of_its_authority(store: Face) -> None:
    filled(store)
    for authority in (POLICY, {"ticket": "X-10"}, {"ticket": ["X-1"]}, {"ticket": None}, ODD, {}, None):
        store.compact("t", fold, authority=authority)
        store.revoke("t", store.thread("t").last_number)
    assert numbers(store, authority={"ticket": "X-1"}) == [1]
    assert numbers(store, authority={"ticket": "X-1", "version": 3}) == [1]
    assert numbers(store, authority={"ticket": "X-1", "version": True}) == []
    assert numbers(store, authority={"approval": {"at": "2026-05-01", "by": "Größe"}}) == [1]
    assert numbers(store, authority={"approval": {"by": "Größe"}}) == []
    assert numbers(store, authority={"ticket": "X-10"}) == [3]
    assert numbers(store, authority={"ticket": ["X-1"]}) == [5]
    assert numbers(store, authority={"ticket": None}) == [7]
    assert numbers(store, authority=ODD) == [9]
    assert numbers(store, authority={}) == [1, 3, 5, 7, 9, 11]
    assert numbers(store, authority={"ticket": "X-1"}, thread_id="t", actor="nobody") == []
    assert numbers(store, authority={"ticket": "X-1"}, newest_first=True, thread_id="t", kind="summary") == [1]


def test_pages_are_read_to_their_end_where_few_records_match(store: Face) -> None:
    filled(store)

    def many(ctx: cs.CompactionContext) -> None:
        for number in range(250):
            # The same words, elsewhere in the body.
            ctx.authority = {"ticket": "X-1" if number % 125 == 124 else "X-2", "see also": ["X-1"]}
            with pytest.raises(cs.Rejected):
                ctx.compact(1, 1, "longer " * 99)

    store.compact("t", many)
    assert numbers(store, authority={"ticket": "X-1"}) == [125, 250]


@pytest.mark.parametrize(
    "written",
    [
        '{"authority": {"ticket" : "X-1"}}',
        r'{"\u0061uthority":{"ticket":"X-1"}}',
        r'{"authority":{"ticket":"\u0058-1"}}',
        '{"authority":{"ticket":"X-1"},"prompt":"Größe"}',
        r'{"authority":{"ticket":"X-1"},"n":1e400000,"prompt":"\u0000 \ud800"}',
    ],
    ids=["spaces", "escaped name", "escaped text", "not ASCII", "beyond jsonb"],
)
def test_a_record_is_found_however_its_body_is_written(
    store: Face, superuser: psycopg.Connection[Any], written: str
) -> None:
    filled(store)
    store.compact("t", too_long)
    unlock(superuser)
    superuser.execute("UPDATE compaction_store.compactions SET body = %s", (written,))
    assert numbers(store, authority={"ticket": "X-1"}) == [1]
    assert numbers(store, authority={"ticket": "X-2"}) == []


def test_the_authority_of_a_record_is_erased_with_its_body_and_that_of_an_event_stays(
    store: Face, superuser: psycopg.Connection[Any]
) -> None:
    filled(store)
    store.compact("t", fold, authority={"ticket": "X-4711"})
    store.custody.redact("t", 1, reason="asked for", authority={"ticket": "Y-4712"})
    assert numbers(store, authority={"ticket": "X-4711"}) == []
    assert store.compaction("t", 1).authority is None
    [event] = store.audit.events("t")
    assert event.authority == {"ticket": "Y-4712"}
    stored = superuser.execute("SELECT to_json(c) FROM compaction_store.compactions AS c").fetchall()
    assert "X-4711" not in json.dumps(stored)


def test_a_search_for_a_text_finds_it_in_an_authority(store: Face) -> None:
    filled(store)
    store.compact("t", fold, authority={"approval": {"by": "Anna Schmidt"}})
    assert [(found.kind, found.number) for found in store.audit.search("anna schmidt")] == [("compaction", 1)]


def test_a_bundle_keeps_it(store: Face) -> None:
    do_everything(filled(store), authority=POLICY)
    lines = [json.loads(line) for line in store.audit.export("t")]
    bodies = [
        json.loads(line["body"]) for line in lines if line.get("type") in ("compaction", "event") and line["body"]
    ]
    assert [body["authority"] for body in bodies] == [POLICY] * 8
