"""Every kind of event has words, which leave out what a forged body has in place of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from compaction_store.audit import words
from compaction_store.models import Event
from compaction_store.models.vocabulary import EVENT_KINDS

AT = datetime(2026, 5, 1, tzinfo=UTC)
RUN = {"run": "r", "older_than_seconds": 180 * 86400.0, "prefix": "chat/"}
SAID: dict[str, list[tuple[dict[str, Any], str]]] = {
    "redaction": [({"whole": True, "seqs": [[1, 3]], "records": []}, "the whole thread: messages 1-3")],
    "hold": [({}, "until its release")],
    "release": [({}, "of the hold")],
    "retention": [({"until": "2031-01-01T00:00:00Z", "locked": True}, "until 2031-01-01 00:00:00 UTC, locked")],
    "fork": [({"pos": 4}, "at pos 4")],
    "origin": [({"pos": 4}, "at pos 4")],
    "refusal": [({"refused": "erase", "because": "the thread is held"}, "refused to erase: the thread is held")],
    "verdict": [({"number": 2, "verdict": "good"}, "good: record 2")],
    "evaluation": [({"evaluation": {}}, "of strategies on this thread")],
    "metadata": [({"set": ["title", "x"], "removed": ["y"]}, "set title, x; removed y"), ({"set": ["t"]}, "set t")],
    "subject": [({"old": None, "new": "ab"}, "set"), ({"old": "a", "new": "c"}, "changed"), ({"old": "a"}, "removed")],
    "verification": [
        ({"level": "content", "threads": 12, "findings": 0}, "12 threads at level content: no findings"),
        ({"level": "schema", "threads": 1, "findings": 1}, "1 thread at level schema: 1 finding"),
    ],
    "policy": [
        (
            {**RUN, "state": "begun"},
            "run begun: threads whose names begin with chat/ are erased 180 days after their last message",
        ),
        (
            {
                "state": "ended", "erased": {"threads": 3, "messages": 1200, "records": 1},
                "kept": {"held": {"threads": 2}, "retained": {"threads": 1}},
            },
            "run ended: erased 3 threads, 1,200 messages and 1 record; 2 threads kept, held; 1 thread kept, retained",
        ),
    ],
    "rule": [
        (
            {"older_than_seconds": 86400, "new_threads_seconds": 2 * 86400},
            "threads are erased 1 day after their last message; new threads are retained for 2 days",
        ),
        ({"reason": "x"}, "no rule any more"),
    ],
    "removal": [
        (
            {"tenant": "acme", "threads": 5, "messages": 12, "records": 1, "keys": 0},
            "tenant acme: 5 threads, 12 messages and 1 record erased, 0 keys destroyed",
        )
    ],
    "shred": [({"key": "ab12", "threads": 3}, "key ab12 destroyed, 3 threads erased")],
    "grant": [({"login": "agents", "role": "eraser"}, "role eraser to login agents")],
    "ungrant": [({"login": "agents", "role": "eraser"}, "role eraser from login agents")],
    "migration": [({"from": "0001", "to": "0002", "release": "1.1"}, "revision 0001 to 0002, by release 1.1")],
}  # fmt: skip
ODD: list[Any] = [None, "x", -1, 2**70, 1e300, float("inf"), [], {}, [None], {"threads": "x"}, True]


def event(kind: Any, body: dict[str, Any]) -> Event:
    return Event("t", 1, kind, False, None, "login", AT, body)


def test_every_kind_of_event_has_words() -> None:
    assert SAID.keys() == set(EVENT_KINDS) == words._WORDS.keys()


@pytest.mark.parametrize("kind", EVENT_KINDS)
def test_an_event_is_described(kind: str) -> None:
    for body, said in SAID[kind]:
        assert words.described(event(kind, body)) == said


@pytest.mark.parametrize("kind", EVENT_KINDS)
def test_a_forged_body_is_described_too(kind: str) -> None:
    names = {name for body, _ in SAID[kind] for name in body}
    for odd in ODD:
        assert isinstance(words.described(event(kind, dict.fromkeys(names, odd))), str)
        for body, _ in SAID[kind]:
            for name in body:
                assert isinstance(words.described(event(kind, {**body, name: odd})), str)
    assert isinstance(words.described(event(kind, {})), str)
    assert words.described(event("unheard_of", {"x": 1})) == ""
