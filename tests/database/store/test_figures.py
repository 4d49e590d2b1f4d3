"""The figures of a tenant: its threads, and its compactions by day in UTC and outcome."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.models.roles import AUDITOR

_ALL = datetime(2020, 1, 1, tzinfo=UTC)
_HI = {"role": "user", "content": "hello " * 200}


def _fails(_: cs.CompactionContext) -> None:
    raise RuntimeError("the model is away")


def _days(store: Face, since: datetime = _ALL) -> dict[tuple[datetime, str], int]:
    return {(each.day, each.outcome): each.records for each in store.audit.figures(since=since).days}


def _fill(store: Face) -> None:
    store.append("t", [_HI] * 6)
    store.compact("t", lambda ctx: ctx.compact(1, 2, "two"))
    store.compact("t", lambda ctx: ctx.compact(3, 4, "four"))
    store.compact("t", _fails)


def test_compactions_are_counted_by_day_in_utc(store: Face, superuser: psycopg.Connection[Any]) -> None:
    _fill(store)
    late, early = (datetime(2026, 3, 29, 23, 59, 59, 999999, UTC), datetime(2026, 3, 30, 0, 0, 0, 0, UTC))
    superuser.execute("ALTER TABLE compaction_store.compactions DISABLE TRIGGER ALL")
    for number, at in enumerate((late, early, early), 1):
        superuser.execute("UPDATE compaction_store.compactions SET created_at = %s WHERE number = %s", (at, number))
    days = [datetime(2026, 3, day, tzinfo=UTC) for day in (29, 30)]
    assert _days(store) == {(days[0], "applied"): 1, (days[1], "applied"): 1, (days[1], "failed"): 1}
    assert _days(store, early) == {(days[1], "applied"): 1, (days[1], "failed"): 1}
    assert _days(store, early + timedelta(microseconds=1)) == {}


def test_tokens_are_those_of_the_records(store: Face) -> None:
    _fill(store)
    records = [record for record in store.compactions() if record.outcome == "applied"]
    [applied] = [each for each in store.audit.figures(since=_ALL).days if each.outcome == "applied"]
    assert applied.records == len(records) == 2
    assert applied.tokens_before == sum(record.tokens_before or 0 for record in records) > applied.tokens_after > 0
    assert applied.tokens_after == sum(record.tokens_after or 0 for record in records)


def test_what_is_no_compaction_is_not_counted(store: Face) -> None:
    _fill(store)
    store.revoke("t", 2)
    store.rewind("t", 5)
    store.fork("t", "copy")
    assert sum(_days(store).values()) == 3
    store.append("copy", [_HI] * 2)
    store.compact("copy", lambda ctx: ctx.compact(1, 5, "all"))
    assert sum(_days(store).values()) == 4
    store.clear("t")
    found = store.audit.figures(since=_ALL)
    assert sum(each.records for each in found.days) == 4
    assert found.records == sum(store.thread(name, hidden=True).last_number for name in ("t", "copy"))


def test_threads_are_counted_without_the_log(store: Face) -> None:
    assert store.audit.figures(since=_ALL).as_dict() == {
        "threads": 0, "erased": 0, "messages": 0, "records": 0, "leased": 0, "days": [],
    }  # fmt: skip
    _fill(store)
    store.append("u", _HI)
    store.audit.record_verification(level="content", threads=2, findings=0)
    store.custody.erase("u", reason="asked")
    found = store.audit.figures(since=_ALL)
    assert (found.threads, found.erased, found.messages, found.leased) == (2, 1, 7, 0)


def test_a_run_that_compacts_is_counted(store: Face, url: str) -> None:
    store.append("t", [_HI] * 3)
    seen: list[int] = []

    def summarize(ctx: cs.CompactionContext) -> None:
        with cs.Store.open(url) as other:
            seen.append(other.audit.figures(since=_ALL).leased)
        ctx.compact(1, 2, "two")

    store.compact("t", summarize, budget=cs.TokenBudget(500, trigger=0.1, target=0.05))
    assert seen == [1]


def test_another_tenant_is_not_counted(url: str, faces: Faces) -> None:
    _fill(faces.open(url))
    other = faces.open(url, tenant="other")
    assert (other.audit.figures(since=_ALL).threads, _days(other)) == (0, {})


def test_an_auditor_may_count(url: str, faces: Faces) -> None:
    _fill(faces.open(url))
    assert faces.open(url, role=AUDITOR).audit.figures(since=_ALL).threads == 1


@pytest.mark.parametrize("since", [None, "7d", datetime(2026, 1, 1), 7])  # noqa: DTZ001
def test_since_must_be_a_time(store: Face, since: Any) -> None:
    with pytest.raises(cs.InvalidInput, match="since"):
        store.audit.figures(since=since)
