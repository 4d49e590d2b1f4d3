"""Questions about compactions afterwards: seen_by, the log and its filters, explain, trees, due threads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.compactable_thread import LONG, chat, log, span
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.models import CompactionTree
from compaction_store.models.vocabulary import STATUSES


def test_seen_by_proves_what_a_reply_was_written_from(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    thread.compact("t", span(1, 4))
    view = thread.view("t")
    thread.append("t", {"role": "user", "content": "too late for the reply"})
    [reply] = thread.append("t", {"role": "assistant", "content": "from the view"}, view=view)
    thread.compact("t", span(1, 8))
    seen = thread.seen_by("t", reply.seq)
    assert (seen.evidence, seen.view) == ("proved", view)
    assert seen.receipt is not None
    assert seen.receipt["pos"] == view.pos
    guessed = thread.seen_by("t", 12)
    assert (guessed.evidence, guessed.receipt, len(guessed.view.elements)) == ("reconstructed", None, 11)
    superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER refuse_change")
    superuser.execute("UPDATE compaction_store.messages SET payload = '{}' WHERE seq = 5")
    assert thread.seen_by("t", reply.seq).evidence == "differs"
    with pytest.raises(cs.MessageNotFound):
        thread.seen_by("t", 1)
    with pytest.raises(cs.MessageNotFound):
        thread.seen_by("t", 99)
    with pytest.raises(cs.ThreadNotFound):
        thread.seen_by("unknown", 1)


def test_the_log_is_asked_by_every_column(thread: Face) -> None:
    before = datetime.now(UTC) - timedelta(hours=1)
    thread.compact("t", span(1, 2), actor="a")
    thread.compact("t", lambda ctx: ctx.remove(3, 4), actor="b")

    def with_model(ctx: cs.CompactionContext) -> None:
        ctx.compact(5, 8, cs.Summary("S", model="m"))

    [model] = thread.compact("t", with_model)
    thread.compact("t", span(1, 4, "wide"))
    thread.compact("t", span(9, 10, LONG * 10))
    thread.revoke("t", 4)

    def numbers(**filters: Any) -> list[int]:
        return [c.number for c in log(thread, **filters)]

    assert numbers() == [1, 2, 3, 4, 5, 6]
    assert numbers(newest_first=True) == [6, 5, 4, 3, 2, 1]
    assert numbers(after=model) == [4, 5, 6]
    assert numbers(after=model, newest_first=True) == [2, 1]
    assert numbers(covering=4) == [2, 4, 6]
    assert numbers(kind="removal") == [2]
    assert numbers(outcome="rejected") == [5]
    assert numbers(actor="a") == [1]
    assert numbers(model="m") == [3]
    assert numbers(run_id=model.run_id) == [3]
    assert numbers(callback=model.callback) == [3]
    assert numbers(since=before) == [1, 2, 3, 4, 5, 6]
    assert numbers(until=before) == []
    assert numbers(since=model.created_at, until=model.created_at) == [3]
    assert numbers(trigger="manual") == [1, 2, 3, 4, 5, 6]
    assert numbers(login=model.login) == [1, 2, 3, 4, 5, 6]
    assert numbers(login="nobody") == []
    assert thread.compaction("t", 3) == model
    with pytest.raises(cs.CompactionNotFound):
        thread.compaction("t", 7)
    with pytest.raises(cs.ThreadNotFound):
        list(thread.compactions("unknown"))


def test_the_log_is_asked_by_status_tokens_counter_and_the_texts_of_bodies(thread: Face) -> None:
    def fails(_: cs.CompactionContext) -> None:
        raise RuntimeError("away")

    thread.compact("t", span(1, 2))
    coverage = {"failed_before": [{"type": "ReadTimeout"}, {"type": "SummaryRefused"}]}
    thread.compact("t", span(3, 4, cs.Summary("S", summarizer="mine", coverage=coverage)))
    thread.compact("t", span(1, 4, cs.Summary("S", summarizer="mïne")))
    thread.compact("t", span(5, 6))
    thread.revoke("t", 4)
    thread.compact("t", span(7, 8))
    thread.custody.redact("t", [7], reason="asked for")
    thread.compact("t", span(9, 10, LONG * 10))
    thread.compact("t", fails)
    everything = log(thread)
    assert [r.number for r in everything] == [*range(1, 9)]

    def numbers(**filters: Any) -> list[int]:
        found = [c.number for c in log(thread, **filters)]
        assert [c.number for c in thread.compactions(**filters)] == found
        assert [c.number for c in thread.compactions(newest_first=True, **filters)] == found[::-1]
        return found

    of = {status: [r.number for r in everything if r.status == status] for status in STATUSES}
    assert of == {
        "active": [3], "superseded": [1, 2], "revoked": [4], "redacted": [6], "unknown": [], "applied": [5],
        "rejected": [7], "failed": [8], "observed": [],
    }  # fmt: skip
    assert {status: numbers(status=status) for status in STATUSES} == of
    assert numbers(revokes=4) == [5]
    assert numbers(revokes=3) == []
    assert numbers(made_from=2) == [3]
    assert numbers(made_from=3) == []
    assert numbers(summarizer="mine") == [2]
    assert numbers(summarizer="mïne") == [3]
    assert numbers(summarizer="min") == []
    assert numbers(error_type="RuntimeError") == [8]
    assert numbers(failed_before="ReadTimeout") == numbers(failed_before="SummaryRefused") == [2]
    assert numbers(failed_before="RuntimeError") == []
    assert everything[6].error is not None
    assert numbers(error_type=everything[6].error["type"], outcome="rejected") == [7]
    for before, after in {(r.tokens_before, r.tokens_after) for r in everything}:
        for name, count in (("tokens_before", before), ("tokens_after", after)):
            if count is not None:
                values = {r.number: getattr(r, name) for r in everything if getattr(r, name) is not None}
                assert numbers(**{name: (count, count)}) == [n for n, value in values.items() if value == count]
                assert numbers(**{name: (count, None)}) == [n for n, value in values.items() if value >= count]
                assert numbers(**{name: (None, count)}) == [n for n, value in values.items() if value <= count]
    [counter] = {r.counter for r in everything if r.counter is not None}
    assert numbers(counter=counter) == [r.number for r in everything if r.counter is not None]
    assert numbers(counter="another") == []
    assert numbers(status="superseded", summarizer="mine", tokens_before=(1, None), counter=counter) == [2]


@pytest.mark.parametrize(
    "filters",
    [
        {"failed_before": ""},
        {"kind": "other"}, {"outcome": "good"}, {"covering": 0}, {"covering": "1"}, {"actor": ""}, {"model": 5},
        {"since": datetime(2026, 1, 1)}, {"until": "now"}, {"run_id": "1"},  # noqa: DTZ001 — the point
        {"status": "good"}, {"counter": ""}, {"summarizer": 5}, {"error_type": ""}, {"revokes": 0}, {"made_from": "1"},
        {"tokens_before": 5}, {"tokens_before": (2, 1)}, {"tokens_after": (None, None)}, {"tokens_after": (-1, 1)},
    ],
)  # fmt: skip
def test_a_filter_that_means_nothing_is_refused(thread: Face, filters: Any) -> None:
    with pytest.raises(cs.InvalidInput):
        thread.compactions("t", **filters)


def test_the_log_is_asked_across_threads_and_in_pages(faces: Faces, url: str) -> None:
    store, other = faces.open(url), faces.open(url, tenant="other")
    for name in ("t", "u", "v"):
        store.append(name, chat(80), tokens=100)
        other.append(name, chat(2), tokens=100)
        store.compact(name, *[span(seq, seq, "S") for seq in range(1, 79)])
    other.compact("t", span(1, 1))
    found = list(store.compactions())
    assert [(c.thread_id, c.number) for c in found] == [(n, i) for n in ("t", "u", "v") for i in range(1, 79)]
    assert list(store.compactions(newest_first=True)) == found[::-1]
    assert list(store.compactions(after=found[99])) == found[100:]
    assert [c.thread_id for c in other.compactions()] == ["t"]


def test_explain_tells_what_became_of_a_message(thread: Face) -> None:
    thread.compact("t", span(1, 4))
    thread.compact("t", span(1, 6, "wide"))
    found = thread.audit.explain("t", 3)
    assert (found.message.payload, [c.number for c in found.records]) == (chat()[2], [1, 2])
    assert (found.element.seq, found.element.end_seq, found.element.number) == (1, 6, 2)
    assert [m.payload for m in thread.audit.originals(found.records[0])] == chat()[:4]
    assert thread.audit.explain("t", 9).records == ()
    assert thread.audit.explain("t", 9).element.message == chat()[8]
    with pytest.raises(cs.MessageNotFound):
        thread.audit.explain("t", 99)


def test_a_tree_shows_what_a_record_was_made_of(thread: Face) -> None:
    thread.compact("t", span(1, 2), span(3, 4))
    thread.compact("t", span(1, 4, "wide"))
    thread.revoke("t", 3)
    thread.compact("t", span(5, 6))
    run = thread.compact("t", span(1, 6, "wider"))

    def numbers(tree: CompactionTree) -> Any:
        return (tree.record.number, [numbers(inside) for inside in tree.inside])

    assert numbers(thread.audit.tree(run[0])) == (6, [(1, []), (2, []), (5, [])])
    assert numbers(thread.audit.tree(log(thread)[2])) == (3, [(1, []), (2, [])])


def test_due_names_the_threads_that_are_over_budget(store: Face) -> None:
    for name, tokens in (("small", 10), ("large", 30_000), ("larger", 50_000), ("stuck", 40_000)):
        store.append(name, chat(2), tokens=tokens)
    budget = cs.TokenBudget(50_000, trigger=0.9, target=0.5)

    def due() -> list[str]:
        return [t.thread_id for t in store.due(budget)]

    assert due() == ["larger", "stuck", "large"]
    assert not store.compact("stuck", lambda _ctx: None, budget=budget).applied
    assert due() == ["larger", "large"]
    store.append("stuck", chat(1), tokens=19_999)
    assert due() == ["larger", "large"]
    store.append("stuck", chat(1), tokens=1)
    assert sorted(due()) == ["large", "larger", "stuck"]
    assert store.compact("large", span(1, 1, allow={"last_user"}), budget=budget).applied
    assert sorted(due()) == ["larger", "stuck"]
