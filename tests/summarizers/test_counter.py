"""Exact counts by the API, with the real client against a local server, and without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import psycopg
import pytest
from support.faces import Face, Faces
from support.messages_server import (
    SOURCE,
    Behaviour,
    Handler,
    Payload,
    Server,
    counts,
    cuts,
    drips,
    elements,
    fails,
    hangs,
    serving,
    taken,
    talk,
)

from compaction_store import InvalidInput, TokenBudget, View
from compaction_store.models import Measured
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import AnthropicCounter, StateSummary

KEY = "sk-ant-of-a-test"
MARKER = "xyzzy-7f3a"
TOOLS: list[Payload] = [{"name": "look", "description": "Looks. " * 40, "input_schema": {"type": "object"}}]


@pytest.fixture
def api() -> Iterator[Server]:
    with serving() as found:
        yield found
        assert found.all_closed()


class Counting:
    """Counts with either client, and closes it."""

    def __init__(self, kind: str, api: Server) -> None:
        self.kind = kind
        self.url = api.url

    def __call__(self, *views: View, retries: int = 0, **options: Any) -> list[Measured]:
        """Counts one view after the other with one counter."""
        settings: dict[str, Any] = {"api_key": KEY, "base_url": self.url, "max_retries": retries, "timeout": 60}
        options = {"model": "claude-x", "deadline": 60, **options}
        if self.kind == "sync":
            with anthropic.Anthropic(**settings) as client:
                counter: Any = AnthropicCounter(client, **options)
                assert not counter.needs_async
                return [counter(view) for view in views]

        async def wait() -> list[Measured]:
            async with anthropic.AsyncAnthropic(**settings) as client:
                counter: Any = AnthropicCounter(client, **options)
                assert counter.needs_async
                return [await counter(view) for view in views]

        return asyncio.run(wait())


@pytest.fixture(params=["sync", "async"])
def count(request: pytest.FixtureRequest, api: Server) -> Counting:
    return Counting(request.param, api)


def view(*payloads: Payload | None) -> View:
    return View("t", 1, elements(*payloads) if payloads else talk())


def test_the_api_says_what_the_request_made_of_a_view_takes(count: Counting, api: Server) -> None:
    seen = view({"role": "system", "content": "Be brief."}, *[e.message for e in talk()])
    parameters = {"tools": TOOLS, "max_tokens": 99, "temperature": 0.5, "thinking": {"type": "disabled"}}
    [measured] = count(seen, parameters=parameters)
    [sent] = api.counted
    rendered = seen.for_anthropic()
    thinking = {"type": "disabled"}
    assert sent == {**rendered, "model": "claude-x", "tools": TOOLS, "thinking": thinking}
    assert measured == Measured(taken(sent), seen.tokens, "exact", counter="anthropic/claude-x")
    assert api.requests == []


def test_a_block_of_the_apis_own_is_counted_with_its_beta(count: Counting, api: Server) -> None:
    block = {"type": "compaction", "content": "They met.", "encrypted_content": None, "signature": "c2lnbmVk"}
    [measured] = count(view({"role": "assistant", "content": [block]}, {"role": "user", "content": "And?"}))
    assert measured.source == "exact"
    assert api.counted[0]["messages"][0]["content"] == [block]


def test_the_same_content_is_asked_about_once(count: Counting, api: Server) -> None:
    again = View("another thread", 9, talk())
    found = count(view(), again, view({"role": "user", "content": "Hi"}), view())
    assert len(api.counted) == 2
    assert found[0] == found[1] == found[3] != found[2]
    assert len(count(view(), view(), remembered=0)) == 2
    assert len(api.counted) == 4


def test_only_the_last_counts_are_remembered(count: Counting, api: Server) -> None:
    views = [view({"role": "user", "content": str(number)}) for number in range(4)]
    count(*views, views[3], views[2], views[0], remembered=2)
    assert len(api.counted) == 5


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            fails(429, "rate_limit_error", MARKER, retry_after="3600"),
            "the API answered 429 rate_limit_error (req_test1)",
        ),
        (fails(500, "api_error", MARKER), "the API answered 500 api_error (req_test1)"),
        (fails(400, "invalid_request_error", MARKER), "the API answered 400 invalid_request_error (req_test1)"),
        (fails(400, "invalid_request_error", "prompt is too long"), "the request is too long for the model"),
        (counts(lambda _body: None), "the API's answer has no token count"),
        (lambda handler, _body: handler.send(200, b"<html>"), "the answer must be JSON, not application/json"),
        (cuts, "the client raised "),
        (hangs, ""),
        (drips, ""),
    ],
    ids=["429", "500", "400", "too long", "no count", "no JSON", "cut", "hangs", "drips"],
)
def test_without_an_answer_the_stores_figure_is_given_and_the_reason(
    count: Counting, api: Server, fault: Behaviour, said: str
) -> None:
    api.counting = fault
    seen = view({"role": "user", "content": f"{MARKER} {SOURCE}"})
    [measured] = count(seen, deadline=0.2 if fault in (hangs, drips) else 60)
    assert (measured.source, measured.tokens, measured.local) == ("local", seen.tokens, seen.tokens)
    assert measured.error is not None
    assert said in measured.error
    assert MARKER not in repr(measured)
    assert len(api.counted) == 1


def test_where_nobody_listens_and_what_cannot_be_sent(count: Counting) -> None:
    count.url = "http://127.0.0.1:9"
    for measured in count(view(), view()):
        # A failure is not cached.
        assert "APIConnectionError" in (measured.error or "")
    sound = {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}
    [measured] = count(view(sound))
    assert (measured.source, measured.error is None) == ("local", False)


def test_what_is_busy_or_breaks_is_asked_again_before_the_deadline(count: Counting, api: Server) -> None:
    faults = [fails(529, "overloaded_error", retry_after="0.01"), fails(500, "api_error", retry_after="0.01")]

    def recovers(handler: Handler, body: Payload) -> None:
        (faults.pop() if faults else counts())(handler, body)

    api.counting = recovers
    assert count(view(), retries=1)[0].source == "exact"
    assert len(api.counted) == 3


def test_what_a_counter_does_not_take(api: Server) -> None:
    with anthropic.Anthropic(api_key=KEY, base_url=api.url) as client:
        wrong: list[Payload] = [
            {"model": ""}, {"deadline": 0}, {"remembered": -1}, {"parameters": {"messages": []}},
            {"parameters": {"model": "m"}},
        ]  # fmt: skip
        for options in wrong:
            with pytest.raises(InvalidInput):
                AnthropicCounter(client, **{"model": "claude-x", **options})
        with pytest.raises(InvalidInput):
            AnthropicCounter("client", model="m")
        counter = AnthropicCounter(client, model="m", parameters={"system": MARKER})
        assert repr(counter) == "AnthropicCounter(model='m')"
        assert (counter.name, counter.counts_overhead) == ("anthropic/m", True)
        assert not AnthropicCounter(client, model="m", parameters={"thinking": {}}).counts_overhead


# ---- with a store


@pytest.fixture
def client(faces: Faces, api: Server) -> Iterator[Any]:
    kind = anthropic.Anthropic if faces.kind == "sync" else anthropic.AsyncAnthropic
    made: Any = kind(api_key=KEY, base_url=api.url, max_retries=0, timeout=60)
    yield made
    closing = made.close()
    if faces.runner is not None:
        faces.runner.run(closing)


def filled(store: Face) -> View:
    store.append("t", [e.message for e in talk(8)])
    found: View = store.view("t")
    return found


def test_a_budget_goes_by_the_exact_count_and_the_records_say_so(store: Face, client: Any, api: Server) -> None:
    seen = filled(store)
    exact = taken(dict(seen.for_anthropic()))
    counter = AnthropicCounter(client, model="claude-x", deadline=60)
    budget = TokenBudget(
        context_window=seen.tokens * 2,
        trigger=(seen.tokens + exact) // 2,
        counter=counter,
        target=seen.tokens * 9 // 10,
    )
    assert exact > budget.trigger_tokens > seen.tokens
    store.on_compact(SlidingWindow(StateSummary(), retain=5))
    fitting = store.fit("t", budget)
    [record] = store.compactions("t")
    told = {"tokens": exact, "local": seen.tokens, "source": "exact", "counter": "anthropic/claude-x"}
    assert record.body["measured"] == told
    assert record.trigger == "budget"
    # The rest of the view is counted again if that may matter.
    assert fitting.measured.source == "exact"
    assert fitting.measured.tokens == taken(dict(fitting.for_anthropic()))
    asked = len(api.counted)
    assert store.fit("t", budget).measured == fitting.measured
    assert len(api.counted) == asked == 2


def test_what_is_sent_beside_the_view_is_in_the_count_and_taken_off_again(
    store: Face, client: Any, api: Server
) -> None:
    seen = filled(store)
    budget = TokenBudget(10_000, overhead=100, trigger=seen.tokens * 2 - 10, target=500)
    for parameters, off in (({"tools": TOOLS}, 100), ({}, 0)):
        counter = AnthropicCounter(client, model="claude-x", parameters=parameters, deadline=60)
        asking = TokenBudget(10_000, 0, 100, budget.trigger, 500, counter)
        assert store.fit("t", asking).measured.tokens == taken(api.counted[-1]) - off


def test_no_transaction_is_open_and_no_connection_held_while_the_api_counts(
    store: Face, client: Any, api: Server, superuser: psycopg.Connection[Any]
) -> None:
    seen = filled(store)
    states: list[tuple[str, Any]] = []

    def looks(handler: Handler, body: Payload) -> None:
        found = superuser.execute(
            "SELECT state, xact_start FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'compaction-store'"
        ).fetchall()
        states.extend((row[0], row[1]) for row in found)
        counts()(handler, body)

    api.counting = looks
    budget = TokenBudget(
        seen.tokens * 2,
        trigger=seen.tokens,
        target=seen.tokens * 9 // 10,
        counter=AnthropicCounter(client, model="m", deadline=60),
    )
    run = store.compact("t", SlidingWindow(StateSummary(), retain=5), budget=budget)
    assert run.applied
    assert len(api.counted) == 2
    assert states
    assert set(states) == {("idle", None)}


def test_where_the_api_cannot_count_the_next_best_figure_holds_and_says_why(
    store: Face, client: Any, api: Server
) -> None:
    seen = filled(store)
    counter = AnthropicCounter(client, model="claude-x", deadline=60)
    budget = TokenBudget(context_window=seen.tokens * 2, counter=counter)
    api.counting = fails(500, "api_error", MARKER)
    measured = store.fit("t", budget).measured
    assert (measured.source, measured.tokens) == ("local", seen.tokens)
    assert measured.error.startswith("the API answered 500")
    # The usage that a reply reported is the better figure.
    said = {"role": "assistant", "content": SOURCE, "usage": {"input_tokens": round(seen.tokens * 1.2)}}
    store.append("t", said, view=seen)
    asked = len(api.counted)
    run = store.compact("t", SlidingWindow(StateSummary(), retain=2), budget=budget, force=True)
    assert run.applied
    assert run.view.measured.source == "calibrated"
    # After a failure it is not asked again in the same call.
    assert len(api.counted) == asked + 1
    [record] = run
    assert record.body["measured"]["source"] == "calibrated"
    assert record.body["measured"]["error"].startswith("the API answered 500")
    assert MARKER not in str(record.body["measured"])
