"""Spans and metrics: their names and attributes, and that they contain no content."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from opentelemetry.trace import SpanKind, StatusCode
from support.faces import Face, Faces, methods
from support.recorded_telemetry import RecordedTelemetry

import compaction_store as cs
from compaction_store.compaction.context import CompactionContext
from compaction_store.errors import CompactionStoreError, MissingExtra
from compaction_store.postgres.calling import append_queue, call
from compaction_store.postgres.calling._async import shared_commits
from compaction_store.telemetry import conventions

MARKER = "xyzzy-7f3a"
TALK = [
    {"role": "user" if i % 2 else "assistant", "content": f"{MARKER} said number {i} of many. " * 9}
    for i in range(1, 9)
]


@pytest.fixture
def told() -> RecordedTelemetry:
    return RecordedTelemetry()


@pytest.fixture
def store(faces: Faces, url: str, told: RecordedTelemetry) -> Face:
    return faces.open(url, telemetry=told.telemetry)


def fold(ctx: CompactionContext) -> Any:
    return ctx.compact(1, 6, f"{MARKER} in short")


def test_an_append_is_one_span_with_its_statement_in_it(store: Face, told: RecordedTelemetry, url: str) -> None:
    store.append("t-1", TALK, key=MARKER)
    span = told.one("compaction_store.append")
    assert (span.kind, span.status.status_code) == (SpanKind.INTERNAL, StatusCode.UNSET)
    assert span.attributes is not None
    assert {**span.attributes} == {
        "compaction_store.operation": "append", "compaction_store.tenant": "default",
        "gen_ai.conversation.id": "t-1", "compaction_store.messages": 8, "compaction_store.pos": 8,
        "compaction_store.tokens": sum(m.tokens for m in store.replay("t-1")),
    }  # fmt: skip
    assert told.under(span) == ["SELECT compaction_store.append"]
    statement = told.one("SELECT compaction_store.append")
    assert statement.kind is SpanKind.CLIENT
    assert statement.attributes is not None
    assert statement.attributes["db.system.name"] == "postgresql"
    assert statement.attributes["db.query.summary"] == "SELECT compaction_store.append"
    assert statement.attributes["db.namespace"] == f"{sa.make_url(url).database}|compaction_store"
    assert told.points("compaction_store.messages") == [({}, 8)]
    [(labels, seconds)] = told.points("compaction_store.operation.duration")
    assert labels == {"compaction_store.operation": "append"}
    assert 0 < seconds < 60
    assert {labels["db.system.name"] for labels, _ in told.points("db.client.operation.duration")} == {"postgresql"}


def test_a_run_tells_its_tokens_and_what_its_records_came_to(store: Face, told: RecordedTelemetry) -> None:
    store.append("t-1", TALK)
    before = store.view("t-1").tokens

    def broken(_ctx: CompactionContext) -> None:
        raise ValueError(MARKER)

    run = store.compact("t-1", fold, broken)
    span = told.one("compaction_store.compact")
    assert span.attributes is not None
    assert span.attributes["compaction_store.tokens.before"] == before
    assert span.attributes["compaction_store.tokens.after"] == run.view.tokens
    assert span.attributes["compaction_store.records.applied"] == 1
    assert span.attributes["compaction_store.records.failed"] == 1
    assert span.attributes["compaction_store.errors"] == ("ValueError",)
    assert "SELECT compaction_store.commit_compactions" in told.under(span)
    assert "compaction_store.view" in told.under(span)
    assert told.points("compaction_store.compactions") == [
        ({"compaction_store.outcome": "applied", "compaction_store.kind": "summary"}, 1),
        ({"compaction_store.outcome": "failed", "compaction_store.kind": "summary"}, 1),
    ]
    assert told.points("compaction_store.compact.tokens") == [
        ({"compaction_store.side": "before"}, before), ({"compaction_store.side": "after"}, run.view.tokens),
    ]  # fmt: skip


def test_spans_of_views_that_fold_say_so(store: Face, told: RecordedTelemetry) -> None:
    def said() -> set[str]:
        spans = [span for span in told.spans if (span.attributes or {}).get("gen_ai.conversation.compacted") is True]
        return {span.name.removeprefix("compaction_store.") for span in spans}

    store.append("t-1", TALK)
    store.view("t-1")
    store.compact("t-1", lambda _: None)
    assert said() == set()
    store.compact("t-1", fold)
    assert said() == {"compact"}
    store.append("t-1", {"role": "assistant", "content": "so"}, view=store.view("t-1"))
    store.fit("t-1", cs.TokenBudget(100_000))
    store.seen_by("t-1", store.thread("t-1").last_seq)
    assert said() == {"compact", "view", "fit", "seen_by"}


def test_a_repair_is_reported_as_a_run_and_a_rewind_has_its_span(store: Face, told: RecordedTelemetry) -> None:
    store.append("t-1", TALK)
    store.compact("t-1", fold)
    before = store.view("t-1").tokens
    run = store.repair("t-1", 1, "other words")
    span = told.one("compaction_store.repair")
    assert span.attributes is not None
    assert span.attributes["compaction_store.tokens.before"] == before
    assert span.attributes["compaction_store.tokens.after"] == run.view.tokens
    assert span.attributes["compaction_store.records.applied"] == 2
    store.rewind("t-1", 1)
    assert told.under(told.one("compaction_store.rewind")) == ["SELECT compaction_store.rewind"]


def test_tokens_before_are_exact_where_one_run_folds_its_own_summary(store: Face) -> None:
    store.append("t-1", TALK)
    before = store.view("t-1").tokens

    def twice(ctx: CompactionContext) -> Any:
        ctx.compact(1, 2, "first")
        return ctx.compact(1, 6, "second")

    run = store.compact("t-1", twice)
    assert conventions.tokens_of_run(run) == (before, run.view.tokens)


def test_an_error_is_reported_by_its_type_and_our_text(store: Face, told: RecordedTelemetry) -> None:
    store.append("t-1", TALK[0], key=MARKER)
    with pytest.raises(cs.IdempotencyConflict) as raised:
        store.append("t-1", TALK[1], key=MARKER)
    span = told.named("compaction_store.append")[1]
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, str(raised.value))
    assert span.attributes is not None
    assert span.attributes["error.type"] == "IdempotencyConflict"
    assert span.events == ()
    assert told.points("compaction_store.conflicts") == [
        ({"db.query.summary": "SELECT compaction_store.append", "error.type": "IdempotencyConflict"}, 1)
    ]
    failed = [labels for labels, _ in told.points("compaction_store.operation.duration") if "error.type" in labels]
    assert failed == [{"compaction_store.operation": "append", "error.type": "IdempotencyConflict"}]


def test_of_anothers_error_only_the_type_is_reported(store: Face, told: RecordedTelemetry) -> None:
    class Unfit:
        def model_dump(self, **_: object) -> None:
            raise ValueError(MARKER)

    with pytest.raises((ValueError, TypeError, CompactionStoreError)):
        store.compact("t-1", MARKER)
    with pytest.raises((ValueError, CompactionStoreError)):
        store.append("t-1", Unfit())
    for name in ("compaction_store.compact", "compaction_store.append"):
        assert told.one(name).status.status_code is StatusCode.ERROR
    assert MARKER not in told.everything()


@pytest.mark.no_pooler("a pooler replaces a closed connection by itself, so nothing is sent again")
def test_a_statement_that_is_sent_again_says_so(
    store: Face, told: RecordedTelemetry, superuser: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append("t-1", TALK[0])
    monkeypatch.setattr(call, "_FIRST_PAUSE", 0.0)
    # The next append finds its connection closed by an administrator, and makes another.
    superuser.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    store.append("t-1", TALK[1])
    statement = told.named("SELECT compaction_store.append")[1]
    assert statement.status.status_code is StatusCode.UNSET
    assert statement.attributes is not None
    assert statement.attributes["compaction_store.retries"] == 1
    assert [event.name for event in statement.events] == ["compaction_store.retry"]
    [(labels, count)] = told.points("compaction_store.retries")
    assert (labels["db.query.summary"], count) == ("SELECT compaction_store.append", 1)


def test_no_content_is_reported(store: Face, told: RecordedTelemetry) -> None:
    store.append("t-1", TALK, key=MARKER, meta={"note": MARKER})
    store.set_metadata("t-1", {"title": MARKER})
    store.compact("t-1", fold)
    store.append("t-1", {"role": "assistant", "content": MARKER}, view=store.view("t-1"))
    store.audit.explain("t-1", 3)
    assert store.seen_by("t-1", 9).evidence == "proved"
    list(store.replay("t-1"))
    [record] = store.compactions("t-1")
    store.audit.tree(record)
    store.revoke("t-1", 1, reason=MARKER)
    assert store.audit.verify("t-1").findings == ()
    store.custody.redact("t-1", [3], reason="asked for")
    store.custody.erase("t-1", reason="asked for")
    everything = told.everything()
    assert MARKER not in everything
    assert "compaction_store.seen_by" in everything
    operations = {
        labels["compaction_store.operation"] for labels, _ in told.points("compaction_store.operation.duration")
    }
    assert {"append", "view", "revoke"} <= operations
    assert {"audit.explain", "audit.tree", "audit.verify", "custody.redact", "custody.erase"} <= operations


def test_a_thread_is_named_on_spans_and_not_on_metrics(store: Face, told: RecordedTelemetry) -> None:
    with pytest.raises(cs.InvalidInput):
        store.append("\ud800", TALK[0])
    store.append(f"{MARKER}-t", TALK[0])
    assert [s.attributes and s.attributes["gen_ai.conversation.id"] for s in told.named("compaction_store.append")] == [
        "?", f"{MARKER}-t",
    ]  # fmt: skip
    for name in ("compaction_store.operation.duration", "db.client.operation.duration", "compaction_store.messages"):
        assert MARKER not in json.dumps([labels for labels, _ in told.points(name)])


def test_tasks_at_once_have_their_own_spans(url: str, told: RecordedTelemetry) -> None:
    import asyncio  # noqa: PLC0415 — only here

    async def run() -> None:
        async with await cs.AsyncStore.open(url, share_commits=False, telemetry=told.telemetry) as store:
            await asyncio.gather(*(store.append(f"t-{i}", TALK) for i in range(8)))

    asyncio.run(run())
    assert len(told.named("compaction_store.append")) == 8
    for span in told.named("compaction_store.append"):
        assert told.under(span) == ["SELECT compaction_store.append"]
        assert span.parent is None


def test_a_shared_commit_is_a_statement_of_one_caller(
    url: str, told: RecordedTelemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio  # noqa: PLC0415 — only here

    # On a busy machine, a caller that waits for a tenth of a second would append by itself.
    for module in (append_queue, shared_commits):
        monkeypatch.setattr(module, "PATIENCE", 60.0)
    # If two had a place and both were done before the next caller woke up, it and one more would have places too.
    monkeypatch.setattr(append_queue, "_PLACES_OF_A_THREAD", 1)

    async def run() -> None:
        async with await cs.AsyncStore.open(url, telemetry=told.telemetry) as store:
            await asyncio.gather(*(store.append("t", TALK) for _ in range(8)))

    asyncio.run(run())
    under = [told.under(span) for span in told.named("compaction_store.append")]
    assert len(under) == 8
    alone, together = (f"SELECT compaction_store.{name}" for name in ("append", "append_together"))
    # One appends by itself, one appends for all others, and those have no statement of their own.
    assert sorted(under) == [[], [], [], [], [], [], [alone], [together]]


def test_every_method_has_a_span_or_returns_an_iterator() -> None:
    known = {f"{group}.{name}".lstrip(".") for group, names in conventions.OPERATIONS.items() for name in names}
    found = methods(cs.AsyncStore)
    assert known <= found.keys()
    for name in found.keys() - known - {"open", "close", "of_tenant", "on_compact", "on_recorded", "turn"}:
        given = str(inspect.signature(found[name]).return_annotation)
        assert inspect.isasyncgenfunction(found[name]) or given.startswith(("AsyncIterator[", "AsyncResults[")), name


def test_a_store_that_tells_keeps_its_signatures(url: str, told: RecordedTelemetry) -> None:
    plain = methods(cs.Store)
    with cs.Store.open(url, telemetry=told.telemetry) as store:
        for group, names in conventions.OPERATIONS.items():
            for name in names:
                method = plain[f"{group}.{name}".lstrip(".")]
                wrapped = getattr(getattr(store, group) if group else store, name)
                assert [*inspect.signature(wrapped).parameters] == [*inspect.signature(method).parameters][1:], name
                assert inspect.getdoc(wrapped) == inspect.getdoc(method)


def test_without_telemetry_nothing_stands_in_the_way(url: str) -> None:
    with cs.Store.open(url) as store:
        assert not set(vars(store)) & set(conventions.OPERATIONS)
        assert store._db._observer is None


def test_without_telemetry_nothing_of_it_is_imported() -> None:
    code = "import sys, compaction_store; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_where_the_extra_is_missing_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtra, match=r"Telemetry needs the extra 'otel': pip install") as raised:
        cs.Telemetry()
    assert raised.value.extra == "otel"


def test_what_is_no_telemetry_is_refused(faces: Faces, url: str) -> None:
    with pytest.raises(cs.InvalidInput, match="telemetry must be a Telemetry"):
        faces.open(url, telemetry=object())
    with pytest.raises(cs.InvalidInput, match="content must be True or False"):
        cs.Telemetry(content="no")  # type: ignore[arg-type]


def test_with_no_provider_it_is_the_global_one_and_costs_no_error(faces: Faces, url: str) -> None:
    store = faces.open(url, telemetry=cs.Telemetry())
    store.append("t-1", TALK)
    assert store.view("t-1").messages == TALK
