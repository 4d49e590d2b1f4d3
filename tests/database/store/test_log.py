"""The log says what failed, with types, threads and records, and never quotes a message, a summary or an exception."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from support.compactable_thread import span
from support.faces import Face, Faces
from support.lost_replies import Proxy

import compaction_store as cs
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import FallbackSummarizer

SECRET = "marmalade-7741"
TIGHT = cs.TokenBudget(context_window=900)


class Broken(Exception):
    """Quotes the message that it is about, as other libraries' errors do."""


@pytest.fixture
def thread(store: Face) -> Face:
    store.append("t", [
        {"role": "assistant" if i % 2 else "user", "content": f"{i} {SECRET} " + "word " * 60} for i in range(12)
    ])  # fmt: skip
    return store


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="compaction_store")
    return caplog


def _texts(caught: pytest.LogCaptureFixture, level: int) -> list[str]:
    formatter = logging.Formatter()
    assert SECRET not in "".join(map(formatter.format, caught.records))
    # SQLAlchemy's pool writes to a logger below this one.
    return [each.getMessage() for each in caught.records if (each.name, each.levelno) == ("compaction_store", level)]


def fails(ctx: cs.CompactionContext) -> None:
    try:
        ctx.compact(1, 2, summarize)
    finally:
        raise Broken(str(ctx.elements[0].messages))


def summarize(elements: Sequence[cs.Element]) -> str:
    raise Broken(str(elements[0].messages)) from KeyError(str(elements[1].messages))


def short(_: Sequence[cs.Element]) -> str:
    return "short"


def test_a_callback_that_fails_is_in_the_log(thread: Face, logged: pytest.LogCaptureFixture) -> None:
    run = thread.compact("t", fails)
    assert [record.number for record in run] == [1, 2]
    assert _texts(logged, logging.WARNING) == [
        "a callback or summarizer failed: Broken in record 1 (thread 't')",
        "a callback or summarizer failed: Broken in record 2 (thread 't')",
    ]
    places = _texts(logged, logging.DEBUG)
    assert len(places) == len(run.errors)
    assert all("in fails" in place and "test_log.Broken" in place for place in places)
    assert any("in summarize" in place and "builtins.KeyError" in place for place in places)


def test_a_rejected_compaction_is_in_the_log(thread: Face, logged: pytest.LogCaptureFixture) -> None:
    thread.compact("t", span(1, 2, SECRET * 200))
    assert _texts(logged, logging.WARNING) == ["a compaction was rejected: NotSmaller in record 1 (thread 't')"]


def test_a_summary_that_a_fallback_wrote_is_in_the_log(thread: Face, logged: pytest.LogCaptureFixture) -> None:
    run = thread.compact("t", SlidingWindow(FallbackSummarizer(summarize, short), retain=2))
    assert run.applied
    assert _texts(logged, logging.WARNING) == [
        "a summarizer failed, and another one was tried: Broken in record 1 (thread 't')"
    ]


def test_the_view_that_fit_returns_shows_its_run(thread: Face, logged: pytest.LogCaptureFixture) -> None:
    budget = cs.TokenBudget(context_window=thread.view("t").tokens + 10)
    view = thread.fit("t", budget, fails)
    assert [type(error) for error in view.run.errors] == [Broken]
    assert (view.run.reason, view.elements) == ("every attempt failed", thread.view("t").elements)
    assert view == view.run.view
    assert "run" not in view.as_dict()
    view = thread.fit("t", cs.TokenBudget(700), span(1, 10, "short"))
    assert [record.summary_text for record in view.run] == ["short"]
    assert thread.fit("t", cs.TokenBudget(700)).run is None
    assert SECRET not in repr(view)
    assert _texts(logged, logging.WARNING)


def test_a_budget_that_is_exceeded_says_why_nothing_was_folded(thread: Face, logged: pytest.LogCaptureFixture) -> None:
    for callback, told in (
        (fails, "every attempt failed (Broken)"),
        (lambda _: None, "the callbacks found nothing to compact"),
        (span(1, 2, SECRET * 200), "every attempt was rejected (NotSmaller)"),
        (span(1, 1, "x"), "compacted, but the view is still above the trigger"),
    ):
        with pytest.raises(cs.BudgetExceeded) as caught:
            thread.fit("t", cs.TokenBudget(300), callback)
        assert str(caught.value).endswith(f"(thread 't'): {told}")
        assert SECRET not in str(caught.value)
        assert caught.value.view.run is not None
        assert caught.value.view.run.summed_up == told
    assert _texts(logged, logging.WARNING)


def test_what_was_sent_shows_the_runs_before_and_after_the_refusals(thread: Face, faces: Faces) -> None:
    class Refused(Exception):
        status_code = 400

    seen: list[int] = []

    def call(request: cs.View) -> str:
        seen.append(len(request.messages))
        if len(seen) == 1:
            raise Refused("context_length_exceeded")
        return "reply"

    async def call_async(request: cs.View) -> str:
        return call(request)

    def fold(ctx: cs.CompactionContext) -> None:
        start = 1 if len(ctx.elements) == 12 else 5
        ctx.compact(start, start + 3, "short", allow={"larger"})

    given: Any = call_async if faces.kind == "async" else call
    sent = thread.send("t", given, cs.TokenBudget(800), fold)
    assert sent.reply == "reply"
    assert [[record.start_seq for record in run] for run in sent.runs] == [[1], [5]]
    assert seen == [9, 6]


def test_a_call_that_waits_for_the_database_says_so(faces: Faces, url: str, logged: pytest.LogCaptureFixture) -> None:
    proxy = Proxy(url)
    store = faces.open(proxy.url, deadline=2.5)
    store.append("t", {"role": "user", "content": SECRET})
    proxy.close()
    with pytest.raises(cs.DatabaseUnavailable):
        store.view("t")
    [told] = _texts(logged, logging.WARNING)
    assert told == "a call has been retried for a second: DatabaseUnavailable (thread 't')"


def test_without_a_handler_a_warning_reaches_the_standard_error_stream(
    thread: Face, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("compaction_store")
    assert (logger.handlers, logger.propagate, logger.level) == ([], True, logging.NOTSET)
    before = logging.root.handlers[:]
    logging.root.handlers[:] = []
    try:
        thread.compact("t", fails)
    finally:
        logging.root.handlers[:] = before
    told = capsys.readouterr().err
    assert "a callback or summarizer failed: Broken in record 1 (thread 't')" in told
    assert SECRET not in told


def test_nothing_that_goes_well_is_in_the_log(thread: Face, logged: pytest.LogCaptureFixture) -> None:
    thread.compact("t", span(1, 4, "short"))
    thread.fit("t", cs.TokenBudget(700), span(1, 8, "shorter"))
    assert [_texts(logged, level) for level in (logging.DEBUG, logging.INFO, logging.WARNING)] == [[], [], []]
