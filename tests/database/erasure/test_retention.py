"""A retention policy erases the threads whose last message is old, unless something forbids it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support import aged_threads, superuser_edits
from support.aged_threads import HALF_A_YEAR
from support.faces import Face
from support.handmade_bundles import START, Thread
from support.redactable_thread import LATER, events

import compaction_store as cs
from compaction_store import offline
from compaction_store.arguments import LOG
from compaction_store.errors import NotConfigured
from compaction_store.jsonable import time_text
from compaction_store.models import Expiry
from compaction_store.store._sync.retention import digest


def apply(store: Face, **more: Any) -> list[Expiry]:
    return list(store.custody.apply_retention(older_than=HALF_A_YEAR, **more))


def outcome(expiries: list[Expiry]) -> dict[str, tuple[str | None, int]]:
    return {expiry.thread_id: (expiry.kept, expiry.messages) for expiry in expiries}


def test_old_threads_are_erased_and_younger_ones_stay(store: Face) -> None:
    old = aged_threads.add(store, "old", 200, messages=3)
    aged_threads.add(store, "young", 170)
    store.append("new", {"role": "user", "content": "hello"})
    [expiry] = apply(store, reason="policy 7", actor="nightly", legal_basis="art. 5", authority={"policy": "7"})
    assert (expiry.thread_id, expiry.thread_uid, expiry.kept, expiry.messages) == ("old", old, None, 3)
    assert aged_threads.names(store) == {"young", "new"} | {f"erased:{old}"}
    [event] = events(store, f"erased:{old}")
    assert (event.pos, event.kind, event.actor) == (expiry.pos, "redaction", "nightly")
    assert event.body.keys() == {
        "seqs", "records", "whole", "before", "run", "reason", "legal_basis", "authority",
    }  # fmt: skip
    assert (event.body["reason"], event.body["legal_basis"]) == ("policy 7", "art. 5")
    before = datetime.fromisoformat(event.body["before"])
    assert expiry.last_message_at is not None
    assert expiry.last_message_at < before <= event.created_at - HALF_A_YEAR
    assert store.audit.verify(f"erased:{old}").findings == ()
    assert apply(store) == []


def test_only_a_message_makes_a_thread_younger(store: Face) -> None:
    for name in ("noted", "held", "forked", "hidden"):
        aged_threads.add(store, name, 200)
    aged_threads.add(store, "settled", 200, then=5)
    store.custody.hold("held", reason="claim")
    store.custody.release("held", reason="settled")
    store.fork("forked", "fork")
    store.clear("hidden", hide=True)
    store.set_metadata("noted", {"a": 1})
    names = {"noted", "held", "forked", "hidden", "settled"}
    assert outcome(apply(store)) == dict.fromkeys(names, (None, 2))


def test_holds_and_terms_are_respected_and_nothing_is_written_to_these_threads(store: Face) -> None:
    for name in ("held", "retained", "both", "over", "released"):
        aged_threads.add(store, name, 200)
    for name in ("held", "both", "released"):
        store.custody.hold(name, reason="claim")
    for name in ("retained", "both"):
        store.custody.retain(name, LATER, reason="law")
    store.custody.retain("over", datetime.now(UTC) - timedelta(days=1), reason="law")
    store.custody.release("released", reason="settled")
    before = {name: store.thread(name) for name in ("held", "retained", "both")}
    would = apply(store, dry_run=True)
    assert outcome(would) == {
        "both": ("held", 0), "held": ("held", 0), "over": (None, 2), "released": (None, 2), "retained": ("retained", 0),
    }  # fmt: skip
    done = apply(store)
    assert outcome(done) == outcome(would)
    assert [(e.thread_uid, e.last_message_at) for e in done] == [(e.thread_uid, e.last_message_at) for e in would]
    assert {name: store.thread(name) for name in before} == before
    assert outcome(apply(store)) == {name: found for name, found in outcome(would).items() if found[0]}


def test_a_young_fork_keeps_its_copies_and_an_old_one_is_erased_by_itself(store: Face) -> None:
    parent = aged_threads.add(store, "parent", 200)
    store.fork("parent", "fork")
    store.append("fork", {"role": "user", "content": "and then?"})
    assert outcome(apply(store)) == {"parent": (None, 2)}
    assert [m.redacted for m in store.replay("fork")] == [False] * 3
    assert store.audit.verify("fork").findings == ()
    [_, event] = events(store, f"erased:{parent}")
    assert event.body["spared_forks"] == [str(store.thread("fork").thread_uid)]
    assert outcome(list(store.custody.apply_retention(older_than=timedelta(microseconds=1)))) == {"fork": (None, 3)}
    assert len(aged_threads.names(store)) == 2
    assert all(name.startswith("erased:") for name in aged_threads.names(store))


@pytest.mark.parametrize("names", [["a", "b/1", "b/2", "b0", "c"], ["erase", "erased;", "f", "", "\U0010ffff"]])
def test_a_prefix_chooses_threads_by_their_names(store: Face, names: list[str]) -> None:
    given = [name for name in names if name]
    for name in given:
        aged_threads.add(store, name, 200)
    for prefix in ("b/", "erased", "x", "", "erased:"):
        found = [e.thread_id for e in apply(store, prefix=prefix, dry_run=True)]
        assert found == sorted(name for name in given if name.startswith(prefix))
    apply(store, prefix=given[0])
    assert {name for name in aged_threads.names(store) if not name.startswith("erased:")} == {
        name for name in given if not name.startswith(given[0])
    }


def test_a_subject_chooses_threads_and_is_not_kept_with_the_run(store: Face) -> None:
    for name in ("a", "b", "c"):
        aged_threads.add(store, name, 200)
        store.custody.set_subject(name, "customer 7" if name != "b" else "customer 8", reason="r")
    assert apply(store, subject="customer 9") == []
    assert outcome(apply(store, subject="customer 7", dry_run=True)) == {"a": (None, 2), "c": (None, 2)}
    assert outcome(apply(store, subject="customer 7")) == {"a": (None, 2), "c": (None, 2)}
    assert runs(store)[-2].body["of_subject"] is True
    assert "customer" not in str([event.body for event in store.audit.events(LOG)])


CHANGES: dict[str, tuple[Callable[[Face, str], Any], str | None]] = {
    "an append": (lambda store, name: store.append(name, {"role": "user", "content": "I am back"}), "written"),
    "a hold": (lambda store, name: store.custody.hold(name, reason="claim"), "held"),
    "a term": (lambda store, name: store.custody.retain(name, LATER, reason="law"), "retained"),
    "metadata": (lambda store, name: store.set_metadata(name, {"a": 1}), None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_happens_between_choosing_and_erasing_counts(store: Face, change: str) -> None:
    for name in ("a", "b", "c"):
        aged_threads.add(store, name, 200)
    call, kept = CHANGES[change]
    done = store.custody.apply_retention(older_than=HALF_A_YEAR)
    found = [next(done)]
    call(store, "b")
    found += list(done)
    assert [(e.thread_id, e.kept) for e in found] == [("a", None), ("b", kept), ("c", None)]
    assert store.audit.verify("b" if kept else f"erased:{found[1].thread_uid}").findings == ()


def test_a_thread_that_somebody_else_erases_meanwhile_is_not_listed(store: Face) -> None:
    for name in ("a", "b", "c"):
        aged_threads.add(store, name, 200)
    done = store.custody.apply_retention(older_than=HALF_A_YEAR)
    first = next(done)
    store.custody.erase("b", reason="asked for")
    store.append("b", {"role": "user", "content": "a new thread of this name"})
    assert [e.thread_id for e in [first, *done]] == ["a", "c"]
    assert "b" in aged_threads.names(store)


@pytest.mark.one_server("it edits a row")
def test_a_damaged_thread_is_kept_and_named(store: Face, superuser: psycopg.Connection[Any]) -> None:
    uid = aged_threads.add(store, "bad", 200)
    aged_threads.add(store, "good", 200)
    superuser_edits.unlock(superuser)
    superuser.execute("DELETE FROM compaction_store.messages WHERE thread_uid = %s AND seq = 2", [uid])
    assert outcome(apply(store)) == {"bad": ("damaged", 0), "good": (None, 2)}


def test_bad_arguments_are_refused_before_anything_is_sent(store: Face) -> None:
    wrong: list[dict[str, Any]] = [
        {"older_than": 180}, {"older_than": timedelta(0)}, {"older_than": timedelta(days=-1)},
        {"older_than": timedelta.max}, {"older_than": None, "prefix": "x"},
        {"prefix": 7}, {"prefix": "x" * 256}, {"dry_run": "yes"}, {"subject": 7}, {"subject": ""},
        {"reason": ""}, {"legal_basis": " "},
        {"authority": "x"}, {"actor": ""},
    ]  # fmt: skip
    aged_threads.add(store, "old", 200)
    for given in wrong:
        with pytest.raises(cs.InvalidInput):
            store.custody.apply_retention(**{"older_than": HALF_A_YEAR, **given})
    assert aged_threads.names(store) == {"old"}


def runs(store: Face) -> list[cs.Event]:
    """Returns the events of runs in the log of the tenant."""
    try:
        return list(store.audit.events(LOG, kind="policy"))
    except cs.ThreadNotFound:
        return []


def of(expiries: list[Expiry], kept: str | None) -> list[Any]:
    return [expiry.thread_uid for expiry in expiries if expiry.kept == kept]


def test_the_log_of_the_tenant_says_what_a_run_erased_and_kept_and_why(store: Face) -> None:
    for name in ("a", "b", "held", "retained"):
        aged_threads.add(store, name, 200, messages=3)
    store.custody.hold("held", reason="claim")
    store.custody.retain("retained", LATER, reason="law")
    apply(store, dry_run=True)
    assert runs(store) == []
    done = apply(store, reason="policy 7", actor="nightly", prefix="")
    begun, ended = runs(store)
    assert begun.body == {
        "run": begun.body["run"], "state": "begun", "older_than_seconds": 180 * 24 * 3600, "reason": "policy 7",
        "before": begun.body["before"],
    }  # fmt: skip
    assert ended.body["kept"] == {
        kept: {"threads": 1, "sha256": digest(of(done, kept)), "thread_uids": [str(uid) for uid in of(done, kept)]}
        for kept in ("held", "retained")
    }
    assert ended.body["erased"] == {
        "threads": 2, "sha256": digest(of(done, None)), "thread_uids": sorted(str(uid) for uid in of(done, None)),
        "messages": 6, "records": 0,
    }  # fmt: skip
    assert (ended.body["run"], ended.body["state"], ended.body["begun"]) == (begun.body["run"], "ended", begun.pos)
    assert ended.body["before"] == begun.body["before"]
    assert datetime.fromisoformat(begun.body["before"]) <= begun.created_at - HALF_A_YEAR
    for uid in of(done, None):
        [event] = events(store, f"erased:{uid}")
        assert (event.body["run"], event.body["before"]) == (begun.body["run"], ended.body["before"])
        assert event.created_at > begun.created_at
    assert (begun.actor, ended.actor) == ("nightly", "nightly")
    assert store.audit.verify(LOG).findings == ()


def test_a_run_that_was_stopped_is_completed_in_the_log_by_the_next(store: Face) -> None:
    uids = {name: aged_threads.add(store, name, 200) for name in ("a", "b", "c", "d")}
    store.custody.erase("d", reason="of no run")
    stopped = store.custody.apply_retention(older_than=HALF_A_YEAR)
    assert [next(stopped).thread_id, next(stopped).thread_id] == ["a", "b"]
    del stopped
    assert [event.body["state"] for event in runs(store)] == ["begun"]
    assert [expiry.thread_id for expiry in apply(store)] == ["c"]
    first, closed, second, ended = runs(store)
    assert [event.body["state"] for event in (closed, second, ended)] == ["interrupted", "begun", "ended"]
    assert (closed.body["run"], ended.body["run"]) == (first.body["run"], second.body["run"])
    assert closed.body["erased"] == {
        "threads": 2, "sha256": digest([uids["a"], uids["b"]]),
        "thread_uids": sorted([str(uids["a"]), str(uids["b"])]), "messages": 4, "records": 0,
    }  # fmt: skip
    assert ended.body["erased"]["thread_uids"] == [str(uids["c"])]
    apply(store)
    assert [event.body["state"] for event in runs(store)][4:] == ["begun", "ended"]


@pytest.mark.parametrize("body", ['"seqs":7', '"seqs":[[1]],"records":[["x",2]]', '"records":null'])
def test_a_malformed_event_of_an_erasure_does_not_stop_the_next_run(
    store: Face, superuser: psycopg.Connection[Any], body: str
) -> None:
    uid = aged_threads.add(store, "a", 200)
    aged_threads.add(store, "b", 200)
    next(store.custody.apply_retention(older_than=HALF_A_YEAR))
    run = runs(store)[0].body["run"]
    superuser_edits.unlock(superuser)
    changed = f'{{{body},"run":"{run}"}}'
    superuser.execute("UPDATE compaction_store.events SET body = %s WHERE kind = 'redaction'", [changed])
    assert outcome(apply(store)) == {"b": (None, 2)}
    assert runs(store)[1].body["erased"]["thread_uids"] == [str(uid)]
    assert {f.what for f in store.audit.verify(f"erased:{uid}").findings} >= {
        "the content is not what was committed to", "the redaction names no rows",
    }  # fmt: skip


def test_a_log_that_is_ahead_of_the_clock_makes_no_thread_older(
    store: Face, superuser: psycopg.Connection[Any]
) -> None:
    """The time of an event is never before that of the last event of its thread."""
    aged_threads.add(store, "old", 200)
    aged_threads.add(store, "young", 179.5)
    apply(store, prefix="nothing")
    superuser_edits.unlock(superuser)
    superuser.execute("UPDATE compaction_store.heads SET last_at = last_at + interval '1 day' WHERE is_log")
    assert outcome(apply(store, dry_run=True)) == outcome(apply(store)) == {"old": (None, 2)}
    [*_, begun, ended] = runs(store)
    assert ended.body["before"] == begun.body["before"]
    assert datetime.fromisoformat(begun.body["before"]) < begun.created_at - HALF_A_YEAR - timedelta(hours=23)
    superuser.execute("UPDATE compaction_store.events SET created_at = '0050-01-01 00:00+00' WHERE pos = 1")
    store.audit.verify(LOG)


def test_the_event_of_many_threads_has_their_number_and_a_digest(store: Face) -> None:
    uids = [aged_threads.add(store, f"t{i}", 200, messages=1) for i in range(102)]
    apply(store, prefix="t0")
    apply(store)
    small, large = (event.body["erased"] for event in runs(store) if event.body["state"] == "ended")
    assert small["thread_uids"] == [str(uids[0])]
    assert large == {"threads": 101, "sha256": digest(uids[1:]), "messages": 101, "records": 0}


@pytest.mark.one_server("it calls a function without a key")
def test_a_policy_that_erased_a_younger_thread_is_a_finding(store: Face, superuser: psycopg.Connection[Any]) -> None:
    """An eraser who calls the function by hand cannot make it look like a run of a policy."""
    uids = {name: aged_threads.add(store, name, 100) for name in ("young", "other", "third")}
    aged_threads.add(store, "old", 200)
    apply(store)
    run = runs(store)[0].body["run"]
    assert [report.findings for report in store.audit.verify()] == [()] * 5
    call = "SELECT compaction_store.erase(NULL, 'default', %s, NULL, %s, %s, false, false, false, %s)"
    body = json.dumps({"run": run}, separators=(",", ":"))
    superuser.execute(call, ["young", os.urandom(16), body, datetime.now(UTC)])
    superuser.execute(call, ["other", os.urandom(16), '{"run":"x"}', datetime.now(UTC)])
    with pytest.raises(psycopg.Error, match="names that a redaction uses itself"):
        superuser.execute(call, ["third", os.urandom(16), '{"before":"2020-01-01T00:00:00.000000Z"}', None])
    found = {report.thread_id: [f.what for f in report.findings] for report in store.audit.verify() if report.findings}
    assert found == {LOG: [
        f"the run that erased thread {uids['young']} has another age than the log says",
        f"the run that erased thread {uids['other']} is not in the log",
        "2 threads name this run, but not those that it erased",
    ]}  # fmt: skip
    assert [f.what for f in store.audit.verify(LOG).findings] == found[LOG]


@pytest.mark.one_server("it calls a function without a key")
@pytest.mark.parametrize("body", [
    "{}", '{"state":"begun"}', '{"state":"begun","run":"r"}', '{"state":"begun","run":7,"older_than_seconds":1}',
    '{"state":"begun","run":"r","older_than_seconds":1e300}', '{"state":"begun","run":"r","older_than_seconds":"x"}',
    '{"state":"ended","run":"r","erased":[1]}', '{"state":"ended","run":["r"],"erased":{"sha256":7}}',
    '{"older_than_seconds":[],"prefix":7}', '{"older_than_seconds":-1}', '{"older_than_seconds":1,"prefix":7}',
])  # fmt: skip
def test_events_of_runs_and_rules_that_were_written_by_hand_break_nothing(
    store: Face, superuser: psycopg.Connection[Any], body: str
) -> None:
    aged_threads.add(store, "old", 200)
    call = "SELECT compaction_store.record_in_log(NULL, 'default', 'compaction-store:log', %s, NULL, %s, %s)"
    superuser.execute(call, ["policy" if "state" in body else "rule", os.urandom(16), body])
    with pytest.raises(NotConfigured):
        list(store.custody.apply_retention())
    assert outcome(apply(store)) == {"old": (None, 2)}
    for report in store.audit.verify():
        assert [f.what for f in report.findings if "threads name this run" not in f.what] == []


def test_an_erasure_that_says_another_time_than_its_thread_is_a_finding_of_both_verifiers(tmp_path: Path) -> None:
    thread = Thread("default", "t")
    thread.message('{"role":"user","content":"hi"}')
    thread.thread_id, thread.name_salt = f"erased:{thread.uid}", None
    at = time_text(datetime.fromtimestamp(START / 1e6, UTC))
    for before, is_young in ((at, True), (at.replace("01Z", "02Z"), False)):
        del thread.entries[1:]
        thread.entries[0]["redacted_pos"] = None
        thread.redact({1}, set(), whole=True, before=before, run="r")
        path = tmp_path / "t.jsonl"
        path.write_bytes(b"".join(thread.lines()))
        with path.open("rb") as lines:
            report = cs.verify_bundle(lines)
        assert [f.pos for f in report.findings] == [2] * is_young
        done = subprocess.run([sys.executable, offline.__file__, path], capture_output=True, text=True, check=False)
        assert (done.returncode, "its last message is not older" in done.stdout) == (int(is_young), is_young)
