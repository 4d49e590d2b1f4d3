"""Several summarizers, the next whenever one fails."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest
from support.faces import Face
from support.messages_server import SOURCE, talk

from compaction_store import InvalidInput, Store, Summary
from compaction_store.errors import SummarizersFailed, SummaryRefused, SummaryUseless
from compaction_store.summarizers import FallbackSummarizer, Request, StateSummary, Summarizer, needs_async

MARKER = "xyzzy-7f3a"


def breaks(_elements: Any) -> str:
    raise RuntimeError(MARKER)


async def breaks_async(_elements: Any) -> str:
    raise RuntimeError(MARKER)


async def notes_async(elements: Any) -> str:
    return f"Notes on {len(elements)}."


def test_the_first_that_can_is_asked_and_nobody_after_it() -> None:
    def never(_elements: Any) -> str:
        raise AssertionError

    found: Any = FallbackSummarizer(lambda elements: f"Notes on {len(elements)}.", never)(talk())
    assert found.text == "Notes on 4."
    assert found.coverage is None


@pytest.mark.parametrize(
    ("first", "failed"),
    [
        (breaks, {"type": "RuntimeError", "text": None}),
        (lambda _: " ", {"type": "SummaryUseless", "text": "the answer is empty"}),
        (
            lambda _: "I'm sorry, but I cannot help with that.",
            {"type": "SummaryRefused", "text": "the answer is a refusal"},
        ),
        (lambda _: SOURCE * 9, None),
        (lambda _: 5, {"type": "InvalidCallback"}),
        (lambda _: Summary("# Summary"), None),
    ],
    ids=["raises", "empty", "refuses", "longer", "no text", "shell"],
)
def test_where_one_fails_the_next_is_asked_and_the_record_says_so(first: Any, failed: Any) -> None:
    found: Any = FallbackSummarizer(first, breaks, StateSummary())(talk())
    assert found.coverage["sentences"]
    told = found.coverage["failed_before"]
    assert len(told) == 2
    assert MARKER not in repr(told)
    if failed is not None:
        assert failed.items() <= told[0].items()


def test_where_all_fail_the_error_names_them() -> None:
    with pytest.raises(SummarizersFailed, match="all 2 summarizers failed: RuntimeError, SummaryUseless") as caught:
        FallbackSummarizer(breaks, lambda _: "")(talk())
    assert [type(error) for error in caught.value.errors] == [RuntimeError, SummaryUseless]
    assert MARKER not in str(caught.value)
    assert caught.value.__context__ is None


def test_sync_and_async_ones_may_be_mixed() -> None:
    pairs: list[Any] = [(breaks, notes_async), (breaks_async, notes_async), (breaks_async, lambda _: "Notes on 4.")]
    for given in pairs:
        summarize = FallbackSummarizer(*given)
        assert summarize.needs_async

        async def wait(summarize: Any = summarize) -> Summary:
            summary: Summary = await summarize(talk())
            return summary

        assert asyncio.run(wait()).text == "Notes on 4."

    async def fails() -> None:
        waiting: Any = FallbackSummarizer(breaks_async, breaks)(talk())
        with pytest.raises(SummarizersFailed):
            await waiting

    asyncio.run(fails())


def test_one_that_does_not_tell_that_it_must_be_awaited_is() -> None:
    async def wait() -> Summary:
        waiting: Any = FallbackSummarizer(breaks, lambda elements: notes_async(elements))(talk())  # noqa: PLW0108
        summary: Summary = await waiting
        return summary

    assert asyncio.run(wait()).text == "Notes on 4."


def test_cancelling_is_no_failure() -> None:
    async def main() -> None:
        async def hangs(_elements: Any) -> str:
            await asyncio.sleep(60)
            return "never"

        waiting: Any = FallbackSummarizer(hangs, lambda _: "Notes.")(talk())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting, 0.05)

    asyncio.run(main())


def test_a_synchronous_store_refuses_it_and_nothing_is_left_unawaited(url: str) -> None:
    with Store.open(url) as store, warnings.catch_warnings():
        warnings.simplefilter("error")
        store.append("t", [e.message for e in talk(6) if e.message is not None])
        summarize = FallbackSummarizer(breaks, notes_async)
        found = store.compact("t", lambda ctx: ctx.compact(1, 4, summarize))
        assert isinstance(found.errors[0], TypeError)


def test_the_record_in_a_store_says_what_failed(store: Face) -> None:
    store.append("t", [e.message for e in talk(6)])
    summarize = FallbackSummarizer(breaks, StateSummary())
    [record] = store.compact("t", lambda ctx: ctx.compact(1, 4, summarize))
    assert record.outcome == "applied"
    [failed] = record.body["coverage"]["failed_before"]
    assert (failed["type"], failed["text"], failed["summarizer"]) == ("RuntimeError", None, f"{__name__}.breaks")
    refusing = FallbackSummarizer(breaks, lambda _: "")
    [record] = store.compact("t", lambda ctx: ctx.compact(1, 4, refusing))
    assert (record.outcome, record.error["type"]) == ("failed", "SummarizersFailed")
    assert MARKER not in repr(record.body)


def test_what_is_no_summarizer() -> None:
    with pytest.raises(InvalidInput):
        FallbackSummarizer("text")  # type: ignore[arg-type]


def test_whatever_takes_elements_is_a_summarizer() -> None:
    assert isinstance(breaks, Summarizer)
    assert isinstance(StateSummary(), Summarizer)
    assert [needs_async(f) for f in (breaks, notes_async, StateSummary())] == [False, True, False]
    assert repr(FallbackSummarizer(StateSummary(), breaks)) == "FallbackSummarizer(StateSummary, function)"


def test_a_request_is_the_sequence_of_its_elements() -> None:
    view = talk(6)
    request = Request.within(view[1:3], view, budget=9)
    assert list(request) == list(view[1:3])
    assert (request[0], request[-1:], len(request)) == (view[1], view[2:3], 2)
    assert (request.before, request.after) == (view[:1], view[3:])
    assert (request.start_seq, request.end_seq, request.max_tokens) == (2, 3, 9)
    assert Request.of(request) is request
    assert Request.of(view[1:3]).before is None
    assert Request.of(view).max_tokens == request.of(view).tokens - 1
    assert "Tuesday" not in repr(request)
    assert issubclass(SummaryRefused, Exception)
