"""The sliding window: where it folds, what it keeps, that it reaches a stable state, and what it costs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import random_threads as threads
from support.faces import Face, Faces
from support.random_threads import WELL_FORMED
from support.strategy_runs import attempts_of, context_of, run_strategy
from support.thread_patterns import Payload, calm, chat

from compaction_store import Summary, TokenBudget, View
from compaction_store.api_rules import refused_by_anthropic, refused_by_openai, refused_by_openai_responses
from compaction_store.messages.tool_pairs import Links
from compaction_store.models import Element
from compaction_store.strategies import SlidingWindow, Window, on_turn_end, over, plan_sliding_window
from compaction_store.strategies.base import TOO_LITTLE
from compaction_store.strategies.outline import elements_of
from compaction_store.tokens import from_callable

REFUSED: dict[str, Any] = {
    "anthropic": refused_by_anthropic,
    "chat": refused_by_openai,
    "responses": refused_by_openai_responses,
}
LONG = "Message {} " + "which goes on for quite some time " * 20
LAST_USER = {"last_user"}


def compact(elements: list[Element], strategy: SlidingWindow) -> tuple[list[Element], list[Any]]:
    """Returns the view after a strategy, without a database, and the attempts."""
    view = View("t", len(elements), tuple(elements))
    ctx = context_of(view, counter=from_callable(lambda _message: 10), callback=strategy.name)
    run_strategy(ctx, strategy)
    return list(ctx.elements), list(attempts_of(ctx))


def view_of(messages: list[Payload]) -> list[Element]:
    return elements_of(messages, lambda _message: 10)


@pytest.mark.parametrize(
    ("pattern", "retain", "spans"),
    [
        ("", 0, []),
        ("s", 0, []),
        ("suuu", 0, []),
        ("ua", 0, [(2, 2)]),
        ("saua", 0, [(2, 4)]),
        ("suauaa", 0, [(3, 6)]),
        ("sutraau", 0, [(3, 7)]),
        ("utrutru", 0, [(2, 7)]),
        ("uttarru", 0, [(2, 7)]),
        ("suaaaauaa", 3, [(3, 6)]),
        ("suaaaauaa", 5, [(3, 4)]),
        ("suauaaa", 1, [(3, 6)]),
        ("sutrtrtra", 1, [(3, 8)]),
        ("sutrtrtra", 2, [(3, 6)]),
        ("sutrtrtrra", 3, [(3, 6)]),
        ("sutrrrrrra", 2, []),
        ("ut", 1, []),
        ("ua", 9, []),
        # An unanswered call limits the span but does not block it.
        ("suaut", 0, [(3, 4)]),
        ("suttu", 0, []),
        ("suaataau", 0, [(3, 4), (6, 8)]),
        # The tail never begins between a call and its result, however far apart they are.
        ("utar", 1, []),
        ("uatuar", 1, [(2, 2)]),
        # A system message stays where it is.
        ("uaasaau", 0, [(2, 3), (5, 7)]),
    ],
)
def test_everything_that_may_go(pattern: str, retain: int, spans: list[tuple[int, int]]) -> None:
    assert plan_sliding_window(chat(pattern), retain=retain, allow=LAST_USER) == spans


def test_the_last_message_of_the_user_stays() -> None:
    assert plan_sliding_window(chat("suauau")) == [(3, 5)]
    assert plan_sliding_window(chat("suaaauaaa")) == [(3, 5), (7, 9)]


@pytest.mark.parametrize(
    ("pattern", "threshold", "retain", "spans"),
    [
        ("suaua", over(messages=5), 0, [(3, 5)]),
        ("suauau", over(messages=5), 0, [(3, 5)]),
        ("suauau", over(messages=7), 0, []),
        ("suauauauau", over(messages=6), 4, [(3, 6)]),
        ("suaaauaaauaaa", over(messages=7), 2, [(3, 7), (8, 11)]),
        # After each message of the user, if the window is large enough.
        ("uauauau", over(messages=4) & on_turn_end, 0, [(2, 5), (6, 7)]),
        # Summaries alone reach it, so only the elements after the last one count.
        ("aaaaaaaaaa", over(messages=2), 0, [(1, 2), (3, 3), (4, 5), (6, 7), (8, 9)]),
        # An empty window reaches it, so everything is folded once, at the end.
        ("suaaau", over(messages=0), 0, [(3, 6)]),
        ("utrr", lambda window: len(window) > -1, 0, [(2, 4)]),
    ],
)
def test_one_summary_each_time_the_threshold_is_reached(
    pattern: str, threshold: Any, retain: int, spans: list[tuple[int, int]]
) -> None:
    assert plan_sliding_window(chat(pattern), threshold=threshold, retain=retain, allow=LAST_USER) == spans


@pytest.mark.parametrize(
    ("pattern", "number", "retain", "spans"),
    [
        ("uau", 9, 0, []),
        ("uaua", 3, 0, [(1, 3)]),
        ("utru", 2, 0, [(1, 4)]),
        ("uauauau", 2, 0, [(1, 3), (4, 5), (6, 7)]),
        ("uuaua", 2, 0, [(1, 4), (5, 5)]),
        ("uauaua", 2, 3, [(1, 3)]),
        ("uuu", 1, 0, []),
    ],
)
def test_from_the_first_message_and_up_to_a_reply(
    pattern: str, number: int, retain: int, spans: list[tuple[int, int]]
) -> None:
    found = plan_sliding_window(
        chat(pattern), threshold=over(messages=number), retain=retain, keep_first=False, before_reply=True,
        allow=LAST_USER,
    )  # fmt: skip
    assert found == spans


def test_thresholds_of_tokens_and_fractions() -> None:
    messages = chat("suaaaaaaaa")
    ten = lambda _message: 10  # noqa: E731
    assert plan_sliding_window(messages, threshold=50, count=ten) == [(3, 5), (6, 8), (9, 10)][:2]
    assert plan_sliding_window(messages, threshold=50, count=ten, summary_tokens=20) == [(3, 5), (6, 6), (7, 10)][:2]
    assert plan_sliding_window(messages, threshold=over(fraction=0.5), limit=100, count=ten) == [(3, 5), (6, 8)]
    # The tail as a fraction of all tokens.
    assert plan_sliding_window(messages, retain=0.3, count=ten) == [(3, 7)]
    assert plan_sliding_window(messages, threshold=10_000) == []


def test_a_predicate_sees_the_window_as_it_then_is() -> None:
    seen: list[tuple[int, list[int], int]] = []

    def reached(window: Window[Element]) -> bool:
        seen.append((len(window), [element.seq for element in window], window.tokens))
        assert [window[place].seq for place in range(len(window))] == seen[-1][1]
        assert [element.seq for element in window[-2:]] == seen[-1][1][-2:]
        return len(window) >= 4

    plan_sliding_window(chat("uaaaaa"), threshold=reached, count=lambda _: 10, summary_tokens=7)
    # The predicate is called with an empty window, with the part that always stays, and then only if there is something
    # to fold.
    assert [size for size, _, _ in seen] == [0, 1, 2, 3, 4, 2, 3, 4]
    assert seen[4] == (4, [1, 2, 3, 4], 40)
    assert seen[-1] == (4, [1, 2, 5, 6], 37)


def test_pins_stay_and_bound_the_spans() -> None:
    messages = chat("uaaaaaau")
    assert plan_sliding_window(messages, pin=4) == [(2, 3), (5, 7)]
    assert plan_sliding_window(messages, pin=lambda message: message["content"].endswith(("3", "4"))) == [
        (2, 2),
        (5, 7),
    ]


@pytest.mark.parametrize("form", WELL_FORMED)
@calm
@given(data=st.data(), number=st.integers(0, 8), retain=st.integers(0, 4), before=st.booleans(), first=st.booleans())
def test_a_thread_that_an_api_takes_is_still_taken(
    form: str, data: st.DataObject, number: int, retain: int, before: bool, first: bool
) -> None:
    thread = data.draw(WELL_FORMED[form]())
    refused = REFUSED[form](thread)
    strategy = SlidingWindow(
        Summary("short"), threshold=over(messages=number), retain=retain, before_reply=before, keep_first=first,
        allow={"larger"},
    )  # fmt: skip
    after, _ = compact(view_of(thread), strategy)
    messages = [message for element in after for message in element.messages]
    assert len(REFUSED[form](messages)) <= len(refused)
    kept = min(retain, len(thread))
    assert messages[len(messages) - kept :] == thread[len(thread) - kept :]
    again, attempts = compact(after, strategy)
    assert (again, attempts) == (after, [])


@pytest.mark.parametrize("form", threads.FORMATS)
@calm
@given(script=threads.scripts(longest=14), number=st.integers(0, 8), retain=st.integers(0, 3), before=st.booleans())
def test_no_thread_at_all_is_too_odd(
    form: threads.Format, script: threads.Script, number: int, retain: int, before: bool
) -> None:
    messages = [payload for words in script for payload in threads.written(words, form)]
    options: dict[str, Any] = {"threshold": over(messages=number), "retain": retain, "before_reply": before}
    spans = plan_sliding_window(messages, **options)
    links = Links([(message,) for message in messages])
    for start, end in spans:
        assert links.problem(start - 1, end - 1) is None
        assert not links.interrupts(start - 1, end - 1)
        assert end <= len(messages) - retain
    assert all(before < after for (_, before), (after, _) in pairwise(spans))
    after, attempts = compact(view_of(messages), SlidingWindow(Summary("short"), allow={"larger"}, **options))
    assert [(a.start_seq, a.end_seq) for a in attempts] == spans
    assert all(attempt.outcome == "applied" for attempt in attempts)
    assert compact(after, SlidingWindow(Summary("short"), allow={"larger"}, **options)) == (after, [])


PARTS = st.lists(st.sampled_from(["u", "a", "aa", "tr", "trr", "ttrr"]), max_size=20).map("".join)


@calm
@given(PARTS, PARTS, st.integers(1, 9), st.integers(0, 3))
def test_appending_leaves_what_was_folded_before_the_last_compaction(
    pattern: str, more: str, number: int, retain: int
) -> None:
    """Without a store: a longer thread has the same spans, except that the last one may be longer.

    Results soon follow their calls here. A call that waits for thousands of messages would limit the spans until then.
    """
    options: dict[str, Any] = {"threshold": over(messages=number), "retain": retain, "allow": LAST_USER}
    longer = chat(pattern + more)
    before = plan_sliding_window(longer[: len(pattern)], **options)[:-1]
    assert plan_sliding_window(longer, **options)[: len(before)] == before


@calm
@given(st.lists(st.text("uuaaatr", max_size=12), max_size=6), st.integers(0, 9), st.integers(0, 3))
def test_a_thread_that_grows_and_is_compacted_now_and_then(parts: list[str], number: int, retain: int) -> None:
    """With a store: folded spans stay, and summaries are never summarized."""
    messages = chat("".join(parts))
    strategy = SlidingWindow(Summary("short"), threshold=over(messages=number), retain=retain, allow={"larger"})
    view: list[Element] = []
    after = 0
    for part in parts:
        fresh = view_of(messages)[after : after + len(part)]
        after += len(part)
        was = [element for element in view if element.is_summary]
        view, attempts = compact([*view, *fresh], strategy)
        view = [element._replace(number=element.seq) if element.is_summary else element for element in view]
        assert [element for element in view if element.is_summary][: len(was)] == was
        assert all(attempt.inputs == () for attempt in attempts)


def test_steps_grow_with_the_thread_and_no_faster() -> None:
    """Counted in calls of the threshold and in elements given to the summarizer, from 1,000 to 100,000 messages."""
    costs = []
    for count in (1_000, 10_000, 100_000):
        calls: list[int] = []
        given: list[int] = []

        def reached(window: Window[Element], calls: list[int] = calls) -> bool:
            calls.append(1)
            return window.messages >= 50

        def summarize(elements: Any, given: list[int] = given) -> str:
            given.append(len(elements))
            return "short"

        elements = view_of([{"role": "assistant" if place % 3 else "user", "content": "x"} for place in range(count)])
        after, _ = compact(elements, SlidingWindow(summarize, threshold=reached, retain=10, allow={"larger"}))
        assert sum(given) + len([e for e in after if not e.is_summary]) == count
        # On average, a summary covers at least half a window.
        assert len(given) < count / 24
        costs.append(len(calls) / count)
    assert max(costs) < 1.2


# On the store


def awaited(faces: Faces, function: Any) -> Any:
    """The summarizer as the face at hand would have it: async on an AsyncStore."""
    if faces.kind == "sync":
        return function

    async def wait(elements: Any) -> Any:
        return function(elements)

    return wait


def test_windows_become_records_and_the_view_stays_small(store: Face, faces: Faces) -> None:
    messages = chat("su" + "aatru" * 10, LONG)
    store.append("t", messages)
    strategy = SlidingWindow(
        awaited(faces, lambda elements: f"{len(elements)} messages"), threshold=over(messages=20), retain=4
    )
    run = store.compact("t", strategy)
    assert [(r.outcome, r.start_seq, r.end_seq, r.summary_text) for r in run] == [
        ("applied", 3, 19, "17 messages"),
        ("applied", 20, 36, "17 messages"),
        ("applied", 37, 48, "12 messages"),
    ]
    assert run[0].callback == "SlidingWindow(threshold=over(messages=20), retain=4)"
    assert run[0].reason == "the window reached over(messages=20)"
    assert len(run.view.elements) == 52 - 17 - 17 - 12 + 3
    assert [message.payload for message in store.replay("t")] == messages
    assert store.compact("t", strategy).records == ()
    store.append("t", chat("a" * 14 + "u", LONG))
    (record,) = store.compact("t", strategy)
    assert (record.start_seq, record.end_seq, record.inputs) == (49, 63, ())


def test_a_budget_is_threshold_enough(store: Face) -> None:
    store.append("t", chat("su" + "ua" * 40, LONG))
    tokens = store.view("t").tokens
    budget = TokenBudget(tokens, trigger=tokens // 2)
    run = store.compact("t", SlidingWindow(Summary("short"), retain=2), budget=budget)
    assert run.applied
    assert not budget.is_over(run.view.tokens)
    # Even if summaries alone fill the budget, foldable elements are folded.
    store.append("t", chat("uaaaaaau", LONG))
    tight = TokenBudget(tokens, trigger=store.view("t").tokens // 20, target=1)
    run = store.compact("t", SlidingWindow(Summary("short")), budget=tight)
    assert [r.outcome for r in run][-1] == "applied"
    assert all(element.is_summary or (element.message or {})["role"] != "assistant" for element in run.view.elements)
    # If it is forced within the budget, everything foldable is folded.
    store.append("u", chat("suaaau", LONG))
    run = store.compact("u", SlidingWindow(Summary("short")), budget=TokenBudget(1_000_000), force=True)
    assert [(r.start_seq, r.end_seq, r.reason) for r in run] == [(3, 5, "everything that may be folded")]
    # A fraction needs a budget, as the failed record says.
    run = store.compact("t", SlidingWindow(Summary("short"), threshold=over(fraction=0.1)))
    assert [(r.outcome, r.error["type"]) for r in run] == [("failed", "NotConfigured")]


def test_a_failing_summarizer_ends_it_and_what_was_planned_is_kept(store: Face, faces: Faces) -> None:
    store.append("t", chat("su" + "a" * 60, LONG))
    calls: list[int] = []

    def summarize(_elements: Any) -> str:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("secret")
        return "short"

    run = store.compact("t", SlidingWindow(awaited(faces, summarize), threshold=over(messages=20)))
    assert [r.outcome for r in run] == ["applied", "failed"]
    assert (run[1].error["type"], run[1].error["text"]) == ("OSError", "the summarizer failed")
    assert len(calls) == 2


def test_what_is_refused_is_asked_for_again_only_when_there_is_twice_as_much(store: Face) -> None:
    store.append("t", chat("u" + "a" * 64))
    asked: list[int] = []

    def summarize(elements: Any) -> str:
        asked.append(len(elements))
        return "word " * 1000

    run = store.compact("t", SlidingWindow(summarize, threshold=over(messages=8)))
    assert asked == [15, 31, 63]
    assert [r.outcome for r in run] == ["rejected"] * 3


def test_what_no_summary_could_make_smaller_is_left_until_it_grows(store: Face) -> None:
    store.append("t", chat("ua", "ok"))
    asked: list[int] = []

    def summarize(elements: Any) -> str:
        asked.append(len(elements))
        return "short"

    strategy = SlidingWindow(summarize)
    run = store.compact("t", strategy)
    assert (run.records, run.errors, run.reason) == ((), (), TOO_LITTLE)
    store.append("t", chat("aaaaaaaau", LONG))
    (record,) = store.compact("t", strategy)
    assert (record.outcome, record.start_seq, record.end_seq) == ("applied", 2, 10)
    assert asked == [9]
