"""One word has one meaning: the lists in the SQL and in the second verifier are the lists of the vocabulary."""

from __future__ import annotations

import re
from pathlib import Path

from compaction_store import arguments, offline
from compaction_store.models.vocabulary import (
    CRITICAL_EVENTS,
    EVENT_KINDS,
    KINDS,
    LOG_EVENTS,
    OUTCOMES,
    STATUSES,
)

_SQL = Path(__file__).parents[2] / "migrations" / "sql"
_LIST = re.compile(r"(?:IN \(|ARRAY\[)\s*('\w+'(?:\s*,\s*'\w+')*)\s*[)\]]")
_WORD = re.compile(r"'(\w+)'")


def _lists() -> list[tuple[str, frozenset[str]]]:
    return [
        (path.name, frozenset(_WORD.findall(found)))
        for path in sorted(_SQL.rglob("*.sql"))
        for found in _LIST.findall(path.read_text(encoding="utf-8"))
    ]


def test_every_list_of_kinds_in_the_sql_is_that_of_python() -> None:
    lists = [(name, words) for name, words in _lists() if "truncation" in words]
    assert len(lists) > 9
    whole = frozenset(KINDS)
    # Records that an application may write itself, or that replace something, leave out revocations.
    assert {(name, words) for name, words in lists if words not in (whole, whole - {"revocation"})} == set()


def test_every_list_of_events_in_the_sql_has_only_words_of_python() -> None:
    lists = [words for _, words in _lists() if "retention" in words]
    assert lists
    assert all(words <= set(EVENT_KINDS) for words in lists)


def test_the_sql_has_the_kinds_of_events_of_a_log() -> None:
    text = (_SQL / "functions" / "is_of_log.sql").read_text(encoding="utf-8")
    [of_log, others] = [set(_WORD.findall(words)) for words in re.findall(r"IN \(([^)]*)\)", text)]
    assert of_log == set(LOG_EVENTS) == set(offline.LOG_EVENTS)
    assert others == set(EVENT_KINDS) - set(LOG_EVENTS)


def test_the_sql_views_have_the_statuses_of_python() -> None:
    for folder in ("views", "citus/views"):
        text = (_SQL / folder / "audit_compactions.sql").read_text(encoding="utf-8")
        [case] = re.findall(r"CASE\n\s+WHEN c\.outcome <> 'applied'.*?END AS status", text, re.DOTALL)
        given = set(re.findall(r"(?:THEN|ELSE) '(\w+)'", case))
        # Any other status is the outcome.
        assert "c.kind = 'revocation' THEN c.outcome" in case
        assert given | set(OUTCOMES) == set(STATUSES)
        assert not given & set(OUTCOMES)


def test_the_second_verifier_knows_the_same_kinds() -> None:
    assert set(offline.KINDS) == set(KINDS)
    assert {kind: kind in CRITICAL_EVENTS for kind in EVENT_KINDS} == offline.EVENTS
    assert offline.LOG == arguments.LOG
