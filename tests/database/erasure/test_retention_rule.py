"""The rule of a tenant: the age for `apply_retention`, and a term for threads that are opened while it is in force."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support import aged_threads
from support.aged_threads import HALF_A_YEAR
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.arguments import LOG
from compaction_store.audit.words import described
from compaction_store.errors import NotConfigured, PermissionDenied
from compaction_store.jsonable import time_text

HI = {"role": "user", "content": "hi"}
YEAR = timedelta(days=366)
SOON = timedelta(microseconds=1)


def apply(store: Face, **more: Any) -> dict[str, str | None]:
    return {expiry.thread_id: expiry.kept for expiry in store.custody.apply_retention(**more)}


def test_a_run_without_an_age_uses_the_newest_rule(store: Face) -> None:
    for name in ("a/old", "b/old"):
        aged_threads.add(store, name, 200)
    aged_threads.add(store, "b/young", 100)
    with pytest.raises(NotConfigured, match="the tenant has no rule"):
        apply(store)
    assert store.custody.retention_rule() is None
    store.custody.set_retention(older_than=HALF_A_YEAR, prefix="a/", reason="policy 7", actor="records officer")
    rule = store.custody.retention_rule()
    assert (rule.thread_id, rule.kind, rule.actor) == (LOG, "rule", "records officer")
    assert rule.body == {"older_than_seconds": 180 * 86400, "prefix": "a/", "reason": "policy 7"}
    assert apply(store, dry_run=True) == apply(store) == {"a/old": None}
    store.custody.set_retention(older_than=timedelta(days=90), reason="policy 8")
    assert apply(store) == {"b/old": None, "b/young": None}
    store.custody.set_retention(reason="no policy")
    assert store.custody.retention_rule() is None
    with pytest.raises(NotConfigured):
        apply(store)
    assert store.audit.verify(LOG).findings == ()


def the_end(store: Face, name: str, term: timedelta) -> str:
    """Returns the end of a term from the creation of a thread, as errors show it."""
    return time_text((store.thread(name).created_at + term).astimezone(UTC))


def erase(store: Face, name: str) -> Any:
    return store.custody.erase(name, reason="r")


@pytest.mark.one_server("a cluster has no terms for new threads")
def test_threads_that_are_opened_under_a_rule_have_its_term(store: Face, faces: Faces, url: str) -> None:
    store.append("before", HI)
    aged_threads.add(store, "imported", 200)
    store.custody.set_retention(new_threads=YEAR, reason="law")
    store.append("during", HI)
    store.fork("before", "fork")
    other = faces.open(url, tenant="other")
    other.append("during", HI)
    store.custody.set_retention(new_threads=timedelta(days=1), reason="shorter, for later threads")
    store.append("after", HI)
    store.custody.set_retention(reason="no rule")
    store.append("last", HI)
    assert apply(store, older_than=SOON) == {
        "after": "retained", "before": None, "during": "retained", "fork": "retained", "imported": None, "last": None,
    }  # fmt: skip
    until = the_end(store, "during", YEAR)
    erasing: list[Callable[[], Any]] = [
        lambda: erase(store, "during"), lambda: store.custody.redact("during", 1, reason="r"),
    ]  # fmt: skip
    for call in erasing:
        with pytest.raises(cs.Held, match=f"the thread is retained until {until} by the tenant's rule") as caught:
            call()
        assert caught.value.pos is None
    refusals = [event.body["forbidden_by"] for event in store.audit.events("during")]
    assert refusals == [["rule"], ["rule"]]
    assert erase(other, "during").pos == 2
    done = store.custody.erase("during", reason="r", override="a court")
    [*_, event] = store.audit.events(done.thread_id)
    assert event.body["overrides"] == ["rule"]
    assert described(event).endswith(", despite the term of the tenant's rule")
    assert store.audit.verify(done.thread_id).findings == ()


@pytest.mark.one_server("a cluster has no terms for new threads")
def test_of_the_rule_and_a_retention_the_longer_term_is_named(store: Face) -> None:
    store.custody.set_retention(new_threads=YEAR, reason="law")
    store.append("t", HI)
    forbidding = []
    for days, named in ((-1, "the tenant's rule"), (9, "the tenant's rule"), (400, "pos 6"), (9, "the tenant's rule")):
        term = store.custody.retain("t", datetime.now(UTC) + timedelta(days=days), reason="r")
        forbidding.append(["rule", term.pos] if days > 0 else ["rule"])
        with pytest.raises(cs.Held, match=rf"retained until .* by {named} \(thread") as caught:
            erase(store, "t")
        assert caught.value.pos == (term.pos if days > YEAR.days else None)
    refusals = [event.body["forbidden_by"] for event in store.audit.events("t") if event.kind == "refusal"]
    assert refusals == forbidding
    held = store.custody.hold("t", reason="claim")
    with pytest.raises(cs.Held, match=f"held since pos {held.pos}") as caught:
        erase(store, "t")
    assert caught.value.pos == held.pos
    assert apply(store, older_than=SOON) == {"t": "held"}
    done = store.custody.erase("t", reason="r", override="a court")
    [*_, event] = store.audit.events(done.thread_id)
    assert event.body["overrides"] == ["rule", term.pos, held.pos]
    said = f", despite the term of the tenant's rule and what was recorded at pos {term.pos}, {held.pos}"
    assert described(event).endswith(said)


@pytest.mark.one_server("a cluster has no terms for new threads")
def test_a_fork_is_kept_for_its_own_term_and_that_of_each_thread_that_it_copies(store: Face) -> None:
    store.custody.set_retention(new_threads=YEAR, reason="law")
    store.append("parent", HI)
    ends = {"fork": the_end(store, "parent", YEAR)}
    store.custody.set_retention(reason="no rule")
    store.fork("parent", "fork")
    store.fork("fork", "child")
    store.custody.set_retention(new_threads=timedelta(days=1), reason="shorter")
    store.fork("child", "later")
    store.custody.set_retention(new_threads=2 * YEAR, reason="longer")
    store.fork("parent", "longest")
    ends |= {"child": ends["fork"], "later": ends["fork"], "longest": the_end(store, "longest", 2 * YEAR)}
    assert set(apply(store, older_than=SOON).values()) == {"retained"}
    store.custody.erase("parent", reason="r", override="a court", forks=False)
    for name, until in ends.items():
        with pytest.raises(cs.Held, match=f"the thread is retained until {until} by the tenant's rule"):
            erase(store, name)


@pytest.mark.one_server("a cluster has no terms for new threads")
def test_the_term_of_a_fork_forbids_the_erasure_of_its_copies(store: Face) -> None:
    store.append("parent", HI)
    store.custody.set_retention(new_threads=YEAR, reason="law")
    fork = store.fork("parent", "fork").thread_uid
    with pytest.raises(cs.Held, match=f"the fork {fork} is retained until .* by the tenant's rule") as caught:
        erase(store, "parent")
    assert caught.value.pos is None
    assert next(store.audit.events("parent", kind="refusal")).body["forbidden_by"] == ["rule"]
    assert apply(store, older_than=SOON) == {"parent": None, "fork": "retained"}


@pytest.mark.one_server("a cluster has no terms for new threads")
def test_a_term_that_has_ended_forbids_nothing(store: Face) -> None:
    store.custody.set_retention(new_threads=timedelta(seconds=1), reason="law")
    store.append("t", HI)
    assert apply(store, older_than=SOON) in ({"t": "retained"}, {"t": None})
    while "t" in aged_threads.names(store):
        apply(store, older_than=SOON)


def test_a_rule_needs_the_role_of_a_custodian(store: Face, faces: Faces, url: str) -> None:
    store.append("t", HI)
    for role in ("app", "eraser", "auditor"):
        officer = faces.open(url, role=f"compaction_store_{role}")
        with pytest.raises(PermissionDenied):
            officer.custody.set_retention(older_than=YEAR, reason="r")
    custodian = faces.open(url, role="compaction_store_custodian")
    custodian.custody.set_retention(older_than=HALF_A_YEAR, reason="r")
    assert custodian.custody.retention_rule().login


def test_bad_rules_are_refused(store: Face) -> None:
    wrong: list[dict[str, Any]] = [
        {"older_than": 7}, {"older_than": timedelta(0)}, {"new_threads": "6y"}, {"new_threads": timedelta.max},
        {"prefix": "x"}, {"older_than": YEAR, "prefix": 7}, {"reason": ""}, {"authority": 7}, {"actor": ""},
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(cs.InvalidInput):
            store.custody.set_retention(**{"reason": "r", **given})
    with pytest.raises(cs.ThreadNotFound):
        store.thread(LOG)
