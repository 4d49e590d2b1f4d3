"""Planted losses are found, each with its place, and what a summary keeps is not reported."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from support.probed_threads import assistant, at, call, once, probed, result, summary, use, user

from compaction_store.messages.framing import frame
from compaction_store.probes import Fold, ThreadFacts, ThreadMessage, ThreadProbe

# ---- needed later

BOOKING = [
    user("Book HAT136 for sofia_kim_7287 and put the receipt in trips/lisbon/receipt.pdf."),
    call("book_reservation", {"user_id": "sofia_kim_7287", "flight": "HAT136"}),
    {"role": "tool", "tool_call_id": "c1", "content": '{"reservation_id": "ZFA04Y", "total": 1524}'},
    assistant("It is booked."),
    user("Cancel ZFA04Y, please, it was to cost 1,524."),
    call("cancel_reservation", {"reservation_id": "ZFA04Y"}, id="c2"),
]


@pytest.mark.parametrize("text", ["A flight was booked as ZFA04Y for $1524.", "A flight was booked."])
def test_a_name_that_is_needed_after_the_fold_is_kept_or_lost(text: str) -> None:
    found = once(BOOKING, text, 4, "needed_later")
    assert [(probe.text, probe.kind) for probe in found] == [("ZFA04Y", "identifier"), ("1,524", "number")]
    for probe in found:
        assert probe.kept is ("ZFA04Y" in text)
        assert probe.detail == ("in a summary" if probe.kept else None)
        assert (probe.record, probe.place.seq, at(BOOKING, probe)) == (1, 3, probe.text.replace(",", ""))
        assert probe.again is not None
        assert probe.again.seq == 5


def test_only_the_first_need_counts() -> None:
    """The later turn has the name in the view, wherever it was lost."""
    assert [probe.kept for probe in once(BOOKING, "Booked.", 4, "needed_later") if probe.text == "ZFA04Y"] == [False]


def test_a_name_that_a_result_brought_back_is_not_needed_any_more() -> None:
    again = [*BOOKING[:4], call("get_reservations", {}), {"role": "tool", "tool_call_id": "c1", "content": "ZFA04Y"}]
    assert once([*again, user("Cancel ZFA04Y.")], "Booked.", 4, "needed_later") == []


def test_the_assistants_own_words_before_a_call_of_the_same_turn_bring_nothing_back() -> None:
    turn = [{"role": "assistant", "content": "I cancel ZFA04Y."}, BOOKING[5]]
    assert [probe.kept for probe in once([*BOOKING[:4], *turn], "Booked.", 4, "needed_later")] == [False]


def test_a_name_in_another_message_of_the_view_is_kept_there() -> None:
    thread = [user("My id is sofia_kim_7287."), *BOOKING[1:4], user("Is sofia_kim_7287 right?")]
    [probe] = once(thread, "Booked.", 4, "needed_later", start_seq=2)
    assert (probe.kept, probe.detail) == (True, "in a message")


QUOTING = [
    user("The letter must open with: we regret the delay of your parcel."),
    assistant("Noted."),
    user('Write it. You know: "We regret the delay of your parcel" comes first.'),
]


@pytest.mark.parametrize("text", ['It opens with "we regret the delay of your parcel".', "A letter is to be written."])
def test_a_quotation_of_the_span_is_needed_word_for_word(text: str) -> None:
    [probe] = once(QUOTING, text, 2, "needed_later")
    assert probe.kind == "quotation"
    assert probe.kept is ("regret" in text)
    assert at(QUOTING, probe) == "we regret the delay of your parcel"


def test_a_path_is_needed_by_its_end() -> None:
    thread = [use("read", {"path": "/home/eva/app/src/core/session.ts"}), result("…"), user("Now fix core/session.ts.")]
    assert [probe.kept for probe in once(thread, "It read /home/eva/app/src/core/session.ts.", 2, "needed_later")] == [
        True
    ]
    assert [probe.kept for probe in once(thread, "It read a file.", 2, "needed_later")] == [False]


def test_long_texts_of_a_call_are_written_and_not_needed() -> None:
    thread = [
        user("Use max_retries."),
        assistant("Yes."),
        use("write", {"path": "a.py", "content": "max_retries\n" * 90}),
    ]
    assert [probe.text for probe in once(thread, "-", 2, "needed_later")] == []


# ---- re-derivation

READ = use("read", {"path": "src/a.py", "limit": 9})
AGAIN = use("read", {"limit": 9, "path": "src/a.py"}, id="c9")


def test_a_call_that_is_made_again_after_its_fold_is_found_with_its_cost() -> None:
    payloads = [user("Look."), READ, result("text " * 50), AGAIN, result("text " * 50, id="c9")]
    start = datetime(2026, 1, 1, tzinfo=UTC)
    facts = ThreadFacts(
        ThreadMessage(seq, payload, 70 + seq, start + timedelta(seconds=3 * seq))
        for seq, payload in enumerate(payloads, 1)
    )
    probe = ThreadProbe(facts)
    for seq in (1, 2, 3):
        probe.append(seq)
    probe.fold(summary("It read a file.", 1, 3))
    for seq in (4, 5):
        probe.append(seq)
    [found] = [one for one in probe.finish() if one.type == "re_derivation"]
    assert (found.kind, found.kept, found.record, found.place.seq, found.again and found.again.seq) == (
        "read",
        False,
        1,
        2,
        4,
    )
    assert (found.tokens, found.seconds) == (75, 3.0)
    assert probe.lookups_folded == {1: 1}


@pytest.mark.parametrize(
    "between",
    [
        [use("edit", {"path": "src/a.py", "new": "x"}, id="c5"), result("ok", id="c5")],
        [{**READ}, result("text")],
    ],
    ids=["the file was changed", "the call is in the view"],
)
def test_a_call_that_has_a_reason_is_not(between: list[dict[str, object]]) -> None:
    thread = [READ, result("text"), *between, AGAIN, result("text", id="c9")]
    assert once(thread, "It read a file.", 2, "re_derivation", start_seq=1)[1:] == []
    if between[0] != READ:
        assert once(thread, "It read a file.", 4, "re_derivation") == []


def test_a_call_that_changes_something_may_be_repeated() -> None:
    test = use("bash", {"command": "pytest -q"})
    assert once([test, result("1 failed"), test, result("ok")], "Tests ran.", 2, "re_derivation") == []


# ---- standing orders

ORDERS = [
    user("Hi! Never push to main without Ben's approval. The bug is in a.py."),
    assistant("Understood."),
    user("不要修改配置文件。"),
    assistant("好"),
]


def test_a_standing_order_that_a_summary_drops_is_found() -> None:
    kept, lost = once(ORDERS, "They never push to main without approval by Ben.", 4, "standing_order")
    assert (kept.kept, kept.text) == (True, "Never push to main without Ben's approval.")
    assert (lost.kept, lost.text) == (False, "不要修改配置文件。")
    assert [at(ORDERS, probe) for probe in (kept, lost)] == [kept.text, lost.text]


def test_an_order_is_asked_about_in_every_round() -> None:
    rounds = [(2, summary("Never push to main without Ben's approval.", 1, 2)), (4, summary("A bug.", 1, 4, 2))]
    found = [p for p in probed(ORDERS, rounds) if p.type == "standing_order" and p.text.startswith("Never")]
    assert [(probe.record, probe.kept) for probe in found] == [(1, True), (2, False)]


def test_only_users_give_orders() -> None:
    thread = [{"role": "system", "content": "Never lie."}, assistant("Always ask me."), result("Never touch this.")]
    assert once(thread, "-", 3, "standing_order") == []


# ---- invented

SOURCES = [
    user("Rename getUser in src/api/users.ts; 417 tests must pass. Eva said: we ship on the ninth of May."),
    use("bash", {"command": "npm test -- --seed 9313"}),
    result("417 passed"),
    assistant("Done; see src/api/users.ts."),
]
TRUE = (
    'getUser in `src/api/users.ts` was renamed (users.ts, api/users.ts). 417 passed with --seed 9313. Eva: "we ship on '
    'the ninth of May". [2] bash was called in 2026; API and README are unchanged; 100 % done.'
)


def test_what_the_sources_have_is_not_invented() -> None:
    assert all(probe.kept for probe in once(SOURCES, TRUE, 4, "invented"))
    assert len(once(SOURCES, TRUE, 4, "invented")) >= 5


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("getUser", "getUsers", "identifier"),
        ("src/api/users.ts", "src/lib/users.ts", "path"),
        ("417", "471", "number"),
        ("9313", "9331", "number"),
        ("ninth of May", "tenth of May", "quotation"),
    ],
)
def test_what_they_do_not_have_is(old: str, new: str, kind: str) -> None:
    text = TRUE.replace(old, new)
    lost = [probe for probe in once(SOURCES, text, 4, "invented") if not probe.kept]
    assert [(probe.kind, new in probe.text) for probe in lost] == [(kind, True)]
    place = lost[0].place
    assert (place.record, place.field) == (1, "summary_text")
    assert text[place.start : place.end] == lost[0].text


def test_only_the_lineage_counts_as_a_source() -> None:
    thread = [user("The key is KX-4711."), assistant("Yes."), user("Go on."), assistant("Well.")]
    [probe] = once(thread, "The key is KX-4711.", 4, "invented", start_seq=3)
    assert not probe.kept
    shown = Fold(1, 3, 4, (frame("The key is KX-4711.", 3, 4),), sources=(1, 4))
    assert [one.kept for one in probed(thread, [(4, shown)]) if one.type == "invented"] == [True]


# ---- stale

CHANGED = {
    "said again": [
        user("The budget cap is $450 for it."),
        assistant("Ok."),
        user("Update: the budget cap is $900 now."),
    ],
    "from and to": [user("Use 8080."), assistant("Ok."), user("We moved the service from 8080 to 9090.")],
    "instead": [
        user("We use npm_old_registry."),
        assistant("Ok."),
        user("Use npm_new_registry instead of npm_old_registry."),
    ],
    "renamed": [user("Look at fetch_all."), assistant("Ok."), user("I renamed fetch_all to list_items.")],
    "results": [
        use("get_order", {"id": "W1"}),
        result(json.dumps({"order": {"delivery_status": "pending review"}})),
        use("get_order", {"id": "W1"}, id="c2"),
        result(json.dumps({"order": {"delivery_status": "delivered today"}}), id="c2"),
    ],
}
STALE = {
    "said again": ("The budget cap is $450.", "The budget cap went from $450 to $900."),
    "from and to": ("The service is at 8080.", "The service is at 9090, not at 8080."),
    "instead": ("They use npm_old_registry.", "npm_new_registry replaces npm_old_registry."),
    "renamed": ("It is about fetch_all.", "fetch_all is now list_items."),
    "results": ("Delivery status: pending review.", "Delivery status: first pending review, then delivered today."),
}


@pytest.mark.parametrize("how", CHANGED)
def test_an_old_value_without_the_newer_one_is_stale(how: str) -> None:
    stale, fresh = STALE[how]
    found = once(CHANGED[how], stale, len(CHANGED[how]), "stale")
    assert [probe.kept for probe in found] == [False]
    assert found[0].again is not None
    assert found[0].again.seq == len(CHANGED[how])
    assert all(probe.kept for probe in once(CHANGED[how], fresh, len(CHANGED[how]), "stale"))


def test_a_summary_that_states_no_value_is_not_stale() -> None:
    assert all(not once(messages, "They spoke.", len(messages), "stale") for messages in CHANGED.values())


# ---- artifacts

FILES = [
    use("write", {"path": "src/new.py", "content": "x"}), result("ok"),
    use("bash", {"command": "rm notes/old.txt"}, id="c2"), result("", id="c2"),
    use("write", {"path": "src/never.py", "content": "x"}, id="c3"), result("no such folder", id="c3", failed=True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "details"),
    [
        ("Wrote src/new.py and deleted notes/old.txt.", ["written", "deleted"]),
        ("Wrote new.py; old.txt has notes.", ["written", "deleted: not said"]),
        ("Some files changed.", ["written: not named", "deleted: not named"]),
    ],
)
def test_files_are_named_in_their_last_state(text: str, details: list[str]) -> None:
    found = once(FILES, text, 6, "artifact")
    assert [probe.detail for probe in found] == details
    assert [probe.kept for probe in found] == [":" not in detail for detail in details]


def test_a_file_that_is_seen_elsewhere_in_the_view_is_named() -> None:
    thread = [*FILES[:2], use("edit", {"path": "src/new.py", "new": "y"}, id="c4"), result("ok", id="c4")]
    found = probed(thread, [(4, summary("A file was written.", 1, 2))])
    assert [probe.kept for probe in found if probe.type == "artifact"] == [True]


# ---- credentials, revocations


def test_a_credential_is_marked_and_masked() -> None:
    key = "sk-" + "proj-" + "a1B2c3D4e5F6g7H8i9J0k1"
    thread = [user(f"The key is {key}."), assistant("Ok."), user(f"Set OPENAI_KEY to {key}.")]
    [probe] = once(thread, "A key was given.", 2, "needed_later")
    assert (probe.is_secret, probe.text) == (True, "(withheld)")
    assert key not in json.dumps(probe.as_dict())


def test_a_probe_shows_no_content_in_its_repr() -> None:
    assert "ZFA04Y" not in repr(once(BOOKING, "Booked.", 4, "needed_later"))


def test_a_revoked_fold_loses_nothing() -> None:
    facts = ThreadFacts(ThreadMessage(seq, payload) for seq, payload in enumerate(BOOKING, 1))
    probe = ThreadProbe(facts)
    for seq in (1, 2, 3, 4):
        probe.append(seq)
    probe.fold(summary("Booked.", 2, 3))
    probe.fold(summary("Booked.", 1, 4, 2))
    probe.revoke(1)
    assert not probe.is_visible("zfa04y")
    probe.revoke(2)
    assert not probe.is_visible("zfa04y")
    probe.revoke(1)
    assert probe.is_visible("zfa04y")
    for seq in (5, 6):
        probe.append(seq)
    assert [one for one in probe.finish() if one.type == "needed_later"] == []


def test_a_removal_loses_everything() -> None:
    found = probed(BOOKING, [(4, Fold(1, 1, 4, is_summary=False))])
    assert {probe.kept for probe in found if probe.type == "needed_later"} == {False}
    assert not [probe for probe in found if probe.type == "invented"]
