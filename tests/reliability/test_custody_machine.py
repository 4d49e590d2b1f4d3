"""Any sequence of subjects, metadata, holds, terms, rules, forks and erasures, compared with a model in Python."""

from __future__ import annotations

import io
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import compaction_store as cs
from compaction_store import offline
from compaction_store.arguments import LOG
from compaction_store.errors import SubjectConflict, ThreadExists

_tenants = count(1)
NAMES = st.sampled_from(("a", "b", "c"))
PLACES = st.integers(0, 5)
METADATA = st.dictionaries(st.sampled_from("xyz"), st.sampled_from((1, "größe \0", None)), max_size=2)
SUBJECTS = st.sampled_from((None, "ann", "ben"))
# All times are days apart, so that the time of a call does not matter.
DAYS = st.sampled_from((-1, 1, 30, 400))


@dataclass
class Thread:
    """A thread in the model. `rule_end` is the end of the longest term that a rule gives it or one of its parents."""

    subject: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    is_held: bool = False
    until: datetime | None = None
    is_locked: bool = False
    rule_end: datetime | None = None

    @property
    def is_retained(self) -> bool:
        return self.until is not None and self.until > datetime.now(UTC)

    @property
    def kept(self) -> str | None:
        """Why a policy must keep the thread."""
        by_rule = self.rule_end is not None and self.rule_end > datetime.now(UTC)
        return "held" if self.is_held else "retained" if self.is_retained or by_rule else None


class Custody(RuleBasedStateMachine):
    opened: cs.Store

    def __init__(self) -> None:
        super().__init__()
        self.store = self.opened.of_tenant(f"tenant {next(_tenants)}")
        self.now = datetime.now(UTC)
        self.threads: dict[str, Thread] = {}
        self.erased: dict[str, Thread] = {}
        self.log: list[str] = []
        self.term: timedelta | None = None

    def opened_now(self, name: str) -> datetime | None:
        """Returns the end of the term that the rule gives a thread that was just opened."""
        return None if self.term is None else self.store.thread(name).created_at + self.term

    def one(self, place: int) -> str:
        """Returns the name of a thread that is there, or of one that is not if there is none."""
        return sorted(self.threads)[place % len(self.threads)] if self.threads else "missing"

    @initialize(subject=SUBJECTS, days=st.sampled_from((None, 9, 90)))
    def begin(self, subject: str | None, days: int | None) -> None:
        self.set_rule(days)
        self.append("a", subject)

    @rule(name=NAMES, subject=SUBJECTS)
    def append(self, name: str, subject: str | None) -> None:
        there = self.threads.get(name)
        message = {"role": "user", "content": "hi"}
        if there is not None and subject not in (None, there.subject):
            with pytest.raises(SubjectConflict):
                self.store.append(name, message, subject=subject)
            return
        self.store.append(name, message, subject=subject)
        if there is None:
            self.threads[name] = Thread(subject, rule_end=self.opened_now(name))

    @rule(place=PLACES, subject=SUBJECTS)
    def set_subject(self, place: int, subject: str | None) -> None:
        name = self.one(place)
        if name not in self.threads:
            with pytest.raises(cs.ThreadNotFound):
                self.store.custody.set_subject(name, subject)
            return
        self.store.custody.set_subject(name, subject)
        self.threads[name].subject = subject
        self.threads[name].events.append("subject")

    @rule(place=PLACES, metadata=METADATA)
    def set_metadata(self, place: int, metadata: dict[str, Any]) -> None:
        name = self.one(place)
        if name not in self.threads:
            with pytest.raises(cs.ThreadNotFound):
                self.store.set_metadata(name, metadata)
            return
        self.store.set_metadata(name, metadata)
        if self.threads[name].metadata != metadata:
            self.threads[name].events.append("metadata")
            self.threads[name].metadata = metadata

    @rule(place=PLACES, is_held=st.booleans())
    def hold(self, place: int, is_held: bool) -> None:
        if (name := self.one(place)) in self.threads:
            (self.store.custody.hold if is_held else self.store.custody.release)(name, reason="r")
            self.threads[name].is_held = is_held
            self.threads[name].events.append("hold" if is_held else "release")

    @rule(place=PLACES, days=DAYS, locked=st.booleans())
    def retain(self, place: int, days: int, locked: bool) -> None:
        if (thread := self.threads.get(name := self.one(place))) is None:
            return
        until = self.now + timedelta(days=days)
        is_shorter = thread.is_retained and thread.until is not None and until < thread.until
        stays = thread.is_retained and thread.is_locked
        if is_shorter and stays:
            with pytest.raises(cs.Held):
                self.store.custody.retain(name, until, reason="r", locked=locked)
            return
        event = self.store.custody.retain(name, until, reason="r", locked=locked)
        assert ("shortens" in event.body, event.body.get("locked", False)) == (is_shorter, locked or stays)
        thread.until, thread.is_locked = until, locked or stays
        thread.events.append("retention")

    @rule(days=st.sampled_from((None, 9, 90)))
    def set_rule(self, days: int | None) -> None:
        self.term = None if days is None else timedelta(days=days)
        self.store.custody.set_retention(new_threads=self.term, reason="r")
        self.log.append("rule")

    @rule(place=PLACES, is_taken=st.sampled_from((False, False, True)), ends_rule=st.booleans())
    def fork(self, place: int, is_taken: bool, ends_rule: bool) -> None:
        if ends_rule:
            self.set_rule(None)
        name = self.one(place)
        new = name if is_taken else f"fork {len(self.threads) + len(self.erased)}"
        if is_taken or name not in self.threads:
            with pytest.raises(ThreadExists if name in self.threads else cs.ThreadNotFound):
                self.store.fork(name, new)
            return
        self.store.fork(name, new)
        made = self.threads[new] = deepcopy(self.threads[name])
        made.events.insert(0, "origin")
        ends = [end for end in (made.rule_end, self.opened_now(new)) if end is not None]
        made.rule_end = max(ends, default=None)
        self.threads[name].events.append("fork")
        self.apply_retention(None, dry_run=True)

    @rule(place=PLACES, insists=st.booleans())
    def erase(self, place: int, insists: bool) -> None:
        if (thread := self.threads.get(name := self.one(place))) is None:
            return
        override = "a court" if insists else None
        if (thread.is_retained and thread.is_locked) if insists else thread.kept is not None:
            with pytest.raises(cs.Held):
                self.store.custody.erase(name, reason="r", override=override, forks=False)
            thread.events.append("refusal")
            return
        self.is_erased(name, self.store.custody.erase(name, reason="r", override=override, forks=False).thread_id)

    def is_erased(self, name: str, stub: str) -> None:
        thread = self.erased[stub] = self.threads.pop(name)
        thread.events.append("redaction")
        thread.subject, thread.metadata = None, {}

    @rule(subject=SUBJECTS, dry_run=st.booleans())
    def apply_retention(self, subject: str | None, dry_run: bool) -> None:
        run: dict[str, Any] = {"older_than": timedelta(microseconds=1), "subject": subject, "dry_run": dry_run}
        done = list(self.store.custody.apply_retention(**run))
        wanted = {name: thread for name, thread in self.threads.items() if subject in (None, thread.subject)}
        assert {each.thread_id: each.kept for each in done} == {name: thread.kept for name, thread in wanted.items()}
        if not dry_run:
            self.log += ["policy", "policy"]
            for each in done:
                if each.kept is None:
                    self.is_erased(each.thread_id, f"erased:{each.thread_uid}")

    # Checks at the end.

    def teardown(self) -> None:
        for name, model in (self.threads | self.erased).items():
            thread = self.store.thread(name)
            assert (thread.subject, thread.metadata) == (model.subject, model.metadata)
            assert [event.kind for event in self.store.audit.events(name)] == model.events
            bundle = b"".join(self.store.audit.export(name))
            assert offline.check(io.BytesIO(bundle)).findings == []
        for subject in ("ann", "ben"):
            theirs = {name: thread.events for name, thread in self.threads.items() if thread.subject == subject}
            assert {thread.thread_id for thread in self.store.threads(subject=subject)} == theirs.keys()
            kinds: dict[str, list[str]] = {name: [] for name in theirs}
            for event in self.store.audit.events(subject=subject):
                kinds[event.thread_id].append(event.kind)
            assert kinds == theirs
        assert [report.findings for report in self.store.audit.verify() if report.findings] == []
        if self.log:
            assert [event.kind for event in self.store.audit.events(LOG)] == self.log


@pytest.fixture
def store(url: str) -> Iterator[cs.Store]:
    with cs.Store.open(url, pool_size=1) as opened:
        yield opened


@pytest.mark.one_server("a cluster has no terms for new threads")
@pytest.mark.parametrize("chance", range(2))
def test_a_hundred_tenants_are_what_the_model_says(store: cs.Store, chance: int) -> None:
    """The same tenants every time."""

    class Bound(Custody):
        opened = store

    run_state_machine_as_test(
        seed(chance)(Bound),
        settings=settings(
            max_examples=60, stateful_step_count=15, deadline=None, database=None,
            suppress_health_check=list(HealthCheck), print_blob=True,
        ),
    )  # fmt: skip
