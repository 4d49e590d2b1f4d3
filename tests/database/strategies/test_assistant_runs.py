"""Runs of the assistant's messages: the documents' rule, safe, in every format, on threads and on plain lists."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support import random_threads as threads
from support.faces import Face, Faces
from support.random_threads import WELL_FORMED
from support.thread_patterns import Payload, calm, chat, literal_runs

from compaction_store import InvalidInput, Store, Summary
from compaction_store.api_rules import refused_by_anthropic, refused_by_openai, refused_by_openai_responses
from compaction_store.errors import InvalidCallback
from compaction_store.messages.tool_pairs import Links
from compaction_store.strategies import AssistantRuns, over, pin, plan_assistant_runs
from compaction_store.strategies.base import TOO_LITTLE
from compaction_store.strategies.outline import speaks_anthropic

REFUSED: dict[str, Any] = {
    "anthropic": refused_by_anthropic,
    "chat": refused_by_openai,
    "responses": refused_by_openai_responses,
}
LONG = "Message {} " + "which goes on for quite some time " * 20


def folded(messages: list[Payload], spans: list[Any]) -> list[Payload]:
    """Returns the messages with a summary in place of each span."""
    found: list[Payload] = []
    after = 0
    for start, end in spans:
        found += [*messages[after : start - 1], {"role": "user", "content": "summary"}]
        after = end
    return [*found, *messages[after:]]


@pytest.mark.parametrize(
    ("pattern", "spans"),
    [
        ("", []),
        ("su", []),
        ("suauaua", []),
        ("suaaua", [(3, 4)]),
        ("suaauaaau", [(3, 4), (6, 8)]),
        ("aaua", [(1, 2)]),
        ("suauaa", [(5, 6)]),
        ("aaa", [(1, 3)]),
        ("uaauaauaa", [(2, 3), (5, 6), (8, 9)]),
        ("uuaauuaau", [(3, 4), (7, 8)]),
        ("sutrtraau", [(7, 8)]),
        ("uaasaau", [(2, 3), (5, 6)]),
        # A run ends before its last calls, and messages between a call and its result stay.
        ("suttrru", []),
        ("suaatrraau", [(3, 4), (8, 9)]),
        ("suaat", [(3, 4)]),
        ("utaatrru", []),
        # An unanswered call splits a run.
        ("uaataa", [(2, 3), (5, 6)]),
    ],
)
def test_the_runs_of_a_pattern(pattern: str, spans: list[tuple[int, int]]) -> None:
    assert plan_assistant_runs(chat(pattern)) == spans
    assert plan_assistant_runs(chat(pattern), first_only=True) == spans[:1]


@pytest.mark.parametrize(
    ("pattern", "retain", "spans"),
    [
        ("sutraau", 0, [(3, 6)]),
        ("uttarru", 0, [(2, 6)]),
        ("urru", 0, [(2, 3)]),
        ("uturu", 0, []),
        ("suaaauaa", 0, [(3, 5), (7, 8)]),
        ("suaaauaa", 4, [(3, 4)]),
        ("suaaauaa", 5, []),
        ("suauaaa", 2, []),
        # The tail begins between a call and its result.
        ("suaatra", 2, [(3, 4)]),
        ("suaatra", 1, [(3, 6)]),
    ],
)
def test_results_may_count_and_the_tail_is_kept(pattern: str, retain: int, spans: list[tuple[int, int]]) -> None:
    assert plan_assistant_runs(chat(pattern), tool_results=True, retain=retain) == spans


@calm
@given(st.text("suatr", max_size=12))
def test_it_is_the_documents_rule_wherever_that_keeps_pairs_whole(pattern: str) -> None:
    messages = chat(pattern)
    links = Links([(message,) for message in messages])
    literal = literal_runs(pattern)
    whole = [span for span in literal if links.problem(span[0] - 1, span[1] - 1) is None]
    spans = plan_assistant_runs(messages)
    assert [span for span in literal if span in spans] == whole
    for start, end in spans:
        assert links.problem(start - 1, end - 1) is None
        assert any(low <= start and end <= high for low, high in literal)


@pytest.mark.parametrize("form", WELL_FORMED)
@calm
@given(st.data())
def test_a_thread_that_an_api_takes_is_still_taken(form: str, data: st.DataObject) -> None:
    thread = data.draw(WELL_FORMED[form]())
    # Make longer runs than an API would return, which Anthropic's API accepts as one turn.
    if form != "responses":
        thread = [part for message in thread for part in _twice(message, data.draw(st.booleans()))]
    assume(not REFUSED[form](thread))
    results = data.draw(st.booleans())
    spans = plan_assistant_runs(thread, tool_results=results)
    after = folded(thread, spans)
    assert REFUSED[form](after) == []
    # If no message shows the format any more, the neighbours of a system message need not stay.
    if form != "anthropic" or speaks_anthropic(after):
        assert plan_assistant_runs(after, tool_results=results) == []
    users = [message for message in thread if message.get("role") in ("user", "system", "developer")]
    users = [message for message in users if not (results and _only_results(message))]
    assert [message for message in after if any(message is user for user in users)] == users


def _twice(message: Payload, twice: bool) -> list[Payload]:
    said = message.get("role") == "assistant" and "tool_calls" not in message
    return [{"role": "assistant", "content": "well,"}, message] if said and twice else [message]


def _only_results(message: Payload) -> bool:
    content = message.get("content")
    return isinstance(content, list) and all(part.get("type") == "tool_result" for part in content)


@pytest.mark.parametrize("form", threads.FORMATS)
@calm
@given(script=threads.scripts(), results=st.booleans(), tail=st.integers(0, 3))
def test_no_thread_at_all_is_too_odd(form: threads.Format, script: threads.Script, results: bool, tail: int) -> None:
    messages = [payload for words in script for payload in threads.written(words, form)]
    spans = plan_assistant_runs(messages, tool_results=results, retain=tail)
    links = Links([(message,) for message in messages])
    assert all(links.problem(start - 1, end - 1) is None and end <= len(messages) - tail for start, end in spans)
    assert plan_assistant_runs(folded(messages, spans), tool_results=results, retain=tail) == []


def test_what_is_no_message_at_all_belongs_to_no_run() -> None:
    odd: list[Any] = [
        {},
        {"role": 3},
        {"role": "assistant"},
        None,
        {"role": "assistant", "content": [None, 3]},
        {"a": 1},
    ]
    assert plan_assistant_runs(odd) == []


def test_items_of_the_responses_api_without_a_role_are_the_assistants() -> None:
    reasoning = {"type": "reasoning", "id": "rs", "summary": []}
    search = {"type": "web_search_call", "id": "ws", "status": "completed"}
    call = {"type": "mcp_call", "id": "m", "name": "f", "arguments": "{}", "server_label": "s", "output": "o"}
    user = {"role": "user", "content": "hi"}
    assert plan_assistant_runs([user, reasoning, search, call, user]) == [(2, 4)]
    # The item that the reasoning leads to does not exist yet.
    assert plan_assistant_runs([user, search, call, reasoning]) == [(2, 3)]


def test_what_is_pinned_parts_a_run() -> None:
    messages = chat("uaaaaaau")
    assert plan_assistant_runs(messages, pin=4) == [(2, 3), (5, 7)]
    assert plan_assistant_runs(messages, pin=(3, 5)) == [(6, 7)]
    assert plan_assistant_runs(messages, pin=[4, lambda message: message["content"] == "Message 6"]) == [(2, 3)]


def test_one_hundred_thousand_messages_take_steps_in_proportion() -> None:
    assert [len(plan_assistant_runs(chat("u" + "aatr" * count))) for count in (250, 2500)] == [250, 2500]
    looks = []
    for count in (1_000, 10_000, 100_000):
        asked: list[int] = []
        messages = [{"role": "assistant" if place % 3 else "user", "content": "x"} for place in range(count)]
        plan_assistant_runs(messages, pin=lambda _message, asked=asked: asked.append(1))
        looks.append(len(asked) / count)
    assert looks == [1, 1, 1]


# With a store


def thread(store: Face, pattern: str, text: str = LONG) -> list[Payload]:
    messages = chat(pattern, text)
    store.append("t", messages)
    return messages


def awaited(faces: Faces, function: Any) -> Any:
    """Returns the summarizer for the kind of store: async for an AsyncStore."""
    if faces.kind == "sync":
        return function

    async def wait(elements: Any) -> Any:
        return function(elements)

    return wait


def test_every_run_becomes_a_summary_and_a_record(store: Face, faces: Faces) -> None:
    messages = thread(store, "suaauaaau")
    strategy = AssistantRuns(awaited(faces, lambda elements: f"{len(elements)} messages"))
    run = store.compact("t", strategy)
    assert [(r.outcome, r.start_seq, r.end_seq, r.summary_text, r.callback) for r in run] == [
        ("applied", 3, 4, "2 messages", "AssistantRuns()"),
        ("applied", 6, 8, "3 messages", "AssistantRuns()"),
    ]
    view = store.view("t")
    kept = [e.message for e in view.elements if not e.is_summary]
    assert kept == [messages[0], messages[1], messages[4], messages[8]]
    assert [message.payload for message in store.replay("t")] == messages
    assert store.compact("t", strategy).reason == "the callbacks found nothing to compact"
    # New messages form a new run, because a summary is not a message of the assistant.
    store.append("t", chat("aa", LONG))
    store.append("t", chat("aa", LONG))
    assert [(r.start_seq, r.end_seq) for r in store.compact("t", strategy)] == [(10, 13)]


def test_one_run_per_call(store: Face) -> None:
    thread(store, "suaauaaauaa")
    strategy = AssistantRuns(Summary("shorter"), first_only=True)
    found = [[(r.start_seq, r.end_seq) for r in store.compact("t", strategy)] for _ in range(4)]
    assert found == [[(3, 4)], [(6, 8)], [(10, 11)], []]


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_run_that_fails_is_on_record_and_the_others_are_kept(store: Face, faces: Faces, failing: int) -> None:
    messages = thread(store, "uaauaauaau")
    calls: list[int] = []

    def summarize(_elements: Any) -> str:
        calls.append(1)
        if len(calls) == failing:
            raise OSError("the secret of message 1")
        return "said things"

    run = store.compact("t", AssistantRuns(awaited(faces, summarize)))
    assert [r.outcome for r in run] == ["failed" if n == failing else "applied" for n in (1, 2, 3)]
    failed = run[failing - 1]
    assert failed.error is not None
    assert (failed.error["type"], failed.error["text"]) == ("OSError", "the summarizer failed")
    assert (failed.start_seq, failed.end_seq) == ((2, 3), (5, 6), (8, 9))[failing - 1]
    assert [message.payload for message in store.replay("t")] == messages


def test_a_summary_that_is_no_smaller_or_says_nothing_is_refused(store: Face) -> None:
    thread(store, "uaauaau")
    texts = iter(["x" * 10_000, "  "])
    run = store.compact("t", AssistantRuns(lambda _: next(texts)))
    assert [r.outcome for r in run] == ["rejected", "rejected"]
    assert [(r.error or {})["type"] for r in run] == ["NotSmaller", "EmptySummary"]
    # Nothing has changed, so neither run is tried again.
    assert store.compact("t", AssistantRuns(lambda _: next(texts))).records == ()


def test_no_model_is_asked_for_what_no_summary_could_make_smaller(store: Face) -> None:
    messages = [*chat("uaau", "ok"), *chat("aau", LONG), *chat("aau", "ok")]
    store.append("t", messages)
    asked: list[int] = []

    def summarize(elements: Any) -> str:
        asked.append(elements[0].seq)
        return "said things"

    run = store.compact("t", AssistantRuns(summarize))
    assert asked == [5]
    assert [(r.outcome, r.start_seq) for r in run] == [("applied", 5)]
    # If no run could be made smaller, nothing is tried, and the reason says so. With allow={"larger"} all are tried.
    run = store.compact("t", AssistantRuns(summarize))
    assert (asked, run.records, run.errors, run.reason) == ([5], (), (), TOO_LITTLE)
    run = store.compact("t", AssistantRuns(Summary("said things"), allow={"larger"}))
    assert [(r.outcome, r.start_seq) for r in run] == [("applied", 2), ("applied", 8)]


def test_nothing_is_done_below_a_threshold_or_to_what_is_pinned(store: Face) -> None:
    thread(store, "suaauaaau")
    assert store.compact("t", AssistantRuns(Summary("short"), when=over(messages=10))).records == ()
    strategy = pin(AssistantRuns(Summary("short"), when=over(messages=9)), 3)
    run = store.compact("t", strategy)
    assert [(r.start_seq, r.end_seq, r.callback) for r in run] == [
        (6, 8, "AssistantRuns(when=over(messages=9), pin=3)")
    ]


def test_a_summary_keeps_what_its_summarizer_says_of_it(store: Face) -> None:
    thread(store, "uaau")
    (record,) = store.compact("t", AssistantRuns(lambda _: Summary("short", model="m-1", prompt="p")))
    assert (record.model, record.reason) == ("m-1", "a run of the assistant's messages, seqs 2 to 3")


def test_an_async_summarizer_needs_an_async_store(url: str) -> None:
    async def summarize(_elements: Any) -> str:
        return "short"

    with Store.open(url) as store:
        store.append("t", chat("uaau", LONG))
        with pytest.raises(TypeError, match="AsyncStore"):
            store.compact("t", AssistantRuns(summarize))
        # This cannot be known in advance, so the run reports it.
        run = store.compact("t", AssistantRuns(partial(_call, summarize)))
        assert [type(error) for error in run.errors] == [InvalidCallback]
        assert [r.outcome for r in run] == ["failed"]


def _call(function: Any, elements: Any) -> Any:
    return function(elements)


def test_a_strategy_may_be_called_by_another_callback(store: Face) -> None:
    thread(store, "uaau")

    def compact(ctx: Any) -> None:
        AssistantRuns(Summary("short"))(ctx)

    assert [(r.start_seq, r.end_seq) for r in store.compact("t", compact)] == [(2, 3)]


@pytest.mark.parametrize(
    "options", [{"min_length": 0}, {"retain": -1}, {"retain": True}, {"allow": {"much"}}, {"pin": 0}]
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        AssistantRuns(Summary("short"), **options)


def test_a_summarizer_is_a_callable_or_a_summary() -> None:
    with pytest.raises(TypeError, match="a summarizer or a Summary, not int"):
        AssistantRuns(3)  # type: ignore[arg-type]
